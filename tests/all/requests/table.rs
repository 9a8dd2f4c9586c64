//! What is refused, for which fields.

use countersign::proto::wkt;
use serde_json::{Value, json};

use super::{Case, case};
use crate::wire::Content;

/// A case, the reason of its refusal, and the fields that are told.
pub type Refused = (Case, &'static str, Vec<&'static str>);

/// Faults that are found only once everything that stands for itself is right.
pub const LATER: &[(&str, &str)] = &[
    ("UpdateSessionState", "state_delta"),
    ("CreateSession", "state"),
    ("ImportSession", "state"),
    ("ImportSession", "events"),
    ("RunAsync", "state_delta"),
    ("RunAsync", "new_message"),
];

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    Name,
    Id,
    Request,
}

/// Method, field, rule, whether it is required.
const IDS: &[(&str, &str, Rule, bool)] = &[
    ("RunAsync", "app_name", Rule::Name, true),
    ("RunAsync", "user_id", Rule::Id, true),
    ("RunAsync", "session_id", Rule::Id, false),
    ("RunAsync", "invocation_id", Rule::Id, false),
    ("RunAsync", "request_id", Rule::Request, false),
    ("SubmitFunctionResponse", "app_name", Rule::Name, false),
    ("SubmitFunctionResponse", "user_id", Rule::Id, false),
    ("SubmitFunctionResponse", "session_id", Rule::Id, false),
    ("SubmitFunctionResponse", "invocation_id", Rule::Id, false),
    ("SubmitFunctionResponse", "request_id", Rule::Request, false),
    ("GetInvocation", "app_name", Rule::Name, false),
    ("GetInvocation", "user_id", Rule::Id, false),
    ("GetInvocation", "session_id", Rule::Id, false),
    ("GetInvocation", "invocation_id", Rule::Id, true),
    ("ListInvocations", "app_name", Rule::Name, false),
    ("ListInvocations", "user_id", Rule::Id, false),
    ("ListInvocations", "session_id", Rule::Id, false),
    ("WatchInvocations", "app_name", Rule::Name, false),
    ("WatchInvocations", "user_id", Rule::Id, false),
    ("WatchInvocations", "session_id", Rule::Id, false),
    ("CancelInvocation", "app_name", Rule::Name, false),
    ("CancelInvocation", "user_id", Rule::Id, false),
    ("CancelInvocation", "session_id", Rule::Id, false),
    ("CancelInvocation", "invocation_id", Rule::Id, true),
    ("CancelInvocation", "request_id", Rule::Request, false),
    ("GetAgent", "name", Rule::Name, true),
    ("CreateSession", "app_name", Rule::Name, true),
    ("CreateSession", "user_id", Rule::Id, true),
    ("CreateSession", "session_id", Rule::Id, false),
    ("CreateSession", "request_id", Rule::Request, false),
    ("ImportSession", "app_name", Rule::Name, true),
    ("ImportSession", "user_id", Rule::Id, true),
    ("ImportSession", "session_id", Rule::Id, false),
    ("ImportSession", "request_id", Rule::Request, false),
    ("GetSession", "app_name", Rule::Name, true),
    ("GetSession", "user_id", Rule::Id, true),
    ("GetSession", "session_id", Rule::Id, true),
    ("ListSessions", "app_name", Rule::Name, false),
    ("ListSessions", "user_id", Rule::Id, false),
    ("DeleteSession", "app_name", Rule::Name, true),
    ("DeleteSession", "user_id", Rule::Id, true),
    ("DeleteSession", "session_id", Rule::Id, true),
    ("DeleteSession", "request_id", Rule::Request, false),
    ("UpdateSessionState", "app_name", Rule::Name, true),
    ("UpdateSessionState", "user_id", Rule::Id, true),
    ("UpdateSessionState", "session_id", Rule::Id, true),
    ("UpdateSessionState", "request_id", Rule::Request, false),
    ("ListEvents", "app_name", Rule::Name, true),
    ("ListEvents", "user_id", Rule::Id, true),
    ("ListEvents", "session_id", Rule::Id, true),
    ("WatchSession", "app_name", Rule::Name, true),
    ("WatchSession", "user_id", Rule::Id, true),
    ("WatchSession", "session_id", Rule::Id, true),
    ("WatchSession", "invocation_id", Rule::Id, false),
    ("ListApprovals", "app_name", Rule::Name, false),
    ("ListApprovals", "user_id", Rule::Id, false),
    ("ListApprovals", "assignee", Rule::Id, false),
    ("GetApproval", "call_id", Rule::Id, true),
    ("WatchApprovals", "app_name", Rule::Name, false),
    ("WatchApprovals", "user_id", Rule::Id, false),
    ("WatchApprovals", "assignee", Rule::Id, false),
    ("DecideApproval", "call_id", Rule::Id, true),
    ("DecideApproval", "request_id", Rule::Request, false),
    ("AssignApproval", "call_id", Rule::Id, true),
    ("AssignApproval", "assignee", Rule::Id, false),
    ("AssignApproval", "request_id", Rule::Request, false),
    ("ExtendApproval", "call_id", Rule::Id, true),
    ("ExtendApproval", "request_id", Rule::Request, false),
    ("SummarizeApprovals", "app_name", Rule::Name, false),
    ("ListStandingApprovals", "app_name", Rule::Name, false),
    ("ListStandingApprovals", "user_id", Rule::Id, false),
    ("ListStandingApprovals", "session_id", Rule::Id, false),
    ("RevokeStandingApproval", "id", Rule::Id, true),
    ("RevokeStandingApproval", "request_id", Rule::Request, false),
];

