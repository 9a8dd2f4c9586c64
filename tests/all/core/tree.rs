//! Two levels: a call of the root is worked for by a frame of its own, and both levels pause. Every
//! answer goes to the frame whose call it answers; nobody else's prompt shows it.

use super::*;

/// The root has asked a helper and a person; the helper has asked a person too.
fn paused_twice() -> (Bench, FrameId) {
    let specs = vec![spec("helper", ordinary(Effect::Once)), spec("above", long_running())];
    let mut bench = Bench::called(specs);
    bench.back("above", value(json!({"status": "pending"})));
    let child = bench.open("helper", &root(), "helper", "find out");
    assert_eq!(bench.asked(), ["root@1/helper@1"], "the root waits for its calls");
    assert_eq!(bench.prompt(&child), ["user: find out"]);
    bench.reply_in(&child, Ok(calls(vec![spec("below", long_running())])));
    bench.back("below", value(json!({"status": "pending"})));
    bench.reply_in(&child, Ok(says("I have asked.")));
    (bench, child)
}

fn paused(bench: &Bench) -> Vec<String> {
    assert!(bench.session.claim.is_none(), "{bench:?}");
    let Some(Body::Paused { held, .. }) = bench.log.iter().rev().nth(1).map(|r| &r.body) else {
        panic!("no pause: {bench:?}")
    };
    held.iter().map(ToString::to_string).collect()
}

/// A log that has every part of a session in it: two levels, two held calls, and a queued answer.
pub fn log() -> Vec<Record> {
    let (mut bench, _) = paused_twice();
    bench.say(2).unwrap();
    bench.answer("user:ann", result("below")).unwrap();
    bench.reply(calls(vec![spec("pay", ordinary(Effect::Idempotent))]));
    bench.log
}

fn result(name: &str) -> Incomings {
    answers(&call_id(name), name, Some(json!({"status": "approved"})))
}

#[test]
fn both_levels_pause_on_the_root_invocation() {
    let (bench, child) = paused_twice();
    assert_eq!(paused(&bench), ["adk-above", "adk-below"]);
    assert_eq!(bench.call("below").frame.agent_path(), "root/helper");
    assert_eq!(bench.call("below").invocation, bench.call("above").invocation);
    assert_eq!((&*bench.phase("helper"), bench.call("helper").body), ("RUNNING", None));
    assert_eq!(child.as_str(), "root@1/helper@1");
}

