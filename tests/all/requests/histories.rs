//! Histories that are refused; what ADK's events may say is tested where they are read.

use serde_json::json;

use super::table::{Refused, invalid};

/// All that is refused.
pub fn refused() -> Vec<Refused> {
    let part = |part: serde_json::Value| json!({"events": [{}, {"content": {"parts": [part]}}]});
    let text = |text: &str| json!({"events": null, "events_json": text});
    let mut cases = vec![
        invalid("ImportSession", json!({"events": null}), &["events"]),
        invalid("ImportSession", json!({"events": []}), &["events"]),
        invalid("ImportSession", json!({"events": [{"partial": true}]}), &["events"]),
        invalid("ImportSession", json!({"events_json": "[{}]"}), &["events_json"]),
        invalid(
            "ImportSession",
            json!({"events": [{"timestamp": -1}, {"author": 5}]}),
            &["events[0].timestamp", "events[1].author"],
        ),
        invalid(
            "ImportSession",
            part(json!({"functionCall": {"id": "x".repeat(129), "name": "pay"}})),
            &["events[1].content.parts[0].functionCall.id"],
        ),
        invalid(
            "ImportSession",
            part(json!({"function_response": {"id": "a", "name": "b", "parts": [{"text": "x"}]}})),
            &["events[1].content.parts[0].function_response.parts"],
        ),
        invalid(
            "ImportSession",
            json!({"events": null, "user_id": "", "events_json": "[{\"author\": 5}]"}),
            &["user_id", "events_json[0].author"],
        ),
        invalid(
            "ImportSession",
            text(r#"{"events": [{}], "state": {"": 1}}"#),
            &["events_json.state"],
        ),
    ];
    let repeated = r#"[{"a": 1, "a": 1}]"#;
    for wrong in ["[{}", "{}", "[]", "3", "null", "[{}] x", repeated, "{\"events\": 1}"] {
        cases.push(invalid("ImportSession", text(wrong), &["events_json"]));
    }
    cases
}
