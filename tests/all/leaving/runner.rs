//! The same below the wire: futures of the runner that are dropped at every poll.

use countersign::runner::{Caller, Follow, Item, Run, Runner, Submission};
use countersign::session::content::{Content, Object};
use countersign::session::decide::{Incoming, Incomings};
use countersign::session::id::{AppName, CallId, Principal, SessionId, SessionKey, UserId};

use super::*;

fn caller() -> Caller {
    Caller { principal: Principal::parse("user:local").unwrap(), mark: None }
}

fn key(session: &str) -> SessionKey {
    SessionKey {
        app: AppName::parse(APP).unwrap(),
        user: UserId::parse(USER).unwrap(),
        id: SessionId::parse(session).unwrap(),
    }
}

fn message(session: &str) -> Run {
    let SessionKey { app, user, id } = key(session);
    Run {
        app,
        user,
        session: Some(id),
        message: Some(Content::user("Please reimburse $200 for a trip")),
        state_delta: Object::new(),
        streaming: false,
        max_llm_calls: None,
        custom_metadata: Object::new(),
        invocation: None,
        after_sequence: 0,
    }
}

fn approval(call: &str) -> Submission {
    let response = json!({"status": "approved"}).as_object().cloned();
    let answer = Incoming {
        decision: None,
        call: CallId::parse(call).unwrap(),
        name: "ask_for_approval".into(),
        response,
        will_continue: None,
        field: String::new(),
    };
    Submission {
        etag: None,
        app: None,
        user: None,
        session: None,
        answers: Incomings {
            answers: vec![answer],
            invocation: None,
            expected_args_digest: None,
            skip_summarization: false,
            comment: String::new(),
            state_delta: Object::new(),
        },
    }
}

#[tokio::test]
async fn the_runner_finishes_what_is_dropped_at_any_poll() {
    let server = Server::sample().await;
    let mut watcher = server.client().await;
    let runner: Runner = server.runner.clone();
    for polls in 0.. {
        let name = format!("s{polls}");
        create(&mut watcher, &name).await;
        let run = polled(polls, runner.run(caller(), message(&name))).await;
        in_time("the run", at_rest(&server)).await;
        let mut there = came_to_an_end(&mut watcher, &name).await;
        if polls == 0 {
            assert_eq!(there, 0, "nothing was asked yet");
            watcher.run(say(APP, &name, "Please reimburse $200 for a trip")).await;
            there = 1;
        }
        assert_eq!(there, 1, "what was begun is finished");
        let held = session(&mut watcher, &name).await.held_call_ids;
        let answered = polled(polls, runner.submit(caller(), approval(&held[0]))).await;
        in_time("the answer", at_rest(&server)).await;
        let states = settled(&mut watcher, &name).await;
        let expected =
            if polls == 0 { invocation::State::Paused } else { invocation::State::Completed };
        assert_eq!(states, [expected], "after {polls} polls");
        if run.is_some() && answered.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn a_follower_that_is_dropped_at_any_poll_misses_nothing() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    create(&mut client, "s1").await;
    let runner = server.runner.clone();
    let mut follow = runner.watch(&key("s1"), 0, None).await.unwrap();
    let mut seen = Vec::new();
    let follower = async {
        let mut polls = 0;
        while seen.len() < 10 {
            polls = polls % 3 + 1;
            if let Some(item) = polled(polls, Follow::next(&mut follow)).await
                && let Item::Event(record) = item.unwrap()
            {
                seen.push(record.body.event().unwrap().sequence);
            }
            tokio::task::yield_now().await;
        }
    };
    let speaker = async {
        let told = client.run(run("s1")).await;
        let held = &told.end.held_calls[0];
        let done = client.submit(submit(held, json!({"status": "approved"}))).await.unwrap();
        client.follow(&done).await;
        client.run(say(APP, "s1", "Please reimburse $5 for tea")).await;
    };
    in_time("following", async { tokio::join!(follower, speaker) }).await;
    assert_eq!(seen, (1..=10).collect::<Vec<_>>());
}
