//! Approvals: why a call waits for a person before its body runs, what such a person decides, and
//! what has been noted of it on the way. Pure data; `decide` and `moves` say what follows from it.
//!
//! A *gated* call is one whose body may not run before somebody agrees. What is asked is a call of
//! its own (ADK's `adk_request_confirmation`), the *question*: it is held, answered, expires and is
//! cancelled like every other held call, and what came of it decides on the gated call.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::call::Spec;
use super::content::Object;
use super::id::{CallId, Principal};

/// The name of the calls that ask for a confirmation (ADK).
pub const CONFIRMATION: &str = "adk_request_confirmation";

/// The name of the calls that ask for a credential (ADK). Reserved: nothing asks so yet.
pub const CREDENTIAL: &str = "adk_request_credential";

/// What a gated call says until somebody has decided (ADK's text).
pub const PLACEHOLDER: &str = "This tool call requires confirmation, please approve or reject.";

/// What a gated call says when somebody has refused it (ADK's text).
pub const REJECTED: &str = "This tool call is rejected.";

/// What is told beside it if nobody gave a reason and the tool declares none: without such a word
/// models ask again and again.
pub const DECLINED: &str =
    "The user declined this call. It was not run. Do not try it again unless the user asks for it.";

/// Most notes that the story of one approval keeps; the oldest but the first go first.
pub const MAX_NOTES: usize = 100;

/// Why a call asks, or why it does not have to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// Its tool says so: always, or never.
    Tool,
    /// The agent's default says so.
    AgentDefault,
    /// The tool's condition on the call says so.
    Condition,
    /// A condition or a rule could not be evaluated: then a person is asked.
    RuleFailed,
    /// A rule of the agent's policy forbids the call.
    PolicyDenied,
    /// Somebody has approved the tool, or the tool with these arguments, for good.
    StandingApproval,
    /// A rule of the agent approves it.
    AutoApprovalRule,
    /// Rules approved so many turns in a row that a person has to look.
    AutoApprovalCap,
    /// Another call of the same turn asks, and the agent wants all of them shown.
    Sibling,
    /// Its body asks, from inside.
    Body,
    /// The tool is long-running: the outcome comes from outside.
    LongRunning,
    /// A person is asked for something.
    Input,
    /// It is not known whether its body did its work.
    UnknownOutcome,
}

/// Why, with the rule that says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The kind of reason.
    pub code: Code,
    /// The rule: its name, or its expression; the id of a standing approval. Empty: there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// The revision of the agent's rules, `sha256:` and 16 hex digits; empty if no rule was asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// More for people, such as why a rule could not be evaluated; without arguments of the call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

impl Why {
    /// A reason without a rule.
    pub fn new(code: Code) -> Self {
        Self { code, rule: String::new(), revision: String::new(), detail: String::new() }
    }
}

/// What was found when the call was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Judged {
    /// It runs.
    Run,
    /// A person is asked first.
    Ask,
    /// It never runs.
    Deny,
}

/// What a tool is, whatever its name: a standing approval is for this and no other.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ToolIdentity {
    /// Its name.
    pub name: String,
    /// Where its body comes from: `function`, `declared` or `server`.
    pub source: String,
    /// `sha256:` and 64 hex digits over the schema of its arguments.
    pub schema_digest: String,
}

/// What a deadline does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The call is over, as expired.
    Expire,
    /// The call is over, as denied.
    Deny,
    /// It is noted that nobody has decided yet, and watchers see it.
    Remind,
    /// It is noted for whom it is from here on; whoever had taken it has it no more.
    Escalate {
        /// For whom: free text, such as a group's name.
        to: String,
    },
}

impl Action {
    /// Whether the call is over by it.
    pub fn ends(&self) -> bool {
        matches!(self, Self::Expire | Self::Deny)
    }
}

/// Something that happens by itself if nobody has decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadline {
    /// How long after the question was asked.
    pub after: Duration,
    /// What happens.
    pub action: Action,
}

/// How a call was judged before anything of it ran; recorded with it, never derived again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// What was found.
    pub judged: Judged,
    /// Why.
    pub why: Why,
    /// A rule that approves the call if no standing approval does. `Draft::replied` decides which
    /// of them it is, so that this is in no record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto: Option<Why>,
    /// The tool as it was then. At its start it must still be so.
    pub tool: ToolIdentity,
    /// What is asked; empty: ADK's text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What the model is told if somebody refuses without a reason; empty: a text of ours.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rejection: String,
    /// What happens if nobody decides, in the order of their times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deadlines: Vec<Deadline>,
    /// The whole turn waits until all its questions are decided (MAF); else each call is for
    /// itself (ADK).
    pub barrier: bool,
    /// The questions of one turn are asked one after the other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_at_a_time: bool,
    /// Rules and standing approvals may approve so many turns in a row; 0: they are not asked.
    #[serde(default)]
    pub max_auto: u32,
    /// If another call of its turn asks, this one asks too (the bypass of safe siblings is off).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks_with_siblings: bool,
}

impl Gate {
    /// A person is asked before the call runs.
    pub fn asks(&self) -> bool {
        self.judged == Judged::Ask
    }

    /// A rule or a standing approval approved it.
    pub fn is_auto(&self) -> bool {
        let auto = matches!(self.why.code, Code::StandingApproval | Code::AutoApprovalRule);
        auto && self.judged == Judged::Run
    }
}

