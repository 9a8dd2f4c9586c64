//! Errors on the wire: a canonical code, one `google.rpc.ErrorInfo` that says what happened in one
//! word, and what else a program can use. Never a stack trace, never the arguments of a call.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::session::refusal::{Reason, Refusal, Violation};

/// The domain of every reason of ours.
const DOMAIN: &str = "countersign";

/// How many wrong fields are listed. Details travel in the trailers, for which many clients and
/// proxies allow 8 KiB only.
const MAX_VIOLATIONS: usize = 20;

/// Longest message, in characters, for the same reason.
const MAX_MESSAGE: usize = 1000;

/// When a request that could not be carried out now may be made again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The canonical code of a reason (contract, section 6).
fn code(reason: Reason) -> Code {
    match reason {
        Reason::SessionNotFound
        | Reason::CallNotFound
        | Reason::AgentNotFound
        | Reason::InvocationNotFound => Code::NotFound,
        Reason::FieldInvalid
        | Reason::CallNameMismatch
        | Reason::InvocationMismatch
        | Reason::MixedMessage
        | Reason::ResponseSchemaViolation
        | Reason::RequestIdReused
        | Reason::CursorInvalid => Code::InvalidArgument,
        Reason::CallAlreadyAnswered
        | Reason::CallNotHeld
        | Reason::CallExpired
        | Reason::CallCancelled
        | Reason::ArgsDigestMismatch
        | Reason::InvocationEnded
        | Reason::SessionQuarantined => Code::FailedPrecondition,
        Reason::SessionExists => Code::AlreadyExists,
        Reason::InvocationRunning => Code::Aborted,
        Reason::CursorExpired => Code::OutOfRange,
        Reason::NotPermitted => Code::PermissionDenied,
        Reason::LimitExceeded | Reason::Overloaded => Code::ResourceExhausted,
        Reason::Draining | Reason::StoreUnavailable => Code::Unavailable,
        Reason::WriteOutcomeUnknown => Code::Unknown,
    }
}

/// A refusal for the wire.
pub(crate) fn status(refusal: Refusal) -> Status {
    let Refusal { reason, mut message, details: metadata, violations } = refusal;
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE) {
        message.truncate(end);
        message.push_str(" ...");
    }
    let metadata: HashMap<_, _> = metadata.into_iter().collect();
    let mut details = ErrorDetails::with_error_info(reason.as_str(), DOMAIN, metadata);
    for Violation { field, rule } in violations.into_iter().take(MAX_VIOLATIONS) {
        details.add_bad_request_violation(field, rule);
    }
    if matches!(reason, Reason::Overloaded | Reason::Draining | Reason::StoreUnavailable) {
        details.set_retry_info(Some(RETRY_AFTER));
    }
    Status::with_error_details(code(reason), message, details)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_its_reason_and_what_is_variable() {
        let refusal =
            Refusal::new(Reason::CallNotHeld, "the call is over").with("call_id", "adk-1");
        let status = status(refusal);
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "the call is over")
        );
        let info = status.get_details_error_info().unwrap();
        assert_eq!((info.domain.as_str(), info.reason.as_str()), ("countersign", "CALL_NOT_HELD"));
        assert_eq!(info.metadata["call_id"], "adk-1");
        assert!(status.get_details_retry_info().is_none());
    }

    #[test]
    fn wrong_fields_are_listed_all_at_once_and_not_without_end() {
        let violation =
            |n| Violation { field: format!("parts[{n}]"), rule: "must not be empty".into() };
        let status = status(Refusal::fields((0..1000).map(violation).collect()));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("parts[0]: must not be empty; parts[1]: "));
        let listed = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(listed.len(), MAX_VIOLATIONS);
        assert!(status.details().len() + status.message().len() < 4096);
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        let status = status(Refusal::new(Reason::Draining, "the server is shutting down"));
        assert_eq!(status.code(), Code::Unavailable);
        let after = status.get_details_retry_info().unwrap().retry_delay;
        assert_eq!(after, Some(RETRY_AFTER));
    }
}
