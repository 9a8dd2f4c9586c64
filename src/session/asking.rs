//! Asking people: which calls ask, what is asked, what follows from what was said, and what happens
//! when nobody says anything.
//!
//! Invariants: a gated body starts only behind an approved question about its arguments, once; a
//! turn under a barrier starts nothing while one of its questions is open; a call that is refused
//! has one response, and its body never starts.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::approval::{
    Action, CONFIRMATION, Code, DECLINED, Judged, REJECTED, Standing, Verdict, Why,
};
use super::call::{Call, End, Kind, Phase, Spec};
use super::content::{CallFacts, Data, FunctionCall, Object, Part, Role, ToolConfirmation};
use super::draft::Draft;
use super::id::{CallId, FrameId, InvocationId, Principal};
use super::record::{Answer, Body, Noted, Question};
use super::state::Session;

/// What is told of a call that nobody decided on in time.
const UNDECIDED: &str = "Nobody decided on this call before its deadline. It was not run.";

/// A response that tells an error.
pub(super) fn error(text: impl Into<String>) -> Object {
    Object::from_iter([("error".to_owned(), Value::from(text.into()))])
}

/// The response as it is told. If somebody changed the arguments, the model learns which ones ran.
pub(super) fn told(call: &Call, response: &Object) -> Object {
    let mut response = response.clone();
    if call.gated.as_ref().is_some_and(|gated| gated.edited) {
        let args = Value::Object(call.spec.args.clone());
        response.entry("approved_arguments").or_insert(args);
    }
    response
}

/// Whether a call asks, and nobody was asked yet.
fn is_unasked(call: &Call) -> bool {
    match call.phase {
        Phase::Gated => {
            call.gated.as_ref().is_none_or(|g| g.question.is_none() || g.raised.is_some())
        }
        _ => false,
    }
}

