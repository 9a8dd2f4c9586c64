//! Bodies that come back without knowing what they did, at instants when nobody waits for them.

use std::sync::Arc;

use async_trait::async_trait;
use countersign::limits::Limits;
use countersign::model::{Error, Model, Pieces, Reply, Request};
use countersign::proto::v1::{self as pb, call, event, invocation};
use countersign::store::Clock;
use countersign::store::memory::Memory;
use countersign::tool::Outcome;
use serde_json::json;
use tokio::sync::Notify;

use super::stage::{APP, Closure, Gate, soon, stage};
use crate::support::{Client, Server, USER, agents, say, submit};

/// The call is in doubt when the server drains: it is asked about after the next start, and its
/// body does not run a second time meanwhile.
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

/// A model that is asked and never replies.
struct Mute(Arc<Notify>);

#[async_trait]
impl Model for Mute {
    async fn reply(&self, _: Request, _: &mut dyn Pieces) -> Result<Reply, Error> {
        self.0.notify_one();
        std::future::pending().await
    }
}

/// Servers that die one after another while a model is asked: in the end the run fails, so that the
/// session can be used again.
#[tokio::test]
async fn what_no_server_brings_on_is_given_up() {
    let asked = Arc::new(Notify::new());
    let store = Arc::new(Memory::new(Clock::system()));
    let start = async || {
        let limits = Limits { takeovers: 2, ..Limits::default() };
        let builder = agents("{name: clerk, model: mute}").model("mute", Mute(asked.clone()));
        Server::start_on(builder.limits(limits), store.clone()).await
    };
    let mut servers = vec![start().await];
    let mut client = servers[0].client().await;
    let mut stream = client.agents.run_async(say(APP, "", "hello")).await.unwrap().into_inner();
    let begin = stream.message().await.unwrap().unwrap().mark;
    let Some(event::Mark::Begin(begun)) = begin else { panic!("{begin:?}") };
    soon(asked.notified()).await;
    servers.push(start().await);
    soon(asked.notified()).await;
    servers.push(start().await);
    let request =
        pb::GetInvocationRequest { invocation_id: begun.invocation_id, ..Default::default() };
    let mut client = servers[2].client().await;
    let found = client.agents.get_invocation(request).await.unwrap().into_inner();
    assert_eq!((found.state(), &*found.error_code), (invocation::State::Failed, "GIVEN_UP"));
}
