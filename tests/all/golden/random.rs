//! Stored forms with random changes: what is still read is written and read again as the same, and
//! all else is refused as unreadable, or as of a later version. Nothing panics.

use std::fmt::Debug;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use super::*;
use crate::support::cases;

/// A change of a JSON tree at one of its nodes.
#[derive(Debug, Clone)]
enum Change {
    Set(Value),
    /// To what stands elsewhere in the tree.
    Copy(Index),
    Remove,
    Add(String, Value),
}

fn any_json() -> impl Strategy<Value = Value> {
    let number = "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?";
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number.prop_map(|text| serde_json::from_str(&text).unwrap()),
        any::<u64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[a-z@1/.:-]{1,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn changes() -> impl Strategy<Value = Vec<(Index, Change)>> {
    let change = prop_oneof![
        4 => any_json().prop_map(Change::Set),
        2 => any::<Index>().prop_map(Change::Copy),
        2 => Just(Change::Remove),
        1 => (any::<String>(), any_json()).prop_map(|(key, value)| Change::Add(key, value)),
    ];
    prop::collection::vec((any::<Index>(), change), 0..4)
}

fn pointers(value: &Value, at: String, into: &mut Vec<String>) {
    let escaped = |key: &String| key.replace('~', "~0").replace('/', "~1");
    match value {
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                pointers(item, format!("{at}/{n}"), into);
            }
        }
        Value::Object(object) => {
            for (key, item) in object {
                pointers(item, format!("{at}/{}", escaped(key)), into);
            }
        }
        _ => {}
    }
    into.push(at);
}

fn changed(stored: &[u8], changes: &[(Index, Change)]) -> Vec<u8> {
    let mut tree: Value = serde_json::from_slice(stored).unwrap();
    for (at, change) in changes {
        let mut all = Vec::new();
        pointers(&tree, String::new(), &mut all);
        let at = at.get(&all);
        match change {
            Change::Set(value) => *tree.pointer_mut(at).unwrap() = value.clone(),
            Change::Copy(from) => {
                let copy = tree.pointer(&all[from.index(all.len())]).unwrap().clone();
                *tree.pointer_mut(at).unwrap() = copy;
            }
            Change::Remove => {
                let Some((outer, name)) = at.rsplit_once('/') else { continue };
                match tree.pointer_mut(outer).unwrap() {
                    Value::Array(items) => drop(items.remove(name.parse().unwrap())),
                    Value::Object(object) => {
                        drop(object.remove(&name.replace("~1", "/").replace("~0", "~")));
                    }
                    _ => unreachable!(),
                }
            }
            Change::Add(key, value) => {
                if let Some(object) = tree.pointer_mut(at).unwrap().as_object_mut() {
                    object.insert(key.clone(), value.clone());
                }
            }
        }
    }
    serde_json::to_vec(&tree).unwrap()
}

/// Bytes with some of them changed, inserted or cut away.
fn torn(stored: &[u8], tears: &[(Index, u8, u8)]) -> Vec<u8> {
    let mut bytes = stored.to_vec();
    for (at, how, byte) in tears {
        let at = at.index(bytes.len() + 1);
        match how % 8 {
            0 => bytes.truncate(at),
            1 | 2 => bytes.insert(at, *byte),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ if at < bytes.len() => bytes[at] = *byte,
            _ => {}
        }
    }
    bytes
}

/// Everything that is stored in the golden files: records, or snapshots.
fn stored(snapshots: bool) -> Vec<Vec<u8>> {
    let missing = || unreachable!("it is there");
    if snapshots {
        return lines("v2/snapshot.json", missing);
    }
    let mut all = lines("v1/log.jsonl", missing);
    for kind in KINDS {
        all.extend(lines(&format!("v1/records/{kind}.jsonl"), missing));
    }
    all
}

fn holds<T: PartialEq + Debug>(
    bytes: &[u8],
    decode: fn(&[u8]) -> Result<T, codec::Error>,
    encode: fn(&T) -> Vec<u8>,
) -> Result<(), TestCaseError> {
    match decode(bytes) {
        Ok(read) => {
            let again = encode(&read);
            prop_assert_eq!(&decode(&again).unwrap(), &read);
            prop_assert_eq!(encode(&decode(&again).unwrap()), again);
        }
        Err(codec::Error::Unreadable(_) | codec::Error::Past(_)) => {}
        Err(codec::Error::Future(version)) => {
            prop_assert!(version > VERSION);
            // What is beside the version is not looked at, so it may be torn.
            if let Ok(tree) = serde_json::from_slice::<Value>(bytes) {
                prop_assert_eq!(&tree["v"], version);
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn a_changed_record_is_refused_or_read_the_same_again(
        which in any::<Index>(),
        changes in changes(),
        tears in prop::collection::vec((any::<Index>(), any::<u8>(), any::<u8>()), 0..3),
    ) {
        let all = stored(false);
        let bytes = changed(&all[which.index(all.len())], &changes);
        holds(&bytes, codec::decode_record, codec::encode_record)?;
        let bytes = torn(&bytes, &tears);
        holds(&bytes, codec::decode_record, codec::encode_record)?;
    }

    #[test]
    fn a_changed_snapshot_is_refused_or_read_the_same_again(
        changes in changes(),
        tears in prop::collection::vec((any::<Index>(), any::<u8>(), any::<u8>()), 0..3),
    ) {
        let bytes = changed(&stored(true)[0], &changes);
        holds(&bytes, codec::decode_snapshot, codec::encode_snapshot)?;
        let bytes = torn(&bytes, &tears);
        holds(&bytes, codec::decode_snapshot, codec::encode_snapshot)?;
    }

    #[test]
    fn any_bytes_are_unreadable(bytes in any::<Vec<u8>>()) {
        prop_assert!(matches!(codec::decode_record(&bytes), Err(codec::Error::Unreadable(_))));
        prop_assert!(matches!(codec::decode_snapshot(&bytes), Err(codec::Error::Unreadable(_))));
    }
}
