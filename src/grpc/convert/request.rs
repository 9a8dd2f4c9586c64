//! Requests, on their way in: each is taken apart, all its faults are told at once.

use std::collections::BTreeSet;

use serde_json::Value;

use super::content::{read_content, read_function_response};
use super::json::object_from_pb;
use super::{Faults, Refusal};
use crate::proto::{v1 as pb, wkt};
use crate::runner::index::State;
use crate::runner::{Find, InvocationFilter, NewSession, Run, Submission};
use crate::session::content::Object;
use crate::session::decide::{Incoming, Incomings};
use crate::session::id::{AppName, InvocationId, RequestId, SessionId, SessionKey, UserId};
use crate::session::json::{self, MAX_DEPTH};

/// Longest comment, in bytes.
const MAX_COMMENT_BYTES: usize = 4096;

/// Largest metadata of a run, in bytes of JSON: it stands on every event.
const MAX_METADATA_BYTES: usize = 8 * 1024;

/// Keys of metadata that begin so are ADK's own.
const INTERNAL: &str = "__adk_internal_";

/// An optional object; none is an empty one.
pub(super) fn object(
    field: &str,
    object: Option<wkt::Struct>,
    faults: &mut Faults,
) -> Option<Object> {
    match object {
        Some(object) => object_from_pb(field, object, faults),
        None => Some(Object::new()),
    }
}

/// The parts of the key of a session.
pub(crate) fn read_key(
    app: String,
    user: String,
    session: String,
    faults: &mut Faults,
) -> Option<SessionKey> {
    let app = faults.id("app_name", app, AppName::parse);
    let user = faults.id("user_id", user, UserId::parse);
    let id = faults.id("session_id", session.trim().to_owned(), SessionId::parse);
    Some(SessionKey { app: app?, user: user?, id: id? })
}

/// The key of a session alone.
pub(crate) fn key(app: String, user: String, session: String) -> Result<SessionKey, Refusal> {
    let mut faults = Faults::new();
    let key = read_key(app, user, session, &mut faults);
    faults.finish(key)
}

/// The mark of a request; empty is none.
pub(crate) fn read_mark(request_id: &str, faults: &mut Faults) -> Option<RequestId> {
    faults.optional_id("request_id", request_id.to_owned(), RequestId::parse)
}

/// A count that may not be negative.
pub(crate) fn count(field: &str, number: i64, faults: &mut Faults) -> u64 {
    u64::try_from(number).unwrap_or_else(|_| {
        faults.add(field, "must not be negative");
        0
    })
}

/// How RunAsync's stream behaves at a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnPause {
    /// It ends.
    Detach,
    /// It waits.
    Follow,
}

