//! What the domain says no to: a reason that programs read and a sentence for people.

use std::collections::BTreeMap;
use std::fmt;

/// Why something was refused (contract, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There is no such session, or the caller may not know of it.
    SessionNotFound,
    /// There is no such call, or it is of another app, user or session than was said.
    CallNotFound,
    /// There is no such approval, or the caller may not know of it.
    ApprovalNotFound,
    /// There is no such standing approval, or the caller may not know of it.
    StandingApprovalNotFound,
    /// No agent of this name is served.
    AgentNotFound,
    /// There is no such invocation, or the caller may not know of it.
    InvocationNotFound,
    /// A field breaks its rule; the violations name each of them.
    FieldInvalid,
    /// An answer has the id of a call, and another tool's name.
    CallNameMismatch,
    /// The call is of another invocation than was said.
    InvocationMismatch,
    /// A message mixes answers with text, or answers calls of two invocations.
    MixedMessage,
    /// A final answer does not match the schema that its tool declares.
    ResponseSchemaViolation,
    /// Changed arguments do not match the schema of their tool.
    ArgsSchemaViolation,
    /// A decision on arguments does not say which ones were seen.
    ArgsDigestRequired,
    /// The tool is not there any more, or is another one than when the call was made.
    ToolChanged,
    /// The request's mark was used before, for another request.
    RequestIdReused,
    /// A cursor or page token is none of ours, or is for another filter.
    CursorInvalid,
    /// Another answer was first, and stands.
    CallAlreadyAnswered,
    /// The call does not wait for an answer.
    CallNotHeld,
    /// The call's deadline is over.
    CallExpired,
    /// The call was cancelled.
    CallCancelled,
    /// The call waits for a person's agreement, and what asks for it is to be answered.
    ConfirmationRequired,
    /// This decision cannot be made on such a call, or not yet.
    VerdictNotAllowed,
    /// Somebody else has the approval on his desk.
    ApprovalClaimed,
    /// The call has other arguments than those the answer is for.
    ArgsDigestMismatch,
    /// The invocation has ended.
    InvocationEnded,
    /// The session cannot be read or driven by this server; all others can.
    SessionQuarantined,
    /// There is a session of this name.
    SessionExists,
    /// An invocation of the session runs: try again when it has ended or paused.
    InvocationRunning,
    /// The approval is not as it was when the caller read it.
    EtagMismatch,
    /// What the cursor points behind is no longer known: begin with a new snapshot.
    CursorExpired,
    /// The caller has no right to do this.
    NotPermitted,
    /// A rule of the agent's policy forbids what was asked for.
    PolicyDenied,
    /// The request, or what it asks for, is larger than a limit; the details say which.
    LimitExceeded,
    /// Too much waits already; nothing was written, try again.
    Overloaded,
    /// The server is shutting down; nothing was written, try again.
    Draining,
    /// The store is not available; nothing was written, try again.
    StoreUnavailable,
    /// Nobody knows whether it was written: repeat it with the same mark.
    WriteOutcomeUnknown,
}

impl Reason {
    /// Whether it says that nothing was written and that the request can be made again.
    pub fn wrote_nothing(self) -> bool {
        matches!(self, Self::Overloaded | Self::Draining | Self::StoreUnavailable)
    }

    /// All reasons, in their order.
    pub const ALL: [Self; 37] = [
        Self::SessionNotFound,
        Self::CallNotFound,
        Self::ApprovalNotFound,
        Self::StandingApprovalNotFound,
        Self::AgentNotFound,
        Self::InvocationNotFound,
        Self::FieldInvalid,
        Self::CallNameMismatch,
        Self::InvocationMismatch,
        Self::MixedMessage,
        Self::ResponseSchemaViolation,
        Self::ArgsSchemaViolation,
        Self::ArgsDigestRequired,
        Self::ToolChanged,
        Self::RequestIdReused,
        Self::CursorInvalid,
        Self::CallAlreadyAnswered,
        Self::CallNotHeld,
        Self::CallExpired,
        Self::CallCancelled,
        Self::ConfirmationRequired,
        Self::VerdictNotAllowed,
        Self::ApprovalClaimed,
        Self::ArgsDigestMismatch,
        Self::InvocationEnded,
        Self::SessionQuarantined,
        Self::SessionExists,
        Self::InvocationRunning,
        Self::EtagMismatch,
        Self::CursorExpired,
        Self::NotPermitted,
        Self::PolicyDenied,
        Self::LimitExceeded,
        Self::Overloaded,
        Self::Draining,
        Self::StoreUnavailable,
        Self::WriteOutcomeUnknown,
    ];

