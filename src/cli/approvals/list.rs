//! Many approvals: listed, watched, counted.

use std::time::Duration;

use super::super::common::{Filter, Limit, show_time};
use super::super::listing::Listing;
use super::super::table::Table;
use super::super::text::clean_line;
use super::super::{Console, Failure, YesNo, exit};
use super::show::call_line;
use super::times::{ago, span};
use crate::client::Client;
use crate::proto::v1;
use crate::proto::v1::approval::State;
use crate::proto::v1::call::Kind;
use crate::proto::v1::watch_approvals_response::Update;

/// Which approvals are wanted.
#[derive(Debug, clap::Args)]
struct Wanted {
    #[command(flatten)]
    filter: Filter,

    /// Only about calls of this tool
    #[arg(long)]
    tool: Option<String>,

    /// Only of these kinds, such as confirmation,input
    #[arg(long, value_delimiter = ',', value_name = "KIND", ignore_case = true)]
    kind: Vec<KindName>,

    /// Only in these states, such as pending,denied; pending if left out
    #[arg(
        long,
        env = "COUNTERSIGN_STATE",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "STATE",
        ignore_case = true
    )]
    state: Vec<StateName>,

    /// Only those that this person has, such as user:ann
    #[arg(long, value_name = "WHO")]
    assignee: Option<String>,
}

/// A kind as it is typed.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum KindName {
    LongRunning,
    Confirmation,
    Input,
    UnknownOutcome,
}

/// A state as it is typed.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum StateName {
    Pending,
    Approved,
    Denied,
    Answered,
    Expired,
    Cancelled,
}

impl Wanted {
    fn kinds(&self) -> Vec<i32> {
        let kind = |name: &KindName| match name {
            KindName::LongRunning => Kind::LongRunning,
            KindName::Confirmation => Kind::Confirmation,
            KindName::Input => Kind::Input,
            KindName::UnknownOutcome => Kind::UnknownOutcome,
        };
        self.kind.iter().map(|name| kind(name).into()).collect()
    }

    fn states(&self) -> Vec<i32> {
        let state = |name: &StateName| match name {
            StateName::Pending => State::Pending,
            StateName::Approved => State::Approved,
            StateName::Denied => State::Denied,
            StateName::Answered => State::Answered,
            StateName::Expired => State::Expired,
            StateName::Cancelled => State::Cancelled,
        };
        self.state.iter().map(|name| state(name).into()).collect()
    }
}

/// Arguments of `approvals list`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    wanted: Wanted,

    /// Only those asked longer ago than this, such as 2h
    #[arg(long, value_name = "SPAN", value_parser = span)]
    older_than: Option<Duration>,

    /// Only those asked since then, such as 3d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    newer_than: Option<Duration>,

    /// The newest first
    #[arg(long)]
    newest_first: bool,

    #[command(flatten)]
    limit: Limit,

    /// Print approvals as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Arguments of `approvals watch`.
#[derive(Debug, clap::Args)]
pub struct Watch {
    #[command(flatten)]
    wanted: Wanted,

    /// Print messages as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Arguments of `approvals summary`.
#[derive(Debug, clap::Args)]
pub struct Summary {
    /// Only of this app
    #[arg(long, env = "COUNTERSIGN_APP", hide_env_values = true)]
    app: Option<String>,

    /// Print the reply as proto3 JSON
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Lists approvals.
pub async fn list(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let mut request = v1::ListApprovalsRequest {
        kinds: args.wanted.kinds(),
        states: args.wanted.states(),
        app_name: args.wanted.filter.app.unwrap_or_default(),
        user_id: args.wanted.filter.user.unwrap_or_default(),
        tool_name: args.wanted.tool.unwrap_or_default(),
        assignee: args.wanted.assignee.unwrap_or_default(),
        create_after: args.newer_than.map(ago),
        create_before: args.older_than.map(ago),
        newest_first: args.newest_first,
        page_size: 0,
        page_token: String::new(),
    };
    let header = ["ID", "STATE", "KIND", "APP", "USER", "ASKED", "EXPIRES", "ASSIGNEE", "CALL"];
    let listing = Listing { none: "no approvals", header, limit: args.limit, json: args.json };
    let page = async |page_size, page_token| {
        (request.page_size, request.page_token) = (page_size, page_token);
        let page = client.approvals().list_approvals(request.clone()).await?.into_inner();
        Ok((page.approvals, page.next_page_token))
    };
    listing.print(console, page, |approval| row(&approval)).await
}

/// Watches approvals.
pub async fn watch(console: &mut Console<'_>, client: &Client, args: Watch) -> Result<u8, Failure> {
    let mut messages = client.inbox(v1::WatchApprovalsRequest {
        kinds: args.wanted.kinds(),
        states: args.wanted.states(),
        app_name: args.wanted.filter.app.unwrap_or_default(),
        user_id: args.wanted.filter.user.unwrap_or_default(),
        tool_name: args.wanted.tool.unwrap_or_default(),
        assignee: args.wanted.assignee.unwrap_or_default(),
        cursor: String::new(),
    });
    loop {
        let message = messages.next().await?;
        if args.json {
            console.json(&message)?;
            continue;
        }
        let line = match message.update {
            Some(Update::Approval(approval)) => line(&approval),
            Some(Update::Removed(removed)) => {
                format!("{:9}  {}", "gone", clean_line(&removed.call_id))
            }
            Some(Update::CaughtUp(_)) => console.paint.dim("caught up, what follows is live"),
            Some(Update::Heartbeat(_) | Update::End(_)) | None => continue,
        };
        writeln!(console.out, "{line}")?;
        console.out.flush()?;
    }
}

/// Counts approvals.
pub async fn summary(
    console: &mut Console<'_>,
    client: &Client,
    args: Summary,
) -> Result<u8, Failure> {
    let request = v1::SummarizeApprovalsRequest { app_name: args.app.unwrap_or_default() };
    let reply = client.approvals().summarize_approvals(request).await?.into_inner();
    if args.json {
        console.json(&reply)?;
        return Ok(exit::DONE);
    }
    let mut table = Table::new(["STATE", "KIND", "COUNT"]);
    for count in &reply.counts {
        let (state, kind) = (count.state().as_str_name(), count.kind().as_str_name());
        table.row([state.to_owned(), kind.to_owned(), count.count.to_string()]);
    }
    table.print(console.out, console.paint)?;
    if table.is_empty() {
        console.note("no approvals");
    }
    if let Some(oldest) = &reply.oldest_pending {
        let asked = show_time(oldest.create_time.as_ref());
        writeln!(console.out, "waits longest, since {asked}:  {}", clean_line(&oldest.call_id))?;
    }
    Ok(exit::DONE)
}

/// An approval where no table can be laid out, since others follow.
fn line(approval: &v1::Approval) -> String {
    let [id, state, kind, app, user, asked, _, assignee, call] =
        row(approval).map(|cell| clean_line(&cell));
    let has = if assignee.is_empty() { assignee } else { format!("  {assignee} has it") };
    format!("{state:9}  {id}  {kind}  {app}/{user}  {asked}{has}  {call}")
}

fn row(approval: &v1::Approval) -> [String; 9] {
    let kind = approval.call.as_ref().map(v1::Call::kind).unwrap_or_default();
    [
        approval.call_id.clone(),
        approval.state().as_str_name().to_owned(),
        kind.as_str_name().to_owned(),
        approval.app_name.clone(),
        approval.user_id.clone(),
        show_time(approval.create_time.as_ref()),
        show_time(approval.expire_time.as_ref()),
        approval.assignee.clone(),
        call_line(approval),
    ]
}
