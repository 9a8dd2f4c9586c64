//! Histories that come from elsewhere: they are shown as they were, and told to models; nothing of
//! them can be answered, and nothing runs by them.

use countersign::proto::to_json;
use countersign::proto::v1::{self as pb, end_mark::State};
use serde_json::{Value, json};
use tonic::Status;

use super::stage::{APP, Closure, Stage, stage};
use crate::requests::at_rest;
use crate::support::{Server, USER, fields, json as plain, object, reason, story, submit};

fn import(session: &str, events: Value) -> pb::ImportSessionRequest {
    pb::ImportSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
        events: events.as_array().unwrap().iter().cloned().map(object).collect(),
        ..Default::default()
    }
}

fn import_text(session: &str, events: &str) -> pb::ImportSessionRequest {
    pb::ImportSessionRequest { events_json: events.into(), ..import(session, json!([])) }
}

async fn imported(
    stage: &mut Stage,
    request: pb::ImportSessionRequest,
) -> Result<pb::Session, Status> {
    Ok(stage.client.sessions.import_session(request).await?.into_inner())
}

/// A history as ADK has it: a call that was answered, and one that was not.
fn history() -> Value {
    let call = |id: &str, name: &str| json!({"functionCall": {"id": id, "name": name, "args": {}}});
    let answer = |id: &str, name: &str, response: Value| json!({"functionResponse": {"id": id, "name": name, "response": response}});
    let user = |parts: Value| json!({"role": "user", "parts": parts});
    let model = |parts: Value| json!({"role": "model", "parts": parts});
    json!([
        {"id": "e-1", "invocationId": "i-1", "author": "user", "timestamp": 1_700_000_000.25,
         "content": user(json!([{"text": "ask twice"}]))},
        {"id": "e-2", "invocationId": "i-1", "author": APP, "finishReason": "STOP",
         "content": model(json!([call("fc-1", "ask"), call("fc-2", "ask")])),
         "longRunningToolIds": ["fc-1", "fc-2"], "nodeInfo": {"path": "other@1"}},
        {"id": "e-3", "invocationId": "i-1", "author": "user",
         "content": user(json!([answer("fc-1", "ask", json!({"status": "yes"}))])),
         "actions": {"stateDelta": {"a": 1, "user:b": 2, "app:c": 3, "temp:d": 4}}},
        {"id": "e-4", "invocationId": "i-1", "author": APP,
         "content": model(json!([call("fc-3", "adk_request_confirmation")])),
         "longRunningToolIds": ["fc-3"]},
        {"id": "e-5", "invocationId": "i-1", "author": "user", "content": user(json!([
            answer("fc-3", "adk_request_confirmation", json!({"confirmed": true}))]))},
        {"id": "e-4", "invocationId": "i-1", "author": APP,
         "content": model(json!([{"text": "Grüße, 承認"}]))},
    ])
}

#[tokio::test]
async fn a_history_is_shown_as_it_was() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let session = imported(&mut stage, import("s1", history())).await.unwrap();
    assert_eq!((session.last_sequence, &*session.running_invocation_id), (6, ""));
    assert!(session.held_call_ids.is_empty());
    // The session's own state is what the events made; that of others stays as it is.
    assert_eq!(plain(session.state.as_ref().unwrap()), json!({"a": 1}));

    let events = stage.events("s1").await;
    assert_eq!(events.iter().map(|e| e.sequence).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(
        story(&events),
        [
            "user: ask twice",
            "clerk > ask({}) + clerk > ask({})",
            r#"user < ask({"status":"yes"})"#,
            "clerk > adk_request_confirmation({})",
            r#"user < adk_request_confirmation({"confirmed":true})"#,
            "clerk: Grüße, 承認",
        ]
    );
    let ids: Vec<_> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids[..5], ["e-1", "e-2", "e-3", "e-4", "e-5"]);
    assert_ne!(ids[5], "e-4", "an id is unique in its session");
    assert_eq!((events[0].timestamp, &*events[0].invocation_id), (1_700_000_000.25, "i-1"));
    assert_eq!(events[1].node_info.as_ref().unwrap().path, "other@1");
    assert_eq!(events[1].long_running_tool_ids, ["fc-1", "fc-2"]);

    // What the server says of itself is read again, and is the same.
    let shown: Vec<String> = events.iter().map(|event| to_json(event).unwrap()).collect();
    imported(&mut stage, import_text("s2", &format!("[{}]", shown.join(",")))).await.unwrap();
    assert_eq!(stage.events("s2").await, events);
    at_rest(&stage.server).await;
}

/// The exact JSON in these events.
fn exact(events: &[pb::Event]) -> Vec<&str> {
    let facts = events.iter().flat_map(|event| event.calls.values());
    facts.map(|facts| facts.exact_json.as_str()).collect()
}

