//! What went wrong elsewhere (`peers.md`, 3.1 and 3.4), and what happens here.

use std::collections::BTreeSet;

use countersign::proto::v1::{self as pb, call, end_mark::State};
use countersign::session::approval::CONFIRMATION;
use serde_json::json;

use super::super::stage::{APP, Setting, calls, stage};
use super::{Verdict, answer_of, asks, decision, did, heard, id, open, runs, why};
use crate::support::{answer, say_answers, submit};

#[tokio::test]
async fn peers_1_nothing_runs_while_the_question_is_open() {
    let pay = asks("pay");
    let ran = pay.runs();
    let mut stage = stage([pay]).await;
    let told = stage.say("call pay").await;
    let session = told.begin.session_id.clone();
    stage.say_in(&session, "go on").await;
    stage.server.runner.tick_running().await.unwrap();
    stage.server.runner.tick_deadlines().await.unwrap();
    assert_eq!((ran.get(), stage.inbox().await.len()), (0, 1));
}

#[tokio::test]
async fn peers_2_13_a_denied_call_can_never_be_dispatched() {
    let pay = asks("pay");
    let ran = pay.runs();
    let mut stage = stage([pay]).await;
    let told = stage.say("call pay").await;
    let question = &told.end.held_calls[0];
    stage.decide(question, Verdict::Deny, |request| request.reason = "No.".into()).await.unwrap();
    let mut desk = stage.desk().await;
    let late = desk.decide_approval(decision(question, Verdict::Approve)).await;
    assert_eq!(why(late), "CALL_ALREADY_ANSWERED");
    let late = stage.client.submit(submit(question, json!({"confirmed": true}))).await;
    assert_eq!(why(late), "CALL_ALREADY_ANSWERED");
    assert_eq!(ran.get(), 0);
}

#[tokio::test]
async fn peers_4_a_later_call_of_the_turn_waits_for_the_question() {
    let (pay, ship) = (asks("pay"), runs("ship"));
    let shipped = ship.runs();
    let mut stage = stage([pay, ship]).await;
    let told = stage.say("call pay & ship").await;
    assert_eq!(shipped.get(), 0);
    stage.confirm(&told.end.held_calls[0], true).await;
    assert_eq!((shipped.get(), heard(&stage)), (1, vec![did("pay"), did("ship")]));
}

#[tokio::test]
async fn peers_7_8_16_an_approval_is_used_once() {
    let pay = asks("pay");
    let ran = pay.runs();
    let mut stage = stage([pay]).await;
    let told = stage.say("call pay").await;
    let session = told.begin.session_id.clone();
    let question = told.end.held_calls[0].clone();
    stage.decide(&question, Verdict::Approve, |_| {}).await.unwrap();
    // Again by every way there is, and for a call that is just the same.
    let again = stage.say_in(&session, "call pay").await;
    assert_eq!(open(&again), ["pay({})"]);
    let mut desk = stage.desk().await;
    for _ in 0..3 {
        let done = desk.decide_approval(decision(&question, Verdict::Approve)).await.unwrap();
        use pb::decide_approval_response::Outcome;
        assert_eq!(done.into_inner().outcome(), Outcome::Duplicate);
    }
    let answers = vec![answer(&question, json!({"confirmed": true}))];
    stage.client.run(say_answers(APP, &session, answers)).await;
    assert_eq!((ran.get(), stage.inbox().await.len()), (1, 1));
}

#[tokio::test]
async fn peers_10_11_an_answer_names_a_call_and_says_nothing_of_it() {
    let mut stage = stage([asks("pay")]).await;
    let one = stage.say(r#"call pay {"n": 1}"#).await;
    let two = stage.say(r#"call pay {"n": 2}"#).await;
    let (first, second) = (&one.end.held_calls[0], &two.end.held_calls[0]);
    assert_ne!(first.args_digest, second.args_digest);
    let mixed = |request: &mut pb::DecideApprovalRequest| {
        request.args_digest.clone_from(&second.args_digest);
    };
    assert_eq!(why(stage.decide(first, Verdict::Approve, mixed).await), "ARGS_DIGEST_MISMATCH");
    let session = two.begin.session_id.clone();
    let foreign = say_answers(APP, &session, vec![answer(first, json!({"confirmed": true}))]);
    assert!(stage.client.try_run(foreign).await.is_err(), "the call is another session's");
    assert_eq!(stage.inbox().await.len(), 2);
    stage.decide(first, Verdict::Approve, |_| {}).await.unwrap();
    assert_eq!(stage.prompt()[1], r#"model > pay({"n":1})"#);
}

#[tokio::test]
async fn peers_80_82_every_question_has_its_own_id_and_stands_at_the_run() {
    let mut stage = stage([asks("pay")]).await;
    let told = stage.say(r#"call pay {"n": 1} & pay {"n": 1} & pay {"n": 1}"#).await;
    let ids: BTreeSet<&str> = told.end.held_calls.iter().map(id).collect();
    assert_eq!(ids.len(), 3);
    let request = pb::GetInvocationRequest {
        invocation_id: told.begin.invocation_id.clone(),
        ..Default::default()
    };
    let run = stage.client.agents.get_invocation(request).await.unwrap().into_inner();
    let held: BTreeSet<&str> = run.held_calls.iter().map(id).collect();
    assert_eq!(held, ids);
    assert!(run.held_calls.iter().all(|call| call.kind() == call::Kind::Confirmation));
    let listed = stage.inbox().await;
    assert_eq!(listed.iter().map(|one| one.call_id.as_str()).collect::<BTreeSet<_>>(), ids);
}

#[tokio::test]
async fn peers_83_85_86_answers_together_or_one_by_one_and_each_for_one_call() {
    let eager = "approvals: {batches: eager}";
    let tools = || [asks("a"), asks("b"), asks("c")];
    let setting = || tools().into_iter().fold(Setting::new().line(eager), Setting::tool);
    // One by one: a decision frees no other call.
    let mut stage = setting().set().await;
    let told = stage.say("call a & b & c").await;
    let part = stage.confirm(&told.end.held_calls[1], true).await;
    assert_eq!(open(&part), ["a({})", "c({})"]);
    assert_eq!(heard(&stage)[1], did("b"));
    // Two of three in one message.
    let session = told.begin.session_id.clone();
    let rest = [&told.end.held_calls[0], &told.end.held_calls[2]];
    let answers = rest.map(|call| answer(call, json!({"confirmed": true}))).to_vec();
    let done = stage.client.run(say_answers(APP, &session, answers)).await;
    assert_eq!(done.end.state(), State::Completed);
    // All or none: one that is wrong stops the message, and nothing is decided.
    let mut stage = setting().set().await;
    let told = stage.say("call a & b").await;
    let session = told.begin.session_id.clone();
    let good = answer(&told.end.held_calls[0], json!({"confirmed": true}));
    let original = &calls(&told.events)[1].id;
    let bad = answer_of(original, "b", json!({})).function_response.unwrap();
    let refused = stage.client.try_run(say_answers(APP, &session, vec![good, bad])).await;
    assert_eq!(why(refused), "CONFIRMATION_REQUIRED");
    let named = answer_of("adk-none", CONFIRMATION, json!({"confirmed": true}));
    assert_eq!(why(stage.client.submit(named).await), "CALL_NOT_FOUND");
    assert_eq!(stage.inbox().await.len(), 2);
}
