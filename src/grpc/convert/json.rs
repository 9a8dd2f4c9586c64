//! JSON: exact in the domain, `Struct` on the wire, where every number is a double.
//!
//! In, a double becomes the shortest decimal that gives it back, which is what its sender wrote.
//! Out, a decimal becomes the nearest double; where that changes it, exact JSON goes beside it
//! (`session::json::exact_if_lossy`).

use serde_json::{Number, Value};

use super::Faults;
use crate::proto::wkt::{self, Kind};
use crate::session::content::Object;
use crate::session::json::RESERVED;

/// How many levels JSON nests at most, the object itself being the first.
pub(crate) const MAX_NESTING: usize = 32;

/// Longest part of a key that is repeated in the path of a fault, in characters.
const MAX_KEY_CHARS: usize = 64;

/// Reads an object; `field` is its path.
pub(crate) fn object_from_pb(
    field: &str,
    object: wkt::Struct,
    faults: &mut Faults,
) -> Option<Object> {
    read_object(field, object, 1, faults)
}

/// Reads a value; `field` is its path.
pub(crate) fn value_from_pb(field: &str, value: wkt::Value, faults: &mut Faults) -> Option<Value> {
    read(field, value, 1, faults)
}

fn read(field: &str, value: wkt::Value, level: usize, faults: &mut Faults) -> Option<Value> {
    let wkt::Value { kind } = value;
    match kind {
        None => {
            faults.add(field, "must have a kind of value; null is `null_value`");
            None
        }
        Some(Kind::NullValue(_)) => Some(Value::Null),
        Some(Kind::BoolValue(value)) => Some(value.into()),
        Some(Kind::StringValue(text)) => Some(text.into()),
        Some(Kind::NumberValue(double)) => {
            let number = number(double);
            if number.is_none() {
                faults.add(field, "must be a finite number");
            }
            number.map(Value::Number)
        }
        Some(Kind::StructValue(object)) => {
            read_object(field, object, level, faults).map(Value::Object)
        }
        Some(Kind::ListValue(list)) => read_list(field, list, level, faults).map(Value::Array),
    }
}

fn read_object(
    field: &str,
    object: wkt::Struct,
    level: usize,
    faults: &mut Faults,
) -> Option<Object> {
    if too_deep(field, level, faults) {
        return None;
    }
    let wkt::Struct { fields } = object;
    if fields.contains_key(RESERVED) {
        faults.add(field, "must not have the reserved key `$serde_json::private::Number`");
        return None;
    }
    let read_field = |(key, value): (String, wkt::Value)| {
        let path = format!("{field}{}", path_of(&key));
        (key, read(&path, value, level + 1, faults))
    };
    // All of them first: every fault is told.
    let values: Vec<_> = fields.into_iter().map(read_field).collect();
    values.into_iter().map(|(key, value)| Some((key, value?))).collect()
}

fn read_list(
    field: &str,
    list: wkt::ListValue,
    level: usize,
    faults: &mut Faults,
) -> Option<Vec<Value>> {
    if too_deep(field, level, faults) {
        return None;
    }
    let wkt::ListValue { values } = list;
    let read_item = |(index, value)| read(&format!("{field}[{index}]"), value, level + 1, faults);
    let values: Vec<_> = values.into_iter().enumerate().map(read_item).collect();
    values.into_iter().collect()
}

fn too_deep(field: &str, level: usize, faults: &mut Faults) -> bool {
    if level > MAX_NESTING {
        faults.add(field, format!("must not nest deeper than {MAX_NESTING} levels"));
    }
    level > MAX_NESTING
}

/// A key as a piece of a path: `.total`, or `["total sum"]`.
fn path_of(key: &str) -> String {
    let plain = key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if plain && key.len() <= MAX_KEY_CHARS {
        return format!(".{key}");
    }
    let shown: String = key.chars().take(MAX_KEY_CHARS).collect();
    let cut = if shown.len() < key.len() { "..." } else { "" };
    format!("[\"{}{cut}\"]", shown.escape_debug())
}

/// The shortest decimal that gives this double back, whole numbers without a fraction (`5.0` is 5,
/// `-0.0` is 0); none for NaN and infinities.
pub(crate) fn number(double: f64) -> Option<Number> {
    if double == 0.0 {
        return Some(0.into());
    }
    if double.fract() == 0.0 && double.abs() < 1e21 {
        // Plain digits, without an exponent: readers look for an integer here.
        return format!("{double}").parse().ok();
    }
    Number::from_f64(double)
}

/// An object for the wire. Each number becomes the nearest finite double.
pub(crate) fn object_to_pb(object: &Object) -> wkt::Struct {
    object.iter().map(|(key, value)| (key.clone(), value_to_pb(value))).collect()
}

/// A value for the wire. Each number becomes the nearest finite double.
pub(crate) fn value_to_pb(value: &Value) -> wkt::Value {
    match value {
        Value::Null => wkt::Value::null(),
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => double(number).into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(values) => values.iter().map(value_to_pb).collect::<wkt::ListValue>().into(),
        Value::Object(object) => object_to_pb(object).into(),
    }
}

