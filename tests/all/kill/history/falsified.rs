//! The checker finds each kind of fault: a history that is true of a log, and one change that makes
//! it untrue.

use countersign::runner::step::Gave;
use countersign::session::record;
use serde_json::{Value, json};

use super::*;
use crate::core::{Bench, answers, call_id, long_running, says, spec};
use crate::support::object;

const SESSION: &str = "s";
const INVOCATION: &str = "e-1";
const CALL: &str = "adk-ask";

fn event(sequence: i64, author: &str, data: Data) -> pb::Event {
    let part = pb::Part { data: Some(data), ..Default::default() };
    pb::Event {
        id: format!("event-{sequence}"),
        sequence,
        invocation_id: INVOCATION.into(),
        author: author.into(),
        content: Some(pb::Content { role: "user".into(), parts: vec![part] }),
        ..Default::default()
    }
}

fn call() -> pb::FunctionCall {
    pb::FunctionCall { id: CALL.into(), name: "ask".into(), args: None }
}

fn response(response: Value) -> Data {
    let response = Some(object(response));
    let (id, name) = (CALL.into(), "ask".into());
    Data::FunctionResponse(pb::FunctionResponse { id, name, response, will_continue: None })
}

/// A message, a call that was held and answered, and a last word.
fn log() -> Log {
    let mut asks = event(2, "clerk", Data::FunctionCall(call()));
    asks.long_running_tool_ids = vec![CALL.into()];
    let events = vec![
        event(1, "user", Data::Text("wait message".into())),
        asks,
        event(3, "user", response(json!({"mark": "answer"}))),
        event(4, "clerk", Data::Text("That is all.".into())),
    ];
    let mut invocation = pb::Invocation { session_id: SESSION.into(), ..Default::default() };
    invocation.set_state(State::Completed);
    Log {
        events: BTreeMap::from([(SESSION.into(), events)]),
        invocations: BTreeMap::from([(INVOCATION.into(), invocation)]),
        records: BTreeMap::from([(SESSION.into(), records())]),
        bodies: vec![("pay".into(), "call-2/1".into())],
    }
}

/// The records of that log, by the code that servers run.
fn records() -> Vec<Record> {
    let mut bench = Bench::called(vec![spec("ask", long_running())]);
    bench.back("ask", Gave::Outcome(record::Outcome::Nothing));
    let answer = answers(&call_id("ask"), "ask", Some(json!({"mark": "answer"})));
    bench.answer("user:ann", answer).unwrap();
    bench.reply(says("That is all."));
    bench.log
}

fn answered() -> Answered {
    Answered {
        call: CALL.into(),
        mark: "answer".into(),
        request: "answer".into(),
        outcome: Some((Outcome::Applied, 3)),
    }
}

fn saw(log: &Log, after: i64, state: Option<End>) -> Saw {
    let events = log.events[SESSION].iter().filter(|event| event.sequence > after);
    let end = state.map(|state| pb::EndMark { state: state.into(), ..Default::default() });
    Saw {
        session: SESSION.into(),
        invocation: Some(INVOCATION.into()),
        after,
        own: false,
        events: events.cloned().collect(),
        end,
    }
}

fn facts(log: &Log) -> Vec<Fact> {
    let mut paused = saw(log, 1, Some(End::Paused));
    paused.events.truncate(1);
    let held = pb::Call { function_call: Some(call()), ..Default::default() };
    paused.end.as_mut().unwrap().held_calls = vec![held];
    vec![
        Fact::Said { mark: "message".into() },
        Fact::Begun {
            mark: "message".into(),
            session: SESSION.into(),
            invocation: INVOCATION.into(),
        },
        Fact::Saw(paused),
        Fact::Tried { call: CALL.into(), mark: "answer".into() },
        Fact::Answered(answered()),
        Fact::Answered(answered()),
        Fact::Saw(saw(log, 3, Some(End::Completed))),
        Fact::Listed { session: SESSION.into(), events: log.events[SESSION].clone() },
        Fact::Watched(BTreeMap::from([(INVOCATION.into(), State::Completed)])),
    ]
}

/// The only fault of a true history with this change.
fn found(change: impl FnOnce(&mut Vec<Fact>, &mut Log)) -> String {
    let mut log = log();
    let mut facts = facts(&log);
    assert_eq!(check(&facts, &log), [""; 0], "it was true");
    change(&mut facts, &mut log);
    let faults = check(&facts, &log);
    assert!(!faults.is_empty(), "nothing was found");
    faults.join("\n")
}

#[track_caller]
fn finds(fault: &str, change: impl FnOnce(&mut Vec<Fact>, &mut Log)) {
    let found = found(change);
    assert!(found.contains(fault), "{fault} in:\n{found}");
}

fn events(log: &mut Log) -> &mut Vec<pb::Event> {
    log.events.get_mut(SESSION).unwrap()
}

/// The stream that showed the end.
fn last(facts: &mut [Fact]) -> &mut Saw {
    let ends = facts.iter_mut().rev().find_map(|fact| match fact {
        Fact::Saw(saw) => Some(saw),
        _ => None,
    });
    ends.unwrap()
}

