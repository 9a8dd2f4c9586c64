//! Given, when, then: calls that wait for a person's agreement (contract, sections 4 and 5).

use std::time::Duration;

use countersign::session::approval::*;
use countersign::session::call::Kind;
use countersign::session::decide::Decision;
use countersign::session::record::Noted;
use countersign::session::refusal::Reason;

use super::*;

fn tool(name: &str) -> ToolIdentity {
    let (source, schema_digest) = ("function".to_owned(), "sha256:0".to_owned());
    ToolIdentity { name: name.to_owned(), source, schema_digest }
}

/// A gate that asks.
fn gate(name: &str, barrier: bool) -> Gate {
    Gate {
        judged: Judged::Ask,
        why: Why::new(Code::Tool),
        auto: None,
        tool: tool(name),
        hint: String::new(),
        rejection: String::new(),
        deadlines: Vec::new(),
        barrier,
        one_at_a_time: false,
        max_auto: 40,
        asks_with_siblings: false,
    }
}

/// A call of a tool that asks, under a barrier.
fn gated(name: &str) -> Spec {
    with(name, gate(name, true))
}

fn with(name: &str, gate: Gate) -> Spec {
    Spec { gate: Some(Box::new(gate)), ..spec(name, ordinary(Effect::Once)) }
}

fn safe(name: &str) -> Spec {
    spec(name, ordinary(Effect::Once))
}