fn wrong_ids(rule: Rule, required: bool) -> Vec<Value> {
    let mut wrong = vec![json!("a\0b"), json!("a\nb"), json!("a\u{7f}b"), json!("a\u{85}b")];
    wrong.push("x".repeat(129).into());
    // 65 characters, but 130 bytes.
    wrong.push("\u{e9}".repeat(65).into());
    if required {
        wrong.extend([Value::Null, json!("")]);
    }
    match rule {
        Rule::Id => {}
        Rule::Name => wrong.extend(
            ["user", "1st", "_x", "-x", "a b", "a/b", "a.b", "\u{e9}t\u{e9}", " a", "a "]
                .map(Value::from),
        ),
        Rule::Request => wrong.extend([json!("x".repeat(65)), json!("\u{e9}"), json!("a\tb")]),
    }
    wrong
}

/// All that is refused.
pub fn refused() -> Vec<Refused> {
    let mut cases = Vec::new();
    for &(method, field, rule, required) in IDS {
        for wrong in wrong_ids(rule, required) {
            cases.push((case(method, json!({ field: wrong })), "FIELD_INVALID", vec![field]));
        }
        if rule != Rule::Request {
            let invalid = case(method, json!({})).with(field, Content::Bytes(b"a\xc2\x80"));
            cases.push((invalid, "FIELD_INVALID", vec![field]));
        }
    }
    cases.extend(pages());
    cases.extend(messages());
    cases.extend(configs());
    cases.extend(states());
    cases.extend(super::histories::refused());
    cases.extend(super::submissions::refused());
    cases.extend(super::approvals::refused());
    cases.extend(others());
    cases
}

pub fn invalid(method: &'static str, patch: Value, fields: &[&'static str]) -> Refused {
    (case(method, patch), "FIELD_INVALID", fields.to_vec())
}

pub fn not(method: &'static str, patch: Value, reason: &'static str) -> Refused {
    (case(method, patch), reason, vec![])
}

