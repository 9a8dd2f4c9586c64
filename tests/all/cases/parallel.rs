//! Several calls of one turn, answered in parts.

use countersign::proto::v1::{end_mark::State, submit_function_response_response};
use countersign::tool::Outcome;
use serde_json::json;
use tonic::Code;

use super::stage::{Closure, Gate, Setting, call_of, soon, stage};
use crate::support::{answer, reason, say_answers, story, submit};

type Answered = submit_function_response_response::Outcome;

#[tokio::test]
async fn case_17_one_answer_is_told_beside_the_others_placeholder() {
    let mut stage = stage([Closure::asks("ask"), Closure::asks("beg")]).await;
    let told = stage.say("call ask & beg").await;
    assert_eq!(story(&told.events).len(), 3);
    assert_eq!(told.events[0].long_running_tool_ids.len(), 2);
    let held = &told.end.held_calls;
    let rest = stage.answer(&held[0], json!({"status": "approved"})).await;
    assert_eq!(story(&rest.events), [r#"clerk: heard ask {"status":"approved"}"#]);
    assert_eq!(
        stage.prompt(),
        [
            "user: call ask & beg",
            "model > ask({}) + model > beg({})",
            r#"user < ask {"status":"approved"} + user < beg {"status":"pending"}"#,
        ]
    );
    assert_eq!((rest.end.state(), rest.end.held_calls.len()), (State::Paused, 1));
    let rest = stage.answer(&held[1], json!({"status": "rejected"})).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(stage.asked(), 4);
}

#[tokio::test]
async fn case_18_calls_without_placeholder_are_all_awaited() {
    let mut stage = stage([Closure::waits("ask"), Closure::waits("beg")]).await;
    let told = stage.say("call ask & beg").await;
    let held = &told.end.held_calls;
    let first = stage.answer(&held[0], json!({"n": 1})).await;
    assert_eq!((first.events.len(), first.end.state()), (0, State::Paused));
    assert_eq!(first.end.held_calls.len(), 1);
    assert_eq!(stage.asked(), 1);
}

#[tokio::test]
async fn case_19_the_last_answer_goes_on_with_all_of_them() {
    let mut stage = stage([Closure::waits("ask"), Closure::waits("beg")]).await;
    let told = stage.say("call ask & beg").await;
    let held = &told.end.held_calls;
    stage.answer(&held[0], json!({"n": 1})).await;
    let rest = stage.answer(&held[1], json!({"n": 2})).await;
    assert_eq!(story(&rest.events), [r#"clerk: heard ask {"n":1}, heard beg {"n":2}"#]);
    assert_eq!(stage.prompt()[2], r#"user < ask {"n":1} + user < beg {"n":2}"#);
    assert_eq!((stage.asked(), rest.end.state()), (2, State::Completed));
}

#[tokio::test]
async fn both_answers_in_one_message_are_one_model_call() {
    let mut stage = stage([Closure::waits("ask"), Closure::waits("beg")]).await;
    let told = stage.say("call ask & beg").await;
    let held = &told.end.held_calls;
    let answers = vec![answer(&held[0], json!({"n": 1})), answer(&held[1], json!({"n": 2}))];
    let request = say_answers("clerk", &told.begin.session_id, answers);
    let rest = stage.client.run(request.clone()).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!((stage.asked(), stage.events(&told.begin.session_id).await.len()), (2, 4));
    // The same again changes nothing and shows the same.
    let again = stage.client.run(request).await;
    assert_eq!((again.events, again.end), (rest.events, rest.end));
    assert_eq!(stage.asked(), 2);
}

#[tokio::test]
async fn one_refused_answer_refuses_the_message() {
    let mut stage = stage([Closure::waits("ask"), Closure::waits("beg")]).await;
    let told = stage.say("call ask & beg").await;
    let held = &told.end.held_calls;
    let mut wrong = answer(&held[1], json!({"n": 2}));
    wrong.name = "ask".into();
    let answers = vec![answer(&held[0], json!({"n": 1})), wrong];
    let session = &told.begin.session_id;
    let refused = stage.client.try_run(say_answers("clerk", session, answers)).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "CALL_NAME_MISMATCH".into()));
    assert_eq!(stage.events(session).await.len(), 2);
    // Nothing was taken: both can still be answered; of two unlike ones for one call none is.
    let answers = vec![answer(&held[0], json!({"n": 1})), answer(&held[0], json!({"n": 2}))];
    let refused = stage.client.try_run(say_answers("clerk", session, answers)).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "FIELD_INVALID".into()));
    let answers = vec![answer(&held[0], json!({"n": 1})), answer(&held[1], json!({"n": 2}))];
    let rest = stage.client.run(say_answers("clerk", session, answers)).await;
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn case_21_an_ordinary_result_waits_for_the_answer() {
    let pay = Closure::gives("pay", Outcome::Value(json!({"paid": 5})));
    let mut stage = stage([Closure::waits("ask"), pay]).await;
    let told = stage.say("call ask & pay").await;
    assert_eq!(
        story(&told.events),
        ["clerk > ask({}) + clerk > pay({})", r#"clerk < pay({"paid":5})"#]
    );
    assert_eq!((stage.asked(), told.end.state()), (1, State::Paused));
}

#[tokio::test]
async fn case_22_both_are_one_content_beside_their_calls() {
    let pay = Closure::gives("pay", Outcome::Value(json!({"paid": 5})));
    let mut stage = stage([pay, Closure::waits("ask")]).await;
    let told = stage.say("call pay & ask").await;
    let rest = stage.answer(&told.end.held_calls[0], json!({"ok": true})).await;
    assert_eq!(
        stage.prompt(),
        [
            "user: call pay & ask",
            "model > pay({}) + model > ask({})",
            r#"user < pay {"paid":5} + user < ask {"ok":true}"#,
        ]
    );
    assert_eq!(story(&rest.events), [r#"clerk: heard pay {"paid":5}, heard ask {"ok":true}"#]);
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn case_23_answers_stand_as_they_arrived_and_are_paired_by_id() {
    let mut stage = stage([Closure::waits("ask"), Closure::waits("beg")]).await;
    let told = stage.say("call ask & beg").await;
    let held = &told.end.held_calls;
    stage.answer(&held[1], json!({"n": 2})).await;
    stage.answer(&held[0], json!({"n": 1})).await;
    assert_eq!(stage.prompt()[2], r#"user < beg {"n":2} + user < ask {"n":1}"#);
    let request = stage.request();
    let calls: Vec<_> = request.contents[1].calls().map(|call| &call.id).collect();
    let answers: Vec<_> = request.contents[2].responses().map(|answer| &answer.id).collect();
    assert_eq!(answers, [calls[1], calls[0]]);
}

#[tokio::test]
async fn case_25_answers_to_two_invocations_are_refused() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let one = stage.say("call ask").await;
    let session = one.begin.session_id.clone();
    let two = stage.say_in(&session, "call ask").await;
    let answers = vec![
        answer(&one.end.held_calls[0], json!({"n": 1})),
        answer(&two.end.held_calls[0], json!({"n": 2})),
    ];
    let before = stage.events(&session).await;
    let refused = stage.client.try_run(say_answers("clerk", &session, answers)).await;
    let refused = refused.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "MIXED_MESSAGE".into()));
    assert_eq!(stage.events(&session).await, before);
    assert_eq!(stage.asked(), 2);
}

#[tokio::test]
async fn case_114_of_two_answers_at_once_one_wins() {
    let gate = Gate::new();
    let pay = Closure::behind(&gate, "pay", Outcome::Nothing);
    let runs = pay.runs();
    let setting = Setting::new().tool(Closure::waits("ask")).tool(pay);
    let pays = |name: &str| (name == "ask").then(|| call_of("pay", Default::default()));
    let mut stage = setting.cue(move |heard| pays(&heard.name)).set().await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    let mut other = stage.server.client().await;
    let (one, two) = tokio::join!(
        stage.client.submit(submit(held, json!({"by": 1}))),
        other.submit(submit(held, json!({"by": 2}))),
    );
    let (won, lost) = if one.is_ok() { (one, two) } else { (two, one) };
    let won = won.unwrap();
    assert_eq!(won.outcome(), Answered::Applied);
    let lost = lost.unwrap_err();
    assert_eq!(reason(&lost), (Code::FailedPrecondition, "CALL_ALREADY_ANSWERED".into()));
    gate.reached().await;
    gate.open();
    let rest = soon(stage.client.follow(&won)).await;
    assert_eq!((rest.end.state(), runs.get()), (State::Completed, 1));
}