impl Draft<'_> {
    /// Whether a call needs a question that was not asked. A standing approval that is gone before
    /// the call has started approves nothing.
    pub(super) fn is_unasked(&self, call: &Call) -> bool {
        let gone = |call: &Call| {
            let gate = call.spec.gate.as_ref()?;
            let by_standing = gate.judged == Judged::Run && gate.why.code == Code::StandingApproval;
            let standing = self.session.standing.get(&gate.why.rule);
            let digest = &call.spec.args_digest;
            Some(by_standing && !standing.is_some_and(|s| s.covers(&gate.tool, digest, self.now)))
        };
        let waits = matches!(call.phase, Phase::Waiting) && call.spec.failed.is_none();
        is_unasked(call) || (waits && gone(call) == Some(true))
    }

    /// Which of a reply's calls ask: what rules offered is taken or not, by standing approvals
    /// first, and only so often in a row.
    pub(super) fn settle_gates(&self, invocation: &InvocationId, calls: &mut [Spec]) {
        let open = self.session.invocations.get(invocation);
        let rounds = open.map_or(0, |open| open.auto_rounds);
        for spec in calls.iter_mut() {
            let Some(gate) = &mut spec.gate else { continue };
            let offered = gate.auto.take();
            if !gate.asks() || gate.max_auto == 0 {
                continue;
            }
            let covers = |s: &&Standing| s.covers(&gate.tool, &spec.args_digest, self.now);
            let standing = self.session.standing.values().find(covers);
            let standing =
                standing.map(|s| Why { rule: s.id.clone(), ..Why::new(Code::StandingApproval) });
            let Some(auto) = standing.or(offered) else { continue };
            if rounds >= gate.max_auto {
                gate.why = Why { code: Code::AutoApprovalCap, ..auto };
            } else {
                (gate.judged, gate.why) = (Judged::Run, auto);
            }
        }
        if !calls.iter().any(|spec| spec.gate.as_ref().is_some_and(|gate| gate.asks())) {
            return;
        }
        for gate in calls.iter_mut().filter_map(|spec| spec.gate.as_mut()) {
            if gate.asks_with_siblings && gate.judged == Judged::Run {
                (gate.judged, gate.why) = (Judged::Ask, Why::new(Code::Sibling));
            }
        }
    }

    /// Asks people about calls of turns whose other calls have nothing more to say.
    pub(super) fn ask(&mut self, invocation: &InvocationId) -> bool {
        let unasked = |call: &&Call| &call.invocation == invocation && self.is_unasked(call);
        let unasked: Vec<&Call> = self.session.calls.values().filter(unasked).collect();
        let turns: BTreeSet<(FrameId, u64)> =
            unasked.iter().map(|call| (call.frame.clone(), call.sequence)).collect();
        let mut asks: Vec<(FrameId, Vec<Call>)> = Vec::new();
        for (frame, sequence) in turns {
            let of = |call: &&&Call| call.frame == frame && call.sequence == sequence;
            let mut calls: Vec<Call> = unasked.iter().filter(of).map(|c| Call::clone(c)).collect();
            calls.sort_by_key(|call| call.index);
            let turn = self.session.turn(&calls[0]);
            let tells = |call: &&Call| call.untold.is_some() && !self.is_unasked(call);
            if turn.iter().any(|call| call.at_work()) || turn.iter().any(tells) {
                continue;
            }
            let one = |call: &Call| call.spec.gate.as_ref().is_some_and(|gate| gate.one_at_a_time);
            if calls.iter().any(one) {
                let open = |call: &&Call| {
                    matches!(call.phase, Phase::Gated)
                        && !self.is_unasked(call)
                        && self.session.decided(call).is_none()
                };
                if turn.iter().any(open) {
                    continue;
                }
                calls.truncate(1);
            }
            asks.push((frame, calls));
        }
        let any = !asks.is_empty();
        for (frame, calls) in asks {
            self.ask_about(invocation, frame, &calls);
        }
        any
    }

    fn ask_about(&mut self, invocation: &InvocationId, frame: FrameId, calls: &[Call]) {
        let (mut parts, mut questions, mut facts) = (Vec::new(), Vec::new(), BTreeMap::new());
        for call in calls {
            let id = CallId::parse(format!("adk-{}", self.mint())).expect("a UUID makes an id");
            let ToolConfirmation { hint, payload } = confirmation(&self.session, call);
            let mut asked = json!({"hint": hint, "confirmed": false});
            if let Some(payload) = payload {
                asked["payload"] = payload;
            }
            let original = json!({
                "id": call.spec.id, "name": call.spec.name, "args": call.spec.args,
            });
            let args = Object::from_iter([
                ("originalFunctionCall".to_owned(), original),
                ("toolConfirmation".to_owned(), asked),
            ]);
            let name = CONFIRMATION.to_owned();
            let data = Data::FunctionCall(FunctionCall { id: id.clone(), name, args });
            parts.push(Part::new(data));
            let told = CallFacts {
                kind: Some(Kind::Confirmation),
                args_digest: call.spec.args_digest.clone(),
                ..CallFacts::default()
            };
            facts.insert(id.clone(), told);
            let raised = call.gated.as_ref().is_some_and(|gated| gated.raised.is_some());
            let gate = call.spec.gate.as_ref().filter(|_| !raised);
            let why = gate.map_or(Why::new(Code::Body), |gate| gate.why.clone());
            questions.push(Question { id, call: call.spec.id.clone(), why });
        }
        let mut event = self.frame_event(invocation, &frame, Role::Model, parts, Object::new());
        event.long_running_tool_ids = Some(facts.keys().cloned().collect());
        event.calls = facts;
        let invocation = invocation.clone();
        self.push(Body::Asked { invocation, frame, questions, event });
        calls.iter().for_each(|call| self.spare(call));
    }

    /// Somebody said "always" since the call was made, and another question of its turn was first:
    /// then it is approved with that.
    fn spare(&mut self, call: &Call) {
        let raised = call.gated.as_ref().is_some_and(|gated| gated.raised.is_some());
        let Some(gate) = call.spec.gate.as_ref().filter(|gate| !raised && gate.max_auto > 0) else {
            return;
        };
        let digest = &call.spec.args_digest;
        let covers =
            |s: &&Standing| s.time >= call.create_time && s.covers(&gate.tool, digest, self.now);
        let Some(standing) = self.session.standing.values().find(covers).cloned() else { return };
        let asked = self.session.calls.get(&call.spec.id).and_then(|call| call.gated.as_ref());
        let question = asked.and_then(|gated| self.session.calls.get(gated.question.as_ref()?));
        let Some(question) = question.filter(|_| gate.why.code != Code::AutoApprovalCap) else {
            return;
        };
        let question = question.clone();
        self.approve_by(&standing, &question);
    }

    /// What is asked about a call, as the event that tells its interim response says it (ADK).
    pub(super) fn confirmation_of(&self, call: &Call) -> Option<ToolConfirmation> {
        matches!(call.phase, Phase::Gated).then(|| confirmation(&self.session, call))
    }

    /// Why a call is not run, if it is not: by whom, how it ends, and what its model is told.
    pub(super) fn refusal_of(&self, call: &Call) -> Option<(Principal, End, Object)> {
        let gate = call.spec.gate.as_ref();
        if let Some(gate) = gate.filter(|gate| gate.judged == Judged::Deny) {
            let text = format!(
                "POLICY_DENIED: the agent's policy forbids this call ({}). It was not run.",
                gate.why.rule
            );
            return Some((self.by.clone(), End::Denied, error(text)));
        }
        let question = self.session.decided(call)?;
        let verdict = question.approval.as_ref()?.verdict;
        let closing = question.closed()?;
        if verdict == Some(Verdict::Approve) {
            return None;
        }
        let by = closing.by.clone();
        if closing.end == End::Expired {
            let mut response = error(UNDECIDED);
            response.insert("status".to_owned(), "expired".into());
            return Some((by, End::Expired, response));
        }
        let gated = call.gated.as_ref()?;
        if let Some(declined) = &gated.declined {
            return Some((by, End::Denied, declined.clone()));
        }
        let rejection = gate.map(|gate| gate.rejection.as_str()).unwrap_or_default();
        let reasons = [gated.reason.as_str(), rejection, DECLINED];
        let reason = reasons.into_iter().find(|reason| !reason.is_empty()).unwrap_or_default();
        let mut response = error(REJECTED);
        response.insert("reason".to_owned(), reason.into());
        if verdict == Some(Verdict::RequestChanges) {
            response.insert("status".to_owned(), "changes_requested".into());
        }
        Some((by, End::Denied, response))
    }

    /// What deadlines say that have passed: calls are over, and those who wait are reminded. True:
    /// there were some.
    pub fn expire(&mut self) -> bool {
        let now = self.now;
        let due = |call: &&Call| call.due().is_some_and(|time| now >= time);
        let mut calls: Vec<Call> = self.session.calls.values().filter(due).cloned().collect();
        calls.sort_by_key(|call| (call.sequence, call.index));
        for call in &calls {
            if call.expire_time.is_some_and(|deadline| now >= deadline) {
                let answer = at_deadline(call);
                self.close_as(&call.invocation, &call.frame, vec![answer]);
            } else {
                self.remind(&call.spec.id);
            }
        }
        !calls.is_empty()
    }

    fn remind(&mut self, id: &CallId) {
        loop {
            let next = self.session.calls.get(id).and_then(Call::next_deadline);
            let Some((_, action)) = next.filter(|(time, _)| self.now >= *time) else { return };
            let what = match action {
                Action::Escalate { to } => Noted::Escalated { to: to.clone() },
                _ => Noted::Reminded,
            };
            self.push(Body::Noted { call: id.clone(), what, comment: String::new() });
        }
    }
}

