//! Decisions on one approval: it is shown, and what is decided on is what was shown.

use std::time::Duration;

use super::super::common::show_time;
use super::super::follow::{How, follow};
use super::super::text::{clean_line, quote};
use super::super::{Console, Failure, YesNo, exit};
use super::show::{get, show};
use super::times::{span, time};
use crate::client::Client;
use crate::proto::v1;
use crate::proto::v1::approval::Verdict;
use crate::proto::v1::decide_approval_request::{Remember, remember::Scope};
use crate::proto::wkt;

/// What all decisions have in common.
#[derive(Debug, clap::Args)]
struct Common {
    /// Id of the approval, as `list` shows it
    call: String,

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
    json: bool,
}

/// Arguments of `approvals approve`.
#[derive(Debug, clap::Args)]
pub struct Approve {
    #[command(flatten)]
    common: Common,

    /// What the model is told as the reason
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Ask no more: for this tool, or for this tool with exactly these arguments
    #[arg(long, value_name = "FOR", ignore_case = true)]
    always: Option<Always>,

    /// Until when --always holds: a time, or a span from now such as 8h
    #[arg(long, value_name = "WHEN", requires = "always", value_parser = time)]
    until: Option<wkt::Timestamp>,

    /// Run with these arguments instead: a JSON object, whole
    #[arg(long, value_name = "JSON")]
    edit: Option<String>,

    /// What the body is given with the approval, as JSON
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,

    /// Approve only if the arguments have this digest
    #[arg(long, value_name = "DIGEST")]
    digest: Option<String>,
}

/// How far "always" reaches.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Always {
    Tool,
    Arguments,
}

/// Arguments of `approvals deny`.
#[derive(Debug, clap::Args)]
pub struct Deny {
    #[command(flatten)]
    common: Common,

    /// What the model is told as the reason
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Arguments of `approvals request-changes`.
#[derive(Debug, clap::Args)]
pub struct RequestChanges {
    #[command(flatten)]
    common: Common,

    /// What the model is told to change
    reason: String,
}

/// Arguments of `approvals answer`.
#[derive(Debug, clap::Args)]
pub struct Answer {
    #[command(flatten)]
    common: Common,

    /// The result: a JSON object
    json: String,
}

/// Arguments of `approvals run-again`.
#[derive(Debug, clap::Args)]
pub struct RunAgain {
    #[command(flatten)]
    common: Common,

    /// Run it though its body may be at work still
    #[arg(long)]
    force: bool,
}

/// Arguments of `approvals assign`.
#[derive(Debug, clap::Args)]
pub struct Assign {
    /// Id of the approval, as `list` shows it
    call: String,

    /// Who gets it, such as user:ann
    #[arg(required_unless_present = "release", conflicts_with = "release")]
    assignee: Option<String>,

    /// Nobody has it from here on
    #[arg(long)]
    release: bool,

    /// For how long, 24h at most; 15m if left out
    #[arg(long = "for", value_name = "SPAN", value_parser = span, conflicts_with = "release")]
    lease: Option<Duration>,

    /// A mark on this request: a repeat with the same one does nothing again
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Print the approval as proto3 JSON
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Arguments of `approvals extend`.
#[derive(Debug, clap::Args)]
pub struct Extend {
    /// Id of the approval, as `list` shows it
    call: String,

    /// When it ends from here on: a time, or a span from now such as 2h
    #[arg(value_parser = time)]
    until: wkt::Timestamp,

    /// A note for the record; never shown to a model
    #[arg(long, value_name = "TEXT")]
    comment: Option<String>,

