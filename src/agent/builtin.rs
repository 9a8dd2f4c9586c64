//! Tools of the server itself: calls by which a model asks a person for something, as ADK has them.
//! They run nothing; what is answered is the outcome.

use serde_json::{Value, json};

use super::approvals::ToolApproval;
use super::{Behaviour, Body, Declaration, Effect};
use crate::session::approval::CREDENTIAL;

/// Asks a person for something, in words (ADK).
pub const REQUEST_INPUT: &str = "adk_request_input";

/// Asks a person to choose (ADK).
pub const USER_CHOICE: &str = "get_user_choice";

/// All of them.
pub const NAMES: &[&str] = &[REQUEST_INPUT, USER_CHOICE];

/// The tool of this name.
pub fn named(name: &str) -> Option<Declaration> {
    let (description, parameters) = match name {
        REQUEST_INPUT => (
            "Asks the user for something that is needed to go on.",
            json!({
                "type": "object",
                "properties": {
                    "message": {"type": "string", "description": "What the user is asked."},
                    "response_schema": {
                        "type": ["object", "null"],
                        "description": "JSON schema that the answer must match.",
                    },
                },
                "required": ["message"],
            }),
        ),
        USER_CHOICE => (
            "Asks the user to choose one of several options.",
            json!({
                "type": "object",
                "properties": {
                    "options": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "What the user can choose from.",
                    },
                },
                "required": ["options"],
            }),
        ),
        _ => return None,
    };
    let behaviour = Behaviour {
        long_running: true,
        input: true,
        inbox: true,
        effect: Effect::Read,
        ..Behaviour::default()
    };
    Some(Declaration {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters,
        behaviour,
        approval: ToolApproval::default(),
        body: Body::Nothing,
    })
}

/// Whether a tool is one of them, and not one of somebody else with the same name.
pub fn is(tool: &Declaration) -> bool {
    tool.behaviour.input && tool.body == Body::Nothing && NAMES.contains(&tool.name.as_str())
}

/// Why a name that begins as the server's own do cannot be used.
pub(super) fn refused(name: &str) -> String {
    if name == CREDENTIAL {
        return format!("`{CREDENTIAL}` is reserved: this server does not ask for credentials yet");
    }
    let known = NAMES.iter().copied().filter(|known| known.starts_with(super::RESERVED_PREFIX));
    let hint = super::file::near::hint(name, known);
    format!("names that begin with `{}` are the server's own{hint}", super::RESERVED_PREFIX)
}

/// The schema that an answer must match, where the call itself says so; the text tells why the
/// call cannot be asked.
pub fn answer_schema(
    tool: &Declaration,
    args: &crate::session::content::Object,
) -> Result<Option<Value>, String> {
    match tool.name.as_str() {
        _ if !is(tool) => Ok(None),
        REQUEST_INPUT => {
            Ok(args.get("response_schema").filter(|schema| !schema.is_null()).cloned())
        }
        _ => {
            let options = args.get("options").and_then(Value::as_array);
            let mut options = options.cloned().unwrap_or_default();
            let mut seen = std::collections::BTreeSet::new();
            options.retain(|option| seen.insert(option.to_string()));
            if options.is_empty() {
                return Err("`options` must list at least one option".to_owned());
            }
            Ok(Some(json!({
                "type": "object",
                "properties": {"result": {"enum": options}},
                "required": ["result"],
                "additionalProperties": false,
            })))
        }
    }
}
