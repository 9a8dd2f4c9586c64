//! Whole stories, record by record: state, limits, several invocations, deadlines, late results.

use countersign::session::call::MAX_ATTEMPTS;
use countersign::session::record::Ending;

use super::*;

fn approved(name: &str) -> Incomings {
    answers(&call_id(name), name, Some(json!({"status": "approved"})))
}

/// The invocation of this number asks somebody and pauses.
fn pause(bench: &mut Bench, number: u32, name: &str) {
    bench.say(number).unwrap();
    bench.reply(calls(vec![spec(name, long_running())]));
    bench.back(name, value(json!({"status": "pending"})));
    bench.reply(says("I have asked."));
    assert_eq!(bench.session.running, None, "{bench:?}");
}

fn ending(bench: &Bench) -> Ending {
    let ended = bench.log.iter().rev().find_map(|record| match &record.body {
        Body::Ended { how, .. } => Some(how.clone()),
        _ => None,
    });
    ended.unwrap_or_else(|| panic!("it has not ended: {bench:?}"))
}

fn state(bench: &Bench) -> Value {
    Value::Object(bench.session.state.clone())
}

#[test]
fn a_turn_is_told_once_in_the_order_of_its_calls() {
    let specs = vec![spec("one", ordinary(Effect::Once)), spec("two", long_running())];
    let mut bench = Bench::called(specs);
    let before = bench.log.len();
    bench.back("two", value(json!({"status": "pending"})));
    assert_eq!(bench.since(before), ["returned"]);
    bench.back("one", value(json!({"n": 1})));
    assert_eq!(bench.since(before), ["returned", "returned", "responded"]);
    let event = bench.log.last().unwrap().body.event().unwrap();
    let told: Vec<_> = event.function_responses().map(|part| part.name.as_str()).collect();
    assert_eq!(told, ["one", "two"]);
    let sequences: Vec<_> = bench.log.iter().filter_map(|r| r.body.event()).collect();
    let sequences: Vec<_> = sequences.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [1, 2, 3]);
}

#[test]
fn calls_without_a_placeholder_are_all_awaited() {
    let specs = vec![spec("one", long_running()), spec("two", long_running())];
    let mut bench = Bench::called(specs);
    bench.back("one", Gave::Outcome(Outcome::Nothing));
    bench.back("two", Gave::Outcome(Outcome::Nothing));
    assert!(bench.session.running.is_none() && bench.asked().is_empty());
    bench.answer("user:ann", approved("one")).unwrap();
    assert!(bench.session.running.is_none() && bench.asked().is_empty());
    bench.answer("user:ann", approved("two")).unwrap();
    assert_eq!(bench.asked(), ["root@1"]);
}

#[test]
fn state_is_set_by_messages_bodies_and_answers() {
    let mut bench = Bench::new();
    let delta = object(json!({"a": 1, "gone": 1, "temp:t": 1, "app:x": 1, "user:y": 1}));
    bench.say_with(1, 500, delta).unwrap();
    assert_eq!(state(&bench), json!({"a": 1, "gone": 1}));
    let specs = vec![spec("one", ordinary(Effect::Once)), spec("two", long_running())];
    bench.reply(calls(specs));
    let delta = object(json!({"b": 2, "gone": null, "temp:u": 2}));
    bench.back_with("one", value(json!({})), delta, false);
    assert_eq!(state(&bench), json!({"a": 1, "gone": 1}), "told with the turn, not before");
    bench.back_with("two", value(json!({"s": 1})), object(json!({"b": 3})), false);
    assert_eq!(state(&bench), json!({"a": 1, "b": 3}));
    let open = &bench.session.invocations[&invocation(1)];
    assert_eq!(Value::Object(open.temp.clone()), json!({"temp:t": 1, "temp:u": 2}));
    bench.reply(says("I have asked."));
    let mut with = approved("two");
    with.state_delta = object(json!({"c": 4, "a": null}));
    bench.answer("user:ann", with).unwrap();
    assert_eq!(state(&bench), json!({"b": 3, "c": 4}));
    // A change by a caller, while the invocation runs, is one more event.
    let last = bench.session.last_sequence;
    let delta = object(json!({"d": 5}));
    let changed = bench.fact("user:ann", |draft, _| {
        draft.change_state(invocation(9), delta);
        Ok(())
    });
    changed.unwrap();
    assert_eq!(
        (bench.session.last_sequence, state(&bench)),
        (last + 1, json!({"b": 3, "c": 4, "d": 5}))
    );
    bench.reply(says("done"));
    assert_eq!(ending(&bench), Ending::Completed);
    bench.say(2).unwrap();
    assert!(bench.session.invocations[&invocation(2)].temp.is_empty());
}