/// A question that a body raised from inside (ADK: `tool_context.request_confirmation`).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Raised {
    /// What is asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What whoever decides is to fill in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// What the call says if somebody refuses: its body does not run again then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declined: Option<Object>,
}

/// What a person said to a question, as the body sees it (ADK's `ToolConfirmation`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Confirmation {
    /// Whether it was agreed to; a body is started only if it was.
    pub confirmed: bool,
    /// What came with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

/// What a gated call knows of its questions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Gated {
    /// The newest question about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<CallId>,
    /// What its body raised and nobody was asked yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raised: Option<Raised>,
    /// What the call says if the question that its body raised is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declined: Option<Object>,
    /// What was said to the newest question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<Confirmation>,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Somebody changed its arguments: the model is told with which ones it ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub edited: bool,
}

/// What somebody decided on an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Verdict {
    /// The call may run, or its request is granted.
    Approve,
    /// It may not.
    Deny,
    /// It may not as it is; the model is told what to change.
    RequestChanges,
    /// This is the result.
    SupplyResult,
    /// Whatever became of the body, run it again.
    RunAgain,
}

impl Verdict {
    /// All of them, in their order.
    pub const ALL: [Self; 5] =
        [Self::Approve, Self::Deny, Self::RequestChanges, Self::SupplyResult, Self::RunAgain];

    /// As it is spelled on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approve => "APPROVE",
            Self::Deny => "DENY",
            Self::RequestChanges => "REQUEST_CHANGES",
            Self::SupplyResult => "SUPPLY_RESULT",
            Self::RunAgain => "RUN_AGAIN",
        }
    }
}

/// Another call of the same turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sibling {
    /// The call.
    pub call: CallId,
    /// Its tool.
    pub name: String,
    /// It asks too.
    pub asks: bool,
}

/// Something that happened to an approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// When, in microseconds since 1970.
    pub time: u64,
    /// Who did it.
    pub by: Principal,
    /// What.
    pub what: What,
    /// What they noted for the record.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

/// What happened to an approval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// It was asked.
    Asked,
    /// Somebody told how far it is.
    Progress,
    /// Somebody decided, or answered: then there is no verdict.
    Decided {
        /// The verdict.
        verdict: Option<Verdict>,
        /// What the model is told as the reason.
        reason: String,
        /// The digest of the arguments that it is for; empty if there are none.
        args_digest: String,
    },
    /// Somebody changed the arguments; decisions from before are not for these.
    Edited {
        /// The digest of the arguments before.
        from: String,
        /// The digest of those from here on.
        to: String,
    },
    /// Somebody took it, or gave it to somebody.
    Assigned {
        /// Who has it.
        to: Principal,
        /// Until when, in microseconds since 1970.
        until: u64,
    },
    /// Nobody has it any more.
    Unassigned,
    /// Its deadline was moved.
    Extended {
        /// To when, in microseconds since 1970.
        expire_time: u64,
    },
    /// Nobody had decided for a while.
    Reminded,
    /// It is for others from here on.
    Escalated {
        /// For whom.
        to: String,
    },
    /// It is over without a decision.
    Expired,
    /// It is over with its invocation.
    Cancelled,
}

/// Somebody has it on his desk for a while: nobody else decides on it meanwhile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Who.
    pub assignee: Principal,
    /// Until when, in microseconds since 1970.
    pub until: u64,
}

/// A held call as the inbox shows it; part of the fold, so that the inbox is rebuilt with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// Of a question: the gated call, with the arguments that would run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<Arc<Spec>>,
    /// Why somebody is asked.
    pub why: Why,
    /// What is asked; empty: nothing but the call itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What whoever decides is to fill in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// False: it is asked only because a sibling is.
    pub requires_confirmation: bool,
    /// The other calls of its turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<Sibling>,
    /// What happened so far.
    pub story: Vec<Note>,
    /// Who has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<Lease>,
    /// For whom it is since the last escalation; empty: there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub escalated_to: String,
    /// How it ended, if somebody decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

impl Approval {
    /// Adds to the story, which is bounded: its beginning and its newest part are kept.
    pub fn note(&mut self, note: Note) {
        if self.story.len() >= MAX_NOTES {
            self.story.remove(1);
        }
        self.story.push(note);
    }
}

/// For what a standing approval is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Scope {
    /// For the tool, whatever its arguments.
    Tool,
    /// For the tool with exactly these arguments.
    ToolWithArguments,
}

/// "Always": calls that it is for run without a question, in its session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Its id.
    pub id: String,
    /// The tool.
    pub tool: ToolIdentity,
    /// The digest of the arguments that it is for; none: any. No arguments have a digest too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args_digest: Option<String>,
    /// Those arguments, to be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Object>,
    /// Until when, in microseconds since 1970; none: as long as the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The question with whose approval it was made.
    pub call: CallId,
    /// Who made it.
    pub by: Principal,
    /// When, in microseconds since 1970.
    pub time: u64,
}

impl Standing {
    /// Whether a call may run by it now.
    pub fn covers(&self, tool: &ToolIdentity, args_digest: &str, now: u64) -> bool {
        &self.tool == tool
            && self.args_digest.as_deref().is_none_or(|digest| digest == args_digest)
            && self.until.is_none_or(|until| now < until)
    }
}
