//! The life of one call, from the model's request to its last response.
//!
//! What a call needs to know of its tool is recorded with it when it is made: a later change of the
//! tool never changes a call that exists.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::content::Object;
use super::id::{CallId, FrameId, InvocationId, Principal, SessionKey};
use super::json;

/// How long a body may run unless its tool says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// How often one execution of a READ or IDEMPOTENT body is attempted before somebody is asked.
pub const MAX_ATTEMPTS: u32 = 3;

/// Why a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    /// The tool is long-running: its body ran, the outcome comes from outside.
    LongRunning,
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
    /// The objects that the typed decisions send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decisions: Option<Decisions>,
    /// What may be done when it is not known whether the body ran.
    pub effect: Effect,
    /// How long the body may run.
    pub timeout: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            long_running: false,
            answers: Answers::Once,
            final_when: BTreeMap::new(),
            answer_schema: None,
            expires_after: None,
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
            Phase::Running if self.spec.behaviour.long_running => Some(Kind::LongRunning),
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

    /// The model cannot go on before this call: it has no response, or its body is under way.
    pub fn blocks(&self) -> bool {
        self.at_work() || (self.held().is_some() && self.last.is_none())
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
