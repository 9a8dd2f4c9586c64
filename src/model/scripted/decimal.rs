//! Numbers of a script, exactly. TODO: `session::json` compares numbers too; use its function once
//! it is here, and keep only `read`.

use std::cmp::Ordering;

use serde_json::{Number, Value};

/// Orders two numbers by value: 1, 1.0 and 10e-1 are one number, whatever they are written like.
pub fn compare(a: &Number, b: &Number) -> Ordering {
    let (a, b) = (Decimal::of(a), Decimal::of(b));
    match (a.negative, b.negative) {
        (false, true) => Ordering::Greater,
        (true, false) => Ordering::Less,
        (false, false) => a.magnitude().cmp(&b.magnitude()),
        (true, true) => b.magnitude().cmp(&a.magnitude()),
    }
}

/// Whether two values are the same, numbers by value.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(key, a)| b.get(key).is_some_and(|b| equal(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        _ => a == b,
    }
}

/// The number that a text reads as: a JSON number, or one with commas between its thousands.
pub fn read(text: &str) -> Option<Number> {
    // Anything else that serde_json would skip or take, such as space around, is no number.
    if !text.bytes().all(|b| b.is_ascii_digit() || b"+-.,eE".contains(&b)) {
        return None;
    }
    if !text.contains(',') {
        return serde_json::from_str(text).ok();
    }
    let (whole, fraction) = text.split_once('.').map_or((text, None), |(w, f)| (w, Some(f)));
    let mut groups = whole.strip_prefix('-').unwrap_or(whole).split(',');
    let digits = |group: &str| group.bytes().all(|b| b.is_ascii_digit());
    let first = groups.next().is_some_and(|g| (1..=3).contains(&g.len()) && digits(g));
    let others = groups.all(|group| group.len() == 3 && digits(group));
    let fraction = fraction.is_none_or(digits);
    if !(first && others && fraction) {
        return None;
    }
    serde_json::from_str(&text.replace(',', "")).ok()
}

/// A number as its significant digits and where they begin: 0.digits × 10^exponent.
struct Decimal {
    negative: bool,
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    fn of(number: &Number) -> Self {
        let text = number.as_str();
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        // Digits only, so it can fail by being too large alone.
        let far = if exponent.starts_with('-') { i64::MIN / 2 } else { i64::MAX / 2 };
        let exponent: i64 = exponent.parse().unwrap_or(far).clamp(i64::MIN / 2, i64::MAX / 2);
        let unsigned = mantissa.strip_prefix('-').unwrap_or(mantissa);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        let leading = digits.iter().take_while(|digit| **digit == b'0').count();
        let mut digits = digits[leading..].to_vec();
        digits.truncate(digits.iter().rposition(|digit| *digit != b'0').map_or(0, |at| at + 1));
        let places = |count: usize| i64::try_from(count).unwrap_or(i64::MAX / 4);
        let exponent = exponent + places(whole.len()) - places(leading);
        let zero = digits.is_empty();
        Self {
            negative: !zero && mantissa.starts_with('-'),
            exponent: if zero { i64::MIN } else { exponent },
            digits,
        }
    }

    fn magnitude(&self) -> (i64, &[u8]) {
        (self.exponent, &self.digits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> Number {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn numbers_are_ordered_by_value() {
        let ordered = [
            "-1e99999999999999999999",
            "-100.5",
            "-100",
            "-0.001",
            "0",
            "1e-99999999999999999999",
            "0.0999999999999999999999",
            "0.1",
            "99.99",
            "100",
            "100.000000000000000000001",
            "1e3",
            "9007199254740993",
            "9007199254740994",
            "1e400",
        ];
        for (i, a) in ordered.iter().enumerate() {
            for (j, b) in ordered.iter().enumerate() {
                assert_eq!(compare(&number(a), &number(b)), i.cmp(&j), "{a} {b}");
            }
        }
        for (a, b) in [("1", "1.0"), ("0", "-0.00"), ("10e-1", "1"), ("1e2", "100"), ("0e9", "0")] {
            assert!(compare(&number(a), &number(b)).is_eq(), "{a} {b}");
        }
    }

    #[test]
    fn texts_read_as_numbers_only_if_they_are_ones() {
        let read = |text| read(text).map(|number| number.to_string());
        for (text, number) in [("1,200.50", "1200.50"), ("-1,000,000", "-1000000"), ("42", "42")] {
            assert_eq!(read(text).as_deref(), Some(number));
        }
        for text in ["", "007", "12,5", "1,2000", ",100", "1,200.", ".5", "1,200e3", " 1", "0,100"]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
