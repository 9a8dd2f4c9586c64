//! Records that cannot be read: their session is refused, and all others go on.

use std::path::Path;

use rusqlite::{Connection, params};

use super::*;

/// The session of this id in the file.
fn sid(file: &Connection, session: &str) -> i64 {
    let sql = "SELECT place >> 32 FROM entries WHERE kind = 'session' AND id LIKE '%' || ?1";
    file.query_row(sql, [session], |row| row.get(0)).unwrap()
}

/// Puts something else in place of the session's record at a position, and has it read.
fn spoil(path: &Path, session: &str, position: i64, change: impl Fn(&str) -> String) {
    let file = Connection::open(path).unwrap();
    let sid = sid(&file, session);
    file.execute("DELETE FROM snapshots WHERE sid = ?1", [sid]).unwrap();
    let place = sid * (1 << 32) + position;
    let sql = "SELECT bytes FROM records WHERE place = ?1";
    let bytes: Vec<u8> = file.query_row(sql, [place], |row| row.get(0)).unwrap();
    let bytes = change(std::str::from_utf8(&bytes).unwrap()).into_bytes();
    let sql = "UPDATE records SET bytes = ?2 WHERE place = ?1";
    assert_eq!(file.execute(sql, params![place, bytes]).unwrap(), 1);
    // As if it had been driven when its server died: the next one tries to take it over.
    let sql = "UPDATE entries SET state = 'RUNNING' WHERE kind = 'invocation' AND place >> 32 = ?1";
    assert_eq!(file.execute(sql, [sid]).unwrap(), 1);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_keeps_its_session_only() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("countersign.db");
    let server = Server::stored(desk().0.sqlite(&path)).await;
    let mut client = server.client().await;
    let spoilt = ["cut", "future", "other", "first"];
    let mut held = BTreeMap::new();
    for session in spoilt.into_iter().chain(["good"]) {
        create(&mut client, session).await;
        let call = client.run(say(APP, session, "ask")).await.end.held_calls[0].clone();
        held.insert(session, call);
    }
    at_rest(&server).await;
    drop(client);
    server.stop().await;

    spoil(&path, "cut", 4, |record| record[..record.len() / 2].to_owned());
    spoil(&path, "future", 5, |record| record.replacen("{\"v\":1,", "{\"v\":2,", 1));
    spoil(&path, "other", 3, |_| "{\"v\":1,\"r\":{}}".to_owned());
    spoil(&path, "first", 1, |_| String::new());

    let server = Server::stored(desk().0.sqlite(&path)).await;
    let mut client = server.client().await;
    for session in spoilt {
        for refused in refusals(&mut client, &held[session]).await {
            told(&refused, "SESSION_QUARANTINED");
        }
    }
    // The others go on.
    let list = pb::ListSessionsRequest::default();
    let listed = client.sessions.list_sessions(list).await.unwrap().into_inner();
    let ids: Vec<_> = listed.sessions.iter().map(|session| session.id.as_str()).collect();
    assert_eq!(ids, ["good"]);
    let list = pb::ListInvocationsRequest::default();
    let listed = client.agents.list_invocations(list).await.unwrap().into_inner();
    assert_eq!(listed.invocations.len(), 5, "what happened can still be seen");
    let done = client.submit(submit(&held["good"], json!({"status": "x"}))).await.unwrap();
    assert_eq!(client.follow(&done).await.end.state(), State::Completed);
    assert_eq!(client.say(APP, "ask").await.end.state(), State::Paused);
    while server.runner.tick_deadlines().await.unwrap() {}
    while server.runner.tick_running().await.unwrap() {}
    at_rest(&server).await;
    server.stop().await;
}

/// What everything that needs the session's log is refused with.
async fn refusals(client: &mut Client, held: &pb::Call) -> Vec<Status> {
    let (app_name, user_id, session_id) =
        (held.app_name.clone(), held.user_id.clone(), held.session_id.clone());
    let get = pb::GetSessionRequest {
        app_name: app_name.clone(),
        user_id: user_id.clone(),
        session_id: session_id.clone(),
    };
    let list = pb::ListEventsRequest {
        app_name: app_name.clone(),
        user_id: user_id.clone(),
        session_id: session_id.clone(),
        ..Default::default()
    };
    let watch = pb::WatchSessionRequest {
        app_name: app_name.clone(),
        user_id: user_id.clone(),
        session_id: session_id.clone(),
        ..Default::default()
    };
    let update = pb::UpdateSessionStateRequest {
        app_name,
        user_id,
        session_id: session_id.clone(),
        state_delta: Some(crate::support::object(json!({"a": 1}))),
        ..Default::default()
    };
    let cancel = pb::CancelInvocationRequest {
        invocation_id: held.invocation_id.clone(),
        ..Default::default()
    };
    vec![
        client.sessions.get_session(get).await.map(drop).unwrap_err(),
        client.sessions.list_events(list).await.map(drop).unwrap_err(),
        client.sessions.watch_session(watch).await.map(drop).unwrap_err(),
        client.sessions.update_session_state(update).await.map(drop).unwrap_err(),
        client.agents.cancel_invocation(cancel).await.map(drop).unwrap_err(),
        client.try_run(say(APP, &session_id, "hello")).await.map(drop).unwrap_err(),
        client.submit(submit(held, json!({"status": "x"}))).await.map(drop).unwrap_err(),
    ]
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_hides_no_other() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("countersign.db");
    let server = Server::stored(desk().0.sqlite(&path)).await;
    let mut client = server.client().await;
    let mut held = BTreeMap::new();
    for session in ["bad", "good"] {
        create(&mut client, session).await;
        let call = client.run(say(APP, session, "ask")).await.end.held_calls[0].clone();
        held.insert(session, call);
    }
    server.stop().await;
    let file = Connection::open(&path).unwrap();
    let sql = "UPDATE entries SET bytes = x'7b' WHERE kind IN ('call', 'invocation') AND place >> 32 = \
               (SELECT place >> 32 FROM entries WHERE kind = 'session' AND id LIKE '%bad')";
    assert_eq!(file.execute(sql, []).unwrap(), 2);
    drop(file);
    let server = Server::stored(desk().0.sqlite(&path)).await;
    let mut client = server.client().await;
    let refused = client.submit(submit(&held["bad"], json!({"status": "x"}))).await.unwrap_err();
    told(&refused, "SESSION_QUARANTINED");
    let list = pb::ListInvocationsRequest::default();
    let listed = client.agents.list_invocations(list).await.unwrap().into_inner();
    let ids: Vec<_> = listed.invocations.iter().map(|one| one.session_id.as_str()).collect();
    assert_eq!(ids, ["good"]);
    let watch = pb::WatchInvocationsRequest::default();
    let mut watch = client.agents.watch_invocations(watch).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap().update.unwrap();
    let pb::watch_invocations_response::Update::Invocation(first) = first else {
        panic!("{first:?}")
    };
    assert_eq!(first.session_id, "good");
    let done = client.submit(submit(&held["good"], json!({"status": "x"}))).await.unwrap();
    assert_eq!(client.follow(&done).await.end.state(), State::Completed);
    drop(watch);
    server.stop().await;
}
