//! A JSON number taken apart without copying it. Nothing here allocates by an exponent.

use std::cmp::Ordering;
use std::iter::repeat_n;

use super::MAX_DIGITS;

/// Exponents larger than this, either way, are too long whatever they belong to.
const MAX_EXPONENT: i64 = 9_999;

/// Where an exponent is cut off when it is read: far beyond any that a number of bounded length
/// could make up for, far below an overflow.
const SATURATED: i64 = 1 << 60;

/// The decimal `0.DIGITS * 10^point`, negative or not; zero has no digits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decimal<'a> {
    negative: bool,
    /// From the first digit that is not zero to the last one; a point may stand among them.
    digits: &'a [u8],
    /// How many digits that are.
    count: usize,
    point: i64,
    /// How many digits are written before the exponent.
    written: usize,
    exponent: i64,
}

/// Where the number that begins at `start` ends; none if no JSON number begins there.
pub(super) fn end(text: &[u8], start: usize) -> Option<usize> {
    let digits = |from: usize| {
        let count = text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
        (count > 0).then_some(from + count)
    };
    let whole = start + usize::from(text.get(start) == Some(&b'-'));
    let mut at = if text.get(whole) == Some(&b'0') { whole + 1 } else { digits(whole)? };
    if text.get(at) == Some(&b'.') {
        at = digits(at + 1)?;
    }
    if matches!(text.get(at), Some(b'e' | b'E')) {
        let signed = matches!(text.get(at + 1), Some(b'+' | b'-'));
        at = digits(at + 1 + usize::from(signed))?;
    }
    Some(at)
}

impl<'a> Decimal<'a> {
    /// Reads a whole JSON number.
    pub(super) fn read(text: &'a str) -> Option<Self> {
        if end(text.as_bytes(), 0)? != text.len() {
            return None;
        }
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, read_exponent(exponent)),
            None => (text, 0),
        };
        let mantissa = mantissa.as_bytes();
        let whole = mantissa.iter().position(|b| *b == b'.').unwrap_or(mantissa.len());
        let written = mantissa.len() - usize::from(whole < mantissa.len());
        let significant = |b: &u8| !matches!(b, b'0' | b'.');
        let Some(first) = mantissa.iter().position(significant) else {
            let zero = Self { negative: false, digits: &[], count: 0, point: 0, written, exponent };
            return Some(zero);
        };
        let last = mantissa.iter().rposition(significant)?;
        let digits = &mantissa[first..=last];
        let count = digits.len() - usize::from(first < whole && whole < last);
        let before = if first < whole {
            whole as i64 - first as i64
        } else {
            whole as i64 + 1 - first as i64
        };
        Some(Self { negative, digits, count, point: before + exponent, written, exponent })
    }

    /// Whether it has more digits than we take, as written or printed plain.
    pub(super) fn too_long(&self) -> bool {
        let most = MAX_DIGITS as i64;
        let plain = if self.point > 0 {
            self.point.max(self.count as i64)
        } else {
            1 - self.point + self.count as i64
        };
        self.written > MAX_DIGITS || self.exponent.abs() > MAX_EXPONENT || plain > most
    }

    /// Prints it plain; only for one that is not too long.
    pub(super) fn write(&self, out: &mut String) {
        debug_assert!(!self.too_long());
        if self.count == 0 {
            out.push('0');
            return;
        }
        if self.negative {
            out.push('-');
        }
        let mut digits = self.each().map(char::from);
        if self.point > 0 {
            let whole = self.point as usize;
            out.extend(digits.by_ref().take(whole));
            out.extend(repeat_n('0', whole.saturating_sub(self.count)));
            if self.count > whole {
                out.push('.');
                out.extend(digits);
            }
        } else {
            out.push_str("0.");
            out.extend(repeat_n('0', self.point.unsigned_abs() as usize));
            out.extend(digits);
        }
    }

    /// Exact order by value.
    pub(super) fn compare(&self, other: &Decimal<'_>) -> Ordering {
        self.sign().cmp(&other.sign()).then_with(|| {
            let magnitude =
                self.point.cmp(&other.point).then_with(|| self.each().cmp(other.each()));
            if self.negative { magnitude.reverse() } else { magnitude }
        })
    }

    fn sign(&self) -> i8 {
        match (self.count, self.negative) {
            (0, _) => 0,
            (_, true) => -1,
            (_, false) => 1,
        }
    }

    fn each(&self) -> impl Iterator<Item = u8> {
        self.digits.iter().copied().filter(|b| *b != b'.')
    }
}

fn read_exponent(text: &str) -> i64 {
    let (negative, digits) = match text.as_bytes()[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = digits.trim_start_matches('0');
    let size = match digits.len() {
        0 => 0,
        1..=18 => digits.parse::<i64>().map_or(SATURATED, |size| size.min(SATURATED)),
        _ => SATURATED,
    };
    if negative { -size } else { size }
}