/// RunAsync, with its mark.
pub(crate) fn run(
    request: pb::RunAsyncRequest,
) -> Result<(Run, OnPause, Option<RequestId>), Refusal> {
    let pb::RunAsyncRequest {
        app_name,
        user_id,
        session_id,
        new_message,
        state_delta,
        run_config,
        invocation_id,
        after_sequence,
        request_id,
    } = request;
    let mut faults = Faults::new();
    let app = faults.id("app_name", app_name, AppName::parse);
    let user = faults.id("user_id", user_id, UserId::parse);
    let session = faults.optional_id("session_id", session_id.trim().to_owned(), SessionId::parse);
    let has_message = new_message.is_some();
    let message = new_message.and_then(|message| read_content("new_message", message, &mut faults));
    let state_delta = object("state_delta", state_delta, &mut faults);
    let invocation = faults.optional_id("invocation_id", invocation_id, InvocationId::parse);
    let after_sequence = count("after_sequence", after_sequence, &mut faults);
    let mark = read_mark(&request_id, &mut faults);
    let pb::RunConfig { streaming_mode, max_llm_calls, on_pause, custom_metadata } =
        run_config.unwrap_or_default();
    let streaming = match pb::run_config::StreamingMode::try_from(streaming_mode) {
        Ok(pb::run_config::StreamingMode::Sse) => true,
        Ok(_) => false,
        Err(_) => {
            faults.add("run_config.streaming_mode", "is no streaming mode");
            false
        }
    };
    let on_pause = match pb::run_config::OnPause::try_from(on_pause) {
        Ok(pb::run_config::OnPause::Follow) => OnPause::Follow,
        Ok(_) => OnPause::Detach,
        Err(_) => {
            faults.add("run_config.on_pause", "is no way to behave at a pause");
            OnPause::Detach
        }
    };
    let metadata = object("run_config.custom_metadata", custom_metadata, &mut faults);
    if metadata.iter().flatten().any(|(key, _)| key.starts_with(INTERNAL)) {
        faults.add("run_config.custom_metadata", "must not have keys of ADK's own");
    }
    let bytes = |object: &Object| Value::Object(object.clone()).to_string().len();
    if metadata.as_ref().is_some_and(|object| bytes(object) > MAX_METADATA_BYTES) {
        let rule = format!("must be at most {MAX_METADATA_BYTES} bytes long as JSON");
        faults.add("run_config.custom_metadata", rule);
    }
    if !has_message && state_delta.as_ref().is_some_and(|delta| !delta.is_empty()) {
        faults.add("state_delta", "must come with a message");
    }
    let run = (|| {
        Some(Run {
            app: app?,
            user: user?,
            session,
            message,
            state_delta: state_delta?,
            streaming,
            // ADK: 0 and less is no limit.
            max_llm_calls: max_llm_calls.map(|most| u32::try_from(most).unwrap_or(0)),
            custom_metadata: metadata?,
            invocation,
            after_sequence,
        })
    })();
    faults.finish(run).map(|run| (run, on_pause, mark))
}

/// SubmitFunctionResponse, with its mark.
pub(crate) fn submit(
    request: pb::SubmitFunctionResponseRequest,
) -> Result<(Submission, Option<RequestId>), Refusal> {
    let pb::SubmitFunctionResponseRequest {
        function_response,
        response_json,
        app_name,
        user_id,
        session_id,
        invocation_id,
        expected_args_digest,
        skip_summarization,
        comment,
        request_id,
    } = request;
    let mut faults = Faults::new();
    let both = function_response.as_ref().is_some_and(|answer| answer.response.is_some());
    let answer = match function_response {
        Some(answer) => read_function_response("function_response", answer, &mut faults),
        None => {
            faults.add("function_response", "is required");
            None
        }
    };
    let mut exact = None;
    if !response_json.is_empty() {
        if both {
            faults.add("response_json", "must be empty if function_response.response is set");
        }
        match json::parse(&response_json, MAX_DEPTH) {
            Ok(Value::Object(object)) => exact = Some(object),
            Ok(_) => faults.add("response_json", "must be a JSON object"),
            Err(wrong) => faults.add("response_json", wrong.to_string()),
        }
    }
    let app = faults.optional_id("app_name", app_name, AppName::parse);
    let user = faults.optional_id("user_id", user_id, UserId::parse);
    let session = faults.optional_id("session_id", session_id.trim().to_owned(), SessionId::parse);
    let invocation = faults.optional_id("invocation_id", invocation_id, InvocationId::parse);
    let digest = (!expected_args_digest.is_empty()).then_some(expected_args_digest);
    if digest.as_ref().is_some_and(|digest| !is_digest(digest)) {
        faults.add("expected_args_digest", "must be `sha256:` and 64 hex digits in lower case");
    }
    if comment.len() > MAX_COMMENT_BYTES {
        faults.add("comment", format!("must be at most {MAX_COMMENT_BYTES} bytes long"));
    }
    let mark = read_mark(&request_id, &mut faults);
    let submission = answer.map(|answer| Submission {
        etag: None,
        app,
        user,
        session,
        answers: Incomings {
            answers: vec![Incoming {
                decision: None,
                call: answer.id,
                name: answer.name,
                response: exact.or(answer.response),
                will_continue: answer.will_continue,
                field: "function_response".to_owned(),
            }],
            invocation,
            expected_args_digest: digest,
            skip_summarization,
            comment,
            state_delta: Object::new(),
        },
    });
    faults.finish(submission).map(|submission| (submission, mark))
}