#[test]
fn what_is_lost_is_found() {
    finds("the answer answer to adk-ask is lost", |_, log| {
        events(log).remove(2);
    });
    finds("the message message of e-1 is lost", |_, log| {
        events(log)[0].content = None;
    });
    finds("the cancelling of e-1 is lost", |facts, _| {
        facts.push(Fact::Cancelled { invocation: INVOCATION.into() });
    });
    finds("sessions and logs are not as many", |_, log| {
        log.events.insert("s2".into(), Vec::new());
    });
    finds("what was listed of s is not its log", |facts, log| {
        events(log).pop();
        facts.retain(|fact| matches!(fact, Fact::Listed { .. } | Fact::Said { .. }));
    });
    finds("not all invocations were watched", |facts, _| {
        facts.push(Fact::Watched(BTreeMap::new()));
    });
}

#[test]
fn what_is_doubled_is_found() {
    finds("answer stands in 2 events", |_, log| {
        let again = events(log)[2].clone();
        events(log).push(pb::Event { id: "event-5".into(), sequence: 5, ..again });
    });
    finds("event 4 of session s has another one's id", |_, log| {
        events(log)[3].id = "event-3".into();
    });
    finds("request answer has two outcomes", |facts, _| {
        let outcome = Some((Outcome::Duplicate, 3));
        facts.push(Fact::Answered(Answered { outcome, ..answered() }));
    });
    finds("call adk-ask was answered twice", |facts, _| {
        facts.push(Fact::Answered(Answered { request: String::new(), ..answered() }));
    });
    finds("message began two invocations", |facts, _| {
        facts.push(Fact::Begun {
            mark: "message".into(),
            session: SESSION.into(),
            invocation: "e-2".into(),
        });
    });
    finds("pay with key call-2/1 was begun 2 times", |_, log| {
        log.bodies.push(log.bodies[0].clone());
    });
    finds("call adk-ask was closed twice", |_, log| {
        let records = log.records.get_mut(SESSION).unwrap();
        let answered = records.iter().find(|r| matches!(r.body, Body::Answered { .. })).unwrap();
        records.push(answered.clone());
    });
}

#[test]
fn a_stream_with_a_gap_or_a_surplus_is_found() {
    let fault = "a stream of e-1 after 3 is not its log";
    finds(fault, |facts, _| last(facts).events[0].author = "nobody".into());
    finds(fault, |facts, _| {
        let twice = last(facts).events[0].clone();
        last(facts).events.push(twice);
    });
    finds("a stream of e-1 after 1 is not its log", |facts, log| {
        let mut gap = saw(log, 1, None);
        gap.events.remove(1);
        facts.push(Fact::Saw(gap));
    });
    finds("a stream of s after 0 is not its log", |facts, log| {
        let mut late = Saw { invocation: None, ..saw(log, 0, None) };
        late.events.remove(0);
        facts.push(Fact::Saw(late));
    });
    finds("event 3 of session s stands at 2", |_, log| {
        events(log).remove(1);
    });
}

#[test]
fn an_end_that_is_none_is_found() {
    finds("a stream of e-1 ended before its end", |facts, _| last(facts).events.clear());
    finds("e-1 was said to be Some(Cancelled)", |facts, log| {
        facts.push(Fact::Saw(saw(log, 3, Some(End::Cancelled))));
    });
    finds("a stream of e-1 ended with Reconnect", |facts, log| {
        facts.push(Fact::Saw(saw(log, 3, Some(End::Reconnect))));
    });
    finds("e-1 never waited for what", |facts, log| {
        let mut paused = saw(log, 3, Some(End::Paused));
        let other = pb::FunctionCall { id: "call-9".into(), ..call() };
        let held = pb::Call { function_call: Some(other), ..Default::default() };
        paused.end.as_mut().unwrap().held_calls = vec![held];
        facts.push(Fact::Saw(paused));
    });
    finds("e-1 was watched to be Running", |facts, _| {
        facts.push(Fact::Watched(BTreeMap::from([(INVOCATION.into(), State::Running)])));
    });
}

#[test]
fn what_stands_still_is_found() {
    let state = |log: &mut Log, state| {
        log.invocations.get_mut(INVOCATION).unwrap().set_state(state);
    };
    finds("invocation e-1 is Running", |_, log| state(log, State::Running));
    finds("invocation e-1 is Failed", |_, log| state(log, State::Failed));
    finds("invocation e-1 is Paused", |_, log| state(log, State::Paused));
    finds("session s could move and did not", |_, log| {
        let records = log.records.get_mut(SESSION).unwrap();
        let ends = |record: &Record| matches!(record.body, Body::Ended { .. });
        records.truncate(records.iter().position(ends).unwrap());
    });
    finds("call adk-ask has 0 responses", |_, log| {
        events(log)[2] = event(3, "clerk", Data::Text("Well.".into()));
    });
}

#[test]
fn a_refusal_without_cause_is_found() {
    let refused = |mark: &str, reason: &str| Fact::Refused {
        call: CALL.into(),
        mark: mark.into(),
        reason: reason.into(),
    };
    finds("answer was refused (CALL_ALREADY_ANSWERED) and stands", |facts, _| {
        facts.push(refused("answer", "CALL_ALREADY_ANSWERED"));
    });
    finds("other was refused without cause", |facts, _| {
        facts.push(refused("other", "CALL_NOT_HELD"));
    });
    finds("other was refused without cause", |facts, log| {
        facts.push(refused("other", "CALL_CANCELLED"));
        log.records.clear();
    });
    finds("message was sent by nobody", |facts, _| {
        facts.remove(0);
    });
    finds("e-1 was said to be over", |facts, log| {
        facts.push(Fact::TooLate { invocation: INVOCATION.into() });
        log.invocations.get_mut(INVOCATION).unwrap().set_state(State::Running);
    });
}
