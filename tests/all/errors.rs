//! Every reason that there is: how it comes about, its code, what it tells, and that nothing was
//! written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countersign::app::Builder;
use countersign::limits::Limits;
use countersign::proto::v1::{self as pb, end_mark::State};
use countersign::store::Clock;
use countersign::store::memory::{Fault, Memory};
use countersign::tool::{Context, Function};
use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::Status;
use tonic_types::StatusExt;

use crate::requests::{at_rest, code_of};
use crate::support::{Client, Server, USER, agents, answer, reason, say, say_answers, submit};
use crate::wire::{Contract, encode};

mod quarantine;
mod store;

const APP: &str = "desk";

/// An agent whose tools a test opens and shuts.
const AGENT: &str = r#"
name: desk
model: scripted
description: Waits for people, or for a gate.
tools:
  - name: wait
  - name: ask
    description: Asks somebody.
    long_running: true
    answers: once
    answer_schema:
      type: object
      properties: {status: {type: string}}
      required: [status]
    returns: {status: pending}
  - name: ask_soon
    description: Asks somebody who has a minute.
    long_running: true
    expires_after: 60s
    returns: {status: pending}
script:
  - when: {user: '^wait$'}
    call: {wait: {}}
  - when: {user: '^ask$'}
    call: {ask: {}}
  - when: {user: '^ask soon$'}
    call: {ask_soon: {}}
  - when: always
    say: Fine.
"#;

/// The desk, with a gate that its bodies wait at.
fn desk() -> (Builder, watch::Sender<bool>) {
    let (gate, opened) = watch::channel(false);
    let wait = Function::new(
        "wait",
        "Waits at the gate.",
        move |_: BTreeMap<String, Value>, _: Context| {
            let mut opened = opened.clone();
            async move {
                // A gate that is gone is open.
                let _ = opened.wait_for(|open| *open).await;
                Ok::<_, String>("through")
            }
        },
    );
    (agents(AGENT).tool(wait), gate)
}

async fn create(client: &mut Client, session: &str) {
    let request = pb::CreateSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
        ..Default::default()
    };
    client.sessions.create_session(request).await.unwrap();
}

/// The refusal's code is its reason's; what it tells beside it.
fn told(status: &Status, why: &str) -> BTreeMap<String, String> {
    assert_eq!(reason(status), (code_of(why), why.to_owned()), "{status:?}");
    let again = matches!(why, "OVERLOADED" | "DRAINING" | "STORE_UNAVAILABLE");
    assert_eq!(status.get_details_retry_info().is_some(), again, "RetryInfo of {why}");
    assert!(!status.message().is_empty());
    status.get_details_error_info().unwrap().metadata.into_iter().collect()
}

