//! The keywords of JSON schemas. A schema may have unknown ones, which demand nothing: to somebody
//! who writes one, that is a typo.

use serde_json::{Value, json};

use super::yaml::{Kind, Node};
use super::{Faults, near};

/// The keywords of draft 2020-12, and those of older drafts that are still in use.
#[rustfmt::skip]
const KNOWN: &[&str] = &[
    "$anchor", "$comment", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveAnchor",
    "$recursiveRef", "$ref", "$schema", "$vocabulary", "additionalItems", "additionalProperties",
    "allOf", "anyOf", "const", "contains", "contentEncoding", "contentMediaType", "contentSchema",
    "default", "definitions", "dependencies", "dependentRequired", "dependentSchemas",
    "deprecated", "description", "else", "enum", "examples", "exclusiveMaximum",
    "exclusiveMinimum", "format", "if", "items", "maxContains", "maxItems", "maxLength",
    "maxProperties", "maximum", "minContains", "minItems", "minLength", "minProperties",
    "minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems",
    "properties", "propertyNames", "readOnly", "required", "then", "title", "type",
    "unevaluatedItems", "unevaluatedProperties", "uniqueItems", "writeOnly",
];

/// The keywords that hold a schema, or a list of schemas.
#[rustfmt::skip]
const SCHEMAS: &[&str] = &[
    "additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema",
    "else", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
];

/// The keywords that hold schemas by name.
const NAMED: &[&str] =
    &["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];

/// Checks that a schema, and each in it, has known keywords only. `what` it is goes into messages.
pub(super) fn check(node: &Node, what: &str, faults: &mut Faults) {
    for (key, value) in node.entries() {
        let text = key.text.as_str();
        // `x-` is how many tools mark what is theirs.
        if !KNOWN.contains(&text) && !text.starts_with("x-") {
            let hint = near::hint(text, KNOWN.iter().copied());
            faults.add(key.at, format!("`{what}`: JSON schema has no keyword `{text}`{hint}"));
        }
        each(text, value, &mut |node, _| check(node, what, faults));
    }
}

/// Checks that each `default` is what its own schema allows. `root` is the whole schema, which is
/// known to be one; what its references mean is told there.
pub(super) fn check_defaults(node: &Node, root: &Value, faults: &mut Faults) {
    defaults(node, "", root, faults);
}

fn defaults(node: &Node, pointer: &str, root: &Value, faults: &mut Faults) {
    if let Some(default) = node.get("default")
        && let Some(schema) = alone(pointer, root)
        && let Ok(schema) = jsonschema::options().offline().build(&schema)
    {
        for error in schema.iter_errors(&default.to_json()) {
            let at = default.follow(error.instance_path().as_str()).at;
            faults.add(at, format!("`default` is not what its schema demands: {error}"));
        }
    }
    for (key, value) in node.entries() {
        let text = &key.text;
        each(text, value, &mut |node, step| {
            defaults(node, &format!("{pointer}/{}{step}", escaped(text)), root, faults);
        });
    }
}

/// The schema at a pointer, as one of its own; references into the root lead where they led.
fn alone(pointer: &str, root: &Value) -> Option<Value> {
    let mut schema = root.pointer(pointer)?.clone();
    let text = schema.to_string();
    if pointer.is_empty() || !(text.contains("$ref") || text.contains("$dynamicRef")) {
        return Some(schema);
    }
    // References by pointer see the root's definitions only; any other stays unjudged.
    let object = schema.as_object_mut()?;
    for key in ["$defs", "definitions"] {
        if let Some(defs) = root.get(key) {
            object.insert(key.to_owned(), defs.clone());
        }
    }
    Some(json!(object))
}

/// Visits the schemas that a keyword holds, each with the rest of its pointer.
fn each(key: &str, value: &Node, visit: &mut dyn FnMut(&Node, &str)) {
    if NAMED.contains(&key) {
        for (name, node) in value.entries() {
            visit(node, &format!("/{}", escaped(&name.text)));
        }
    } else if SCHEMAS.contains(&key) {
        match &value.kind {
            Kind::List(nodes) => {
                nodes.iter().enumerate().for_each(|(i, node)| visit(node, &format!("/{i}")));
            }
            _ => visit(value, ""),
        }
    }
}

/// A step of a JSON pointer.
fn escaped(step: &str) -> String {
    step.replace('~', "~0").replace('/', "~1")
}