/// Sizes, tokens and cursors.
fn pages() -> Vec<Refused> {
    let mut cases = Vec::new();
    for method in [
        "ListInvocations",
        "ListAgents",
        "ListSessions",
        "ListEvents",
        "ListApprovals",
        "ListStandingApprovals",
    ] {
        for size in [-1, i32::MIN] {
            cases.push(invalid(method, json!({"page_size": size}), &["page_size"]));
        }
        // "e30" is `{}`, the last is a token for another filter.
        let long = "A".repeat(5000);
        for token in ["x", "!", "\0", "e30", "bnVsbA", &long, "eyJmIjoieCIsImF0IjoxfQ"] {
            cases.push(not(method, json!({"page_token": token}), "CURSOR_INVALID"));
        }
    }
    for token in ["x", "!", "e30", "eyJmIjoieCIsImF0IjoxfQ"] {
        cases.push(not("WatchInvocations", json!({"cursor": token}), "CURSOR_INVALID"));
        cases.push(not("WatchApprovals", json!({"cursor": token}), "CURSOR_INVALID"));
    }
    for after in [-1, i64::MIN] {
        for method in ["RunAsync", "WatchSession"] {
            let after = json!({"after_sequence": after.to_string()});
            cases.push(invalid(method, after, &["after_sequence"]));
        }
    }
    // Beyond the last event: with a message too, which must not be written then.
    for after in ["99", "9223372036854775807"] {
        let beyond = json!({"after_sequence": after});
        cases.push(not("WatchSession", beyond.clone(), "CURSOR_INVALID"));
        cases.push(not("RunAsync", beyond, "CURSOR_INVALID"));
        let fresh = json!({"after_sequence": after, "session_id": null});
        cases.push(not("RunAsync", fresh, "CURSOR_INVALID"));
        let again = json!({"after_sequence": after, "new_message": null,
            "invocation_id": "$invocation"});
        cases.push(not("RunAsync", again, "CURSOR_INVALID"));
        let answers = json!({"after_sequence": after, "new_message": {"parts": [
            {"function_response": {"id": "$call", "name": "ask_for_approval", "response": {}}}]}});
        cases.push(not("RunAsync", answers, "CURSOR_INVALID"));
    }
    // It stands on every event, so it is bounded.
    let metadata = json!({"run_config": {"custom_metadata": {"text": "x".repeat(8 * 1024)}}});
    cases.push(invalid("RunAsync", metadata, &["run_config.custom_metadata"]));
    for recent in [-1, i32::MIN] {
        let recent = json!({"num_recent_events": recent});
        cases.push(invalid("ListEvents", recent, &["num_recent_events"]));
    }
    cases.push(invalid(
        "ListEvents",
        json!({"after_time": "1969-12-31T23:59:59Z"}),
        &["after_time"],
    ));
    // Seconds beyond any time, and nanoseconds below none.
    for (number, value) in [(1, u64::MAX >> 1), (1, 1 << 63), (2, u64::MAX), (2, 1_000_000_000)] {
        let mut time = crate::wire::varint(number << 3);
        time.extend(crate::wire::varint(value));
        let wrong = case("ListEvents", json!({})).with("after_time", Content::Bytes(&time));
        cases.push((wrong, "FIELD_INVALID", vec!["after_time"]));
    }
    for method in ["ListInvocations", "WatchInvocations"] {
        let unspecified = json!({"states": ["RUNNING", "STATE_UNSPECIFIED"]});
        cases.push(invalid(method, unspecified, &["states[1]"]));
        for unknown in [6, 99, u64::MAX] {
            let unknown = case(method, json!({})).with("states", Content::Varint(unknown));
            cases.push((unknown, "FIELD_INVALID", vec!["states[0]"]));
        }
    }
    cases
}

