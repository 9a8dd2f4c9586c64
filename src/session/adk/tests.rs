//! Both spellings, nulls, forms of files, and what is told of what is wrong.

use serde_json::json;

use super::*;
use crate::session::content::{Content, Data, Role};
use crate::session::json::parse;

fn read_text(text: &str) -> Result<Transcript, Vec<Violation>> {
    let value = parse(text, MAX_TEXT_DEPTH).unwrap();
    let mut next = 0;
    let mut mint = || {
        next += 1;
        format!("made-{next}")
    };
    read(&value, "events", Defaults { now: 7, author: "clerk", mint: &mut mint })
}

fn events(text: &str) -> Vec<Event> {
    read_text(text).unwrap().events
}

fn wrong(text: &str) -> Vec<(String, String)> {
    read_text(text).unwrap_err().into_iter().map(|v| (v.field, v.rule)).collect()
}

const CAMEL: &str = r#"{"id": "e-1", "invocationId": "i-1", "author": "clerk", "timestamp": 1769860800.250001,
    "content": {"role": "model", "parts": [
        {"text": "hm", "thought": true, "thoughtSignature": "-_8="},
        {"functionCall": {"id": "fc-1", "name": "pay", "args": {"account": 90071992547409931234.50}}},
        {"inlineData": {"mimeType": "image/png", "data": "+/8", "displayName": "x"}},
        {"fileData": {"mimeType": "a/b", "fileUri": "gs://a"}}]},
    "longRunningToolIds": ["fc-1"], "finishReason": "STOP", "errorCode": null, "partial": false,
    "usageMetadata": {"promptTokenCount": 7, "totalTokenCount": 99999999999, "trafficType": "X"},
    "actions": {"stateDelta": {"a": 1, "b": null}, "artifactDelta": {"f.txt": 2},
        "requestedToolConfirmations": {}, "skipSummarization": null, "transferToAgent": "helper"},
    "nodeInfo": {"path": "clerk@1", "outputFor": []}, "branch": "clerk.x", "turnComplete": true,
    "output": [1, {"x": 1.0}], "modelVersion": "m-1", "customMetadata": {"__adk_internal_x": 1, "t": 1}}"#;

