//! Sessions: made, read, listed, deleted; their events and their state.

use std::time::Duration;

use countersign::limits::Limits;
use countersign::proto::v1 as pb;
use countersign::proto::wkt;
use countersign::store::Clock;
use countersign::tool::Outcome;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::stage::{APP, Closure, Gate, Setting, Stage, stage};
use crate::support::{Server, USER, answer, fields, json, object, reason, sample, say};
use crate::support::{say_answers, story, submit};

fn create(id: &str, state: Value) -> pb::CreateSessionRequest {
    pb::CreateSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: id.into(),
        state: (!state.is_null()).then(|| object(state)),
        ..Default::default()
    }
}

fn delete(id: &str) -> pb::DeleteSessionRequest {
    pb::DeleteSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: id.into(),
        ..Default::default()
    }
}

fn list(id: &str) -> pb::ListEventsRequest {
    pb::ListEventsRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: id.into(),
        ..Default::default()
    }
}

async fn get(stage: &mut Stage, user: &str, id: &str) -> Result<pb::Session, Status> {
    let request =
        pb::GetSessionRequest { app_name: APP.into(), user_id: user.into(), session_id: id.into() };
    Ok(stage.client.sessions.get_session(request).await?.into_inner())
}

async fn state(stage: &mut Stage, user: &str, id: &str) -> Value {
    json(&get(stage, user, id).await.unwrap().state.unwrap())
}

fn missing() -> (Code, String) {
    (Code::NotFound, "SESSION_NOT_FOUND".into())
}

#[tokio::test]
async fn case_103_a_session_is_made_once() {
    let mut stage = stage([]).await;
    let made = stage.client.sessions.create_session(create("s1", json!({"a": 1}))).await.unwrap();
    let made = made.into_inner();
    assert_eq!((made.id.as_str(), made.last_sequence), ("s1", 0));
    assert_eq!(json(made.state.as_ref().unwrap()), json!({"a": 1}));
    let again = stage.client.sessions.create_session(create("s1", Value::Null)).await.unwrap_err();
    assert_eq!(reason(&again), (Code::AlreadyExists, "SESSION_EXISTS".into()));
    let marked = pb::CreateSessionRequest { request_id: "r1".into(), ..create("s2", Value::Null) };
    let one = stage.client.sessions.create_session(marked.clone()).await.unwrap().into_inner();
    let two = stage.client.sessions.create_session(marked).await.unwrap().into_inner();
    assert_eq!(one, two);
    let unknown = pb::CreateSessionRequest { app_name: "x".into(), ..create("s", Value::Null) };
    let refused = stage.client.sessions.create_session(unknown).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "AGENT_NOT_FOUND".into()));
}

#[tokio::test]
async fn case_104_a_missing_session_is_not_found() {
    let mut stage = stage([]).await;
    assert_eq!(reason(&get(&mut stage, USER, "none").await.unwrap_err()), missing());
    let refused = stage.client.sessions.list_events(list("none")).await.unwrap_err();
    assert_eq!(reason(&refused), missing());
}

#[tokio::test]
async fn case_105_deleting_a_missing_session_is_fine() {
    let mut stage = stage([]).await;
    stage.client.sessions.delete_session(delete("none")).await.unwrap();
}

#[tokio::test]
async fn case_106_nothing_is_appended_to_a_missing_session() {
    let mut stage = stage([]).await;
    let refused = stage.client.try_run(say(APP, "none", "hello")).await.unwrap_err();
    assert_eq!(reason(&refused), missing());
    let update = pb::UpdateSessionStateRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: "none".into(),
        state_delta: Some(object(json!({"a": 1}))),
        ..Default::default()
    };
    let refused = stage.client.sessions.update_session_state(update).await.unwrap_err();
    assert_eq!(reason(&refused), missing());
    let unknown = stage.client.try_run(say("nobody", "", "hello")).await.unwrap_err();
    assert_eq!(reason(&unknown), (Code::NotFound, "AGENT_NOT_FOUND".into()));
}

