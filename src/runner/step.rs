//! The driver's decisions, pure: what to append, and what to perform, given the session as it was
//! read and what has come back. `drive` is the loop around it; the small model of
//! `tests/all/ownership.rs` walks every interleaving of two of these.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::session::Session;
use crate::session::approval::Raised;
use crate::session::call::Call;
use crate::session::content::Object;
use crate::session::decide::{Back, Reply};
use crate::session::draft::{Draft, Mint};
use crate::session::id::{CallId, FrameId, InvocationId, Owner, Principal};
use crate::session::record::Outcome;

/// A body at work: the call, its execution and the attempt.
pub type BodyKey = (CallId, u32, u32);

/// A model at work: the frame that it speaks in.
pub type ModelKey = (InvocationId, FrameId);

/// Something that was started here and has come back.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// A body.
    Body {
        /// Which one.
        key: BodyKey,
        /// What it gave.
        gave: Gave,
        /// Changes of state that it made.
        state_delta: Object,
        /// It asked that the model is not called after it.
        skip_summarization: bool,
        /// It asks a person before it goes on.
        raised: Option<Raised>,
    },
    /// A model.
    Model {
        /// Which one.
        key: ModelKey,
        /// The position that its prompt was built from.
        seen: u64,
        /// What it said, or code and message of its failure.
        reply: Result<Reply, (String, String)>,
    },
}

/// What is known of a body that came back.
#[derive(Debug, Clone, PartialEq)]
pub enum Gave {
    /// What it gave.
    Outcome(Outcome),
    /// It may have done its work or not.
    Unknown,
    /// It was not run: its start took too long to become durable.
    NotRun,
}

/// What a driver has in its hands.
#[derive(Debug, Clone, PartialEq)]
pub struct Hands {
    /// The process.
    pub owner: Owner,
    /// The number of its claim.
    pub epoch: u64,
    /// Bodies that were started here and are not back.
    pub bodies: BTreeSet<BodyKey>,
    /// Models that were called here and are not back, with the position that they were told.
    pub models: BTreeMap<ModelKey, u64>,
    /// What is back and not yet in the log.
    pub done: VecDeque<Done>,
}

/// What a driver wants appended.
pub enum Decision<'a> {
    /// Nothing: perform what is to be performed, then wait.
    Nothing,
    /// These moves, at the head that the session was read at.
    Append(Draft<'a>),
    /// The claim is not this driver's any more: these facts, if any, and then stop.
    HandIn {
        /// The facts.
        draft: Draft<'a>,
        /// They set an unowned session going, which this process has taken under a new claim.
        claimed: bool,
    },
}

/// What is to be performed now.
#[derive(Debug, Default)]
pub struct Work {
    /// Bodies to start.
    pub bodies: Vec<Call>,
    /// Models to call, with the position that their prompts are built from.
    pub models: Vec<(ModelKey, u64)>,
    /// Models that nobody waits for any more.
    pub abandoned: Vec<ModelKey>,
}

impl Hands {
    /// Empty hands.
    pub fn new(owner: Owner, epoch: u64) -> Self {
        Self {
            owner,
            epoch,
            bodies: BTreeSet::new(),
            models: BTreeMap::new(),
            done: VecDeque::new(),
        }
    }

    /// Whether the claim on the session is this driver's.
    pub fn holds(&self, session: &Session) -> bool {
        let claim = session.claim.as_ref();
        claim.is_some_and(|claim| claim.owner == self.owner && claim.epoch == self.epoch)
    }

