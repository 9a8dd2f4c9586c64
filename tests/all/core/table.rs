//! The table "what may happen to a call", row by row and column by column. A cell says what whoever
//! came was told, where the call is then, how many responses were told by it, and what comes next:
//! a model is asked, a body is awaited, the invocation waits for somebody, or it is over.

use std::time::Duration;

use super::*;

const NAME: &str = "call";
const DEADLINE_SECONDS: u64 = 60;

fn behaviour(long_running: bool, effect: Effect) -> Behaviour {
    let expires_after = Some(Duration::from_secs(DEADLINE_SECONDS));
    Behaviour { long_running, effect, expires_after, ..Behaviour::default() }
}

/// A call that was requested and whose body has not started.
fn requested(long_running: bool) -> Bench {
    let mut bench = Bench::started();
    let specs = vec![spec(NAME, behaviour(long_running, Effect::Once))];
    let seen = bench.session.head;
    bench.by_hand(|draft| draft.replied(&invocation(1), &root(), seen, calls(specs)));
    bench.hands.models.clear();
    bench
}

fn running(long_running: bool, effect: Effect) -> Bench {
    Bench::called(vec![spec(NAME, behaviour(long_running, effect))])
}

/// Held by a long-running tool, and the invocation paused.
fn held(placeholder: bool) -> Bench {
    let mut bench = running(true, Effect::Once);
    if placeholder {
        bench.back(NAME, value(json!({"status": "pending"})));
        bench.reply(says("I have asked."));
    } else {
        bench.back(NAME, Gave::Outcome(Outcome::Nothing));
    }
    assert_eq!((next(&bench), &*bench.phase(NAME)), ("paused", "HELD LONG_RUNNING"));
    bench
}

fn unknown(long_running: bool) -> Bench {
    let mut bench = running(long_running, Effect::Once);
    bench.crash();
    assert_eq!((next(&bench), &*bench.phase(NAME)), ("paused", "HELD UNKNOWN_OUTCOME"));
    bench
}

/// Held, while another invocation runs.
fn beside() -> Bench {
    let mut bench = held(true);
    bench.say(2).unwrap();
    bench
}

fn answered(mut bench: Bench) -> Bench {
    bench.answer("user:ann", approved()).unwrap();
    bench
}

fn done() -> Bench {
    let mut bench = running(false, Effect::Once);
    bench.back(NAME, value(json!({"ok": true})));
    bench
}

fn expired() -> Bench {
    let mut bench = held(true);
    bench.pass(DEADLINE_SECONDS);
    bench
}

fn cancelled() -> Bench {
    let mut bench = held(true);
    bench.fact("user:ann", |draft, _| draft.cancel(&invocation(1))).unwrap();
    bench
}

fn approved() -> Incomings {
    answers(&call_id(NAME), NAME, Some(json!({"status": "approved"})))
}

/// What happens next to the invocation.
fn next(bench: &Bench) -> &'static str {
    let open = bench.session.invocations.contains_key(&invocation(1));
    let running = bench.session.running.as_ref() == Some(&invocation(1));
    match (open, running, bench.hands.models.is_empty()) {
        (false, ..) => "over",
        (_, false, _) => "paused",
        (_, _, false) => "model",
        _ => {
            assert!(!bench.hands.bodies.is_empty(), "nothing moves it: {bench:?}");
            "body"
        }
    }
}

fn told_by<T: std::fmt::Debug>(reply: Result<T, Refusal>) -> String {
    match reply {
        Ok(done) => format!("{done:?}").to_uppercase(),
        Err(refusal) => refusal.reason.as_str().to_owned(),
    }
}

/// One row against one column.
fn cell(row: &str, mut bench: Bench) -> String {
    let (before, log) = (bench.told(NAME), bench.log.len());
    let id = call_id(NAME);
    let reply = match row {
        "final" => told_by(bench.answer("user:ann", approved())),
        "final by another" => told_by(bench.answer("user:bob", approved())),
        "final, other content" => {
            let other = answers(&id, NAME, Some(json!({"status": "rejected"})));
            told_by(bench.answer("user:ann", other))
        }
        "final, too late" => {
            bench.now += DEADLINE_SECONDS * 1_000_000;
            told_by(bench.answer("user:ann", approved()))
        }
        "progress" => {
            let mut progress = approved();
            progress.answers[0].will_continue = Some(true);
            told_by(bench.answer("user:ann", progress))
        }
        "value" => body(&mut bench, Outcome::Value(object(json!({"status": "body"})))),
        "nothing" => body(&mut bench, Outcome::Nothing),
        "error" => body(&mut bench, Outcome::Error(object(json!({"error": "no"})))),
        "expiry" => {
            bench.pass(DEADLINE_SECONDS);
            "-".to_owned()
        }
        "cancel" => {
            told_by(bench.fact("user:ann", |draft, _| draft.cancel(&invocation(1)).map(|()| '-')))
        }
        "owner lost" => {
            bench.crash();
            "-".to_owned()
        }
        other => panic!("no row {other}"),
    };
    let reply = reply.trim_matches('\'').to_owned();
    let changed = bench.since(log).iter().any(|kind| !["claimed", "released"].contains(kind));
    if !changed {
        return reply;
    }
    let (phase, told) = (bench.phase(NAME), bench.told(NAME) - before);
    format!("{reply} {phase}, told {told}, {}", next(&bench))
}

