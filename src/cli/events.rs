//! `countersign events`: the events of a session, once.

use super::common::{MAX_PAGES, Owner, PAGE_SIZE, resolve_app};
use super::story::Story;
use super::{Console, Failure, YesNo, exit};
use crate::client::Client;
use crate::proto::v1;

/// Arguments of `events`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session
    session: String,

    #[command(flatten)]
    owner: Owner,

    /// Only the newest so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    last: Option<i32>,

    /// Print events as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let mut request = v1::ListEventsRequest {
        app_name: resolve_app(client, args.owner.app).await?,
        user_id: args.owner.user,
        session_id: args.session,
        page_size: PAGE_SIZE,
        num_recent_events: args.last,
        ..Default::default()
    };
    let mut story = Story::new(true);
    for _ in 0..MAX_PAGES {
        let page = client.sessions().list_events(request.clone()).await?.into_inner();
        for event in &page.events {
            if args.json {
                console.json(event)?;
            } else {
                story.entry(console.out, console.paint, event)?;
            }
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    Ok(exit::DONE)
}
