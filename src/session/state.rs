//! A session as the fold of its records: what the next decision needs, and no history.
//!
//! `apply` changes and never refuses: whatever is in the log has been decided. Folding the same
//! records gives the same session, from the beginning or from a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::{Body as AtWork, Call, Closing, End, Kind, Phase, Told};
use super::content::{Event, Object, Usage};
use super::id::{
    AgentName, CallId, FrameId, InvocationId, Owner, Principal, SessionKey, SessionUid,
};
use super::record::{Answer, Body, Ending, Outcome, Record, RunConfig};

/// Who drives the session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The process.
    pub owner: Owner,
    /// The claim's number.
    pub epoch: u64,
}

/// One agent at work inside an invocation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    /// The agent.
    pub agent: AgentName,
    /// The call that gets its final text; none for the root.
    pub call: Option<CallId>,
    /// The position that the last prompt was built from.
    pub seen: u64,
    /// The position of the last thing that is for the model to see.
    pub told: u64,
    /// Its last text, when its last reply had no calls.
    pub output: Option<String>,
    /// Changes of state that bodies made and no event has told yet.
    pub state_delta: Object,
    /// A body asked that the model is not called after it.
    pub skip_summarization: bool,
}

/// One invocation, open or just ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Invocation {
    /// Its id.
    pub id: InvocationId,
    /// The root agent.
    pub agent: AgentName,
    /// Who set it going.
    pub principal: Principal,
    /// How it runs.
    pub config: RunConfig,
    /// When it began, in microseconds since 1970.
    pub create_time: u64,
    /// When its state changed last, in microseconds since 1970.
    pub update_time: u64,
    /// Position of the record that began it.
    pub began_at: u64,
    /// Position of its last pause, or of its end; 0 if it never came to a rest.
    pub rested_at: u64,
    /// Model calls since it began or went on.
    pub llm_calls: u32,
    /// What its model calls cost.
    pub usage: Usage,
    /// `temp:` state.
    pub temp: Object,
    /// Its frames; the root first made.
    pub frames: BTreeMap<FrameId, Frame>,
    /// It is to end so as soon as no body is at work.
    pub ending: Option<Ending>,
    /// How it ended.
    pub ended: Option<Ending>,
}

/// An answer that waits for another invocation to end or pause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Queued {
    /// Its invocation.
    pub invocation: InvocationId,
    /// The answers.
    pub answers: Vec<Answer>,
    /// Who gave them.
    pub by: Principal,
    /// The event, without its sequence.
    pub event: Event,
}

/// A session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its own key.
    pub uid: SessionUid,
    /// Its names.
    pub key: SessionKey,
    /// When it began, in microseconds since 1970.
    pub create_time: u64,
    /// The time of its last record, in microseconds since 1970.
    pub update_time: u64,
    /// The position of its last record.
    pub head: u64,
    /// The sequence of its last event.
    pub last_sequence: u64,
    /// Its own state, without prefixes.
    pub state: Object,
    /// Who drives it.
    pub claim: Option<Claim>,
    /// The number of the last claim.
    pub epoch: u64,
    /// Claims since something last came of one.
    pub attempts: u32,
    /// The invocation that is not paused.
    pub running: Option<InvocationId>,
    /// Open invocations.
    pub invocations: BTreeMap<InvocationId, Invocation>,
    /// The calls of open invocations.
    pub calls: BTreeMap<CallId, Call>,
    /// Answers that wait for their place, in order.
    pub queued: Vec<Queued>,
}

/// What a record changed, for whoever keeps an index of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Touched {
    /// Open invocations.
    pub invocations: BTreeSet<InvocationId>,
    /// Calls of open invocations.
    pub calls: BTreeSet<CallId>,
    /// Invocations that ended, with their calls as they were then.
    pub ended: Vec<(Invocation, Vec<Call>)>,
}

impl Session {
    /// The session that this record begins; none if it is another record.
    pub fn begin(record: &Record) -> Option<Self> {
        let Body::Created { uid, key, state } = &record.body else {
            return None;
        };
        Some(Self {
            uid: uid.clone(),
            key: key.clone(),
            create_time: record.time,
            update_time: record.time,
            head: 1,
            last_sequence: 0,
            state: state.clone(),
            claim: None,
            epoch: 0,
            attempts: 0,
            running: None,
            invocations: BTreeMap::new(),
            calls: BTreeMap::new(),
            queued: Vec::new(),
        })
    }

