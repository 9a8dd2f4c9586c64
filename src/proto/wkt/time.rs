//! JSON of `Timestamp`: RFC 3339 in UTC, such as `2026-01-31T12:00:00.250Z`.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Error as _, Serialize, Serializer};

use super::Timestamp;

const DAY: i64 = 86_400;

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match print(*self) {
            Some(text) => to.serialize_str(&text),
            None => Err(S::Error::custom("a timestamp lies outside of years 1 to 9999")),
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| D::Error::custom("expected a time like 2026-01-31T12:00:00Z"))
    }
}

fn print(time: Timestamp) -> Option<String> {
    if !time.is_valid() {
        return None;
    }
    let (year, month, day) = date_of(time.seconds.div_euclid(DAY));
    let second = time.seconds.rem_euclid(DAY);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = match time.nanos {
        0 => String::new(),
        n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
        n if n % 1000 == 0 => format!(".{:06}", n / 1000),
        n => format!(".{n:09}"),
    };
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z"))
}

fn parse(text: &str) -> Option<Timestamp> {
    if !text.is_ascii() {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let signs = [(4, "-"), (7, "-"), (13, ":"), (16, ":")];
    if signs.iter().any(|&(at, sign)| text.get(at..=at) != Some(sign)) {
        return None;
    }
    if !matches!(text.get(10..11)?, "T" | "t") {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days_of(year, month, day);
    if date_of(days) != (year, month, day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }

    let rest = text.get(19..)?;
    let digits = rest.strip_prefix('.').map_or("", |rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        &rest[..end]
    });
    if (rest.starts_with('.') && digits.is_empty()) || digits.len() > 9 {
        return None;
    }
    let nanos = format!("{digits:0<9}").parse().ok()?;
    let zone = &rest[if digits.is_empty() { 0 } else { digits.len() + 1 }..];
    let offset = match zone.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = text.len() - 5;
            let (hours, minutes) = (number(at, at + 2)?, number(at + 3, at + 5)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 3600 + minutes * 60) * if *sign == b'-' { -1 } else { 1 }
        }
        _ => return None,
    };
    let seconds = days * DAY + hour * 3600 + minute * 60 + second - offset;
    Some(Timestamp { seconds, nanos }).filter(|time| time.is_valid())
}

/// Year, month and day of a day counted from 1970, in the Gregorian calendar. Years are counted
/// from March, so that the day that comes and goes is the last (the known `civil_from_days`).
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of [`date_of`].
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let year_of_era = year.rem_euclid(400);
    let of_year = (153 * shifted + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    year.div_euclid(400) * 146_097 + of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_printed_and_read() {
        let samples = [
            ("1970-01-01T00:00:00Z", 0, 0),
            ("2024-02-29T23:59:59.250Z", 1_709_251_199, 250_000_000),
            ("1969-12-31T23:59:59.000001Z", -1, 1000),
            ("0001-01-01T00:00:00Z", -62_135_596_800, 0),
            ("9999-12-31T23:59:59.999999999Z", 253_402_300_799, 999_999_999),
        ];
        for (text, seconds, nanos) in samples {
            let time = Timestamp { seconds, nanos };
            assert_eq!(print(time).as_deref(), Some(text));
            assert_eq!(parse(text), Some(time), "{text}");
        }
        assert_eq!(parse("2024-01-01T01:30:00.5+01:30"), parse("2024-01-01T00:00:00.5Z"));
        assert_eq!(parse("2024-01-01T00:00:00-00:30"), parse("2024-01-01T00:30:00z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let samples = [
            "",
            "2024-01-01",
            "2023-02-29T00:00:00Z",
            "2024-13-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00.1234567890Z",
            "2024-01-01 00:00:00Z",
            "2024-01-01T00:00:00+1:00",
            "2024-01-01T00:00:00ZZ",
            "+024-01-01T00:00:00Z",
            "0001-01-01T00:00:00+01:00",
            "２024-01-01T00:00:00Z",
        ];
        for text in samples {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
