//! What the claim's holder appends next, of its own accord: starts, responses, pauses, ends.
//!
//! One function for every path: a new message, an answer, a body that came back, a restart. It adds
//! moves to a draft until nothing follows any more. What is left is for the driver to perform: the
//! bodies that were started, and the models of the frames that are ready.

use std::collections::BTreeMap;

use super::approval::PLACEHOLDER;
use super::asking::{error, told};
use super::call;
use super::call::{Body as AtWork, Call, End, Phase};
use super::content::{CallFacts, Data, FunctionResponse, Object, Part, Role};
use super::draft::Draft;
use super::id::{CallId, FrameId, InvocationId, Principal};
use super::record::{Answer, Body, Ending, Outcome};

impl Draft<'_> {
    /// Adds every move that follows. The claim must be the caller's.
    pub fn settle(&mut self) {
        while self.settle_once() {}
    }

    /// Adds the next moves, if any follow.
    fn settle_once(&mut self) -> bool {
        let Some(invocation) = self.session.running.clone() else {
            return self.settle_idle();
        };
        if self.place(&invocation) {
            return true;
        }
        let Some(open) = self.session.invocations.get(&invocation) else {
            return false;
        };
        if let Some(ending) = open.ending.clone() {
            return self.settle_ending(&invocation, ending);
        }
        self.ask(&invocation)
            || self.start_bodies(&invocation)
            || self.respond(&invocation)
            || self.close_frames(&invocation)
            || self.limit_models(&invocation)
            || self.pause_or_complete(&invocation)
    }

    /// Nothing runs: a queued answer gets its place, or nobody needs to drive.
    fn settle_idle(&mut self) -> bool {
        if let Some(queued) = self.session.queued.first() {
            let invocation = queued.invocation.clone();
            return self.place(&invocation);
        }
        // A late result has settled a call of a paused invocation.
        let open: Vec<InvocationId> = self.session.invocations.keys().cloned().collect();
        if open.iter().any(|invocation| self.respond(invocation)) {
            return true;
        }
        if let Some(invocation) = self.session.waits_to_run().cloned() {
            return self.start_bodies(&invocation);
        }
        if self.session.claim.is_some() {
            self.push(Body::Released);
        }
        false
    }

    /// The first queued answer to an invocation gets its place. An invocation that goes on, or
    /// ends, has all of them in the conversation before anything else.
    fn place(&mut self, invocation: &InvocationId) -> bool {
        let mut queued = self.session.queued.iter();
        let Some(queued) = queued.find(|queued| &queued.invocation == invocation).cloned() else {
            return false;
        };
        let mut event = queued.event;
        event.sequence = self.session.last_sequence + 1;
        self.push_by(queued.by, Body::Placed { invocation: queued.invocation, event });
        true
    }

    /// The invocation is to end: bodies at work are awaited, everything else is closed.
    fn settle_ending(&mut self, invocation: &InvocationId, ending: Ending) -> bool {
        let calls = self.session.calls.values().filter(|call| &call.invocation == invocation);
        if calls.into_iter().any(|call| call.body.is_some()) {
            return false;
        }
        if self.respond(invocation) {
            return true;
        }
        self.end(invocation, ending);
        true
    }

    /// Closes what is open of an invocation and ends it.
    pub(crate) fn end(&mut self, invocation: &InvocationId, how: Ending) {
        // What was accepted, and what came back, is told before.
        while self.place(invocation) {}
        self.respond(invocation);
        let open = |call: &&Call| &call.invocation == invocation && call.closed().is_none();
        let mut by_frame: BTreeMap<FrameId, Vec<CallId>> = BTreeMap::new();
        let mut calls: Vec<&Call> = self.session.calls.values().filter(open).collect();
        calls.sort_by_key(|call| (call.sequence, call.index));
        for call in calls {
            by_frame.entry(call.frame.clone()).or_default().push(call.spec.id.clone());
        }
        for (frame, ids) in by_frame {
            let text = match how {
                Ending::Cancelled => {
                    "The invocation was cancelled before this call had an outcome."
                }
                _ => "The invocation ended before this call had an outcome.",
            };
            self.close(invocation, &frame, &ids, End::Cancelled, "cancelled", text);
        }
        self.push(Body::Ended { invocation: invocation.clone(), how });
    }

    /// Closes calls of one frame by the server's own word, with one event that tells so.
    pub(super) fn close(
        &mut self,
        invocation: &InvocationId,
        frame: &FrameId,
        ids: &[CallId],
        end: End,
        status: &str,
        text: &str,
    ) {
        let response = Object::from_iter([
            ("error".to_owned(), text.into()),
            ("status".to_owned(), status.into()),
        ]);
        let closing = |id: &CallId| Answer::closing(id.clone(), response.clone(), end);
        self.close_as(invocation, frame, ids.iter().map(closing).collect());
    }

    /// Closes calls of one frame by the server's own answers.
    pub(super) fn close_as(
        &mut self,
        invocation: &InvocationId,
        frame: &FrameId,
        answers: Vec<Answer>,
    ) {
        let part = |answer: &Answer| {
            let call = self.session.calls.get(&answer.call);
            Part::new(Data::FunctionResponse(FunctionResponse {
                id: answer.call.clone(),
                name: call.map(|call| call.spec.name.clone()).unwrap_or_default(),
                response: answer.response.clone(),
                will_continue: None,
            }))
        };
        let parts = answers.iter().map(part).collect();
        let mut event = self.frame_event(invocation, frame, Role::User, parts, Object::new());
        let cancelled = answers.iter().any(|answer| answer.end == Some(End::Cancelled));
        let queued = self.session.running.as_ref().is_some_and(|running| running != invocation)
            && !cancelled;
        if queued {
            event.sequence = 0;
        }
        self.push(Body::Answered { invocation: invocation.clone(), answers, queued, event });
    }

    /// Bodies that have not started do so, unless somebody is asked before; calls that failed their
    /// checks, or are refused, come back at once.
    fn start_bodies(&mut self, invocation: &InvocationId) -> bool {
        let startable = |call: &&Call| {
            let waiting = call.is_gated() && !self.session.waits(call) && !self.is_unasked(call);
            &call.invocation == invocation && (matches!(call.phase, Phase::Requested) || waiting)
        };
        let mut calls: Vec<Call> = self.session.calls.values().filter(startable).cloned().collect();
        calls.sort_by_key(|call| (call.sequence, call.index));
        let any = !calls.is_empty();
        for call in calls {
            self.start_body(&call);
        }
        any
    }

    fn start_body(&mut self, call: &Call) {
        let id = call.spec.id.clone();
        if let Some(response) = &call.spec.failed {
            return self.push(Body::Returned {
                call: id,
                execution: call.execution,
                outcome: Outcome::Error(response.clone()),
                state_delta: Object::new(),
                skip_summarization: false,
                raised: None,
            });
        }
        if let Some((by, end, response)) = self.refusal_of(call) {
            return self.push_by(by, Body::Refused { call: id, end, response });
        }
        let (execution, attempt) = (call.execution, call.attempt + 1);
        self.push(Body::Started { call: id, execution, attempt });
    }

    /// Frames whose bodies are all back tell what those gave.
    fn respond(&mut self, invocation: &InvocationId) -> bool {
        let frames = self.session.telling_frames(invocation);
        let any = !frames.is_empty();
        let open = self.session.invocations.get(invocation);
        let ending = open.is_some_and(|open| open.ending.is_some());
        for id in frames {
            let calls = self.session.frame_calls(invocation, &id);
            let (mut parts, mut asked) = (Vec::new(), BTreeMap::new());
            let mut placeholders_only = true;
            for call in calls {
                let placeholder = !ending && call.placeholder_due();
                let response = match &call.untold {
                    Some(response) => told(call, response),
                    None if placeholder => error(PLACEHOLDER),
                    None => continue,
                };
                placeholders_only &= placeholder;
                asked.extend(self.confirmation_of(call).map(|what| (call.spec.id.clone(), what)));
                parts.push(Part::new(Data::FunctionResponse(FunctionResponse {
                    id: call.spec.id.clone(),
                    name: call.spec.name.clone(),
                    response: Some(response),
                    will_continue: None,
                })));
            }
            let frame = &self.session.invocations[invocation].frames[&id];
            let delta = frame.state_delta.clone();
            let skip = frame.skip_summarization || (placeholders_only && !parts.is_empty());
            let mut event = self.frame_event(invocation, &id, Role::User, parts, delta);
            event.actions.skip_summarization = skip;
            event.actions.requested_tool_confirmations = asked;
            let (invocation, frame) = (invocation.clone(), id);
            self.push(Body::Responded { invocation, frame, event });
        }
        any
    }

    /// Frames below the root that have said their last give it to the call they work for.
    fn close_frames(&mut self, invocation: &InvocationId) -> bool {
        let Some(open) = self.session.invocations.get(invocation) else {
            return false;
        };
        let done = open.frames.iter().find_map(|(id, frame)| {
            let call = self.session.calls.get(frame.call.as_ref()?)?;
            let at_work = matches!(call.phase, Phase::Running) && call.body.is_none();
            let open = self.session.frame_calls(invocation, id);
            let idle = frame.told <= frame.seen && open.iter().all(|call| call.closed().is_some());
            // Without a last text, since a response needed no words of the model, it is empty
            // (ADK).
            let output = frame.output.clone().unwrap_or_default();
            (at_work && idle).then(|| (call.spec.id.clone(), call.execution, output))
        });
        let Some((call, execution, output)) = done else {
            return false;
        };
        let value = Object::from_iter([("result".to_owned(), output.into())]);
        self.push(Body::Returned {
            call,
            execution,
            outcome: Outcome::Value(value),
            state_delta: Object::new(),
            skip_summarization: false,
            raised: None,
        });
        true
    }

    /// An invocation that has used up its model calls fails (ADK: `max_llm_calls`).
    fn limit_models(&mut self, invocation: &InvocationId) -> bool {
        let open = &self.session.invocations[invocation];
        let most = open.config.max_llm_calls;
        if most == 0 || open.llm_calls < most {
            return false;
        }
        let Some((_, frame)) = self.session.ready_frames().into_iter().next() else {
            return false;
        };
        let message = format!("max_llm_calls: {most} model calls were made without an end");
        self.fail(invocation, &frame, self.session.head, "LIMIT_EXCEEDED", &message);
        true
    }

    /// A frame's model failed: an event says why, and the invocation fails, unless something was
    /// told since `seen`: then the model is asked once more.
    pub fn fail(
        &mut self,
        invocation: &InvocationId,
        frame: &FrameId,
        seen: u64,
        code: &str,
        message: &str,
    ) {
        let mut event = self.frame_event(invocation, frame, Role::Model, vec![], Object::new());
        event.error_code = code.to_owned();
        event.error_message = message.to_owned();
        self.push(Body::Replied {
            invocation: invocation.clone(),
            frame: frame.clone(),
            seen,
            event,
            calls: Vec::new(),
        });
    }

    /// Nothing is under way and no model is to be called: the invocation waits or is over.
    fn pause_or_complete(&mut self, invocation: &InvocationId) -> bool {
        let at_work = |call: &Call| &call.invocation == invocation && call.body.is_some();
        if self.session.calls.values().any(at_work) || !self.session.ready_frames().is_empty() {
            return false;
        }
        let held = self.session.held_calls(invocation);
        let held: Vec<CallId> = held.into_iter().map(|call| call.spec.id.clone()).collect();
        if held.is_empty() {
            self.end(invocation, Ending::Completed);
        } else {
            self.push(Body::Paused { invocation: invocation.clone(), held });
        }
        true
    }

    /// A body that nobody runs any more is run again, if that is allowed, or asked about.
    pub fn lose(&mut self, id: &CallId) {
        let Some(call) = self.session.calls.get(id).cloned() else {
            return;
        };
        if call.body.is_none() {
            return;
        }
        if call.closed().is_some() {
            // Nobody waits for it. That it is back is recorded, or it would be started again.
            self.returned(id, call.execution, super::decide::Back::of(Outcome::Nothing));
            return;
        }
        let again = call.spec.behaviour.effect != call::Effect::Once
            && call.attempt < call::MAX_ATTEMPTS
            && self.session.invocations.get(&call.invocation).is_some_and(|i| i.ending.is_none());
        if again {
            let (call, execution, attempt) = (id.clone(), call.execution, call.attempt + 1);
            self.push(Body::Started { call, execution, attempt });
            return;
        }
        let mut event =
            self.frame_event(&call.invocation, &call.frame, Role::User, vec![], Object::new());
        let facts = CallFacts {
            kind: Some(call::Kind::UnknownOutcome),
            args_digest: call.spec.args_digest.clone(),
            ..CallFacts::default()
        };
        event.calls.insert(id.clone(), facts);
        self.push(Body::Lost { call: id.clone(), event });
    }

    /// A body that was started was not run after all: its start took too long to become durable.
    pub fn not_run(&mut self, id: &CallId) {
        let Some(call) = self.session.calls.get(id).cloned() else { return };
        if call.body.is_none() {
            return;
        }
        let ending = |open: &super::state::Invocation| open.ending.is_some();
        let ending = self.session.invocations.get(&call.invocation).is_some_and(ending);
        if call.closed().is_none() && call.attempt < call::MAX_ATTEMPTS && !ending {
            let (call, execution, attempt) = (id.clone(), call.execution, call.attempt + 1);
            self.push(Body::Started { call, execution, attempt });
            return;
        }
        let text = "The tool was not run: the server was too slow to start it.";
        let response = Object::from_iter([("error".to_owned(), text.into())]);
        let (execution, outcome) = (call.execution, Outcome::Error(response));
        self.returned(id, execution, super::decide::Back::of(outcome));
    }

    /// Nothing came of the running invocation over many claims: it ends as failed.
    pub fn give_up(&mut self, attempts: u32) {
        let Some(invocation) = self.session.running.clone() else { return };
        let Some(open) = self.session.invocations.get(&invocation) else { return };
        let Some(frame) = open.frames.keys().next().cloned() else { return };
        let message =
            format!("the invocation was taken over {attempts} times, and nothing came of it");
        self.fail(&invocation, &frame, self.session.head, "GIVEN_UP", &message);
        for lost in self.lost_bodies() {
            self.lose(&lost);
        }
        self.settle();
    }

    /// The bodies that an earlier claim started and nobody runs any more.
    pub fn lost_bodies(&self) -> Vec<CallId> {
        let epoch = self.session.epoch;
        let lost = |call: &&Call| {
            call.closed().is_none() && call.body.is_some_and(|AtWork { epoch: e, .. }| e < epoch)
        };
        self.session.calls.values().filter(lost).map(|call| call.spec.id.clone()).collect()
    }

    /// Takes the session, if it can move and nobody has it. True: it was taken.
    pub fn claim_if_free(&mut self, owner: &super::id::Owner) -> bool {
        let free = self.session.claim.is_none() && self.session.can_move();
        if free {
            self.take(owner);
        }
        free
    }

    /// Takes the session from whoever had it.
    pub fn take(&mut self, owner: &super::id::Owner) {
        let epoch = self.session.epoch + 1;
        let by = Principal::parse(format!("server:{owner}")).expect("an owner's name is an id");
        self.push_by(by, Body::Claimed { owner: owner.clone(), epoch });
    }
}
