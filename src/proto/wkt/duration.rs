//! JSON of `Duration`: seconds with a fraction, such as `900s` or `-1.250s`.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Error as _, Serialize, Serializer};

use super::Duration;

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match print(*self) {
            Some(text) => to.serialize_str(&text),
            None => Err(S::Error::custom("a duration lies outside of 10,000 years")),
        }
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| D::Error::custom("expected a duration like 900s"))
    }
}

fn print(duration: Duration) -> Option<String> {
    if !duration.is_valid() {
        return None;
    }
    let sign = if duration.seconds < 0 || duration.nanos < 0 { "-" } else { "" };
    let (seconds, nanos) = (duration.seconds.unsigned_abs(), duration.nanos.unsigned_abs());
    let fraction = match nanos {
        0 => String::new(),
        n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
        n if n % 1000 == 0 => format!(".{:06}", n / 1000),
        n => format!(".{n:09}"),
    };
    Some(format!("{sign}{seconds}{fraction}s"))
}

fn parse(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s')?;
    let (sign, number) = match number.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, number),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos: i32 = format!("{fraction:0<9}").parse().ok()?;
    let duration =
        Duration { seconds: whole.parse::<i64>().ok()? * i64::from(sign), nanos: nanos * sign };
    Some(duration).filter(|duration| duration.is_valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_printed_and_read() {
        for (text, seconds, nanos) in [
            ("0s", 0, 0),
            ("900s", 900, 0),
            ("1.250s", 1, 250_000_000),
            ("-0.000001s", 0, -1000),
            ("-3.000000001s", -3, -1),
            ("315576000000s", 315_576_000_000, 0),
        ] {
            let duration = Duration { seconds, nanos };
            assert_eq!(print(duration).as_deref(), Some(text));
            assert_eq!(parse(text), Some(duration), "{text}");
        }
        assert_eq!(parse("1.5s"), Some(Duration { seconds: 1, nanos: 500_000_000 }));
        for text in ["", "s", "1", "1m", "+1s", "--1s", "1.s", ".5s", "1.0123456789s", "1e3s"] {
            assert_eq!(parse(text), None, "{text}");
        }
        for text in ["315576000001s", "9223372036854775807s", "9999999999999999999s"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(print(Duration { seconds: 1, nanos: -1 }), None);
    }
}