/// `new_message` and what is in it.
fn messages() -> Vec<Refused> {
    let parts = |parts: Value| json!({"new_message": {"parts": parts}});
    let response = |id: &str, name: &str| json!({"function_response": {"id": id, "name": name, "response": {}}});
    let mut cases = vec![
        invalid("RunAsync", json!({"new_message": null}), &["new_message"]),
        invalid("RunAsync", json!({"new_message": {}}), &["new_message.parts"]),
        invalid("RunAsync", json!({"new_message": {"role": "user"}}), &["new_message.parts"]),
        invalid("RunAsync", parts(json!([{"text": ""}])), &["new_message.parts"]),
        invalid("RunAsync", parts(json!([{"text": ""}, {"text": ""}])), &["new_message.parts"]),
        invalid("RunAsync", parts(json!([{"text": "a"}, {}])), &["new_message.parts[1]"]),
        invalid("RunAsync", parts(json!([{"thought": true}])), &["new_message.parts[0]"]),
        invalid(
            "RunAsync",
            parts(json!([{"thought_signature": "AQ=="}])),
            &["new_message.parts[0]"],
        ),
        invalid(
            "RunAsync",
            parts(json!([{"function_call": {"id": "adk-1", "name": "pay", "args": {"a": 1}}}])),
            &["new_message.parts[0].function_call"],
        ),
        invalid(
            "RunAsync",
            parts(json!([{"inline_data": {"data": "AQ==", "display_name": "x"}}])),
            &["new_message.parts[0].inline_data.mime_type"],
        ),
        invalid(
            "RunAsync",
            parts(json!([{"file_data": {"mime_type": "text/plain", "display_name": "x"}}])),
            &["new_message.parts[0].file_data.file_uri"],
        ),
        invalid(
            "RunAsync",
            parts(json!([response("adk-1", "adk_request_credential")])),
            &["new_message.parts[0].function_response.name"],
        ),
        not("RunAsync", parts(json!([response("$call", "pay")])), "CALL_NAME_MISMATCH"),
        not("RunAsync", parts(json!([response("adk-1", "pay")])), "CALL_NOT_FOUND"),
        not(
            "RunAsync",
            parts(json!([response("$call", "ask_for_approval"), {"text": "and"}])),
            "MIXED_MESSAGE",
        ),
        not(
            "RunAsync",
            parts(json!([
                response("$call", "ask_for_approval"),
                response("$other_call", "ask_for_approval")
            ])),
            "CALL_NOT_FOUND",
        ),
        (
            case(
                "RunAsync",
                json!({"session_id": null, "new_message": {"parts": [
                    response("$call", "ask_for_approval"),
                    response("$other_call", "ask_for_approval")]}}),
            ),
            "MIXED_MESSAGE",
            vec![],
        ),
        not(
            "RunAsync",
            json!({"invocation_id": "$other_invocation",
                "new_message": {"parts": [response("$call", "ask_for_approval")]}}),
            "INVOCATION_MISMATCH",
        ),
    ];
    for (id, name, wrong) in [
        ("", "pay", vec!["new_message.parts[0].function_response.id"]),
        ("a\0", "pay", vec!["new_message.parts[0].function_response.id"]),
        ("adk-1", "", vec!["new_message.parts[0].function_response.name"]),
    ] {
        cases.push((case("RunAsync", parts(json!([response(id, name)]))), "FIELD_INVALID", wrong));
    }
    // One and the same call twice, otherwise.
    let twice = json!([
        {"function_response": {"id": "$call", "name": "ask_for_approval", "response": {"a": 1}}},
        {"function_response": {"id": "$call", "name": "ask_for_approval", "response": {"a": 2}}},
    ]);
    cases.push(invalid("RunAsync", parts(twice), &["new_message.parts[1].function_response"]));
    cases
}

/// `run_config`, and what goes with a message only.
fn configs() -> Vec<Refused> {
    let mut cases = vec![
        invalid(
            "RunAsync",
            json!({"run_config": {"custom_metadata": {"__adk_internal_x": 1}}}),
            &["run_config.custom_metadata"],
        ),
        // The server names invocations; state goes with a message.
        invalid("RunAsync", json!({"invocation_id": "$invocation"}), &["invocation_id"]),
        invalid(
            "RunAsync",
            json!({"invocation_id": "$invocation", "new_message": null, "state_delta": {"a": 1}}),
            &["state_delta"],
        ),
    ];
    for path in ["run_config.streaming_mode", "run_config.on_pause"] {
        for unknown in [3, 99, u64::MAX] {
            let unknown = case("RunAsync", json!({})).with(path, Content::Varint(unknown));
            cases.push((unknown, "FIELD_INVALID", vec![path]));
        }
    }
    cases
}

