//! Streams: of a run that pauses, of a session, and re-attaching to them.

use countersign::proto::v1::{self as pb, end_mark::State, event::Mark, run_config};
use countersign::tool::Outcome;
use serde_json::json;
use tonic::{Code, Streaming};

use super::stage::{APP, Closure, Gate, Stage, soon, stage};
use crate::support::{Client, Told, USER, reason, say, story, submit};

/// A stream that is read piece by piece.
pub struct Open {
    stream: Streaming<pb::Event>,
    begin: pb::BeginMark,
}

impl Open {
    /// The stream of RunAsync.
    pub async fn run(client: &mut Client, request: pb::RunAsyncRequest) -> Self {
        let stream = client.agents.run_async(request).await.unwrap().into_inner();
        let mut open = Self { stream, begin: pb::BeginMark::default() };
        match open.next().await.mark {
            Some(Mark::Begin(begin)) => open.begin = begin,
            other => panic!("no begin, but {other:?}"),
        }
        open
    }

    /// The stream of WatchSession.
    pub async fn watch(client: &mut Client, request: pb::WatchSessionRequest) -> Self {
        let stream = client.sessions.watch_session(request).await.unwrap().into_inner();
        Self { stream, begin: pb::BeginMark::default() }
    }

    /// What it began with.
    pub fn begin(&self) -> &pb::BeginMark {
        &self.begin
    }

    /// The next message but heartbeats.
    pub async fn next(&mut self) -> pb::Event {
        loop {
            let event = soon(self.stream.message()).await.unwrap().expect("it has not ended");
            if !matches!(event.mark, Some(Mark::Heartbeat(_))) {
                return event;
            }
        }
    }

    /// The next message, which is an entry.
    pub async fn event(&mut self) -> pb::Event {
        let event = self.next().await;
        assert_eq!(event.mark, None);
        event
    }

    /// The next message, which is a mark.
    pub async fn mark(&mut self) -> Mark {
        let event = self.next().await;
        event.mark.clone().unwrap_or_else(|| panic!("no mark, but {event:?}"))
    }

    /// The call of the next event, as much of it as an answer needs.
    pub async fn call(&mut self) -> pb::Call {
        let event = self.event().await;
        let call = super::stage::calls(&[event])[0].clone();
        pb::Call { function_call: Some(call), ..Default::default() }
    }

    /// All that is left of it.
    pub async fn rest(&mut self) -> Told {
        let mut events = Vec::new();
        let end = loop {
            let event = self.next().await;
            match event.mark {
                None => events.push(event),
                Some(Mark::End(end)) => break end,
                Some(other) => panic!("an unexpected mark: {other:?}"),
            }
        };
        assert!(soon(self.stream.message()).await.unwrap().is_none());
        Told { begin: self.begin.clone(), events, end }
    }
}

fn watch(session: &str, after_sequence: i64) -> pb::WatchSessionRequest {
    pb::WatchSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
        after_sequence,
        invocation_id: String::new(),
    }
}

fn attach(told: &Told, after_sequence: i64) -> pb::RunAsyncRequest {
    pb::RunAsyncRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: told.begin.session_id.clone(),
        invocation_id: told.begin.invocation_id.clone(),
        after_sequence,
        ..Default::default()
    }
}

fn following(mut request: pb::RunAsyncRequest) -> pb::RunAsyncRequest {
    let on_pause = run_config::OnPause::Follow.into();
    request.run_config = Some(pb::RunConfig { on_pause, ..Default::default() });
    request
}

async fn answered(stage: &mut Stage, call: &pb::Call, more: bool) -> i64 {
    let mut request = submit(call, json!({"more": more}));
    request.function_response.as_mut().unwrap().will_continue = Some(more);
    stage.client.submit(request).await.unwrap().after_sequence
}

