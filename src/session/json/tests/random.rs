//! Texts as others write them, texts that are broken, and every bound from both sides.

use proptest::sample::Index;

use super::*;

/// One value written in some way; each pick decides what is free in JSON at its place.
struct Writer<'a> {
    picks: &'a [u32],
    at: usize,
    out: String,
}

impl Writer<'_> {
    fn pick(&mut self, of: u32) -> u32 {
        self.at += 1;
        self.picks.get(self.at % (self.picks.len() + 1)).map_or(0, |pick| pick % of)
    }

    fn space(&mut self) {
        let space = ["", "", " ", "\n\t", "\r"][self.pick(5) as usize];
        self.out.push_str(space);
    }

    fn value(&mut self, value: &Value) {
        self.space();
        match value {
            Value::Null | Value::Bool(_) => self.out.push_str(&value.to_string()),
            Value::Number(number) => self.number(number.as_str()),
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.out.push('[');
                for (at, item) in items.iter().enumerate() {
                    self.comma(at);
                    self.value(item);
                }
                self.out.push(']');
            }
            Value::Object(object) => {
                let mut entries: Vec<_> = object.iter().collect();
                for at in 1..entries.len() {
                    let other = self.pick(at as u32 + 1) as usize;
                    entries.swap(at, other);
                }
                self.out.push('{');
                for (at, (key, value)) in entries.into_iter().enumerate() {
                    self.comma(at);
                    self.string(key);
                    self.space();
                    self.out.push(':');
                    self.value(value);
                }
                self.out.push('}');
            }
        }
        self.space();
    }

    fn comma(&mut self, at: usize) {
        if at > 0 {
            self.out.push(',');
        }
        self.space();
    }

    /// The same number: with another exponent, or with zeros behind.
    fn number(&mut self, text: &str) {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let exponent: i64 = exponent.parse().unwrap();
        match self.pick(4) {
            0 => self.out.push_str(text),
            1 if mantissa.contains('.') => self.out.push_str(&format!("{mantissa}00E{exponent}")),
            1 => self.out.push_str(&format!("{mantissa}.0e{exponent:+}")),
            2 if !mantissa.contains('.') && mantissa.trim_start_matches('-') != "0" => {
                self.out.push_str(&format!("{mantissa}000e{}", exponent - 3));
            }
            _ => {
                let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
                let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |rest| ("-", rest));
                let shift = whole.len() as i64;
                self.out.push_str(&format!("{sign}0.{whole}{part}E{}", exponent + shift));
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            let must = matches!(c, '"' | '\\' | '\0'..='\x1f');
            match self.pick(6) {
                0 | 1 if must || c == '/' => match c {
                    '"' | '\\' | '/' => self.out.extend(['\\', c]),
                    '\n' => self.out.push_str("\\n"),
                    _ => self.units(c),
                },
                2 => self.units(c),
                _ if must => self.units(c),
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn units(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            let upper = self.pick(2) == 0;
            let digits = if upper { format!("{unit:04X}") } else { format!("{unit:04x}") };
            self.out.push_str("\\u");
            self.out.push_str(&digits);
        }
    }
}

fn picks() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(any::<u32>(), 0..200)
}

fn written(value: &Value, picks: &[u32]) -> String {
    let mut writer = Writer { picks, at: 0, out: String::new() };
    writer.value(value);
    writer.out
}

/// A number's digits when it is written out plain, by counting characters.
fn plain_digits(whole: &str, part: &str, exponent: i64) -> usize {
    let digits = format!("{whole}{part}");
    let point = whole.len() as i64 + exponent;
    let Some(first) = digits.find(|c| c != '0') else { return 1 };
    let last = digits.rfind(|c| c != '0').unwrap();
    let (first, last) = (first as i64, last as i64);
    if last < point {
        return (point - first) as usize;
    }
    // With a point: at least one digit before it, all behind it up to the last that counts.
    ((point - first).max(1) + last + 1 - point) as usize
}

/// Whether we take less than JSON has, and say so.
fn is_ours(fault: Fault) -> bool {
    !matches!(fault, Fault::Syntax(_))
}

