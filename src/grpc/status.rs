//! Errors on the wire: a canonical code, one `google.rpc.ErrorInfo` that says what happened in one
//! word, and what else a program can use. Never a stack trace, never the arguments of a call.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::convert::Violation;

/// The domain of every reason of ours.
pub(crate) const DOMAIN: &str = "countersign";

/// How many wrong fields are listed. Details travel in the trailers, for which many clients and
/// proxies allow 8 KiB only.
pub(crate) const MAX_VIOLATIONS: usize = 20;

/// A refusal for a reason of the contract. Everything variable is in the metadata, by key.
pub(crate) fn refuse<'a>(
    code: Code,
    reason: &str,
    message: impl Into<String>,
    metadata: impl IntoIterator<Item = (&'a str, String)>,
) -> Status {
    Status::with_error_details(code, message, details(reason, metadata))
}

/// FIELD_INVALID, with all wrong fields of the request, up to [`MAX_VIOLATIONS`].
pub(crate) fn field_invalid(violations: Vec<Violation>) -> Status {
    let count = violations.len();
    let message = match violations.first() {
        Some(Violation { field, description }) if count == 1 => format!("{field}: {description}"),
        Some(Violation { field, description }) => {
            format!("{field}: {description} (and {} more)", count - 1)
        }
        None => "the request is invalid".to_owned(),
    };
    let mut details = details("FIELD_INVALID", [("violations", count.to_string())]);
    for Violation { field, description } in violations.into_iter().take(MAX_VIOLATIONS) {
        details.add_bad_request_violation(field, description);
    }
    Status::with_error_details(Code::InvalidArgument, message, details)
}

/// LIMIT_EXCEEDED: `limit` is the limit's name in the documentation, `value` what it is set to.
pub(crate) fn limit_exceeded(limit: &str, value: u64, message: impl Into<String>) -> Status {
    let metadata = [("limit", limit.to_owned()), ("value", value.to_string())];
    refuse(Code::ResourceExhausted, "LIMIT_EXCEEDED", message, metadata)
}

/// OVERLOADED: nothing was written; try again after this long.
pub(crate) fn overloaded(message: impl Into<String>, retry_after: Duration) -> Status {
    retry(Code::ResourceExhausted, "OVERLOADED", message, retry_after)
}

/// DRAINING or STORE_UNAVAILABLE: nothing was written; try again after this long.
pub(crate) fn unavailable(
    reason: &str,
    message: impl Into<String>,
    retry_after: Duration,
) -> Status {
    retry(Code::Unavailable, reason, message, retry_after)
}

fn retry(code: Code, reason: &str, message: impl Into<String>, after: Duration) -> Status {
    let mut details = details(reason, []);
    details.set_retry_info(Some(after));
    Status::with_error_details(code, message, details)
}

fn details<'a>(
    reason: &str,
    metadata: impl IntoIterator<Item = (&'a str, String)>,
) -> ErrorDetails {
    let metadata: HashMap<String, String> =
        metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    ErrorDetails::with_error_info(reason, DOMAIN, metadata)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(status: &Status) -> (String, String, HashMap<String, String>) {
        let info = status.get_details_error_info().expect("every error carries ErrorInfo");
        (info.domain, info.reason, info.metadata)
    }

    #[test]
    fn a_refusal_says_its_reason_and_what_is_variable() {
        let metadata = [("call_id", "adk-1".to_owned()), ("state", "DONE".to_owned())];
        let status =
            refuse(Code::FailedPrecondition, "CALL_NOT_HELD", "the call is over", metadata);
        assert_eq!(
            (status.code(), status.message()),
            (Code::FailedPrecondition, "the call is over")
        );
        let (domain, reason, metadata) = reason(&status);
        assert_eq!((domain.as_str(), reason.as_str()), ("countersign", "CALL_NOT_HELD"));
        assert_eq!(metadata["call_id"], "adk-1");
        assert_eq!(metadata["state"], "DONE");
    }

    #[test]
    fn wrong_fields_are_listed_all_at_once() {
        let violation = |n| Violation::new(format!("parts[{n}]"), "must not be empty");
        let status = field_invalid(vec![violation(0), violation(1)]);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "parts[0]: must not be empty (and 1 more)");
        assert_eq!(reason(&status).1, "FIELD_INVALID");
        let listed = status.get_details_bad_request().unwrap().field_violations;
        let fields: Vec<_> = listed.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["parts[0]", "parts[1]"]);
        assert_eq!(listed[0].description, "must not be empty");
    }

    #[test]
    fn the_list_of_wrong_fields_is_bounded() {
        let violations = (0..1000).map(|n| Violation::new(format!("parts[{n}]"), "is wrong"));
        let status = field_invalid(violations.collect());
        let listed = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(listed.len(), MAX_VIOLATIONS);
        assert_eq!(reason(&status).2["violations"], "1000");
    }

    #[test]
    fn what_passes_tells_when_to_come_back() {
        let after = Duration::from_millis(1500);
        let status = unavailable("DRAINING", "the server stops", after);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(after));
        assert_eq!(reason(&status).1, "DRAINING");
        let status = overloaded("too many runs", after);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(after));
    }

    #[test]
    fn a_limit_is_named_with_its_value() {
        let status = limit_exceeded("request_bytes", 4_194_304, "the request is too large");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let (_, reason, metadata) = reason(&status);
        assert_eq!(reason, "LIMIT_EXCEEDED");
        assert_eq!(
            (metadata["limit"].as_str(), metadata["value"].as_str()),
            ("request_bytes", "4194304")
        );
    }
}
