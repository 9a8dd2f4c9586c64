//! Streams over their whole life: cut into pieces, quiet, unread, many at once, of what is deleted,
//! and with pieces of text.

use std::time::Duration;

use countersign::limits::Limits;
use countersign::proto::v1::event::Mark;
use countersign::proto::v1::{self as pb, end_mark::State};
use serde_json::json;
use tonic::Streaming;

use crate::requests::at_rest;
use crate::support::{Client, Server, USER, sample, say, submit};

mod followers;
mod pieces;
mod unread;

const APP: &str = "reimbursement_agent";

async fn create(client: &mut Client, app: &str, session: &str) {
    let request = pb::CreateSessionRequest {
        app_name: app.into(),
        user_id: USER.into(),
        session_id: session.into(),
        ..Default::default()
    };
    client.sessions.create_session(request).await.unwrap();
}

fn watching(app: &str, session: &str, after_sequence: i64) -> pb::WatchSessionRequest {
    pb::WatchSessionRequest {
        app_name: app.into(),
        user_id: USER.into(),
        session_id: session.into(),
        after_sequence,
        ..Default::default()
    }
}

async fn watch_session(
    client: &Client,
    app: &str,
    session: &str,
    after: i64,
) -> Streaming<pb::Event> {
    let mut sessions = client.clone().sessions;
    sessions.watch_session(watching(app, session, after)).await.unwrap().into_inner()
}

async fn next(stream: &mut Streaming<pb::Event>) -> pb::Event {
    let event = tokio::time::timeout(Duration::from_secs(20), stream.message()).await;
    event.expect("something comes").unwrap().expect("a stream ends with an end")
}

/// Entries until there are so many.
async fn entries(stream: &mut Streaming<pb::Event>, count: usize) -> Vec<pb::Event> {
    let mut entries = Vec::new();
    while entries.len() < count {
        let event = next(stream).await;
        if event.mark.is_none() && !event.partial {
            entries.push(event);
        }
    }
    entries
}

/// Entries until the stream's end, which is told too.
async fn to_end(stream: &mut Streaming<pb::Event>) -> (Vec<pb::Event>, pb::EndMark) {
    let mut entries = Vec::new();
    loop {
        let event = next(stream).await;
        match event.mark {
            None => entries.push(event),
            Some(Mark::End(end)) => {
                assert!(stream.message().await.unwrap().is_none(), "something behind the end");
                return (entries, end);
            }
            Some(_) => {}
        }
    }
}

/// A conversation of twelve entries.
async fn talk(client: &mut Client, session: &str) {
    for text in ["Please reimburse $50 for meals", "hello", "Please reimburse $5 for tea"] {
        let told = client.run(say(APP, session, text)).await;
        assert_eq!(told.end.state(), State::Completed);
    }
    client.run(say(APP, session, "hello again")).await;
}

#[tokio::test]
async fn a_stream_that_ends_of_age_goes_on_with_its_cursor() {
    let limits = Limits { stream_age: Duration::from_millis(3), ..Limits::default() };
    let server = Server::start(sample().limits(limits)).await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    let watcher = client.clone();
    let watched = async {
        let (mut seen, mut cursor, mut cuts) = (Vec::new(), 0, 0);
        while seen.len() < 12 {
            let mut stream = watch_session(&watcher, APP, "s1", cursor).await;
            let (entries, end) = to_end(&mut stream).await;
            assert_eq!(end.state(), State::Reconnect);
            seen.extend(entries);
            let last = seen.last().map_or(0, |event: &pb::Event| event.sequence);
            assert_eq!(end.after_sequence, last, "the cursor is the last that was sent");
            (cursor, cuts) = (end.after_sequence, cuts + 1);
        }
        (seen, cuts)
    };
    // The runs' own streams end of age too, and are gone on with.
    let talked = async {
        for text in ["Please reimburse $50 for meals", "hello", "Please reimburse $5 for tea", "hi"]
        {
            let mut request = say(APP, "s1", text);
            loop {
                let told = client.run(request.clone()).await;
                if told.end.state() == State::Completed {
                    break;
                }
                assert_eq!(told.end.state(), State::Reconnect);
                request.new_message = None;
                request.invocation_id = told.begin.invocation_id;
                request.after_sequence = told.end.after_sequence;
            }
        }
    };
    let ((seen, cuts), ()) = tokio::join!(watched, talked);
    assert!(cuts > 1, "it was cut");
    assert_eq!(seen, client.events(APP, "s1").await, "nothing is lost, nothing comes twice");
}

