//! Reading single values of the tree, with a message for each that is not what it should be.

use std::time::Duration;

use serde_json::Value;

use super::Faults;
use super::yaml::{Kind, Node};
use super::{keywords, near};
use crate::session::content::Object;
use crate::session::json::{self, Place};

/// Longest duration: a hundred years, so that adding one to a time never overflows.
const MAX_DURATION: Duration = Duration::from_secs(36_500 * 86_400);

/// A map of which all keys are known.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    node: &'a Node,
    what: &'static str,
}

impl<'a> Table<'a> {
    /// Takes a node that must be a map with these keys and no others. `what` it is ("a tool") goes
    /// into messages.
    pub(super) fn open(
        node: &'a Node,
        what: &'static str,
        known: &[&str],
        faults: &mut Faults,
    ) -> Option<Self> {
        if !matches!(node.kind, Kind::Map(_)) {
            faults.add(node.at, format!("{what} must be a map, not {}", node.kind()));
            return None;
        }
        for (key, _) in node.entries() {
            let text = key.text.as_str();
            if !known.contains(&text) {
                let hint = near::hint(text, known.iter().copied());
                faults.add(key.at, format!("{what} has no key `{text}`{hint}"));
            }
        }
        Some(Self { node, what })
    }

    pub(super) fn at(&self) -> Place {
        self.node.at
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Node> {
        self.node.get(key)
    }

    /// The place of a key; of the map if it has no such key.
    pub(super) fn key_at(&self, key: &str) -> Place {
        let entry = self.node.entries().iter().find(|(k, _)| k.text == key);
        entry.map_or(self.node.at, |(k, _)| k.at)
    }

    /// A value that must be there.
    pub(super) fn need(&self, key: &str, faults: &mut Faults) -> Option<&'a Node> {
        let node = self.get(key);
        if node.is_none() {
            faults.add(self.node.at, format!("{} must have `{key}`", self.what));
        }
        node
    }

    /// A text that may be absent.
    pub(super) fn text(&self, key: &str, faults: &mut Faults) -> Option<&'a str> {
        self.get(key).and_then(|node| text(node, key, faults))
    }

    /// True or false; may be absent.
    pub(super) fn flag(&self, key: &str, faults: &mut Faults) -> Option<bool> {
        let node = self.get(key)?;
        match node.kind {
            Kind::Bool(value) => Some(value),
            _ => wrong(node, key, "true or false", faults),
        }
    }

    /// A whole number above 0; may be absent.
    pub(super) fn count(&self, key: &str, faults: &mut Faults) -> Option<u32> {
        let node = self.get(key)?;
        let number = match &node.kind {
            Kind::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
            _ => None,
        };
        let number = number.filter(|number| *number > 0);
        if number.is_none() {
            faults.add(node.at, format!("`{key}` must be a whole number above 0"));
        }
        number
    }

    /// A duration such as `15m`; may be absent.
    pub(super) fn duration(&self, key: &str, faults: &mut Faults) -> Option<Duration> {
        let node = self.get(key)?;
        let read = match &node.kind {
            Kind::Text(text) => duration(text),
            _ => None,
        };
        if read.is_none() {
            faults.add(node.at, format!("`{key}` must be a duration above 0: 30s, 15m, 72h or 7d"));
        }
        read
    }

    /// A JSON object; may be absent.
    pub(super) fn object(&self, key: &str, faults: &mut Faults) -> Option<Object> {
        self.get(key).and_then(|node| object(node, key, faults))
    }
}

/// Notes that a value is of the wrong type.
pub(super) fn wrong<T>(node: &Node, key: &str, right: &str, faults: &mut Faults) -> Option<T> {
    let quote = match node.kind {
        Kind::Number(_) | Kind::Bool(_) if right == "a text" => ": put it in quotes",
        _ => "",
    };
    faults.add(node.at, format!("`{key}` must be {right}, not {}{quote}", node.kind()));
    None
}

/// A text.
pub(super) fn text<'a>(node: &'a Node, key: &str, faults: &mut Faults) -> Option<&'a str> {
    match &node.kind {
        Kind::Text(text) => Some(text),
        _ => wrong(node, key, "a text", faults),
    }
}

/// One text, or a list of them.
pub(super) fn texts<'a>(
    node: &'a Node,
    key: &str,
    faults: &mut Faults,
) -> Vec<(&'a Node, &'a str)> {
    let nodes = match &node.kind {
        Kind::List(nodes) => nodes.as_slice(),
        _ => std::slice::from_ref(node),
    };
    if nodes.is_empty() {
        faults.add(node.at, format!("`{key}` must not be empty"));
    }
    nodes.iter().filter_map(|node| Some((node, text(node, key, faults)?))).collect()
}

/// A list.
pub(super) fn list<'a>(node: &'a Node, key: &str, faults: &mut Faults) -> &'a [Node] {
    match &node.kind {
        Kind::List(nodes) => nodes,
        _ => wrong(node, key, "a list", faults).unwrap_or_default(),
    }
}

/// A JSON value that nests no deeper than a call's arguments may.
pub(super) fn value(node: &Node, faults: &mut Faults) -> Value {
    let value = node.to_json();
    if let Err(error) = json::check(&value, json::MAX_ARGS_DEPTH) {
        faults.add(node.at, error.to_string());
    }
    value
}

/// A JSON object.
pub(super) fn object(node: &Node, key: &str, faults: &mut Faults) -> Option<Object> {
    match &node.kind {
        Kind::Map(_) => match value(node, faults) {
            Value::Object(object) => Some(object),
            _ => None,
        },
        _ => wrong(node, key, "a map", faults),
    }
}

/// A JSON schema, checked against the schema of schemas and compiled once. It is given back even if
/// it has faults, so that what refers to it can be checked.
pub(super) fn schema(node: &Node, key: &str, faults: &mut Faults) -> Option<Value> {
    let schema = Value::Object(object(node, key, faults)?);
    let meta = match jsonschema::meta::validator_for(&schema) {
        Ok(meta) => meta,
        Err(error) => {
            faults.add(node.at, format!("`{key}` is no JSON schema: {error}"));
            return Some(schema);
        }
    };
    let mut valid = true;
    for error in meta.iter_errors(&schema) {
        valid = false;
        let at = node.follow(error.instance_path().as_str()).at;
        faults.add(at, format!("`{key}` is no JSON schema: {error}"));
    }
    keywords::check(node, key, faults);
    if valid {
        match jsonschema::options().offline().build(&schema) {
            Ok(_) => keywords::check_defaults(node, &schema, faults),
            Err(error) => {
                let at = node.follow(error.instance_path().as_str()).at;
                faults.add(at, format!("`{key}` cannot be used as a JSON schema: {error}"));
            }
        }
    }
    Some(schema)
}

/// Reads `30s`, `15m`, `72h`, `7d`; none if it is none of these, 0, or above a hundred years.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let unit = match text.bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3_600,
        b'd' => 86_400,
        _ => return None,
    };
    let count = &text[..text.len() - 1];
    if count.is_empty() || !count.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let duration = Duration::from_secs(count.parse::<u64>().ok()?.checked_mul(unit)?);
    (!duration.is_zero() && duration <= MAX_DURATION).then_some(duration)
}
