//! What the domain says no to: a reason that programs read and a sentence for people.

use std::collections::BTreeMap;
use std::fmt;

/// Why something was refused (contract, section 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    SessionNotFound,
    CallNotFound,
    AgentNotFound,
    InvocationNotFound,
    FieldInvalid,
    CallNameMismatch,
    InvocationMismatch,
    MixedMessage,
    ResponseSchemaViolation,
    RequestIdReused,
    CursorInvalid,
    CallAlreadyAnswered,
    CallNotHeld,
    CallExpired,
    CallCancelled,
    ArgsDigestMismatch,
    InvocationEnded,
    SessionQuarantined,
    SessionExists,
    InvocationRunning,
    CursorExpired,
    NotPermitted,
    LimitExceeded,
    Overloaded,
    Draining,
    StoreUnavailable,
    WriteOutcomeUnknown,
}

impl Reason {
    /// The reason as it stands in `google.rpc.ErrorInfo`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SessionNotFound => "SESSION_NOT_FOUND",
            Self::CallNotFound => "CALL_NOT_FOUND",
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
