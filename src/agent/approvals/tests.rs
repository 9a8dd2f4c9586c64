use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::agent::Behaviour;
use crate::agent::cel::Call;
use crate::session::content::Object;

fn tool(need: Option<Need>) -> Declaration {
    Declaration {
        name: "pay".into(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": {"amount": {"type": "number"}}}),
        behaviour: Behaviour::default(),
        approval: ToolApproval {
            need,
            hint: "Pay?".into(),
            rejection: "No.".into(),
            deadlines: vec![Deadline { after: Duration::from_secs(60), action: Action::Expire }],
        },
        body: Body::Function,
    }
}

fn when(text: &str) -> Option<Need> {
    Some(Need::When(Expression::parse(text).unwrap()))
}

fn rules(rules: &[(&str, &str)]) -> Vec<Rule> {
    rules.iter().map(|(name, when)| Rule::new(*name, when).unwrap()).collect()
}

fn args(amount: Value) -> Object {
    Object::from_iter([("amount".to_owned(), amount)])
}

fn input(args: &Object) -> Input<'_> {
    Input::new(Call { args, tool: "pay", agent: "a", app: "a", user: "ann", session: "s" })
}

fn judge(said: &Approvals, tool: &Declaration, amount: Value) -> Option<Gate> {
    said.clone().seal(std::slice::from_ref(tool)).judge(tool, &input(&args(amount)))
}

/// What was found, why, and by which rule.
fn found(gate: Option<Gate>) -> Option<(Judged, Code, String)> {
    gate.map(|gate| (gate.judged, gate.why.code, gate.why.rule))
}

#[test]
fn a_tool_says_itself_whether_it_needs_approval_or_its_agent_does() {
    let never = Approvals::default();
    let always = Approvals { by_default: true, ..Approvals::default() };
    let of = |said: &Approvals, need| found(judge(said, &tool(need), json!(1)));
    assert_eq!(of(&never, None), None);
    assert_eq!(of(&never, Some(Need::Never)), None);
    assert_eq!(of(&always, Some(Need::Never)), None);
    let asks = |code| Some((Judged::Ask, code, String::new()));
    assert_eq!(of(&always, None), asks(Code::AgentDefault));
    assert_eq!(of(&never, Some(Need::Always)), asks(Code::Tool));
}

#[test]
fn a_condition_decides_and_what_it_said_is_noted() {
    let said = Approvals::default();
    let text = "args.amount > 100.0";
    let of = |amount| found(judge(&said, &tool(when(text)), amount));
    assert_eq!(of(json!(100.01)), Some((Judged::Ask, Code::Condition, text.into())));
    assert_eq!(of(json!(100)), Some((Judged::Run, Code::Condition, text.into())));

    // What cannot be told asks, and neither a rule nor a standing approval is looked at.
    let said = Approvals { auto_approve: rules(&[("any", "true")]), ..said };
    let failed = judge(&said, &tool(when(text)), json!("secret")).unwrap();
    assert_eq!((failed.judged, failed.why.code), (Judged::Ask, Code::RuleFailed));
    assert_eq!((failed.max_auto, failed.auto), (0, None));
    assert!(!failed.why.detail.is_empty() && !failed.why.detail.contains("secret"));
    let inexact = serde_json::from_str("100.00000000000000000001").unwrap();
    let failed = judge(&said, &tool(when(text)), inexact).unwrap();
    assert_eq!((failed.judged, failed.why.code), (Judged::Ask, Code::RuleFailed));
}