/// A run that stays: until it is told to go on.
async fn waits(client: &Client, session: &str) -> tonic::Streaming<pb::Event> {
    let mut stream =
        client.clone().agents.run_async(say(APP, session, "wait")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    stream
}

async fn ended(stream: &mut tonic::Streaming<pb::Event>) -> pb::EndMark {
    loop {
        let event = stream.message().await.unwrap().expect("a stream ends with an end");
        if let Some(pb::event::Mark::End(end)) = event.mark {
            return end;
        }
    }
}

#[tokio::test]
async fn calls_that_take_no_answer_say_why() {
    let (builder, gate) = desk();
    let server = Server::start(builder).await;
    let mut client = server.client().await;
    create(&mut client, "s1").await;
    let told_held = client.run(say(APP, "s1", "ask")).await;
    let held = told_held.end.held_calls[0].clone();
    at_rest(&server).await;

    let before = server.store.commits();
    let refused = client.submit(submit(&held, json!({"state": "x"}))).await.unwrap_err();
    let details = told(&refused, "RESPONSE_SCHEMA_VIOLATION");
    assert_eq!(details["call_id"], held.function_call.as_ref().unwrap().id);
    assert_eq!(crate::support::fields(&refused), ["function_response.response"]);
    let refused = client.submit(submit(&held, Value::Null)).await.unwrap_err();
    told(&refused, "RESPONSE_SCHEMA_VIOLATION");
    let mut other = held.clone();
    other.function_call.as_mut().unwrap().name = "other".into();
    let refused = client.submit(submit(&other, json!({"status": "x"}))).await.unwrap_err();
    assert_eq!(told(&refused, "CALL_NAME_MISMATCH")["expected_name"], "ask");
    let digest = format!("sha256:{}", "0".repeat(64));
    let mut wrong = submit(&held, json!({"status": "x"}));
    wrong.expected_args_digest = digest;
    let refused = client.submit(wrong).await.unwrap_err();
    assert_eq!(told(&refused, "ARGS_DIGEST_MISMATCH")["args_digest"], held.args_digest);
    assert_eq!(server.store.commits(), before);

    client.submit(submit(&held, json!({"status": "done"}))).await.unwrap();
    at_rest(&server).await;
    let before = server.store.commits();
    let again = client.submit(submit(&held, json!({"status": "done"}))).await.unwrap();
    assert_eq!(again.outcome(), pb::submit_function_response_response::Outcome::Duplicate);
    let refused = client.submit(submit(&held, json!({"status": "other"}))).await.unwrap_err();
    let details = told(&refused, "CALL_ALREADY_ANSWERED");
    assert_eq!(details["answered_by"], "user:local");

    // It is over: there is nothing to cancel.
    let cancel =
        |id: &str| pb::CancelInvocationRequest { invocation_id: id.into(), ..Default::default() };
    let over = client.agents.cancel_invocation(cancel(&told_held.begin.invocation_id)).await;
    let details = told(&over.unwrap_err(), "INVOCATION_ENDED");
    assert_eq!(details["state"], "COMPLETED");
    assert_eq!(server.store.commits(), before);

    let cancelled = client.run(say(APP, "s1", "ask")).await;
    let id = &cancelled.begin.invocation_id;
    let view = client.agents.cancel_invocation(cancel(id)).await.unwrap().into_inner();
    assert_eq!(view.state(), pb::invocation::State::Cancelled);
    let before = server.store.commits();
    client.agents.cancel_invocation(cancel(id)).await.unwrap();
    let held = &cancelled.end.held_calls[0];
    let refused = client.submit(submit(held, json!({"status": "done"}))).await.unwrap_err();
    told(&refused, "CALL_CANCELLED");
    assert_eq!(server.store.commits(), before);

    // A body at work is nobody's to answer.
    let mut stream = waits(&client, "s1").await;
    let call = loop {
        let event = stream.message().await.unwrap().unwrap();
        let mut parts = event.content.into_iter().flat_map(|content| content.parts);
        if let Some(pb::part::Data::FunctionCall(call)) = parts.find_map(|part| part.data) {
            break call;
        }
    };
    let refused = client
        .submit(pb::SubmitFunctionResponseRequest {
            function_response: Some(pb::FunctionResponse {
                id: call.id,
                name: call.name,
                ..Default::default()
            }),
            ..Default::default()
        })
        .await
        .unwrap_err();
    told(&refused, "CALL_NOT_HELD");
    gate.send_replace(true);
    assert_eq!(ended(&mut stream).await.state(), State::Completed);
}

#[tokio::test]
async fn a_call_that_expired_says_so_swept_or_not() {
    let clock = Clock::manual(1_800_000_000_000_000);
    let store = Arc::new(Memory::new(clock.clone()));
    let server = Server::start_on(desk().0, store).await;
    let mut client = server.client().await;
    let told_held = client.say(APP, "ask soon").await;
    let held = &told_held.end.held_calls[0];
    at_rest(&server).await;
    clock.advance(Duration::from_secs(60));
    // The server sweeps by itself, each second: both answers are the same.
    for _ in 0..2 {
        let refused = client.submit(submit(held, json!({"status": "x"}))).await.unwrap_err();
        told(&refused, "CALL_EXPIRED");
        while server.runner.tick_deadlines().await.unwrap() {}
        at_rest(&server).await;
    }
}

#[tokio::test]
async fn a_session_that_runs_takes_no_other_message() {
    let (builder, gate) = desk();
    let server = Server::start(builder).await;
    let mut client = server.client().await;
    create(&mut client, "s1").await;
    let mut stream = waits(&client, "s1").await;
    // Its call is asked for and started before the commits are counted.
    while stream.message().await.unwrap().unwrap().content.is_none() {}
    let before = server.store.commits();
    let refused = client.try_run(say(APP, "s1", "hello")).await.unwrap_err();
    let details = told(&refused, "INVOCATION_RUNNING");
    assert!(details["invocation_id"].starts_with("e-"));
    let delete = pb::DeleteSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: "s1".into(),
        ..Default::default()
    };
    let refused = client.sessions.delete_session(delete.clone()).await.unwrap_err();
    assert_eq!(told(&refused, "INVOCATION_RUNNING"), details);
    assert_eq!(server.store.commits(), before);
    gate.send_replace(true);
    assert_eq!(ended(&mut stream).await.state(), State::Completed);
    at_rest(&server).await;
    client.sessions.delete_session(delete).await.unwrap();
}