/// A body comes back, to the driver that started it or from one that has lost its claim.
fn body(bench: &mut Bench, outcome: Outcome) -> String {
    let id = call_id(NAME);
    if bench.hands.bodies.iter().any(|(call, _, _)| *call == id) {
        bench.back(NAME, Gave::Outcome(outcome));
    } else {
        let late = bench
            .fact("server:process-0", |draft, _| Ok(draft.returned(&id, 1, Back::of(outcome))));
        if !late.unwrap() {
            return "dropped".to_owned();
        }
    }
    "-".to_owned()
}

/// One column: the call as it is before, and what each row makes of it.
fn column(name: &str, make: impl Fn() -> Bench, cells: &[(&str, &str)]) -> Vec<String> {
    let wrong = |(row, expected): &(&str, &str)| {
        let found = cell(row, make());
        (found != *expected).then(|| format!("{name} x {row}: {found:?}, not {expected:?}"))
    };
    cells.iter().filter_map(wrong).collect()
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_call_that_was_requested() {
    for long_running in [false, true] {
        let cells = [
            ("final", "CALL_NOT_HELD"),
            ("progress", "CALL_NOT_HELD"),
            ("expiry", "- EXPIRED, told 1, model"),
            ("cancel", "- CANCELLED, told 1, over"),
            ("owner lost", "- RUNNING, told 0, body"),
        ];
        assert_none(&column("requested", || requested(long_running), &cells));
    }
}

#[test]
fn a_call_whose_body_runs() {
    let cells = [
        ("final", "CALL_NOT_HELD"),
        ("progress", "CALL_NOT_HELD"),
        ("value", "- DONE, told 1, model"),
        ("error", "- DONE, told 1, model"),
        ("expiry", "- EXPIRED, told 1, body"),
        ("cancel", "- RUNNING, told 0, body"),
    ];
    assert_none(&column("running", || running(false, Effect::Once), &cells));
    let lost = |effect| cell("owner lost", running(false, effect));
    assert_eq!(lost(Effect::Once), "- HELD UNKNOWN_OUTCOME, told 0, paused");
    assert_eq!(lost(Effect::Idempotent), "- RUNNING, told 0, body");
    assert_eq!(lost(Effect::Read), "- RUNNING, told 0, body");
}

#[test]
fn a_long_running_call_whose_body_runs() {
    let cells = [
        ("final", "APPLIED DONE, told 1, body"),
        ("final, too late", "CALL_EXPIRED"),
        ("progress", "PROGRESS RUNNING, told 1, body"),
        ("value", "- HELD LONG_RUNNING, told 1, model"),
        ("nothing", "- HELD LONG_RUNNING, told 0, paused"),
        ("error", "- DONE, told 1, model"),
        ("expiry", "- EXPIRED, told 1, body"),
        ("cancel", "- RUNNING, told 0, body"),
    ];
    assert_none(&column("running", || running(true, Effect::Once), &cells));
    let lost = |effect| cell("owner lost", running(true, effect));
    assert_eq!(lost(Effect::Once), "- HELD UNKNOWN_OUTCOME, told 0, paused");
    assert_eq!(lost(Effect::Read), "- RUNNING, told 0, body");
}

#[test]
fn a_held_call() {
    for placeholder in [false, true] {
        let cells = [
            ("final", "APPLIED DONE, told 1, model"),
            ("final by another", "APPLIED DONE, told 1, model"),
            ("final, too late", "CALL_EXPIRED"),
            ("progress", "PROGRESS HELD LONG_RUNNING, told 1, model"),
            ("value", "dropped"),
            ("error", "dropped"),
            ("expiry", "- EXPIRED, told 1, model"),
            ("cancel", "- CANCELLED, told 1, over"),
            ("owner lost", "-"),
        ];
        assert_none(&column("held", || held(placeholder), &cells));
    }
}

#[test]
fn a_held_call_while_another_invocation_runs() {
    let cells = [
        ("final", "QUEUED DONE, told 0, paused"),
        ("final, too late", "CALL_EXPIRED"),
        ("progress", "QUEUED HELD LONG_RUNNING, told 0, paused"),
        ("expiry", "- EXPIRED, told 0, paused"),
        ("cancel", "- CANCELLED, told 1, over"),
        ("owner lost", "-"),
    ];
    assert_none(&column("beside", beside, &cells));
}

#[test]
fn a_call_of_unknown_outcome() {
    for long_running in [false, true] {
        let cells = [
            ("final", "APPLIED DONE, told 1, model"),
            ("final, too late", "CALL_EXPIRED"),
            ("progress", "FIELD_INVALID"),
            ("error", "- DONE, told 1, model"),
            ("expiry", "- EXPIRED, told 1, model"),
            ("cancel", "- CANCELLED, told 1, over"),
            ("owner lost", "-"),
        ];
        assert_none(&column("unknown", || unknown(long_running), &cells));
    }
    assert_eq!(cell("value", unknown(false)), "- DONE, told 1, model");
    // A placeholder is a definite result too: from here on it is known whom the call waits for.
    assert_eq!(cell("value", unknown(true)), "- HELD LONG_RUNNING, told 1, model");
    assert_eq!(cell("nothing", unknown(true)), "- HELD LONG_RUNNING, told 0, paused");
}

#[test]
fn a_closed_call() {
    let answered_cells = [
        ("final", "DUPLICATE"),
        ("final by another", "CALL_ALREADY_ANSWERED"),
        ("final, other content", "CALL_ALREADY_ANSWERED"),
        ("final, too late", "DUPLICATE"),
        ("progress", "CALL_ALREADY_ANSWERED"),
        ("expiry", "-"),
    ];
    let late_cells = [("value", "dropped"), ("error", "dropped"), ("owner lost", "-")];
    for make in [|| answered(held(true)), || answered(held(false)), || answered(unknown(false))] {
        assert_none(&column("answered", make, &answered_cells));
        assert_none(&column("answered", make, &late_cells));
    }
    // The answer has overtaken the placeholder: that is a record only, and the model is free.
    let overtaken = || answered(running(true, Effect::Once));
    assert_none(&column("overtaken", overtaken, &answered_cells));
    for row in ["value", "nothing", "error"] {
        assert_eq!(cell(row, overtaken()), "- DONE, told 0, model", "{row}");
    }
    assert_eq!(cell("owner lost", overtaken()), "-");
    let mut lost = overtaken();
    lost.crash();
    assert_eq!(lost.asked(), ["root@1"], "nobody waits for a body that another process ran");
    let cells = [
        ("final", "CALL_ALREADY_ANSWERED"),
        ("progress", "CALL_ALREADY_ANSWERED"),
        ("expiry", "-"),
        ("owner lost", "-"),
    ];
    assert_none(&column("done", done, &cells));
    let refused = |reason| [("final", reason), ("final by another", reason), ("progress", reason)];
    assert_none(&column("expired", expired, &refused("CALL_EXPIRED")));
    assert_none(&column("cancelled", cancelled, &refused("CALL_CANCELLED")));
}

#[test]
fn who_comes_second_learns_who_was_first() {
    let mut bench = answered(held(true));
    let refusal = bench.answer("user:bob", approved()).unwrap_err();
    assert_eq!(refusal.details["answered_by"], "user:ann");
    assert_eq!(refusal.details["answer_time_micros"], bench.now.to_string());
    // Over the end of the invocation it is the same.
    bench.reply(says("done"));
    assert_eq!(next(&bench), "over");
    assert_eq!(told_by(bench.answer("user:ann", approved())), "DUPLICATE");
    assert_eq!(told_by(bench.answer("user:bob", approved())), "CALL_ALREADY_ANSWERED");
}

#[test]
fn a_body_at_work_is_awaited_by_a_cancel() {
    for (long_running, phase) in [(false, "DONE"), (true, "CANCELLED")] {
        let mut bench = running(long_running, Effect::Once);
        bench.fact("user:ann", |draft, _| draft.cancel(&invocation(1))).unwrap();
        assert_eq!(
            told_by(bench.answer("user:ann", approved())),
            match long_running {
                true => "CALL_CANCELLED",
                false => "CALL_NOT_HELD",
            }
        );
        bench.back(NAME, value(json!({"status": "body"})));
        assert_eq!((&*bench.phase(NAME), next(&bench)), (phase, "over"));
        assert_eq!(bench.told(NAME), if long_running { 2 } else { 1 });
        assert_eq!(*bench.since(bench.log.len() - 2), ["ended", "released"]);
    }
    // A body that is lost meanwhile is not run again, whatever its effect.
    let mut bench = running(false, Effect::Read);
    bench.fact("user:ann", |draft, _| draft.cancel(&invocation(1))).unwrap();
    bench.crash();
    assert_eq!((&*bench.phase(NAME), next(&bench)), ("CANCELLED", "over"));
    assert_eq!((bench.told(NAME), bench.ran[&call_id(NAME)]), (1, 1));
}

#[test]
fn an_answer_must_be_for_the_call_that_it_names() {
    let mut bench = held(true);
    let mut ask = |change: &dyn Fn(&mut Incomings)| {
        let mut with = approved();
        change(&mut with);
        told_by(bench.answer("user:ann", with))
    };
    assert_eq!(ask(&|with| with.answers[0].name = "other".to_owned()), "CALL_NAME_MISMATCH");
    assert_eq!(ask(&|with| with.answers[0].call = call_id("no")), "CALL_NOT_FOUND");
    assert_eq!(ask(&|with| with.invocation = Some(invocation(9))), "INVOCATION_MISMATCH");
    let digest = Some("sha256:other".to_owned());
    assert_eq!(ask(&|with| with.expected_args_digest = digest.clone()), "ARGS_DIGEST_MISMATCH");
    assert_eq!(ask(&|with| with.invocation = Some(invocation(1))), "APPLIED");
}
