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

/// Most bytes of all wrong fields that are listed, for the same reason; the first always is.
const MAX_VIOLATION_BYTES: usize = 3000;

/// Longest message, in bytes as it is sent: all but printable ASCII takes three for one.
const MAX_MESSAGE: usize = 1000;

/// Longest path of a field, and longest value of a detail, in bytes. Paths have keys of callers in
/// them, which may be long.
const MAX_TEXT: usize = 300;

/// When a request that could not be carried out now may be made again.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// The canonical code of a reason (contract, section 6).
fn code(reason: Reason) -> Code {
    match reason {
        Reason::SessionNotFound
        | Reason::CallNotFound
        | Reason::ApprovalNotFound
        | Reason::StandingApprovalNotFound
        | Reason::AgentNotFound
        | Reason::InvocationNotFound => Code::NotFound,
        Reason::FieldInvalid
        | Reason::CallNameMismatch
        | Reason::InvocationMismatch
        | Reason::MixedMessage
        | Reason::ResponseSchemaViolation
        | Reason::ArgsSchemaViolation
        | Reason::ArgsDigestRequired
        | Reason::RequestIdReused
        | Reason::CursorInvalid => Code::InvalidArgument,
        Reason::CallAlreadyAnswered
        | Reason::CallNotHeld
        | Reason::CallExpired
        | Reason::CallCancelled
        | Reason::ConfirmationRequired
        | Reason::ToolChanged
        | Reason::VerdictNotAllowed
        | Reason::ApprovalClaimed
        | Reason::ArgsDigestMismatch
        | Reason::InvocationEnded
        | Reason::SessionQuarantined => Code::FailedPrecondition,
        Reason::SessionExists => Code::AlreadyExists,
        Reason::InvocationRunning | Reason::EtagMismatch => Code::Aborted,
        Reason::CursorExpired => Code::OutOfRange,
        Reason::NotPermitted | Reason::PolicyDenied => Code::PermissionDenied,
        Reason::LimitExceeded | Reason::Overloaded => Code::ResourceExhausted,
        Reason::Draining | Reason::StoreUnavailable => Code::Unavailable,
        Reason::WriteOutcomeUnknown => Code::Unknown,
    }
}

/// A refusal for the wire.
pub(crate) fn status(refusal: Refusal) -> Status {
    let Refusal { reason, message, details: metadata, violations } = refusal;
    let sent = |c: char| if c == ' ' || c.is_ascii_graphic() { 1 } else { 3 * c.len_utf8() };
    let message = cut(message, MAX_MESSAGE, sent);
    let metadata: HashMap<_, _> = metadata
        .into_iter()
        .map(|(name, value)| (name, cut(value, MAX_TEXT, char::len_utf8)))
        .collect();
    let mut details = ErrorDetails::with_error_info(reason.as_str(), DOMAIN, metadata);
    let mut room = MAX_VIOLATION_BYTES;
    for (n, Violation { field, rule }) in violations.into_iter().take(MAX_VIOLATIONS).enumerate() {
        let (field, rule) =
            (cut(field, MAX_TEXT, char::len_utf8), cut(rule, MAX_TEXT, char::len_utf8));
        let Some(rest) = room.checked_sub(field.len() + rule.len()).or((n == 0).then_some(0))
        else {
            break;
        };
        room = rest;
        details.add_bad_request_violation(field, rule);
    }
    if reason.wrote_nothing() {
        details.set_retry_info(Some(RETRY_AFTER));
    }
    Status::with_error_details(code(reason), message, details)
}

/// The text, or as much of its beginning as has this size.
fn cut(mut text: String, most: usize, size: impl Fn(char) -> usize) -> String {
    let mut total = 0;
    let over = text.char_indices().find(|(_, c)| {
        total += size(*c);
        total > most
    });
    if let Some((end, _)) = over {
        text.truncate(end);
        text.push_str(" ...");
    }
    text
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

    /// `docs/errors.md` has a row for each reason, with its code, and says truly which may pass.
    #[test]
    fn the_page_of_errors_has_every_reason() {
        let page = include_str!("../../docs/errors.md");
        let rows =
            page.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 5);
        let cells =
            |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let told: Vec<_> = rows.map(cells).collect();
        assert_eq!(told.len(), Reason::ALL.len());
        for reason in Reason::ALL {
            let name = format!("`{}`", reason.as_str());
            let row = told.iter().find(|row| row[1] == name).unwrap_or_else(|| panic!("{name}"));
            let status = status(Refusal::new(reason, "no"));
            let code = format!("{:?}", status.code()).to_ascii_uppercase();
            assert_eq!(row[2].replace('_', ""), code, "{name}");
            let later = status.get_details_retry_info().is_some();
            assert_eq!(row[4] == "later", later, "{name}");
        }
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        let status = status(Refusal::new(Reason::Draining, "the server is shutting down"));
        assert_eq!(status.code(), Code::Unavailable);
        let after = status.get_details_retry_info().unwrap().retry_delay;
        assert_eq!(after, Some(RETRY_AFTER));
    }
}
