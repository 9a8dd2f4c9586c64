//! Decisions on approvals: typed ones and ADK's answers to questions, who has an approval on his
//! desk, when its deadline is, and what needs no question any more.

use serde_json::Value;

use super::approval::{Code, Scope, Standing, Verdict};
use super::call::{Call, Closing, End, Kind, Phase, later};
use super::content::{CallFacts, Event, Object};
use super::decide::Incoming;
use super::draft::Draft;
use super::id::{CallId, Principal};
use super::json;
use super::record::{Answer, Body, Noted};
use super::refusal::{Reason, Refusal};

/// Most standing approvals of one session.
pub const MAX_STANDING: usize = 1_000;

/// Why a call cannot be answered: it waits for a person's agreement, or for nobody outside.
pub(super) fn not_held(call: &Call) -> Refusal {
    let id = &call.spec.id;
    let question = call.gated.as_ref().and_then(|gated| gated.question.as_ref());
    match (&call.phase, question) {
        (Phase::Gated, Some(question)) => {
            let message = "the call waits for an approval: answer the question about it";
            Refusal::new(Reason::ConfirmationRequired, message)
                .with("call_id", id)
                .with("question_id", question)
        }
        (Phase::Gated | Phase::Waiting, _) => {
            let message = "the call waits for an approval in its turn";
            Refusal::new(Reason::ConfirmationRequired, message).with("call_id", id)
        }
        _ => Refusal::new(Reason::CallNotHeld, "the call does not wait for an answer from outside")
            .with("call_id", id),
    }
}

/// Why a call cannot be answered any more.
pub(super) fn over(id: &CallId, closing: &Closing) -> Refusal {
    let (reason, message) = match closing.end {
        End::Done => (Reason::CallAlreadyAnswered, "the call has its final answer already"),
        End::Denied => (Reason::CallAlreadyAnswered, "the call was refused already"),
        End::Expired => (Reason::CallExpired, "the call expired before it was answered"),
        End::Cancelled => (Reason::CallCancelled, "the call was cancelled"),
    };
    Refusal::new(reason, message)
        .with("call_id", id)
        .with("answered_by", &closing.by)
        .with("answer_time_micros", closing.time)
}

/// Why a call cannot be answered any more, though nobody has said so yet.
pub(super) fn check_deadline(call: &Call, now: u64) -> Result<(), Refusal> {
    match call.expire_time.filter(|deadline| now >= *deadline) {
        Some(deadline) => Err(Refusal::new(Reason::CallExpired, "the call's deadline has passed")
            .with("call_id", &call.spec.id)
            .with("expire_time_micros", deadline)),
        None => Ok(()),
    }
}

/// Nobody decides on what somebody else has on his desk.
pub(super) fn check_lease(call: &Call, by: &Principal, now: u64) -> Result<(), Refusal> {
    let lease = call.approval.as_ref().and_then(|approval| approval.lease.as_ref());
    match lease.filter(|lease| now < lease.until && &lease.assignee != by) {
        Some(lease) => {
            let message = "somebody else has taken the approval; it is free again at its time";
            Err(Refusal::new(Reason::ApprovalClaimed, message)
                .with("call_id", &call.spec.id)
                .with("assignee", &lease.assignee)
                .with("lease_expire_time_micros", lease.until))
        }
        None => Ok(()),
    }
}

