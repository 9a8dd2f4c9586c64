//! Decisions on approvals: what somebody says to one, who has it, until when it waits.

use std::time::Duration;

use serde_json::Value;

use super::Runner;
use super::index::InvocationView;
use super::write::Caller;
use crate::session::approval::{Scope, Standing, Verdict};
use crate::session::call::Call;
use crate::session::content::Object;
use crate::session::decide::Answered;
use crate::session::id::{CallId, Principal, SessionKey};
use crate::session::refusal::{Reason, Refusal};

/// What somebody decides on an approval.
#[derive(Debug, Clone, PartialEq)]
pub struct Decide {
    /// The call that asks.
    pub call: CallId,
    /// The verdict.
    pub verdict: Verdict,
    /// The digest of the arguments that were seen.
    pub args_digest: Option<String>,
    /// The revision of the call that was seen.
    pub etag: Option<u64>,
    /// For the model.
    pub reason: String,
    /// For the record.
    pub comment: String,
    /// The result that is supplied; none is null.
    pub result: Option<Object>,
    /// The arguments to run with.
    pub edited: Option<Object>,
    /// What the body is given.
    pub payload: Option<Value>,
    /// Approve what is alike too, and until when.
    pub remember: Option<(Scope, Option<u64>)>,
    /// Run again though the body's deadline is not over.
    pub force: bool,
}

/// What came of a decision, durable.
#[derive(Debug, Clone, PartialEq)]
pub struct DecidedApproval {
    /// The call that asked, as it is now.
    pub call: Call,
    /// What came of it.
    pub outcome: Answered,
    /// The invocation, as it is now.
    pub view: InvocationView,
    /// Follow from behind this event.
    pub after_sequence: u64,
    /// What was remembered.
    pub standing: Option<Standing>,
}

impl Runner {
    /// Decides on an approval; durable when this returns.
    pub async fn decide_approval(
        &self,
        _caller: Caller,
        decide: Decide,
    ) -> Result<DecidedApproval, Refusal> {
        self.approval(&decide.call).await?;
        Err(not_yet())
    }

    /// Gives an approval to somebody for a while; none gives it back.
    pub async fn assign_approval(
        &self,
        _caller: Caller,
        call: CallId,
        _assignee: Option<Principal>,
        _lease: Duration,
        _etag: Option<u64>,
    ) -> Result<Call, Refusal> {
        self.approval(&call).await?;
        Err(not_yet())
    }

    /// Moves the end of an approval.
    pub async fn extend_approval(
        &self,
        _caller: Caller,
        call: CallId,
        _expire_time: u64,
        _etag: Option<u64>,
        _comment: String,
    ) -> Result<Call, Refusal> {
        self.approval(&call).await?;
        Err(not_yet())
    }

    /// Takes a standing approval back.
    pub async fn revoke_standing(
        &self,
        _caller: Caller,
        id: String,
    ) -> Result<(SessionKey, Standing), Refusal> {
        let text = "there is no such standing approval";
        Err(Refusal::new(Reason::StandingApprovalNotFound, text).with("id", id))
    }
}

fn not_yet() -> Refusal {
    Refusal::new(Reason::CallNotHeld, "the call does not wait for an answer")
}
