//! A session as the fold of its records: what the next decision needs, and no history.
//!
//! `apply` changes and never refuses: whatever is in the log has been decided. Folding the same
//! records gives the same session, from the beginning or from a snapshot.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::Standing;
use super::call::{Call, Phase};
use super::content::{Event, Object, Usage};
use super::id::{
    AgentName, CallId, FrameId, InvocationId, Owner, Principal, SessionKey, SessionUid,
};
use super::record::{Answer, Body, Ending, Record, RunConfig};

mod asking;
mod fold;

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
    /// Turns in a row whose calls rules and standing approvals approved.
    #[serde(default)]
    pub auto_rounds: u32,
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
    /// The calls that need no question any more, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub standing: BTreeMap<String, Standing>,
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
    /// Standing approvals that were made or, if the second is true, revoked.
    pub standing: Vec<(Standing, bool)>,
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
            standing: BTreeMap::new(),
        })
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

    /// The calls of one turn of a model: those that it asked for with this one, in their order.
    pub fn turn(&self, of: &Call) -> Vec<&Call> {
        self.ordered(|call| {
            call.sequence == of.sequence
                && call.frame == of.frame
                && call.invocation == of.invocation
        })
    }

    /// What was said to the question about a gated call: none if nobody was asked, or has answered.
    pub fn decided<'a>(&'a self, call: &'a Call) -> Option<&'a Call> {
        let gated = call.gated.as_ref().filter(|gated| gated.raised.is_none())?;
        self.calls.get(gated.question.as_ref()?).filter(|question| question.closed().is_some())
    }

    /// Whether somebody answered a question of a frame behind a position.
    fn decides_since(&self, invocation: &InvocationId, frame: &FrameId, seen: u64) -> bool {
        let calls = self.frame_calls(invocation, frame);
        let answered = |call: &&Call| {
            let closing = self.decided(call).and_then(|question| question.closed());
            closing.is_some_and(|closing| closing.position > seen)
        };
        calls.iter().any(answered)
    }

    /// The body of a gated call may not start yet: somebody is asked about it, or is to be asked,
    /// or its turn waits for another one's question.
    pub fn waits(&self, call: &Call) -> bool {
        let asks = |call: &&Call| matches!(call.phase, Phase::Gated);
        if !call.is_gated() {
            return false;
        }
        let turn = self.turn(call);
        // A turn that began under a barrier has one for what its bodies ask from inside too.
        let barrier = |call: &&Call| {
            let gate = call.spec.gate.as_ref().filter(|gate| gate.barrier);
            gate.is_some_and(|gate| gate.asks() || asks(call))
        };
        let barrier = matches!(call.phase, Phase::Waiting) || turn.iter().any(barrier);
        let open = |call: &Call| asks(&call) && self.decided(call).is_none();
        if barrier { turn.into_iter().any(open) } else { open(call) }
    }

    /// An invocation that does not run and has a body to start: somebody wants it run again.
    pub fn waits_to_run(&self) -> Option<&InvocationId> {
        let requested = |call: &&Call| matches!(call.phase, Phase::Requested);
        let mut calls = self.calls.values().filter(requested).map(|call| &call.invocation);
        calls.find(|id| self.running.as_ref() != Some(id))
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
            || self.waits_to_run() == Some(invocation)
    }

    /// The calls that have no outcome in the conversation yet: held ones, those that wait for a
    /// person's agreement, and those whose answer waits for its place.
    pub fn pending_calls(&self) -> BTreeSet<CallId> {
        let held = |call: &&Call| call.held().is_some() || call.is_gated();
        let held = self.calls.values().filter(held);
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
            let due = |call: &&Call| {
                call.untold.is_some() || (open.ending.is_none() && call.placeholder_due())
            };
            let any = !frame.state_delta.is_empty() || calls.iter().any(due);
            any && !busy
        });
        telling.map(|(id, _)| id.clone()).collect()
    }

    /// Whether a driver has anything to do.
    pub fn can_move(&self) -> bool {
        let telling = |id: &InvocationId| !self.telling_frames(id).is_empty();
        self.running.is_some()
            || !self.queued.is_empty()
            || self.waits_to_run().is_some()
            || self.invocations.keys().any(telling)
    }
}

impl Touched {
    /// Adds what another record changed.
    fn add(&mut self, other: Self) {
        let Self { invocations, calls, ended, standing } = other;
        self.invocations.extend(invocations);
        self.calls.extend(calls);
        self.ended.extend(ended);
        self.standing.extend(standing);
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
    fn replied(&mut self, frame: &FrameId, seen: u64, event: &Event, unheard: bool) {
        self.llm_calls = self.llm_calls.saturating_add(1);
        self.usage.add(event.usage.unwrap_or_default());
        let Some(frame) = self.frames.get_mut(frame) else {
            return;
        };
        frame.seen = seen;
        // A model that failed is asked once more if something was told since: no answer is lost.
        // What somebody said to a question meanwhile is told with the call that it is about.
        if !event.error_code.is_empty() && frame.told <= seen && !unheard {
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

/// Whether a key of state is the session's own: it has none of the prefixes `app:`, `user:`,
/// `temp:`.
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
