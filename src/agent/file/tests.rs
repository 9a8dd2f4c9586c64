use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::agent::{Agent, Answers, Body, Effect};
use crate::session::content::Object;

mod approvals_of;
mod sample;

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        other => panic!("no object: {other}"),
    }
}

fn load_text(text: &str, registered: &[Declaration]) -> Result<Agents, Vec<Fault>> {
    load(&[("a.yaml".into(), text.to_owned())], registered)
}

fn agent(text: &str, registered: &[Declaration]) -> Arc<Agent> {
    let agents = load_text(text, registered).unwrap_or_else(|faults| panic!("{}", lines(&faults)));
    agents.iter().next().unwrap().1.clone()
}

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(|fault| format!("{fault}\n")).collect()
}

fn function(name: &str) -> Declaration {
    Declaration {
        name: name.to_owned(),
        description: "As registered.".to_owned(),
        parameters: json!({"type": "object", "properties": {"to": {"type": "string"}}}),
        behaviour: crate::agent::Behaviour {
            long_running: true,
            answers: Answers::Many,
            effect: Effect::Idempotent,
            ..Default::default()
        },
        approval: Default::default(),
        body: Body::Function,
    }
}

#[test]
fn a_broken_file_tells_all_its_faults() {
    let registered = [function("send_mail"), function("look_up")];
    for (name, text, expected) in [
        ("broken", include_str!("broken.yaml"), include_str!("broken.txt")),
        (
            "broken_approvals",
            include_str!("broken_approvals.yaml"),
            include_str!("broken_approvals.txt"),
        ),
    ] {
        let file = (PathBuf::from(format!("{name}.yaml")), text.to_owned());
        let told = lines(&load(&[file], &registered).unwrap_err());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let path = format!("{}/src/agent/file/{name}.txt", env!("CARGO_MANIFEST_DIR"));
            std::fs::write(path, &told).unwrap();
        }
        assert_eq!(told, expected);
    }
}

#[test]
fn all_files_are_read_before_anything_is_said() {
    let file = |name: &str, text: &str| (PathBuf::from(name), text.to_owned());
    let files = [
        file("a.yaml", "name: one\nmodel: gemini-2.5-flash\n"),
        file("b.yaml", "name: one\nmodel: ''\n"),
        file("c.yaml", "name: two\nmodel: m\nscript: [{when: always, say: x}]\n"),
        file("d.yaml", "\nmodel: m\nname: one\n"),
        file("e.yaml", "- 1\n"),
        file("f.yaml", "name: three\nmodel: scripted\n"),
    ];
    let expected = "\
b.yaml:2:8: `model` must be a name of printable ASCII characters
c.yaml:3:1: `script` is only for `model: scripted`
d.yaml:3:7: there is an agent `one` already, in a.yaml:1
e.yaml:1:1: an agent must be a map, not a list
f.yaml:2:8: `model: scripted` needs a `script`
";
    assert_eq!(lines(&load(&files, &[]).unwrap_err()), expected);
    assert_eq!(load(&files[..1], &[]).unwrap().iter().count(), 1);
}

