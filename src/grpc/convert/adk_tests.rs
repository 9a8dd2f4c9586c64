//! There and back: the proto3 JSON of an event, read as ADK's JSON, is the same event.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::event::event_to_pb;
use super::json::number;
use crate::proto::to_json;
use crate::session::adk::{self, Defaults, MAX_TEXT_DEPTH};
use crate::session::content::*;
use crate::session::id::{CallId, EventId, InvocationId};
use crate::session::json::parse;

/// JSON whose numbers doubles hold.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        (-1_000_000_i32..1_000_000)
            .prop_map(|n| Value::Number(number(f64::from(n) / 64.0).unwrap())),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            prop::collection::btree_map("[\\PC\u{1}]{0,6}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Object> {
    prop::collection::btree_map("[a-z:]{1,6}", json(), 0..3)
        .prop_map(|map| map.into_iter().collect::<Map<_, _>>())
}

fn call_id() -> impl Strategy<Value = CallId> {
    "(adk|fc)-\\PC{1,8}".prop_map(|id| CallId::parse(id).unwrap())
}

fn data() -> impl Strategy<Value = Data> {
    let text = || "\\PC{0,8}";
    let name = || "[a-z_]{1,8}";
    let bytes = || prop::collection::vec(any::<u8>(), 0..8);
    prop_oneof![
        "[\\PC\n\u{1}]{0,12}".prop_map(Data::Text),
        (call_id(), name(), object())
            .prop_map(|(id, name, args)| Data::FunctionCall(FunctionCall { id, name, args })),
        (call_id(), name(), prop::option::of(object()), any::<Option<bool>>()).prop_map(
            |(id, name, response, will_continue)| Data::FunctionResponse(FunctionResponse {
                id,
                name,
                response,
                will_continue
            })
        ),
        (name(), bytes(), text()).prop_map(|(mime_type, data, display_name)| Data::InlineData(
            Blob { mime_type, data, display_name }
        )),
        (text(), name(), text()).prop_map(|(mime_type, file_uri, display_name)| Data::FileData(
            FileData { mime_type, file_uri, display_name }
        )),
        (text(), text())
            .prop_map(|(language, code)| Data::ExecutableCode(ExecutableCode { language, code })),
        (text(), text()).prop_map(|(outcome, output)| Data::CodeExecutionResult(
            CodeExecutionResult { outcome, output }
        )),
    ]
}

fn content() -> impl Strategy<Value = Content> {
    let signature = prop::collection::vec(any::<u8>(), 0..5);
    let part = (data(), any::<bool>(), signature).prop_map(|(data, thought, thought_signature)| {
        Part { data: Some(data), thought, thought_signature }
    });
    let role = prop_oneof![Just(Role::User), Just(Role::Model)];
    (role, prop::collection::vec(part, 1..4)).prop_map(|(role, parts)| Content { role, parts })
}

