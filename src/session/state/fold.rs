//! The fold: what each record changes in a session. It never refuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Claim, Frame, Invocation, Queued, Session, Touched, is_own_key, put};
use crate::session::approval::{Code, Verdict, What};
use crate::session::call::{Body as AtWork, Call, Closing, End, Kind, Phase, Spec, Told, later};
use crate::session::content::{Event, Object, Usage};
use crate::session::id::{AgentName, CallId, FrameId, InvocationId, Owner, Principal};
use crate::session::record::{Answer, Body, Ending, Outcome, Record, RunConfig};

impl Session {
    /// Adds the next record.
    pub fn apply(&mut self, record: &Record, touched: &mut Touched) {
        let mut mine = Touched::default();
        self.change(record, &mut mine);
        for id in &mine.calls {
            if let Some(call) = self.calls.get_mut(id) {
                call.revision = self.head;
            }
        }
        touched.add(mine);
    }

    fn change(&mut self, record: &Record, touched: &mut Touched) {
        self.head += 1;
        self.update_time = record.time;
        if let Some(event) = record.body.event() {
            self.last_sequence = event.sequence;
            if !matches!(record.body, Body::Imported { .. }) {
                self.apply_event(event);
            }
        }
        if !matches!(record.body, Body::Claimed { .. } | Body::Started { .. } | Body::Lost { .. }) {
            self.attempts = 0;
        }
        match &record.body {
            Body::Created { .. } | Body::StateChanged { .. } | Body::Imported { .. } => {}
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
                let failed = !event.error_code.is_empty();
                let unheard = failed && self.decides_since(invocation, frame, *seen);
                if let Some(open) = self.invocations.get_mut(invocation) {
                    open.replied(frame, *seen, event, unheard);
                    let auto = |spec: &Spec| spec.gate.as_ref().is_some_and(|gate| gate.is_auto());
                    open.auto_rounds += u32::from(calls.iter().any(auto));
                }
                let asks = calls.iter().filter_map(|spec| spec.gate.as_ref()).filter(|g| g.asks());
                let barrier = asks.map(|gate| gate.barrier).max();
                for (index, spec) in calls.iter().enumerate() {
                    touched.calls.insert(spec.id.clone());
                    let mut call =
                        self.requested(record, invocation, frame, event, Arc::new(spec.clone()));
                    call.index = u32::try_from(index).unwrap_or(u32::MAX);
                    if spec.gate.as_ref().is_some_and(|gate| gate.asks()) {
                        call.phase = Phase::Gated;
                        call.gated = Some(Box::default());
                    } else if barrier == Some(true) {
                        call.phase = Phase::Waiting;
                    }
                    if call.is_gated() {
                        call.expire_time = None;
                    }
                    self.calls.insert(spec.id.clone(), call);
                }
            }
            Body::Started { call, execution, attempt } => {
                let epoch = self.epoch;
                if let Some(call) = self.calls.get_mut(call) {
                    if call.is_gated() {
                        // Its own deadlines are counted from here on.
                        call.gated.get_or_insert_default();
                        let end = call.spec.behaviour.end();
                        call.expire_time = end.map(|(after, _)| later(record.time, after));
                        // What was told is that somebody is asked: the body tells more.
                        call.last = None;
                    }
                    call.phase = Phase::Running;
                    call.body = Some(AtWork { epoch, time: record.time });
                    call.started = Some(record.time);
                    (call.execution, call.attempt) = (*execution, *attempt);
                    let invocation = call.invocation.clone();
                    if self.running.is_none() {
                        touched.invocations.insert(invocation.clone());
                    }
                    self.go_on(record, &invocation);
                }
                touched.calls.insert(call.clone());
            }
            Body::Returned {
                call,
                execution,
                outcome,
                state_delta,
                skip_summarization,
                raised,
            } => {
                self.returned(record, call, *execution, outcome);
                if let Some(raised) = raised {
                    self.raised(call, outcome, raised);
                }
                if let Some(frame) = self.frame_of_mut(call) {
                    frame.state_delta.extend(state_delta.clone());
                    frame.skip_summarization |= skip_summarization;
                }
                touched.calls.insert(call.clone());
                self.touch_owner_of(call, touched);
            }
            Body::Responded { invocation, frame, event } => {
                if self.running.is_none() {
                    touched.invocations.insert(invocation.clone());
                }
                self.responded(record, invocation, frame, event);
                touched.calls.extend(event.function_responses().map(|part| part.id.clone()));
            }
            Body::Lost { call, event: _ } => {
                if let Some(call) = self.calls.get_mut(call) {
                    call.phase = Phase::Held(Kind::UnknownOutcome);
                    call.body = None;
                }
                self.enter_inbox(record, call, Code::UnknownOutcome);
                touched.calls.insert(call.clone());
                self.touch_owner_of(call, touched);
            }
            Body::Answered { invocation, answers, queued, event } => {
                self.answered(record, answers);
                touched.calls.extend(answers.iter().map(|answer| answer.call.clone()));
                let about = |answer: &Answer| self.calls.get(&answer.call)?.asks().cloned();
                touched.calls.extend(answers.iter().filter_map(about));
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
            Body::Asked { invocation, frame, questions, event } => {
                self.asked(record, invocation, frame, questions, event);
                let ids = questions.iter().flat_map(|question| [&question.id, &question.call]);
                touched.calls.extend(ids.cloned());
                touched.invocations.insert(invocation.clone());
            }
            Body::Refused { call, end, response } => {
                self.refused(record, call, *end, response);
                touched.calls.insert(call.clone());
            }
            Body::RunAgain { call, forced: _, comment } => {
                let note = What::Decided {
                    verdict: Some(Verdict::RunAgain),
                    reason: String::new(),
                    args_digest: String::new(),
                };
                self.note(record, call, note, comment);
                if let Some(call) = self.calls.get_mut(call) {
                    call.phase = Phase::Requested;
                    call.execution += 1;
                    call.attempt = 0;
                    if let Some(approval) = &mut call.approval {
                        approval.verdict = Some(Verdict::RunAgain);
                    }
                    let invocation = call.invocation.clone();
                    touched.invocations.insert(invocation.clone());
                    self.go_on(record, &invocation);
                }
                touched.calls.insert(call.clone());
            }
            Body::Noted { call, what, comment } => {
                self.noted(record, call, what, comment);
                touched.calls.insert(call.clone());
                self.touch_owner_of(call, touched);
            }
            Body::StandingMade { standing } => {
                self.standing.insert(standing.id.clone(), standing.clone());
                touched.standing.push((standing.clone(), false));
            }
            Body::StandingRevoked { id } => {
                touched.standing.extend(self.standing.remove(id).map(|gone| (gone, true)));
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
                    open.auto_rounds = 0;
                }
                self.rest(invocation);
                touched.invocations.insert(invocation.clone());
            }
            Body::Ended { invocation, how } => {
                touched.ended.extend(self.ended(record, invocation, how));
            }
        }
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
            auto_rounds: 0,
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

