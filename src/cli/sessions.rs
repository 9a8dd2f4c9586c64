//! `countersign sessions`: all conversations.

use super::common::{Filter, Limit, MAX_PAGES, show_time};
use super::table::Table;
use super::{Console, Failure, YesNo, exit};
use crate::client::Client;
use crate::proto::v1;

/// Arguments of `sessions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,

    #[command(flatten)]
    limit: Limit,

    /// Print sessions as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let mut request = v1::ListSessionsRequest {
        app_name: args.filter.app.unwrap_or_default(),
        user_id: args.filter.user.unwrap_or_default(),
        ..Default::default()
    };
    let mut table = Table::new(["ID", "APP", "USER", "EVENTS", "UPDATED", "RUNS", "WAITS"]);
    let mut there = 0;
    for _ in 0..MAX_PAGES {
        request.page_size = args.limit.page_size(there);
        let page = client.sessions().list_sessions(request.clone()).await?.into_inner();
        there += page.sessions.len();
        for session in page.sessions {
            if args.json {
                console.json(&session)?;
            } else {
                table.row(row(session));
            }
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() || args.limit.is_reached(there) {
            break;
        }
    }
    if !args.json {
        table.print(console.out, console.paint)?;
        if table.is_empty() {
            console.note("no sessions");
        }
    }
    if !request.page_token.is_empty() {
        console.note("there are more; see --limit");
    }
    Ok(exit::DONE)
}

fn row(session: v1::Session) -> [String; 7] {
    let updated = show_time(session.update_time.as_ref());
    let held = session.held_call_ids.join(", ");
    let events = session.last_sequence.to_string();
    let running = session.running_invocation_id;
    [session.id, session.app_name, session.user_id, events, updated, running, held]
}
