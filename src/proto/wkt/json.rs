//! JSON of `Struct`, `Value` and `ListValue`: themselves. Repeated keys are refused at every level,
//! and so are integers that a double cannot hold.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Error as _, Serialize, Serializer};

use super::{Kind, ListValue, Struct, Value};

/// The largest integer up to which a double holds every one: 2^53.
const MAX_INTEGER: f64 = 9_007_199_254_740_992.0;

/// The key under which `serde_json` shows a number that it kept as text.
const NUMBER_KEY: &str = "$serde_json::private::Number";

impl Serialize for Struct {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(&self.fields)
    }
}

impl Serialize for ListValue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(&self.values)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.kind {
            None => Err(S::Error::custom("a google.protobuf.Value has no kind")),
            Some(Kind::NullValue(_)) => to.serialize_unit(),
            Some(Kind::BoolValue(value)) => to.serialize_bool(*value),
            Some(Kind::StringValue(text)) => to.serialize_str(text),
            Some(Kind::StructValue(object)) => object.serialize(to),
            Some(Kind::ListValue(list)) => list.serialize(to),
            Some(Kind::NumberValue(number)) if !number.is_finite() => {
                Err(S::Error::custom("JSON has neither NaN nor infinities"))
            }
            Some(Kind::NumberValue(number)) => {
                if number.fract() == 0.0 && number.abs() <= MAX_INTEGER {
                    // Exact: checked just above.
                    to.serialize_i64(*number as i64)
                } else {
                    to.serialize_f64(*number)
                }
            }
        }
    }
}

impl<'de> Deserialize<'de> for Struct {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)?.kind {
            Some(Kind::StructValue(object)) => Ok(object),
            _ => Err(D::Error::custom("expected a JSON object")),
        }
    }
}

impl<'de> Deserialize<'de> for ListValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match Value::deserialize(from)?.kind {
            Some(Kind::ListValue(list)) => Ok(list),
            _ => Err(D::Error::custom("expected a JSON array")),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Json)
    }
}

struct Json;

impl<'de> Visitor<'de> for Json {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::null())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        integer(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        integer(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        if !number.is_finite() {
            return Err(E::custom("the number is too large for a double"));
        }
        Ok(number.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(ListValue { values }.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut fields = BTreeMap::new();
        while let Some(key) = object.next_key::<String>()? {
            if key == NUMBER_KEY {
                return number(&object.next_value::<String>()?);
            }
            match fields.entry(key) {
                Entry::Vacant(entry) => entry.insert(object.next_value()?),
                Entry::Occupied(_) => return Err(A::Error::custom("a key is repeated")),
            };
        }
        Ok(Struct { fields }.into())
    }
}

/// A number that `serde_json` kept as text.
fn number<E: Error>(text: &str) -> Result<Value, E> {
    if text.bytes().all(|b| b.is_ascii_digit() || b == b'-') {
        return integer(text.parse().unwrap_or(i128::MAX));
    }
    Json.visit_f64(text.parse().map_err(E::custom)?)
}

fn integer<E: Error>(number: i128) -> Result<Value, E> {
    // Exact where it is not refused.
    let double = number as f64;
    if number.unsigned_abs() > 1 << 53 {
        return Err(E::custom("integers beyond 2^53 lose digits here: send them as text"));
    }
    Ok(double.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Value, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn json_comes_back_as_it_was() {
        let text = r#"{"a":5,"b":-0.25,"c":[null,true,"x",{}],"d":1e300,"e":-9007199254740992}"#;
        let value = read(text).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), text.replace("1e300", "1e+300"));
        assert_eq!(serde_json::to_string(&read("5.0").unwrap()).unwrap(), "5");
    }

    #[test]
    fn what_would_lose_something_is_refused() {
        for text in
            ["9007199254740993", "-123456789012345678901234567890", "1e400", r#"[{"a":1,"a":1}]"#]
        {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(serde_json::to_string(&Value::from(f64::NAN)).is_err());
        assert!(serde_json::from_str::<Struct>("[]").is_err());
    }

    #[test]
    fn the_wire_is_googles() {
        use prost::Message;
        let ours = Value::from(Struct::from_iter([
            ("n".to_string(), Value::from(1.5)),
            ("l".to_string(), ListValue::from_iter([Value::null(), "x".into()]).into()),
        ]));
        let bytes = ours.encode_to_vec();
        let theirs = prost_types::Value::decode(&*bytes).unwrap();
        assert_eq!(Value::decode(&*theirs.encode_to_vec()).unwrap(), ours);
        let Some(prost_types::value::Kind::StructValue(object)) = theirs.kind else {
            panic!("not an object: {theirs:?}");
        };
        assert_eq!(object.fields.len(), 2);
    }
}
