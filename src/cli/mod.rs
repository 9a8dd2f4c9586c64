//! The command line: one file a command, over [`crate::client`] only, but for those that need no
//! server.
//!
//! What is meant for people goes through `text::clean`, since contents come from models, tools and
//! other users: none of them may move the cursor, colour the screen or forge a line. With `--json`
//! a command prints proto3 JSON instead, one message a line, and nothing else on standard output.

use std::process::ExitCode;

use clap::builder::FalseyValueParser as YesNo;
use clap::{Parser, Subcommand};

use crate::client::Client;

mod agents;
mod approvals;
mod common;
mod console;
pub mod demo;
mod events;
mod follow;
mod invocations;
mod listing;
pub mod replay;
mod run;
mod sessions;
mod story;
mod submit;
mod table;
mod text;
mod watch;

pub use console::{Console, Failure};

/// Exit codes of every command.
pub mod exit {
    /// Done.
    pub const DONE: u8 = 0;
    /// Refused or failed; the reason is on standard error.
    pub const FAILED: u8 = 1;
    /// Wrong usage.
    pub const USAGE: u8 = 2;
    /// The run is paused: it waits for an answer.
    pub const PAUSED: u8 = 3;
}

const LONG_ABOUT: &str = "\
Runs AI agents whose important actions wait for a human.

A run streams what an agent says and does. When it calls a tool that has to wait for somebody, \
such as a manager's approval, the run pauses and costs nothing; anybody delivers the answer with \
one command, and the run goes on exactly where it stopped, exactly once.";

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the run is paused.
";

const AFTER_LONG_HELP: &str = "\
To see it all in a minute:   countersign demo

To do it yourself:
  countersign run reimbursement_agent 'Please reimburse $200 for conference travel'
  countersign invocations --state paused
  countersign submit CALL '{\"status\":\"approved\"}' --follow

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 the run is paused.
The help of each command names the variables that stand for its flags; NO_COLOR is respected.
";

/// Runs AI agents whose important actions wait for a human.
#[derive(Debug, Parser)]
#[command(
    name = "countersign",
    version,
    long_about = LONG_ABOUT,
    after_help = AFTER_HELP,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100
)]
pub struct Cli {
    /// Where the server listens: host:port or http://host:port [default: 127.0.0.1:50051]
    #[arg(
        long,
        global = true,
        env = "COUNTERSIGN_SERVER",
        hide_env_values = true,
        value_name = "ADDR"
    )]
    pub server: Option<String>,

    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// `--server` of commands that ask no server: taken, since it may stand for all commands, but not
/// shown.
fn no_server() -> clap::Arg {
    clap::Arg::new("server").long("server").hide(true)
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the main job end to end: pay at once, pause, approve, reject; needs nothing
    #[command(arg = no_server())]
    Demo,

    /// Serve agents over gRPC, until SIGTERM or Ctrl-C
    ///
    /// Without flags it serves the built-in sample on 127.0.0.1:50051 and keeps its sessions in a
    /// file of this user. The first line on standard output tells the address; logs go to standard
    /// error. Wrong settings are told all at once, with their places, and end with exit code 2.
    #[command(arg = no_server())]
    Serve(Box<crate::config::Flags>),

    /// Measure a server here, beside what bounds it
    ///
    /// Starts a server of its own in a temporary directory, unless --server names one (then only
    /// cycles are measured). With all figures it takes minutes; --only chooses.
    Bench(crate::bench::Args),

    /// Play event scripts of ADK against the real runtime, and compare
    ///
    /// What the user and the model said goes in as it was recorded; calls are checked, tools run
    /// and runs pause as on a server, in memory. Exit code 1 tells that something differs, 2 that a
    /// script cannot be read.
    #[command(arg = no_server())]
    Replay(replay::Args),

    /// Print the JSON schema of agent files, for editors
    Schema,

    /// Commands that speak with a server.
    #[command(flatten)]
    Client(ClientCommand),
}

/// Commands that speak with a server.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Give an agent a message and show what comes of it
    Run(run::Args),
    /// Answer a call that waits
    Submit(submit::Args),
    /// Find and decide what waits for a person
    Approvals(approvals::Args),
    /// Follow a session, for ever
    Watch(watch::Args),
    /// List sessions, the newest first
    Sessions(sessions::Args),
    /// List the events of a session
    Events(events::Args),
    /// List the agents that can be run
    Agents(agents::Args),
    /// List invocations, the newest first: what runs, what waits, what ended
    Invocations(invocations::Args),
}

/// Does what a command says against the server at this address, and prints what goes wrong.
pub async fn run(server: &str, command: ClientCommand) -> ExitCode {
    let mut streams = console::Streams::standard();
    let mut console = streams.console(server);
    let done = dispatch(&mut console, server, command).await;
    console.finish(done)
}

async fn dispatch(
    console: &mut Console<'_>,
    server: &str,
    command: ClientCommand,
) -> Result<u8, Failure> {
    let client = Client::new(server)?;
    match command {
        ClientCommand::Run(args) => run::run(console, &client, args).await,
        ClientCommand::Submit(args) => submit::run(console, &client, args).await,
        ClientCommand::Approvals(args) => approvals::run(console, &client, args).await,
        ClientCommand::Watch(args) => watch::run(console, &client, args).await,
        ClientCommand::Sessions(args) => sessions::run(console, &client, args).await,
        ClientCommand::Events(args) => events::run(console, &client, args).await,
        ClientCommand::Agents(args) => agents::run(console, &client, args).await,
        ClientCommand::Invocations(args) => invocations::run(console, &client, args).await,
    }
}

#[cfg(test)]
mod tests;
