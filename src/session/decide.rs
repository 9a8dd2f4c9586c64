//! Decisions: what somebody wants, against the session as it is. Each refuses and changes nothing,
//! or adds records to a draft. The table of ARCHITECTURE.md (what may happen to a call) is `judge`
//! for answers, `returned` for bodies, `expire` and `cancel`, `Draft::lose` for lost owners.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::{Call, End, Kind, Spec};
use super::content::{CallFacts, Content, Event, Object, Part, Usage};
use super::draft::Draft;
use super::id::{AgentName, CallId, FrameId, InvocationId, Principal};
use super::json;
use super::record::{Answer, Body, Ending, Outcome, RunConfig};
use super::refusal::{Reason, Refusal, Violation};
use super::state::{Session, is_own_key};

/// Longest key of state, in bytes.
pub const MAX_KEY_BYTES: usize = 256;

/// A user's message that sets an invocation going.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// The new invocation.
    pub invocation: InvocationId,
    /// The root agent.
    pub agent: AgentName,
    /// How to run it.
    pub config: RunConfig,
    /// The message.
    pub message: Content,
    /// Changes of state that come with it.
    pub state_delta: Object,
}

/// One answer from outside, as it came.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming {
    /// The call.
    pub call: CallId,
    /// The tool's name, which must be the call's.
    pub name: String,
    /// The response; none is null.
    pub response: Option<Object>,
    /// True: progress. False: final. None: as the tool declares.
    pub will_continue: Option<bool>,
    /// The path of the field, for refusals.
    pub field: String,
}

/// Answers from outside that are given at once, and what must hold for them.
#[derive(Debug, Clone, PartialEq)]
pub struct Incomings {
    /// The answers.
    pub answers: Vec<Incoming>,
    /// The invocation that they must belong to.
    pub invocation: Option<InvocationId>,
    /// The digest that the call's arguments must have.
    pub expected_args_digest: Option<String>,
    /// Do not call the model for them.
    pub skip_summarization: bool,
    /// For the record.
    pub comment: String,
    /// Changes of state that come with them.
    pub state_delta: Object,
}

/// What came of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Answered {
    /// A final answer was told.
    Applied,
    /// It is durable and gets its place when the running invocation ends or pauses.
    Queued,
    /// An answer that is not the last was told.
    Progress,
    /// The same answer had been given before; nothing was changed.
    Duplicate,
}

/// What a model replied, ready for the record.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// What it said; calls have the server's ids.
    pub parts: Vec<Part>,
    /// What is known of the calls, in part order.
    pub calls: Vec<Spec>,
    /// Facts about the calls that the event tells.
    pub facts: Vec<(CallId, CallFacts)>,
    /// Why it stopped, in ADK's spelling.
    pub finish_reason: String,
    /// What it cost.
    pub usage: Option<Usage>,
    /// An id for the event that pieces of the text were shown under already.
    pub event_id: Option<super::id::EventId>,
}

/// Digest of an answer's content, by which a repeat is known.
fn content_digest(response: Option<&Object>) -> String {
    let value = response.cloned().map_or(Value::Null, Value::Object);
    json::digest(&value).unwrap_or_default()
}

/// An answer that applies: the call as it was before, and how it ends by it.
type Applied<'a> = (Call, &'a Incoming, Option<End>);

/// What is found of one answer.
enum Judgement {
    Apply { end: Option<End> },
    Duplicate,
}

