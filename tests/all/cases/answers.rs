//! Answers at unusual times: while another invocation runs, before the placeholder, again, late,
//! and for calls whose outcome is not known.

use std::time::Duration;

use countersign::agent::Effect;
use countersign::proto::v1::{
    self as pb, call, end_mark::State, invocation,
    submit_function_response_response::Outcome as Answered,
};
use countersign::store::Clock;
use countersign::tool::Outcome;
use serde_json::{Value, json};
use tonic::Code;

use super::stage::{APP, Closure, Gate, Setting, Stage, call_of, soon, stage};
use super::watch::Open;
use crate::support::{USER, fields, json, reason, say, say_answers, story, submit};

/// An answer that says whether more is to come.
fn progress(call: &pb::Call, response: Value, more: bool) -> pb::SubmitFunctionResponseRequest {
    let mut request = submit(call, response);
    request.function_response.as_mut().unwrap().will_continue = Some(more);
    request
}

async fn invocation(stage: &mut Stage, id: &str) -> pb::Invocation {
    let request = pb::GetInvocationRequest { invocation_id: id.into(), ..Default::default() };
    stage.client.agents.get_invocation(request).await.unwrap().into_inner()
}

#[tokio::test]
async fn an_answer_is_queued_while_another_invocation_runs() {
    let gate = Gate::new();
    let pay = Closure::behind(&gate, "pay", Outcome::Nothing);
    let mut stage = stage([Closure::waits("ask"), pay]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let held = &told.end.held_calls[0];
    let mut other = Open::run(&mut stage.client, say(APP, &session, "call pay")).await;
    gate.reached().await;

    let queued = stage.client.submit(submit(held, json!({"n": 1}))).await.unwrap();
    assert_eq!((queued.outcome(), queued.sequence), (Answered::Queued, 0));
    assert_eq!(queued.call.as_ref().unwrap().state(), call::State::Done);
    // It will move by itself, so it is not paused.
    assert_eq!(queued.invocation_state(), invocation::State::Running);
    assert_eq!(stage.events(&session).await.len(), 4);
    // The call is closed at once.
    let again = stage.client.submit(submit(held, json!({"n": 1}))).await.unwrap();
    assert_eq!(again.outcome(), Answered::Duplicate);
    let late = stage.client.submit(submit(held, json!({"n": 2}))).await.unwrap_err();
    assert_eq!(reason(&late).1, "CALL_ALREADY_ANSWERED");
    let mut follower = stage.client.clone();
    let follow = {
        let queued = queued.clone();
        tokio::spawn(async move { follower.follow(&queued).await })
    };

    gate.open();
    let first = other.rest().await;
    assert_eq!(first.end.state(), State::Completed);
    let rest = soon(follow).await.unwrap();
    assert_eq!(rest.begin.invocation_id, told.begin.invocation_id);
    assert_eq!(story(&rest.events), [r#"user < ask({"n":1})"#, r#"clerk: heard ask {"n":1}"#]);
    assert_eq!(rest.end.state(), State::Completed);
    // The running invocation was told all the time that it is pending, never of the answer.
    let prompts = stage.prompts();
    assert!(prompts[1..3].iter().all(|prompt| prompt[2].contains("pending")), "{prompts:#?}");
    assert_eq!(
        story(&stage.events(&session).await),
        [
            "user: call ask",
            "clerk > ask({})",
            "user: call pay",
            "clerk > pay({})",
            r#"clerk < pay({"result":null})"#,
            r#"clerk: heard pay {"result":null}"#,
            r#"user < ask({"n":1})"#,
            r#"clerk: heard ask {"n":1}"#,
        ]
    );
}

#[tokio::test]
async fn a_queued_answer_by_a_run_shows_what_comes_of_it() {
    let gate = Gate::new();
    let pay = Closure::behind(&gate, "pay", Outcome::Nothing);
    let mut stage = stage([Closure::waits("ask"), pay]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let mut other = Open::run(&mut stage.client, say(APP, &session, "call pay")).await;
    gate.reached().await;
    let answers = vec![crate::support::answer(&told.end.held_calls[0], json!({"n": 1}))];
    let request = say_answers(APP, &session, answers);
    let mut first = Open::run(&mut stage.client, request.clone()).await;
    let mut again = Open::run(&mut stage.client, request).await;
    gate.open();
    other.rest().await;
    for run in [&mut first, &mut again] {
        assert_eq!(run.begin().invocation_id, told.begin.invocation_id);
        let rest = run.rest().await;
        // The message of this very request is not echoed.
        assert_eq!(story(&rest.events), [r#"clerk: heard ask {"n":1}"#]);
        assert_eq!(rest.end.state(), State::Completed);
    }
}

#[tokio::test]
async fn an_answer_that_comes_while_the_model_speaks_is_told_next() {
    let gate = Gate::new();
    let mut stage = Setting::new().tool(Closure::asks("ask")).model_behind(&gate).set().await;
    let mut run = Open::run(&mut stage.client, say(APP, "", "call ask")).await;
    gate.reached().await;
    gate.open();
    let call = run.call().await;
    assert_eq!(run.event().await.author, "clerk");
    gate.reached().await;
    let done = stage.client.submit(submit(&call, json!({"status": "approved"}))).await.unwrap();
    assert_eq!(done.outcome(), Answered::Applied);
    gate.open();
    gate.open();
    let rest = run.rest().await;
    assert_eq!(
        story(&rest.events),
        [
            r#"user < ask({"status":"approved"})"#,
            r#"clerk: heard ask {"status":"pending"}"#,
            r#"clerk: heard ask {"status":"approved"}"#,
        ]
    );
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn state_changes_come_with_an_answer_once() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let answers = vec![crate::support::answer(&told.end.held_calls[0], json!({"n": 1}))];
    // An answer finds its session by the call.
    let request = pb::RunAsyncRequest {
        state_delta: Some(crate::support::object(json!({"seen": 1, "user:u": 2}))),
        ..say_answers(APP, "", answers)
    };
    let rest = stage.client.run(request.clone()).await;
    assert_eq!(
        (rest.begin.session_id.as_str(), rest.end.state()),
        (session.as_str(), State::Completed)
    );
    let mut again = request;
    again.state_delta = Some(crate::support::object(json!({"seen": 9})));
    stage.client.run(again).await;
    let request =
        pb::GetSessionRequest { app_name: APP.into(), user_id: USER.into(), session_id: session };
    let session = stage.client.sessions.get_session(request).await.unwrap().into_inner();
    assert_eq!(json(&session.state.unwrap()), json!({"seen": 1, "user:u": 2}));
}

#[tokio::test]
async fn all_answers_that_were_queued_are_told() {
    let gate = Gate::new();
    let pay = Closure::behind(&gate, "pay", Outcome::Nothing);
    let mut stage = stage([Closure::waits("ask"), Closure::waits("beg"), pay]).await;
    let told = stage.say("call ask & beg").await;
    let session = told.begin.session_id.clone();
    let mut other = Open::run(&mut stage.client, say(APP, &session, "call pay")).await;
    gate.reached().await;
    let mut last = None;
    for (n, held) in told.end.held_calls.iter().enumerate() {
        let queued = stage.client.submit(submit(held, json!({"n": n}))).await.unwrap();
        assert_eq!(queued.outcome(), Answered::Queued);
        last = Some(queued);
    }
    gate.open();
    other.rest().await;
    let rest = soon(stage.client.follow(&last.unwrap())).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(
        stage.prompt(),
        [
            "user: call ask & beg",
            "model > ask({}) + model > beg({})",
            r#"user < ask {"n":0} + user < beg {"n":1}"#,
        ]
    );
    assert_eq!(
        story(&stage.events(&session).await)[6..],
        [
            r#"user < ask({"n":0})"#,
            r#"user < beg({"n":1})"#,
            r#"clerk: heard ask {"n":0}, heard beg {"n":1}"#,
        ]
    );
}

#[tokio::test]
async fn a_queued_answer_is_told_though_its_invocation_is_cancelled() {
    let gate = Gate::new();
    let pay = Closure::behind(&gate, "pay", Outcome::Nothing);
    let mut stage = stage([Closure::waits("ask"), pay]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let mut other = Open::run(&mut stage.client, say(APP, &session, "call pay")).await;
    gate.reached().await;
    stage.client.submit(submit(&told.end.held_calls[0], json!({"n": 1}))).await.unwrap();
    let cancel = pb::CancelInvocationRequest {
        invocation_id: told.begin.invocation_id.clone(),
        ..Default::default()
    };
    let cancelled = stage.client.agents.cancel_invocation(cancel).await.unwrap().into_inner();
    assert_eq!(cancelled.state(), invocation::State::Cancelled);
    gate.open();
    assert_eq!(other.rest().await.end.state(), State::Completed);
    // It was acknowledged, so it stands in the conversation; nobody reacts to it.
    let stored = story(&stage.events(&session).await);
    assert_eq!(stored.iter().filter(|line| *line == r#"user < ask({"n":1})"#).count(), 1);
    stage.say_in(&session, "hello").await;
    assert_eq!(stage.prompt()[2], r#"user < ask {"n":1}"#);
}

#[tokio::test]
async fn an_answer_may_overtake_the_placeholder() {
    let gate = Gate::new();
    let ask = {
        let gate = gate.clone();
        Closure::new("ask", move |_, context| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                context.set("asked", true);
                Outcome::Value(json!({"status": "pending"}))
            }
        })
    };
    let mut stage = stage([ask.long_running()]).await;
    let mut run = Open::run(&mut stage.client, say(APP, "", "call ask")).await;
    let call = run.call().await;
    gate.reached().await;
    let done = stage.client.submit(submit(&call, json!({"status": "approved"}))).await.unwrap();
    assert_eq!(done.outcome(), Answered::Applied);
    assert_eq!(done.call.as_ref().unwrap().state(), call::State::Done);
    // The model waits until the body is back.
    assert_eq!((stage.asked(), done.invocation_state()), (1, invocation::State::Running));
    gate.open();
    let rest = run.rest().await;
    assert_eq!(
        story(&rest.events),
        [
            r#"user < ask({"status":"approved"})"#,
            "clerk (no content)",
            r#"clerk: heard ask {"status":"approved"}"#,
        ]
    );
    let delta = rest.events[1].actions.as_ref().unwrap().state_delta.as_ref().unwrap();
    assert_eq!(json(delta), json!({"asked": true}));
    assert_eq!((rest.end.state(), stage.asked()), (State::Completed, 2));
    assert_eq!(stage.prompt()[2], r#"user < ask {"status":"approved"}"#);
}

#[tokio::test]
async fn progress_may_overtake_the_placeholder() {
    let gate = Gate::new();
    let pending = Outcome::Value(json!({"status": "pending"}));
    let mut stage = stage([Closure::behind(&gate, "ask", pending).long_running()]).await;
    let mut run = Open::run(&mut stage.client, say(APP, "", "call ask")).await;
    let call = run.call().await;
    gate.reached().await;
    let done = stage.client.submit(progress(&call, json!({"half": true}), true)).await.unwrap();
    assert_eq!(done.outcome(), Answered::Progress);
    gate.open();
    let rest = run.rest().await;
    assert_eq!(
        story(&rest.events),
        [r#"user < ask({"half":true})"#, r#"clerk: heard ask {"half":true}"#]
    );
    assert_eq!((rest.end.state(), rest.end.held_calls.len()), (State::Paused, 1));
    let rest = stage.answer(&call, json!({"status": "approved"})).await;
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn a_call_whose_body_did_not_start_waits_for_no_answer() {
    let gate = Gate::new();
    let mut stage = stage([Closure::behind(&gate, "pay", Outcome::Nothing)]).await;
    let mut run = Open::run(&mut stage.client, say(APP, "", "call pay")).await;
    let call = run.call().await;
    gate.reached().await;
    let refused = stage.client.submit(submit(&call, json!({}))).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "CALL_NOT_HELD".into()));
    gate.open();
    assert_eq!(run.rest().await.end.state(), State::Completed);
}

#[tokio::test]
async fn an_answer_is_final_when_the_tool_says_so() {
    let ask = Closure::asks("ask").with(|behaviour| {
        behaviour.answers = countersign::agent::Answers::Many;
        behaviour.final_when =
            [("status".into(), vec![json!("approved"), json!("rejected")])].into();
    });
    let mut stage = stage([ask]).await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    for status in ["seen", "on my desk"] {
        let done = stage.client.submit(submit(held, json!({"status": status}))).await.unwrap();
        assert_eq!(done.outcome(), Answered::Progress);
        assert_eq!(done.call.as_ref().unwrap().state(), call::State::Held);
        assert_eq!(soon(stage.client.follow(&done)).await.end.state(), State::Paused);
    }
    let done = stage.client.submit(submit(held, json!({"status": "rejected"}))).await.unwrap();
    assert_eq!(done.outcome(), Answered::Applied);
    assert_eq!(soon(stage.client.follow(&done)).await.end.state(), State::Completed);
}

#[tokio::test]
async fn who_answers_may_say_whether_more_is_to_come() {
    let many = Closure::asks("beg")
        .with(|behaviour| behaviour.answers = countersign::agent::Answers::Many);
    let mut stage = stage([Closure::asks("ask"), many]).await;
    let told = stage.say("call ask & beg").await;
    let [ask, beg] = &told.end.held_calls[..] else { panic!("{told:?}") };
    let done = stage.client.submit(progress(ask, json!({"n": 1}), true)).await.unwrap();
    assert_eq!((done.outcome(), done.sequence), (Answered::Progress, 5));
    let rest = soon(stage.client.follow(&done)).await;
    assert_eq!((rest.end.state(), rest.end.held_calls.len()), (State::Paused, 2));
    let done = stage.client.submit(progress(beg, json!({"n": 2}), false)).await.unwrap();
    assert_eq!(done.outcome(), Answered::Applied);
    let rest = soon(stage.client.follow(&done)).await;
    assert_eq!(rest.end.held_calls.len(), 1);
    // Whether more is to come is between us and who answers; the model is not told.
    let request = stage.request();
    assert!(request.contents[2].responses().all(|answer| answer.will_continue.is_none()));
}

#[tokio::test]
async fn an_answer_may_be_for_the_record_only() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let told = stage.say("call ask").await;
    let request = pb::SubmitFunctionResponseRequest {
        skip_summarization: true,
        ..submit(&told.end.held_calls[0], json!({"status": "approved"}))
    };
    let done = stage.client.submit(request).await.unwrap();
    assert_eq!(done.outcome(), Answered::Applied);
    let rest = soon(stage.client.follow(&done)).await;
    assert_eq!((rest.events.len(), rest.end.state()), (0, State::Completed));
    assert_eq!(stage.asked(), 2);
    let events = stage.events(&told.begin.session_id).await;
    assert!(events[4].actions.as_ref().unwrap().skip_summarization);
    assert!(events[4].final_response);
    stage.say_in(&told.begin.session_id, "hello").await;
    assert_eq!(stage.prompt()[2], r#"user < ask {"status":"approved"}"#);
}

#[tokio::test]
async fn a_tool_may_need_no_words_of_the_model() {
    let pay = Closure::new("pay", |_, context| async move {
        context.skip_summarization();
        Outcome::Value(json!({"paid": 5}))
    });
    let mut stage = stage([pay]).await;
    let told = stage.say("call pay").await;
    assert_eq!(story(&told.events), ["clerk > pay({})", r#"clerk < pay({"paid":5})"#]);
    assert!(told.events[1].final_response);
    assert_eq!((stage.asked(), told.end.state()), (1, State::Completed));
}

#[tokio::test]
async fn an_unknown_outcome_is_asked_for_and_answered_by_the_result() {
    let gate = Gate::new();
    let slow = Closure::behind(&gate, "slow", Outcome::Nothing)
        .with(|behaviour| behaviour.timeout = Duration::from_millis(20));
    let cut = Closure::gives("cut", Outcome::Unknown("cut off".into()));
    let cut_long = Closure::gives("far", Outcome::Unknown("cut off".into())).long_running();
    let mut stage = stage([slow, cut, cut_long]).await;
    for name in ["slow", "cut", "far"] {
        let told = stage.say(&format!("call {name}")).await;
        assert_eq!(
            story(&told.events),
            [format!("clerk > {name}({{}})"), "clerk (no content)".into()]
        );
        assert_eq!(told.end.state(), State::Paused);
        let held = &told.end.held_calls[0];
        assert_eq!((held.state(), held.kind()), (call::State::Held, call::Kind::UnknownOutcome));
        assert_eq!(held.answers(), call::Answers::Once);
        let id = &held.function_call.as_ref().unwrap().id;
        assert_eq!(told.events[1].calls[id].kind(), call::Kind::UnknownOutcome);

        let refused = stage.client.submit(submit(held, Value::Null)).await.unwrap_err();
        assert_eq!(fields(&refused), ["function_response.response"]);
        let refused = stage.client.submit(progress(held, json!({}), true)).await.unwrap_err();
        assert_eq!(fields(&refused), ["function_response.will_continue"]);
        let done = stage.client.submit(submit(held, json!({"paid": 5}))).await.unwrap();
        assert_eq!(done.outcome(), Answered::Applied);
        // Why it was held is still to be seen.
        let closed = done.call.as_ref().unwrap();
        assert_eq!((closed.state(), closed.kind()), (call::State::Done, held.kind()));
        let rest = soon(stage.client.follow(&done)).await;
        assert_eq!(story(&rest.events), [format!(r#"clerk: heard {name} {{"paid":5}}"#)]);
        assert_eq!(rest.end.state(), State::Completed);
    }
}

#[tokio::test]
async fn a_tool_that_may_run_again_is_run_again() {
    let tool = Closure::gives("look", Outcome::Unknown("cut off".into()))
        .with(|behaviour| behaviour.effect = Effect::Read);
    let runs = tool.runs();
    let mut stage = stage([tool]).await;
    let told = stage.say("call look").await;
    assert_eq!((runs.get(), told.end.state()), (3, State::Paused));
    assert_eq!(told.end.held_calls[0].kind(), call::Kind::UnknownOutcome);
}

#[tokio::test]
async fn a_call_that_nobody_answers_expires() {
    let clock = Clock::manual(1_000_000_000);
    let ask = Closure::asks("ask")
        .with(|behaviour| behaviour.expires_after = Some(Duration::from_secs(60)));
    let mut stage = Setting::new().tool(ask).clock(&clock).set().await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    assert_eq!(held.expire_time.unwrap().micros(), Some(1_060_000_000));
    clock.set(1_059_999_999);
    let done = stage.client.submit(progress(held, json!({"n": 1}), true)).await.unwrap();
    soon(stage.client.follow(&done)).await;

    // At the deadline an answer is refused, swept or not.
    clock.set(1_060_000_000);
    let refused = stage.client.submit(submit(held, json!({"ok": true}))).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "CALL_EXPIRED".into()));
    stage.server.runner.tick_deadlines().await.unwrap();
    let rest = soon(stage.client.follow(&done)).await;
    assert_eq!(rest.end.state(), State::Completed);
    let told_expiry = story(&rest.events);
    assert!(
        told_expiry.iter().any(|line| line.contains(r#""status":"expired""#)),
        "{told_expiry:?}"
    );
    assert!(stage.prompt()[2].contains(r#""status":"expired""#), "{:?}", stage.prompt());
    let refused = stage.client.submit(submit(held, json!({"ok": true}))).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "CALL_EXPIRED".into()));
    assert!(!stage.server.runner.tick_deadlines().await.unwrap());
}

#[tokio::test]
async fn a_repeated_run_follows_the_same_invocation() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut request = say(APP, "", "call ask");
    request.request_id = "r1".into();
    let told = stage.client.run(request.clone()).await;
    assert!(!told.begin.replayed);
    let again = stage.client.run(request.clone()).await;
    assert!(again.begin.replayed);
    assert_eq!(again.begin.session_id, told.begin.session_id);
    assert_eq!(again.begin.invocation_id, told.begin.invocation_id);
    assert_eq!((again.events, again.end), (told.events.clone(), told.end.clone()));
    assert_eq!(stage.asked(), 1);

    // A pause that is past does not end it.
    let rest = stage.answer(&told.end.held_calls[0], json!({"n": 1})).await;
    let again = stage.client.run(request.clone()).await;
    assert_eq!(again.end, rest.end);
    assert_eq!(
        story(&again.events),
        ["clerk > ask({})", r#"user < ask({"n":1})"#, r#"clerk: heard ask {"n":1}"#]
    );

    let other = pb::RunAsyncRequest { request_id: "r1".into(), ..say(APP, "", "other") };
    let refused = stage.client.try_run(other).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "REQUEST_ID_REUSED".into()));
    let wrong = pb::RunAsyncRequest { request_id: "\n".into(), ..say(APP, "", "other") };
    let refused = stage.client.try_run(wrong).await.unwrap_err();
    assert_eq!(fields(&refused), ["request_id"]);
    assert_eq!(stage.asked(), 2);
}

#[tokio::test]
async fn a_repeated_answer_has_the_recorded_outcome() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let told = stage.say("call ask").await;
    let session = &told.begin.session_id;
    let held = &told.end.held_calls[0];
    let marked = |request: pb::SubmitFunctionResponseRequest, id: &str| {
        pb::SubmitFunctionResponseRequest { request_id: id.into(), ..request }
    };
    // What was refused is not remembered.
    let mut wrong = submit(held, json!({"n": 1}));
    wrong.function_response.as_mut().unwrap().name = "beg".into();
    stage.client.submit(marked(wrong, "r1")).await.unwrap_err();

    let request = marked(progress(held, json!({"n": 1}), true), "r1");
    let first = stage.client.submit(request.clone()).await.unwrap();
    assert_eq!(first.outcome(), Answered::Progress);
    soon(stage.client.follow(&first)).await;
    let again = stage.client.submit(request).await.unwrap();
    assert_eq!(again.outcome(), Answered::Progress);
    assert_eq!((again.sequence, again.after_sequence), (first.sequence, first.after_sequence));
    assert_eq!(stage.events(session).await.len(), 6);

    let request = marked(submit(held, json!({"n": 2})), "r2");
    let first = stage.client.submit(request.clone()).await.unwrap();
    let rest = soon(stage.client.follow(&first)).await;
    let again = stage.client.submit(request).await.unwrap();
    assert_eq!((again.outcome(), again.sequence), (Answered::Applied, first.sequence));
    assert_eq!(again.invocation_state(), invocation::State::Completed);
    let shown = soon(stage.client.follow(&again)).await;
    assert_eq!((shown.events, shown.end), (rest.events, rest.end));

    let refused = stage.client.submit(marked(submit(held, json!({"n": 3})), "r2")).await;
    let refused = refused.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "REQUEST_ID_REUSED".into()));
    assert_eq!((stage.asked(), stage.events(session).await.len()), (4, 8));
}

#[tokio::test]
async fn a_repeated_message_of_answers_shows_what_came_of_it() {
    let setting = Setting::new().tool(Closure::waits("ask"));
    let more = |n: &Value| (*n == 1).then(|| call_of("ask", Default::default()));
    let mut stage = setting.cue(move |heard| more(&heard.response.as_ref()?["n"])).set().await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let answers = vec![crate::support::answer(&told.end.held_calls[0], json!({"n": 1}))];
    let plain = say_answers(APP, &session, answers);
    let marked = pb::RunAsyncRequest { request_id: "r1".into(), ..plain.clone() };
    let second = stage.client.run(marked.clone()).await;
    assert_eq!(second.end.state(), State::Paused);
    let last = stage.answer(&second.end.held_calls[0], json!({"n": 2})).await;
    for request in [plain, marked] {
        let again = soon(stage.client.run(request)).await;
        assert_eq!(again.end, last.end);
        assert_eq!(
            story(&again.events),
            ["clerk > ask({})", r#"user < ask({"n":2})"#, r#"clerk: heard ask {"n":2}"#]
        );
    }
    assert_eq!(stage.asked(), 3);
}

#[tokio::test]
async fn a_wrong_cursor_is_refused_before_anything_is_written() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let session = told.begin.session_id.clone();
    let answers = vec![crate::support::answer(&told.end.held_calls[0], json!({"n": 1}))];
    for request in
        [say_answers(APP, &session, answers), say(APP, &session, "hello"), say(APP, "", "x")]
    {
        let request = pb::RunAsyncRequest { after_sequence: 99, ..request };
        let refused = stage.client.try_run(request).await.unwrap_err();
        assert_eq!(reason(&refused), (Code::InvalidArgument, "CURSOR_INVALID".into()));
    }
    assert_eq!((stage.events(&session).await.len(), stage.asked()), (2, 1));
    let listed = stage.client.sessions.list_sessions(pb::ListSessionsRequest::default()).await;
    assert_eq!(listed.unwrap().into_inner().sessions.len(), 1);
    assert_eq!(invocation(&mut stage, &told.begin.invocation_id).await.user_id, USER);
}
