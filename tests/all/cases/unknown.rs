//! Bodies that come back without knowing what they did, at instants when nobody waits for them.

use countersign::proto::v1::{self as pb, call};
use countersign::tool::Outcome;
use serde_json::json;

use super::stage::{Closure, Gate, soon, stage};
use crate::support::{Client, USER, say, submit};

use super::stage::APP;

/// The call is in doubt when the server drains: it is asked about after the next start, and its body
/// does not run a second time meanwhile.
#[tokio::test]
async fn a_body_in_doubt_is_not_run_again_by_a_server_that_drains() {
    let gate = Gate::new();
    let cut = Closure::behind(&gate, "cut", Outcome::Unknown("cut off".into()));
    let runs = cut.runs();
    let mut stage = stage([cut]).await;
    let asked = stage.client.agents.run_async(say(APP, "", "call cut")).await;
    let mut stream = asked.unwrap().into_inner();
    gate.reached().await;
    let runner = stage.server.runner.clone();
    let stopping = tokio::spawn(stage.server.stop());
    soon(runner.draining().cancelled()).await;
    gate.open();
    gate.open();
    while let Ok(Some(_)) = stream.message().await {}
    drop((stream, stage.client));
    soon(stopping).await.unwrap();
    assert_eq!(runs.get(), 1);
}

/// Somebody answers while the body is at work; then it comes back and does not know.
#[tokio::test]
async fn a_body_in_doubt_of_a_call_that_is_answered_is_not_run_again() {
    let gate = Gate::new();
    let ask = Closure::behind(&gate, "ask", Outcome::Unknown("cut off".into())).long_running();
    let runs = ask.runs();
    let mut stage = stage([ask]).await;
    let mut client = stage.client.clone();
    let running = tokio::spawn(async move { client.run(say(APP, "", "call ask")).await });
    gate.reached().await;
    let open = running_call(&mut stage.client).await;
    let done = stage.client.submit(submit(&open, json!({"n": 1}))).await.unwrap();
    assert_eq!(done.call.unwrap().state(), call::State::Done);
    gate.open();
    gate.open();
    let told = soon(running).await.unwrap();
    assert_eq!(told.end.state(), pb::end_mark::State::Completed);
    assert_eq!(runs.get(), 1);
    assert!(told.end.held_calls.is_empty());
}

/// The call that is under way, by its event.
async fn running_call(client: &mut Client) -> pb::Call {
    let request = pb::ListSessionsRequest { user_id: USER.into(), ..Default::default() };
    let sessions = client.sessions.list_sessions(request).await.unwrap().into_inner().sessions;
    let events = client.events(APP, &sessions[0].id).await;
    let function_call = super::stage::calls(&events).remove(0);
    pb::Call { function_call: Some(function_call), ..Default::default() }
}
