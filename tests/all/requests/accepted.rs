//! What looks odd and is right: it is taken as the comments of the contract say.

use serde_json::json;

use super::{Case, World, case};
use crate::wire::Content;

/// All that is taken.
pub fn cases() -> Vec<Case> {
    let part = |part: serde_json::Value| json!({"new_message": {"parts": [part]}});
    let mut cases = super::approvals::accepted();
    cases.extend([
        case("RunAsync", json!({"new_message": {"role": "model", "parts": [{"text": "hi"}]}})),
        case("RunAsync", json!({"new_message": {"role": "\0", "parts": [{"text": "hi"}]}})),
        case("RunAsync", part(json!({"text": "a\0b"}))),
        case("RunAsync", part(json!({"text": "a", "thought": true, "thought_signature": "AQ=="}))),
        case(
            "RunAsync",
            part(
                json!({"inline_data": {"mime_type": "x/y", "data": "AQ==", "display_name": "\0"}}),
            ),
        ),
        case(
            "RunAsync",
            part(json!({"file_data": {"file_uri": "x:y", "mime_type": "", "display_name": ""}})),
        ),
        case("RunAsync", part(json!({"executable_code": {"language": "X", "code": "1"}}))),
        case("RunAsync", part(json!({"code_execution_result": {"outcome": "X", "output": "1"}}))),
        case(
            "RunAsync",
            part(json!({"function_response": {"id": "$other_call", "name": "ask_for_approval",
                "response": {"status": "approved"}, "will_continue": false}})),
        )
        .but(json!({"session_id": null})),
        case("RunAsync", json!({"session_id": "  "})),
        case("RunAsync", json!({"session_id": " s1\n"})),
        case("RunAsync", json!({"state_delta": {"temp:a": 1, "user:b": 2, "c\0d": null}})),
        case("RunAsync", json!({"run_config": {"streaming_mode": "SSE", "on_pause": "DETACH"}})),
        case("RunAsync", json!({"run_config": {"streaming_mode": "STREAMING_MODE_UNSPECIFIED"}})),
        case("RunAsync", json!({"run_config": {"custom_metadata": {"": {"__adk_internal_": 1}}}})),
        case("RunAsync", json!({"after_sequence": "1", "request_id": " "})),
        case("RunAsync", json!({"after_sequence": "1", "request_id": "x".repeat(64)})),
        case("RunAsync", json!({"new_message": null, "invocation_id": "$invocation"})),
        case(
            "RunAsync",
            json!({"new_message": null, "invocation_id": "$invocation", "after_sequence": "3"}),
        ),
        case(
            "GetInvocation",
            json!({"app_name": super::APP, "user_id": "ann", "session_id": "s1"}),
        ),
        case("ListInvocations", json!({"app_name": "nobody", "user_id": "x", "session_id": "y"})),
        case("ListInvocations", json!({"page_size": i32::MAX, "page_token": ""})),
        case("ListInvocations", json!({"states": ["RUNNING", "RUNNING", "PAUSED", "FAILED"]})),
        case("WatchInvocations", json!({"states": ["CANCELLED", "COMPLETED"], "cursor": ""})),
        case("ListAgents", json!({"page_size": 1})),
        case("ListSessions", json!({"app_name": "nobody", "user_id": "x", "page_size": i32::MAX})),
        case("ListEvents", json!({"num_recent_events": 0})),
        case("ListEvents", json!({"num_recent_events": i32::MAX, "page_size": i32::MAX})),
        case("ListEvents", json!({"after_time": "1970-01-01T00:00:00Z"})),
        case("ListEvents", json!({"after_time": "9999-12-31T23:59:59.999999999Z"})),
        case("WatchSession", json!({"after_sequence": "3", "invocation_id": "$invocation"})),
        case("CreateSession", json!({"session_id": "\u{e9}".repeat(64), "state": {"a": null}})),
        case("CreateSession", json!({"session_id": " \t", "user_id": "../\u{202e}<b>"})),
        case("ImportSession", json!({"session_id": "\u{e8}".repeat(64), "state": {"a": null}})),
        case("ImportSession", json!({"session_id": " ", "events": [{}, {"x": 1}, {"id": null}]})),
        case("ImportSession", json!({"events": null, "events_json": "[{}]"})),
        case(
            "ImportSession",
            json!({"events": null, "events_json":
                "{\"events\": [{\"error_code\": \"X\"}], \"state\": {\"app:a\": 1}}"}),
        ),
        case("DeleteSession", json!({"session_id": "s9"})),
        case("DeleteSession", json!({"app_name": "nobody", "user_id": "x", "request_id": "r"})),
        case(
            "UpdateSessionState",
            json!({"state_delta": {"x".repeat(256): 1, "user:": 1, "nothing": null}}),
        ),
        case(
            "SubmitFunctionResponse",
            json!({"app_name": super::APP, "user_id": "ann", "session_id": " s1 ",
                "invocation_id": "$invocation", "comment": "x".repeat(4096), "request_id": "~",
                "skip_summarization": true, "function_response": {"id": "$call",
                "name": "ask_for_approval", "response": {"": "\0", "n": 1e308},
                "will_continue": true}}),
        ),
        case(
            "SubmitFunctionResponse",
            json!({"function_response": {"id": "$call", "name": "ask_for_approval",
                "will_continue": false}, "response_json": format!(" {{\"a\":{}}}\n", "9".repeat(400))}),
        ),
    ]);
    for most in [0, -1, i32::MIN, i32::MAX] {
        cases.push(case("RunAsync", json!({"run_config": {"max_llm_calls": most}})));
    }
    // Of an enum, the last one wins; of a message, its fields.
    cases.push(case("RunAsync", json!({})).with("run_config.on_pause", Content::Varint(0)));
    cases
}

#[tokio::test]
async fn odd_requests_are_taken() {
    let world = World::new().await;
    for case in cases() {
        world.ask(&case).await.unwrap_or_else(|e| panic!("{}: {e:?}", case.shown()));
        super::at_rest(&world.server).await;
    }
    world.works().await;
}