/// What an answer decides.
pub(super) fn verdict_of(
    call: &Call,
    kind: Kind,
    incoming: &Incoming,
) -> Result<Option<Verdict>, Refusal> {
    let response = format!("{}.response", incoming.field);
    if let Some(decision) = &incoming.decision {
        let verdict = decision.verdict;
        if !call.allowed_verdicts().contains(&verdict) {
            return Err(not_allowed(call, verdict));
        }
        return Ok(Some(verdict));
    }
    match (kind, &incoming.response) {
        (Kind::Confirmation, given) => {
            let confirmation = given.as_ref().ok_or_else(|| "must be an object".to_owned());
            let (confirmed, _) = confirmation
                .and_then(confirmation_of)
                .map_err(|rule| Refusal::field(response, rule))?;
            Ok(Some(if confirmed { Verdict::Approve } else { Verdict::Deny }))
        }
        (Kind::Input, None) => Err(Refusal::field(response, "must be an object: it is an answer")),
        (Kind::UnknownOutcome, None) => {
            let rule = "must be the result that the call had, or {\"error\": ...}";
            Err(Refusal::field(response, rule))
        }
        (Kind::LongRunning, Some(given)) => {
            Ok(call.spec.behaviour.decisions.as_ref().and_then(|decisions| {
                let says = |declared: &Object| {
                    declared.iter().all(|(key, value)| {
                        given.get(key).is_some_and(|given| json::same(value, given))
                    })
                };
                match () {
                    () if says(&decisions.approve) => Some(Verdict::Approve),
                    () if says(&decisions.deny) => Some(Verdict::Deny),
                    () => None,
                }
            }))
        }
        _ => Ok(None),
    }
}

/// A decision that cannot be made on a call, with those that can.
fn not_allowed(call: &Call, verdict: Verdict) -> Refusal {
    let allowed: Vec<&str> = call.allowed_verdicts().iter().map(|v| v.as_str()).collect();
    let message = format!("{} cannot be decided on this call", verdict.as_str());
    Refusal::new(Reason::VerdictNotAllowed, message)
        .with("call_id", &call.spec.id)
        .with("allowed_verdicts", allowed.join(","))
}

/// What an answer to a question says: whether it is agreed to, and with what (adk.md 1.8: an object
/// whose only key is `response` wraps the JSON text of another; no `confirmed` is no).
pub(super) fn confirmation_of(response: &Object) -> Result<(bool, Option<Value>), String> {
    let inner;
    let response = match response.get("response") {
        Some(Value::String(text)) if response.len() == 1 => {
            let wrong = |_| "`response` must be the JSON text of an object".to_owned();
            inner = json::parse(text, json::MAX_DEPTH).map_err(wrong)?;
            inner.as_object().ok_or("`response` must be the JSON text of an object")?
        }
        _ => response,
    };
    for (key, value) in response {
        match (key.as_str(), value) {
            ("confirmed", Value::Bool(_)) | ("payload", _) | ("hint", Value::String(_)) => {}
            ("confirmed", _) => return Err("`confirmed` must be true or false".to_owned()),
            ("hint", _) => return Err("`hint` must be a text".to_owned()),
            _ => {
                let rule = "may only have `confirmed`, `payload` and `hint`";
                return Err(format!("an answer to a question {rule}"));
            }
        }
    }
    let confirmed = response.get("confirmed").and_then(Value::as_bool).unwrap_or(false);
    Ok((confirmed, response.get("payload").filter(|value| !value.is_null()).cloned()))
}

/// The event of an approval with other arguments tells them, exactly.
pub(super) fn tell_edited(event: &mut Event, incoming: &Incoming) {
    let edited = incoming.decision.as_ref().and_then(|decision| decision.edited.as_ref());
    let Some(edited) = edited else { return };
    let facts = CallFacts {
        args_digest: edited.args_digest.clone(),
        exact_json: Value::Object(edited.args.clone()).to_string(),
        ..CallFacts::default()
    };
    event.calls.insert(edited.call.clone(), facts);
}

