use proptest::collection::btree_set;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::json;

use super::*;

mod random;

#[derive(Deserialize)]
struct Vectors {
    digests: Vec<Vector>,
    refusals: Vec<Refused>,
}

#[derive(Deserialize)]
struct Vector {
    title: String,
    name: String,
    args_json: String,
    canonical: String,
    digest: String,
}

#[derive(Deserialize)]
struct Refused {
    title: String,
    args_json: String,
    reason: String,
}

fn vectors() -> Vectors {
    let text = include_str!("../../../tests/vectors/args_digest.json");
    serde_json::from_str(text).unwrap()
}

fn read(text: &str) -> Value {
    parse(text, MAX_DEPTH).unwrap()
}

fn object(text: &str) -> Object {
    match read(text) {
        Value::Object(object) => object,
        other => panic!("no object: {other}"),
    }
}

#[test]
fn the_published_vectors_hold() {
    for vector in vectors().digests {
        let args = object(&vector.args_json);
        let whole = json!({"name": vector.name, "args": args.clone()});
        assert_eq!(canonical(&whole).unwrap(), vector.canonical, "{}", vector.title);
        assert_eq!(args_digest(&vector.name, &args).unwrap(), vector.digest, "{}", vector.title);
        let again = object(&canonical(&Value::Object(args)).unwrap());
        assert_eq!(args_digest(&vector.name, &again).unwrap(), vector.digest, "{}", vector.title);
    }
}

#[test]
fn the_published_refusals_hold() {
    for refused in vectors().refusals {
        let fault = parse(&refused.args_json, MAX_ARGS_DEPTH).unwrap_err().fault;
        let reason = match fault {
            Fault::Syntax(_) => "syntax",
            Fault::RepeatedKey => "repeated_key",
            Fault::ReservedKey => "reserved_key",
            Fault::TooDeep(_) => "too_deep",
            Fault::NumberTooLong => "number_too_long",
        };
        assert_eq!(reason, refused.reason, "{}", refused.title);
    }
}

#[test]
fn a_fault_is_placed_and_never_repeats_what_stands_there() {
    let error =
        parse("{\n  \"ä\": 1, \"secret\": \"ü\",\n  \"secret\": 2}", MAX_DEPTH).unwrap_err();
    assert_eq!(error.to_string(), "line 3, column 3: this object has this key already");
    let error = parse("[\"äöü\", x]", MAX_DEPTH).unwrap_err();
    assert_eq!(error.to_string(), "line 1, column 9: a JSON value must stand here");
    assert_eq!(parse("[[", MAX_DEPTH).unwrap_err().place, Some(Place { line: 1, column: 3 }));
}

#[test]
fn nesting_is_counted_in_levels_and_bounded() {
    assert_eq!(depth(&json!(1)), 0);
    assert_eq!(depth(&json!({})), 1);
    assert_eq!(depth(&json!({"a": [1, [2]], "b": {}})), 3);
    let deep = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert_eq!(depth(&read(&deep(32))), 32);
    assert_eq!(parse(&deep(33), 32).unwrap_err().fault, Fault::TooDeep(32));
    assert_eq!(parse(&"[".repeat(1_000_000), usize::MAX).unwrap_err().fault, Fault::TooDeep(128));
    assert!(parse("1", 0).is_ok() && parse("{}", 0).is_err());

    let mut value = json!(1);
    for _ in 0..30 {
        value = json!({"a": value});
    }
    assert!(check(&value, 30).is_ok());
    assert_eq!(check(&value, 29).unwrap_err().fault, Fault::TooDeep(29));
    let Value::Object(args) = &value else { unreachable!() };
    assert!(args_digest("f", args).is_ok());
    let Value::Object(args) = json!({"a": value}) else { unreachable!() };
    assert_eq!(args_digest("f", &args).unwrap_err().fault, Fault::TooDeep(30));
}