/// What is asked about a gated call: by its body, by the question that was asked, by its tool.
fn confirmation(session: &Session, call: &Call) -> ToolConfirmation {
    let gated = call.gated.as_ref();
    let (hint, payload) = if let Some(raised) = gated.and_then(|gated| gated.raised.as_ref()) {
        (raised.hint.clone(), raised.payload.clone())
    } else {
        let question = gated.and_then(|gated| session.calls.get(gated.question.as_ref()?));
        match question.and_then(|question| question.approval.as_ref()) {
            Some(asked) => (asked.hint.clone(), asked.payload.clone()),
            None => (call.spec.gate.as_ref().map(|g| g.hint.clone()).unwrap_or_default(), None),
        }
    };
    let name = &call.spec.name;
    let usual = || {
        format!(
            "Please approve or reject the tool call {name}() by responding with a FunctionResponse \
             with an expected ToolConfirmation payload."
        )
    };
    ToolConfirmation { hint: if hint.is_empty() { usual() } else { hint }, payload }
}

/// The server's word on a call whose deadline has passed.
fn at_deadline(call: &Call) -> Answer {
    let id = call.spec.id.clone();
    let denied = call.spec.behaviour.end().is_some_and(|(_, denied)| denied);
    let status = |text: &str, status: &str| {
        let mut response = error(text);
        response.insert("status".to_owned(), status.into());
        response
    };
    if !denied {
        let response = status("Nobody answered this call before its deadline.", "expired");
        return Answer::closing(id, response, End::Expired);
    }
    let text = "Nobody decided before the deadline.";
    let decisions = call.spec.behaviour.decisions.as_ref();
    let (response, end) = match (call.asks(), decisions) {
        (Some(_), _) => {
            (Object::from_iter([("confirmed".to_owned(), Value::Bool(false))]), End::Denied)
        }
        (None, Some(decisions)) => (decided(call, &decisions.deny, text), End::Done),
        (None, None) => (status(text, "denied"), End::Denied),
    };
    let (verdict, reason) = (Some(Verdict::Deny), text.to_owned());
    Answer { verdict, reason, ..Answer::closing(id, response, end) }
}

/// The object that a decision on a long-running call sends: what its tool declares, over what the
/// placeholder said, with the reason beside it.
pub fn decided(call: &Call, declared: &Object, reason: &str) -> Object {
    let last = call.last.as_ref().and_then(|told| told.response.clone());
    let mut response = last.unwrap_or_default();
    response.extend(declared.clone());
    if !reason.is_empty() {
        response.insert("reason".to_owned(), reason.into());
    }
    response
}