#[test]
fn a_gate_has_what_the_tool_and_the_agent_say() {
    let tool = tool(Some(Need::Always));
    let said = Approvals { one_at_a_time: true, ..Approvals::default() };
    let gate = judge(&said, &tool, json!(1)).unwrap();
    assert_eq!((gate.hint.as_str(), gate.rejection.as_str()), ("Pay?", "No."));
    assert_eq!(gate.deadlines, tool.approval.deadlines);
    assert_eq!((gate.barrier, gate.one_at_a_time, gate.max_auto), (true, true, 40));
    assert_eq!(gate.tool, Approvals::identity(&tool));
    assert!(!gate.asks_with_siblings);

    // MAF's switch: no rule, no standing approval, and all questions at once.
    let auto_approve = rules(&[("any", "true")]);
    let off = Approvals { disable_tool_auto_approval: true, auto_approve, barrier: false, ..said };
    let gate = judge(&off, &tool, json!(1)).unwrap();
    assert_eq!((gate.barrier, gate.one_at_a_time, gate.max_auto), (false, false, 0));
    assert_eq!(gate.auto, None);
}

#[test]
fn the_first_rule_that_is_for_a_call_is_offered() {
    let list = [("small", "args.amount < 10"), ("hers", "user == 'ann' && args.amount < 50")];
    let said = Approvals { auto_approve: rules(&list), ..Approvals::default() };
    let offered = |amount| {
        let gate = judge(&said, &tool(Some(Need::Always)), amount).unwrap();
        assert_eq!(gate.judged, Judged::Ask, "a rule is offered, no more");
        (gate.auto.map(|why| (why.code, why.rule, why.revision.len())), gate.why.code)
    };
    let by = |rule: &str| Some((Code::AutoApprovalRule, rule.to_owned(), 23));
    assert_eq!(offered(json!(5)), (by("small"), Code::Tool));
    assert_eq!(offered(json!(20)), (by("hers"), Code::Tool));
    assert_eq!(offered(json!(90)), (None, Code::Tool));
    // The rules behind one that cannot be told are not asked.
    assert_eq!(offered(json!("x")), (None, Code::RuleFailed));
}

#[test]
fn what_is_denied_never_runs() {
    let list = [("night", "user == 'bob'"), ("huge", "args.amount >= 1000000")];
    let said = Approvals {
        deny: rules(&list),
        auto_approve: rules(&[("any", "true")]),
        ..Approvals::default()
    };
    for need in [None, Some(Need::Never), Some(Need::Always), when("false")] {
        let denied = found(judge(&said, &tool(need), json!(1_000_000)));
        assert_eq!(denied, Some((Judged::Deny, Code::PolicyDenied, "huge".into())));
    }
    // That it was asked is noted.
    let gate = judge(&said, &tool(None), json!(1)).unwrap();
    assert_eq!((gate.judged, gate.why.code), (Judged::Run, Code::AgentDefault));
    assert_eq!(gate.why.revision.len(), 23);

    // One that cannot be told hides none that forbids.
    let list = [("broken", "args.none > 1"), ("huge", "args.amount >= 1000000")];
    let both = Approvals { deny: rules(&list), ..Approvals::default() };
    let denied = found(judge(&both, &tool(None), json!(1_000_000)));
    assert_eq!(denied, Some((Judged::Deny, Code::PolicyDenied, "huge".into())));

    // One that cannot be told asks a person, whom no rule stands in for.
    let gate = judge(&said, &tool(Some(Need::Never)), json!("x")).unwrap();
    assert_eq!((gate.judged, gate.why.code), (Judged::Ask, Code::RuleFailed));
    assert_eq!((gate.max_auto, gate.auto), (0, None));
    let denied = |amount| {
        said.denied(&input(&args(amount))).map(|said| {
            let why = said.unwrap_or_else(|failed| failed);
            (why.code, why.rule)
        })
    };
    assert_eq!(denied(json!(1)), None);
    assert_eq!(denied(json!(2_000_000)), Some((Code::PolicyDenied, "huge".into())));
    assert_eq!(denied(json!("x")), Some((Code::RuleFailed, "huge".into())));
}

#[test]
fn without_the_bypass_safe_calls_ask_with_their_siblings() {
    let said = Approvals { disable_not_required_bypass: true, ..Approvals::default() };
    let safe = judge(&said, &tool(None), json!(1)).unwrap();
    assert_eq!((safe.judged, safe.asks_with_siblings), (Judged::Run, true));
    assert_eq!(safe.why.revision, "", "no rule was asked");
    let gated = judge(&said, &tool(Some(Need::Always)), json!(1)).unwrap();
    assert!(!gated.asks_with_siblings);
}