#[tokio::test]
async fn a_stream_may_wait_at_pauses_and_go_on() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let mut run = Open::run(&mut stage.client, following(say(APP, "", "call ask"))).await;
    for _ in 0..3 {
        run.event().await;
    }
    let Mark::Pause(pause) = run.mark().await else { panic!("no pause") };
    let call = &pause.held_calls[0];
    assert_eq!(call.last_response.as_ref().unwrap().name, "ask");

    // Progress: it is shown, told, and the invocation pauses again.
    answered(&mut stage, call, true).await;
    let shown = [run.event().await, run.event().await];
    assert_eq!(
        story(&shown),
        [r#"user < ask({"more":true})"#, r#"clerk: heard ask {"more":true}"#]
    );
    assert!(matches!(run.mark().await, Mark::Pause(pause) if pause.held_calls.len() == 1));
    answered(&mut stage, call, false).await;
    let rest = run.rest().await;
    assert_eq!(
        story(&rest.events),
        [r#"user < ask({"more":false})"#, r#"clerk: heard ask {"more":false}"#]
    );
    assert_eq!((rest.end.state(), rest.end.after_sequence), (State::Completed, 8));
}

#[tokio::test]
async fn what_others_say_in_the_session_is_not_in_a_runs_stream() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut run = Open::run(&mut stage.client, following(say(APP, "", "call ask"))).await;
    run.event().await;
    let Mark::Pause(pause) = run.mark().await else { panic!("no pause") };
    let session = run.begin.session_id.clone();
    stage.say_in(&session, "hello").await;
    answered(&mut stage, &pause.held_calls[0], false).await;
    let rest = run.rest().await;
    assert_eq!(rest.events.len(), 2);
    assert_eq!((rest.end.state(), rest.end.after_sequence), (State::Completed, 6));
}

#[tokio::test]
async fn an_invocation_can_be_followed_again() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let told = stage.say("call ask").await;
    let done = answered(&mut stage, &told.end.held_calls[0], false).await;
    let rest = soon(stage.client.run(attach(&told, done))).await;
    assert_eq!(story(&rest.events), [r#"clerk: heard ask {"more":false}"#]);

    // All of it, its message too; a pause that it has left behind is not shown.
    let whole = soon(stage.client.run(attach(&told, 0))).await;
    let events = stage.events(&told.begin.session_id).await;
    assert_eq!((&whole.events, &whole.end), (&events, &rest.end));
    let part = soon(stage.client.run(attach(&told, 3))).await;
    assert_eq!(part.events, events[3..]);
    let by_id = pb::RunAsyncRequest { session_id: String::new(), ..attach(&told, 3) };
    assert_eq!(soon(stage.client.run(by_id)).await.events, part.events);
}

#[tokio::test]
async fn a_cursor_behind_an_invocations_end_still_finds_its_end() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let over = stage.say("hello").await;
    let session = over.begin.session_id.clone();
    let held = stage.say_in(&session, "call ask").await;
    stage.say_in(&session, "hello again").await;
    let last = stage.events(&session).await.len() as i64;
    let again = soon(stage.client.run(attach(&over, last))).await;
    assert_eq!((again.events.len(), again.end.state()), (0, State::Completed));
    assert_eq!(again.end.after_sequence, last);
    let again = soon(stage.client.run(attach(&held, last))).await;
    assert_eq!((again.events.len(), again.end.state()), (0, State::Paused));
    assert_eq!(again.end.held_calls, held.end.held_calls);
    let request = pb::WatchSessionRequest {
        invocation_id: over.begin.invocation_id.clone(),
        ..watch(&session, last)
    };
    let mut watched = Open::watch(&mut stage.client, request).await;
    assert_eq!(watched.rest().await.end.state(), State::Completed);
}

#[tokio::test]
async fn a_run_goes_on_without_its_client() {
    let gate = Gate::new();
    let mut stage = stage([Closure::behind(&gate, "pay", Outcome::Nothing)]).await;
    let mut client = stage.server.client().await;
    let mut run = Open::run(&mut client, say(APP, "", "call pay")).await;
    run.event().await;
    let begin = run.begin.clone();
    drop((run, client));
    gate.reached().await;
    let told = Told { begin, events: Vec::new(), end: pb::EndMark::default() };
    let mut again = Open::run(&mut stage.client, attach(&told, 2)).await;
    gate.open();
    let rest = again.rest().await;
    assert_eq!((rest.events.len(), rest.end.state()), (2, State::Completed));
}