#[test]
fn strings_hold_every_character() {
    assert_eq!(read(r#""a\u0000b""#), json!("a\0b"));
    assert_eq!(read(r#""\ud83d\ude00 ä \/""#), json!("😀 ä /"));
    assert!(parse(r#""\ud83dx""#, 1).is_err());
    assert!(parse(r#""\u12""#, 1).is_err());
    assert!(parse(r#""\u12äx""#, 1).is_err());
    assert!(parse(r#""\x""#, 1).is_err());
}

#[test]
fn a_number_keeps_the_digits_it_came_with() {
    for text in ["15.50", "-0", "1.0", "9007199254740993", "0.1000"] {
        assert_eq!(read(text).to_string(), text);
    }
}

#[test]
fn no_object_can_pass_for_a_number() {
    let mut disguised = Object::new();
    disguised.insert(RESERVED.to_owned(), json!("1"));
    let disguised = Value::Object(disguised);
    // This is why: written and read again by serde_json it is another value, or none.
    assert_eq!(serde_json::from_str::<Value>(&disguised.to_string()).unwrap(), json!(1));
    let broken = disguised.to_string().replace("\"1\"", "\"x\"");
    assert!(serde_json::from_str::<Value>(&broken).is_err());
    for fault in [
        parse(&format!("[{{\"{RESERVED}\": \"1\"}}]"), MAX_DEPTH).unwrap_err().fault,
        check(&json!([disguised]), MAX_DEPTH).unwrap_err().fault,
        canonical(&disguised).unwrap_err().fault,
    ] {
        assert_eq!(fault, Fault::ReservedKey);
    }
}

#[test]
fn numbers_compare_as_decimals() {
    let number = |text: &str| text.parse::<Number>().unwrap();
    let sorted = [
        "-1e999999999999999999999",
        "-100.5",
        "-100.4999",
        "-1e-5",
        "0",
        "1e-99999999999999999999999",
        "0.000999",
        "0.001",
        "15.49",
        "15.5",
        "99.999999999999999999999",
        "100",
        "100.00000000000000000000001",
        "9007199254740992",
        "9007199254740993",
        "1e500",
    ];
    for (i, a) in sorted.iter().enumerate() {
        for (j, b) in sorted.iter().enumerate() {
            assert_eq!(compare(&number(a), &number(b)), i.cmp(&j), "{a} {b}");
        }
    }
    for other in ["1.0", "1e0", "10E-1", "0.01e+2", "1.000"] {
        assert!(same(&json!({"n": [number("1")]}), &json!({"n": [number(other)]})), "{other}");
    }
    assert!(same(&read("-0.0"), &read("0")));
    assert!(!same(&json!({"a": 1}), &json!({"a": 1, "b": null})));
    assert!(!same(&json!("1"), &json!(1)));
}

#[test]
fn what_a_double_would_lose_is_kept_as_text() {
    for fine in ["{}", r#"{"a": [0.1, 15.50, 5e0, -0, 9007199254740992, {"b": 1e300}]}"#] {
        assert_eq!(exact_if_lossy(&object(fine)), "", "{fine}");
    }
    for lossy in [r#"{"a":[{"b":9007199254740993}]}"#, r#"{"a":0.12345678901234567890}"#] {
        assert_eq!(exact_if_lossy(&object(lossy)), lossy);
    }
    assert_ne!(exact_if_lossy(&object(r#"{"a": 1e399}"#)), "");
}

fn any_number() -> impl Strategy<Value = Value> {
    "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?"
        .prop_map(|text| parse(&text, 0).expect("a short number"))
}

pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any_number(),
        any::<String>().prop_map(Value::String),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::Array),
            prop::collection::btree_map(any::<String>(), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Texts of the letters that JSON is made of.
const JSON_LETTERS: &str = "[\\[\\]{},:\"\\\\a0-9eE.+\\- tu]{0,30}";

proptest! {
    #[test]
    fn canonical_form_is_stable(value in any_value()) {
        let text = canonical(&value).unwrap();
        let again = parse(&text, MAX_DEPTH).unwrap();
        prop_assert!(same(&value, &again));
        prop_assert_eq!(canonical(&again).unwrap(), text);
        // Its own way of writing is read as the same value, too.
        let written = parse(&value.to_string(), MAX_DEPTH).unwrap();
        prop_assert_eq!(written, value);
    }

    #[test]
    fn same_means_the_same_canonical_form(a in any_value(), b in any_value()) {
        prop_assert_eq!(same(&a, &b), canonical(&a).unwrap() == canonical(&b).unwrap());
    }

    #[test]
    fn equal_numbers_print_alike(a in any_number(), b in any_number()) {
        let (Value::Number(x), Value::Number(y)) = (&a, &b) else { unreachable!() };
        let alike = canonical(&a).unwrap() == canonical(&b).unwrap();
        prop_assert_eq!(compare(x, y).is_eq(), alike);
        prop_assert_eq!(compare(x, y), compare(y, x).reverse());
    }

    #[test]
    fn keys_are_ordered_by_code_units(keys in btree_set(any::<String>(), 0..20)) {
        let object: Object = keys.iter().map(|key| (key.clone(), Value::Null)).collect();
        let mut keys: Vec<String> = keys.into_iter().collect();
        keys.sort_by_key(|key| key.encode_utf16().collect::<Vec<u16>>());
        let entry = |key: String| canonical(&Value::String(key)).unwrap() + ":null";
        let entries: Vec<String> = keys.into_iter().map(entry).collect();
        let expected = format!("{{{}}}", entries.join(","));
        prop_assert_eq!(canonical(&Value::Object(object)).unwrap(), expected);
    }

    #[test]
    fn reading_never_panics_and_agrees_with_serde(text in JSON_LETTERS) {
        if let Ok(value) = parse(&text, MAX_DEPTH) {
            prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        }
    }
}