#[test]
fn a_body_that_was_overtaken_still_changes_the_state() {
    let mut bench = Bench::called(vec![spec("ask", long_running())]);
    bench.answer("user:ann", approved("ask")).unwrap();
    assert!(bench.asked().is_empty());
    bench.back_with("ask", value(json!({"s": 1})), object(json!({"ticket": 7})), false);
    assert_eq!((bench.told("ask"), state(&bench)), (1, json!({"ticket": 7})));
    assert_eq!(bench.asked(), ["root@1"]);
    let told = ["user: go", "> ask", r#"< ask {"status":"approved"}"#];
    assert_eq!(bench.prompt(&root()), told);
}

#[test]
fn model_calls_are_bounded_between_two_pauses() {
    let mut bench = Bench::new();
    bench.say_with(1, 2, Object::new()).unwrap();
    bench.reply(calls(vec![spec("ask", long_running())]));
    bench.back("ask", value(json!({"status": "pending"})));
    bench.reply(says("I have asked."));
    assert_eq!(bench.session.running, None, "the limit is for what would follow");
    bench.answer("user:ann", approved("ask")).unwrap();
    for name in ["one", "two"] {
        bench.reply(calls(vec![spec(name, ordinary(Effect::Once))]));
        bench.back(name, value(json!({})));
    }
    let Ending::Failed { code, .. } = ending(&bench) else { panic!("{bench:?}") };
    assert_eq!(code, "LIMIT_EXCEEDED");
    assert_eq!(bench.since(bench.log.len() - 3), ["replied", "ended", "released"]);
    assert_eq!(bench.told("two"), 1, "what ran is told");
}

#[test]
fn every_answer_gives_a_fresh_budget() {
    let mut bench = Bench::new();
    bench.say_with(1, 1, Object::new()).unwrap();
    bench.reply(calls(vec![spec("ask", long_running())]));
    bench.back("ask", Gave::Outcome(Outcome::Nothing));
    for _ in 0..3 {
        let mut progress = approved("ask");
        progress.answers[0].will_continue = Some(true);
        assert_eq!(bench.answer("user:ann", progress), Ok(Answered::Progress));
        bench.reply(says("Still waiting."));
    }
    bench.answer("user:ann", approved("ask")).unwrap();
    bench.reply(says("done"));
    assert_eq!(ending(&bench), Ending::Completed);
}

#[test]
fn queued_answers_of_two_invocations_go_on_in_their_order() {
    let mut bench = Bench::new();
    pause(&mut bench, 1, "first");
    pause(&mut bench, 2, "second");
    bench.say(3).unwrap();
    assert_eq!(bench.answer("user:ann", approved("second")), Ok(Answered::Queued));
    assert_eq!(bench.answer("user:bob", approved("first")), Ok(Answered::Queued));
    assert_eq!(bench.answer("user:ann", approved("second")), Ok(Answered::Duplicate));
    let lost = bench.answer("user:ann", approved("first")).unwrap_err();
    assert_eq!(lost.reason.as_str(), "CALL_ALREADY_ANSWERED");
    assert_eq!((bench.told("second"), bench.session.last_sequence), (1, 9));
    bench.reply(says("three"));
    assert_eq!(bench.session.running, Some(invocation(2)));
    assert_eq!(bench.prompt(&root()).last().unwrap(), r#"< second {"status":"approved"}"#);
    bench.reply(says("two"));
    assert_eq!(bench.session.running, Some(invocation(1)));
    bench.reply(says("one"));
    let ends = bench.log.iter().filter_map(|record| match &record.body {
        Body::Ended { invocation, .. } => Some(invocation.to_string()),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), ["e-3", "e-2", "e-1"]);
    assert_eq!(bench.session.last_sequence, 14);
    assert!(bench.session.claim.is_none());
    let author = |record: &&Record| matches!(record.body, Body::Placed { .. });
    let authors: Vec<_> = bench.log.iter().filter(author).map(|r| r.by.to_string()).collect();
    assert_eq!(authors, ["user:ann", "user:bob"], "whoever answered, not whoever placed it");
}

#[test]
fn a_cancelled_invocation_takes_its_queued_answer_along() {
    let mut bench = Bench::new();
    pause(&mut bench, 1, "first");
    bench.say(2).unwrap();
    bench.answer("user:ann", approved("first")).unwrap();
    bench.fact("user:ann", |draft, _| draft.cancel(&invocation(1))).unwrap();
    // It was accepted, so it is told before the invocation ends.
    assert_eq!((bench.phase("first"), bench.told("first")), ("DONE".to_owned(), 2));
    assert_eq!(bench.session.running, Some(invocation(2)));
    bench.reply(says("two"));
    assert!(bench.session.queued.is_empty() && bench.session.claim.is_none());
}

#[test]
fn a_deadline_passes_while_another_invocation_runs() {
    let mut bench = Bench::new();
    bench.say(1).unwrap();
    let expires_after = Some(std::time::Duration::from_secs(60));
    let specs =
        ["one", "two"].map(|name| spec(name, Behaviour { expires_after, ..long_running() }));
    bench.reply(calls(specs.to_vec()));
    bench.back("one", Gave::Outcome(Outcome::Nothing));
    bench.back("two", Gave::Outcome(Outcome::Nothing));
    bench.say(2).unwrap();
    bench.pass(60);
    assert_eq!((bench.phase("one"), bench.told("one")), ("EXPIRED".to_owned(), 0));
    assert_eq!(bench.session.running, Some(invocation(2)));
    bench.reply(says("two"));
    assert_eq!(bench.session.running, Some(invocation(1)));
    assert_eq!((bench.told("one"), bench.told("two")), (1, 1));
    assert_eq!(bench.asked(), ["root@1"]);
    bench.reply(says("one"));
    assert!(bench.session.invocations.is_empty() && bench.session.claim.is_none());
}

#[test]
fn a_held_call_is_pending_in_the_prompts_of_others() {
    let mut bench = Bench::called(vec![spec("ask", long_running())]);
    bench.back("ask", Gave::Outcome(Outcome::Nothing));
    bench.say(2).unwrap();
    let told = ["user: go", "> ask", r#"< ask {"status":"pending"}"#, "user: go"];
    assert_eq!(bench.prompt(&root()), told);
    assert_eq!(bench.told("ask"), 0, "it is never stored");
    let running = bench.say(3).unwrap_err();
    assert_eq!(running.reason.as_str(), "INVOCATION_RUNNING");
}

#[test]
fn a_body_that_did_not_start_is_started_again_and_then_told() {
    let mut bench = Bench::called(vec![spec("pay", ordinary(Effect::Once))]);
    for attempt in 1..MAX_ATTEMPTS {
        bench.back("pay", Gave::NotRun);
        assert_eq!((bench.call("pay").attempt, bench.call("pay").execution), (attempt + 1, 1));
    }
    bench.back("pay", Gave::NotRun);
    assert_eq!((bench.phase("pay"), bench.told("pay")), ("DONE".to_owned(), 1));
    assert!(bench.prompt(&root()).last().unwrap().contains("was not run"));
}

#[test]
fn attempts_are_bounded_whoever_makes_them() {
    let mut bench = Bench::called(vec![spec("read", ordinary(Effect::Read))]);
    bench.crash();
    bench.back("read", Gave::Unknown);
    assert_eq!(bench.call("read").attempt, MAX_ATTEMPTS);
    bench.crash();
    assert_eq!(bench.phase("read"), "HELD UNKNOWN_OUTCOME");
    assert_eq!(bench.ran[&call_id("read")], MAX_ATTEMPTS);
    let keys: Vec<_> = bench.log.iter().filter(|r| kind(&r.body) == "started").collect();
    assert_eq!(keys.len(), MAX_ATTEMPTS as usize);
    assert_eq!(bench.call("read").idempotency_key(), "adk-read/1");
    let event = bench.log.iter().rev().find(|r| kind(&r.body) == "lost").unwrap().body.event();
    let facts = &event.unwrap().calls[&call_id("read")];
    assert_eq!(facts.args_digest, "sha256:read");
}

#[test]
fn an_unknown_outcome_is_told_by_a_late_result_in_any_invocation() {
    let mut bench = Bench::called(vec![spec("pay", ordinary(Effect::Once))]);
    bench.back("pay", Gave::Unknown);
    assert_eq!(bench.session.running, None);
    bench.say(2).unwrap();
    let late = |draft: &mut Draft<'_>, _: &[Call]| {
        let paid = Outcome::Value(object(json!({"paid": true})));
        Ok(draft.returned(&call_id("pay"), 1, back(paid, object(json!({"n": 1})))))
    };
    assert_eq!(bench.fact("server:other", late), Ok(true));
    assert_eq!((bench.phase("pay"), bench.told("pay")), ("DONE".to_owned(), 0));
    let again = bench.fact("server:other", late);
    assert_eq!(again, Ok(false), "it is settled");
    bench.reply(says("two"));
    assert_eq!((bench.told("pay"), bench.session.running.clone()), (1, Some(invocation(1))));
    assert_eq!(state(&bench), json!({"n": 1}));
    bench.reply(says("one"));
    assert!(bench.session.invocations.is_empty() && bench.session.claim.is_none());
}

#[test]
fn a_result_of_an_earlier_attempt_settles_the_call() {
    let mut bench = Bench::called(vec![spec("read", ordinary(Effect::Read))]);
    bench.crash();
    let early = Outcome::Value(object(json!({"n": 1})));
    let handed_in = bench.fact("server:process-0", |draft, _| {
        Ok(draft.returned(&call_id("read"), 1, Back::of(early)))
    });
    assert_eq!((handed_in, bench.asked()), (Ok(true), vec!["root@1".to_owned()]));
    bench.back("read", value(json!({"n": 2})));
    assert_eq!(bench.told("read"), 1);
    assert_eq!(bench.prompt(&root()).last().unwrap(), r#"< read {"n":1}"#);
}

#[test]
fn a_model_that_fails_is_asked_again_if_it_missed_something() {
    let failure = || Err(("MODEL_DOWN".to_owned(), "no".to_owned()));
    let mut bench = Bench::new();
    pause(&mut bench, 1, "ask");
    let mut progress = approved("ask");
    progress.answers[0].will_continue = Some(true);
    bench.answer("user:ann", progress).unwrap();
    bench.answer("user:ann", approved("ask")).unwrap();
    bench.reply_in(&root(), failure());
    assert_eq!(bench.asked(), ["root@1"], "the last answer was in no prompt yet");
    bench.reply_in(&root(), failure());
    let Ending::Failed { code, message } = ending(&bench) else { panic!() };
    assert_eq!((&*code, &*message), ("MODEL_DOWN", "no"));
}

#[test]
fn an_answer_that_comes_while_the_model_speaks_is_told_next() {
    let mut bench = Bench::called(vec![spec("ask", long_running())]);
    bench.back("ask", value(json!({"status": "pending"})));
    bench.answer("user:ann", approved("ask")).unwrap();
    assert_eq!(bench.hands.models.len(), 1);
    bench.reply(says("I have asked."));
    assert_eq!(bench.asked(), ["root@1"]);
    assert_eq!(bench.prompt(&root()).last().unwrap(), r#"< ask {"status":"approved"}"#);
    bench.reply(says("done"));
    assert_eq!(ending(&bench), Ending::Completed);
}

#[test]
fn nobody_is_asked_for_what_needs_no_summary() {
    let mut bench = Bench::new();
    pause(&mut bench, 1, "ask");
    let mut with = approved("ask");
    with.skip_summarization = true;
    bench.answer("user:ann", with).unwrap();
    assert_eq!(ending(&bench), Ending::Completed);
    let mut bench = Bench::called(vec![spec("show", ordinary(Effect::Read))]);
    bench.back_with("show", value(json!({})), Object::new(), true);
    assert_eq!(ending(&bench), Ending::Completed);
    assert_eq!(bench.told("show"), 1);
}

#[test]
fn several_answers_are_one_answer() {
    let held = || {
        let mut bench = Bench::called(["one", "two"].map(|n| spec(n, long_running())).to_vec());
        bench.back("one", Gave::Outcome(Outcome::Nothing));
        bench.back("two", Gave::Outcome(Outcome::Nothing));
        bench
    };
    let both = |first: Incomings, second: Incomings| {
        let mut both = first;
        both.answers.extend(second.answers);
        both
    };
    let mut bench = held();
    let refused = bench.answer("user:ann", both(approved("one"), approved("none"))).unwrap_err();
    assert_eq!(refused.reason.as_str(), "CALL_NOT_FOUND");
    let rejected = answers(&call_id("one"), "one", Some(json!({"status": "rejected"})));
    let refused = bench.answer("user:ann", both(approved("one"), rejected)).unwrap_err();
    assert_eq!(refused.reason.as_str(), "FIELD_INVALID");
    bench.answer("user:ann", approved("one")).unwrap();
    // A repeat is passed over, and what is new applies.
    let applied = bench.answer("user:ann", both(approved("one"), approved("two")));
    assert_eq!((applied, bench.told("one"), bench.told("two")), (Ok(Answered::Applied), 1, 1));
    let mut bench = held();
    let before = bench.log.len();
    bench.answer("user:ann", both(approved("two"), approved("one"))).unwrap();
    assert_eq!(bench.since(before), ["answered", "claimed"]);
    bench.reply(says("done"));
    let mut bench = held();
    pause(&mut bench, 2, "three");
    let mixed = bench.answer("user:ann", both(approved("one"), approved("three"))).unwrap_err();
    assert_eq!(mixed.reason.as_str(), "MIXED_MESSAGE");
}

#[test]
fn a_call_that_fails_its_checks_is_told_and_never_runs() {
    let failed = Some(object(json!({"error": "no such tool"})));
    let mut bad = spec("bad", long_running());
    bad.failed = failed;
    let mut bench = Bench::called(vec![bad, spec("good", ordinary(Effect::Once))]);
    assert_eq!((bench.phase("bad"), bench.told("bad")), ("DONE".to_owned(), 0));
    bench.back("good", value(json!({})));
    assert_eq!((bench.told("bad"), bench.ran.get(&call_id("bad"))), (1, None));
    assert_eq!(bench.asked(), ["root@1"]);
}
