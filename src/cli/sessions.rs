//! `countersign sessions`: all conversations.

use super::common::{Filter, Limit, show_time};
use super::listing::Listing;
use super::{Console, Failure, YesNo};
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
    let header = ["ID", "APP", "USER", "EVENTS", "UPDATED", "RUNS", "WAITS"];
    let listing = Listing { none: "no sessions", header, limit: args.limit, json: args.json };
    let page = async |page_size, page_token| {
        (request.page_size, request.page_token) = (page_size, page_token);
        let page = client.sessions().list_sessions(request.clone()).await?.into_inner();
        Ok((page.sessions, page.next_page_token))
    };
    listing.print(console, page, row).await
}

fn row(session: v1::Session) -> [String; 7] {
    let updated = show_time(session.update_time.as_ref());
    let held = session.held_call_ids.join(", ");
    let events = session.last_sequence.to_string();
    let running = session.running_invocation_id;
    [session.id, session.app_name, session.user_id, events, updated, running, held]
}
