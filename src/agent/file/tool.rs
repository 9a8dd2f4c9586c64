//! The tools of an agent file.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use super::read::{self, Table};
use super::yaml::{Kind, Node};
use super::{Faults, approvals, body, near};
use crate::agent::approvals::ToolApproval;
use crate::agent::{Answers, Behaviour, Body, Decisions, Declaration, Effect};
use crate::agent::{builtin, check_tool_name};
use crate::session::approval::Action;

/// The keys of a tool.
pub(super) const KEYS: &[&str] = &[
    "name",
    "description",
    "parameters",
    "long_running",
    "answers",
    "final_when",
    "answer_schema",
    "expires_after",
    "deadlines",
    "decisions",
    "inbox",
    "effect",
    "timeout",
    "returns",
    "asks",
    "approval",
];

/// The keys that only a long-running tool has.
#[rustfmt::skip]
const LONG_RUNNING_KEYS: &[&str] = &[
    "answers", "final_when", "answer_schema", "expires_after", "deadlines", "decisions", "inbox",
];

/// The keys that a tool of the server itself may have.
const BUILTIN_KEYS: &[&str] = &["name", "description", "expires_after", "deadlines", "inbox"];

/// Reads the list of tools. A tool whose name can be read is in the result even if it has faults.
pub(super) fn read_all(
    node: &Node,
    registered: &[Declaration],
    faults: &mut Faults,
) -> Vec<Declaration> {
    let mut lines: HashMap<String, usize> = HashMap::new();
    let mut tools = Vec::new();
    for node in read::list(node, "tools", faults) {
        let Some(tool) = read_tool(node, registered, faults) else {
            continue;
        };
        let at = node.get("name").map_or(node.at, |name| name.at);
        if let Some(line) = lines.get(&tool.name) {
            faults.add(at, format!("there is a tool `{}` already, in line {line}", tool.name));
            continue;
        }
        lines.insert(tool.name.clone(), at.line);
        tools.push(tool);
    }
    tools
}

/// The names of a tool's parameters; none if any name may be given.
pub(super) fn parameter_names(tool: &Declaration) -> Option<Vec<&str>> {
    match tool.parameters.get("additionalProperties") {
        None | Some(Value::Bool(false)) => {}
        Some(_) => return None,
    }
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    Some(properties.into_iter().flat_map(|p| p.keys()).map(String::as_str).collect())
}