    /// Adds the next record.
    pub fn apply(&mut self, record: &Record, touched: &mut Touched) {
        self.head += 1;
        self.update_time = record.time;
        if let Some(event) = record.body.event() {
            self.apply_event(event);
        }
        if !matches!(record.body, Body::Claimed { .. } | Body::Started { .. } | Body::Lost { .. }) {
            self.attempts = 0;
        }
        match &record.body {
            Body::Created { .. } | Body::StateChanged { .. } => {}
            Body::Invoked { invocation, agent, config, event: _ } => {
                self.invoked(record, invocation, agent, config);
                touched.invocations.insert(invocation.clone());
            }
            Body::Claimed { owner, epoch } => self.claimed(owner, *epoch),
            Body::Released => self.claim = None,
            Body::Opened { invocation, frame, agent, call, event: _ } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.body = None;
                }
                if let Some(invocation) = self.invocations.get_mut(invocation) {
                    let opened = Frame::new(agent.clone(), Some(call.clone()), self.head);
                    invocation.frames.insert(frame.clone(), opened);
                }
            }
            Body::Replied { invocation, frame, seen, event, calls } => {
                if let Some(open) = self.invocations.get_mut(invocation) {
                    open.replied(frame, *seen, event);
                }
                for (index, spec) in calls.iter().enumerate() {
                    touched.calls.insert(spec.id.clone());
                    let mut call = self.requested(record, invocation, frame, event, spec.clone());
                    call.index = u32::try_from(index).unwrap_or(u32::MAX);
                    self.calls.insert(spec.id.clone(), call);
                }
            }
            Body::Started { call, execution, attempt } => {
                let epoch = self.epoch;
                if let Some(call) = self.calls.get_mut(call) {
                    call.phase = Phase::Running;
                    call.body = Some(AtWork { epoch, time: record.time });
                    (call.execution, call.attempt) = (*execution, *attempt);
                }
                touched.calls.insert(call.clone());
            }
            Body::Returned { call, execution, outcome, state_delta, skip_summarization } => {
                self.returned(record, call, *execution, outcome);
                if let Some(frame) = self.frame_of_mut(call) {
                    frame.state_delta.extend(state_delta.clone());
                    frame.skip_summarization |= skip_summarization;
                }
                touched.calls.insert(call.clone());
                self.touch_owner_of(call, touched);
            }
            Body::Responded { invocation, frame, event } => {
                self.responded(record, invocation, frame, event);
                touched.calls.extend(event.function_responses().map(|part| part.id.clone()));
            }
            Body::Lost { call, event: _ } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.phase = Phase::Held(Kind::UnknownOutcome);
                    call.body = None;
                }
                touched.calls.insert(call.clone());
                self.touch_owner_of(call, touched);
            }
            Body::Answered { invocation, answers, queued, event } => {
                self.answered(record, answers);
                touched.calls.extend(answers.iter().map(|answer| answer.call.clone()));
                touched.invocations.insert(invocation.clone());
                if *queued {
                    self.queued.push(Queued {
                        invocation: invocation.clone(),
                        answers: answers.clone(),
                        by: record.by.clone(),
                        event: event.clone(),
                    });
                } else {
                    self.tell(&record.by, answers);
                    self.go_on(record, invocation);
                }
            }
            Body::Placed { invocation, event } => {
                if let Some(at) = self.queued.iter().position(|q| q.event.id == event.id) {
                    let queued = self.queued.remove(at);
                    touched.calls.extend(queued.answers.iter().map(|answer| answer.call.clone()));
                    self.tell(&queued.by, &queued.answers);
                }
                self.go_on(record, invocation);
                touched.invocations.insert(invocation.clone());
            }
            Body::CancelRequested { invocation } => {
                if let Some(open) = self.invocations.get_mut(invocation) {
                    open.ending = Some(Ending::Cancelled);
                }
                touched.invocations.insert(invocation.clone());
            }
            Body::Paused { invocation, held: _ } => {
                if let Some(open) = self.invocations.get_mut(invocation) {
                    open.rested_at = self.head;
                    open.update_time = record.time;
                    open.llm_calls = 0;
                }
                self.rest(invocation);
                touched.invocations.insert(invocation.clone());
            }
            Body::Ended { invocation, how } => {
                touched.ended.extend(self.ended(record, invocation, how));
            }
        }
    }

    /// The open calls that wait for somebody, of one invocation, in the order of their requests.
    pub fn held_calls(&self, invocation: &InvocationId) -> Vec<&Call> {
        self.ordered(|call| &call.invocation == invocation && call.held().is_some())
    }

    /// The calls of a frame, in the order of their requests.
    pub fn frame_calls(&self, invocation: &InvocationId, frame: &FrameId) -> Vec<&Call> {
        self.ordered(|call| &call.invocation == invocation && &call.frame == frame)
    }

    fn ordered(&self, wanted: impl Fn(&Call) -> bool) -> Vec<&Call> {
        let mut calls: Vec<&Call> = self.calls.values().filter(|call| wanted(call)).collect();
        calls.sort_by_key(|call| (call.sequence, call.index));
        calls
    }

    /// The frames whose model is to be called: something is untold, and no call blocks them.
    pub fn ready_frames(&self) -> Vec<(InvocationId, FrameId)> {
        let Some(open) = self.running.as_ref().and_then(|id| self.invocations.get(id)) else {
            return Vec::new();
        };
        if open.ending.is_some() {
            return Vec::new();
        }
        let ready = open.frames.iter().filter(|(id, frame)| {
            frame.told > frame.seen && !self.frame_calls(&open.id, id).iter().any(|c| c.blocks())
        });
        ready.map(|(id, _)| (open.id.clone(), id.clone())).collect()
    }

    /// Whether an invocation can move by itself: it runs, or an answer to it waits for its place.
    pub fn moves(&self, invocation: &InvocationId) -> bool {
        self.running.as_ref() == Some(invocation)
            || self.queued.iter().any(|queued| &queued.invocation == invocation)
    }

    /// The calls that have no outcome in the conversation yet: held ones, and those whose answer
    /// waits for its place.
    pub fn pending_calls(&self) -> BTreeSet<CallId> {
        let held = self.calls.values().filter(|call| call.held().is_some());
        let queued = self.queued.iter().flat_map(|queued| &queued.answers);
        held.map(|call| &call.spec.id).chain(queued.map(|answer| &answer.call)).cloned().collect()
    }

    /// The frames of an invocation that have something to tell, responses or changes of state, and
    /// whose bodies are all back.
    pub fn telling_frames(&self, invocation: &InvocationId) -> Vec<FrameId> {
        let Some(open) = self.invocations.get(invocation) else {
            return Vec::new();
        };
        let telling = open.frames.iter().filter(|(id, frame)| {
            let calls = self.frame_calls(invocation, id);
            // An invocation that is to end tells what there is.
            let busy = open.ending.is_none() && calls.iter().any(|call| call.at_work());
            let any = !frame.state_delta.is_empty() || calls.iter().any(|c| c.untold.is_some());
            any && !busy
        });
        telling.map(|(id, _)| id.clone()).collect()
    }

    /// Whether a driver has anything to do.
    pub fn can_move(&self) -> bool {
        let telling = |id: &InvocationId| !self.telling_frames(id).is_empty();
        self.running.is_some() || !self.queued.is_empty() || self.invocations.keys().any(telling)
    }

    fn invoked(
        &mut self,
        record: &Record,
        id: &InvocationId,
        agent: &AgentName,
        config: &RunConfig,
    ) {
        let root = Frame::new(agent.clone(), None, self.head);
        let invocation = Invocation {
            id: id.clone(),
            agent: agent.clone(),
            principal: record.by.clone(),
            config: config.clone(),
            create_time: record.time,
            update_time: record.time,
            began_at: self.head,
            rested_at: 0,
            llm_calls: 0,
            usage: Usage::default(),
            temp: Object::new(),
            frames: BTreeMap::from([(FrameId::root(agent), root)]),
            ending: None,
            ended: None,
        };
        self.invocations.insert(id.clone(), invocation);
        self.running = Some(id.clone());
        if let Body::Invoked { event, .. } = &record.body {
            self.apply_temp(event);
        }
    }

    fn claimed(&mut self, owner: &Owner, epoch: u64) {
        self.claim = Some(Claim { owner: owner.clone(), epoch });
        self.epoch = epoch;
        self.attempts += 1;
        // A closed call waits for no body: of another claim, it is nobody's any more.
        for call in self.calls.values_mut().filter(|call| call.closed().is_some()) {
            call.body = None;
        }
    }

    fn requested(
        &self,
        record: &Record,
        invocation: &InvocationId,
        frame: &FrameId,
        event: &Event,
        spec: super::call::Spec,
    ) -> Call {
        let expires = spec.behaviour.expires_after.map(|after| {
            let after = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
            record.time.saturating_add(after)
        });
        Call {
            spec,
            session: self.key.clone(),
            invocation: invocation.clone(),
            frame: frame.clone(),
            sequence: event.sequence,
            index: 0,
            create_time: record.time,
            expire_time: expires,
            phase: Phase::Requested,
            body: None,
            execution: 1,
            attempt: 0,
            untold: None,
            last: None,
            told_at: 0,
        }
    }

    fn returned(&mut self, record: &Record, id: &CallId, execution: u32, outcome: &Outcome) {
        let position = self.head;
        let Some(call) = self.calls.get_mut(id) else {
            return;
        };
        if call.execution == execution {
            call.body = None;
        }
        if call.closed().is_some() || call.held() == Some(Kind::LongRunning) {
            return;
        }
        let response = match outcome {
            Outcome::Value(value) | Outcome::Error(value) => Some(value),
            Outcome::Nothing => None,
        };
        let over = matches!(outcome, Outcome::Error(_)) || !call.spec.behaviour.long_running;
        call.phase = if over {
            Phase::Closed(Closing {
                end: End::Done,
                kind: call.held(),
                by: record.by.clone(),
                time: record.time,
                digest: String::new(),
                position,
            })
        } else {
            Phase::Held(Kind::LongRunning)
        };
        // Whoever has answered already has overtaken a placeholder: it is a record only.
        if over || call.last.is_none() {
            call.untold = response.cloned();
        }
    }

    fn responded(
        &mut self,
        record: &Record,
        invocation: &InvocationId,
        frame: &FrameId,
        event: &Event,
    ) {
        let position = self.head;
        let mut told = false;
        for part in event.function_responses() {
            if let Some(call) = self.calls.get_mut(&part.id) {
                call.untold = None;
                call.last = Some(Told {
                    response: part.response.clone(),
                    by: record.by.clone(),
                    comment: String::new(),
                });
                call.told_at = position;
                told = true;
            }
        }
        if let Some(open) = self.invocations.get_mut(invocation)
            && let Some(frame) = open.frames.get_mut(frame)
        {
            frame.state_delta.clear();
            frame.skip_summarization = false;
            if told && !event.actions.skip_summarization {
                frame.told = position;
            }
        }
        self.go_on(record, invocation);
    }

    fn answered(&mut self, record: &Record, answers: &[Answer]) {
        let (position, epoch) = (self.head, self.epoch);
        for answer in answers {
            let Some(call) = self.calls.get_mut(&answer.call) else {
                continue;
            };
            if let Some(end) = answer.end {
                call.phase = Phase::Closed(Closing {
                    end,
                    kind: call.answerable(),
                    by: record.by.clone(),
                    time: record.time,
                    digest: answer.digest.clone(),
                    position,
                });
                call.untold = None;
                call.body = call.body.filter(|body| body.epoch == epoch);
            }
        }
    }

    /// The answers have become an event: the model is to see them.
    fn tell(&mut self, by: &Principal, answers: &[Answer]) {
        let position = self.head;
        for answer in answers {
            let Some(call) = self.calls.get_mut(&answer.call) else {
                continue;
            };
            call.last = Some(Told {
                response: answer.response.clone(),
                by: by.clone(),
                comment: answer.comment.clone(),
            });
            call.told_at = position;
            if answer.skip_summarization {
                continue;
            }
            if let Some(frame) = self.frame_of_mut(&answer.call) {
                frame.told = position;
            }
            // What somebody decided is always seen by the model: ADK gives it a fresh budget too.
            let invocation = self.calls.get(&answer.call).map(|call| call.invocation.clone());
            if let Some(open) = invocation.and_then(|id| self.invocations.get_mut(&id)) {
                open.llm_calls = 0;
            }
        }
    }

    /// The invocation goes on, if it was paused and no other one runs.
    fn go_on(&mut self, record: &Record, id: &InvocationId) {
        if self.running.is_none()
            && let Some(open) = self.invocations.get_mut(id)
        {
            open.update_time = record.time;
            self.running = Some(id.clone());
        }
    }

    /// The invocation is not the running one any more.
    fn rest(&mut self, id: &InvocationId) {
        if self.running.as_ref() == Some(id) {
            self.running = None;
        }
    }

    fn ended(
        &mut self,
        record: &Record,
        id: &InvocationId,
        how: &Ending,
    ) -> Option<(Invocation, Vec<Call>)> {
        self.rest(id);
        self.queued.retain(|queued| &queued.invocation != id);
        let mut over = self.invocations.remove(id)?;
        over.update_time = record.time;
        over.rested_at = self.head;
        over.ended = Some(how.clone());
        let (gone, kept) = std::mem::take(&mut self.calls)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, call)| &call.invocation == id);
        self.calls = kept;
        Some((over, gone.into_values().collect()))
    }

    fn frame_of_mut(&mut self, call: &CallId) -> Option<&mut Frame> {
        let call = self.calls.get(call)?;
        self.invocations.get_mut(&call.invocation)?.frames.get_mut(&call.frame)
    }

    fn touch_owner_of(&self, call: &CallId, touched: &mut Touched) {
        touched.invocations.extend(self.calls.get(call).map(|call| call.invocation.clone()));
    }

    fn apply_event(&mut self, event: &Event) {
        self.last_sequence = event.sequence;
        for (key, value) in &event.actions.state_delta {
            if is_own_key(key) {
                put(&mut self.state, key, value);
            }
        }
        self.apply_temp(event);
    }

    fn apply_temp(&mut self, event: &Event) {
        if let Some(open) = self.invocations.get_mut(&event.invocation_id) {
            for (key, value) in &event.actions.state_delta {
                if key.starts_with("temp:") {
                    put(&mut open.temp, key, value);
                }
            }
        }
    }
}

