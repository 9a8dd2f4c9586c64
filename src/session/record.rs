//! The records of a log: everything that ever happened to a session, and the only truth about it.
//!
//! *Facts* may be appended by anyone; *moves* only by the claim's holder. ARCHITECTURE.md has the
//! list with the rule of each.

use serde::{Deserialize, Serialize};

use super::call::{End, Spec};
use super::content::{Event, Object};
use super::id::{
    AgentName, CallId, FrameId, InvocationId, Owner, Principal, SessionKey, SessionUid,
};

/// One entry of a log. Its position is where it stands: 1, 2, 3 ...
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it was decided, in microseconds since 1970 by the store's clock.
    pub time: u64,
    /// Who did it.
    pub by: Principal,
    /// What happened.
    pub body: Body,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Fact: the session began.
    Created {
        /// Its own key.
        uid: SessionUid,
        /// Its names.
        key: SessionKey,
        /// Its first state, without `app:`, `user:` and `temp:` keys.
        state: Object,
    },
    /// Fact: a user's message set an invocation going.
    Invoked {
        /// The invocation.
        invocation: InvocationId,
        /// The root agent.
        agent: AgentName,
        /// How to run it.
        config: RunConfig,
        /// The message.
        event: Event,
    },
    /// Move or fact: a process drives the session from here on. Carried by the append that makes an
    /// unowned session able to move.
    Claimed {
        /// The process.
        owner: Owner,
        /// Numbers the claims of the session, rising.
        epoch: u64,
    },
    /// Move: nothing is left to do; nobody drives the session.
    Released,
    /// Move: a frame of its own works for a call (an agent used as a tool).
    Opened {
        /// The invocation.
        invocation: InvocationId,
        /// The frame.
        frame: FrameId,
        /// Its agent.
        agent: AgentName,
        /// The call that gets the frame's final text.
        call: CallId,
        /// What the frame is told first.
        event: Event,
    },
    /// Move: a model replied, or failed to.
    Replied {
        /// The invocation.
        invocation: InvocationId,
        /// The frame whose model it is.
        frame: FrameId,
        /// The position that its prompt was built from. What came later is untold.
        seen: u64,
        /// The reply, or an error.
        event: Event,
        /// What is known of the calls in it, in part order.
        calls: Vec<Spec>,
    },
    /// Move: a body is started as soon as this is durable.
    Started {
        /// The call.
        call: CallId,
        /// The execution.
        execution: u32,
        /// The attempt of that execution: 1, 2, 3 ...
        attempt: u32,
    },
    /// Fact: a body came back.
    Returned {
        /// The call.
        call: CallId,
        /// The execution that came back.
        execution: u32,
        /// What it gave.
        outcome: Outcome,
        /// Changes of state that it made.
        #[serde(default, skip_serializing_if = "Object::is_empty")]
        state_delta: Object,
        /// It asked that the model is not called after it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        skip_summarization: bool,
    },
    /// Move: what the bodies of a turn gave is told, once all are back.
    Responded {
        /// The invocation.
        invocation: InvocationId,
        /// The frame.
        frame: FrameId,
        /// The responses in call order, and the changes of state; maybe only those.
        event: Event,
    },
    /// Move: it is not known, and cannot be known here, whether a body did its work.
    Lost {
        /// The call, held from here on.
        call: CallId,
        /// Tells so, without content.
        event: Event,
    },
    /// Fact: calls were answered from outside, or closed by the server.
    Answered {
        /// The invocation of all of them.
        invocation: InvocationId,
        /// The answers, each for another call.
        answers: Vec<Answer>,
        /// Another invocation runs: the event has no sequence yet and is placed later.
        queued: bool,
        /// The answers as an event.
        event: Event,
    },
    /// Move (of an invocation that is cancelled meanwhile: fact): a queued answer gets its place.
    Placed {
        /// Its invocation, which goes on.
        invocation: InvocationId,
        /// The answer's event.
        event: Event,
    },
    /// Fact: somebody wants the invocation ended.
    CancelRequested {
        /// The invocation.
        invocation: InvocationId,
    },
    /// Move: only an answer, an expiry or a cancel can move the invocation.
    Paused {
        /// The invocation.
        invocation: InvocationId,
        /// The calls that it waits for, in the order of their requests.
        held: Vec<CallId>,
    },
    /// Move (of a paused invocation: fact): the invocation is over.
    Ended {
        /// The invocation.
        invocation: InvocationId,
        /// How.
        how: Ending,
    },
    /// Fact: a caller changed the state.
    StateChanged {
        /// Carries the change, without content.
        event: Event,
    },
    /// Fact: one event of a history that was made elsewhere; behind `Created` in its batch. It is
    /// history: it makes no call, and changes no state.
    Imported {
        /// The event.
        event: Event,
    },
}

/// What a body gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A response.
    Value(Object),
    /// Nothing: a long-running call is held without a placeholder.
    Nothing,
    /// An error response: the call is over, long-running or not.
    Error(Object),
}

/// One answer from outside, or the server's own word that a call is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The call.
    pub call: CallId,
    /// The response; none is null.
    pub response: Option<Object>,
    /// Closes the call so; none is progress.
    pub end: Option<End>,
    /// Do not call the model for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_summarization: bool,
    /// For the record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
    /// Digest of the content, by which a repeat is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub digest: String,
}

/// How an invocation runs, for its whole life.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Pieces of texts are wanted while models speak.
    pub streaming: bool,
    /// Most model calls between two pauses; 0: without a limit (ADK).
    pub max_llm_calls: u32,
    /// Stands on every event of the invocation.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub custom_metadata: Object,
}

/// How an invocation ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It did what it could.
    Completed,
    /// A model failed, a limit was passed, an agent is gone.
    Failed {
        /// UPPER_SNAKE.
        code: String,
        /// For people.
        message: String,
    },
    /// Somebody wanted it ended.
    Cancelled,
}

impl Body {
    /// The event in the record, if it is one of the conversation's entries.
    pub fn event(&self) -> Option<&Event> {
        match self {
            Self::Invoked { event, .. }
            | Self::Opened { event, .. }
            | Self::Replied { event, .. }
            | Self::Responded { event, .. }
            | Self::Lost { event, .. }
            | Self::Answered { event, queued: false, .. }
            | Self::Placed { event, .. }
            | Self::StateChanged { event }
            | Self::Imported { event } => Some(event),
            Self::Created { .. }
            | Self::Claimed { .. }
            | Self::Released
            | Self::Started { .. }
            | Self::Returned { .. }
            | Self::Answered { queued: true, .. }
            | Self::CancelRequested { .. }
            | Self::Paused { .. }
            | Self::Ended { .. } => None,
        }
    }
}
