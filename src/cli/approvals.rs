//! `countersign approvals`: the inbox of what waits for people, and their decisions.

use super::{Console, Failure};
use crate::client::Client;

mod decide;
mod list;
mod show;
mod standing;
mod times;

/// Arguments of `approvals`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

/// What can be done with approvals.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List what waits for a decision, the oldest first
    List(list::Args),
    /// Show an approval with everything a decision needs
    Show(show::Args),
    /// Let the call run, with the arguments that are shown, or grant what it asks for
    Approve(decide::Approve),
    /// Refuse it
    Deny(decide::Deny),
    /// Refuse it as it is, and tell the model what to change
    RequestChanges(decide::RequestChanges),
    /// Give the result of the call: what was asked for, or what became of it
    Answer(decide::Answer),
    /// Run the body again of which nobody knows what it did
    RunAgain(decide::RunAgain),
    /// Take an approval for a while, or give it to somebody
    Assign(decide::Assign),
    /// Move the end of an approval
    Extend(decide::Extend),
    /// Stay, and show each approval again when it changes
    Watch(list::Watch),
    /// Count approvals by state and kind
    Summary(list::Summary),
    /// List what needs no question any more, the newest first
    Standing(standing::Args),
    /// Take a standing approval back: what it was for is asked again
    Revoke(standing::Revoke),
}

/// Runs the command.
pub async fn run(console: &mut Console<'_>, client: &Client, args: Args) -> Result<u8, Failure> {
    match args.command {
        Command::List(args) => list::list(console, client, args).await,
        Command::Show(args) => show::run(console, client, args).await,
        Command::Approve(args) => decide::approve(console, client, args).await,
        Command::Deny(args) => decide::deny(console, client, args).await,
        Command::RequestChanges(args) => decide::request_changes(console, client, args).await,
        Command::Answer(args) => decide::answer(console, client, args).await,
        Command::RunAgain(args) => decide::run_again(console, client, args).await,
        Command::Assign(args) => decide::assign(console, client, args).await,
        Command::Extend(args) => decide::extend(console, client, args).await,
        Command::Watch(args) => list::watch(console, client, args).await,
        Command::Summary(args) => list::summary(console, client, args).await,
        Command::Standing(args) => standing::list(console, client, args).await,
        Command::Revoke(args) => standing::revoke(console, client, args).await,
    }
}