    pub(super) fn requested(
        &self,
        record: &Record,
        invocation: &InvocationId,
        frame: &FrameId,
        event: &Event,
        spec: Arc<Spec>,
    ) -> Call {
        let expires = spec.behaviour.end().map(|(after, _)| later(record.time, after));
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
            revision: self.head,
            started: None,
            deadlines_done: 0,
            gated: None,
            approval: None,
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
        let outside = matches!(call.held(), Some(Kind::LongRunning | Kind::Input));
        if call.closed().is_some() || outside {
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
            Phase::Held(call.own_kind())
        };
        // Whoever has answered already has overtaken a placeholder: it is a record only.
        if over || call.last.is_none() {
            call.untold = response.cloned();
        }
        let code = match call.held() {
            Some(_) if !call.spec.behaviour.inbox => return,
            Some(Kind::Input) => Code::Input,
            Some(_) => Code::LongRunning,
            None => return,
        };
        self.enter_inbox(record, id, code);
    }

    fn responded(
        &mut self,
        record: &Record,
        invocation: &InvocationId,
        frame: &FrameId,
        event: &Event,
    ) {
        let position = self.head;
        let (mut told, mut placeholders) = (false, false);
        for part in event.function_responses() {
            if let Some(call) = self.calls.get_mut(&part.id) {
                placeholders |= call.placeholder_due();
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
            // With a placeholder among them they are told to the model with what was decided (ADK).
            if told && !placeholders && !event.actions.skip_summarization {
                frame.told = position;
            }
        }
        self.go_on(record, invocation);
    }

    fn answered(&mut self, record: &Record, answers: &[Answer]) {
        let (position, epoch) = (self.head, self.epoch);
        for answer in answers {
            self.decided_by(record, answer);
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
            // What was said to a question is told by the call that it is about.
            let question = call.asks().is_some();
            if let Some(frame) = self.frame_of_mut(&answer.call).filter(|_| !question) {
                frame.told = position;
            }
            // What somebody decided is always seen by the model: ADK gives it a fresh budget too.
            let invocation = self.calls.get(&answer.call).map(|call| call.invocation.clone());
            if let Some(open) = invocation.and_then(|id| self.invocations.get_mut(&id)) {
                open.llm_calls = 0;
                open.auto_rounds = 0;
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

    /// A call that is held shows in its invocation.
    fn touch_owner_of(&self, call: &CallId, touched: &mut Touched) {
        let held = self.calls.get(call).filter(|call| call.held().is_some());
        touched.invocations.extend(held.map(|call| call.invocation.clone()));
    }

    fn apply_event(&mut self, event: &Event) {
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