/// The events from a position on: kind of the record and what is said, in short.
fn told(bench: &Bench, after: usize) -> Vec<String> {
    let said = |event: &countersign::session::content::Event| {
        let parts = event.content.iter().flat_map(|content| &content.parts);
        let word = |part: &Part| match &part.data {
            Some(Data::FunctionCall(call)) => format!("call {}", call.name),
            Some(Data::FunctionResponse(response)) => {
                let said = response.response.clone().unwrap_or_default();
                format!("{} {}", response.name, Value::Object(said))
            }
            Some(Data::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let words: Vec<String> = parts.map(word).collect();
        let skip = if event.actions.skip_summarization { " (skip)" } else { "" };
        format!("{}{skip}", words.join(", "))
    };
    bench.log[after..].iter().filter_map(|record| record.body.event()).map(said).collect()
}

fn placeholder(name: &str) -> String {
    format!("{name} {}", json!({"error": PLACEHOLDER}))
}

#[test]
fn adk_69_70_a_gated_call_asks_and_runs_once_when_somebody_agrees() {
    let mut bench = Bench::called(vec![gated("pay")]);
    assert_eq!(bench.phase("pay"), "GATED");
    assert_eq!((bench.ran.len(), bench.asked().len()), (0, 0));
    let events = told(&bench, 1);
    let asked = format!("call {CONFIRMATION}");
    let skipped = format!("{} (skip)", placeholder("pay"));
    assert_eq!(events, ["go", "call pay", &asked, &skipped]);
    let question = bench.question("pay");
    let held = bench.session.held_calls(&invocation(1));
    assert_eq!(held.iter().map(|call| &call.spec.id).collect::<Vec<_>>(), [&question]);
    assert!(bench.session.claim.is_none(), "a pause holds nothing");

    let direct = bench.answer("user:ann", answers(&call_id("pay"), "pay", Some(json!({}))));
    let refusal = direct.unwrap_err();
    assert_eq!(refusal.reason, Reason::ConfirmationRequired);
    assert_eq!(refusal.details["question_id"], question.as_str());

    let before = bench.log.len();
    assert_eq!(bench.confirm("pay", true), Ok(Answered::Applied));
    assert_eq!(bench.ran[&call_id("pay")], 1);
    assert!(bench.asked().is_empty(), "the model hears of it with the result");
    bench.back("pay", value(json!({"ok": true})));
    assert_eq!(bench.asked(), ["root@1"]);
    bench.reply(says("Done."));
    let said = format!("{CONFIRMATION} {}", json!({"confirmed": true}));
    assert_eq!(told(&bench, before), [&said, "pay {\"ok\":true}", "Done."]);
    assert_eq!(bench.confirm("pay", true), Ok(Answered::Duplicate));
    assert_eq!(bench.confirm("pay", false).unwrap_err().reason, Reason::CallAlreadyAnswered);
    assert_eq!(bench.ran[&call_id("pay")], 1);
}

#[test]
fn adk_71_a_refused_call_never_runs_and_says_so_once() {
    let mut bench = Bench::called(vec![gated("pay")]);
    let before = bench.log.len();
    bench.confirm("pay", false).unwrap();
    assert_eq!(bench.phase("pay"), "DENIED");
    assert_eq!(bench.asked(), ["root@1"]);
    let told = told(&bench, before);
    assert_eq!(told[1], format!("pay {}", json!({"error": REJECTED, "reason": DECLINED})));
    bench.reply(says("Very well."));
    assert!(bench.ran.is_empty());
}

#[test]
fn a_turn_waits_for_all_its_questions_and_runs_in_the_models_order() {
    let mut bench = Bench::called(vec![safe("s1"), gated("r1"), safe("s2"), gated("r2")]);
    assert_eq!(bench.phase("s1"), "WAITING");
    bench.confirm("r2", false).unwrap();
    assert!(bench.ran.is_empty() && bench.asked().is_empty());
    assert!(bench.session.running.is_none(), "it is paused again");
    bench.confirm("r1", true).unwrap();
    let ran: Vec<&str> = bench.ran.keys().map(CallId::as_str).collect();
    assert_eq!(ran, ["adk-r1", "adk-s1", "adk-s2"]);
    let starts = bench.log.iter().filter_map(|record| match &record.body {
        Body::Started { call, .. } => Some(call.as_str()),
        _ => None,
    });
    assert_eq!(starts.collect::<Vec<_>>(), ["adk-s1", "adk-r1", "adk-s2"]);
    for name in ["s1", "r1", "s2"] {
        bench.back(name, value(json!({"of": name})));
    }
    assert_eq!(bench.asked(), ["root@1"]);
    for name in ["s1", "s2"] {
        assert_eq!(bench.told(name), 1);
    }
}

#[test]
fn adk_81_eager_siblings_run_at_once_and_each_decision_acts_at_once() {
    let mut bench = Bench::called(vec![
        with("r1", gate("r1", false)),
        safe("s"),
        with("r2", gate("r2", false)),
    ]);
    assert_eq!(bench.ran.len(), 1);
    let before = bench.log.len();
    bench.back("s", value(json!({"n": 1})));
    // The response event first, then the questions, and no model call (adk.md 3.6).
    let events = told(&bench, before);
    let responses = [placeholder("r1"), "s {\"n\":1}".to_owned(), placeholder("r2")].join(", ");
    assert_eq!(events, [responses, format!("call {CONFIRMATION}, call {CONFIRMATION}")]);
    assert!(bench.asked().is_empty());
    bench.confirm("r1", true).unwrap();
    bench.back("r1", value(json!({"n": 2})));
    assert_eq!(bench.asked(), ["root@1"], "each is for itself");
    bench.reply(says("One is done."));
    bench.confirm("r2", true).unwrap();
    bench.back("r2", value(json!({"n": 3})));
    bench.reply(says("Both are."));
    assert!(bench.session.invocations.is_empty());
}

#[test]
fn adk_78_a_body_asks_from_inside_and_runs_again_with_what_was_said() {
    let mut bench = Bench::called(vec![safe("transfer")]);
    let raised = Raised {
        hint: "Over the limit".to_owned(),
        payload: Some(json!({"approved": 0})),
        declined: Some(object(json!({"error": "not transferred"}))),
    };
    bench.raises("transfer", json!({"status": "asking"}), raised.clone());
    assert_eq!(bench.phase("transfer"), "GATED");
    assert_eq!(bench.asked(), ["root@1"], "the model is told the interim value");
    bench.reply(says("I have asked."));
    let question = bench.question("transfer");
    let said = json!({"confirmed": true, "payload": {"approved": 5}});
    let with = answers(&question, CONFIRMATION, Some(said));
    bench.answer("user:ann", with).unwrap();
    let call = bench.call("transfer");
    assert_eq!((call.execution, bench.ran[&call_id("transfer")]), (2, 2));
    let confirmation = call.gated.as_ref().unwrap().confirmation.clone().unwrap();
    assert_eq!(confirmation.payload, Some(json!({"approved": 5})));
    // A second one, raised while it goes on (peers.md, 22).
    bench.raises("transfer", json!({"status": "asking again"}), raised);
    bench.reply(says("Once more."));
    assert_ne!(bench.question("transfer"), question);
    bench.confirm("transfer", false).unwrap();
    assert_eq!(bench.ran[&call_id("transfer")], 2, "refused, it does not run again");
    let last = bench.call("transfer").last.clone().unwrap();
    assert_eq!(last.response, Some(object(json!({"error": "not transferred"}))));
}

#[test]
fn a_lost_body_that_asks_and_says_nothing_is_asked_about() {
    let behaviour = Behaviour { effect: Effect::Once, ..long_running() };
    let gate = Some(Box::new(gate("ask", true)));
    let mut bench = Bench::called(vec![Spec { gate, ..spec("ask", behaviour) }]);
    bench.confirm("ask", true).unwrap();
    bench.crash();
    assert_eq!(bench.phase("ask"), "HELD UNKNOWN_OUTCOME");
    let first = bench.question("ask");
    let raised = Some(Raised { hint: "really?".to_owned(), ..Raised::default() });
    let late = Back { raised, ..Back::of(Outcome::Nothing) };
    bench
        .fact("server:process-0", |draft, _| Ok(draft.returned(&call_id("ask"), 1, late)))
        .unwrap();
    assert!(bench.asked().is_empty(), "there is nothing that its model could be told");
    assert_ne!(bench.question("ask"), first);
    bench.confirm("ask", true).unwrap();
    assert_eq!(bench.ran[&call_id("ask")], 2);
}

#[test]
fn a_question_is_no_reply_that_has_heard_what_was_told_before() {
    let mut bench =
        Bench::called(vec![spec("ask", long_running()), with("pay", gate("pay", false))]);
    // Somebody answers while the body is at work, and then people are asked.
    bench.answer("user:ann", answers(&call_id("ask"), "ask", Some(json!({"n": 1})))).unwrap();
    bench.back("ask", value(json!({"status": "pending"})));
    assert_eq!(bench.asked(), ["root@1"]);
    let (invocation, frame) = (invocation(1), root());
    let to = prompt::Frame { invocation: &invocation, frame: &frame };
    assert!(prompt::news(&bench.history(), to).contains(&call_id("ask")));
    assert!(bench.prompt(&root()).contains(&"< ask {\"n\":1}".to_owned()));
}

#[test]
fn a_turn_under_a_barrier_has_it_for_what_bodies_ask_too() {
    let mut bench = Bench::called(vec![gated("pay"), safe("a"), safe("b")]);
    bench.confirm("pay", true).unwrap();
    bench.back("pay", value(json!({})));
    for name in ["a", "b"] {
        bench.raises(name, json!({"status": "asking"}), Raised::default());
    }
    bench.reply(says("I have asked."));
    bench.confirm("a", true).unwrap();
    assert_eq!(bench.ran[&call_id("a")], 1, "the other one is open");
    bench.confirm("b", false).unwrap();
    assert_eq!((bench.ran[&call_id("a")], bench.ran[&call_id("b")]), (2, 1));
}

#[test]
fn bad_answers_to_a_question_change_nothing() {
    let mut bench = Bench::called(vec![gated("pay")]);
    let question = bench.question("pay");
    for wrong in [json!({"confirmed": "yes"}), json!({"ok": true}), json!({"response": "no json"})]
    {
        let refusal = bench.answer("user:ann", answers(&question, CONFIRMATION, Some(wrong)));
        assert_eq!(refusal.unwrap_err().reason, Reason::FieldInvalid);
    }
    let named = bench.answer("user:ann", answers(&question, "pay", Some(json!({}))));
    assert_eq!(named.unwrap_err().reason, Reason::CallNameMismatch);
    let wrapped = json!({"response": "{\"confirmed\": true}"});
    bench.answer("user:ann", answers(&question, CONFIRMATION, Some(wrapped))).unwrap();
    assert_eq!(bench.ran[&call_id("pay")], 1);
}

#[test]
fn nobody_decides_and_the_call_expires_or_is_denied() {
    for (action, phase) in [(Action::Expire, "EXPIRED"), (Action::Deny, "DENIED")] {
        let after = |seconds| Duration::from_secs(seconds);
        let remind = Deadline { after: after(10), action: Action::Remind };
        let escalate =
            Deadline { after: after(20), action: Action::Escalate { to: "boss".to_owned() } };
        let end = Deadline { after: after(60), action };
        let deadlines = vec![remind, escalate, end];
        let mut bench = Bench::called(vec![with("pay", Gate { deadlines, ..gate("pay", true) })]);
        bench.pass(30);
        let question = bench.session.calls[&bench.question("pay")].clone();
        let approval = question.approval.as_ref().unwrap();
        assert_eq!((approval.escalated_to.as_str(), approval.story.len()), ("boss", 3));
        assert!(bench.session.claim.is_none());
        bench.pass(30);
        assert_eq!(bench.phase("pay"), phase);
        assert_eq!(bench.told("pay"), 2, "a placeholder, and one word that it is over");
        assert_eq!(bench.asked(), ["root@1"]);
        assert!(bench.ran.is_empty());
    }
}

#[test]
fn a_reminder_of_a_call_that_is_no_approval_yet_comes_once() {
    let deadlines = vec![Deadline { after: Duration::from_secs(10), action: Action::Remind }];
    let behaviour = Behaviour { deadlines, inbox: true, ..long_running() };
    let mut bench = Bench::called(vec![spec("ask", behaviour)]);
    bench.pass(10);
    let noted =
        || Body::Noted { call: call_id("ask"), what: Noted::Reminded, comment: String::new() };
    let count = |bench: &Bench| bench.log.iter().filter(|r| r.body == noted()).count();
    assert_eq!(count(&bench), 1);
    bench.back("ask", value(json!({"status": "pending"})));
    bench.pass(10);
    assert_eq!(count(&bench), 1);
}

#[test]
fn the_deadlines_of_a_call_that_waited_in_its_turn_are_counted_from_its_start() {
    let deadlines = vec![Deadline { after: Duration::from_secs(10), action: Action::Remind }];
    let expires_after = Some(Duration::from_secs(60));
    let behaviour = Behaviour { deadlines, expires_after, ..long_running() };
    let mut bench = Bench::called(vec![gated("pay"), spec("ask", behaviour)]);
    bench.now += 30_000_000;
    bench.confirm("pay", true).unwrap();
    let call = bench.call("ask");
    assert_eq!((call.due(), call.expire_time), (Some(40_001_000), Some(90_001_000)));
}

#[test]
fn maf_67_69_70_standing_approvals_are_for_a_tool_or_its_arguments() {
    let mut bench = Bench::called(vec![gated("pay"), gated("pay2")]);
    // The second is a call of the same tool with other arguments.
    let mut other = gated("pay3");
    other.gate.as_mut().unwrap().tool = tool("pay");
    let mut with = answers(&bench.question("pay"), CONFIRMATION, Some(json!({"confirmed": true})));
    with.answers[0].decision = Some(Decision {
        verdict: Verdict::Approve,
        reason: String::new(),
        edited: None,
        remember: Some((Scope::Tool, None)),
    });
    bench.answer("user:ann", with).unwrap();
    assert_eq!(bench.session.standing.len(), 1);
    bench.confirm("pay2", true).unwrap();
    bench.back("pay", value(json!({})));
    bench.back("pay2", value(json!({})));
    bench.reply(calls(vec![other]));
    assert_eq!(bench.phase("pay3"), "RUNNING", "no question any more");
    let why = bench.call("pay3").spec.gate.as_ref().unwrap().why.clone();
    let id = bench.session.standing.keys().next().unwrap().clone();
    assert_eq!((why.code, why.rule.as_str()), (Code::StandingApproval, id.as_str()));
    bench.fact("user:ann", |draft, _| draft.revoke_standing(&id)).unwrap();
    bench.back("pay3", value(json!({})));
    let mut again = gated("pay4");
    again.gate.as_mut().unwrap().tool = tool("pay");
    bench.reply(calls(vec![again]));
    assert_eq!(bench.phase("pay4"), "GATED");
}

#[test]
fn maf_67_always_is_for_what_is_asked_later_in_its_turn() {
    let mut specs = vec![gated("pay1"), gated("pay2"), gated("other"), gated("pay3")];
    for (place, spec) in specs.iter_mut().enumerate() {
        let gate = spec.gate.as_mut().unwrap();
        gate.one_at_a_time = true;
        gate.tool = tool(if place == 2 { "other" } else { "pay" });
    }
    let mut bench = Bench::called(specs);
    let yes = Some(json!({"confirmed": true}));
    let mut with = answers(&bench.question("pay1"), CONFIRMATION, yes);
    with.answers[0].decision = Some(Decision {
        verdict: Verdict::Approve,
        reason: String::new(),
        edited: None,
        remember: Some((Scope::Tool, None)),
    });
    bench.answer("user:ann", with).unwrap();
    let held = bench.session.held_calls(&invocation(1));
    let about: Vec<_> = held.into_iter().filter_map(Call::asks).collect();
    assert_eq!(about, [&call_id("other")], "the second is approved with the first");
    bench.confirm("other", true).unwrap();
    assert_eq!(bench.ran.len(), 4);
    let by = bench.session.calls[&bench.question("pay3")].closed().unwrap().by.clone();
    assert_eq!(by.as_str(), "user:ann");
}

#[test]
fn a_model_is_not_told_that_a_call_waits_for_approval_when_nobody_knows_its_outcome() {
    let mut bench = Bench::called(vec![gated("pay"), gated("send")]);
    bench.confirm("pay", true).unwrap();
    bench.confirm("send", true).unwrap();
    bench.back("send", value(json!({"ok": true})));
    bench.crash();
    assert_eq!(bench.phase("pay"), "HELD UNKNOWN_OUTCOME");
    assert!(bench.asked().is_empty(), "{:?}", bench);
    let with = answers(&call_id("pay"), "pay", Some(json!({"paid": true})));
    bench.answer("user:ann", with).unwrap();
    assert_eq!(bench.asked(), ["root@1"]);
    let prompt = bench.prompt(&root());
    assert!(prompt.contains(&"< pay {\"paid\":true}".to_owned()), "{prompt:?}");
}

#[test]
fn an_unknown_outcome_is_run_again_by_a_persons_word_only() {
    let mut bench = Bench::called(vec![safe("pay")]);
    bench.crash();
    assert_eq!(bench.phase("pay"), "HELD UNKNOWN_OUTCOME");
    assert_eq!(bench.call("pay").held(), Some(Kind::UnknownOutcome));
    let again = |bench: &mut Bench, forced| {
        let digest = bench.call("pay").spec.args_digest.clone();
        let id = call_id("pay");
        bench.fact("user:ann", |draft, past| {
            draft.run_again(past, &id, &digest, (None, 2_000_000), forced, String::new())
        })
    };
    let early = again(&mut bench, false).unwrap_err();
    assert_eq!(early.reason, Reason::VerdictNotAllowed);
    bench.now += 62_000_000;
    again(&mut bench, false).unwrap();
    let call = bench.call("pay");
    assert_eq!((call.execution, call.idempotency_key().as_str()), (2, "adk-pay/2"));
    bench.back("pay", value(json!({"ok": true})));
    bench.reply(says("Done."));
    assert!(bench.session.invocations.is_empty());
}

#[test]
fn a_long_running_call_that_was_agreed_to_tells_its_placeholder() {
    let ask = Spec { behaviour: long_running(), ..gated("ask") };
    let mut bench = Bench::called(vec![ask]);
    bench.confirm("ask", true).unwrap();
    bench.back("ask", value(json!({"status": "pending"})));
    let call = bench.call("ask");
    assert_eq!((bench.phase("ask"), bench.told("ask")), ("HELD LONG_RUNNING".to_owned(), 2));
    assert_eq!(call.last.clone().unwrap().response, Some(object(json!({"status": "pending"}))));
    assert_eq!(bench.asked(), ["root@1"]);
}

#[test]
fn a_model_that_fails_while_somebody_decides_is_asked_again() {
    let mut bench = Bench::called(vec![safe("transfer")]);
    bench.raises("transfer", json!({"status": "asking"}), Raised::default());
    // Its model is told so, and somebody agrees before it has spoken.
    bench.confirm("transfer", true).unwrap();
    let failure = Err(("MODEL_FAILED".to_owned(), "a fault".to_owned()));
    bench.reply_in(&root(), failure);
    bench.back("transfer", value(json!({"ok": true})));
    assert_eq!(bench.asked(), ["root@1"], "what came of the decision is told");
    bench.reply(says("Done."));
    assert!(bench.session.invocations.is_empty());
}

#[test]
fn what_no_rule_may_approve_cannot_be_remembered() {
    let alone = |name: &str| with(name, Gate { max_auto: 0, ..gate("pay", true) });
    let mut bench = Bench::called(vec![with("pay", gate("pay", true)), alone("pay2")]);
    let always = |bench: &Bench, name: &str| {
        let said = Some(json!({"confirmed": true}));
        let mut with = answers(&bench.question(name), CONFIRMATION, said);
        with.answers[0].decision = Some(Decision {
            verdict: Verdict::Approve,
            reason: String::new(),
            edited: None,
            remember: Some((Scope::Tool, None)),
        });
        with
    };
    let refused = bench.answer("user:ann", always(&bench, "pay2")).unwrap_err();
    assert_eq!(
        (refused.reason, refused.details["field"].as_str()),
        (Reason::FieldInvalid, "remember")
    );
    bench.answer("user:ann", always(&bench, "pay")).unwrap();
    assert!(bench.ran.is_empty(), "the second one still waits for a person");
    bench.confirm("pay2", true).unwrap();
    assert_eq!(bench.ran.len(), 2);
}