#[test]
fn both_spellings_say_the_same() {
    let snake = [
        "invocationId",
        "thoughtSignature",
        "functionCall",
        "inlineData",
        "mimeType",
        "displayName",
        "fileData",
        "fileUri",
        "longRunningToolIds",
        "finishReason",
        "errorCode",
        "usageMetadata",
        "promptTokenCount",
        "totalTokenCount",
        "stateDelta",
        "artifactDelta",
        "skipSummarization",
        "transferToAgent",
        "nodeInfo",
        "turnComplete",
        "customMetadata",
    ];
    let other = snake.iter().fold(CAMEL.to_owned(), |text, camel| {
        text.replace(&format!("\"{camel}\""), &format!("\"{}\"", fields::snake(camel)))
    });
    assert_ne!(other, CAMEL);
    let read = events(&format!("[{CAMEL}]"));
    assert_eq!(read, events(&format!("{{\"events\": [{other}]}}")));

    let event = &read[0];
    assert_eq!((event.sequence, event.time), (1, 1_769_860_800_250_001));
    let content = event.content.as_ref().unwrap();
    let call = content.calls().next().unwrap();
    assert_eq!(call.args["account"].to_string(), "90071992547409931234.50");
    assert_eq!(content.parts[0].thought_signature, [0xfb, 0xff]);
    assert!(matches!(&content.parts[2].data, Some(Data::InlineData(b)) if b.data == [0xfb, 0xff]));
    assert_eq!(event.long_running_tool_ids.as_ref().unwrap().len(), 1);
    assert_eq!(event.usage.unwrap().total_token_count, u32::MAX);
    assert_eq!(serde_json::to_string(&event.custom_metadata).unwrap(), r#"{"t":1}"#);
    let more = event.imported.as_deref().unwrap();
    assert_eq!((&*more.node_path, &*more.branch, more.turn_complete), ("clerk@1", "clerk.x", true));
    assert_eq!((more.artifact_delta["f.txt"], &*more.transfer_to_agent), (2, "helper"));
    assert_eq!(more.output.as_ref().unwrap().to_string(), r#"[1,{"x":1.0}]"#);
}

#[test]
fn an_event_may_say_next_to_nothing() {
    let read = events(
        r#"[{}, {"author": "user", "content": {"parts": [{"text": "hi"}]}, "invocationId": "i-2"},
            {"content": {"parts": [{"toolCall": {}}, {"text": "yes", "videoMetadata": {}}]}},
            {"partial": true, "content": {"parts": [{"text": "y"}]}},
            {"content": null, "actions": null, "longRunningToolIds": null, "id": ""},
            {"content": {"role": "user", "parts": [{"codeExecutionResult": {"outcome": "OK"}}]}},
            {"content": {"role": "model", "parts": null}}]"#,
    );
    let told: Vec<_> = read.iter().map(|e| (e.sequence, &*e.author, e.time)).collect();
    let (user, clerk) = ("user", "clerk");
    assert_eq!(
        told,
        [(1, clerk, 7), (2, user, 7), (3, clerk, 7), (4, clerk, 7), (5, user, 7), (6, clerk, 7)]
    );
    let invocations: Vec<_> = read.iter().map(|e| e.invocation_id.as_str()).collect();
    assert_eq!(invocations, ["e-made-2", "i-2", "i-2", "i-2", "i-2", "i-2"]);
    assert_eq!(read[2].content, Some(Content::model("yes")));
    assert_eq!(read[1].content, Some(Content::user("hi")));
    assert_eq!((&read[0].content, &read[5].content), (&None, &None));
    assert!(read.iter().all(|event| event.imported.is_none()));
    assert!(events("[]").is_empty());
}

#[test]
fn an_id_that_is_missing_or_used_is_made() {
    let call = |id: &str| format!(r#"{{"functionCall": {{{id}"name": "pay"}}}}"#);
    let answer = |id: &str| format!(r#"{{"functionResponse": {{{id}"name": "pay"}}}}"#);
    let read = events(&format!(
        r#"[{{"id": "a", "content": {{"parts": [{}, {}, {}]}}}},
            {{"id": "a", "content": {{"parts": [{}, {}, {}, {}]}}}}]"#,
        call(""),
        call(r#""id": "fc-1", "#),
        call(r#""id": null, "#),
        answer(""),
        answer(r#""id": "fc-1", "#),
        answer(r#""id": "", "#),
        answer(""),
    ));
    assert_eq!(read[0].id.as_str(), "a");
    assert!(read[1].id.as_str().starts_with("made-"));
    let calls: Vec<_> = read[0].function_calls().map(|call| call.id.clone()).collect();
    let answers: Vec<_> = read[1].function_responses().map(|answer| answer.id.clone()).collect();
    assert_eq!(calls[..], answers[..3]);
    assert!(calls[0] != calls[2] && !calls.contains(&answers[3]));
    assert_eq!(read[1].content.as_ref().unwrap().role, Role::User);
}

#[test]
fn a_session_has_the_state_that_it_says_or_that_its_events_made() {
    let events = r#"[{"actions": {"stateDelta": {"a": 1, "user:b": 2, "temp:c": 3, "d": 4}}},
        {"actions": {"state_delta": {"a": 5, "d": null, "app:e": 1}}}]"#;
    let state = |text: &str| serde_json::Value::from(read_text(text).unwrap().own_state());
    assert_eq!(state(events), json!({"a": 5}));
    let session = format!(
        r#"{{"id": "s", "appName": "x", "userId": "u", "lastUpdateTime": 1.5,
            "state": {{"a": 6, "app:e": 1}}, "events": {events}}}"#
    );
    assert_eq!(state(&session), json!({"a": 6}));
    assert_eq!(read_text(&session).unwrap().app_name.as_deref(), Some("x"));
    assert_eq!(count(&parse(&session, MAX_TEXT_DEPTH).unwrap()), Some(2));
}

#[test]
fn all_that_is_wrong_is_told_with_its_path() {
    let deep = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let long = "x".repeat(129);
    let told = wrong(&format!(
        r#"[{{"id": "{long}", "timestamp": -1, "author": 5}},
            {{"content": {{"role": "system", "parts": [{{"text": "a"}}]}}, "timestamp": "x"}}, 3,
            {{"content": {{"parts": [{{"text": 1}}, {{"text": "a", "file_data": {{}}}}, [],
                {{"function_call": {{"name": "", "args": {{"a": {}}}}}}},
                {{"functionCall": {{"id": "a\u0000", "name": "b", "args": []}}}},
                {{"functionResponse": {{"name": "b", "parts": [{{}}]}}}},
                {{"functionResponse": {{"response": {{"a": {}}}}}}},
                {{"inlineData": {{"mimeType": "x", "data": "?"}}}}]}},
              "actions": {{"stateDelta": {{"": 1}}, "artifactDelta": {{"a": 1.5}}, "escalate": 1}},
              "usage_metadata": {{"promptTokenCount": -1}}, "longRunningToolIds": ["", 1],
              "invocation_id": "{long}", "customMetadata": [], "nodeInfo": {{"path": 1}}}}]"#,
        deep(30),
        deep(32),
    ));
    let paths: Vec<&str> = told.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "events[0].timestamp",
            "events[0].author",
            "events[0].id",
            "events[1].timestamp",
            "events[1].content.role",
            "events[2]",
            "events[3].content.parts[0].text",
            "events[3].content.parts[1].file_data",
            "events[3].content.parts[2]",
            "events[3].content.parts[3].function_call.args",
            "events[3].content.parts[4].functionCall.args",
            "events[3].content.parts[5].functionResponse.parts",
            "events[3].content.parts[6].functionResponse.response",
            "events[3].content.parts[7].inlineData.data",
            "events[3].longRunningToolIds[0]",
            "events[3].longRunningToolIds[1]",
            "events[3].usage_metadata.promptTokenCount",
            "events[3].customMetadata",
            "events[3].actions.stateDelta",
            "events[3].actions.escalate",
            "events[3].actions.artifactDelta",
            "events[3].nodeInfo.path",
            "events[3].invocation_id",
        ]
    );
    for text in ["{}", "3", r#"{"events": {}}"#, "null"] {
        assert_eq!(wrong(text)[0].0, "events");
    }
}

