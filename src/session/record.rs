//! The records of a log: everything that ever happened to a session, and the only truth about it.
//!
//! *Facts* may be appended by anyone; *moves* only by the claim's holder. ARCHITECTURE.md has the
//! list with the rule of each.

use serde::{Deserialize, Serialize};

use super::approval::{Raised, Standing, Verdict, Why};
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
        /// It asks a person before it goes on: what it gave is told, and it is run again when
        /// somebody agrees.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        raised: Option<Raised>,
    },
    /// Move: a person is asked whether calls may run. Each question is a call of its own.
    Asked {
        /// The invocation.
        invocation: InvocationId,
        /// The frame.
        frame: FrameId,
        /// The questions, in the order of their calls in the event.
        questions: Vec<Question>,
        /// The questions as calls of `adk_request_confirmation`.
        event: Event,
    },
    /// Move: a gated call is not run: by a person's word, its deadline, or the agent's policy.
    Refused {
        /// The call.
        call: CallId,
        /// How it ends.
        end: End,
        /// What the model is told.
        response: Object,
    },
    /// Fact: somebody wants the body of a call of unknown outcome run again, under a new key.
    RunAgain {
        /// The call.
        call: CallId,
        /// Its body may still have been at work.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        forced: bool,
        /// For the record.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        comment: String,
    },
    /// Fact: something that closes no call happened to an approval.
    Noted {
        /// The call that is to be answered.
        call: CallId,
        /// What.
        what: Noted,
        /// For the record.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        comment: String,
    },
    /// Fact: calls of a tool need no question any more.
    StandingMade {
        /// For which calls.
        standing: Standing,
    },
    /// Fact: they do again.
    StandingRevoked {
        /// The standing approval.
        id: String,
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

/// A question to a person: a call that asks about another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Its id, which an answer names.
    pub id: CallId,
    /// The gated call.
    pub call: CallId,
    /// Why it is asked.
    pub why: Why,
}

/// What happened to an approval that goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Noted {
    /// Somebody has it for a while.
    Assigned {
        /// Who.
        to: Principal,
        /// Until when, in microseconds since 1970.
        until: u64,
    },
    /// Nobody has it any more.
    Unassigned,
    /// Its deadline is another one.
    Extended {
        /// In microseconds since 1970.
        expire_time: u64,
    },
    /// The next deadline passed, and reminds.
    Reminded,
    /// The next deadline passed, and it is for others.
    Escalated {
        /// For whom.
        to: String,
    },
}

/// Arguments that somebody put in the place of a gated call's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Edited {
    /// The gated call.
    pub call: CallId,
    /// The effective arguments from here on.
    pub args: Object,
    /// Their digest.
    pub args_digest: String,
    /// How they were judged.
    pub why: Why,
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
    /// What it decides, if it decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// Why, for the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Of an approved question: with which arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edited: Option<Edited>,
}

impl Answer {
    /// The server's own word that a call is over.
    pub fn closing(call: CallId, response: Object, end: End) -> Self {
        Self {
            call,
            response: Some(response),
            end: Some(end),
            skip_summarization: false,
            comment: String::new(),
            digest: String::new(),
            verdict: None,
            reason: String::new(),
            edited: None,
        }
    }
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
            | Self::Asked { event, .. }
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
            | Self::Refused { .. }
            | Self::RunAgain { .. }
            | Self::Noted { .. }
            | Self::StandingMade { .. }
            | Self::StandingRevoked { .. }
            | Self::Answered { queued: true, .. }
            | Self::CancelRequested { .. }
            | Self::Paused { .. }
            | Self::Ended { .. } => None,
        }
    }
}