    /// The reason as it stands in `google.rpc.ErrorInfo`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SessionNotFound => "SESSION_NOT_FOUND",
            Self::CallNotFound => "CALL_NOT_FOUND",
            Self::ApprovalNotFound => "APPROVAL_NOT_FOUND",
            Self::StandingApprovalNotFound => "STANDING_APPROVAL_NOT_FOUND",
            Self::ArgsSchemaViolation => "ARGS_SCHEMA_VIOLATION",
            Self::ArgsDigestRequired => "ARGS_DIGEST_REQUIRED",
            Self::ConfirmationRequired => "CONFIRMATION_REQUIRED",
            Self::VerdictNotAllowed => "VERDICT_NOT_ALLOWED",
            Self::ApprovalClaimed => "APPROVAL_CLAIMED",
            Self::EtagMismatch => "ETAG_MISMATCH",
            Self::ToolChanged => "TOOL_CHANGED",
            Self::PolicyDenied => "POLICY_DENIED",
            Self::AgentNotFound => "AGENT_NOT_FOUND",
            Self::InvocationNotFound => "INVOCATION_NOT_FOUND",
            Self::FieldInvalid => "FIELD_INVALID",
            Self::CallNameMismatch => "CALL_NAME_MISMATCH",
            Self::InvocationMismatch => "INVOCATION_MISMATCH",
            Self::MixedMessage => "MIXED_MESSAGE",
            Self::ResponseSchemaViolation => "RESPONSE_SCHEMA_VIOLATION",
            Self::RequestIdReused => "REQUEST_ID_REUSED",
            Self::CursorInvalid => "CURSOR_INVALID",
            Self::CallAlreadyAnswered => "CALL_ALREADY_ANSWERED",
            Self::CallNotHeld => "CALL_NOT_HELD",
            Self::CallExpired => "CALL_EXPIRED",
            Self::CallCancelled => "CALL_CANCELLED",
            Self::ArgsDigestMismatch => "ARGS_DIGEST_MISMATCH",
            Self::InvocationEnded => "INVOCATION_ENDED",
            Self::SessionQuarantined => "SESSION_QUARANTINED",
            Self::SessionExists => "SESSION_EXISTS",
            Self::InvocationRunning => "INVOCATION_RUNNING",
            Self::CursorExpired => "CURSOR_EXPIRED",
            Self::NotPermitted => "NOT_PERMITTED",
            Self::LimitExceeded => "LIMIT_EXCEEDED",
            Self::Overloaded => "OVERLOADED",
            Self::Draining => "DRAINING",
            Self::StoreUnavailable => "STORE_UNAVAILABLE",
            Self::WriteOutcomeUnknown => "WRITE_OUTCOME_UNKNOWN",
        }
    }
}

/// One fault of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field's path, such as `new_message.parts[0].text`.
    pub field: String,
    /// The rule that it breaks.
    pub rule: String,
}

/// A refusal: nothing was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// For people; without arguments or contents.
    pub message: String,
    /// Everything variable, by name.
    pub details: BTreeMap<String, String>,
    /// The faults of fields, for those reasons that are about fields.
    pub violations: Vec<Violation>,
}

impl Refusal {
    /// A refusal with a sentence.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message, details: BTreeMap::new(), violations: Vec::new() }
    }

    /// A fault of one field.
    pub fn field(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self::fields(vec![Violation { field: field.into(), rule: rule.into() }])
    }

    /// Faults of fields, all at once.
    pub fn fields(violations: Vec<Violation>) -> Self {
        let told: Vec<String> =
            violations.iter().map(|v| format!("{}: {}", v.field, v.rule)).collect();
        let mut refusal = Self::new(Reason::FieldInvalid, told.join("; "));
        if let Some(first) = violations.first() {
            refusal = refusal.with("field", &first.field);
        }
        refusal.violations = violations;
        refusal
    }

    /// Adds a detail.
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.details.insert(name.to_owned(), value.to_string());
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.as_str(), self.message)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reasons_are_listed() {
        for (place, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
        }
        assert_eq!(Reason::ALL.last(), Some(&Reason::WriteOutcomeUnknown));
    }
}