fn double(number: &Number) -> f64 {
    // The text of a number always parses; what is too large for a double becomes infinite.
    let double: f64 = number.as_str().parse().unwrap_or_default();
    double.clamp(f64::MIN, f64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::proto::wkt::tests::any_struct;
    use crate::session::json::tests::any_value;
    use crate::session::json::{MAX_DEPTH, canonical, check, same};

    fn object(text: &str) -> Object {
        serde_json::from_str(text).unwrap()
    }

    fn lossy(object: &Object) -> bool {
        !crate::session::json::exact_if_lossy(object).is_empty()
    }

    fn back(text: &str) -> String {
        let mut faults = Faults::new();
        let read = object_from_pb("x", object_to_pb(&object(text)), &mut faults);
        serde_json::to_string(&faults.finish(read).unwrap()).unwrap()
    }

    #[test]
    fn numbers_come_back_as_they_were_written() {
        let text = r#"{"a":5,"b":0.1,"c":-3,"d":[null,true,"x",{"e":{}}],"f":9007199254740992}"#;
        assert_eq!(back(text), text);
        assert_eq!(
            back(r#"{"a":5.0,"b":-0.0,"c":5e2,"d":1.50}"#),
            r#"{"a":5,"b":0,"c":500,"d":1.5}"#
        );
        assert_eq!(
            back(r#"{"a":1e18,"b":123456789012345680000}"#),
            r#"{"a":1000000000000000000,"b":123456789012345680000}"#
        );
        assert_eq!(back(r#"{"a":1e999}"#), back(&format!("{{\"a\":{}}}", f64::MAX)));
    }

    #[test]
    fn what_a_double_cannot_hold_is_lossy() {
        for text in [
            "5",
            "5.0",
            "0.1",
            "-0",
            "0.0e5",
            "1e300",
            "1.5E2",
            "0.30000000000000004",
            "9007199254740992",
            "1e22",
        ] {
            assert!(!lossy(&object(&format!("{{\"a\":[{text}]}}"))), "{text}");
        }
        for text in [
            "9007199254740993",
            "0.12345678901234567890",
            "1e400",
            "1e-400",
            "1e99999999999999999999",
            "0.1000000000000000055",
        ] {
            assert!(lossy(&object(&format!("{{\"a\":[{{\"b\":{text}}}]}}"))), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_its_path() {
        let list =
            wkt::ListValue::from_iter([1.0.into(), f64::INFINITY.into(), wkt::Value::default()]);
        let pb = wkt::Struct::from_iter([
            ("total".to_owned(), f64::NAN.into()),
            ("a \"b\"".to_owned(), list.into()),
        ]);
        let mut faults = Faults::new();
        assert!(object_from_pb("response", pb, &mut faults).is_none());
        let violations = faults.finish(None::<()>).unwrap_err().violations;
        let fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
        let at = r#"response["a \"b\""]"#;
        assert_eq!(fields, [format!("{at}[1]"), format!("{at}[2]"), "response.total".to_owned()]);
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |levels| {
            let inner = wkt::Value::from(wkt::Struct::default());
            let outer =
                (2..levels).fold(inner, |inner, _| wkt::ListValue::from_iter([inner]).into());
            wkt::Struct::from_iter([("x".to_owned(), outer)])
        };
        let mut faults = Faults::new();
        assert!(object_from_pb("args", nested(32), &mut faults).is_some());
        assert!(object_from_pb("args", nested(33), &mut faults).is_none());
        let violations = faults.finish(None::<()>).unwrap_err().violations;
        assert_eq!(violations.len(), 1);
        assert!(violations[0].field.starts_with("args.x[0]"));
    }
    /// With no sign at a zero, which has none here.
    fn unsigned(object: &wkt::Struct) -> String {
        format!("{object:?}").replace("NumberValue(-0.0)", "NumberValue(0.0)")
    }

    proptest! {
        #[test]
        fn what_is_not_lossy_comes_back(value in any_value()) {
            let object = Object::from_iter([("x".to_owned(), value)]);
            let mut faults = Faults::new();
            let read = object_from_pb("x", object_to_pb(&object), &mut faults);
            let read = faults.finish(read).unwrap();
            prop_assert_eq!(same(&read.into(), &object.clone().into()), !lossy(&object));
        }

        #[test]
        fn any_struct_is_exact_or_has_named_faults(sent in any_struct()) {
            let mut faults = Faults::new();
            let read = object_from_pb("x", sent.clone(), &mut faults);
            match faults.finish(read) {
                Ok(object) => {
                    prop_assert_eq!(unsigned(&object_to_pb(&object)), unsigned(&sent));
                    prop_assert!(!lossy(&object));
                    let value = Value::Object(object);
                    prop_assert!(check(&value, MAX_DEPTH).is_ok() && canonical(&value).is_ok());
                }
                Err(refusal) => {
                    let paths = refusal.violations.iter().map(|fault| fault.field.as_str());
                    prop_assert!(paths.clone().count() > 0);
                    prop_assert!(paths.clone().all(|path| path.starts_with('x')));
                }
            }
        }
    }
}
