//! Decisions: what somebody wants, against the session as it is. Each refuses and changes nothing,
//! or adds records to a draft. The table of ARCHITECTURE.md (what may happen to a call) is `judge`
//! for answers, `returned` for bodies, `expire` and `cancel`, `Draft::lose` for lost owners.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{Raised, Scope, Verdict};
use super::approving;
use super::call::{Call, End, Kind, Spec};
use super::content::{CallFacts, Content, Event, Object, Part, Usage};
use super::draft::Draft;
use super::id::{AgentName, CallId, FrameId, InvocationId, Principal};
use super::json;
use super::record::{Answer, Body, Edited, Ending, Outcome, RunConfig};
use super::refusal::{Reason, Refusal};
use super::state::Session;

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
    /// What it decides, if it came as a decision.
    pub decision: Option<Decision>,
    /// The path of the field, for refusals.
    pub field: String,
}

/// A decision on an approval, beside the response that carries it.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, for the model.
    pub reason: String,
    /// Of an approved question: with which arguments.
    pub edited: Option<Edited>,
    /// Of an approved question: which calls need none from here on, and until when, in microseconds
    /// since 1970.
    pub remember: Option<(Scope, Option<u64>)>,
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

/// Why something was decided, for the model.
fn reason_of(incoming: &Incoming) -> String {
    incoming.decision.as_ref().map(|decision| decision.reason.clone()).unwrap_or_default()
}

/// What a body gave, and what it did beside.
#[derive(Debug, Clone, PartialEq)]
pub struct Back {
    /// What it gave.
    pub outcome: Outcome,
    /// Changes of state that it made.
    pub state_delta: Object,
    /// It asked that the model is not called after it.
    pub skip_summarization: bool,
    /// It asks a person before it goes on.
    pub raised: Option<Raised>,
}

impl Back {
    /// An outcome, and nothing beside.
    pub fn of(outcome: Outcome) -> Self {
        Self { outcome, state_delta: Object::new(), skip_summarization: false, raised: None }
    }
}

/// Digest of an answer's content, by which a repeat is known.
fn content_digest(incoming: &Incoming) -> String {
    let response = incoming.response.clone().map_or(Value::Null, Value::Object);
    let value = match &incoming.decision {
        Some(Decision { verdict, reason, edited, remember })
            if !reason.is_empty() || edited.is_some() || remember.is_some() =>
        {
            serde_json::json!({
                "response": response,
                "verdict": verdict,
                "reason": reason,
                "args_digest": edited.as_ref().map(|edited| &edited.args_digest),
                "remember": remember,
            })
        }
        _ => response,
    };
    json::digest(&value).unwrap_or_default()
}

/// An answer that applies: the call as it was before, and how it ends by it.
type Applied<'a> = (Call, &'a Incoming, Closes);

/// What is found of one answer.
enum Judgement {
    Apply(Closes),
    Duplicate,
}

/// What an answer that applies does to its call: how it ends, if it does, and by which verdict.
type Closes = (Option<End>, Option<Verdict>);

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
        return Err(approving::other_digest(call));
    }
    if let Some(closing) = call.closed() {
        let same = closing.end == End::Done
            && &closing.by == by
            && !closing.digest.is_empty()
            && closing.digest == content_digest(incoming)
            && incoming.will_continue != Some(true);
        if same {
            return Ok(Judgement::Duplicate);
        }
        return Err(approving::over(id, closing));
    }
    approving::check_deadline(call, now)?;
    let kind = call.answerable().ok_or_else(|| approving::not_held(call))?;
    approving::check_lease(call, by, now)?;
    let last = call.is_final(incoming.response.as_ref(), incoming.will_continue);
    let rule = match kind {
        Kind::LongRunning => None,
        Kind::Confirmation => Some("a question takes one answer only"),
        Kind::Input => Some("a question takes one answer only"),
        Kind::UnknownOutcome => Some("a call of unknown outcome takes its outcome only"),
    };
    if let (Some(rule), false) = (rule, last) {
        let rule = format!("must not be true: {rule}");
        return Err(Refusal::field(format!("{}.will_continue", incoming.field), rule));
    }
    let verdict = approving::verdict_of(call, kind, incoming)?;
    Ok(Judgement::Apply((last.then_some(End::Done), verdict)))
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
            let closes = match judge(&call, incoming, with, self.now, &self.by)? {
                Judgement::Duplicate => {
                    invocations.insert(call.invocation);
                    continue;
                }
                Judgement::Apply(closes) => closes,
            };
            let decided = incoming.decision.as_ref().map(|decision| decision.verdict);
            // What the server says for whoever decided needs no schema.
            let free = matches!(decided, Some(Verdict::Deny | Verdict::Approve));

            let open = self.session.invocations.get(&call.invocation);
            if open.is_some_and(|open| open.ending.is_some()) {
                return Err(Refusal::new(Reason::CallCancelled, "the call's invocation is ending")
                    .with("call_id", &incoming.call));
            }
            if let (Some(schema), Some(_)) = (&call.spec.behaviour.answer_schema, closes.0)
                && call.held() != Some(Kind::UnknownOutcome)
                && !free
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
            apply.push((call, incoming, closes));
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
        let all_progress = apply.iter().all(|(_, _, (end, _))| end.is_none());
        let standing = self.standings(&apply)?;
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
                .map(|(call, incoming, (end, verdict))| Answer {
                    call: call.spec.id.clone(),
                    response: incoming.response.clone(),
                    end: *end,
                    skip_summarization: with.skip_summarization,
                    comment: with.comment.clone(),
                    digest: content_digest(incoming),
                    verdict: *verdict,
                    reason: reason_of(incoming),
                    edited: incoming.decision.as_ref().and_then(|d| d.edited.clone()),
                })
                .collect();
            let invocation = invocation.clone();
            self.push(Body::Answered { invocation, answers, queued, event });
        }
        self.remember(standing);
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
        for (call, incoming, _) in apply {
            let facts = CallFacts { comment: with.comment.clone(), ..CallFacts::default() };
            approving::tell_edited(&mut event, incoming);
            if facts != CallFacts::default() {
                event.calls.insert(call.spec.id.clone(), facts);
            }
        }
        event
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
    pub fn replied(
        &mut self,
        invocation: &InvocationId,
        frame: &FrameId,
        seen: u64,
        mut reply: Reply,
    ) {
        self.settle_gates(invocation, &mut reply.calls);
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
    pub fn returned(&mut self, call: &CallId, execution: u32, back: Back) -> bool {
        let Some(open) = self.session.calls.get(call) else {
            return false;
        };
        let waited = open.body.is_some() || open.held() == Some(Kind::UnknownOutcome);
        if open.execution != execution || !waited {
            return false;
        }
        let by = Principal::parse(format!("tool:{}", open.spec.name))
            .unwrap_or_else(|_| self.by.clone());
        let Back { outcome, state_delta, skip_summarization, raised } = back;
        let call = call.clone();
        self.push_by(
            by,
            Body::Returned { call, execution, outcome, state_delta, skip_summarization, raised },
        );
        true
    }
}

/// A call of the session, or one that it does not hold any more.
pub fn find<'a>(session: &'a Session, past: &'a [Call], id: &CallId) -> Option<&'a Call> {
    session.calls.get(id).or_else(|| past.iter().find(|call| &call.spec.id == id))
}
