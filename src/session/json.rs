//! Exact JSON: reading it strictly, comparing it, its canonical form and the digest of a call's
//! arguments.
//!
//! A number is a decimal and keeps every digit; nothing here ever goes through a double. Canonical
//! JSON is RFC 8785 with one change for that: RFC 8785 rounds numbers to doubles, so that two
//! account numbers above 2^53 would share a digest; here they are printed plain and exact.
//!
//! The key under which `serde_json` hides exact numbers from its own deserializers is refused as a
//! key of an object: stored and read again, such an object would come back as a number.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

use super::content::Object;
use decimal::Decimal;

mod decimal;
mod parse;
#[cfg(test)]
pub(crate) mod tests;

pub use parse::parse;

/// Deepest nesting of any JSON, in levels: a scalar has none, `{}` has one, `[[]]` has two.
pub const MAX_DEPTH: usize = 32;

/// Deepest nesting of a call's arguments, in levels; a confirmation carries them two deeper.
pub const MAX_ARGS_DEPTH: usize = 30;

/// Longest number, in digits: as it is written and as it is printed plain, with the zeros that its
/// exponent stands for and the zero before a point.
pub const MAX_DIGITS: usize = 400;

/// Nesting beyond which nothing here goes down, whatever limit is asked for.
const DEEPEST: usize = 128;

/// The key that `serde_json` reserves for exact numbers.
pub const RESERVED: &str = "$serde_json::private::Number";

/// Why a text or a value is not JSON that we take. What stands there is never repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Error {
    /// What is wrong.
    pub fault: Fault,
    /// Where, if a text was read.
    pub place: Option<Place>,
}

/// A place in a text; both count from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// What is wrong with a text or a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The text is no JSON.
    #[error("{0}")]
    Syntax(&'static str),
    /// An object has the same key twice.
    #[error("this object has this key already")]
    RepeatedKey,
    /// An object has a key that would not survive being stored.
    #[error("this key is reserved")]
    ReservedKey,
    /// Arrays and objects are nested deeper than so many levels.
    #[error("JSON must not nest deeper than {0} levels")]
    TooDeep(usize),
    /// A number has more than [`MAX_DIGITS`] digits.
    #[error("a number must not have more than {MAX_DIGITS} digits when written out plain")]
    NumberTooLong,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(at) => write!(f, "line {}, column {}: {}", at.line, at.column, self.fault),
            None => self.fault.fmt(f),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self { fault, place: None }
    }
}

/// The canonical form: RFC 8785 (no spaces, keys by UTF-16 code units, shortest escapes), with
/// numbers as plain exact decimals: no exponent, no trailing zeros, `-0` is `0`.
pub fn canonical(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_value(value, DEEPEST, &mut out)?;
    Ok(out)
}

/// `sha256:` and 64 hex digits over the canonical form of `{"args":...,"name":...}`.
pub fn args_digest(name: &str, args: &Object) -> Result<String, Error> {
    let mut text = String::from("{\"args\":");
    write_object(args, MAX_ARGS_DEPTH, &mut text).map_err(|error| match error.fault {
        Fault::TooDeep(_) => Fault::TooDeep(MAX_ARGS_DEPTH).into(),
        _ => error,
    })?;
    text.push_str(",\"name\":");
    write_string(name, &mut text);
    text.push('}');
    Ok(sha256(&text))
}

/// The same over the canonical form of any value.
pub fn digest(value: &Value) -> Result<String, Error> {
    canonical(value).map(|text| sha256(&text))
}

/// The object as JSON text if doubles, which is what a `Struct` has, would lose a digit of it;
/// otherwise an empty text.
pub fn exact_if_lossy(object: &Object) -> String {
    if object.values().any(is_lossy) {
        return serde_json::to_string(object).expect("objects are JSON");
    }
    String::new()
}