    /// A mark on this request: a repeat with the same one does nothing again
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// Print the approval as proto3 JSON
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Approves.
pub async fn approve(
    console: &mut Console<'_>,
    client: &Client,
    args: Approve,
) -> Result<u8, Failure> {
    let scope = args.always.map(|always| match always {
        Always::Tool => Scope::Tool,
        Always::Arguments => Scope::ToolWithArguments,
    });
    let request = v1::DecideApprovalRequest {
        verdict: Verdict::Approve.into(),
        args_digest: args.digest.unwrap_or_default(),
        reason: args.reason.unwrap_or_default(),
        edited_args_json: args.edit.unwrap_or_default(),
        payload_json: args.payload.unwrap_or_default(),
        remember: scope.map(|scope| Remember { scope: scope.into(), until: args.until }),
        ..Default::default()
    };
    decide(console, client, args.common, request).await
}

/// Refuses.
pub async fn deny(console: &mut Console<'_>, client: &Client, args: Deny) -> Result<u8, Failure> {
    let request = v1::DecideApprovalRequest {
        verdict: Verdict::Deny.into(),
        reason: args.reason.unwrap_or_default(),
        ..Default::default()
    };
    decide(console, client, args.common, request).await
}

/// Refuses, and says what to change.
pub async fn request_changes(
    console: &mut Console<'_>,
    client: &Client,
    args: RequestChanges,
) -> Result<u8, Failure> {
    let request = v1::DecideApprovalRequest {
        verdict: Verdict::RequestChanges.into(),
        reason: args.reason,
        ..Default::default()
    };
    decide(console, client, args.common, request).await
}

/// Gives the result.
pub async fn answer(
    console: &mut Console<'_>,
    client: &Client,
    args: Answer,
) -> Result<u8, Failure> {
    let request = v1::DecideApprovalRequest {
        verdict: Verdict::SupplyResult.into(),
        result_json: args.json,
        ..Default::default()
    };
    decide(console, client, args.common, request).await
}

/// Has the body run again.
pub async fn run_again(
    console: &mut Console<'_>,
    client: &Client,
    args: RunAgain,
) -> Result<u8, Failure> {
    let request = v1::DecideApprovalRequest {
        verdict: Verdict::RunAgain.into(),
        force: args.force,
        ..Default::default()
    };
    decide(console, client, args.common, request).await
}

/// Shows the approval and decides on what was shown.
async fn decide(
    console: &mut Console<'_>,
    client: &Client,
    common: Common,
    mut request: v1::DecideApprovalRequest,
) -> Result<u8, Failure> {
    let approval = get(client, &common.call).await?;
    if !common.json {
        show(console, &approval)?;
    }
    request.call_id = common.call;
    request.comment = common.comment.unwrap_or_default();
    request.request_id = common.request_id.unwrap_or_default();
    let seen = approval.call.as_ref().map(|call| call.args_digest.clone());
    if request.args_digest.is_empty() {
        request.args_digest = seen.unwrap_or_default();
    }
    let reply = client.decide(request).await?;
    if common.json {
        console.json(&reply)?;
    } else {
        told(console, &reply, !common.follow)?;
    }
    if !common.follow {
        return Ok(exit::DONE);
    }
    let approval = reply.approval.unwrap_or_default();
    let follow_on = v1::RunAsyncRequest {
        app_name: approval.app_name,
        user_id: approval.user_id,
        session_id: approval.session_id,
        invocation_id: approval.invocation_id,
        after_sequence: reply.after_sequence,
        ..Default::default()
    };
    let how = How { json: common.json, leave_at_pause: true, ..How::default() };
    follow(console, client, client.run(follow_on), how).await
}

/// Tells what became of a decision.
fn told(
    console: &mut Console<'_>,
    reply: &v1::DecideApprovalResponse,
    hint: bool,
) -> Result<(), Failure> {
    let approval = reply.approval.clone().unwrap_or_default();
    let outcome = console.paint.bold(reply.outcome().as_str_name());
    let (state, run) = (approval.state().as_str_name(), reply.invocation_state().as_str_name());
    let id = clean_line(&approval.call_id);
    writeln!(console.out, "{outcome}: {id} is {state}, its run is {run}")?;
    if let Some(standing) = &reply.standing_approval {
        let (id, tool) = (clean_line(&standing.id), clean_line(&standing.tool_name));
        let with = if standing.args_digest.is_empty() { "" } else { " with these arguments" };
        writeln!(
            console.out,
            "from here on {tool} runs{with} without a question; to change that:"
        )?;
        writeln!(
            console.out,
            "  countersign approvals revoke {}{}",
            quote(&id),
            console.server_flag()
        )?;
    }
    if hint {
        let command = format!(
            "countersign watch {} --app {}{} --after {}{}",
            quote(&approval.session_id),
            quote(&approval.app_name),
            console.user_flag(&approval.user_id),
            reply.after_sequence,
            console.server_flag()
        );
        writeln!(console.out, "{}", console.paint.dim("to see what comes of it:"))?;
        writeln!(console.out, "  {command}")?;
    }
    console.out.flush()?;
    Ok(())
}

/// Gives it to somebody, or back.
pub async fn assign(
    console: &mut Console<'_>,
    client: &Client,
    args: Assign,
) -> Result<u8, Failure> {
    let lease = args.lease.map(|lease| wkt::Duration {
        seconds: i64::try_from(lease.as_secs()).unwrap_or(i64::MAX),
        nanos: 0,
    });
    let request = v1::AssignApprovalRequest {
        call_id: args.call,
        assignee: args.assignee.unwrap_or_default(),
        lease,
        etag: String::new(),
        request_id: args.request_id.unwrap_or_default(),
    };
    let approval = client.approvals().assign_approval(request).await?.into_inner();
    if args.json {
        console.json(&approval)?;
        return Ok(exit::DONE);
    }
    let id = clean_line(&approval.call_id);
    match &*approval.assignee {
        "" => writeln!(console.out, "nobody has {id}")?,
        who => {
            let until = show_time(approval.lease_expire_time.as_ref());
            writeln!(console.out, "{} has {id} until {until}", clean_line(who))?;
        }
    }
    Ok(exit::DONE)
}

/// Moves its end.
pub async fn extend(
    console: &mut Console<'_>,
    client: &Client,
    args: Extend,
) -> Result<u8, Failure> {
    let request = v1::ExtendApprovalRequest {
        call_id: args.call,
        expire_time: Some(args.until),
        etag: String::new(),
        comment: args.comment.unwrap_or_default(),
        request_id: args.request_id.unwrap_or_default(),
    };
    let approval = client.approvals().extend_approval(request).await?.into_inner();
    if args.json {
        console.json(&approval)?;
        return Ok(exit::DONE);
    }
    let (id, ends) = (clean_line(&approval.call_id), show_time(approval.expire_time.as_ref()));
    writeln!(console.out, "{id} waits until {ends}")?;
    Ok(exit::DONE)
}