#[tokio::test]
async fn what_ran_here_comes_back_as_it_was() {
    let mut stage = stage([Closure::asks("ask"), Closure::asks("pay")]).await;
    let told = stage.say(r#"call ask {"sum": 9007199254740993, "to": "Zoë"} & pay"#).await;
    let first = &told.begin.session_id;
    for held in &told.end.held_calls {
        stage.answer(held, json!({"status": "approved", "n": 1.5})).await;
    }
    let mut before = stage.events(first).await;
    assert!(before.len() >= 7);
    let shown: Vec<String> = before.iter().map(|event| to_json(event).unwrap()).collect();
    imported(&mut stage, import_text("copy", &format!("[{}]", shown.join(",")))).await.unwrap();
    let mut after = stage.events("copy").await;
    // Facts about calls are told by who knows them; a copy has its exact JSON only.
    assert_eq!(exact(&after), [r#"{"sum":9007199254740993,"to":"Zoë"}"#]);
    before.iter_mut().chain(&mut after).for_each(|event| event.calls.clear());
    assert_eq!(after, before);
    // The calls are those of the first session, wherever somebody has a copy of them.
    let again = submit(&told.end.held_calls[0], json!({"status": "approved", "n": 1.5}));
    let done = stage.client.submit(again).await.unwrap();
    assert_eq!(done.call.unwrap().session_id, *first);
}

#[tokio::test]
async fn nothing_of_a_history_can_be_answered() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let held = stage.say("call ask").await.end.held_calls[0].clone();
    let live = held.function_call.as_ref().unwrap().id.clone();
    // One of the calls is another session's, which is held.
    let text = history().to_string().replace("fc-2", &live);
    let events: Value = serde_json::from_str(&text).unwrap();
    imported(&mut stage, import("s1", events)).await.unwrap();
    let call = |id: &str, name: &str| pb::Call {
        function_call: Some(pb::FunctionCall { id: id.into(), name: name.into(), args: None }),
        ..Default::default()
    };
    let confirmed = json!({"confirmed": true});
    for (id, name) in [("fc-1", "ask"), ("fc-3", "adk_request_confirmation")] {
        let refused = stage.client.submit(submit(&call(id, name), confirmed.clone())).await;
        assert_eq!(reason(&refused.unwrap_err()).1, "CALL_NOT_FOUND", "{id}");
        let answers = vec![crate::support::answer(&call(id, name), confirmed.clone())];
        let answers = crate::support::say_answers(APP, "s1", answers);
        let refused = stage.client.try_run(answers).await;
        assert_eq!(reason(&refused.unwrap_err()).1, "CALL_NOT_FOUND", "{id}");
    }
    let here = pb::SubmitFunctionResponseRequest {
        session_id: "s1".into(),
        ..submit(&held, json!({"status": "yes"}))
    };
    let refused = stage.client.submit(here).await.unwrap_err();
    assert_eq!(reason(&refused).1, "CALL_NOT_FOUND");
    let find = pb::GetInvocationRequest { invocation_id: "i-1".into(), ..Default::default() };
    let refused = stage.client.agents.get_invocation(find).await.unwrap_err();
    assert_eq!(reason(&refused).1, "INVOCATION_NOT_FOUND");
    let all = pb::ListInvocationsRequest { session_id: "s1".into(), ..Default::default() };
    let listed = stage.client.agents.list_invocations(all).await.unwrap().into_inner();
    assert!(listed.invocations.is_empty());

    // The call that is held is answered where it is, and goes on there.
    let rest = stage.answer(&held, json!({"status": "yes"})).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(stage.events("s1").await.len(), 6);
}

#[tokio::test]
async fn a_history_is_in_the_prompts_of_what_follows() {
    let mut stage = stage([Closure::asks("ask")]).await;
    imported(&mut stage, import("s1", history())).await.unwrap();
    let told = stage.say_in("s1", "call ask").await;
    assert_eq!(told.events[0].sequence, 8);
    // A call without a response is told to nobody: it waits for none. ADK's questions to people are
    // not the model's words.
    let before = [
        "user: ask twice",
        "model > ask({})",
        r#"user < ask {"status":"yes"}"#,
        "model: Grüße, 承認",
        "user: call ask",
    ];
    assert_eq!(stage.prompts()[0], before);
    let rest = stage.answer(&told.end.held_calls[0], json!({"status": "approved"})).await;
    assert_eq!(rest.end.state(), State::Completed);
    let last = ["model > ask({})", r#"user < ask {"status":"approved"}"#];
    assert_eq!(stage.prompt(), [&before[..], &last[..]].concat());
    let told = stage.say_in("s1", "thanks").await;
    assert_eq!(told.end.state(), State::Completed);
}

#[tokio::test]
async fn a_session_of_adk_is_taken_whole_with_its_state() {
    let mut stage = stage([]).await;
    let text = r#"{"id": "theirs", "appName": "other", "userId": "them", "lastUpdateTime": 1.5,
        "state": {"a": 12345678901234567890, "user:b": 1, "app:c": 1, "gone": 1},
        "events": [{"author": "user", "content": {"parts": [{"text": "hi"}], "role": "user"}},
            {"author": "clerk", "content": {"role": "model", "parts": [
                {"function_call": {"name": "pay", "args": {"to": 90071992547409931234.50}}}]}},
            {"author": "clerk", "content": {"role": "user", "parts": [
                {"function_response": {"name": "pay", "response": {"n": 0.10}}}]}}]}"#;
    let mut request = import_text("mine", text);
    request.state = Some(object(json!({"gone": null, "new": true, "user:e": 5})));
    let session = imported(&mut stage, request).await.unwrap();
    assert_eq!((&*session.id, &*session.app_name, &*session.user_id), ("mine", APP, USER));
    let state = plain(session.state.as_ref().unwrap());
    assert_eq!(state, json!({"a": 12345678901234567000.0, "new": true, "user:e": 5}));

    let events = stage.events("mine").await;
    let Some(pb::part::Data::FunctionCall(call)) =
        &events[1].content.as_ref().unwrap().parts[0].data
    else {
        panic!("{events:?}");
    };
    assert!(call.id.starts_with("adk-"), "a call that had no id has one: {}", call.id);
    assert_eq!(events[1].calls[&call.id].exact_json, r#"{"to":90071992547409931234.50}"#);
    stage.say_in("mine", "thanks").await;
    let told = [
        "user: hi",
        r#"model > pay({"to":90071992547409931234.50})"#,
        r#"user < pay {"n":0.10}"#,
        "user: thanks",
    ];
    assert_eq!(stage.prompt(), told);
}

#[tokio::test]
async fn an_import_is_made_once_and_whole() {
    let mut stage = stage([]).await;
    let request = pb::ImportSessionRequest { request_id: "r-1".into(), ..import("s1", history()) };
    let first = imported(&mut stage, request.clone()).await.unwrap();
    let before = stage.server.store.commits();
    assert_eq!(imported(&mut stage, request.clone()).await.unwrap(), first);
    let refused = imported(&mut stage, import("s1", history())).await.unwrap_err();
    assert_eq!(reason(&refused).1, "SESSION_EXISTS");
    let other = pb::ImportSessionRequest { session_id: "s2".into(), ..request.clone() };
    let refused = imported(&mut stage, other).await.unwrap_err();
    assert_eq!(reason(&refused).1, "REQUEST_ID_REUSED");
    let mut wrong = history();
    wrong[5]["content"]["parts"][0]["text"] = json!(5);
    let refused = imported(&mut stage, import("s2", wrong)).await.unwrap_err();
    assert_eq!(fields(&refused), ["events[5].content.parts[0].text"]);
    assert_eq!(stage.server.store.commits(), before, "nothing was written");

    // The mark of an import says nothing of other methods, and the session is like any other.
    let key = pb::DeleteSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: "s1".into(),
        request_id: "r-1".into(),
    };
    stage.client.sessions.delete_session(key).await.unwrap();
    let gone = imported(&mut stage, request).await.unwrap_err();
    assert_eq!(reason(&gone).1, "SESSION_NOT_FOUND");
    // The client marks its imports by itself.
    let client = countersign::client::Client::new(&stage.server.address.to_string()).unwrap();
    assert_eq!(client.import(import("s1", history())).await.unwrap().last_sequence, 6);
    let refused = client.import(import("s1", history())).await.unwrap_err();
    assert_eq!(reason(&refused).1, "SESSION_EXISTS");
}

#[tokio::test]
async fn a_history_survives_a_restart() {
    let mut stage = stage([Closure::asks("ask")]).await;
    imported(&mut stage, import("s1", history())).await.unwrap();
    stage.say_in("s1", "hello").await;
    let before = stage.events("s1").await;
    assert_eq!(before.len(), 8);
    let store = stage.server.store.clone();
    drop(stage.client);
    stage.server.stop().await;
    let agent = format!("name: {APP}\nmodel: scripted\nscript:\n  - {{when: always, say: fine}}\n");
    let server = Server::start_on(crate::support::agents(&agent), store).await;
    let mut client = server.client().await;
    assert_eq!(client.events(APP, "s1").await, before);
    let again = client.run(crate::support::say(APP, "s1", "again")).await;
    assert_eq!(again.end.state(), State::Completed);
    assert_eq!(client.events(APP, "s1").await.len(), 10);
}