#[tokio::test]
async fn a_request_id_is_for_one_body() {
    let server = Server::start(desk().0).await;
    let mut client = server.client().await;
    let marked = |session: &str| pb::CreateSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
        request_id: "r1".into(),
        ..Default::default()
    };
    client.sessions.create_session(marked("s1")).await.unwrap();
    let before = server.store.commits();
    client.sessions.create_session(marked("s1")).await.unwrap();
    let refused = client.sessions.create_session(marked("s2")).await.unwrap_err();
    assert_eq!(told(&refused, "REQUEST_ID_REUSED")["request_id"], "r1");
    let mut unmarked = marked("s1");
    unmarked.request_id.clear();
    let refused = client.sessions.create_session(unmarked).await.unwrap_err();
    assert_eq!(told(&refused, "SESSION_EXISTS")["session_id"], "s1");
    assert_eq!(server.store.commits(), before);

    // The same mark on another method is another mark, and on a run the run is followed.
    let run = pb::RunAsyncRequest { request_id: "r1".into(), ..say(APP, "s1", "ask") };
    let first = client.run(run.clone()).await;
    at_rest(&server).await;
    let before = server.store.commits();
    let again = client.run(run).await;
    assert!(again.begin.replayed && !first.begin.replayed);
    assert_eq!(
        (again.begin.invocation_id, again.events),
        (first.begin.invocation_id, first.events)
    );
    let other = pb::RunAsyncRequest { request_id: "r1".into(), ..say(APP, "s1", "hello") };
    told(&client.try_run(other).await.unwrap_err(), "REQUEST_ID_REUSED");
    let held = &first.end.held_calls[0];
    let answers = say_answers(APP, "s1", vec![answer(held, json!({"status": "done"}))]);
    let answers = pb::RunAsyncRequest { request_id: "r1".into(), ..answers };
    told(&client.try_run(answers).await.unwrap_err(), "REQUEST_ID_REUSED");
    assert_eq!(server.store.commits(), before);
}

#[tokio::test]
async fn as_many_run_as_may_run() {
    let (builder, gate) = desk();
    let limits = Limits { driven_sessions: 2, ..Limits::default() };
    let server = Server::start(builder.limits(limits)).await;
    let mut client = server.client().await;
    for session in ["s1", "s2", "s3"] {
        create(&mut client, session).await;
    }
    let mut streams = [waits(&client, "s1").await, waits(&client, "s2").await];
    for stream in &mut streams {
        while stream.message().await.unwrap().unwrap().content.is_none() {}
    }
    let before = server.store.commits();
    for session in ["s3", ""] {
        let refused = client.try_run(say(APP, session, "hello")).await.unwrap_err();
        let details = told(&refused, "OVERLOADED");
        assert_eq!((&*details["limit"], &*details["value"]), ("driven_sessions", "2"));
    }
    assert_eq!(server.store.commits(), before);
    gate.send_replace(true);
    for stream in &mut streams {
        assert_eq!(ended(stream).await.state(), State::Completed);
    }
    at_rest(&server).await;
    // Paused ones do not count.
    for session in ["s1", "s2"] {
        assert_eq!(client.run(say(APP, session, "ask")).await.end.state(), State::Paused);
        at_rest(&server).await;
    }
    assert_eq!(client.run(say(APP, "s3", "hello")).await.end.state(), State::Completed);
}

