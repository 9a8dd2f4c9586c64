//! Requests that are too large, or whose bytes are no message.

use prost::Message;
use serde_json::json;
use tonic::Code;
use tonic_types::StatusExt;

use super::{World, case};
use crate::support::reason;
use crate::wire::{Content, delimited, varint};

/// A text field of each request.
const TEXTS: &[(&str, &str)] = &[
    ("RunAsync", "request_id"),
    ("SubmitFunctionResponse", "comment"),
    ("GetInvocation", "app_name"),
    ("ListInvocations", "page_token"),
    ("WatchInvocations", "cursor"),
    ("CancelInvocation", "request_id"),
    ("ListAgents", "page_token"),
    ("GetAgent", "name"),
    ("CreateSession", "request_id"),
    ("ImportSession", "events_json"),
    ("GetSession", "app_name"),
    ("ListSessions", "page_token"),
    ("DeleteSession", "request_id"),
    ("UpdateSessionState", "request_id"),
    ("ListEvents", "page_token"),
    ("WatchSession", "invocation_id"),
    ("ListApprovals", "page_token"),
    ("GetApproval", "call_id"),
    ("WatchApprovals", "cursor"),
    ("DecideApproval", "reason"),
    ("AssignApproval", "request_id"),
    ("ExtendApproval", "comment"),
    ("SummarizeApprovals", "app_name"),
    ("ListStandingApprovals", "page_token"),
    ("RevokeStandingApproval", "id"),
];

#[tokio::test]
async fn a_request_has_four_mebibytes_at_most() {
    let world = World::new().await;
    assert!(world.contract.methods().eq({
        let mut methods: Vec<_> = TEXTS.iter().map(|(method, _)| *method).collect();
        methods.sort_unstable();
        methods
    }));
    let large = vec![b'x'; 4 << 20];
    let huge = vec![b'x'; 8 << 20];
    for &(method, field) in TEXTS {
        let status =
            world.refusal(&case(method, json!({})).with(field, Content::Bytes(&large))).await;
        assert_eq!(reason(&status), (Code::ResourceExhausted, "LIMIT_EXCEEDED".into()), "{method}");
        let info = status.get_details_error_info().unwrap().metadata;
        assert_eq!((&*info["limit"], &*info["value"]), ("request_bytes", "4194304"));
        // Beyond 8 MiB it is the codec that refuses.
        let status =
            world.refusal(&case(method, json!({})).with(field, Content::Bytes(&huge))).await;
        assert_eq!(status.code(), Code::OutOfRange, "{method}: {status:?}");
        assert!(status.details().is_empty());
    }
    world.works().await;
}

#[tokio::test]
async fn an_event_has_one_mebibyte_at_most() {
    let world = World::new().await;
    let text = "x".repeat(1 << 20);
    let named = json!({"id": "$call", "name": "ask_for_approval", "response": {"text": text}});
    for case in [
        case("RunAsync", json!({"new_message": {"parts": [{"text": text}]}})),
        case("RunAsync", json!({"session_id": null, "new_message": {"parts": [{"text": text}]}})),
        case("RunAsync", json!({"state_delta": {"text": text}})),
        case("RunAsync", json!({"new_message": {"parts": [{"function_response": named}]}})),
        case("SubmitFunctionResponse", json!({ "function_response": named })),
        case("CreateSession", json!({"state": {"text": text}})),
        case("UpdateSessionState", json!({"state_delta": {"text": text}})),
        case("UpdateSessionState", json!({"state_delta": {"user:text": text}})),
        case("CreateSession", json!({"state": {"user:text": text}})),
        case("ImportSession", json!({"state": {"text": text}})),
        case("ImportSession", json!({"events": [{}, {"content": {"parts": [{"text": text}]}}]})),
        case("ImportSession", json!({"events": [{"actions": {"stateDelta": {"text": text}}}]})),
    ] {
        let status = world.refusal(&case).await;
        assert_eq!(reason(&status), (Code::ResourceExhausted, "LIMIT_EXCEEDED".into()));
        let info = status.get_details_error_info().unwrap().metadata;
        assert_eq!(
            (&*info["limit"], &*info["value"]),
            ("event_bytes", "1048576"),
            "{}",
            case.shown()
        );
    }
    // What stands on every event of a run has a bound of its own.
    let metadata = json!({"run_config": {"custom_metadata": {"text": text}}});
    let status = world.refusal(&case("RunAsync", metadata)).await;
    assert_eq!(reason(&status), (Code::InvalidArgument, "FIELD_INVALID".into()));
    world.works().await;
}

