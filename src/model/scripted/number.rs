//! Numbers in texts that users write.

use serde_json::Number;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::json::compare;

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