#[tokio::test]
async fn a_model_that_fails_is_an_end_and_no_error() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    let request = pb::RunAsyncRequest {
        run_config: Some(pb::RunConfig { max_llm_calls: Some(1), ..Default::default() }),
        ..say("reimbursement_agent", "", "Please reimburse $50 for meals")
    };
    let told = client.run(request).await;
    assert_eq!(told.end.state(), State::Failed);
    assert_eq!(told.end.error_code, "LIMIT_EXCEEDED");
    let last = told.events.last().unwrap();
    assert_eq!(last.error_code, "LIMIT_EXCEEDED");
    assert!(!told.end.error_message.is_empty());
}

#[tokio::test]
async fn a_draining_server_takes_nothing_new() {
    let (builder, gate) = desk();
    let server = Server::start(builder).await;
    let (store, runner) = (server.store.clone(), server.runner.clone());
    let mut client = server.client().await;
    create(&mut client, "s1").await;
    let held = client.run(say(APP, "s1", "ask")).await.end.held_calls[0].clone();
    create(&mut client, "s2").await;
    let mut stream = waits(&client, "s2").await;
    while stream.message().await.unwrap().unwrap().content.is_none() {}

    // Requests that are on their way when the server begins to drain, and whole only then.
    let key = json!({"app_name": APP, "user_id": USER, "session_id": "s1"});
    let with = |more: Value| {
        let mut all = key.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    };
    let call = held.function_call.as_ref().unwrap();
    let requests = [
        ("RunAsync", with(json!({"new_message": {"parts": [{"text": "hello"}]}}))),
        (
            "SubmitFunctionResponse",
            json!({"function_response": {"id": call.id, "name": call.name}}),
        ),
        ("CancelInvocation", json!({"invocation_id": held.invocation_id})),
        ("CreateSession", json!({"app_name": APP, "user_id": USER})),
        ("ImportSession", json!({"app_name": APP, "user_id": USER, "events": [{}]})),
        ("UpdateSessionState", with(json!({"state_delta": {"a": 1}}))),
        ("DeleteSession", key.clone()),
        ("WatchSession", key.clone()),
    ];
    let contract = Arc::new(Contract::read());
    let channel = server.channel().await;
    let mut late = Vec::new();
    for (method, request) in requests {
        let (contract, channel, draining) = (contract.clone(), channel.clone(), runner.clone());
        late.push(tokio::spawn(async move {
            let whole = async move {
                draining.draining().cancelled().await;
                encode(method, &request)
            };
            (method, contract.ask_late(&channel, method, whole).await)
        }));
        tokio::task::yield_now().await;
    }
    // The connection keeps the order: when this is answered the others have arrived.
    contract.ask(&channel, "ListAgents", Vec::new()).await.unwrap();
    let before = store.commits();
    let stopping = tokio::spawn(server.stop());
    for late in late {
        let (method, reply) = late.await.unwrap();
        let refused = reply.expect_err(method);
        told(&refused, "DRAINING");
    }
    assert_eq!(ended(&mut stream).await.state(), State::Reconnect);
    assert_eq!(store.commits(), before);
    // A body at work is awaited.
    assert!(!stopping.is_finished());
    drop((stream, client, channel));
    gate.send_replace(true);
    stopping.await.unwrap();
}
