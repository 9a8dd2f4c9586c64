//! Short words for what is sent most.

use serde::Serialize;

use crate::proto::v1::part::Data;
use crate::proto::v1::run_config::OnPause;
use crate::proto::v1::submit_function_response_response::Outcome;
use crate::proto::{self, v1};

/// What a user says.
pub fn message(text: impl Into<String>) -> v1::Content {
    content([Data::Text(text.into())])
}

/// An answer to a call that waits, as its tool declares it: final, or progress if the tool takes
/// many. Set `will_continue` to say yourself which one it is.
///
/// An error if the response is no JSON object, or holds an integer beyond 2^53.
pub fn answer(
    call: &v1::Call,
    response: &impl Serialize,
) -> Result<v1::FunctionResponse, serde_json::Error> {
    let response = proto::from_json(&serde_json::to_string(response)?)?;
    let call = call.function_call.clone().unwrap_or_default();
    let (id, name) = (call.id, call.name);
    Ok(v1::FunctionResponse { id, name, response: Some(response), will_continue: None })
}

/// A message of answers, as ADK's clients send them with RunAsync; all are taken or none.
pub fn answers(answers: impl IntoIterator<Item = v1::FunctionResponse>) -> v1::Content {
    content(answers.into_iter().map(Data::FunctionResponse))
}

/// The request that follows what comes of an answer.
pub fn continuation(reply: &v1::SubmitFunctionResponseResponse) -> v1::RunAsyncRequest {
    let call = reply.call.clone().unwrap_or_default();
    // A queued answer gets its turn later: until then its invocation may be paused.
    let on_pause = match reply.outcome() {
        Outcome::Queued => OnPause::Follow,
        _ => OnPause::Detach,
    };
    v1::RunAsyncRequest {
        app_name: call.app_name,
        user_id: call.user_id,
        session_id: call.session_id,
        invocation_id: call.invocation_id,
        after_sequence: reply.after_sequence,
        run_config: Some(v1::RunConfig { on_pause: on_pause.into(), ..Default::default() }),
        ..Default::default()
    }
}

fn content(parts: impl IntoIterator<Item = Data>) -> v1::Content {
    let part = |data| v1::Part { data: Some(data), ..Default::default() };
    v1::Content { role: "user".to_owned(), parts: parts.into_iter().map(part).collect() }
}
