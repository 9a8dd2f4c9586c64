//! Keys of state: whose a key is, and which ones a caller may set.

use super::content::Object;
use super::refusal::{Reason, Refusal, Violation};
use super::state::is_own_key;

/// Longest key of state, in bytes.
pub const MAX_KEY_BYTES: usize = 256;

/// Refuses keys of state that a caller may not set; `temp` says whether an invocation is there
/// whose state `temp:` keys can be.
pub fn check_keys(delta: &Object, field: &str, temp: bool) -> Result<(), Refusal> {
    let broken = |key: &String| match key {
        key if key.is_empty() => Some("a key must not be empty"),
        key if key.len() > MAX_KEY_BYTES => Some("a key must be at most 256 bytes long"),
        key if !temp && key.starts_with("temp:") => {
            Some("`temp:` state lives inside an invocation only")
        }
        _ => None,
    };
    let violation = |rule: &str| Violation { field: field.to_owned(), rule: rule.to_owned() };
    let violations: Vec<_> = delta.keys().filter_map(broken).map(violation).collect();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    if delta.keys().any(|key| key.starts_with("app:")) {
        let message = format!("{field}: `app:` state needs the right to administer");
        return Err(Refusal::new(Reason::NotPermitted, message).with("field", field));
    }
    Ok(())
}

/// The part of a change of state that is the session's own.
pub fn own_keys(delta: &Object) -> Object {
    delta.iter().filter(|(key, _)| is_own_key(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}
