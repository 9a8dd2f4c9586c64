use std::sync::mpsc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::session::content::Object;

fn object(value: Value) -> Object {
    value.as_object().unwrap().clone()
}

fn input(args: &Object) -> Input<'_> {
    Input::new(Call {
        args,
        tool: "pay",
        agent: "cashier",
        app: "shop",
        user: "ann",
        session: "s1",
    })
}

fn parse(text: &str) -> Expression {
    Expression::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault}"))
}

fn eval(text: &str, args: Value) -> Result<bool, String> {
    parse(text).eval(&input(&object(args)))
}

fn fault(text: &str) -> String {
    Expression::parse(text).expect_err(text)
}

/// From JSON text, where numbers keep their digits.
fn eval_json(text: &str, args: &str) -> Result<bool, String> {
    parse(text).eval(&input(&serde_json::from_str(args).unwrap()))
}

#[test]
fn conditions_are_about_the_call() {
    let args = json!({
        "amount": 200, "to": "Bob@Example.com", "tags": ["a", "b"], "items": [{"price": 5}],
        "urgent": true, "note": null, "odd key": 1,
    });
    for (text, expected) in [
        ("args.amount > 100.0", true),
        ("args.amount > 100", true),
        ("args.amount <= 199.99 || args.urgent", true),
        ("args.amount == 200.0", true),
        ("double(args.amount) * 1.5 > 299.0", true),
        ("args.amount - 100 > 100 ? true : false", false),
        ("args.to.lowerAscii().endsWith('@example.com')", true),
        ("args['to'].contains('@') && args.to.startsWith('Bob')", true),
        ("size(args.tags) == 2 && args.tags.size() == 2", true),
        ("'a' in args.tags && !('c' in args.tags)", true),
        ("args.tags.exists(t, t == 'b') && args.tags.all(t, size(t) == 1)", true),
        ("args.tags.exists_one(t, t == 'a')", true),
        ("size(args.items.filter(i, i.price > 4)) == 1", true),
        ("5 in args.items.map(i, i.price)", true),
        ("has(args.amount) && !has(args.missing)", true),
        ("has(args.items[0].price)", true),
        ("args.note == null", true),
        ("args['odd key'] == 1", true),
        ("tool in ['pay', 'refund'] && agent == 'cashier'", true),
        ("app == 'shop' && user == 'ann' && session == 's1'", true),
        ("string(args.amount) == '200' && int('7') == 7", true),
        ("args.to != '-----' && args.to != '!!!!! ?????'", true),
        ("true", true),
        ("'missing' in args", false),
    ] {
        assert_eq!(eval(text, args.clone()), Ok(expected), "{text}");
    }
}

#[test]
fn what_goes_wrong_is_an_error_that_tells_no_values() {
    let args = json!({"text": "secret", "n": 1, "big": i64::MAX, "list": [1], "key": "secret"});
    for (text, told) in [
        ("args.missing > 1", "there is no `missing`"),
        ("args.list[5] == 1", "a list is too short"),
        ("args[args.key] == 1", "there is no such key"),
        ("args.text > 1", "`>`"),
        ("args.text", "a text, not true or false"),
        ("args.n / 0 == 1", "division by zero"),
        ("args.n % 0 == 1", "division by zero"),
        ("args.big + 1 > 0", "too large"),
        ("-args.big - 2 > 0", "too large"),
        ("args.n.contains('x')", ""),
        ("int(args.text) == 1", "`int` fails"),
        ("args.text && true", ""),
        ("args.n ? true : false", ""),
        ("has(args.n.x)", ""),
    ] {
        let error = eval(text, args.clone()).expect_err(text);
        assert!(error.contains(told), "{text}: {error}");
        assert!(!error.contains("secret"), "{text}: {error}");
    }
    // As CEL has it, an error beside what decides alone is none.
    assert_eq!(eval("args.missing > 1 || args.n == 1", args.clone()), Ok(true));
    assert_eq!(eval("args.n == 2 && args.missing > 1", args), Ok(false));
}