#[test]
fn a_tool_is_read_as_it_is_declared() {
    let text = "
name: a
model: m
max_prompt_events: 50
tools:
  - name: ask
    long_running: true
    description: Ask.
    final_when: {status: [approved, rejected], code: 1}
    answer_schema: {type: object}
    expires_after: 7d
    decisions: {approve: {status: approved}, deny: {status: rejected}}
    timeout: 2m
    effect: Once
    returns:
  - name: note
    returns: {n: 9007199254740993, t: '${args.x}'}
    parameters: {additionalProperties: true}
  - name: send_mail
  - name: look_up
    description: Better.
    long_running: false
    effect: READ
";
    let agent = agent(text, &[function("send_mail"), function("look_up")]);
    assert_eq!(agent.max_prompt_events, Some(50));
    let ask = agent.tool("ask").unwrap();
    assert_eq!(ask.parameters, json!({"type": "object", "properties": {}}));
    assert_eq!(ask.body, Body::Nothing);
    let behaviour = &ask.behaviour;
    assert!(behaviour.long_running);
    assert_eq!(behaviour.answers, Answers::Many);
    assert_eq!(behaviour.final_when["status"], [json!("approved"), json!("rejected")]);
    assert_eq!(behaviour.final_when["code"], [json!(1)]);
    assert_eq!(behaviour.answer_schema, Some(json!({"type": "object"})));
    assert_eq!(behaviour.expires_after.unwrap().as_secs(), 7 * 86_400);
    assert_eq!(behaviour.timeout.as_secs(), 120);
    assert_eq!(behaviour.effect, Effect::Once);
    let note = agent.tool("note").unwrap();
    assert_eq!(note.behaviour.effect, Effect::Read);
    assert_eq!(note.parameters, json!({"type": "object", "additionalProperties": true}));
    let Body::Object(body) = &note.body else { panic!("no object") };
    assert_eq!(body["n"].to_string(), "9007199254740993");
    assert_eq!(agent.tool("send_mail"), Some(&function("send_mail")));
    let look_up = agent.tool("look_up").unwrap();
    assert_eq!(look_up.description, "Better.");
    assert_eq!(look_up.parameters, function("look_up").parameters);
    assert_eq!(
        (look_up.behaviour.answers, look_up.behaviour.effect),
        (Answers::Once, Effect::Read)
    );
    assert!(!look_up.behaviour.long_running);
}

#[test]
fn the_places_of_an_object_are_those_that_its_tool_fills() {
    assert!(body::PLACES.iter().all(|place| crate::tool::declared::is_place(place)));
}

#[test]
fn a_directory_is_read_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let told = lines(&load_dir(dir.path(), &[]).unwrap_err());
    assert!(told.ends_with("there is no agent file (*.yaml) in it\n"), "{told}");
    let told = lines(&load_dir(&dir.path().join("none"), &[]).unwrap_err());
    assert!(told.contains("none: cannot be read: "), "{told}");

    std::fs::write(dir.path().join("b.yaml"), "name: two\nmodel: m\n").unwrap();
    std::fs::write(dir.path().join("a.yml"), "name: one\nmodel: m\n").unwrap();
    std::fs::write(dir.path().join("notes.txt"), "no").unwrap();
    assert_eq!(load_dir(dir.path(), &[]).unwrap().iter().count(), 2);

    std::fs::write(dir.path().join("c.yaml"), b"\xff").unwrap();
    std::fs::write(dir.path().join("d.yaml"), "name: two\nmodel: m\n").unwrap();
    let told = lines(&load_dir(dir.path(), &[]).unwrap_err());
    assert!(told.contains("c.yaml: cannot be read: "), "{told}");
    assert!(told.contains("d.yaml:1:7: there is an agent `two` already, in "), "{told}");
}

/// The examples of `docs/agent-file.md` and of the README are agents, for the loader and for
/// editors.
#[test]
fn the_examples_of_the_documents_are_read() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for (page, examples) in
        [(include_str!("../../../docs/agent-file.md"), 5), (include_str!("../../../README.md"), 2)]
    {
        let parts = page.split("```yaml\n").skip(1);
        let texts: Vec<_> = parts.map(|part| part.split_once("```\n").unwrap().0).collect();
        assert_eq!(texts.len(), examples);
        for text in texts {
            agent(text, &[]);
            let mut faults = Faults::new("a.yaml".into());
            let value = yaml::read(text, &mut faults).unwrap().to_json();
            assert!(validator.is_valid(&value), "{text}");
        }
    }
}

