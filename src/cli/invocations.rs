//! `countersign invocations`: what runs, what waits, what ended.

use super::common::{Filter, Limit, show_time};
use super::listing::Listing;
use super::text::clean_line;
use super::{Console, Failure, YesNo};
use crate::client::Client;
use crate::proto::v1;
use crate::proto::v1::invocation::State;
use crate::proto::v1::watch_invocations_response::Update;

/// Arguments of `invocations`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,

    /// Only of this session
    #[arg(long, env = "COUNTERSIGN_SESSION", hide_env_values = true)]
    session: Option<String>,

    /// Only in these states, such as paused,running
    #[arg(
        long,
        env = "COUNTERSIGN_STATE",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "STATE",
        ignore_case = true
    )]
    state: Vec<StateName>,

    #[command(flatten)]
    limit: Limit,

    /// Stay, and show each one again when it changes
    #[arg(long, env = "COUNTERSIGN_WATCH", hide_env_values = true, value_parser = YesNo::new())]
    watch: bool,

    /// Print messages as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// A state as it is typed.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum StateName {
    Running,
    Paused,
    Completed,
    Failed,
    Cancelled,
}

impl StateName {
    fn state(self) -> State {
        match self {
            Self::Running => State::Running,
            Self::Paused => State::Paused,
            Self::Completed => State::Completed,
            Self::Failed => State::Failed,
            Self::Cancelled => State::Cancelled,
        }
    }
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    if args.watch { watch(console, client, args).await } else { list(console, client, args).await }
}

fn states(args: &Args) -> Vec<i32> {
    args.state.iter().map(|name| name.state().into()).collect()
}

async fn list(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let mut request = v1::ListInvocationsRequest {
        states: states(&args),
        app_name: args.filter.app.unwrap_or_default(),
        user_id: args.filter.user.unwrap_or_default(),
        session_id: args.session.unwrap_or_default(),
        ..Default::default()
    };
    let header = ["ID", "STATE", "APP", "USER", "SESSION", "UPDATED", "WAITS FOR"];
    let listing = Listing { none: "no invocations", header, limit: args.limit, json: args.json };
    let page = async |page_size, page_token| {
        (request.page_size, request.page_token) = (page_size, page_token);
        let page = client.agents().list_invocations(request.clone()).await?.into_inner();
        Ok((page.invocations, page.next_page_token))
    };
    listing.print(console, page, row).await
}

async fn watch(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let mut messages = client.invocations(v1::WatchInvocationsRequest {
        states: states(&args),
        app_name: args.filter.app.unwrap_or_default(),
        user_id: args.filter.user.unwrap_or_default(),
        session_id: args.session.unwrap_or_default(),
        cursor: String::new(),
    });
    loop {
        let message = messages.next().await?;
        if args.json {
            console.json(&message)?;
            continue;
        }
        let line = match message.update {
            Some(Update::Invocation(invocation)) => line(invocation),
            Some(Update::Removed(removed)) => {
                format!("{:9}  {}", "gone", clean_line(&removed.invocation_id))
            }
            Some(Update::CaughtUp(_)) => console.paint.dim("caught up, what follows is live"),
            Some(Update::Heartbeat(_) | Update::End(_)) | None => continue,
        };
        writeln!(console.out, "{line}")?;
        console.out.flush()?;
    }
}

/// An invocation where no table can be laid out, since others follow.
fn line(invocation: v1::Invocation) -> String {
    let [id, state, app, user, session, updated, waits] =
        row(invocation).map(|cell| clean_line(&cell));
    let waits = if waits.is_empty() { waits } else { format!("  waits for {waits}") };
    format!("{state:9}  {id}  {app}/{user}/{session}  {updated}{waits}")
}

fn row(invocation: v1::Invocation) -> [String; 7] {
    let state = invocation.state().as_str_name().to_owned();
    let updated = show_time(invocation.update_time.as_ref());
    let held = invocation.held_calls.iter().filter_map(|call| call.function_call.as_ref());
    let held: Vec<_> = held.map(|call| format!("{} {}", call.name, call.id)).collect();
    [
        invocation.id,
        state,
        invocation.app_name,
        invocation.user_id,
        invocation.session_id,
        updated,
        held.join(", "),
    ]
}