    /// What to append, on the session as it was read. Nothing in the hands is changed: `settled`
    /// does that when the append is known to be durable.
    /// With `start` false nothing new is set going: what came back is recorded, and that is all.
    pub fn decide<'a>(
        &self,
        session: &Session,
        now: u64,
        mint: &'a mut (dyn Mint + Send),
        start: bool,
    ) -> Decision<'a> {
        let by = Principal::parse(format!("server:{}", self.owner)).expect("an owner is an id");
        let mut draft = Draft::new(session.clone(), now, by, mint);
        if !self.holds(session) {
            for done in &self.done {
                if let Done::Body { gave: Gave::Outcome(_), .. } = done {
                    hand_in(&mut draft, done);
                }
            }
            let claimed = start && draft.claim_if_free(&self.owner);
            if claimed {
                draft.settle();
            }
            return Decision::HandIn { draft, claimed };
        }
        for done in self.done.iter().filter(|done| recorded(done, start)) {
            hand_in(&mut draft, done);
        }
        if start {
            for lost in draft.lost_bodies() {
                draft.lose(&lost);
            }
            draft.settle();
        }
        if draft.records.is_empty() { Decision::Nothing } else { Decision::Append(draft) }
    }

    /// What was handed in is in the log. What was not stays, so that it is not started again.
    pub fn settled(&mut self, start: bool) {
        self.done.retain(|done| !recorded(done, start));
    }

    /// Something is back and is still to be recorded.
    pub fn any_to_record(&self, start: bool) -> bool {
        self.done.iter().any(|done| recorded(done, start))
    }

    /// What is to be performed, now that the log is as it was read. It counts as started.
    pub fn perform(&mut self, session: &Session) -> Work {
        let mut work = Work::default();
        if !self.holds(session) {
            work.abandoned = std::mem::take(&mut self.models).into_keys().collect();
            return work;
        }
        for call in session.calls.values() {
            if self.starts(call) {
                self.bodies.insert((call.spec.id.clone(), call.execution, call.attempt));
                work.bodies.push(call.clone());
            }
        }
        let wanted = |(invocation, _): &ModelKey| {
            session.running.as_ref() == Some(invocation)
                && session.invocations.get(invocation).is_some_and(|open| open.ending.is_none())
        };
        let gone: Vec<ModelKey> = self.models.keys().filter(|key| !wanted(key)).cloned().collect();
        for key in gone {
            self.models.remove(&key);
            work.abandoned.push(key);
        }
        for key in session.ready_frames() {
            if !self.models.contains_key(&key) && !self.replied(&key) {
                self.models.insert(key.clone(), session.head);
                work.models.push((key, session.head));
            }
        }
        work
    }

    /// Something came back.
    pub fn back(&mut self, done: Done) {
        let known = match &done {
            Done::Body { key, .. } => self.bodies.remove(key),
            Done::Model { key, seen, .. } => {
                let known = self.models.get(key) == Some(seen);
                if known {
                    self.models.remove(key);
                }
                known
            }
        };
        if known {
            self.done.push_back(done);
        }
    }

    /// Whether the body of a call is this driver's to start.
    pub fn starts(&self, call: &Call) -> bool {
        let key = (call.spec.id.clone(), call.execution, call.attempt);
        let mine = call.body.is_some_and(|body| body.epoch == self.epoch);
        mine && !self.bodies.contains(&key) && !self.returned(&key)
    }

    fn returned(&self, key: &BodyKey) -> bool {
        self.done.iter().any(|done| matches!(done, Done::Body { key: k, .. } if k == key))
    }

    fn replied(&self, key: &ModelKey) -> bool {
        self.done.iter().any(|done| matches!(done, Done::Model { key: k, .. } if k == key))
    }
}

/// Whether what came back is recorded now: while nothing new is set going, only what a body gave.
fn recorded(done: &Done, start: bool) -> bool {
    start || matches!(done, Done::Body { gave: Gave::Outcome(_), .. })
}

/// Adds what came back to a draft.
pub(super) fn hand_in(draft: &mut Draft<'_>, done: &Done) {
    match done.clone() {
        Done::Body {
            key: (call, execution, attempt),
            gave,
            state_delta,
            skip_summarization,
            raised,
        } => {
            let open = draft.session.calls.get(&call);
            let mine =
                open.is_some_and(|open| (open.execution, open.attempt) == (execution, attempt));
            match gave {
                Gave::Outcome(outcome) => {
                    let back = Back { outcome, state_delta, skip_summarization, raised };
                    draft.returned(&call, execution, back);
                }
                Gave::Unknown if mine => draft.lose(&call),
                Gave::NotRun if mine => draft.not_run(&call),
                Gave::Unknown | Gave::NotRun => {}
            }
        }
        Done::Model { key: (invocation, frame), seen, reply } => {
            let open = draft.session.invocations.get(&invocation);
            let waits = open.is_some_and(|open| {
                open.ending.is_none() && open.frames.get(&frame).is_some_and(|f| f.seen < seen)
            });
            if !waits {
                return;
            }
            match reply {
                Ok(reply) => draft.replied(&invocation, &frame, seen, reply),
                Err((code, message)) => draft.fail(&invocation, &frame, seen, &code, &message),
            }
        }
    }
}