#[test]
fn an_answer_below_goes_up_when_the_helper_is_done() {
    let (mut bench, child) = paused_twice();
    assert_eq!(bench.answer("user:ann", result("below")), Ok(Answered::Applied));
    assert_eq!(bench.asked(), ["root@1/helper@1"]);
    let told = ["user: find out", "> below", r#"< below {"status":"approved"}"#];
    assert_eq!(bench.prompt(&child), told);
    bench.reply_in(&child, Ok(says("It is so.")));
    // What the helper said is the call's response; the person above has not answered yet, and has a
    // placeholder, so that the root is told at once.
    assert_eq!(bench.phase("helper"), "DONE");
    assert_eq!(bench.asked(), ["root@1"]);
    let told = [
        "user: go",
        "> helper",
        "> above",
        r#"< helper {"result":"It is so."}"#,
        r#"< above {"status":"pending"}"#,
    ];
    assert_eq!(bench.prompt(&root()), told);
    bench.reply(says("Half of it is known."));
    assert_eq!(paused(&bench), ["adk-above"]);
    bench.answer("user:ann", result("above")).unwrap();
    assert_eq!(bench.asked(), ["root@1"]);
    let told = [
        "user: go",
        "> helper",
        "> above",
        r#"< helper {"result":"It is so."}"#,
        r#"< above {"status":"approved"}"#,
    ];
    assert_eq!(bench.prompt(&root()), told);
    bench.reply(says("Both are known."));
    assert_eq!(bench.since(bench.log.len() - 3), ["replied", "ended", "released"]);
    for name in ["helper", "above", "below"] {
        assert_eq!(bench.phase(name), "DONE", "{name}");
    }
}

#[test]
fn an_answer_above_waits_for_the_helper() {
    let (mut bench, child) = paused_twice();
    assert_eq!(bench.answer("user:ann", result("above")), Ok(Answered::Applied));
    assert!(bench.asked().is_empty(), "the root's helper is not back");
    assert_eq!(paused(&bench), ["adk-below"]);
    bench.answer("user:ann", result("below")).unwrap();
    bench.reply_in(&child, Ok(says("It is so.")));
    assert_eq!(bench.asked(), ["root@1"]);
    // The answer has overtaken the placeholder, which no event has told.
    assert_eq!(bench.told("above"), 1);
    bench.reply(says("Both are known."));
    assert_eq!(bench.since(bench.log.len() - 3), ["replied", "ended", "released"]);
}

#[test]
fn answers_to_both_levels_may_come_as_one() {
    let (mut bench, child) = paused_twice();
    let mut both = result("above");
    both.answers.extend(result("below").answers);
    assert_eq!(bench.answer("user:ann", both), Ok(Answered::Applied));
    assert_eq!(bench.asked(), ["root@1/helper@1"]);
    let told = ["user: find out", "> below", r#"< below {"status":"approved"}"#];
    assert_eq!(bench.prompt(&child), told, "the answer is in the prompt of its own frame");
    bench.reply_in(&child, Ok(says("It is so.")));
    let told = [
        "user: go",
        "> helper",
        "> above",
        r#"< above {"status":"approved"}"#,
        r#"< helper {"result":"It is so."}"#,
    ];
    assert_eq!(bench.prompt(&root()), told);
}

#[test]
fn a_lost_owner_loses_bodies_and_no_frames() {
    let specs = vec![spec("helper", ordinary(Effect::Once))];
    let mut bench = Bench::called(specs);
    let child = bench.open("helper", &root(), "helper", "find out");
    bench.crash();
    assert_eq!(bench.asked(), ["root@1/helper@1"], "the model is asked again");
    bench.reply_in(&child, Ok(calls(vec![spec("pay", ordinary(Effect::Once))])));
    bench.crash();
    assert_eq!((bench.phase("pay"), bench.phase("helper")), {
        ("HELD UNKNOWN_OUTCOME".to_owned(), "RUNNING".to_owned())
    });
    assert_eq!(paused(&bench), ["adk-pay"]);
    let paid = answers(&call_id("pay"), "pay", Some(json!({"paid": true})));
    bench.answer("user:ann", paid).unwrap();
    bench.reply_in(&child, Ok(says("Paid.")));
    assert_eq!((bench.phase("helper"), bench.asked()), ("DONE".to_owned(), vec!["root@1".into()]));
}

#[test]
fn a_cancel_closes_every_level_once() {
    let (mut bench, _) = paused_twice();
    bench.fact("user:ann", |draft, _| draft.cancel(&invocation(1))).unwrap();
    for name in ["helper", "above", "below"] {
        assert_eq!(bench.phase(name), "CANCELLED", "{name}");
    }
    assert_eq!((bench.told("helper"), bench.told("above"), bench.told("below")), (1, 2, 2));
    assert!(bench.session.invocations.is_empty() && !bench.session.can_move());
}

#[test]
fn a_helper_that_fails_fails_the_run() {
    let mut bench = Bench::called(vec![spec("helper", ordinary(Effect::Once))]);
    let child = bench.open("helper", &root(), "helper", "find out");
    bench.reply_in(&child, Err(("MODEL_DOWN".to_owned(), "no".to_owned())));
    assert_eq!(bench.phase("helper"), "CANCELLED");
    assert_eq!(bench.since(bench.log.len() - 4), ["replied", "answered", "ended", "released"]);
}
