//! Random values: what JSON, the wire and Google's own types make of them.

use proptest::prelude::*;
use prost::Message;

use super::*;

/// A `Struct` as a client may send it, right or wrong.
pub(crate) fn any_struct() -> impl Strategy<Value = Struct> {
    let leaf = prop_oneof![
        1 => Just(Value::default()),
        20 => Just(Value::null()),
        20 => any::<bool>().prop_map(Value::from),
        2 => prop::num::f64::ANY.prop_map(Value::from),
        40 => prop::num::f64::NORMAL.prop_map(Value::from),
        40 => prop::num::f64::NORMAL.prop_map(|number| Value::from(number.trunc())),
        40 => any::<i64>().prop_map(|number| Value::from(number as f64)),
        40 => any::<String>().prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(40, 60, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3)
                .prop_map(|list| ListValue::from_iter(list).into()),
            prop::collection::btree_map(any::<String>(), inner, 0..3)
                .prop_map(|map| Struct::from_iter(map).into()),
        ]
    });
    prop::collection::btree_map(any::<String>(), value, 0..3).prop_map(Struct::from_iter)
}

/// Whether JSON has all of it.
fn is_json(value: &Value) -> bool {
    match &value.kind {
        None => false,
        Some(Kind::NumberValue(number)) => number.is_finite(),
        Some(Kind::StructValue(object)) => object.fields.values().all(is_json),
        Some(Kind::ListValue(list)) => list.values.iter().all(is_json),
        Some(_) => true,
    }
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    (-62_135_596_900..=253_402_300_900_i64, -1..=1_000_000_000_i32)
        .prop_map(|(seconds, nanos)| Timestamp { seconds, nanos })
}

proptest! {
    #[test]
    fn json_and_back_is_the_same(object in any_struct()) {
        match serde_json::to_string(&object) {
            Ok(text) => {
                let back: Struct = serde_json::from_str(&text).expect("what was written is read");
                // Zeros have no sign in JSON, and are equal.
                prop_assert_eq!(&back, &object, "{}", text);
                prop_assert_eq!(serde_json::to_string(&back).expect("what was read is written"), text);
            }
            Err(_) => prop_assert!(!object.fields.values().all(is_json)),
        }
    }

    #[test]
    fn the_wire_is_googles_for_all(object in any_struct()) {
        let bytes = object.encode_to_vec();
        match prost_types::Struct::decode(&*bytes) {
            Ok(theirs) => {
                let again = Struct::decode(&*theirs.encode_to_vec()).expect("theirs is ours");
                prop_assert_eq!(again.encode_to_vec(), bytes);
            }
            // Both stop where the other does.
            Err(_) => prop_assert!(Struct::decode(&*bytes).is_err()),
        }
    }

    #[test]
    fn times_are_those_of_google(time in any_time()) {
        let Ok(text) = serde_json::to_string(&time) else {
            prop_assert!(!time.is_valid());
            return Ok(());
        };
        prop_assert!(time.is_valid());
        prop_assert_eq!(serde_json::from_str::<Timestamp>(&text).expect("a time"), time);
        let theirs: prost_types::Timestamp = text.trim_matches('"').parse().expect("a time of theirs");
        prop_assert_eq!((theirs.seconds, theirs.nanos), (time.seconds, time.nanos));
    }

    #[test]
    fn a_text_is_a_time_of_google_or_none(
        text in "[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9](\\.[0-9]{0,10})?(Z|z|[+-][0-2][0-9]:[0-6][0-9]|[+-][0-9]{1,4})?|.{0,30}",
    ) {
        let quoted = serde_json::to_string(&text).expect("a text");
        if let Ok(time) = serde_json::from_str::<Timestamp>(&quoted) {
            prop_assert!(time.is_valid());
            let theirs: prost_types::Timestamp = text.to_uppercase().parse().expect("a time of theirs");
            prop_assert_eq!((theirs.seconds, theirs.nanos), (time.seconds, time.nanos));
        }
    }

    #[test]
    fn micros_count_from_1970(micros in any::<u64>()) {
        let time = Timestamp::from_micros(micros);
        prop_assert_eq!(time.micros(), time.is_valid().then_some(micros));
    }
}