fn is_lossy(value: &Value) -> bool {
    match value {
        Value::Number(exact) => {
            let seen = exact.as_f64().and_then(Number::from_f64);
            seen.is_none_or(|seen| compare(exact, &seen).is_ne())
        }
        Value::Array(items) => items.iter().any(is_lossy),
        Value::Object(object) => object.values().any(is_lossy),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// Whether two values are the same where doubles are all that is seen of numbers: an object is so
/// its own image in a `Struct`.
pub fn looks_like(exact: &Value, seen: &Value) -> bool {
    match (exact, seen) {
        // What is too large for a double is seen as the largest one.
        (Value::Number(a), Value::Number(b)) => {
            let double = |number: &Number| number.as_str().parse::<f64>().ok();
            double(a).map(|a| a.clamp(f64::MIN, f64::MAX)) == double(b)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| looks_like(a, b))
        }
        (Value::Object(a), Value::Object(b)) => objects_look_alike(a, b),
        _ => exact == seen,
    }
}

/// The same of two objects.
pub fn objects_look_alike(exact: &Object, seen: &Object) -> bool {
    let like = |(key, a)| seen.get(key).is_some_and(|b| looks_like(a, b));
    exact.len() == seen.len() && exact.iter().all(like)
}

fn sha256(text: &str) -> String {
    let mut digest = String::with_capacity(7 + 64);
    digest.push_str("sha256:");
    for byte in Sha256::digest(text.as_bytes()) {
        digest.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
        digest.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
    }
    digest
}

/// Checks a value that was not read by [`parse()`]: its nesting, its keys and its numbers.
pub fn check(value: &Value, max_depth: usize) -> Result<(), Error> {
    let mut rest = vec![(value, 0)];
    while let Some((value, depth)) = rest.pop() {
        match value {
            Value::Number(number) => drop(decimal(number)?),
            Value::Array(_) | Value::Object(_) if depth == max_depth => {
                return Err(Fault::TooDeep(max_depth).into());
            }
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(object) if object.contains_key(RESERVED) => {
                return Err(Fault::ReservedKey.into());
            }
            Value::Object(object) => rest.extend(object.values().map(|item| (item, depth + 1))),
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

/// How deep a value nests, in levels: a scalar has none, `{}` has one.
pub fn depth(value: &Value) -> usize {
    let (mut deepest, mut rest) = (0, vec![(value, 1)]);
    while let Some((value, depth)) = rest.pop() {
        match value {
            Value::Array(items) => rest.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(object) => rest.extend(object.values().map(|item| (item, depth + 1))),
            _ => continue,
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Compares two numbers exactly, as decimals, however long they are.
pub fn compare(a: &Number, b: &Number) -> Ordering {
    match (Decimal::read(a.as_str()), Decimal::read(b.as_str())) {
        (Some(a), Some(b)) => a.compare(&b),
        // Numbers that are none cannot be made by safe means; the order is total all the same.
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

/// Whether two values have the same canonical form: 1 and 1.0 are the same.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b).is_eq(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let has = |(key, a)| b.get(key).is_some_and(|b| same(a, b));
            a.len() == b.len() && a.iter().all(has)
        }
        _ => a == b,
    }
}

fn decimal(number: &Number) -> Result<Decimal<'_>, Error> {
    let decimal = Decimal::read(number.as_str()).ok_or(Fault::Syntax("this is no number"))?;
    if decimal.too_long() { Err(Fault::NumberTooLong.into()) } else { Ok(decimal) }
}

fn write_value(value: &Value, levels: usize, out: &mut String) -> Result<(), Error> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => decimal(number)?.write(out),
        Value::String(text) => write_string(text, out),
        Value::Array(items) => {
            let levels = levels.checked_sub(1).ok_or(Fault::TooDeep(DEEPEST))?;
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(item, levels, out)?;
            }
            out.push(']');
        }
        Value::Object(object) => write_object(object, levels, out)?,
    }
    Ok(())
}

fn write_object(object: &Object, levels: usize, out: &mut String) -> Result<(), Error> {
    let levels = levels.checked_sub(1).ok_or(Fault::TooDeep(DEEPEST))?;
    let mut entries: Vec<_> = object.iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    out.push('{');
    for (i, (key, value)) in entries.into_iter().enumerate() {
        if key == RESERVED {
            return Err(Fault::ReservedKey.into());
        }
        if i > 0 {
            out.push(',');
        }
        write_string(key, out);
        out.push(':');
        write_value(value, levels, out)?;
    }
    out.push('}');
    Ok(())
}

fn write_string(text: &str, out: &mut String) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(|c| matches!(c, '"' | '\\' | '\0'..='\x1f')) {
        out.push_str(&rest[..at]);
        match rest.as_bytes()[at] {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x08 => out.push_str("\\b"),
            0x09 => out.push_str("\\t"),
            0x0a => out.push_str("\\n"),
            0x0c => out.push_str("\\f"),
            0x0d => out.push_str("\\r"),
            control => {
                out.push_str(if control < 0x10 { "\\u000" } else { "\\u001" });
                out.push(char::from(b"0123456789abcdef"[usize::from(control & 15)]));
            }
        }
        rest = &rest[at + 1..];
    }
    out.push_str(rest);
    out.push('"');
}