/// One answer against its call, whatever state that is in.
fn judge(
    call: &Call,
    incoming: &Incoming,
    with: &Incomings,
    now: u64,
    by: &Principal,
) -> Result<Judgement, Refusal> {
    let id = &call.spec.id;
    if call.spec.name != incoming.name {
        return Err(Refusal::new(
            Reason::CallNameMismatch,
            format!("{}.name is not the name of the call", incoming.field),
        )
        .with("call_id", id)
        .with("expected_name", &call.spec.name));
    }
    if with.invocation.as_ref().is_some_and(|wanted| wanted != &call.invocation) {
        return Err(Refusal::new(
            Reason::InvocationMismatch,
            "the call belongs to another invocation",
        )
        .with("call_id", id)
        .with("invocation_id", &call.invocation));
    }
    if with.expected_args_digest.as_ref().is_some_and(|wanted| wanted != &call.spec.args_digest) {
        return Err(Refusal::new(
            Reason::ArgsDigestMismatch,
            "the call's arguments are not the ones that were decided on",
        )
        .with("call_id", id)
        .with("args_digest", &call.spec.args_digest));
    }
    if let Some(closing) = call.closed() {
        let same = closing.end == End::Done
            && &closing.by == by
            && !closing.digest.is_empty()
            && closing.digest == content_digest(incoming.response.as_ref())
            && incoming.will_continue != Some(true);
        if same {
            return Ok(Judgement::Duplicate);
        }
        let (reason, message) = match closing.end {
            End::Done => (Reason::CallAlreadyAnswered, "the call has its final answer already"),
            End::Denied => (Reason::CallAlreadyAnswered, "the call was refused"),
            End::Expired => (Reason::CallExpired, "the call expired before it was answered"),
            End::Cancelled => (Reason::CallCancelled, "the call was cancelled"),
        };
        return Err(Refusal::new(reason, message)
            .with("call_id", id)
            .with("answered_by", &closing.by)
            .with("answer_time_micros", closing.time));
    }
    if call.expire_time.is_some_and(|deadline| now >= deadline) {
        return Err(Refusal::new(Reason::CallExpired, "the call's deadline has passed")
            .with("call_id", id)
            .with("expire_time_micros", call.expire_time.unwrap_or_default()));
    }
    let kind = call.answerable().ok_or_else(|| {
        Refusal::new(Reason::CallNotHeld, "the call does not wait for an answer from outside")
            .with("call_id", id)
    })?;
    let last = call.is_final(incoming.response.as_ref(), incoming.will_continue);
    if kind == Kind::UnknownOutcome && !last {
        let rule = "must not be true: a call of unknown outcome takes its outcome only";
        return Err(Refusal::field(format!("{}.will_continue", incoming.field), rule));
    }
    if kind == Kind::UnknownOutcome && incoming.response.is_none() {
        let rule = "must be the result that the call had, or {\"error\": ...}";
        return Err(Refusal::field(format!("{}.response", incoming.field), rule));
    }
    Ok(Judgement::Apply { end: last.then_some(End::Done) })
}

/// Checks an answer's content against a schema; the text tells what is wrong with it.
pub type SchemaCheck<'a> = &'a dyn Fn(&Value, &Value) -> Result<(), String>;