#[tokio::test]
async fn case_107_the_newest_events_are_listed_in_their_order() {
    let mut stage = stage([]).await;
    let told = stage.say("one").await;
    let session = told.begin.session_id;
    stage.say_in(&session, "two").await;
    for (recent, sequences) in [(0, vec![]), (2, vec![3, 4]), (9, vec![1, 2, 3, 4])] {
        let request = pb::ListEventsRequest { num_recent_events: Some(recent), ..list(&session) };
        let page = stage.client.sessions.list_events(request).await.unwrap().into_inner();
        let listed: Vec<_> = page.events.iter().map(|event| event.sequence).collect();
        assert_eq!((listed, page.next_page_token), (sequences, String::new()), "{recent}");
    }
    let negative = pb::ListEventsRequest { num_recent_events: Some(-1), ..list(&session) };
    let refused = stage.client.sessions.list_events(negative).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "FIELD_INVALID".into()));
    assert_eq!(fields(&refused), ["num_recent_events"]);
}

#[tokio::test]
async fn events_are_listed_from_a_time_on_and_in_pages() {
    let clock = Clock::manual(1_000_000_000);
    let mut stage = Setting::new().clock(&clock).set().await;
    let told = stage.say("one").await;
    let session = told.begin.session_id;
    clock.advance(Duration::from_secs(5));
    stage.say_in(&session, "two").await;
    let after_time = Some(wkt::Timestamp::from_micros(1_005_000_000));
    let request = pb::ListEventsRequest { after_time, ..list(&session) };
    let page = stage.client.sessions.list_events(request).await.unwrap().into_inner();
    assert_eq!(story(&page.events), ["user: two", "clerk: you said: two"]);

    let mut all = Vec::new();
    let mut request = pb::ListEventsRequest { page_size: 3, ..list(&session) };
    loop {
        let page = stage.client.sessions.list_events(request.clone()).await.unwrap().into_inner();
        all.extend(page.events);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(all, stage.events(&session).await);
    request.num_recent_events = Some(1);
    let refused = stage.client.sessions.list_events(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "CURSOR_INVALID".into()));
}

/// A tool that writes the state that it is told to, and returns what it sees.
fn write() -> Closure {
    Closure::new("write", |args, context| async move {
        for (key, value) in args {
            context.set(key, value);
        }
        let seen = ["app:a", "user:u", "s", "temp:t"].map(|key| (key, context.get(key)));
        let seen = seen.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
        Outcome::Value(Value::Object(seen.collect()))
    })
}

