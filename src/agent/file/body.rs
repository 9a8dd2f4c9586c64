//! The bodies that an agent file declares: what they return, and what they ask before.

use serde_json::Value;

use super::read::{self, Table};
use super::tool::{check_parameter, parameter_names};
use super::yaml::{Kind, Node};
use super::{Faults, approvals, near};
use crate::agent::{Asking, Body, Declaration, template};

/// What an object that a tool returns may name beside the call's arguments.
pub(super) const PLACES: &[&str] = &["call_id", "id", "invocation_id", "session_id", "user_id"];

/// The keys of a question that a body asks.
pub(super) const ASKS_KEYS: &[&str] = &["when", "hint", "payload", "returns", "declined"];

/// How places begin that name what somebody filled in.
const FILLED_IN: &str = "confirmation.payload.";

/// Which places an object may have.
#[derive(Clone, Copy)]
struct Places<'a> {
    tool: &'a Declaration,
    /// What somebody fills in, if the body asks and this is what it gives then.
    asks: Option<&'a Node>,
}

/// Reads what stands under `returns` and `asks`.
pub(super) fn read(
    returns: &Node,
    asks: Option<&Node>,
    tool: &Declaration,
    faults: &mut Faults,
) -> Body {
    let body = match &returns.kind {
        Kind::Map(_) => {
            Places { tool, asks }.check(returns, faults);
            Body::Object(read::object(returns, "returns", faults).unwrap_or_default())
        }
        Kind::Null => nothing(returns, tool, faults),
        Kind::Text(text) if text == "nothing" => nothing(returns, tool, faults),
        _ => read::wrong(returns, "returns", "a map, or nothing", faults).unwrap_or(Body::Nothing),
    };
    let Some(node) = asks else { return body };
    let Body::Object(object) = body else {
        faults.add(node.at, "`asks` needs a map in `returns`");
        return body;
    };
    let table = Table::open(node, "`asks`", ASKS_KEYS, faults);
    let Some(table) = table else { return Body::Object(object) };
    let places = Places { tool, asks: None };
    for key in ["hint", "payload", "returns", "declined"] {
        table.get(key).into_iter().for_each(|node| places.check(node, faults));
    }
    let interim = table.need("returns", faults);
    let asking = Asking {
        when: table.get("when").and_then(|n| approvals::condition(n, "when", Some(tool), faults)),
        hint: table.text("hint", faults).unwrap_or_default().to_owned(),
        payload: table.get("payload").map(|node| read::value(node, faults)),
        interim: interim.and_then(|n| read::object(n, "returns", faults)).unwrap_or_default(),
        declined: table.object("declined", faults),
        returns: object,
    };
    Body::Asking(Box::new(asking))
}

fn nothing(node: &Node, tool: &Declaration, faults: &mut Faults) -> Body {
    if !tool.behaviour.long_running {
        faults.add(node.at, "only a tool that is `long_running: true` can return nothing");
    }
    Body::Nothing
}

impl Places<'_> {
    /// Checks the `${...}` places of a value.
    fn check(self, node: &Node, faults: &mut Faults) {
        let text = match &node.kind {
            Kind::Text(text) => text,
            Kind::List(nodes) => return nodes.iter().for_each(|node| self.check(node, faults)),
            _ => return node.entries().iter().for_each(|(_, node)| self.check(node, faults)),
        };
        let places = match template::check(text) {
            Ok(places) => places,
            Err(error) => return faults.add(node.at, error.to_string()),
        };
        for place in places {
            if let Some(name) = place.strip_prefix("args.") {
                check_parameter(node, self.tool, name, faults);
            } else if let Some(key) = place.strip_prefix(FILLED_IN) {
                self.check_filled_in(node, key, faults);
            } else if !PLACES.contains(&place) {
                let names = parameter_names(self.tool).unwrap_or_default();
                let hint = match place {
                    _ if names.contains(&place) => format!(" (did you mean `args.{place}`?)"),
                    _ => near::hint(place, PLACES.iter().copied()),
                };
                let known = PLACES.join(", ");
                let message =
                    format!("`${{{place}}}` is no place{hint}; known: args.NAME, {known}");
                faults.add(node.at, message);
            }
        }
    }

    fn check_filled_in(self, node: &Node, key: &str, faults: &mut Faults) {
        let Some(asks) = self.asks else {
            let message = format!("`${{{FILLED_IN}{key}}}` is only for `returns` beside `asks`");
            return faults.add(node.at, message);
        };
        let payload = asks.get("payload").map(Node::to_json);
        let Some(Value::Object(payload)) = payload else {
            return faults.add(node.at, "`asks` has no `payload` with keys to be filled in");
        };
        let known = payload.keys().map(String::as_str);
        let whole = key.split_once('.').map_or(key, |(whole, _)| whole);
        if !payload.contains_key(key) && !payload.contains_key(whole) {
            let hint = near::hint(key, known);
            faults.add(node.at, format!("the `payload` of `asks` has no key `{key}`{hint}"));
        }
    }
}