fn read_tool(node: &Node, registered: &[Declaration], faults: &mut Faults) -> Option<Declaration> {
    let table = Table::open(node, "a tool", KEYS, faults)?;
    let name_node = table.need("name", faults);
    let name = name_node.and_then(|node| read::text(node, "name", faults)).unwrap_or_default();
    let returns = table.get("returns");
    let function = registered.iter().find(|function| function.name == name);
    // Where a name is not reserved, somebody may have a tool of his own by it.
    if let Some(tool) = builtin::named(name)
        && (check_tool_name(name).is_err() || (function.is_none() && returns.is_none()))
    {
        return Some(read_builtin(table, tool, faults));
    }
    if let (Some(node), false) = (name_node, name.is_empty())
        && let Err(fault) = check_tool_name(name)
    {
        faults.add(node.at, fault);
    }
    if let (Some(node), None, None) = (name_node, returns, function) {
        let known: Vec<&str> = registered.iter().map(|function| function.name.as_str()).collect();
        let hint = near::hint(name, known.iter().copied());
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let message = format!("there is no registered function `{name}`{hint}; known: {known}. ");
        faults.add(node.at, message + "A tool without a function needs `returns`");
    }
    let mut tool = match (function, returns) {
        (Some(function), None) => function.clone(),
        _ => Declaration {
            name: name.to_owned(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": {}}),
            behaviour: Behaviour {
                // The body of a tool that is declared whole only builds an object.
                effect: if returns.is_some() { Effect::Read } else { Effect::Once },
                ..Behaviour::default()
            },
            approval: ToolApproval::default(),
            body: Body::Function,
        },
    };
    if let Some(description) = table.text("description", faults) {
        description.clone_into(&mut tool.description);
    }
    if let Some(node) = table.get("parameters") {
        if function.is_some() && returns.is_none() {
            let at = table.key_at("parameters");
            faults.add(at, format!("the function `{name}` says itself what its parameters are"));
        } else if let Some(schema) = read_parameters(node, faults) {
            tool.parameters = schema;
        }
    }
    read_behaviour(table, &mut tool.behaviour, faults);
    if let Some(node) = returns {
        tool.body = body::read(node, table.get("asks"), &tool, faults);
    } else if table.get("asks").is_some() {
        let message = "`asks` needs `returns`: a function asks by itself";
        faults.add(table.key_at("asks"), message);
    }
    if let Some(node) = table.get("approval") {
        tool.approval = approvals::of_tool(node, &tool, faults);
    }
    (!name.is_empty()).then_some(tool)
}

/// A tool of the server itself: it says what it is, and a file when it ends.
fn read_builtin(table: Table<'_>, mut tool: Declaration, faults: &mut Faults) -> Declaration {
    for key in KEYS.iter().filter(|key| !BUILTIN_KEYS.contains(key)) {
        if table.get(key).is_some() {
            let message = format!("`{}` is the server's own: it has no `{key}`", tool.name);
            faults.add(table.key_at(key), message);
        }
    }
    if let Some(description) = table.text("description", faults) {
        description.clone_into(&mut tool.description);
    }
    read_held(table, &mut tool.behaviour, faults);
    tool
}

fn read_parameters(node: &Node, faults: &mut Faults) -> Option<Value> {
    let mut schema = read::schema(node, "parameters", faults)?;
    let object = schema.as_object_mut()?;
    match object.get("type") {
        None => drop(object.insert("type".to_owned(), json!("object"))),
        Some(Value::String(kind)) if kind == "object" => {}
        Some(_) => faults.add(node.follow("/type").at, "`parameters` must be of `type: object`"),
    }
    let known: Vec<&str> = match object.get("properties") {
        Some(Value::Object(properties)) => properties.keys().map(String::as_str).collect(),
        _ => Vec::new(),
    };
    if let Some(Kind::List(required)) = node.get("required").map(|node| &node.kind) {
        for node in required {
            if let Kind::Text(name) = &node.kind
                && !known.contains(&name.as_str())
            {
                let hint = near::hint(name, known.iter().copied());
                faults.add(node.at, format!("there is no parameter `{name}`{hint}"));
            }
        }
    }
    Some(schema)
}

fn read_behaviour(table: Table<'_>, behaviour: &mut Behaviour, faults: &mut Faults) {
    if let Some(long_running) = table.flag("long_running", faults) {
        behaviour.long_running = long_running;
    }
    if let Some(text) = table.text("effect", faults) {
        match text.to_ascii_uppercase().as_str() {
            "READ" => behaviour.effect = Effect::Read,
            "IDEMPOTENT" => behaviour.effect = Effect::Idempotent,
            "ONCE" => behaviour.effect = Effect::Once,
            other => {
                let hint = near::hint(other, ["read", "idempotent", "once"]);
                let at = table.get("effect").map_or(table.at(), |node| node.at);
                faults.add(at, format!("`effect` must be read, idempotent or once{hint}"));
            }
        }
    }
    if let Some(timeout) = table.duration("timeout", faults) {
        behaviour.timeout = timeout;
    }
    if behaviour.long_running {
        read_long_running(table, behaviour, faults);
        return;
    }
    for key in LONG_RUNNING_KEYS {
        if table.get(key).is_some() {
            let message = format!("`{key}` is only for tools that are `long_running: true`");
            faults.add(table.key_at(key), message);
        }
    }
    *behaviour =
        Behaviour { effect: behaviour.effect, timeout: behaviour.timeout, ..Behaviour::default() };
}

fn read_long_running(table: Table<'_>, behaviour: &mut Behaviour, faults: &mut Faults) {
    if let Some(node) = table.get("final_when") {
        behaviour.final_when = read_final_when(node, faults);
        // Where every answer is final, there is no need to say which one is.
        behaviour.answers = Answers::Many;
    }
    if let Some(text) = table.text("answers", faults) {
        let at = table.get("answers").map_or(table.at(), |node| node.at);
        match text.to_ascii_lowercase().as_str() {
            "once" if table.get("final_when").is_some() => {
                faults.add(at, "with `final_when`, `answers` must be many");
            }
            "once" => behaviour.answers = Answers::Once,
            "many" => behaviour.answers = Answers::Many,
            _ => faults.add(at, "`answers` must be once or many"),
        }
    }
    if let Some(node) = table.get("answer_schema") {
        behaviour.answer_schema = read::schema(node, "answer_schema", faults);
    }
    if let Some(node) = table.get("decisions") {
        behaviour.decisions = read_decisions(node, behaviour.answer_schema.as_ref(), faults);
        behaviour.inbox = true;
    }
    read_held(table, behaviour, faults);
}

/// How long it is held, and whether people find it meanwhile.
fn read_held(table: Table<'_>, behaviour: &mut Behaviour, faults: &mut Faults) {
    if let Some(mut deadlines) = approvals::deadlines(table, faults) {
        let end = deadlines.pop_if(|last| last.action == Action::Expire);
        behaviour.expires_after = end.map(|end| end.after);
        behaviour.deadlines = deadlines;
    }
    if let Some(inbox) = table.flag("inbox", faults) {
        behaviour.inbox = inbox;
    }
}

fn read_final_when(node: &Node, faults: &mut Faults) -> BTreeMap<String, Vec<Value>> {
    if !matches!(node.kind, Kind::Map(_)) || node.entries().is_empty() {
        faults.add(node.at, "`final_when` must be a map such as {status: [approved, rejected]}");
    }
    let mut keys = BTreeMap::new();
    for (key, node) in node.entries() {
        let values = match &node.kind {
            Kind::List(nodes) => nodes.iter().map(|node| read::value(node, faults)).collect(),
            _ => vec![read::value(node, faults)],
        };
        if values.is_empty() {
            faults.add(node.at, format!("`{}` must list a value at least", key.text));
        }
        keys.insert(key.text.clone(), values);
    }
    keys
}

fn read_decisions(
    node: &Node,
    answer_schema: Option<&Value>,
    faults: &mut Faults,
) -> Option<Decisions> {
    let table = Table::open(node, "`decisions`", &["approve", "deny"], faults)?;
    let approve = table.need("approve", faults).and_then(|n| read::object(n, "approve", faults));
    let deny = table.need("deny", faults).and_then(|n| read::object(n, "deny", faults));
    // An answer schema that cannot be used has its own fault.
    if let Some(schema) = answer_schema.and_then(|s| jsonschema::options().offline().build(s).ok())
    {
        for (key, answer) in [("approve", &approve), ("deny", &deny)] {
            let (Some(at), Some(answer)) = (table.get(key), answer) else { continue };
            for error in schema.iter_errors(&Value::Object(answer.clone())) {
                let at = at.follow(error.instance_path().as_str()).at;
                faults.add(at, format!("`{key}` is not what `answer_schema` demands: {error}"));
            }
        }
    }
    Some(Decisions { approve: approve?, deny: deny? })
}

/// Checks that a tool has the parameter that a place `args.NAME` names; a key inside it may follow
/// behind a point.
pub(super) fn check_parameter(node: &Node, tool: &Declaration, name: &str, faults: &mut Faults) {
    let Some(known) = parameter_names(tool) else {
        return;
    };
    let whole = name.split_once('.').map_or(name, |(whole, _)| whole);
    if !known.contains(&name) && !known.contains(&whole) {
        let hint = near::hint(name, known);
        faults.add(node.at, format!("`{}` has no parameter `{name}`{hint}", tool.name));
    }
}
