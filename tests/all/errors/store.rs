//! A store that fails: what a caller is told is what happened.

use super::*;

const MUTATING: usize = 7;

/// Does the `n`th of what writes, by the names of a session with a held call.
async fn mutate(client: &mut Client, held: &pb::Call, n: usize) -> Result<(), Status> {
    let (app_name, user_id) = (APP.to_owned(), USER.to_owned());
    let session_id = held.session_id.clone();
    match n {
        0 => client.try_run(say(APP, "", "hello")).await.map(drop),
        1 => client.try_run(say(APP, &session_id, "hello")).await.map(drop),
        2 => client.submit(submit(held, json!({"status": "x"}))).await.map(drop),
        3 => {
            let answers = vec![answer(held, json!({"status": "x"}))];
            client.try_run(say_answers(APP, &session_id, answers)).await.map(drop)
        }
        4 => {
            let invocation_id = held.invocation_id.clone();
            let request = pb::CancelInvocationRequest { invocation_id, ..Default::default() };
            client.agents.cancel_invocation(request).await.map(drop)
        }
        5 => {
            let request = pb::CreateSessionRequest { app_name, user_id, ..Default::default() };
            client.sessions.create_session(request).await.map(drop)
        }
        6 => {
            let state_delta = Some(crate::support::object(json!({"a": 1, "user:b": 2})));
            let request = pb::UpdateSessionStateRequest {
                app_name,
                user_id,
                session_id,
                state_delta,
                ..Default::default()
            };
            client.sessions.update_session_state(request).await.map(drop)
        }
        _ => {
            let request =
                pb::DeleteSessionRequest { app_name, user_id, session_id, ..Default::default() };
            client.sessions.delete_session(request).await.map(drop)
        }
    }
}

async fn held(server: &Server, client: &mut Client, session: &str) -> pb::Call {
    create(client, session).await;
    let told = client.run(say(APP, session, "ask")).await;
    at_rest(server).await;
    told.end.held_calls[0].clone()
}

async fn print(client: &mut Client) -> String {
    let list = pb::ListSessionsRequest { page_size: 1000, ..Default::default() };
    let sessions = client.sessions.list_sessions(list).await.unwrap().into_inner();
    let list = pb::ListInvocationsRequest { page_size: 1000, ..Default::default() };
    let invocations = client.agents.list_invocations(list).await.unwrap().into_inner();
    format!("{sessions:?} {invocations:?}")
}

#[tokio::test]
async fn what_was_not_written_is_refused_and_can_be_repeated() {
    let server = Server::start(desk().0).await;
    let mut client = server.client().await;
    for n in 0..=MUTATING {
        let call = held(&server, &mut client, &format!("s{n}")).await;
        let before = (server.store.commits(), print(&mut client).await);
        server.store.fail_next(1, Fault::NotWritten);
        told(&mutate(&mut client, &call, n).await.unwrap_err(), "STORE_UNAVAILABLE");
        assert_eq!((server.store.commits(), print(&mut client).await), before, "{n}");
        mutate(&mut client, &call, n).await.unwrap();
        at_rest(&server).await;
    }
}

#[tokio::test]
async fn what_is_not_known_at_once_is_repeated_until_it_is() {
    let server = Server::start(desk().0).await;
    let mut client = server.client().await;
    for fault in [Fault::UnknownNotWritten, Fault::UnknownWritten] {
        for n in 0..=MUTATING {
            let call = held(&server, &mut client, &format!("{fault:?}{n}")).await;
            server.store.fail_next(1, fault);
            mutate(&mut client, &call, n).await.unwrap();
            at_rest(&server).await;
        }
    }
}

#[tokio::test]
async fn what_stays_unknown_is_told_as_that() {
    for fault in [Fault::UnknownNotWritten, Fault::UnknownWritten] {
        for n in 0..=MUTATING {
            let server = Server::start(desk().0).await;
            let mut client = server.client().await;
            let call = held(&server, &mut client, "s1").await;
            let before = print(&mut client).await;
            server.store.fail_next(20, fault);
            told(&mutate(&mut client, &call, n).await.unwrap_err(), "WRITE_OUTCOME_UNKNOWN");
            server.store.clear_faults();
            // What is seen from now on is what the store has, and what can move is moved.
            server.runner.tick_running().await.unwrap();
            at_rest(&server).await;
            let changed = print(&mut client).await != before;
            assert_eq!(changed, fault == Fault::UnknownWritten, "{fault:?} {n}");
            let list = pb::ListSessionsRequest::default();
            let listed = client.sessions.list_sessions(list).await.unwrap().into_inner();
            for session in listed.sessions {
                assert_eq!(session.running_invocation_id, "", "{fault:?} {n}");
            }
        }
    }
}