/// Whether a key of state is the session's own: it has none of the prefixes `app:`, `user:`, `temp:`.
pub fn is_own_key(key: &str) -> bool {
    !["app:", "user:", "temp:"].iter().any(|prefix| key.starts_with(prefix))
}

/// Sets a key; null removes it.
pub fn put(state: &mut Object, key: &str, value: &Value) {
    if value.is_null() {
        state.remove(key);
    } else {
        state.insert(key.to_owned(), value.clone());
    }
}

impl Frame {
    fn new(agent: AgentName, call: Option<CallId>, told: u64) -> Self {
        Self {
            agent,
            call,
            seen: 0,
            told,
            output: None,
            state_delta: Object::new(),
            skip_summarization: false,
        }
    }
}

impl Invocation {
    fn replied(&mut self, frame: &FrameId, seen: u64, event: &Event) {
        self.llm_calls = self.llm_calls.saturating_add(1);
        self.usage.add(event.usage.unwrap_or_default());
        let Some(frame) = self.frames.get_mut(frame) else {
            return;
        };
        frame.seen = seen;
        // A model that failed is asked once more if something was told since: no answer is lost.
        if !event.error_code.is_empty() && frame.told <= seen {
            self.ending = Some(Ending::Failed {
                code: event.error_code.clone(),
                message: event.error_message.clone(),
            });
        }
        frame.output = match (event.function_calls().next(), &event.content) {
            (None, Some(content)) => Some(content.plain_text()),
            _ => None,
        };
    }
}
