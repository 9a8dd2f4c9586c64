//! One approval, with everything that a decision needs.

use super::super::common::show_time;
use super::super::story::show_call;
use super::super::text::{clean_line, json, quote};
use super::super::{Console, Failure, YesNo, exit};
use crate::client::Client;
use crate::proto::v1;
use crate::proto::v1::approval::note::What;
use crate::proto::v1::approval::{Note, Verdict};

/// Arguments of `approvals show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Id of the approval, as `list` shows it
    call: String,

    /// Print it as proto3 JSON
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let approval = get(client, &args.call).await?;
    if args.json {
        console.json(&approval)?;
        return Ok(exit::DONE);
    }
    show(console, &approval)?;
    let verdicts: Vec<_> = approval.allowed_verdicts().collect();
    if !verdicts.is_empty() {
        writeln!(console.out, "{}", console.paint.dim("to decide:"))?;
    }
    for verdict in verdicts {
        let (word, rest) = match verdict {
            Verdict::Approve => ("approve", ""),
            Verdict::Deny => ("deny", ""),
            Verdict::RequestChanges => ("request-changes", " 'WHAT TO CHANGE'"),
            Verdict::SupplyResult => ("answer", " '{\"...\": ...}'"),
            Verdict::RunAgain => ("run-again", ""),
            Verdict::Unspecified => continue,
        };
        let (call, server) = (quote(&approval.call_id), console.server_flag());
        writeln!(console.out, "  countersign approvals {word} {call}{rest}{server}")?;
    }
    console.out.flush()?;
    Ok(exit::DONE)
}

/// The approval of this id.
pub async fn get(client: &Client, call: &str) -> Result<v1::Approval, Failure> {
    let request = v1::GetApprovalRequest { call_id: call.to_owned() };
    Ok(client.approvals().get_approval(request).await?.into_inner())
}

/// The call that is decided on, with its arguments.
pub fn call_line(approval: &v1::Approval) -> String {
    let call = approval.call.clone().unwrap_or_default();
    show_call(&call.function_call.unwrap_or_default(), &call.exact_args_json)
}

/// Shows what it is, a line a fact.
pub fn show(console: &mut Console<'_>, approval: &v1::Approval) -> Result<(), Failure> {
    let call = approval.call.clone().unwrap_or_default();
    let state = console.paint.bold(approval.state().as_str_name());
    let kind = call.kind().as_str_name();
    writeln!(console.out, "{}  {state}  {kind}", clean_line(&approval.call_id))?;
    let reason = approval.reason.clone().unwrap_or_default();
    let mut why = reason.code().as_str_name().to_owned();
    for more in [&reason.rule, &reason.detail] {
        if !more.is_empty() {
            why = format!("{why}: {more}");
        }
    }
    let sibling = |sibling: &v1::approval::Sibling| {
        let asks = if sibling.requires_confirmation { " (asks too)" } else { "" };
        format!("{} {}{asks}", sibling.tool_name, sibling.call_id)
    };
    let siblings: Vec<_> = approval.siblings.iter().map(sibling).collect();
    let payload = match (&*approval.exact_payload_json, &approval.payload) {
        ("", Some(payload)) => json(payload),
        (exact, _) => exact.to_owned(),
    };
    let next = approval.next_deadline.as_ref().map(|next| {
        let to = if next.escalate_to.is_empty() { "" } else { " to " };
        let action = next.action().as_str_name();
        format!("{action}{to}{} at {}", next.escalate_to, show_time(next.time.as_ref()))
    });
    let until = show_time(approval.lease_expire_time.as_ref());
    let assignee = match &*approval.assignee {
        "" => String::new(),
        who => format!("{who} until {until}"),
    };
    let session = [&*approval.app_name, &approval.user_id, &approval.session_id].join("/");
    let decided = match approval.verdict() {
        Verdict::Unspecified => approval.decided_by.clone(),
        verdict => format!("{} by {}", verdict.as_str_name(), approval.decided_by),
    };
    let digest = if call.args_digest.is_empty() { "" } else { &call.args_digest };
    for (name, text) in [
        ("call", call_line(approval)),
        ("digest", digest.to_owned()),
        ("asks", approval.hint.clone()),
        ("payload", payload),
        ("why", why),
        ("agent", approval.agent_path.clone()),
        ("session", session),
        ("asked", show_time(approval.create_time.as_ref())),
        ("expires", show_time(approval.expire_time.as_ref())),
        ("next", next.unwrap_or_default()),
        ("assignee", assignee),
        ("for", approval.escalated_to.clone()),
        ("siblings", siblings.join(", ")),
        ("decided", decided),
        ("reason", approval.decision_reason.clone()),
        ("comment", approval.comment.clone()),
    ] {
        if !text.is_empty() {
            writeln!(
                console.out,
                "  {} {}",
                console.paint.dim(format!("{name:9}")),
                clean_line(&text)
            )?;
        }
    }
    for note in &approval.story {
        let line = clean_line(&told(note));
        writeln!(console.out, "  {} {line}", console.paint.dim(show_time(note.time.as_ref())))?;
    }
    console.out.flush()?;
    Ok(())
}

/// What happened, in a line.
fn told(note: &Note) -> String {
    let what = note.what();
    let mut line = format!("{} {}", note.by, what.as_str_name());
    let more = match what {
        What::Decided if note.verdict() != Verdict::Unspecified => {
            format!("{} {}", note.verdict().as_str_name(), note.reason)
        }
        What::Edited => format!("to {}", note.args_digest),
        What::Assigned => {
            format!("to {} until {}", note.assignee, show_time(note.until.as_ref()))
        }
        What::Extended => format!("to {}", show_time(note.until.as_ref())),
        What::Escalated => format!("to {}", note.escalated_to),
        _ => String::new(),
    };
    for text in [more.trim(), &note.comment] {
        if !text.is_empty() {
            line = format!("{line}  {text}");
        }
    }
    line
}
