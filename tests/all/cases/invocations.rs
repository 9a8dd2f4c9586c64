//! Invocations: listed, watched, cancelled.

use countersign::proto::v1::{
    self as pb, end_mark::State, invocation, watch_invocations_response::Update,
};
use countersign::tool::Outcome;
use serde_json::json;
use tonic::{Code, Streaming};

use super::stage::{APP, Closure, Gate, soon, stage};
use super::watch::Open;
use crate::support::{Client, USER, reason, say, story, submit};

fn cancel(id: &str) -> pb::CancelInvocationRequest {
    pb::CancelInvocationRequest { invocation_id: id.into(), ..Default::default() }
}

/// A stream of WatchInvocations that is read piece by piece.
struct Watched(Streaming<pb::WatchInvocationsResponse>);

impl Watched {
    async fn open(client: &mut Client, request: pb::WatchInvocationsRequest) -> Self {
        Self(client.agents.watch_invocations(request).await.unwrap().into_inner())
    }

    /// The next message but heartbeats, with its cursor.
    async fn next(&mut self) -> (Update, String) {
        loop {
            let message = soon(self.0.message()).await.unwrap().expect("it has not ended");
            match message.update.expect("each message tells something") {
                Update::Heartbeat(_) => {}
                update => return (update, message.cursor),
            }
        }
    }

    /// Reads on until an invocation is in this state; updates may be merged.
    async fn until(&mut self, id: &str, state: invocation::State) -> (pb::Invocation, String) {
        loop {
            match self.next().await {
                (Update::Invocation(one), cursor) if one.id == id && one.state() == state => {
                    return (one, cursor);
                }
                (Update::Invocation(one), _) => assert_eq!(one.id, id, "{one:?}"),
                (other, _) => panic!("{other:?}"),
            }
        }
    }

    async fn removed(&mut self, id: &str) -> String {
        match self.next().await {
            (Update::Removed(removed), cursor) => {
                assert_eq!((removed.invocation_id.as_str(), removed.app_name.as_str()), (id, APP));
                assert_eq!(removed.user_id, USER);
                cursor
            }
            (other, _) => panic!("{other:?}"),
        }
    }

    async fn caught_up(&mut self) -> String {
        match self.next().await {
            (Update::CaughtUp(_), cursor) => cursor,
            (other, _) => panic!("{other:?}"),
        }
    }
}

fn left_again(update: Update) -> String {
    match update {
        Update::Removed(removed) => removed.invocation_id,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn invocations_are_watched_as_they_are_and_as_they_change() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let first = stage.say("call ask").await;
    let id = first.begin.invocation_id.clone();
    let all = pb::WatchInvocationsRequest { app_name: APP.into(), ..Default::default() };
    let paused = pb::WatchInvocationsRequest {
        states: vec![invocation::State::Paused.into()],
        ..all.clone()
    };
    let mut watcher = stage.server.client().await;
    let mut everything = Watched::open(&mut watcher, all.clone()).await;
    let mut inbox = Watched::open(&mut watcher, paused.clone()).await;
    for watched in [&mut everything, &mut inbox] {
        let (one, _) = watched.until(&id, invocation::State::Paused).await;
        assert_eq!(one.held_calls, first.end.held_calls);
        watched.caught_up().await;
    }

    // A second one enters both; answered, it leaves the inbox.
    let second = stage.say("call ask").await;
    let second_id = &second.begin.invocation_id;
    everything.until(second_id, invocation::State::Paused).await;
    let (_, cursor) = inbox.until(second_id, invocation::State::Paused).await;
    stage.answer(&second.end.held_calls[0], json!({"n": 1})).await;
    everything.until(second_id, invocation::State::Completed).await;
    let after_removal = inbox.removed(second_id).await;

    // Deleted, it leaves whoever had it.
    let request = pb::DeleteSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: first.begin.session_id.clone(),
        request_id: String::new(),
    };
    stage.client.sessions.delete_session(request).await.unwrap();
    inbox.removed(&id).await;
    loop {
        match everything.next().await.0 {
            Update::Removed(removed) => break assert_eq!(removed.invocation_id, id),
            Update::Invocation(one) => {
                assert_eq!((&one.id, one.state()), (&id, invocation::State::Cancelled))
            }
            other => panic!("{other:?}"),
        }
    }

    // From a cursor on, without a snapshot.
    let resumed = pb::WatchInvocationsRequest { cursor, ..paused.clone() };
    let mut resumed = Watched::open(&mut watcher, resumed).await;
    let mut left = [left_again(resumed.next().await.0), left_again(resumed.next().await.0)];
    left.sort();
    let mut both = [id.clone(), second_id.clone()];
    both.sort();
    assert_eq!(left, both);
    let resumed = pb::WatchInvocationsRequest { cursor: after_removal.clone(), ..paused };
    let mut resumed = Watched::open(&mut watcher, resumed).await;
    // What changed behind the cursor and does not match is told as removed, maybe again.
    while left_again(resumed.next().await.0) != id {}
    let other = pb::WatchInvocationsRequest { cursor: after_removal, ..all };
    let refused = watcher.agents.watch_invocations(other).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "CURSOR_INVALID".into()));
}