impl Draft<'_> {
    /// A user's message begins an invocation.
    pub fn start(&mut self, start: Start) -> Result<(), Refusal> {
        if let Some(running) = &self.session.running {
            return Err(Refusal::new(
                Reason::InvocationRunning,
                "an invocation of this session is running; follow it, or wait for its end",
            )
            .with("invocation_id", running));
        }
        let mut event = self.event(&start.invocation, "user");
        event.content = Some(start.message);
        event.actions.state_delta = start.state_delta;
        event.custom_metadata = start.config.custom_metadata.clone();
        self.push(Body::Invoked {
            invocation: start.invocation,
            agent: start.agent,
            config: start.config,
            event,
        });
        Ok(())
    }

    /// Answers from outside: all are checked first, repeats are passed over, one refusal refuses
    /// all. `past` are calls that the session does not hold any more.
    pub fn answer(
        &mut self,
        past: &[Call],
        with: &Incomings,
        check: SchemaCheck<'_>,
    ) -> Result<Answered, Refusal> {
        let mut apply: Vec<Applied<'_>> = Vec::new();
        let mut invocations = BTreeSet::new();
        for incoming in &with.answers {
            let call = find(&self.session, past, &incoming.call)
                .ok_or_else(|| {
                    Refusal::new(Reason::CallNotFound, "there is no such call")
                        .with("call_id", &incoming.call)
                })?
                .clone();
            let end = match judge(&call, incoming, with, self.now, &self.by)? {
                Judgement::Duplicate => {
                    invocations.insert(call.invocation);
                    continue;
                }
                Judgement::Apply { end } => end,
            };
            let open = self.session.invocations.get(&call.invocation);
            if open.is_some_and(|open| open.ending.is_some()) {
                return Err(Refusal::new(Reason::CallCancelled, "the call's invocation is ending")
                    .with("call_id", &incoming.call));
            }
            if let (Some(schema), Some(_)) = (&call.spec.behaviour.answer_schema, end)
                && call.held() != Some(Kind::UnknownOutcome)
            {
                let value = incoming.response.clone().map_or(Value::Null, Value::Object);
                check(schema, &value).map_err(|wrong| {
                    let mut refusal = Refusal::field(format!("{}.response", incoming.field), wrong);
                    refusal.reason = Reason::ResponseSchemaViolation;
                    refusal.with("call_id", &incoming.call)
                })?;
            }
            if let Some((_, first, _)) = apply.iter().find(|(_, i, _)| i.call == incoming.call) {
                if *first == &(Incoming { field: first.field.clone(), ..incoming.clone() }) {
                    continue;
                }
                let rule = "answers a call that the same message answers otherwise";
                return Err(Refusal::field(incoming.field.clone(), rule));
            }
            invocations.insert(call.invocation.clone());
            apply.push((call, incoming, end));
        }
        if invocations.len() > 1 {
            return Err(Refusal::new(
                Reason::MixedMessage,
                "the message answers calls of more than one invocation",
            ));
        }
        let Some((first, _, _)) = apply.first() else {
            return Ok(Answered::Duplicate);
        };
        let invocation = first.invocation.clone();
        let all_progress = apply.iter().all(|(_, _, end)| end.is_none());
        let queued = self.session.running.as_ref().is_some_and(|running| running != &invocation);
        // Prompts show the events of their own frame: each frame has its answers in one of its own.
        let mut frames: Vec<(FrameId, Vec<Applied<'_>>)> = Vec::new();
        for one in apply {
            match frames.iter_mut().find(|(frame, _)| frame == &one.0.frame) {
                Some((_, answers)) => answers.push(one),
                None => frames.push((one.0.frame.clone(), vec![one])),
            }
        }
        let mut state_delta = with.state_delta.clone();
        for (frame, apply) in frames {
            let delta = std::mem::take(&mut state_delta);
            let event = self.answer_event(&invocation, frame, &apply, with, delta, queued);
            let answers = apply
                .iter()
                .map(|(call, incoming, end)| Answer {
                    call: call.spec.id.clone(),
                    response: incoming.response.clone(),
                    end: *end,
                    skip_summarization: with.skip_summarization,
                    comment: with.comment.clone(),
                    digest: content_digest(incoming.response.as_ref()),
                })
                .collect();
            let invocation = invocation.clone();
            self.push(Body::Answered { invocation, answers, queued, event });
        }
        Ok(match (queued, all_progress) {
            (true, _) => Answered::Queued,
            (false, true) => Answered::Progress,
            (false, false) => Answered::Applied,
        })
    }

    fn answer_event(
        &mut self,
        invocation: &InvocationId,
        frame: FrameId,
        apply: &[Applied<'_>],
        with: &Incomings,
        state_delta: Object,
        queued: bool,
    ) -> Event {
        let mut event = self.event(invocation, "user");
        if queued {
            event.sequence = 0;
        }
        let part = |(call, incoming, _): &Applied<'_>| {
            Part::new(super::content::Data::FunctionResponse(super::content::FunctionResponse {
                id: call.spec.id.clone(),
                name: call.spec.name.clone(),
                response: incoming.response.clone(),
                will_continue: incoming.will_continue,
            }))
        };
        let parts = apply.iter().map(part).collect();
        event.content = Some(Content { role: super::content::Role::User, parts });
        event.frame = Some(frame);
        event.actions.state_delta = state_delta;
        event.actions.skip_summarization = with.skip_summarization;
        for (call, _, _) in apply {
            let facts = CallFacts { comment: with.comment.clone(), ..CallFacts::default() };
            if facts != CallFacts::default() {
                event.calls.insert(call.spec.id.clone(), facts);
            }
        }
        event
    }

    /// Calls whose deadline has passed are over. True: there were some.
    pub fn expire(&mut self) -> bool {
        let now = self.now;
        let due = |call: &&Call| {
            call.closed().is_none() && call.expire_time.is_some_and(|deadline| now >= deadline)
        };
        let mut calls: Vec<&Call> = self.session.calls.values().filter(due).collect();
        calls.sort_by_key(|call| (call.sequence, call.index));
        let due: Vec<(InvocationId, FrameId, CallId)> = calls
            .iter()
            .map(|c| (c.invocation.clone(), c.frame.clone(), c.spec.id.clone()))
            .collect();
        for (invocation, frame, id) in &due {
            let text = "Nobody answered this call before its deadline.";
            self.close(invocation, frame, std::slice::from_ref(id), End::Expired, "expired", text);
        }
        !due.is_empty()
    }

    /// Somebody wants an invocation ended. Bodies at work are awaited by the driver; an invocation
    /// that is paused ends at once.
    pub fn cancel(&mut self, invocation: &InvocationId) -> Result<(), Refusal> {
        let Some(open) = self.session.invocations.get(invocation) else {
            return Err(Refusal::new(Reason::InvocationNotFound, "there is no such invocation"));
        };
        if open.ending.is_some() {
            return Ok(());
        }
        self.push(Body::CancelRequested { invocation: invocation.clone() });
        if self.session.running.as_ref() != Some(invocation) {
            self.end(invocation, Ending::Cancelled);
        }
        Ok(())
    }

    /// A caller changes the state. `temp:` has no meaning outside an invocation.
    pub fn change_state(&mut self, invocation: InvocationId, delta: Object) {
        let mut event = self.event(&invocation, "user");
        event.actions.state_delta = delta;
        self.push(Body::StateChanged { event });
    }

    /// A model replied in a frame.
    pub fn replied(&mut self, invocation: &InvocationId, frame: &FrameId, seen: u64, reply: Reply) {
        let mut event = self.frame_event(
            invocation,
            frame,
            super::content::Role::Model,
            reply.parts,
            Object::new(),
        );
        if let Some(id) = reply.event_id {
            event.id = id;
        }
        if event.function_calls().next().is_some() {
            let long = reply.calls.iter().filter(|spec| spec.behaviour.long_running);
            event.long_running_tool_ids = Some(long.map(|spec| spec.id.clone()).collect());
        }
        event.finish_reason = reply.finish_reason;
        event.usage = reply.usage;
        event.calls = reply.facts.into_iter().collect();
        self.push(Body::Replied {
            invocation: invocation.clone(),
            frame: frame.clone(),
            seen,
            event,
            calls: reply.calls,
        });
    }

    /// A body came back. False: nobody waits for it any more, and nothing is recorded.
    pub fn returned(
        &mut self,
        call: &CallId,
        execution: u32,
        outcome: Outcome,
        state_delta: Object,
        skip_summarization: bool,
    ) -> bool {
        let Some(open) = self.session.calls.get(call) else {
            return false;
        };
        let waited = open.body.is_some() || open.held() == Some(Kind::UnknownOutcome);
        if open.execution != execution || !waited {
            return false;
        }
        let by = Principal::parse(format!("tool:{}", open.spec.name))
            .unwrap_or_else(|_| self.by.clone());
        self.push_by(
            by,
            Body::Returned {
                call: call.clone(),
                execution,
                outcome,
                state_delta,
                skip_summarization,
            },
        );
        true
    }
}

