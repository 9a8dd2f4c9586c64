//! `countersign watch`: follows a session.

use super::common::{Owner, resolve_app};
use super::follow::{How, follow};
use super::{Console, Failure, YesNo};
use crate::client::Client;
use crate::proto::v1;

/// Arguments of `watch`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The session
    session: String,

    #[command(flatten)]
    owner: Owner,

    /// Show only entries behind this sequence
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    after: i64,

    /// Print events as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let request = v1::WatchSessionRequest {
        app_name: resolve_app(client, args.owner.app).await?,
        user_id: args.owner.user,
        session_id: args.session,
        after_sequence: args.after,
        invocation_id: String::new(),
    };
    let how = How { json: args.json, numbered: true, ..How::default() };
    follow(console, client, client.follow(request), how).await
}