#[test]
fn the_schema_agrees_with_the_loader() {
    let schema = schema();
    let keys = |pointer: &str| -> Vec<String> {
        let properties = schema.pointer(pointer).unwrap().as_object().unwrap();
        properties.keys().cloned().collect()
    };
    let sorted = |keys: &[&str]| {
        let mut keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys("/properties"), sorted(root::KEYS));
    assert_eq!(keys("/$defs/tool/properties"), sorted(tool::KEYS));
    assert_eq!(keys("/properties/approvals/properties"), sorted(approvals::KEYS));
    assert_eq!(keys("/$defs/approval_rule/properties"), sorted(approvals::RULE_KEYS));
    assert_eq!(keys("/$defs/deadline/properties"), sorted(approvals::DEADLINE_KEYS));
    let approval = "/$defs/tool/properties/approval/anyOf/1/properties";
    assert_eq!(keys(approval), sorted(approvals::TOOL_KEYS));
    assert_eq!(keys("/$defs/tool/properties/asks/properties"), sorted(body::ASKS_KEYS));
    assert_eq!(keys("/$defs/rule/properties"), sorted(rules::RULE_KEYS));
    assert_eq!(keys("/$defs/case/properties"), sorted(rules::CASE_KEYS));
    let when = "/$defs/rule/properties/when/anyOf/1/properties";
    assert_eq!(keys(when), sorted(rules::WHEN_KEYS));
    let holds = "/$defs/conditions/additionalProperties/properties";
    assert_eq!(keys(holds), sorted(rules::HOLDS_KEYS));

    let validator = jsonschema::validator_for(&schema).unwrap();
    for (name, text) in samples() {
        let mut faults = Faults::new((*name).into());
        let value = yaml::read(text, &mut faults).unwrap().to_json();
        let errors: Vec<String> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{name}: {errors:?}");
    }
    let mut faults = Faults::new("broken.yaml".into());
    let broken = yaml::read(include_str!("broken.yaml"), &mut faults).unwrap().to_json();
    assert!(!validator.is_valid(&broken));
}

#[test]
fn schemas_and_what_they_judge_are_checked_together() {
    let text = "
name: a
model: m
tools:
  - name: ask
    long_running: true
    returns: nothing
    parameters:
      properties:
        minimun: {type: string, minLenght: 1, default: x}
        n: {type: integer, default: many, x-mine: 1}
        r: {$ref: '#/$defs/t', default: 5}
        l: {items: {anyOf: [{tpye: string}]}, default: [1]}
        e: {enum: [{tpye: 1}], default: {tpye: 2}, title: E, deprecated: true}
      $defs: {t: {type: string, descripton: T}}
    answer_schema: {properties: {status: {enum: ['yes', 'not']}}, requird: [status]}
    decisions: {approve: {status: 'yes'}, deny: {status: 'no'}}
";
    let expected = "\
a.yaml:10:33: `parameters`: JSON schema has no keyword `minLenght` (did you mean `minLength`?)
a.yaml:11:37: `default` is not what its schema demands: \"many\" is not of type \"integer\"
a.yaml:12:41: `default` is not what its schema demands: 5 is not of type \"string\"
a.yaml:13:30: `parameters`: JSON schema has no keyword `tpye` (did you mean `type`?)
a.yaml:14:41: `default` is not what its schema demands: {\"tpye\":2} is not one of {\"tpye\":1}
a.yaml:15:33: `parameters`: JSON schema has no keyword `descripton` (did you mean `description`?)
a.yaml:16:67: `answer_schema`: JSON schema has no keyword `requird` (did you mean `required`?)
a.yaml:17:58: `deny` is not what `answer_schema` demands: \"no\" is not one of \"yes\" or \"not\"
";
    assert_eq!(lines(&load_text(text, &[]).unwrap_err()), expected);
    let text = "name: a\nmodel: scriptd\nscript: [{when: always, say: x}]\n";
    let expected = "a.yaml:2:8: `script` needs `model: scripted` (did you mean `scripted`?)\n";
    assert_eq!(lines(&load_text(text, &[]).unwrap_err()), expected);
}