#[tokio::test]
async fn case_109_state_is_seen_by_those_whose_it_is() {
    let mut stage = stage([write(), Closure::waits("ask")]).await;
    let call = r#"call write {"app:a":1,"user:u":2,"s":3,"temp:t":4}"#;
    let told = stage.say(call).await;
    let delta = told.events[1].actions.as_ref().unwrap().state_delta.as_ref().unwrap();
    assert_eq!(json(delta), json!({"app:a": 1, "user:u": 2, "s": 3, "temp:t": 4}));
    let session = told.begin.session_id;
    let expected = json!({"app:a": 1, "user:u": 2, "s": 3});
    assert_eq!(state(&mut stage, USER, &session).await, expected);

    // Another session of the user, and one of another user.
    stage.client.sessions.create_session(create("s2", Value::Null)).await.unwrap();
    assert_eq!(state(&mut stage, USER, "s2").await, json!({"app:a": 1, "user:u": 2}));
    let other = pb::CreateSessionRequest { user_id: "bob".into(), ..create("s2", Value::Null) };
    stage.client.sessions.create_session(other).await.unwrap();
    assert_eq!(state(&mut stage, "bob", "s2").await, json!({"app:a": 1}));

    // `temp:` state is gone with its invocation; null removes.
    let told = stage.say_in(&session, "call write").await;
    assert_eq!(story(&told.events)[1], r#"clerk < write({"app:a":1,"s":3,"user:u":2})"#);
    stage.say_in(&session, r#"call write {"user:u":null,"s":null}"#).await;
    assert_eq!(state(&mut stage, USER, &session).await, json!({"app:a": 1}));
    assert_eq!(state(&mut stage, USER, "s2").await, json!({"app:a": 1}));
}

#[tokio::test]
async fn temp_state_lives_over_the_pauses_of_its_invocation() {
    let setting = Setting::new().tool(write()).tool(Closure::waits("ask"));
    let write =
        |name: &str| (name == "ask").then(|| super::stage::call_of("write", Default::default()));
    let mut stage = setting.cue(move |heard| write(&heard.name)).set().await;
    let mut request = say(APP, "", "call ask");
    request.state_delta = Some(object(json!({"temp:t": 7, "s": 1})));
    let told = stage.client.run(request).await;
    let session = told.begin.session_id.clone();
    // Another invocation in between does not see it.
    let chat = stage.say_in(&session, "call write").await;
    assert_eq!(story(&chat.events)[1], r#"clerk < write({"s":1})"#);
    let rest = stage.answer(&told.end.held_calls[0], json!({"ok": true})).await;
    assert_eq!(story(&rest.events)[1], r#"clerk < write({"s":1,"temp:t":7})"#);
}

#[tokio::test]
async fn a_caller_sets_what_is_his() {
    let mut stage = stage([write()]).await;
    stage.client.sessions.create_session(create("s1", json!({"user:u": 1, "s": 2}))).await.unwrap();
    assert_eq!(state(&mut stage, USER, "s1").await, json!({"user:u": 1, "s": 2}));
    let update = |delta: Value| pb::UpdateSessionStateRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: "s1".into(),
        state_delta: Some(object(delta)),
        ..Default::default()
    };
    let changed = stage.client.sessions.update_session_state(update(json!({"s": null, "n": 3})));
    let changed = changed.await.unwrap().into_inner();
    assert_eq!(json(changed.state.as_ref().unwrap()), json!({"n": 3, "user:u": 1}));
    assert_eq!(changed.last_sequence, 1);
    let events = stage.events("s1").await;
    let delta = events[0].actions.as_ref().unwrap().state_delta.as_ref().unwrap();
    assert_eq!(json(delta), json!({"n": 3, "s": null}));
    assert!(events[0].invocation_id.starts_with("p-"), "{}", events[0].invocation_id);

    for (delta, code, why) in [
        (json!({"app:a": 1}), Code::PermissionDenied, "NOT_PERMITTED"),
        (json!({"temp:t": 1}), Code::InvalidArgument, "FIELD_INVALID"),
        (json!({}), Code::InvalidArgument, "FIELD_INVALID"),
        (json!({"": 1}), Code::InvalidArgument, "FIELD_INVALID"),
    ] {
        let refused = stage.client.sessions.update_session_state(update(delta.clone())).await;
        assert_eq!(reason(&refused.unwrap_err()), (code, why.to_owned()), "{delta}");
    }
    let mut request = say(APP, "s1", "hello");
    request.state_delta = Some(object(json!({"app:a": 1})));
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::PermissionDenied, "NOT_PERMITTED".into()));
    assert_eq!(stage.events("s1").await.len(), 1);
}

#[tokio::test]
async fn case_111_events_of_one_instant_keep_their_order() {
    let clock = Clock::manual(1_769_860_800_250_000);
    let mut stage = Setting::new().tool(Closure::waits("ask")).clock(&clock).set().await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    stage.say_in(&session, "hello").await;
    stage.answer(&told.end.held_calls[0], json!({"n": 1})).await;
    let events = stage.events(&session).await;
    let sequences: Vec<_> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5, 6]);
    assert!(events.iter().all(|event| event.timestamp == 1_769_860_800.25));
    assert_eq!(
        story(&events),
        [
            "user: call ask",
            "clerk > ask({})",
            "user: hello",
            "clerk: you said: hello",
            r#"user < ask({"n":1})"#,
            r#"clerk: heard ask {"n":1}"#,
        ]
    );
}

#[tokio::test]
async fn case_113_sessions_are_listed_with_merged_state_in_a_stable_order() {
    let clock = Clock::manual(1_000_000);
    let mut stage = Setting::new().clock(&clock).set().await;
    for id in ["b", "a", "c"] {
        stage.client.sessions.create_session(create(id, json!({"user:u": 1}))).await.unwrap();
    }
    clock.advance(Duration::from_secs(1));
    stage.client.sessions.create_session(create("new", json!({"s": 2}))).await.unwrap();
    let mut listed = Vec::new();
    let mut request = pb::ListSessionsRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        page_size: 2,
        ..Default::default()
    };
    loop {
        let page = stage.client.sessions.list_sessions(request.clone()).await.unwrap();
        let page = page.into_inner();
        listed.extend(page.sessions);
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    let ids: Vec<_> = listed.iter().map(|session| session.id.as_str()).collect();
    assert_eq!(ids[0], "new");
    let mut rest = ids[1..].to_vec();
    rest.sort_unstable();
    assert_eq!(rest, ["a", "b", "c"]);
    assert_eq!(json(listed[0].state.as_ref().unwrap()), json!({"s": 2, "user:u": 1}));
    request.page_token.clear();
    request.page_size = 0;
    let again = stage.client.sessions.list_sessions(request).await.unwrap().into_inner();
    assert_eq!(again.sessions, listed);
}