#[tokio::test]
async fn who_watches_sees_what_was_found_on_its_repeat() {
    let server = Server::start(desk().0).await;
    let mut client = server.client().await;
    create(&mut client, "s1").await;
    let request = pb::WatchInvocationsRequest::default();
    let mut watch = client.agents.watch_invocations(request).await.unwrap().into_inner();
    watch.message().await.unwrap();
    let request = pb::WatchSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: "s1".into(),
        ..Default::default()
    };
    let mut session = client.sessions.watch_session(request).await.unwrap().into_inner();
    session.message().await.unwrap();
    // Every write of the run, the last one too.
    server.store.fail_next(1_000, Fault::UnknownWritten);
    let refused = client.try_run(say(APP, "s1", "hello")).await.unwrap_err();
    told(&refused, "WRITE_OUTCOME_UNKNOWN");
    server.store.clear_faults();
    // Nobody else writes: the watchers were woken all the same.
    let event = session.message().await.unwrap().unwrap();
    assert_eq!((event.sequence, event.author.as_str()), (1, "user"));
    let update = watch.message().await.unwrap().unwrap().update.unwrap();
    let pb::watch_invocations_response::Update::Invocation(invocation) = update else {
        panic!("{update:?}")
    };
    assert_eq!(invocation.state(), pb::invocation::State::Running);
    server.runner.tick_running().await.unwrap();
    at_rest(&server).await;
}

#[tokio::test]
async fn a_queued_answer_is_no_larger_than_an_event() {
    let (builder, gate) = desk();
    let server = Server::start(builder).await;
    let mut client = server.client().await;
    let call = held(&server, &mut client, "s1").await;
    let mut stream = waits(&client, "s1").await;
    while stream.message().await.unwrap().unwrap().content.is_none() {}
    let before = server.store.commits();
    let large = json!({"status": "x".repeat(1 << 20)});
    let details = told(&client.submit(submit(&call, large)).await.unwrap_err(), "LIMIT_EXCEEDED");
    assert_eq!(details["limit"], "event_bytes");
    assert_eq!(server.store.commits(), before);
    let done = client.submit(submit(&call, json!({"status": "x"}))).await.unwrap();
    assert_eq!(done.outcome(), pb::submit_function_response_response::Outcome::Queued);
    assert_eq!(done.sequence, 0);
    gate.send_replace(true);
    assert_eq!(ended(&mut stream).await.state(), State::Completed);
    assert_eq!(client.follow(&done).await.end.state(), State::Completed);
    at_rest(&server).await;
}

#[tokio::test]
async fn a_cancel_is_not_done_by_doing_nothing() {
    let server = Server::start(desk().0).await;
    let mut client = server.client().await;
    create(&mut client, "s1").await;
    let before = server.store.commits();
    // The invocation is in the store, and nobody here knows it yet.
    server.store.fail_next(1_000, Fault::UnknownWritten);
    let mut other = client.clone();
    let run = tokio::spawn(async move { other.try_run(say(APP, "s1", "hello")).await });
    let invocation_id = loop {
        let list = pb::ListInvocationsRequest::default();
        let listed = client.agents.list_invocations(list).await.unwrap().into_inner();
        if let Some(invocation) = listed.invocations.first() {
            break invocation.id.clone();
        }
    };
    let request = pb::CancelInvocationRequest { invocation_id, ..Default::default() };
    let mut other = client.clone();
    let cancel = tokio::spawn(async move { other.agents.cancel_invocation(request).await });
    while server.store.commits() < before + 2 && !cancel.is_finished() {
        tokio::task::yield_now().await;
    }
    server.store.clear_faults();
    cancel.await.unwrap().unwrap();
    assert_eq!(run.await.unwrap().unwrap().end.state(), State::Cancelled);
    at_rest(&server).await;
}