#[test]
fn digits_beside_doubles_are_taken_and_nothing_else() {
    let args = |exact: &str| {
        let text = format!(
            r#"[{{"content": {{"parts": [{{"functionCall": {{"id": "a", "name": "pay", "args":
                {{"n": 9007199254740992, "x": [1.5], "big": 1.7976931348623157e308}}}}}}]}},
                "calls": {{"a": {{"kind": "LONG_RUNNING", "exactJson": {}}}}}}}]"#,
            json!(exact)
        );
        let event = &events(&text)[0];
        assert!(event.calls.is_empty(), "facts are nobody's to give");
        serde_json::to_string(&event.function_calls().next().unwrap().args).unwrap()
    };
    let exact = r#"{"big":1e+309,"n":9007199254740993,"x":[1.50]}"#;
    assert_eq!(args(exact), exact);
    let seen = args("");
    for other in [
        r#"{"big":1e+309,"n":9007199254740999,"x":[1.5]}"#,
        r#"{"big":1e+309,"n":9007199254740993,"x":[1.5],"y":1}"#,
        r#"{"n":9007199254740993,"x":[1.5]}"#,
        r#"[]"#,
        r#"{"n":"#,
    ] {
        assert_eq!(args(other), seen, "{other}");
    }
}

#[test]
fn what_was_asked_about_calls_is_read() {
    let text = r#"[{"author": "clerk", "actions": {"requestedToolConfirmations": {
        "fc-1": {"hint": "May I?", "confirmed": false, "payload": {"days": 2}}, "fc-2": {}}}}]"#;
    let asked = events(text).remove(0).actions.requested_tool_confirmations;
    let asked: Vec<_> = asked.iter().map(|(id, asked)| (id.as_str(), asked)).collect();
    let hint = "May I?".to_owned();
    let first = ToolConfirmation { hint, payload: Some(json!({"days": 2})) };
    assert_eq!(asked, [("fc-1", &first), ("fc-2", &ToolConfirmation::default())]);
    let text = r#"[{"author": "clerk", "actions": {"requestedToolConfirmations": {
        "fc-1": true, "fc-2": {"hint": 1}}}}]"#;
    let fields: Vec<String> = wrong(text).into_iter().map(|(field, _)| field).collect();
    let at = "events[0].actions.requestedToolConfirmations";
    assert_eq!(fields, [format!("{at}.fc-1"), format!("{at}.fc-2.hint")]);
}