#[test]
fn numbers_are_what_they_are_or_nobody_decides_by_them() {
    let above = "args.amount > 100.0";
    assert_eq!(eval_json(above, r#"{"amount": 100.01}"#), Ok(true));
    assert_eq!(eval_json(above, r#"{"amount": 100.00}"#), Ok(false));
    assert_eq!(eval_json(above, r#"{"amount": 1e2}"#), Ok(false));
    assert_eq!(eval_json(above, r#"{"amount": 1e300}"#), Ok(true));
    assert_eq!(eval_json(above, r#"{"amount": 10000000000000000000}"#), Ok(true));
    for amount in ["100.00000000000000000001", "12345678901234567890", "1e-400", "1e400"] {
        let error = eval_json(above, &format!(r#"{{"amount": {amount}}}"#)).unwrap_err();
        assert!(error.contains("`amount` has a number that is not exact"), "{error}");
    }
    // It is asked only of those that are named.
    assert_eq!(eval_json(above, r#"{"amount": 1, "id": 12345678901234567890}"#), Ok(false));
    assert!(eval_json("'x' in args", r#"{"id": [12345678901234567890]}"#).is_err());
    assert_eq!(eval_json("args.n == 9007199254740993", r#"{"n": 9007199254740993}"#), Ok(true));
}

#[test]
fn names_are_checked_when_an_expression_is_read() {
    for (text, told) in [
        ("", "must not be empty"),
        ("   ", "must not be empty"),
        ("amount > 1", "there is no variable `amount`"),
        ("arg.amount > 1", "`arg` (did you mean `args`?)"),
        ("args.x.exist(y, true)", "`exist` (did you mean `exists`?)"),
        ("args.x.matches('.*')", "there is no function `matches`"),
        ("matches(args.x, '(a+)+')", "there is no function `matches`"),
        ("args.x.replace('a', 'b') == ''", "there is no function `replace`"),
        ("timestamp('2024-01-01T00:00:00Z') > 1", "there is no function"),
        ("type(args.x) == int", "there is no function `type`"),
        ("args.x == int", "there is no variable `int`"),
        ("Foo{a: 1} == 1", "there is no type `Foo`"),
        ("args.x.all(y, z)", "there is no variable `z`"),
        ("args.x.all(args, true)", "`args` is a name of its own"),
        ("args.x.all(y, args.z.exists(w, w == y))", "must not stand inside one another"),
        ("args.x.map(y, y).all(z, true)", "must not stand inside one another"),
        ("y.all(y, true)", "there is no variable `y`"),
        ("@not_strictly_false(true)", "this is no CEL expression"),
        ("args.x.all(1, true)", ""),
        ("args.x.all(y)", "`all` is written args.list.all(x, ...)"),
        ("has(args)", ""),
        ("[?args.x] == []", "optional"),
        ("{?'a': args.x} == {}", "optional"),
        ("args.?x == 1", "there is no function"),
        (&"true?true:".repeat(100), "nest deeper than 24"),
        ("1 +", "this is no CEL expression"),
        ("args.x = 1", "this is no CEL expression"),
        ("'open", "this is no CEL expression"),
        ("1 + 1", "neither true nor false"),
        ("size(args.x)", "neither true nor false"),
        ("'yes'", "neither true nor false"),
        ("[true]", "neither true nor false"),
        ("args", "neither true nor false"),
    ] {
        let fault = fault(text);
        assert!(fault.contains(told), "{text}: {fault}");
        assert!(!fault.contains('\n') && fault.len() < 600, "{text}: {fault}");
    }
    let named = |text: &str| -> Option<Vec<String>> {
        parse(text).arguments().map(|names| names.map(str::to_owned).collect())
    };
    assert_eq!(named("args.a > 1 && has(args.b.c)"), Some(vec!["a".into(), "b".into()]));
    assert_eq!(named("args['a'] == tool"), Some(vec!["a".into()]));
    assert_eq!(named("tool == 'x'"), Some(vec![]));
    assert_eq!(named("args[tool] == 1"), None);
    assert_eq!(named("args.all(k, k == 'x')"), None);
}

#[test]
fn an_expression_is_its_text() {
    let one = parse(" args.a > 1 ");
    assert_eq!(one.source(), "args.a > 1");
    assert_eq!(one, one.clone());
    assert_eq!(one, parse("args.a > 1"));
    assert_ne!(one, parse("args.a > 2"));
    assert_eq!(format!("{one:?}"), r#"Expression("args.a > 1")"#);
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    shared(&one);
}

/// Expressions that are made to take long, nest deep or grow.
fn nasty() -> Vec<String> {
    let chain = |part: &str, times: usize| vec![part; times].join("");
    let mut all = vec![
        format!("{}true{}", chain("(", 500), chain(")", 500)),
        format!("{}1{} == 1", chain("[", 400), chain("]", 400)),
        format!("{}1{} == 1", chain("{1:", 250), chain("}", 250)),
        format!("{}true", chain("!", 1000)),
        format!("{}1 == 1", chain("-", 1000)),
        format!("{}1 == 1", chain("- ", 500)),
        format!("{}true", chain("! ", 500)),
        format!("{}1{} == 1", chain("(-", 24), chain(")", 24)),
        format!("{}true{}", chain("!(", 24), chain(")", 24)),
        format!("{}1{}", chain("(-(", 12), chain("==", 400)),
        format!("{}true{}", chain("[true?{1:", 12), chain("}:1]", 12)),
        format!("1{} == 1", chain("+1", 500)),
        format!("true{}", chain("&&true", 160)),
        format!("true{}", chain("||true", 160)),
        format!("{}true", chain("true?true:", 100)),
        format!("{}true{}", chain("true?", 90), chain(":true", 90)),
        format!("args{} == 1", chain(".a", 500)),
        format!("args{} == 1", chain("[0]", 330)),
        format!("args.l{}", chain(".all(x,true)", 80)),
        format!("args.l.all(a,{}true{}", chain("args.l.all(a,", 70), chain(")", 71)),
        format!("args.l.map(x,{}) == 1", chain("args.t+", 140) + "args.t"),
        format!("{} == 1", chain("args.t+", 140) + "args.t"),
        format!("{} == 1", chain("args.l+", 140) + "args.l"),
        format!("args.l.all(x,{}true)", chain("args.l==args.l&&", 60)),
        format!("args.l.all(x,{}true)", chain("args.t.contains(args.s)&&", 38)),
        format!("size({}) > 1", chain("size(", 150) + "args.t" + &chain(")", 150)),
        format!("'{}' == args.t", "x".repeat(1000)),
        format!("{} == args.t", "'''".repeat(300)),
        "\u{0}\u{1}\u{7f}".to_owned(),
        "args.\u{202e}x == 1".to_owned(),
        "ａrgs.x == 1".to_owned(),
        "9223372036854775808 == args.n".to_owned(),
        "-9223372036854775808 / -1 == args.n".to_owned(),
        "-9223372036854775808 % -1 == args.n".to_owned(),
        "-(-9223372036854775808) == args.n".to_owned(),
        "1e999 == args.n".to_owned(),
        "0x7fffffffffffffffffff == args.n".to_owned(),
        "int(1e308) == args.n".to_owned(),
        "int('9999999999999999999999') == args.n".to_owned(),
        "18446744073709551615u + 1u == 0u".to_owned(),
        "'\\U0010FFFF\\x00\\777' == args.t".to_owned(),
        "'\\ud800' == args.t".to_owned(),
        "b'\\xff' == args.t".to_owned(),
        "args.t['x'] == 1".to_owned(),
        "args.l[-1] == 1".to_owned(),
        "args.l[9223372036854775807] == 1".to_owned(),
        "args.l[1.5] == 1".to_owned(),
        "{args.l: 1} == 1".to_owned(),
        "{1: 1, 1: 2}[1] == 1".to_owned(),
        "args == args".to_owned(),
        "args.all(k, args[k] == args[k])".to_owned(),
        "args in [args]".to_owned(),
        "args.m.map(k, k)[0] == 'a'".to_owned(),
        "args.m.exists_one(k, args.m[k] == 1)".to_owned(),
        "args.t.all(c, true)".to_owned(),
        "args.n.map(c, true) == []".to_owned(),
        "args.l.map(x, x > 1, x) == []".to_owned(),
        "args.l.all(@result, true)".to_owned(),
        "args.l.all(__result__, true)".to_owned(),
        "dyn(args.n) == 1".to_owned(),
        "optional.of(1) == 1".to_owned(),
        "args.?x == 1".to_owned(),
        "args[?'x'] == 1".to_owned(),
        "[?args.x] == []".to_owned(),
        "args.`x` == 1".to_owned(),
        "google.protobuf.Int64Value{value: 1} == 1".to_owned(),
        ".args.x == 1".to_owned(),
        "args.x.args.x.tool == 1".to_owned(),
        "'%s'.format([args.t]) == ''".to_owned(),
        "args.t.size().size() == 1".to_owned(),
        "size() == 1".to_owned(),
        "has(has(args.x))".to_owned(),
        "args.l.all(x, has(x.y))".to_owned(),
        "// nothing".to_owned(),
        "true // and a remark".to_owned(),
        "true\n\n&&\r\ntrue".to_owned(),
    ];
    // The deepest and widest that are let through.
    all.push(format!("{}true{}", chain("(", 23), chain(")", 23)));
    all.push(format!("true == ({})", chain("1+", 20) + "1 == 21"));
    all.push(format!("args.l.all(x, {}true)", chain("x == x && ", 16)));
    all
}

/// A text, a list and a map, as large as an expression may see, and one more.
fn large(each: usize) -> Object {
    let text = "a".repeat(each / 2);
    let list: Vec<Value> = (0..each / 4 / VALUE_BYTES).map(|n| json!(n)).collect();
    object(json!({
        "t": text, "s": "a".repeat(each / 8) + "b", "l": list, "n": 1, "m": {"a": 1, "b": 2},
    }))
}

/// Whatever an expression says, it is read, refused, or evaluated, and soon. On a stack that is no
/// larger than those that the server has.
fn survives(expressions: Vec<String>, args: Vec<Object>) {
    let (done, back) = mpsc::channel();
    let builder = std::thread::Builder::new().stack_size(2 << 20);
    let work = move || {
        for text in expressions {
            if let Ok(expression) = Expression::parse(&text) {
                assert!(text.len() <= MAX_BYTES + 200);
                for args in &args {
                    let _ = expression.eval(&input(args));
                }
            }
        }
        done.send(()).expect("the test waits");
    };
    let thread = builder.spawn(work).unwrap();
    let over = back.recv_timeout(Duration::from_secs(60));
    if over != Err(mpsc::RecvTimeoutError::Timeout) {
        thread.join().unwrap();
    }
    assert_eq!(over, Ok(()), "it takes too long");
}

#[test]
fn nasty_expressions_are_harmless() {
    let empty = Object::new();
    survives(nasty(), vec![empty, large(MAX_SEEN_EACH), large(MAX_SEEN), large(4 * MAX_SEEN)]);
}

#[test]
fn an_evaluation_sees_no_more_than_it_may() {
    let text = |bytes: usize| json!({"t": "a".repeat(bytes), "other": 1});
    let plain = "args.t.contains('b')";
    assert_eq!(eval(plain, text(MAX_SEEN - 3 * VALUE_BYTES)), Ok(false));
    let error = eval(plain, text(MAX_SEEN)).unwrap_err();
    assert!(error.contains("larger than 65536 bytes"), "{error}");
    let each = "args.l.exists(x, x == args.t)";
    let args =
        |values: usize| json!({"l": vec![1; values], "t": "", "other": "x".repeat(MAX_SEEN)});
    assert_eq!(eval(each, args(100)), Ok(false));
    let error = eval(each, args(MAX_SEEN_EACH / VALUE_BYTES)).unwrap_err();
    assert!(error.contains("larger than 8192 bytes"), "{error}");
    // What is not named is not looked at, however large; but nobody can go over all of it.
    assert!(eval("args.exists(k, k == 'x')", args(1)).is_err());
    assert_eq!(eval("has(args.none)", args(1)), Ok(false));
    let long = format!("args.t == '{}'", "x".repeat(MAX_BYTES));
    assert!(fault(&long).contains("longer than 1024 bytes"));
}

/// Parts of expressions, put together by chance.
fn grown() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("true".to_owned()),
        Just("1".to_owned()),
        Just("1.5".to_owned()),
        Just("'a'".to_owned()),
        Just("null".to_owned()),
        Just("args".to_owned()),
        Just("tool".to_owned()),
        Just("x".to_owned()),
        "args\\.[tslnm]",
        "[0-9]{1,20}(u|e[0-9]{1,3})?",
    ];
    leaf.prop_recursive(8, 64, 4, |part| {
        let operator = prop::sample::select(vec![
            "+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "&&", "||", "in",
        ]);
        let function = prop::sample::select(FUNCTIONS.to_vec());
        prop_oneof![
            (part.clone(), operator, part.clone()).prop_map(|(a, o, b)| format!("({a} {o} {b})")),
            part.clone().prop_map(|a| format!("!{a}")),
            part.clone().prop_map(|a| format!("-{a}")),
            (part.clone(), part.clone()).prop_map(|(a, b)| format!("{a}[{b}]")),
            (part.clone(), part.clone(), part.clone())
                .prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            (part.clone(), part.clone()).prop_map(|(a, b)| format!("[{a}, {b}]")),
            (part.clone(), part.clone()).prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            (function.clone(), part.clone()).prop_map(|(f, a)| format!("{f}({a})")),
            (part.clone(), function.clone(), part.clone())
                .prop_map(|(a, f, b)| format!("{a}.{f}({b})")),
            (part.clone(), function, part.clone()).prop_map(|(a, f, b)| format!("{a}.{f}(x, {b})")),
            part.prop_map(|a| format!("has({a}.b)")),
        ]
    })
}

/// An expression with bytes taken out, put in and repeated.
fn mutated() -> impl Strategy<Value = String> {
    let change = (any::<prop::sample::Index>(), any::<char>(), 0..4_u8, 1..40_usize);
    (prop::sample::select(nasty()), prop::collection::vec(change, 1..6)).prop_map(
        |(text, changes)| {
            let mut chars: Vec<char> = text.chars().collect();
            for (place, c, what, times) in changes {
                if chars.is_empty() {
                    break;
                }
                let at = place.index(chars.len());
                match what {
                    0 => drop(chars.remove(at)),
                    1 => chars.insert(at, c),
                    2 => chars[at] = c,
                    _ => {
                        let end = (at + 3).min(chars.len());
                        let part = chars[at..end].to_vec();
                        (0..times).for_each(|_| drop(chars.splice(at..at, part.clone())));
                    }
                }
            }
            chars.into_iter().take(MAX_BYTES).collect()
        },
    )
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "-?[1-9][0-9]{0,30}(\\.[0-9]{1,30})?(e-?[0-9]{1,3})?"
            .prop_map(|text| serde_json::from_str(&text).unwrap()),
        ".{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |value| {
        prop_oneof![
            prop::collection::vec(value.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("[a-z]{1,3}", value, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn random_args() -> impl Strategy<Value = Object> {
    prop::collection::btree_map("[tslnm]", json_value(), 0..5)
        .prop_map(|map| map.into_iter().collect())
}

proptest! {
    #[test]
    fn random_expressions_are_harmless(
        grown in prop::collection::vec(grown(), 1..4),
        mutated in mutated(),
        args in random_args(),
    ) {
        // Most of them are no conditions by themselves.
        let compared = grown.iter().map(|part| format!("({part}) == ({part})"));
        let compared: Vec<String> = compared.collect();
        survives([grown, compared, vec![mutated]].concat(), vec![args]);
    }

    /// Numbers that an expression sees are in the order that they have.
    #[test]
    fn random_numbers_keep_their_order(a in json_value(), b in json_value()) {
        if let (Value::Number(x), Value::Number(y)) = (&a, &b)
            && let Ok(above) = eval("args.a > args.b", json!({"a": a, "b": b}))
        {
            let both_integers = x.is_i64() == y.is_i64();
            let exact = crate::session::json::compare(x, y).is_gt();
            // CEL compares an integer with a double by way of a double.
            prop_assert!(above == exact || !both_integers, "{} > {}", x, y);
        }
    }
}
