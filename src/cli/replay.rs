//! `countersign replay`: event scripts of ADK against the real runtime. It asks no server: each
//! script is played in this process, in memory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::text::{clean, clean_line};
use super::{Console, Failure, YesNo, console, exit};
use crate::agent::Agents;
use crate::agent::file::{load, load_dir, samples};
use crate::replay::{Difference, Script};

/// Largest script, in bytes.
const MAX_SCRIPT_BYTES: u64 = 64 << 20;

/// Arguments of `replay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The scripts: JSON with the events of a session, as ADK records them
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The directory of the agent files [default: the built-in sample]
    #[arg(long, env = "COUNTERSIGN_AGENTS", hide_env_values = true, value_name = "DIR")]
    agents: Option<PathBuf>,

    /// The agent to play with [default: the one that the script names]
    #[arg(long, env = "COUNTERSIGN_APP", hide_env_values = true)]
    app: Option<String>,

    /// Print one JSON object a line: each difference, then what came of the file
    #[arg(long, env = "COUNTERSIGN_JSON", hide_env_values = true, value_parser = YesNo::new())]
    json: bool,
}

/// Plays the scripts, on the process's own streams.
pub async fn replay(args: Args) -> ExitCode {
    let mut streams = console::Streams::standard();
    let mut console = streams.console("");
    let done = run(&mut console, args).await;
    console.finish(done)
}

/// Runs the command.
async fn run(console: &mut Console<'_>, args: Args) -> Result<u8, Failure> {
    let agents = agents(args.agents.as_deref()).map_err(|faults| {
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        Failure::Usage(faults.join("\n"))
    })?;
    let app = args.app.as_deref().filter(|app| !app.is_empty());
    let mut code = exit::DONE;
    for file in &args.files {
        let name = clean_line(&file.display().to_string());
        match one(file, &agents, app).await {
            Err(why) => {
                code = exit::USAGE;
                if args.json {
                    writeln!(console.out, "{}", json!({"file": name, "error": why}))?;
                } else {
                    writeln!(console.err, "{name}: {}", clean(&why))?;
                }
            }
            Ok((events, found)) => {
                if !found.is_empty() && code == exit::DONE {
                    code = exit::FAILED;
                }
                show(console, &name, events, &found, args.json)?;
            }
        }
    }
    Ok(code)
}

fn agents(dir: Option<&Path>) -> Result<Agents, Vec<crate::agent::file::Fault>> {
    match dir.filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => load_dir(dir, &[]),
        None => {
            let own = samples().iter().map(|(name, text)| (name.into(), (*text).to_owned()));
            load(&own.collect::<Vec<_>>(), &[])
        }
    }
}

/// Plays one script: how many events it has, and the differences.
async fn one(
    file: &Path,
    agents: &Agents,
    app: Option<&str>,
) -> Result<(usize, Vec<Difference>), String> {
    let length = std::fs::metadata(file).map_err(|wrong| wrong.to_string())?.len();
    if length > MAX_SCRIPT_BYTES {
        return Err(format!("a script may have {} MiB at most", MAX_SCRIPT_BYTES >> 20));
    }
    let text = std::fs::read_to_string(file).map_err(|wrong| wrong.to_string())?;
    let script = Script::read(&text).map_err(|wrong| wrong.to_string())?;
    let app = script.app(app, agents).map_err(|wrong| wrong.to_string())?;
    let found = script.replay(agents, &app).await.map_err(|wrong| wrong.to_string())?;
    Ok((script.len(), found))
}

fn show(
    console: &mut Console<'_>,
    name: &str,
    events: usize,
    found: &[Difference],
    as_json: bool,
) -> Result<(), Failure> {
    let differences = found.len();
    if as_json {
        for one in found {
            writeln!(console.out, "{}", line(name, one))?;
        }
        let whole = json!({"file": name, "events": events, "differences": differences});
        writeln!(console.out, "{whole}")?;
        return Ok(());
    }
    if found.is_empty() {
        writeln!(console.out, "{name}: equal, {events} events")?;
        return Ok(());
    }
    let paint = console.paint;
    let plural = if differences == 1 { "difference" } else { "differences" };
    writeln!(console.out, "{name}: {differences} {plural} in {events} events")?;
    writeln!(console.out, "{}", paint.bold(format!("--- {name}")))?;
    writeln!(console.out, "{}", paint.bold("+++ replay"))?;
    for one in found {
        let place = match (one.path.as_str(), &one.expected, &one.got) {
            ("", Some(_), None) => ": missing".to_owned(),
            ("", Some(_), Some(_)) => ": refused".to_owned(),
            ("", None, _) => ": not in the script".to_owned(),
            (path, ..) => format!(", {path}"),
        };
        let head = format!("@@ event {} ({}){place} @@", one.event, one.author);
        writeln!(console.out, "{}", paint.cyan(clean_line(&head)))?;
        if let Some(expected) = &one.expected {
            writeln!(
                console.out,
                "{}",
                paint.red(format!("-{}", clean_line(&expected.to_string())))
            )?;
        }
        if let Some(got) = &one.got {
            writeln!(
                console.out,
                "{}",
                paint.yellow(format!("+{}", clean_line(&got.to_string())))
            )?;
        }
    }
    Ok(())
}

fn line(name: &str, one: &Difference) -> Value {
    let mut line =
        json!({"file": name, "event": one.event, "author": one.author, "path": one.path});
    if let Some(expected) = &one.expected {
        line["expected"] = expected.clone();
    }
    if let Some(got) = &one.got {
        line["got"] = got.clone();
    }
    line
}