#[tokio::test]
async fn a_run_that_is_cut_at_every_instant_tells_everything_once() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    let first = client.run(say(APP, "s1", "Please reimburse $50 for meals")).await;
    at_rest(&server).await;
    let all = client.events(APP, "s1").await;
    // From every cursor on, the rest of it and its end.
    for after in 0..=all.len() {
        let request = pb::RunAsyncRequest {
            app_name: APP.into(),
            user_id: USER.into(),
            session_id: "s1".into(),
            invocation_id: first.begin.invocation_id.clone(),
            after_sequence: i64::try_from(after).unwrap(),
            ..Default::default()
        };
        let rest = client.run(request).await;
        assert_eq!(rest.events, all[after..]);
        assert_eq!((rest.end.state(), rest.end.after_sequence), (State::Completed, 4));
        let mut watching = watching(APP, "s1", i64::try_from(after).unwrap());
        watching.invocation_id = first.begin.invocation_id.clone();
        let mut stream = client.sessions.watch_session(watching).await.unwrap().into_inner();
        let (rest, end) = to_end(&mut stream).await;
        assert_eq!((rest.as_slice(), end.state()), (&all[after..], State::Completed));
    }
}

#[tokio::test]
async fn a_quiet_stream_beats() {
    let limits = Limits { heartbeat: Duration::from_millis(20), ..Limits::default() };
    let server = Server::start(sample().limits(limits)).await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    let mut follow = say(APP, "s1", "Please reimburse $200 for a trip");
    follow.run_config = Some(pb::RunConfig {
        on_pause: pb::run_config::OnPause::Follow.into(),
        ..Default::default()
    });
    let mut run = client.agents.run_async(follow).await.unwrap().into_inner();
    let held = loop {
        if let Some(Mark::Pause(pause)) = next(&mut run).await.mark {
            break pause.held_calls[0].clone();
        }
    };
    let mut watch = watch_session(&client, APP, "s1", 0).await;
    let mut changes = client
        .agents
        .watch_invocations(pb::WatchInvocationsRequest::default())
        .await
        .unwrap()
        .into_inner();
    let mut cursor = String::new();
    let mut beats = 0;
    while beats < 3 {
        let message = changes.message().await.unwrap().unwrap();
        use pb::watch_invocations_response::Update;
        match message.update.unwrap() {
            Update::Heartbeat(_) => {
                assert_eq!(message.cursor, cursor, "a heartbeat's cursor is the last one");
                beats += 1;
            }
            _ => cursor = message.cursor,
        }
    }
    for stream in [&mut run, &mut watch] {
        let mut beats = 0;
        while beats < 3 {
            let event = next(stream).await;
            if let Some(Mark::Heartbeat(beat)) = event.mark {
                assert_eq!((beat.last_sequence, event.id.as_str()), (4, ""));
                beats += 1;
            }
        }
    }
    // The pause's stream lives on and goes on.
    client.submit(submit(&held, json!({"status": "approved"}))).await.unwrap();
    let (rest, end) = to_end(&mut run).await;
    assert_eq!(end.state(), State::Completed);
    let sequences: Vec<_> = rest.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [5, 6, 7, 8], "the answer is told too");
}

#[tokio::test]
async fn a_draining_server_ends_its_streams() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    talk(&mut client, "s1").await;
    let mut follow = say(APP, "", "Please reimburse $200 for a trip");
    follow.run_config = Some(pb::RunConfig {
        on_pause: pb::run_config::OnPause::Follow.into(),
        ..Default::default()
    });
    let mut run = client.agents.run_async(follow).await.unwrap().into_inner();
    while !matches!(next(&mut run).await.mark, Some(Mark::Pause(_))) {}
    let mut watch = watch_session(&client, APP, "s1", 5).await;
    let seen = entries(&mut watch, 2).await;
    let mut changes = client
        .agents
        .watch_invocations(pb::WatchInvocationsRequest::default())
        .await
        .unwrap()
        .into_inner();
    changes.message().await.unwrap().unwrap();
    let stopping = tokio::spawn(server.stop());
    let (rest, end) = to_end(&mut watch).await;
    assert_eq!(end.state(), State::Reconnect);
    let last = rest.last().or(seen.last()).unwrap().sequence;
    assert_eq!(end.after_sequence, last);
    let (_, end) = to_end(&mut run).await;
    assert_eq!((end.state(), end.after_sequence), (State::Reconnect, 4));
    loop {
        let message = changes.message().await.unwrap().expect("an end");
        if let Some(pb::watch_invocations_response::Update::End(end)) = message.update {
            assert_eq!(end.state(), State::Reconnect);
            assert!(!message.cursor.is_empty());
            break;
        }
    }
    assert!(changes.message().await.unwrap().is_none());
    stopping.await.unwrap();
}