#[tokio::test]
async fn a_session_shows_what_runs_in_it_and_what_is_held() {
    let gate = Gate::new();
    let pay = Closure::behind(&gate, "pay", Outcome::Nothing);
    let mut stage = stage([Closure::waits("ask"), pay]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let held = told.end.held_calls[0].function_call.as_ref().unwrap().id.clone();
    let shown = get(&mut stage, USER, &session).await.unwrap();
    assert_eq!((shown.running_invocation_id.as_str(), shown.last_sequence), ("", 2));
    assert_eq!(shown.held_call_ids, [held]);

    let mut client = stage.client.clone();
    let running = tokio::spawn({
        let session = session.clone();
        async move { client.run(say(APP, &session, "call pay")).await }
    });
    gate.reached().await;
    let shown = get(&mut stage, USER, &session).await.unwrap();
    let refused = stage.client.try_run(say(APP, &session, "hello")).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::Aborted, "INVOCATION_RUNNING".into()));
    let refused = stage.client.sessions.delete_session(delete(&session)).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::Aborted, "INVOCATION_RUNNING".into()));
    gate.open();
    let told = running.await.unwrap();
    assert_eq!(shown.running_invocation_id, told.begin.invocation_id);
}

#[tokio::test]
async fn a_deleted_session_is_gone_with_its_calls() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let session = &told.begin.session_id;
    let held = &told.end.held_calls[0];
    let marked = pb::DeleteSessionRequest { request_id: "r1".into(), ..delete(session) };
    stage.client.sessions.delete_session(marked.clone()).await.unwrap();
    stage.client.sessions.delete_session(marked).await.unwrap();
    assert_eq!(reason(&get(&mut stage, USER, session).await.unwrap_err()), missing());
    let refused = stage.client.submit(submit(held, json!({}))).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "CALL_NOT_FOUND".into()));
    let answers = vec![answer(held, json!({}))];
    let refused = stage.client.try_run(say_answers(APP, session, answers)).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "CALL_NOT_FOUND".into()));
    let request = pb::GetInvocationRequest {
        invocation_id: told.begin.invocation_id.clone(),
        ..Default::default()
    };
    let refused = stage.client.agents.get_invocation(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "INVOCATION_NOT_FOUND".into()));
    let listed = stage.client.sessions.list_sessions(pb::ListSessionsRequest::default()).await;
    assert_eq!(listed.unwrap().into_inner().sessions, []);

    // A new one of the same name begins anew.
    stage.client.sessions.create_session(create(session, Value::Null)).await.unwrap();
    assert_eq!(stage.events(session).await, []);
}

#[tokio::test]
async fn lists_longer_than_a_read_of_the_store_are_whole() {
    const SESSIONS: usize = 1_003;
    for (page_entries, pages) in [(1_000, vec![1_000, 3]), (2_000, vec![SESSIONS])] {
        let limits = Limits { page_entries, ..Limits::default() };
        let server = Server::start(sample().limits(limits)).await;
        let client = server.client().await;
        let created = (0..SESSIONS).map(|n| {
            let (mut client, id) = (client.clone(), format!("s{n}"));
            let create = pb::CreateSessionRequest {
                app_name: "reimbursement_agent".into(),
                ..create(&id, json!({}))
            };
            async move { client.sessions.create_session(create).await.unwrap() }
        });
        futures_util::future::join_all(created).await;
        let (mut client, mut ids) = (client, Vec::new());
        let mut request = pb::ListSessionsRequest {
            app_name: "reimbursement_agent".into(),
            page_size: 5_000,
            ..Default::default()
        };
        for entries in pages {
            let page = client.sessions.list_sessions(request.clone()).await.unwrap().into_inner();
            assert_eq!(page.sessions.len(), entries);
            ids.extend(page.sessions.into_iter().map(|session| session.id));
            request.page_token = page.next_page_token;
        }
        assert_eq!(request.page_token, "");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), SESSIONS);
    }
}