#[tokio::test]
async fn a_session_is_watched_from_its_log_into_life() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let mut watcher = stage.server.client().await;
    let mut whole = Open::watch(&mut watcher, watch(&session, 0)).await;
    let mut late = Open::watch(&mut watcher, watch(&session, 2)).await;
    let past = [whole.event().await, whole.event().await];
    assert_eq!(story(&past), ["user: call ask", "clerk > ask({})"]);
    for watched in [&mut whole, &mut late] {
        let Mark::CaughtUp(mark) = watched.mark().await else { panic!("not caught up") };
        assert_eq!(mark.last_sequence, 2);
    }
    stage.say_in(&session, "hello").await;
    answered(&mut stage, &told.end.held_calls[0], false).await;
    for watched in [&mut whole, &mut late] {
        let mut live = Vec::new();
        for _ in 0..4 {
            live.push(watched.event().await);
        }
        let sequences: Vec<_> = live.iter().map(|event| event.sequence).collect();
        assert_eq!(sequences, [3, 4, 5, 6]);
    }

    let beyond = stage.client.sessions.watch_session(watch(&session, 7)).await.unwrap_err();
    assert_eq!(reason(&beyond), (Code::InvalidArgument, "CURSOR_INVALID".into()));
    let missing = stage.client.sessions.watch_session(watch("none", 0)).await.unwrap_err();
    assert_eq!(reason(&missing), (Code::NotFound, "SESSION_NOT_FOUND".into()));
}

#[tokio::test]
async fn a_watcher_of_one_invocation_sees_that_one_to_its_end() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let request = pb::WatchSessionRequest {
        invocation_id: told.begin.invocation_id.clone(),
        ..watch(&session, 1)
    };
    let mut watched = Open::watch(&mut stage.client, request.clone()).await;
    assert_eq!(watched.event().await.sequence, 2);
    assert!(matches!(watched.mark().await, Mark::CaughtUp(_)));
    stage.say_in(&session, "hello").await;
    answered(&mut stage, &told.end.held_calls[0], false).await;
    let rest = watched.rest().await;
    let sequences: Vec<_> = rest.events.iter().map(|event| event.sequence).collect();
    assert_eq!((sequences, rest.end.state()), (vec![5, 6], State::Completed));

    let unknown = pb::WatchSessionRequest { invocation_id: "e-0".into(), ..request };
    let refused = stage.client.sessions.watch_session(unknown).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "INVOCATION_NOT_FOUND".into()));
}

#[tokio::test]
async fn a_watcher_sees_a_sessions_calls_end_before_it_is_deleted() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut run = Open::run(&mut stage.client, following(say(APP, "", "call ask"))).await;
    let session = run.begin.session_id.clone();
    run.event().await;
    assert!(matches!(run.mark().await, Mark::Pause(_)));
    let mut watched = Open::watch(&mut stage.client, watch(&session, 2)).await;
    assert!(matches!(watched.mark().await, Mark::CaughtUp(_)));
    let request = pb::DeleteSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session,
        request_id: String::new(),
    };
    stage.client.sessions.delete_session(request).await.unwrap();
    let rest = run.rest().await;
    assert!(story(&rest.events)[0].contains("cancelled"), "{:?}", story(&rest.events));
    assert_eq!(rest.end.state(), State::Cancelled);
    assert!(story(&[watched.event().await])[0].contains("cancelled"));
    let gone = soon(watched.stream.message()).await.unwrap_err();
    assert_eq!(reason(&gone), (Code::NotFound, "SESSION_NOT_FOUND".into()));
}

#[tokio::test]
async fn streams_end_with_reconnect_when_the_server_drains() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut run = Open::run(&mut stage.client, following(say(APP, "", "call ask"))).await;
    run.event().await;
    assert!(matches!(run.mark().await, Mark::Pause(_)));
    let session = run.begin.session_id.clone();
    let mut watched = Open::watch(&mut stage.client, watch(&session, 2)).await;
    assert!(matches!(watched.mark().await, Mark::CaughtUp(_)));
    let stopped = tokio::spawn(stage.server.stop());
    for open in [&mut run, &mut watched] {
        let end = open.rest().await.end;
        assert_eq!((end.state(), end.after_sequence), (State::Reconnect, 2));
    }
    drop((run, watched, stage.client));
    soon(stopped).await.unwrap();
}