fn is_digest(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.strip_prefix("sha256:").is_some_and(|rest| rest.len() == 64 && rest.bytes().all(hex))
}

/// An invocation by its id, and what else must be true of it.
pub(crate) fn find(
    (app, user, session): (String, String, String),
    invocation: String,
    request_id: &str,
) -> Result<(Find, Option<RequestId>), Refusal> {
    let mut faults = Faults::new();
    let app = faults.optional_id("app_name", app, AppName::parse);
    let user = faults.optional_id("user_id", user, UserId::parse);
    let session = faults.optional_id("session_id", session.trim().to_owned(), SessionId::parse);
    let id = faults.id("invocation_id", invocation, InvocationId::parse);
    let mark = read_mark(request_id, &mut faults);
    faults.finish(id.map(|id| Find { id, app, user, session })).map(|find| (find, mark))
}

/// A filter of invocations.
pub(crate) fn read_filter(
    (app, user, session): (String, String, String),
    states: Vec<i32>,
    faults: &mut Faults,
) -> InvocationFilter {
    let states = states.into_iter().enumerate().filter_map(|(n, state)| {
        use pb::invocation::State as Wire;
        match Wire::try_from(state) {
            Ok(Wire::Running) => Some(State::Running),
            Ok(Wire::Paused) => Some(State::Paused),
            Ok(Wire::Completed) => Some(State::Completed),
            Ok(Wire::Failed) => Some(State::Failed),
            Ok(Wire::Cancelled) => Some(State::Cancelled),
            Ok(Wire::Unspecified) | Err(_) => {
                faults.add(format!("states[{n}]"), "is no state of an invocation");
                None
            }
        }
    });
    // A state that is named twice is one; what goes to the store is as short as the enum.
    let states: BTreeSet<State> = states.collect();
    let states = states.into_iter().collect();
    InvocationFilter {
        app: faults.optional_id("app_name", app, AppName::parse),
        user: faults.optional_id("user_id", user, UserId::parse),
        session: faults.optional_id("session_id", session.trim().to_owned(), SessionId::parse),
        states,
    }
}

/// CreateSession, with its mark.
pub(crate) fn create_session(
    request: pb::CreateSessionRequest,
) -> Result<(NewSession, Option<RequestId>), Refusal> {
    let pb::CreateSessionRequest { app_name, user_id, session_id, state, request_id } = request;
    let mut faults = Faults::new();
    let app = faults.id("app_name", app_name, AppName::parse);
    let user = faults.id("user_id", user_id, UserId::parse);
    let id = faults.optional_id("session_id", session_id.trim().to_owned(), SessionId::parse);
    let state = object("state", state, &mut faults);
    let mark = read_mark(&request_id, &mut faults);
    let new = (|| Some(NewSession { app: app?, user: user?, id, state: state? }))();
    faults.finish(new).map(|new| (new, mark))
}

/// UpdateSessionState, with its mark.
pub(crate) fn update_state(
    request: pb::UpdateSessionStateRequest,
) -> Result<(SessionKey, Object, Option<RequestId>), Refusal> {
    let pb::UpdateSessionStateRequest { app_name, user_id, session_id, state_delta, request_id } =
        request;
    let mut faults = Faults::new();
    let key = read_key(app_name, user_id, session_id, &mut faults);
    let delta = object("state_delta", state_delta, &mut faults);
    let mark = read_mark(&request_id, &mut faults);
    let update = (|| Some((key?, delta?)))();
    faults.finish(update).map(|(key, delta)| (key, delta, mark))
}

/// DeleteSession, with its mark.
pub(crate) fn delete_session(
    request: pb::DeleteSessionRequest,
) -> Result<(SessionKey, Option<RequestId>), Refusal> {
    let pb::DeleteSessionRequest { app_name, user_id, session_id, request_id } = request;
    let mut faults = Faults::new();
    let key = read_key(app_name, user_id, session_id, &mut faults);
    let mark = read_mark(&request_id, &mut faults);
    faults.finish(key).map(|key| (key, mark))
}
