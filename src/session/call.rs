//! The life of one call, from the model's request to its last response.
//!
//! What a call needs to know of its tool is recorded with it when it is made: a later change of the
//! tool never changes a call that exists.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::approval::{Action, Approval, Deadline, Gate, Gated, Verdict};
use super::content::Object;
use super::id::{CallId, FrameId, InvocationId, Principal, SessionKey};
use super::json;

/// How long a body may run unless its tool says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How often one execution of a READ or IDEMPOTENT body is attempted before somebody is asked.
pub const MAX_ATTEMPTS: u32 = 3;

/// A time, so much later.
pub fn later(time: u64, by: Duration) -> u64 {
    time.saturating_add(u64::try_from(by.as_micros()).unwrap_or(u64::MAX))
}

/// Why a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    /// The tool is long-running: its body ran, the outcome comes from outside.
    LongRunning,
    /// It asks a person whether another call may run.
    Confirmation,
    /// It asks a person for something.
    Input,
    /// A body was started, no definite answer came, and none can come any more.
    UnknownOutcome,
}

/// What an answer without `will_continue` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Answers {
    /// The first one is final.
    Once,
    /// It is told to the model, and the call stays held, unless `final_when` matches (ADK).
    Many,
}

/// What may be done when it is not known whether a body ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Effect {
    /// It only reads: run it again freely.
    Read,
    /// It can be run again with the same key.
    Idempotent,
    /// It must not be run again: somebody is asked what happened.
    Once,
}

/// The objects that the typed decisions on a long-running call send.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// Sent when it is approved.
    pub approve: Object,
    /// Sent when it is denied.
    pub deny: Object,
}

/// How a tool's calls behave; recorded with each call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Behaviour {
    /// The outcome comes from outside, after the body gave a placeholder or nothing.
    pub long_running: bool,
    /// What an answer without `will_continue` means.
    pub answers: Answers,
    /// An answer is final if each of these keys holds one of the listed values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub final_when: BTreeMap<String, Vec<Value>>,
    /// JSON schema that final answers must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_schema: Option<Value>,
    /// A call that nobody answered for so long ends as expired; counted from its request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<Duration>,
    /// What else happens if nobody answers, in the order of their times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deadlines: Vec<Deadline>,
    /// A person is asked for something: an answer is never null (`Kind::Input`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub input: bool,
    /// Its held calls are approvals, which people find in their inbox.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inbox: bool,
    /// The objects that the typed decisions send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decisions: Option<Decisions>,
    /// What may be done when it is not known whether the body ran.
    pub effect: Effect,
    /// How long the body may run.
    pub timeout: Duration,
}

impl Behaviour {
    /// How long a call may wait, and whether it is denied then (else it expires).
    pub fn end(&self) -> Option<(Duration, bool)> {
        let end = self.deadlines.iter().find(|deadline| deadline.action.ends());
        let end = end.map(|deadline| (deadline.after, deadline.action == Action::Deny));
        end.or(self.expires_after.map(|after| (after, false)))
    }
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            long_running: false,
            answers: Answers::Once,
            final_when: BTreeMap::new(),
            answer_schema: None,
            expires_after: None,
            deadlines: Vec::new(),
            input: false,
            inbox: false,
            decisions: None,
            effect: Effect::Once,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// What the model asked for and what was found when it was judged; part of the reply's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// The id that the server issued.
    pub id: CallId,
    /// The model's own id for it, which goes back to that model only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// The tool's name.
    pub name: String,
    /// The effective arguments: these run.
    pub args: Object,
    /// `sha256:` and 64 hex digits over the effective arguments and the name.
    pub args_digest: String,
    /// How the call behaves.
    pub behaviour: Behaviour,
    /// How it was judged, if its tool or agent says anything of approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Box<Gate>>,
    /// The response to give without running anything: an unknown tool, arguments that fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Object>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum End {
    /// It has its outcome.
    Done,
    /// Somebody refused it, or the agent's policy did; its body never started.
    Denied,
    /// Its deadline passed before anyone answered.
    Expired,
    /// Its invocation was cancelled, or failed.
    Cancelled,
}

/// Who closed a call, when and with what.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Closing {
    /// How it ended.
    pub end: End,
    /// What it was held as, or could have been answered as; none if it waited for nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// By whom: a person, `tool:NAME`, or `server:...`.
    pub by: Principal,
    /// When, in microseconds since 1970.
    pub time: u64,
    /// Digest of the answer's content, by which a repeat is known; empty if no answer closed it.
    pub digest: String,
    /// Position of the record that closed it.
    pub position: u64,
}

/// Where a call is in its life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Its body has not started.
    Requested,
    /// Others of its turn ask, and it waits with them.
    Waiting,
    /// A person is asked before its body may start.
    Gated,
    /// Its body is under way, here or in a frame of its own.
    Running,
    /// It waits for somebody outside.
    Held(Kind),
    /// It is over.
    Closed(Closing),
}

/// A body at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// The claim under which it was started; a body of an older claim is lost.
    pub epoch: u64,
    /// When its start was decided, in microseconds since 1970.
    pub time: u64,
}

/// The last thing that was told of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The response; none is null.
    pub response: Option<Object>,
    /// By whom.
    pub by: Principal,
    /// What they noted for the record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