/// States and changes of states.
fn states() -> Vec<Refused> {
    let mut cases = Vec::new();
    let long = "x".repeat(257);
    for (method, field) in [
        ("RunAsync", "state_delta"),
        ("CreateSession", "state"),
        ("ImportSession", "state"),
        ("UpdateSessionState", "state_delta"),
    ] {
        for key in ["", &long] {
            cases.push(invalid(method, json!({ field: {key: 1, "fine": 2} }), &[field]));
        }
        if method != "RunAsync" {
            cases.push(invalid(method, json!({ field: {"temp:a": 1} }), &[field]));
        }
        cases.push(not(method, json!({ field: {"app:a": 1} }), "NOT_PERMITTED"));
        cases.push(not(method, json!({ field: {"app:a": null, "b": 1} }), "NOT_PERMITTED"));
    }
    cases.push(invalid("UpdateSessionState", json!({"state_delta": {}}), &["state_delta"]));
    cases.push(invalid("UpdateSessionState", json!({"state_delta": null}), &["state_delta"]));
    cases
}

/// What is right in itself, and is not there.
fn others() -> Vec<Refused> {
    let mut cases = vec![
        not("GetAgent", json!({"name": "nobody"}), "AGENT_NOT_FOUND"),
        not("CreateSession", json!({"app_name": "nobody"}), "AGENT_NOT_FOUND"),
        not("CreateSession", json!({"session_id": "s1"}), "SESSION_EXISTS"),
        not("CreateSession", json!({"session_id": " s1 "}), "SESSION_EXISTS"),
        not("ImportSession", json!({"app_name": "nobody"}), "AGENT_NOT_FOUND"),
        not("ImportSession", json!({"session_id": "s1"}), "SESSION_EXISTS"),
        not("ImportSession", json!({"session_id": " s1 "}), "SESSION_EXISTS"),
        not("RunAsync", json!({"session_id": "s9"}), "SESSION_NOT_FOUND"),
        not("RunAsync", json!({"app_name": "nobody", "session_id": null}), "AGENT_NOT_FOUND"),
        not(
            "RunAsync",
            json!({"new_message": null, "invocation_id": "e-1"}),
            "INVOCATION_NOT_FOUND",
        ),
        not(
            "RunAsync",
            json!({"new_message": null, "invocation_id": "$other_invocation"}),
            "INVOCATION_NOT_FOUND",
        ),
        not("WatchSession", json!({"invocation_id": "e-1"}), "INVOCATION_NOT_FOUND"),
        not("WatchSession", json!({"invocation_id": "$other_invocation"}), "INVOCATION_NOT_FOUND"),
    ];
    for method in ["GetSession", "UpdateSessionState", "ListEvents", "WatchSession"] {
        for patch in
            [json!({"session_id": "s9"}), json!({"user_id": "bob"}), json!({"app_name": "x"})]
        {
            cases.push(not(method, patch, "SESSION_NOT_FOUND"));
        }
    }
    for method in ["GetInvocation", "CancelInvocation"] {
        for patch in [
            json!({"invocation_id": "e-1"}),
            json!({"app_name": "x"}),
            json!({"user_id": "bob"}),
            json!({"session_id": "s2"}),
        ] {
            cases.push(not(method, patch, "INVOCATION_NOT_FOUND"));
        }
    }
    cases
}

/// Objects that JSON is not, each with the path of its fault behind the path of the field.
pub fn wrong_structs() -> Vec<(wkt::Struct, String)> {
    let one = |key: &str, value: wkt::Value| wkt::Struct::from_iter([(key.to_owned(), value)]);
    let list = |values: Vec<wkt::Value>| wkt::ListValue::from_iter(values).into();
    let reserved = "$serde_json::private::Number";
    vec![
        (one("x", f64::NAN.into()), ".x".into()),
        (one("x", f64::INFINITY.into()), ".x".into()),
        (one("x", list(vec![1.0.into(), f64::NEG_INFINITY.into()])), ".x[1]".into()),
        (one("a b", one("", f64::NAN.into()).into()), "[\"a b\"][\"\"]".into()),
        (one("x", wkt::Value::default()), ".x".into()),
        (one(reserved, "1".into()), String::new()),
        (one("x", one(reserved, "1".into()).into()), ".x".into()),
    ]
}
