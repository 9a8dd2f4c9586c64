//! The server's settings, read once at the start.
//!
//! A flag beats its variable, a variable beats the file, the file beats the default. Every fault is
//! told at once, with its place: the flag, the variable, or file, line and column.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::agent::file::{near, read};

mod file;
mod flags;
#[cfg(test)]
mod tests;

pub use crate::limits::{LIMITS, Limit, Limits};
pub use flags::Flags;

/// Where the server listens unless it is told otherwise: on this machine only.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:50051";

/// What is logged unless it is said otherwise.
pub const DEFAULT_LOG_FILTER: &str = "info";

/// How long a stopping server waits for what runs, unless it is told otherwise.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait of a stopping server.
const MAX_DRAIN_TIMEOUT: Duration = Duration::from_secs(3_600);

/// All settings of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where sessions are kept.
    pub store: StoreUrl,
    /// The directory of the agent files; none: the samples are served.
    pub agents: Option<PathBuf>,
    /// How log lines look.
    pub log_format: LogFormat,
    /// What is logged, in the syntax of `tracing_subscriber::EnvFilter`.
    pub log_filter: String,
    /// How long a stopping server waits for what runs.
    pub drain_timeout: Duration,
    /// Bounds.
    pub limits: Limits,
}

/// Where sessions are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In an SQLite file, which is created if it is missing.
    Sqlite(PathBuf),
    /// In memory: gone when the server stops.
    Memory,
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Settings as they are gathered: what a source does not set is none.
#[derive(Debug, Default)]
struct Partial {
    listen: Option<SocketAddr>,
    store: Option<StoreUrl>,
    agents: Option<PathBuf>,
    log_format: Option<LogFormat>,
    log_filter: Option<String>,
    drain_timeout: Option<Duration>,
    /// Name and value in the limit's unit.
    limits: Vec<(&'static Limit, u64)>,
}

/// The keys of the settings that are no limits, as they stand in a file.
const KEYS: &[&str] = &["listen", "store", "agents", "log_format", "log_filter", "drain_timeout"];

impl Settings {
    /// Reads the settings from flags and variables (which `clap` has put together already) and the
    /// file that they name. The faults are sentences for people, each with its place.
    pub fn read(flags: &Flags) -> Result<Self, Vec<String>> {
        Self::read_with(flags, &|name| std::env::var(name).ok(), dirs::data_dir())
    }

    /// The same; the environment, which only tells where a value came from, is passed in.
    fn read_with(
        flags: &Flags,
        variable: &dyn Fn(&str) -> Option<String>,
        data_dir: Option<PathBuf>,
    ) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let told = flags.read(variable, &mut faults);
        // A variable that is set to nothing counts as not set.
        let from_file = match flags.config.as_deref() {
            Some(path) if !path.is_empty() => file::read(Path::new(path), &mut faults),
            _ => Partial::default(),
        };
        let mut limits = Limits::default();
        for (limit, value) in from_file.limits.iter().chain(&told.limits) {
            limits.set(limit, *value);
        }
        let store = told.store.or(from_file.store).or_else(|| {
            let path = data_dir.map(|dir| dir.join("countersign").join("countersign.db"));
            path.map(StoreUrl::Sqlite)
        });
        let default = DEFAULT_LISTEN.parse().expect("the default is an address");
        let settings = store.map(|store| Self {
            listen: told.listen.or(from_file.listen).unwrap_or(default),
            store,
            agents: told.agents.or(from_file.agents),
            log_format: told.log_format.or(from_file.log_format).unwrap_or(LogFormat::Text),
            log_filter: (told.log_filter.or(from_file.log_filter))
                .unwrap_or_else(|| DEFAULT_LOG_FILTER.to_owned()),
            drain_timeout: (told.drain_timeout.or(from_file.drain_timeout))
                .unwrap_or(DEFAULT_DRAIN_TIMEOUT),
            limits,
        });
        match settings {
            Some(settings) if faults.is_empty() => Ok(settings),
            Some(_) => Err(faults),
            None => {
                let message =
                    "--store: this user has no data directory: say sqlite:PATH or memory:";
                // If a store was named and refused, that is the fault to mend.
                if faults.is_empty() {
                    faults.push(message.to_owned());
                }
                Err(faults)
            }
        }
    }
}

impl Partial {
    /// Takes the text of a setting that is no limit. Relative paths begin at `base`.
    fn set(&mut self, key: &str, text: &str, base: &Path) -> Result<(), String> {
        if text.trim().is_empty() {
            return Err("must not be empty".to_owned());
        }
        match key {
            "listen" => self.listen = Some(listen(text)?),
            "store" => self.store = Some(store(text, base)?),
            "agents" => self.agents = Some(base.join(text)),
            "log_format" => self.log_format = Some(log_format(text)?),
            "log_filter" => self.log_filter = Some(log_filter(text)?),
            "drain_timeout" => self.drain_timeout = Some(drain_timeout(text)?),
            _ => {
                return Err(format!("is unknown{}", near::hint(key, KEYS.iter().copied())));
            }
        }
        Ok(())
    }

    /// Takes the text of a limit.
    fn set_limit(&mut self, name: &str, text: &str) -> Result<(), String> {
        let Some(limit) = LIMITS.iter().find(|limit| limit.name == name) else {
            let hint = near::hint(name, LIMITS.iter().map(|limit| limit.name));
            return Err(format!("there is no limit `{name}`{hint}"));
        };
        self.limits.push((limit, limit.read(text)?));
        Ok(())
    }
}

fn listen(text: &str) -> Result<SocketAddr, String> {
    let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let address = local.as_deref().unwrap_or(text).parse();
    address.map_err(|_| format!("must be an IP address and a port, such as {DEFAULT_LISTEN}"))
}

fn store(text: &str, base: &Path) -> Result<StoreUrl, String> {
    // The text is never repeated: it may hold a password.
    match text.split_once(':') {
        Some(("memory", "")) => Ok(StoreUrl::Memory),
        Some(("sqlite", path)) => match path.strip_prefix("//").unwrap_or(path) {
            "" => Err("must name a file: sqlite:PATH".to_owned()),
            path => Ok(StoreUrl::Sqlite(base.join(path))),
        },
        Some(("postgres" | "postgresql", _)) => {
            Err("PostgreSQL is not built yet: use sqlite:PATH or memory:".to_owned())
        }
        _ => Err("must be sqlite:PATH or memory:".to_owned()),
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("must be text or json{}", near::hint(text, ["text", "json"]))),
    }
}

fn log_filter(text: &str) -> Result<String, String> {
    match tracing_subscriber::EnvFilter::builder().parse(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("is no log filter such as info,countersign=debug: {error}")),
    }
}

fn drain_timeout(text: &str) -> Result<Duration, String> {
    let time = if text == "0s" { Some(Duration::ZERO) } else { read::duration(text) };
    let time = time.filter(|time| *time <= MAX_DRAIN_TIMEOUT);
    time.ok_or_else(|| "must be a duration from 0s to 1h, such as 30s".to_owned())
}
