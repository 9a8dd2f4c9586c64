//! Stored forms of what came with approvals, in records of kinds that there were before.

use std::time::Duration;

use countersign::session::approval::{
    Action, Confirmation, Deadline, Gate, Gated, Judged, Raised, Verdict,
};
use countersign::session::call::{Call, Phase};
use countersign::session::record::Edited;

use super::*;

fn why(code: Code) -> Why {
    Why { rule: "small".to_owned(), ..Why::new(code) }
}

fn gate() -> Gate {
    let after = |seconds, action| Deadline { after: Duration::from_secs(seconds), action };
    Gate {
        judged: Judged::Ask,
        why: why(Code::Condition),
        auto: None,
        tool: standing(false).tool,
        hint: "really?".to_owned(),
        rejection: "not now".to_owned(),
        deadlines: vec![
            after(10, Action::Remind),
            after(20, Action::Escalate { to: "finance".to_owned() }),
            after(60, Action::Deny),
            after(90, Action::Expire),
        ],
        barrier: true,
        one_at_a_time: true,
        max_auto: 40,
        asks_with_siblings: true,
    }
}

/// Calls with every field that approvals added, and gates with as little as one can have.
fn gated() -> Vec<Spec> {
    let behaviour =
        Behaviour { deadlines: gate().deadlines, input: true, inbox: true, ..core::long_running() };
    let bare = Gate {
        judged: Judged::Deny,
        why: Why::new(Code::PolicyDenied),
        hint: String::new(),
        rejection: String::new(),
        deadlines: Vec::new(),
        barrier: false,
        one_at_a_time: false,
        max_auto: 0,
        asks_with_siblings: false,
        ..gate()
    };
    let with =
        |name, behaviour, gate| Spec { gate: Some(Box::new(gate)), ..core::spec(name, behaviour) };
    vec![with("pay", behaviour, gate()), with("never", Behaviour::default(), bare)]
}

fn bodies() -> Vec<Body> {
    let returned = |raised| Body::Returned {
        call: call_id("pay"),
        execution: 1,
        outcome: Outcome::Value(object(json!({"status": "asking"}))),
        state_delta: Object::new(),
        skip_summarization: false,
        raised: Some(raised),
    };
    let raised = Raised {
        hint: "over the limit".to_owned(),
        payload: Some(json!({"days": 0})),
        declined: Some(object(json!({"status": "declined"}))),
    };
    let decided = |verdict, edited| {
        let response = object(json!({"confirmed": verdict == Verdict::Approve}));
        let closing = Answer::closing(call_id("question"), response, End::Done);
        let answer = Answer {
            verdict: Some(verdict),
            reason: "since I say so".to_owned(),
            edited,
            ..closing
        };
        let (invocation, answers) = (invocation(1), vec![answer]);
        Body::Answered { invocation, answers, queued: false, event: bare() }
    };
    let edited = Edited {
        call: call_id("pay"),
        args: object(json!({"amount": 5})),
        args_digest: "sha256:5".to_owned(),
        why: why(Code::Tool),
    };
    let mut event = bare();
    let told = |hint: &str, payload| ToolConfirmation { hint: hint.to_owned(), payload };
    event.actions.requested_tool_confirmations = BTreeMap::from([
        (call_id("pay"), told("really?", None)),
        (call_id("send"), told("how long?", Some(json!({"days": 0})))),
    ]);
    let (invocation, frame) = (invocation(1), root());
    let mut bodies = vec![
        Body::Replied {
            invocation: invocation.clone(),
            frame: frame.clone(),
            seen: 3,
            event: bare(),
            calls: gated(),
        },
        returned(raised),
        returned(Raised::default()),
        Body::Responded { invocation, frame, event },
        decided(Verdict::Approve, Some(edited)),
    ];
    let verdicts = Verdict::ALL.into_iter().filter(|verdict| *verdict != Verdict::RunAgain);
    bodies.extend(verdicts.map(|verdict| decided(verdict, None)));
    bodies
}

#[test]
fn what_came_with_approvals_is_read_as_it_was_written() {
    let record = |body| Record { time: 1_700_000_000_000_000, by: by("user:ann"), body };
    let records: Vec<Record> = bodies().into_iter().map(record).collect();
    let stored = lines("v1/approvals.jsonl", || records.iter().map(codec::encode_record).collect());
    let read: Vec<Record> = stored.iter().map(|l| codec::decode_record(l).unwrap()).collect();
    assert_eq!(read, records);
}

/// The calls of a log of approvals, as their entries have them.
#[test]
fn entries_of_calls_with_approvals_are_read_as_they_were_written() {
    let mut log: Vec<Record> = core::tree::log();
    log.truncate(1);
    let mut fold = Session::begin(&log[0]).unwrap();
    let mut touched = Touched::default();
    let invoked = super::bodies().into_iter().find(|b| matches!(b, Body::Invoked { .. }));
    let replied = bodies().swap_remove(0);
    for body in [invoked.unwrap(), replied, asked(Code::Tool)] {
        let record = Record { time: 1_700_000_000_000_000, by: by("user:ann"), body };
        fold.apply(&record, &mut touched);
    }
    let mut calls: Vec<Call> = fold.calls.into_values().collect();
    assert_eq!(calls.len(), 3);
    let gated = calls.iter_mut().find(|call| matches!(call.phase, Phase::Gated)).unwrap();
    gated.gated = Some(Box::new(Gated {
        question: Some(call_id("question")),
        raised: Some(Raised::default()),
        declined: Some(Object::new()),
        confirmation: Some(Confirmation { confirmed: true, payload: Some(json!(1)) }),
        reason: "so".to_owned(),
        edited: true,
    }));
    let stored = lines("v1/calls.jsonl", || {
        calls.iter().map(|call| serde_json::to_vec(call).unwrap()).collect()
    });
    let read: Vec<Call> = stored.iter().map(|l| serde_json::from_slice(l).unwrap()).collect();
    assert_eq!(read, calls);
}