proptest! {
    #[test]
    fn however_it_is_written_it_is_the_same(value in any_value(), picks in picks()) {
        let text = written(&value, &picks);
        let read = parse(&text, MAX_DEPTH).map_err(|e| TestCaseError::fail(format!("{e}: {text}")));
        let read = read?;
        prop_assert!(same(&read, &value), "{text}");
        prop_assert_eq!(canonical(&read).unwrap(), canonical(&value).unwrap());
        prop_assert_eq!(digest(&read).unwrap(), digest(&value).unwrap());
        prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), read);
    }

    #[test]
    fn broken_text_is_refused_where_it_breaks(
        value in any_value(),
        picks in picks(),
        cut in prop::collection::vec((any::<Index>(), any::<Index>(), any::<char>()), 0..4),
    ) {
        let mut chars: Vec<char> = written(&value, &picks).chars().collect();
        for (from, to, other) in cut {
            let (from, to) = (from.index(chars.len() + 1), to.index(chars.len() + 1));
            if from < to && to - from < 4 {
                chars.drain(from..to);
            } else {
                chars.insert(from, other);
            }
        }
        let text: String = chars.into_iter().collect();
        let theirs = serde_json::from_str::<Value>(&text);
        match parse(&text, MAX_DEPTH) {
            Ok(value) => prop_assert_eq!(theirs.unwrap(), value),
            Err(Error { fault, place }) => {
                prop_assert!(theirs.is_err() || is_ours(fault), "{fault}: {text}");
                let place = place.unwrap();
                let line = text.split('\n').nth(place.line - 1).unwrap();
                prop_assert!(place.column <= line.chars().count() + 1, "{place:?}: {text}");
            }
        }
    }

    #[test]
    fn any_bytes_are_read_as_serde_reads_them_or_less(bytes in any::<Vec<u8>>()) {
        let text = String::from_utf8_lossy(&bytes);
        let theirs = serde_json::from_str::<Value>(&text);
        match parse(&text, MAX_DEPTH) {
            Ok(value) => prop_assert_eq!(theirs.unwrap(), value),
            Err(error) => prop_assert!(theirs.is_err() || is_ours(error.fault)),
        }
    }

    #[test]
    fn nesting_is_refused_one_level_above_the_limit(value in any_value()) {
        let (text, depth) = (value.to_string(), depth(&value));
        prop_assert!(parse(&text, depth).is_ok() && check(&value, depth).is_ok());
        if depth > 0 {
            let fault = Fault::TooDeep(depth - 1);
            prop_assert_eq!(parse(&text, depth - 1).unwrap_err().fault, fault);
            prop_assert_eq!(check(&value, depth - 1).unwrap_err().fault, fault);
        }
    }

    #[test]
    fn a_number_is_taken_if_its_plain_digits_are_few_enough(
        whole in "0|[1-9][0-9]{0,3}|[1-9]0{0,410}|[1-9][0-9]{380,405}",
        part in "[0-9]{0,3}|0{0,410}[0-9]{0,2}",
        exponent in prop_oneof![Just(0), -420..420_i64, -20_000..20_000_i64, any::<i64>()],
    ) {
        let point = if part.is_empty() { "" } else { "." };
        let text = format!("-{whole}{point}{part}e{exponent}");
        let few = whole.len() + part.len() <= MAX_DIGITS
            && exponent.unsigned_abs() <= 9_999
            && plain_digits(&whole, &part, exponent) <= MAX_DIGITS;
        let read = parse(&text, 0);
        prop_assert_eq!(read.is_ok(), few, "{}", text);
        let Ok(value) = read else {
            prop_assert_eq!(read.unwrap_err().fault, Fault::NumberTooLong);
            return Ok(());
        };
        let plain = canonical(&value).unwrap();
        let digits = plain.bytes().filter(u8::is_ascii_digit).count();
        prop_assert!(digits <= MAX_DIGITS, "{plain}");
        prop_assert_eq!(digits, plain_digits(&whole, &part, exponent), "{} {}", text, plain);
        prop_assert!(same(&parse(&plain, 0).unwrap(), &value));
    }
}
