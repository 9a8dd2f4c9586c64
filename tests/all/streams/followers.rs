//! Followers that do not read, that come early or late, and whose session goes.

use std::collections::BTreeMap;

use countersign::tool::{Context, Function};
use serde_json::Value;
use tokio::sync::mpsc;

use super::*;
use crate::support::{agents, reason};

/// An agent that says much, as often as it is asked.
pub const LOUD: &str = r#"
name: loud
model: scripted
tools:
  - name: noise
script:
  - when: {user: '^noise$'}
    call: {noise: {}}
  - when: always
    say: That was loud.
"#;

/// Its tool: 300 KB each time.
pub fn noise() -> Function {
    Function::new("noise", "", |_: BTreeMap<String, Value>, _: Context| async {
        Ok::<_, String>("x".repeat(300_000))
    })
}

#[tokio::test]
async fn a_follower_that_does_not_read_keeps_nobody_waiting() {
    let server = Server::start(agents(LOUD).tool(noise())).await;
    let mut client = server.client().await;
    create(&mut client, "loud", "s1").await;
    // A connection of its own, whose window fills.
    let slow = server.client().await;
    let mut unread = watch_session(&slow, "loud", "s1", 0).await;
    for _ in 0..20 {
        let told = client.run(say("loud", "s1", "noise")).await;
        assert_eq!(told.end.state(), State::Completed);
    }
    at_rest(&server).await;
    let sequences: Vec<_> =
        entries(&mut unread, 80).await.into_iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=80).collect::<Vec<_>>(), "it loses nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_followers_see_the_same_however_late() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    let (start, mut started) = mpsc::channel::<()>(64);
    let mut followers = Vec::new();
    for n in 0..24 {
        // Some are there before, and the others come while it is spoken.
        let (watcher, start) = (server.client().await, start.clone());
        followers.push(tokio::spawn(async move {
            for _ in 0..n * 3 {
                tokio::task::yield_now().await;
            }
            let mut stream = watch_session(&watcher, APP, "s1", 0).await;
            drop(start);
            entries(&mut stream, 12).await
        }));
    }
    drop(start);
    talk(&mut client, "s1").await;
    let all = client.events(APP, "s1").await;
    assert_eq!(all.len(), 12);
    for follower in followers {
        assert_eq!(follower.await.unwrap(), all);
    }
    assert!(started.recv().await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn answers_and_messages_at_once_are_told_to_all_in_order() {
    // Many writers of one log: handlers that answer and the driver that moves it.
    let server = Server::sample().await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    for round in 0..20 {
        let told = client.run(say(APP, "s1", "Please reimburse $200 for a trip")).await;
        let held = told.end.held_calls[0].clone();
        let cursor = told.end.after_sequence;
        let mut watch = watch_session(&client, APP, "s1", cursor).await;
        let (mut one, mut two, mut three) = (client.clone(), client.clone(), client.clone());
        let (answer, update, message) = tokio::join!(
            tokio::spawn(
                async move { one.submit(submit(&held, json!({"status": "approved"}))).await }
            ),
            tokio::spawn(async move {
                let request = pb::UpdateSessionStateRequest {
                    app_name: APP.into(),
                    user_id: USER.into(),
                    session_id: "s1".into(),
                    state_delta: Some(crate::support::object(json!({"round": round}))),
                    ..Default::default()
                };
                two.sessions.update_session_state(request).await
            }),
            tokio::spawn(async move { three.try_run(say(APP, "s1", "hello")).await }),
        );
        let done = answer.unwrap().unwrap();
        update.unwrap().unwrap();
        let taken = match message.unwrap() {
            Ok(told) => told.events.len() + 1,
            Err(refused) => {
                assert_eq!(reason(&refused).1, "INVOCATION_RUNNING");
                0
            }
        };
        let rest = client.follow(&done).await;
        assert_eq!(rest.end.state(), State::Completed);
        // The answer, a change of state, the payment and its words; and the greeting.
        let seen = entries(&mut watch, 5).await;
        let more = client.events(APP, "s1").await;
        let behind: Vec<_> = more.into_iter().filter(|event| event.sequence > cursor).collect();
        assert_eq!(seen, behind[..5]);
        assert!(behind.len() >= 5 && behind.len() <= 5 + taken, "{} {taken}", behind.len());
        let sequences: Vec<_> = behind.iter().map(|event| event.sequence).collect();
        let expected: Vec<_> = (cursor + 1..).take(behind.len()).collect();
        assert_eq!(sequences, expected);
    }
    at_rest(&server).await;
}

#[tokio::test]
async fn a_follower_of_a_deleted_session_is_told() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    let told = client.run(say(APP, "s1", "Please reimburse $200 for a trip")).await;
    at_rest(&server).await;
    let mut whole = watch_session(&client, APP, "s1", 0).await;
    let mut of_one = watching(APP, "s1", 4);
    of_one.invocation_id = told.begin.invocation_id.clone();
    let mut of_one = client.sessions.watch_session(of_one).await.unwrap().into_inner();
    assert!(matches!(next(&mut of_one).await.mark, Some(Mark::CaughtUp(_))));
    entries(&mut whole, 4).await;
    assert!(matches!(next(&mut whole).await.mark, Some(Mark::CaughtUp(_))));
    // One that has not read anything yet.
    use countersign::session::id::{AppName, SessionId, SessionKey, UserId};
    let key = SessionKey {
        app: AppName::parse(APP).unwrap(),
        user: UserId::parse(USER).unwrap(),
        id: SessionId::parse("s1").unwrap(),
    };
    let mut early = server.runner.watch(&key, 0, None).await.unwrap();
    let delete = pb::DeleteSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: "s1".into(),
        ..Default::default()
    };
    client.sessions.delete_session(delete).await.unwrap();
    // The same names again are another session.
    create(&mut client, APP, "s1").await;
    client.run(say(APP, "s1", "hello")).await;
    let (rest, end) = to_end(&mut of_one).await;
    assert_eq!(end.state(), State::Cancelled, "its held call ended cancelled first");
    assert_eq!(rest.len(), 1);
    let gone = loop {
        match whole.message().await {
            Ok(Some(event)) => assert!(event.sequence <= 5, "{event:?}"),
            Ok(None) => panic!("the stream ended without a word"),
            Err(status) => break status,
        }
    };
    assert_eq!(reason(&gone).1, "SESSION_NOT_FOUND");
    let gone = async {
        loop {
            if let Err(refusal) = early.next().await {
                break refusal;
            }
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(10), gone).await.expect("it is told");
    assert_eq!(gone.reason.as_str(), "SESSION_NOT_FOUND");
}
