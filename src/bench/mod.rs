//! `countersign bench`: the figures of the documentation, measured here, beside what bounds them.
//!
//! The server under test is a process of its own, on this machine, with its store in a temporary
//! directory; the load comes from this process. Every figure stands beside what it is to be
//! compared with, measured in the same run: absolute numbers of two machines say nothing about each
//! other.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

mod appends;
mod bare;
mod cycles;
mod inbox;
mod judging;
mod machine;
mod paused;
mod server;
mod streams;
mod turns;
mod watchers;

/// What can go wrong is told and ends the run.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The arguments of `countersign bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Print one JSON object a line: figure, value, unit, and what it is to be compared with
    #[arg(long)]
    json: bool,

    /// Measure only these (repeat, or separate by commas)
    #[arg(long, value_name = "FIGURE", value_delimiter = ',', value_enum)]
    only: Vec<Figure>,

    /// How long each load runs, in seconds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,

    /// How many clients at once, for the figures that have clients
    #[arg(long, default_values_t = [1, 64], value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: Vec<u32>,

    /// How many sessions are paused for the figures about pauses and the inbox
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    paused: u32,

    /// How many idle watchers are opened
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    watchers: u32,

    /// Serve bare streams, as something to compare with; the first line tells the address
    #[arg(long, hide = true)]
    bare_server: bool,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Figure {
    /// Cycles a second, and how long their phases take
    Cycles,
    /// Events a second: catch-up from the log, and pieces of texts
    Streams,
    /// Appends a second to the store
    Appends,
    /// One more turn after 10, 1,000 and 10,000 events
    Turns,
    /// Bytes of an idle watcher
    Watchers,
    /// Memory, disk and start with many paused sessions
    Paused,
    /// Decisions, pages and updates of a large inbox, and a gated call beside another
    Inbox,
    /// Judging a call by an agent's rules
    Judging,
}

/// One figure.
struct Measured {
    figure: &'static str,
    /// What it was measured with, such as `clients`.
    with: Vec<(&'static str, u64)>,
    value: f64,
    unit: &'static str,
    beside: BTreeMap<&'static str, f64>,
}

impl Measured {
    fn new(figure: &'static str, value: f64, unit: &'static str) -> Self {
        Self { figure, with: Vec::new(), value, unit, beside: BTreeMap::new() }
    }

    fn with(mut self, name: &'static str, value: impl Into<u64>) -> Self {
        self.with.push((name, value.into()));
        self
    }

    fn beside(mut self, name: &'static str, value: f64) -> Self {
        self.beside.insert(name, value);
        self
    }
}

/// Where figures go as they are measured.
struct Report {
    json: bool,
}

impl Report {
    fn tell(&self, measured: &Measured) -> Result<(), Failure> {
        let Measured { figure, with, value, unit, beside } = measured;
        let mut out = std::io::stdout().lock();
        if self.json {
            let mut line = json!({"figure": figure, "value": rounded(*value), "unit": unit});
            for (name, value) in with {
                line[*name] = json!(value);
            }
            let beside = beside.iter().map(|(name, value)| (name.to_string(), rounded(*value)));
            line["beside"] = Value::Object(beside.collect());
            writeln!(out, "{line}")?;
        } else {
            let with: Vec<String> = with.iter().map(|(name, n)| format!("{n} {name}")).collect();
            let with =
                if with.is_empty() { String::new() } else { format!(" ({})", with.join(", ")) };
            let beside: Vec<String> =
                beside.iter().map(|(name, value)| format!("{name} {}", rounded(*value))).collect();
            let title = format!("{figure}{with}");
            let value = format!("{} {unit}", rounded(*value));
            writeln!(out, "{title:<48} {value:>18}   {}", beside.join(", "))?;
        }
        out.flush()?;
        Ok(())
    }
}

/// Three significant digits, plain.
fn rounded(value: f64) -> Value {
    if value == 0.0 || !value.is_finite() {
        return json!(0);
    }
    let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
    let rounded = (value * scale).round() / scale;
    if rounded.fract() == 0.0 { json!(rounded as i64) } else { json!(rounded) }
}

/// Measures what was asked for. `server` names one to measure; none: one is started.
pub async fn run(server: Option<&str>, args: Args) -> ExitCode {
    if args.bare_server {
        return done(bare::serve().await);
    }
    done(measure(server, &args).await)
}

fn done(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(server: Option<&str>, args: &Args) -> Result<(), Failure> {
    let report = Report { json: args.json };
    let wanted = |figure| args.only.is_empty() || args.only.contains(&figure);
    let time = Duration::from_secs(args.seconds);
    if let Some(address) = server {
        // Of somebody else's server only what needs no look inside it can be measured.
        if wanted(Figure::Cycles) {
            cycles::measure(&report, address, &args.clients, time, None).await?;
        }
        return Ok(());
    }
    if wanted(Figure::Cycles) {
        let own = server::Own::start().await?;
        let disk = machine::fsyncs_per_second(own.directory())?;
        cycles::measure(&report, own.address(), &args.clients, time, Some(disk)).await?;
    }
    if wanted(Figure::Appends) {
        appends::measure(&report, time).await?;
    }
    if wanted(Figure::Streams) {
        streams::measure(&report, &args.clients, time).await?;
    }
    if wanted(Figure::Turns) {
        turns::measure(&report).await?;
    }
    if wanted(Figure::Watchers) {
        watchers::measure(&report, args.watchers).await?;
    }
    if wanted(Figure::Paused) {
        paused::measure(&report, args.paused).await?;
    }
    if wanted(Figure::Judging) {
        judging::measure(&report)?;
    }
    if wanted(Figure::Inbox) {
        inbox::measure(&report, args.paused, time).await?;
    }
    Ok(())
}

/// The quantile of sorted times, in milliseconds.
fn quantile(sorted: &[Duration], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (sorted.len() as f64 * q) as usize;
    sorted.get(at.min(last)).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}
