//! `countersign run`: gives an agent a message and shows what comes of it.

use super::console::DEFAULT_USER;
use super::follow::{How, follow};
use super::{Console, Failure, YesNo};
use crate::client::{Client, message};
use crate::proto::v1;
use crate::proto::v1::run_config::{OnPause, StreamingMode};

const AFTER_HELP: &str = "\
Exit codes: 0 the run is complete, 1 it was refused, failed or cancelled, 3 it is paused: then the \
command to type next is shown. Leaving does not stop a run.";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The app: the name of its agent
    app: String,

    /// What to say
    text: String,

    /// Who says it
    #[arg(long, env = "COUNTERSIGN_USER", hide_env_values = true, default_value = DEFAULT_USER)]
    user: String,

    /// The session to go on with; without one a new one is made
    #[arg(long, env = "COUNTERSIGN_SESSION", hide_env_values = true)]
    session: Option<String>,

    /// Stay when the run pauses, and go on when the answer comes
    #[arg(long, env = "COUNTERSIGN_FOLLOW", hide_env_values = true, value_parser = YesNo::new())]
    follow: bool,

    /// Show words while the model speaks
    #[arg(long, env = "COUNTERSIGN_STREAM", hide_env_values = true, value_parser = YesNo::new())]
    stream: bool,

    /// Print events as proto3 JSON, one a line
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,

    /// A mark on this request: a repeat with the same one follows the same run
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    let Args { app, text, user, session, follow: stay, stream, json, request_id } = args;
    let streaming = if stream { StreamingMode::Sse } else { StreamingMode::None };
    let on_pause = if stay { OnPause::Follow } else { OnPause::Detach };
    let request = v1::RunAsyncRequest {
        app_name: app,
        user_id: user,
        session_id: session.unwrap_or_default(),
        new_message: Some(message(text)),
        run_config: Some(v1::RunConfig {
            streaming_mode: streaming.into(),
            on_pause: on_pause.into(),
            ..Default::default()
        }),
        request_id: request_id.unwrap_or_default(),
        ..Default::default()
    };
    let how = How { json, session: true, ..How::default() };
    follow(console, client, client.run(request), how).await
}
