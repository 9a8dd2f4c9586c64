//! The binary: flags, logging, build, serve, drain.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use countersign::agent::file::load_dir;
use countersign::app::{self, Builder, Error, Server};
use countersign::cli::{self, Cli, Command, exit};
use countersign::client::DEFAULT_ADDRESS;
use countersign::config::{Flags, LogFormat, Settings};
use tracing_subscriber::EnvFilter;

mod signals;

/// Sessions are many small things that one thread makes and another one drops.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { server, command } = Cli::parse();
    match command {
        Command::Demo => demo().await,
        Command::Serve(flags) => serve(&flags).await,
        Command::Bench(args) => countersign::bench::run(server.as_deref(), args).await,
        Command::Client(command) => {
            cli::run(server.as_deref().unwrap_or(DEFAULT_ADDRESS), command).await
        }
        Command::Replay(args) => cli::replay::replay(args).await,
        Command::Schema => schema(),
    }
}

/// The main job against a server of its own, in memory, on a free port of this machine.
async fn demo() -> ExitCode {
    let mut builder = Builder::new().memory();
    for (name, text) in countersign::agent::file::samples() {
        builder = builder.agent_file(name, text);
    }
    let started = async {
        let server = builder.build().await?;
        let listener = app::bind(([127, 0, 0, 1], 0).into()).await?;
        let address = listener.local_addr().map_err(|e| Error::Failed(e.to_string()))?;
        Ok((server, listener, address))
    };
    match started.await {
        Ok((server, listener, address)) => {
            tokio::spawn(server.serve_on(listener, std::future::pending()));
            cli::demo::demo(&address.to_string()).await
        }
        Err(error) => fail(&error),
    }
}

async fn serve(flags: &Flags) -> ExitCode {
    let settings = match Settings::read(flags) {
        Ok(settings) => settings,
        Err(mut faults) => {
            // Those of the agents are told along, where it is known which ones are meant.
            let dir = flags.agents.as_deref().filter(|dir| !dir.trim().is_empty());
            if let Some(Err(more)) = dir.map(|dir| load_dir(Path::new(dir), &[])) {
                faults.extend(more.iter().map(ToString::to_string));
            }
            return fail(&Error::Settings(faults));
        }
    };
    log(&settings);
    match serve_until_stopped(&settings).await {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(error) => fail(&error),
    }
}

async fn serve_until_stopped(settings: &Settings) -> Result<(), Error> {
    let stop = signals::stop().map_err(|e| Error::Failed(format!("signals: {e}")))?;
    // The socket first: a server that cannot listen changes nothing.
    let listener = app::bind(settings.listen).await?;
    let address = listener.local_addr().map_err(|e| Error::Failed(e.to_string()))?;
    let server = Server::of(settings).await?;
    let mut out = std::io::stdout();
    // Whoever started the server may have closed its output; it serves all the same.
    let _ = writeln!(out, "countersign listening on {address}").and_then(|()| out.flush());
    tracing::info!(%address, store = %settings.store, "listening");
    hint(&server, address);
    server.serve_on(listener, stop).await
}

/// What to type next, for people who look at the terminal.
fn hint(server: &Server, address: std::net::SocketAddr) {
    let Some((app, _)) = server.runner().cast().apps().next() else { return };
    let default = address.to_string() == countersign::config::DEFAULT_LISTEN;
    let flag = if default { String::new() } else { format!(" --server {address}") };
    eprintln!("Try, in another terminal:");
    let (text, answer) = match app.as_str() == cli::demo::APP {
        true => ("'Please reimburse $200 for conference travel'", r#"'{"status":"approved"}'"#),
        false => ("TEXT", "JSON"),
    };
    eprintln!("  countersign{flag} run {app} {text}");
    eprintln!("  countersign{flag} submit CALL {answer} --follow");
    eprintln!("  countersign{flag} watch SESSION");
}

/// The schema goes to whoever reads it; one who leaves early has seen enough.
fn schema() -> ExitCode {
    let _ = writeln!(std::io::stdout(), "{:#}", countersign::agent::file::schema());
    ExitCode::from(exit::DONE)
}

fn log(settings: &Settings) {
    // Colours are for terminals: in a file or a pipe they are noise.
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let colour = colour && std::io::stderr().is_terminal();
    let filter =
        EnvFilter::try_new(&settings.log_filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour);
    match settings.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

fn fail(error: &Error) -> ExitCode {
    eprintln!("{error}");
    match error {
        Error::Settings(_) => ExitCode::from(exit::USAGE),
        Error::Failed(_) => ExitCode::from(exit::FAILED),
    }
}