/// One call as the fold of its records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// What was asked.
    pub spec: Arc<Spec>,
    /// Whose session.
    pub session: SessionKey,
    /// Its invocation.
    pub invocation: InvocationId,
    /// Its frame.
    pub frame: FrameId,
    /// Sequence of the event that requested it.
    pub sequence: u64,
    /// Its place among the calls of that event: 0, 1, 2 ...
    pub index: u32,
    /// When it was requested, in microseconds since 1970.
    pub create_time: u64,
    /// From when on it can no longer be answered, in microseconds since 1970.
    pub expire_time: Option<u64>,
    /// Where it is.
    pub phase: Phase,
    /// The body at work, if there is one; it may outlive the call.
    pub body: Option<Body>,
    /// Which execution this is: 1, and one more each time somebody has it run again.
    pub execution: u32,
    /// Attempts of this execution so far; they share the idempotency key.
    pub attempt: u32,
    /// What its body gave and no event has told yet.
    pub untold: Option<Object>,
    /// What was told of it last.
    pub last: Option<Told>,
    /// Position of the record that told it; 0 if nothing was told.
    pub told_at: u64,
    /// Position of the last record that changed the call.
    #[serde(default)]
    pub revision: u64,
    /// When its body was started last, in microseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// How many of its deadlines have done their work.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub deadlines_done: usize,
    /// What it knows of its questions, if somebody is asked before its body may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gated: Option<Box<Gated>>,
    /// The call as the inbox shows it, if it is an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Box<Approval>>,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Call {
    /// Why it is held, if it is.
    pub fn held(&self) -> Option<Kind> {
        match self.phase {
            Phase::Held(kind) => Some(kind),
            _ => None,
        }
    }

    /// As what it can be answered from outside, if it can: it is held, or a long-running body is at
    /// work.
    pub fn answerable(&self) -> Option<Kind> {
        match self.phase {
            Phase::Held(kind) => Some(kind),
            Phase::Running if self.spec.behaviour.long_running => Some(self.own_kind()),
            _ => None,
        }
    }

    /// How it ended, if it did.
    pub fn closed(&self) -> Option<&Closing> {
        match &self.phase {
            Phase::Closed(closing) => Some(closing),
            _ => None,
        }
    }

    /// Its body has yet to come back, or a frame of its own has yet to say its last.
    pub fn at_work(&self) -> bool {
        self.body.is_some() || matches!(self.phase, Phase::Requested | Phase::Running)
    }

    /// Its body may not start yet: a person is asked about it, or about others of its turn.
    pub fn is_gated(&self) -> bool {
        matches!(self.phase, Phase::Gated | Phase::Waiting)
    }

    /// The call that it asks about, if it is a question.
    pub fn asks(&self) -> Option<&CallId> {
        Some(&self.approval.as_ref()?.about.as_ref()?.id)
    }

    /// Its placeholder is to be told: it asks, of itself and not from inside its body, and has no
    /// response.
    pub fn placeholder_due(&self) -> bool {
        matches!(self.phase, Phase::Gated) && self.last.is_none() && self.untold.is_none()
    }

    /// As what it is held when its body is back without an outcome.
    pub fn own_kind(&self) -> Kind {
        if self.spec.behaviour.input { Kind::Input } else { Kind::LongRunning }
    }

    /// The next thing that happens by itself, and when, in microseconds since 1970; without the end
    /// of the call.
    pub fn next_deadline(&self) -> Option<(u64, &Action)> {
        let mut notes = self.spec.behaviour.deadlines.iter().filter(|d| !d.action.ends());
        let next = notes.nth(self.deadlines_done)?;
        let begin = self.gated.as_ref().and(self.started).unwrap_or(self.create_time);
        Some((later(begin, next.after), &next.action))
    }

    /// When something happens to it by itself, in microseconds since 1970.
    pub fn due(&self) -> Option<u64> {
        // While somebody is asked about it, the question has the deadline.
        if self.closed().is_some() || self.is_gated() {
            return None;
        }
        let next = self.next_deadline().map(|(time, _)| time);
        next.into_iter().chain(self.expire_time).min()
    }

    /// What can be decided on it, if it is held.
    pub fn allowed_verdicts(&self) -> &'static [Verdict] {
        use Verdict::{Approve, Deny, RequestChanges, RunAgain, SupplyResult};
        match self.held() {
            Some(Kind::Confirmation) => &[Approve, Deny, RequestChanges],
            Some(Kind::LongRunning) if self.spec.behaviour.decisions.is_some() => {
                &[Approve, Deny, SupplyResult]
            }
            Some(Kind::LongRunning) => &[SupplyResult],
            Some(Kind::Input) => &[SupplyResult, Deny],
            Some(Kind::UnknownOutcome) => &[SupplyResult, RunAgain],
            None => &[],
        }
    }

    /// The model cannot go on before this call: it has no response, or its body is under way.
    pub fn blocks(&self) -> bool {
        let untold = match self.held() {
            None | Some(Kind::Confirmation) => false,
            // What it said while somebody was asked about it is not how it went.
            Some(Kind::UnknownOutcome) => self.last.is_none() || self.gated.is_some(),
            Some(Kind::LongRunning | Kind::Input) => self.last.is_none(),
        };
        self.at_work() || untold
    }

    /// The key that all attempts of the present execution share: `call id/execution`.
    pub fn idempotency_key(&self) -> String {
        format!("{}/{}", self.spec.id, self.execution)
    }

    /// Whether an answer closes the call (contract: `will_continue`, else as the tool declares).
    pub fn is_final(&self, response: Option<&Object>, will_continue: Option<bool>) -> bool {
        if let Some(more) = will_continue {
            return !more;
        }
        if self.held() == Some(Kind::UnknownOutcome) {
            return true;
        }
        let behaviour = &self.spec.behaviour;
        match behaviour.answers {
            Answers::Once => true,
            Answers::Many => {
                let matches = |(key, values): (&String, &Vec<Value>)| {
                    let given = response.and_then(|response| response.get(key));
                    given.is_some_and(|given| values.iter().any(|value| json::same(value, given)))
                };
                !behaviour.final_when.is_empty() && behaviour.final_when.iter().all(matches)
            }
        }
    }
}