/// A call of the session, or one that it does not hold any more.
pub fn find<'a>(session: &'a Session, past: &'a [Call], id: &CallId) -> Option<&'a Call> {
    session.calls.get(id).or_else(|| past.iter().find(|call| &call.spec.id == id))
}

/// Refuses keys of state that a caller may not set; `temp` says whether an invocation is there
/// whose state `temp:` keys can be.
pub fn check_keys(delta: &Object, field: &str, temp: bool) -> Result<(), Refusal> {
    let broken = |key: &String| match key {
        key if key.is_empty() => Some("a key must not be empty"),
        key if key.len() > MAX_KEY_BYTES => Some("a key must be at most 256 bytes long"),
        key if !temp && key.starts_with("temp:") => {
            Some("`temp:` state lives inside an invocation only")
        }
        _ => None,
    };
    let violation = |rule: &str| Violation { field: field.to_owned(), rule: rule.to_owned() };
    let violations: Vec<_> = delta.keys().filter_map(broken).map(violation).collect();
    if !violations.is_empty() {
        return Err(Refusal::fields(violations));
    }
    if delta.keys().any(|key| key.starts_with("app:")) {
        let message = format!("{field}: `app:` state needs the right to administer");
        return Err(Refusal::new(Reason::NotPermitted, message).with("field", field));
    }
    Ok(())
}

/// The part of a change of state that is the session's own.
pub fn own_keys(delta: &Object) -> Object {
    delta.iter().filter(|(key, _)| is_own_key(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}
