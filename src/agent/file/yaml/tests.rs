use super::*;

fn faults_of(text: &str) -> Vec<String> {
    let mut faults = Faults::new("f.yaml".into());
    read(text, &mut faults);
    faults.into_list().iter().map(ToString::to_string).collect()
}

fn value(text: &str) -> Value {
    let mut faults = Faults::new("f.yaml".into());
    let node = read(text, &mut faults).unwrap();
    assert!(faults.into_list().is_empty());
    node.to_json()
}

#[test]
fn scalars_are_those_of_the_core_schema_and_exact() {
    let text = "[1, +2, -0.50, .5, 5., 007, 0x1F, 0o17, 1e3, 9007199254740993, 1_000, '1', \
                \"true\", yes, true, ~, null, '', 1.2.3, 0x, e5, .]";
    let expected = "[1,2,-0.50,0.5,5,7,31,15,1e3,9007199254740993,\"1_000\",\"1\",\"true\",\
                    \"yes\",true,null,null,\"\",\"1.2.3\",\"0x\",\"e5\",\".\"]";
    let numbers = value(text).to_string().replace("1e+3", "1e3");
    assert_eq!(numbers, expected);
    assert_eq!(value("a: |\n  1\n  2\n"), serde_json::json!({"a": "1\n2\n"}));
}

#[test]
fn everything_else_is_refused_with_its_place() {
    let cases = [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: `a` stands here already, in line 1"),
        ("a: &x 1\n", "f.yaml:1:4: anchors are not supported"),
        ("a: !!str 1\n", "f.yaml:1:4: tags are not supported: quote what is meant as text"),
        ("a: 1\n---\nb: 1\n", "f.yaml:2:1: a file must hold one document only"),
        ("? [a]\n: 1\n", "f.yaml:1:3: a key must be a text"),
        ("a: .inf\n", "f.yaml:1:4: there is no such number in JSON: quote it"),
        ("a: 1e999999999\n", "f.yaml:1:4: a number must not have more than 400 digits"),
        ("", "f.yaml:1:1: the file is empty"),
        ("# nothing\n", "f.yaml:1:1: the file is empty"),
    ];
    for (text, expected) in cases {
        assert_eq!(faults_of(text), [expected], "{text}");
    }
    let aliases = faults_of("a: &x [1]\nb: *x\n");
    assert_eq!(aliases[1], "f.yaml:2:4: aliases are not supported: write it out");
    let nested = "[".repeat(65) + &"]".repeat(65);
    assert!(faults_of(&nested)[0].contains("deeper than 64 levels"));
    assert_eq!(faults_of(&"[".repeat(100_000)).len(), 1);
    assert!(faults_of(&"- ".repeat(100_000))[0].contains("deeper than 64 levels"));
    assert!(faults_of(&" ".repeat(MAX_BYTES + 1))[0].contains("larger than"));
    assert!(faults_of("a: [1\nb: 2")[0].starts_with("f.yaml:"));
    assert!(faults_of("a: \t- x\n\tb: 'c")[0].contains("this is no YAML"));
    let hint = "put a place in quotes inside { }";
    assert!(faults_of("a: {b: ${c}, d: 1}")[0].ends_with(hint));
    assert!(!faults_of("a: {b: '${c}', d: 1}}")[0].contains(hint));
}
