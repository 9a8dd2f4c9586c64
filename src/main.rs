//! The binary: reads the command line and does what it says.

use std::process::ExitCode;

use clap::Parser;
use countersign::cli::{self, Cli, Command};

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { server, command } = Cli::parse();
    match command {
        Command::Demo => cli::demo::demo(&server).await,
        Command::Client(command) => cli::run(&server, command).await,
    }
}