#[tokio::test]
async fn a_history_has_ten_thousand_events_at_most() {
    let world = World::new().await;
    let events = |n: usize| vec![json!({}); n];
    let text = |n: usize| format!("[{}]", vec!["{}"; n].join(","));
    for case in [
        case("ImportSession", json!({"events": events(10_001)})),
        case("ImportSession", json!({"events": null, "events_json": text(10_001)})),
    ] {
        let status = world.refusal(&case).await;
        assert_eq!(reason(&status), (Code::ResourceExhausted, "LIMIT_EXCEEDED".into()));
        let info = status.get_details_error_info().unwrap().metadata;
        let told = (&*info["limit"], &*info["value"], &*info["actual"]);
        assert_eq!(told, ("import_events", "10000", "10001"));
    }
    let most = json!({"events": null, "events_json": text(10_000)});
    world.ask(&case("ImportSession", most)).await.unwrap();
    world.works().await;
}

#[tokio::test]
async fn many_parts_are_told_or_taken() {
    let world = World::new().await;
    let empty = delimited(2, &[]);
    let content: Vec<u8> = empty.iter().copied().cycle().take(2 * 500_000).collect();
    let status = world
        .refusal(&case("RunAsync", json!({})).with("new_message", Content::Bytes(&content)))
        .await;
    assert_eq!(reason(&status).1, "FIELD_INVALID");
    assert_eq!(crate::support::fields(&status).len(), 20);
    let parts = json!({"new_message": {"parts": vec![json!({"text": "a"}); 2_000]}});
    world.ask(&case("RunAsync", parts)).await.unwrap();
    // Filters that repeat themselves are short ones.
    for method in ["ListInvocations", "WatchInvocations"] {
        let states: Vec<u8> = std::iter::repeat_n([1, 2], 500_000).flatten().collect();
        let case = case(method, json!({})).with("states", Content::Bytes(&states));
        assert!(!world.ask(&case).await.unwrap().is_empty());
    }
    world.works().await;
}

#[tokio::test]
async fn bytes_that_are_no_message_fail_in_the_codec() {
    let world = World::new().await;
    let before = world.print().await;
    let (group, text): (u64, u64) = (15 << 3 | 3, 1 << 3 | 2);
    let mut bottomless = Vec::new();
    (0..100_000).for_each(|_| bottomless.extend(varint(group)));
    let cut = [varint(text), varint(100), b"short".to_vec()].concat();
    for method in world.contract.methods() {
        let invalid = delimited(1, b"\xff\xfe");
        let wrong_type = [varint(1 << 3 | 5), vec![0; 4]].concat();
        for bytes in
            [vec![0xff; 20], vec![0], vec![7], cut.clone(), bottomless.clone(), wrong_type, invalid]
        {
            // The first field of ListAgents is a number: nothing there is a text.
            let status = match world.contract.ask(&world.channel, method, bytes).await {
                Err(status) => status,
                Ok(_) => panic!("{method} took it"),
            };
            assert_eq!(status.code(), Code::Internal, "{method}: {status:?}");
            assert!(status.details().is_empty());
        }
    }
    // Unknown fields are nothing.
    let mut bytes = countersign::proto::v1::ListAgentsRequest::default().encode_to_vec();
    bytes.extend(delimited(1000, b"from a later version"));
    world.contract.ask(&world.channel, "ListAgents", bytes).await.unwrap();
    assert_eq!(world.print().await, before);
    world.works().await;
}
