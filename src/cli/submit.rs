//! `countersign submit`: answers a call that waits.

use super::follow::{How, follow};
use super::text::{clean_line, quote};
use super::{Console, Failure, YesNo, common};
use crate::client::{Client, continuation, refusal};
use crate::proto::v1;
use crate::proto::v1::invocation::State;

/// Arguments of `submit`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Id of the call that waits, as `run` and `invocations` show it
    call: String,

    /// The answer: a JSON object, such as {"status":"approved"}, or null
    json: String,

    /// Name of the tool that was called; looked up if left out
    #[arg(long)]
    name: Option<String>,

    /// More is to come: the call stays held
    #[arg(long, conflicts_with = "last")]
    progress: bool,

    /// This is the last answer, whatever the tool declares
    #[arg(id = "last", long = "final")]
    last: bool,

    /// A note for the record; never shown to a model
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,

    /// A mark on this request: a repeat with the same one does nothing again
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Show what comes of it, up to the next pause or the end; exit codes as of `run`
    #[arg(long, env = "COUNTERSIGN_FOLLOW", hide_env_values = true, value_parser = YesNo::new())]
    follow: bool,

    /// Print the reply, and with --follow the events, as proto3 JSON, one message a line
    #[arg(
        id = "as_json",
        long = "json",
        env = "COUNTERSIGN_JSON",
        hide_env_values = true,
        value_parser = YesNo::new()
    )]
    as_json: bool,
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(client, &args.call).await?,
    };
    let will_continue = (args.progress || args.last).then_some(args.progress);
    // No response at all is how null is said.
    let response_json = if args.json.trim() == "null" { String::new() } else { args.json };
    let request = v1::SubmitFunctionResponseRequest {
        function_response: Some(v1::FunctionResponse {
            id: args.call,
            name,
            response: None,
            will_continue,
        }),
        response_json,
        comment: args.comment.unwrap_or_default(),
        request_id: args.request_id.unwrap_or_default(),
        ..Default::default()
    };
    let reply = client.submit(request).await?;
    if args.as_json {
        console.json(&reply)?;
    } else {
        show(console, &reply, !args.follow)?;
    }
    if !args.follow {
        return Ok(super::exit::DONE);
    }
    let how = How { json: args.as_json, leave_at_pause: true, ..How::default() };
    follow(console, client, client.run(continuation(&reply)), how).await
}

/// Tells what became of an answer.
pub fn show(
    console: &mut Console<'_>,
    reply: &v1::SubmitFunctionResponseResponse,
    hint: bool,
) -> Result<(), Failure> {
    let call = reply.call.clone().unwrap_or_default();
    let function_call = call.function_call.clone().unwrap_or_default();
    let outcome = console.paint.bold(reply.outcome().as_str_name());
    let name = clean_line(&function_call.name);
    let (state, run) = (call.state().as_str_name(), reply.invocation_state().as_str_name());
    writeln!(console.out, "{outcome}: {name} is {state}, its run is {run}")?;
    if hint {
        let command = format!(
            "countersign watch {} --app {}{} --after {}{}",
            quote(&call.session_id),
            quote(&call.app_name),
            console.user_flag(&call.user_id),
            reply.after_sequence,
            console.server_flag()
        );
        writeln!(console.out, "{}", console.paint.dim("to see what comes of it:"))?;
        writeln!(console.out, "  {command}")?;
    }
    console.out.flush()?;
    Ok(())
}

/// The tool's name of a call. One that waits, or that may be answered though its body is at work,
/// is listed; of any other the server tells it.
async fn name_of(client: &Client, call_id: &str) -> Result<String, Failure> {
    let mut request = v1::ListInvocationsRequest {
        states: vec![State::Paused.into(), State::Running.into()],
        page_size: common::PAGE_SIZE,
        ..Default::default()
    };
    for _ in 0..common::MAX_PAGES {
        let page = client.agents().list_invocations(request.clone()).await?.into_inner();
        let calls = page.invocations.into_iter().flat_map(|invocation| invocation.held_calls);
        let mut calls = calls.filter_map(|call| call.function_call);
        if let Some(call) = calls.find(|call| call.id == call_id) {
            return Ok(call.name);
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    told_name(client, call_id).await
}

/// A name that no tool has.
const NO_TOOL: &str = "?";

/// The tool's name as the server tells it when it refuses an answer under a wrong one, which
/// changes nothing: so a repeat finds its call though that is closed.
async fn told_name(client: &Client, call_id: &str) -> Result<String, Failure> {
    let request = v1::SubmitFunctionResponseRequest {
        function_response: Some(v1::FunctionResponse {
            id: call_id.to_owned(),
            name: NO_TOOL.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let Err(status) = client.agents().submit_function_response(request).await else {
        return Err(Failure::Other("the server took an answer under a wrong name".to_owned()));
    };
    let expected = refusal(&status).filter(|refusal| refusal.reason == "CALL_NAME_MISMATCH");
    let name = expected.and_then(|mut refusal| refusal.metadata.remove("expected_name"));
    name.ok_or_else(|| status.into())
}