impl Draft<'_> {
    /// The standing approvals that go with answers.
    pub(super) fn standings<'a, T: 'a>(
        &self,
        apply: impl IntoIterator<Item = &'a (Call, &'a Incoming, T)>,
    ) -> Result<Vec<Standing>, Refusal> {
        let mut made = Vec::new();
        for (call, incoming, _) in apply {
            let Some(decision) = &incoming.decision else { continue };
            let Some((scope, until)) = &decision.remember else { continue };
            let approval = call.approval.as_ref().filter(|a| a.why.code != Code::Body);
            let about = approval.and_then(|approval| approval.about.as_ref());
            let gate = about.and_then(|spec| Some((spec, spec.gate.as_ref()?)));
            let (Some((spec, gate)), Verdict::Approve) = (gate, decision.verdict) else {
                let rule = "is only for the approval of a tool that asks before it runs";
                return Err(Refusal::field("remember", rule));
            };
            if gate.max_auto == 0 {
                let rule = "cannot be: the agent wants a person to look at each such call";
                return Err(Refusal::field("remember", rule));
            }
            if until.is_some_and(|until| until <= self.now) {
                return Err(Refusal::field("remember.until", "must be in the future"));
            }
            if self.session.standing.len() + made.len() >= MAX_STANDING {
                let message = "the session has as many standing approvals as it may have";
                return Err(Refusal::new(Reason::LimitExceeded, message)
                    .with("limit", "standing_approvals")
                    .with("value", MAX_STANDING));
            }
            let edited = decision.edited.as_ref();
            let args = edited.map_or(&spec.args, |edited| &edited.args);
            let digest = edited.map_or(&spec.args_digest, |edited| &edited.args_digest);
            let exact = *scope == Scope::ToolWithArguments;
            made.push(Standing {
                id: String::new(),
                tool: gate.tool.clone(),
                args_digest: exact.then(|| digest.clone()),
                args: exact.then(|| args.clone()),
                until: *until,
                call: call.spec.id.clone(),
                by: self.by.clone(),
                time: self.now,
            });
        }
        Ok(made)
    }

    /// Makes standing approvals, and approves what else waits for one of them.
    pub(super) fn remember(&mut self, standings: Vec<Standing>) {
        for mut standing in standings {
            standing.id = self.mint();
            self.push(Body::StandingMade { standing: standing.clone() });
            let (now, by) = (self.now, self.by.clone());
            let covered = |call: &&Call| {
                let approval = call.approval.as_ref().filter(|a| a.why.code != Code::Body);
                let about = approval.and_then(|approval| approval.about.as_ref());
                let gate = about.and_then(|spec| Some((spec, spec.gate.as_ref()?)));
                call.held() == Some(Kind::Confirmation)
                    && gate.is_some_and(|(spec, gate)| {
                        gate.max_auto > 0 && standing.covers(&gate.tool, &spec.args_digest, now)
                    })
                    && check_lease(call, &by, now).is_ok()
                    && check_deadline(call, now).is_ok()
            };
            let mut calls: Vec<Call> =
                self.session.calls.values().filter(covered).cloned().collect();
            calls.sort_by_key(|call| (call.sequence, call.index));
            for call in calls {
                self.approve_by(&standing, &call);
            }
        }
    }

    /// Approves a question by the word of whoever made a standing approval.
    pub(super) fn approve_by(&mut self, standing: &Standing, question: &Call) {
        let response = Object::from_iter([("confirmed".to_owned(), Value::Bool(true))]);
        let closing = Answer::closing(question.spec.id.clone(), response, End::Done);
        let comment = format!("by standing approval {}", standing.id);
        let answer = Answer { verdict: Some(Verdict::Approve), comment, ..closing };
        let by = std::mem::replace(&mut self.by, standing.by.clone());
        self.close_as(&question.invocation, &question.frame, vec![answer]);
        self.by = by;
    }

    /// Calls that a standing approval is for ask again from here on.
    pub fn revoke_standing(&mut self, id: &str) -> Result<Standing, Refusal> {
        let standing = self.session.standing.get(id).cloned().ok_or_else(|| {
            let message = "there is no such standing approval";
            Refusal::new(Reason::StandingApprovalNotFound, message).with("standing_id", id)
        })?;
        self.push(Body::StandingRevoked { id: id.to_owned() });
        Ok(standing)
    }

    /// An approval that somebody wants to change, as the caller has read it.
    fn open_approval(
        &self,
        past: &[Call],
        id: &CallId,
        etag: Option<u64>,
    ) -> Result<&Call, Refusal> {
        let call = self.session.calls.get(id);
        let past = || past.iter().find(|call| &call.spec.id == id);
        let known = call.or_else(past).filter(|call| call.approval.is_some());
        let known = known.ok_or_else(|| no_approval(id))?;
        if let Some(closing) = known.closed() {
            return Err(over(id, closing));
        }
        let call = call.filter(|call| call.held().is_some()).ok_or_else(|| not_held(known))?;
        check_deadline(call, self.now)?;
        check_etag(call, etag)?;
        let open = self.session.invocations.get(&call.invocation);
        if open.is_none_or(|open| open.ending.is_some()) {
            let message = "the call's invocation is ending";
            return Err(Refusal::new(Reason::CallCancelled, message).with("call_id", id));
        }
        Ok(call)
    }

    /// Somebody takes an approval for a while, or gives it back.
    pub fn assign(
        &mut self,
        past: &[Call],
        id: &CallId,
        to: Option<(Principal, u64)>,
        etag: Option<u64>,
    ) -> Result<(), Refusal> {
        let call = self.open_approval(past, id, etag)?;
        let what = match to {
            Some((to, until)) => {
                // Whoever has it may keep it longer, and so may nobody else take it.
                check_lease(call, &to, self.now)?;
                Noted::Assigned { to, until }
            }
            None if call.approval.as_ref().is_none_or(|a| a.lease.is_none()) => return Ok(()),
            None => Noted::Unassigned,
        };
        self.push(Body::Noted { call: id.clone(), what, comment: String::new() });
        Ok(())
    }

    /// Somebody moves an approval's deadline to a later time.
    pub fn extend(
        &mut self,
        past: &[Call],
        id: &CallId,
        expire_time: u64,
        etag: Option<u64>,
        comment: String,
    ) -> Result<(), Refusal> {
        let call = self.open_approval(past, id, etag)?;
        let rule = match call.expire_time {
            None => Some("is only for what has a deadline"),
            Some(before) if expire_time <= before => Some("must be after the deadline that it has"),
            Some(_) => None,
        };
        if let Some(rule) = rule {
            return Err(Refusal::field("expire_time", rule));
        }
        let what = Noted::Extended { expire_time };
        self.push(Body::Noted { call: id.clone(), what, comment });
        Ok(())
    }

    /// Somebody wants the body of a call of unknown outcome run again. `window` is how long after
    /// its start's record a body may still have begun, in microseconds.
    pub fn run_again(
        &mut self,
        past: &[Call],
        id: &CallId,
        args_digest: &str,
        (etag, window): (Option<u64>, u64),
        forced: bool,
        comment: String,
    ) -> Result<(), Refusal> {
        let call = self.open_approval(past, id, etag)?;
        check_lease(call, &self.by, self.now)?;
        if !call.allowed_verdicts().contains(&Verdict::RunAgain) {
            return Err(not_allowed(call, Verdict::RunAgain));
        }
        if call.spec.args_digest != args_digest {
            return Err(other_digest(call));
        }
        let deadline = later(call.started.unwrap_or_default(), call.spec.behaviour.timeout);
        let from = deadline.saturating_add(window);
        if self.now < from && !forced {
            let message = "the body may still be at work: it can be run again after its deadline";
            return Err(Refusal::new(Reason::VerdictNotAllowed, message)
                .with("call_id", id)
                .with("allowed_from_micros", from));
        }
        self.push(Body::RunAgain { call: id.clone(), forced, comment });
        Ok(())
    }
}

/// There is no such approval, or it is not the caller's to know.
pub fn no_approval(id: &CallId) -> Refusal {
    Refusal::new(Reason::ApprovalNotFound, "there is no such approval").with("call_id", id)
}

/// The arguments are not those that the caller has seen.
pub(super) fn other_digest(call: &Call) -> Refusal {
    let message = "the call's arguments are not the ones that were decided on";
    Refusal::new(Reason::ArgsDigestMismatch, message)
        .with("call_id", &call.spec.id)
        .with("args_digest", &call.spec.args_digest)
}

/// The approval must be as the caller has read it, if he says how that was.
pub fn check_etag(call: &Call, etag: Option<u64>) -> Result<(), Refusal> {
    match etag.filter(|etag| *etag != call.revision) {
        Some(_) => {
            let message = "the approval has changed since it was read; read it again";
            Err(Refusal::new(Reason::EtagMismatch, message)
                .with("call_id", &call.spec.id)
                .with("etag", call.revision))
        }
        None => Ok(()),
    }
}