#[test]
fn the_revision_is_of_all_that_is_said() {
    let base = Approvals::default();
    let revision = |said: &Approvals, need| said.clone().seal(&[tool(need)]).revision;
    let mut all = vec![
        revision(&base, None),
        revision(&base, Some(Need::Always)),
        revision(&base, Some(Need::Never)),
        revision(&base, when("args.amount > 1")),
        revision(&base, when("args.amount > 2")),
    ];
    for said in [
        Approvals { by_default: true, ..base.clone() },
        Approvals { barrier: false, ..base.clone() },
        Approvals { one_at_a_time: true, ..base.clone() },
        Approvals { max_auto_approval_iterations: 3, ..base.clone() },
        Approvals { deny: rules(&[("a", "true")]), ..base.clone() },
        Approvals { auto_approve: rules(&[("a", "true")]), ..base.clone() },
    ] {
        all.push(revision(&said, None));
    }
    assert!(all.iter().all(|text| text.starts_with("sha256:") && text.len() == 23));
    let distinct: BTreeSet<&String> = all.iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(revision(&base, None), all[0]);
}

#[test]
fn a_tool_is_its_name_its_source_and_its_schema() {
    let one = Approvals::identity(&tool(None));
    assert_eq!((one.name.as_str(), one.source.as_str()), ("pay", "function"));
    assert_eq!(one.schema_digest.len(), 71);
    let declared = Declaration { body: Body::Object(Object::new()), ..tool(None) };
    assert_eq!(Approvals::identity(&declared).source, "declared");
    let other = Declaration { parameters: json!({"type": "object"}), ..tool(None) };
    assert_ne!(Approvals::identity(&other).schema_digest, one.schema_digest);
    let ours = builtin::named(builtin::USER_CHOICE).unwrap();
    assert_eq!(Approvals::identity(&ours).source, "server");
}

#[test]
fn what_is_wrong_is_told() {
    let twice = rules(&[("a", "true"), ("a", "false")]);
    let said = Approvals { max_auto_approval_iterations: 0, deny: twice, ..Approvals::default() };
    assert_eq!(said.faults().len(), 2);
    assert!(Approvals::default().faults().is_empty());
    assert!(Rule::new("", "true").is_err() && Rule::new("a", "nonsense").is_err());

    let at = |seconds, action| Deadline { after: Duration::from_secs(seconds), action };
    let to = |to: &str| Action::Escalate { to: to.to_owned() };
    let good = [at(1, Action::Remind), at(2, to("boss")), at(3, Action::Deny)];
    assert_eq!(check_deadlines(&good), Ok(()));
    for wrong in [
        vec![at(2, Action::Remind), at(2, Action::Remind)],
        vec![at(1, Action::Expire), at(2, Action::Remind)],
        vec![at(1, to(" "))],
        vec![at(u64::MAX / 2, Action::Expire)],
        (1..=17).map(|n| at(n, Action::Remind)).collect(),
    ] {
        assert!(check_deadlines(&wrong).is_err(), "{wrong:?}");
    }
}

/// Each of them sees the same arguments, converted once.
#[test]
fn a_thousand_rules_of_each_kind_are_asked() {
    let named = |n: usize| (format!("rule {n}"), format!("tool == 'pay' && args.amount > {n}e9"));
    let list = |from| (from..from + MAX_RULES).map(named);
    let rules = |from| list(from).map(|(name, when)| Rule::new(name, &when).unwrap()).collect();
    let said = Approvals { deny: rules(1), auto_approve: rules(1), ..Approvals::default() };
    let tool = tool(Some(Need::Always));
    let said = said.seal(std::slice::from_ref(&tool));
    let mut args = args(json!(5));
    args.insert("note".into(), "x".repeat(32 << 10).into());
    let gate = said.judge(&tool, &input(&args)).unwrap();
    assert_eq!((gate.judged, gate.auto), (Judged::Ask, None));
}