#[tokio::test]
async fn invocations_are_listed_by_state() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let held = stage.say("call ask").await;
    let over = stage.say("hello").await;
    let mut list = async |states: Vec<invocation::State>, session: &str| {
        let request = pb::ListInvocationsRequest {
            session_id: session.into(),
            states: states.into_iter().map(Into::into).collect(),
            ..Default::default()
        };
        let page = stage.client.agents.list_invocations(request).await.unwrap().into_inner();
        page.invocations.into_iter().map(|one| one.id).collect::<Vec<_>>()
    };
    let (held_id, over_id) = (&held.begin.invocation_id, &over.begin.invocation_id);
    assert_eq!(list(vec![], "").await, [over_id.clone(), held_id.clone()]);
    assert_eq!(list(vec![invocation::State::Paused], "").await, [held_id.as_str()]);
    assert_eq!(list(vec![], &over.begin.session_id).await, [over_id.as_str()]);
    assert_eq!(list(vec![invocation::State::Failed], "").await, [""; 0]);
}

#[tokio::test]
async fn a_paused_invocation_is_cancelled_at_once() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let id = &told.begin.invocation_id;
    let marked = pb::CancelInvocationRequest { request_id: "r1".into(), ..cancel(id) };
    for _ in 0..2 {
        let cancelled = stage.client.agents.cancel_invocation(marked.clone()).await.unwrap();
        let cancelled = cancelled.into_inner();
        assert_eq!(cancelled.state(), invocation::State::Cancelled);
        assert_eq!(cancelled.held_calls, []);
    }
    // Cancelling what is cancelled is fine without a mark too.
    stage.client.agents.cancel_invocation(cancel(id)).await.unwrap();
    let refused = stage.client.submit(submit(&told.end.held_calls[0], json!({}))).await;
    let refused = refused.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "CALL_CANCELLED".into()));
    let stored = story(&stage.events(&told.begin.session_id).await);
    assert!(stored[2].contains(r#""status":"cancelled""#), "{stored:?}");
    assert_eq!(stage.asked(), 1);
    stage.say_in(&told.begin.session_id, "hello").await;
    assert!(stage.prompt()[2].contains("cancelled"), "{:?}", stage.prompt());

    let over = stage.say("hello").await;
    let refused = stage.client.agents.cancel_invocation(cancel(&over.begin.invocation_id)).await;
    let refused = refused.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "INVOCATION_ENDED".into()));
    let refused = stage.client.agents.cancel_invocation(cancel("e-0")).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "INVOCATION_NOT_FOUND".into()));
    let theirs = pb::CancelInvocationRequest { user_id: "bob".into(), ..cancel(id) };
    let refused = stage.client.agents.cancel_invocation(theirs).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "INVOCATION_NOT_FOUND".into()));
}

#[tokio::test]
async fn a_body_at_work_is_awaited_when_its_invocation_is_cancelled() {
    let gate = Gate::new();
    let pay = Closure::behind(&gate, "pay", Outcome::Value(json!({"paid": 5})));
    let mut stage = stage([Closure::waits("ask"), pay]).await;
    let mut run = Open::run(&mut stage.client, say(APP, "", "call pay & ask")).await;
    let event = run.event().await;
    gate.reached().await;
    let cancelled = stage.client.agents.cancel_invocation(cancel(&event.invocation_id)).await;
    assert_eq!(cancelled.unwrap().into_inner().state(), invocation::State::Running);
    let calls = super::stage::calls(std::slice::from_ref(&event));
    let ask = pb::Call { function_call: Some(calls[1].clone()), ..Default::default() };
    let refused = stage.client.submit(submit(&ask, json!({}))).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "CALL_CANCELLED".into()));
    gate.open();
    let rest = run.rest().await;
    let told = story(&rest.events);
    assert_eq!(told[0], r#"clerk < pay({"paid":5})"#);
    assert!(told[1].starts_with("clerk < ask(") && told[1].contains("cancelled"), "{told:?}");
    assert_eq!((told.len(), rest.end.state(), stage.asked()), (2, State::Cancelled, 1));
}

#[tokio::test]
async fn a_model_at_work_is_not_awaited_when_its_invocation_is_cancelled() {
    let gate = Gate::new();
    let mut stage = super::stage::Setting::new().model_behind(&gate).set().await;
    let mut run = Open::run(&mut stage.client, say(APP, "", "hello")).await;
    gate.reached().await;
    let pb::BeginMark { session_id: session, invocation_id: id, .. } = run.begin().clone();
    stage.client.agents.cancel_invocation(cancel(&id)).await.unwrap();
    let rest = run.rest().await;
    assert_eq!((rest.events.len(), rest.end.state()), (0, State::Cancelled));
    gate.open();
    let next = stage.say_in(&session, "hello").await;
    assert_eq!(next.end.state(), State::Completed);
}