fn imported() -> impl Strategy<Value = Imported> {
    let text = || "\\PC{0,6}";
    let versions = prop::collection::btree_map("[a-z.]{1,6}", any::<i32>(), 0..3);
    let output = json().prop_map(|value| Some(value).filter(|value| !value.is_null()));
    (text(), text(), text(), text(), versions, output, any::<bool>(), any::<bool>()).prop_map(
        |(node_path, branch, isolation_scope, agent, artifact_delta, output, complete, cut)| {
            Imported {
                node_path,
                branch,
                isolation_scope,
                output,
                transfer_to_agent: agent,
                artifact_delta,
                turn_complete: complete,
                interrupted: cut,
            }
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let said = (prop::option::of(content()), object(), object(), imported());
    let count = || 0..u32::MAX / 2;
    let usage = (count(), count(), count(), count(), count());
    let flags = (any::<bool>(), any::<bool>(), 0..8_500_000_000_000_000_u64);
    let texts = ("\\PC{1,6}", "[A-Z]{0,4}", "[A-Z]{0,4}", "\\PC{0,6}");
    (said, prop::option::of(usage), flags, texts).prop_map(
        |((content, state, metadata, imported), usage, (skip, escalate, time), texts)| {
            let usage = usage.map(|(prompt, candidates, total, cached, thoughts)| Usage {
                prompt_token_count: prompt,
                candidates_token_count: candidates,
                total_token_count: total,
                cached_content_token_count: cached,
                thoughts_token_count: thoughts,
            });
            let calls: Vec<CallId> =
                content.iter().flat_map(Content::calls).map(|call| call.id.clone()).collect();
            let long_running_tool_ids =
                (!calls.is_empty()).then(|| calls.into_iter().step_by(2).collect());
            Event {
                id: EventId::parse("event-1").unwrap(),
                sequence: 1,
                invocation_id: InvocationId::parse("e-1").unwrap(),
                author: texts.0,
                time,
                frame: None,
                content,
                long_running_tool_ids,
                actions: Actions {
                    state_delta: state,
                    skip_summarization: skip,
                    escalate,
                    ..Actions::default()
                },
                finish_reason: texts.1,
                usage,
                error_code: texts.2,
                error_message: texts.3,
                custom_metadata: metadata,
                calls: BTreeMap::new(),
                imported: Some(Box::new(imported)).filter(|more| **more != Imported::default()),
            }
        },
    )
}

proptest! {
    #[test]
    fn an_event_comes_back_as_it_was_told(event in event()) {
        let text = to_json(&event_to_pb(&event)).unwrap();
        let value = parse(&format!("[{text}]"), MAX_TEXT_DEPTH).unwrap();
        let mut mint = || "made".to_owned();
        let defaults = Defaults { now: 0, author: "x", mint: &mut mint };
        let read = adk::read(&value, "events", defaults).unwrap();
        prop_assert_eq!(&read.events[0], &event, "{}", text);
    }
}

/// Keys that mean something, and some that do not.
const KEYS: [&str; 40] = [
    "id",
    "invocationId",
    "author",
    "timestamp",
    "content",
    "role",
    "parts",
    "text",
    "thought",
    "thought_signature",
    "functionCall",
    "function_response",
    "name",
    "args",
    "response",
    "willContinue",
    "inlineData",
    "mimeType",
    "data",
    "file_data",
    "fileUri",
    "executableCode",
    "code",
    "longRunningToolIds",
    "actions",
    "stateDelta",
    "artifact_delta",
    "skipSummarization",
    "transferToAgent",
    "node_info",
    "path",
    "branch",
    "output",
    "partial",
    "usageMetadata",
    "promptTokenCount",
    "customMetadata",
    "errorCode",
    "turn_complete",
    "unknown",
];

/// JSON that could nearly be an event.
fn nearly() -> impl Strategy<Value = Value> {
    let words = prop_oneof![Just("user"), Just("model"), Just("pay"), Just("AQI="), Just("")];
    let leaf = prop_oneof![
        3 => words.prop_map(Value::from),
        2 => json(),
        1 => any::<f64>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let fields = prop::collection::vec((prop::sample::select(&KEYS[..]), inner.clone()), 0..6);
        prop_oneof![
            4 => fields.prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            }),
            1 => prop::collection::vec(inner, 0..3).prop_map(Value::Array),
        ]
    })
}

fn read(value: &Value) -> Option<Vec<Event>> {
    let mut next = 0;
    let mut mint = || {
        next += 1;
        format!("made-{next}")
    };
    let defaults = Defaults { now: 0, author: "x", mint: &mut mint };
    adk::read(value, "events", defaults).ok().map(|told| told.events)
}

proptest! {
    #[test]
    fn whatever_is_taken_can_be_stored_and_shown(events in prop::collection::vec(nearly(), 1..4)) {
        let Some(events) = read(&Value::Array(events)) else { return Ok(()) };
        for event in &events {
            let stored = serde_json::to_vec(event).unwrap();
            prop_assert_eq!(&serde_json::from_slice::<Event>(&stored).unwrap(), event);
        }
        // What is shown is what comes of reading it, however often.
        let shown: Vec<Value> = events
            .iter()
            .map(|e| serde_json::from_str(&to_json(&event_to_pb(e)).unwrap()).unwrap())
            .collect();
        let again = read(&Value::Array(shown.clone())).unwrap();
        let told: Vec<Value> = again
            .iter()
            .map(|e| serde_json::from_str(&to_json(&event_to_pb(e)).unwrap()).unwrap())
            .collect();
        prop_assert_eq!(told, shown);
    }
}
