//! The flags of `countersign serve`, each with its variable. They are taken as texts and read here,
//! so that a wrong one is told together with all other faults.

use std::path::Path;

use super::Partial;

/// The flags of `countersign serve`.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
pub struct Flags {
    /// Address to listen on [default: 127.0.0.1:50051]
    ///
    /// The first line on standard output tells the address. Port 0 takes a free port. The default
    /// is reachable from this machine only, and so it should stay: callers are not asked who they
    /// are yet.
    #[arg(long, value_name = "ADDRESS:PORT", env = "COUNTERSIGN_LISTEN", hide_env_values = true)]
    pub listen: Option<String>,

    /// Where sessions are kept: sqlite:PATH or memory: [default: a file of this user]
    ///
    /// sqlite:PATH keeps them in a file, which is created if it is missing; one server at a time
    /// can have it open. memory: keeps them until the server stops, for trying things out. Without
    /// this flag it is the file countersign/countersign.db in the data directory of the user
    /// (on Linux ~/.local/share).
    #[arg(long, value_name = "URL", env = "COUNTERSIGN_STORE", hide_env_values = true)]
    pub store: Option<String>,

    /// Directory of the agent files [default: the built-in samples]
    ///
    /// Every *.yaml and *.yml file in it declares one agent, which is an app of the same name;
    /// `countersign schema` prints what such a file may hold. All faults of all files are told
    /// before the server refuses to start.
    #[arg(long, value_name = "DIR", env = "COUNTERSIGN_AGENTS", hide_env_values = true)]
    pub agents: Option<String>,

    /// TOML file with settings
    ///
    /// It has the names of these flags as keys (listen, store, agents, log_format, log_filter,
    /// drain_timeout) and a table named limits. Relative paths in it begin at its own directory.
    /// A flag beats its variable, a variable beats the file.
    #[arg(long, value_name = "FILE", env = "COUNTERSIGN_CONFIG", hide_env_values = true)]
    pub config: Option<String>,

    /// How log lines look: text or json [default: text]
    ///
    /// Logs go to standard error; standard output has one line only, the address.
    #[arg(long, value_name = "FORMAT", env = "COUNTERSIGN_LOG_FORMAT", hide_env_values = true)]
    pub log_format: Option<String>,

    /// What is logged [default: info]
    ///
    /// A level (error, warn, info, debug, trace), and levels for parts of the program:
    /// info,countersign=debug
    #[arg(long, value_name = "FILTER", env = "COUNTERSIGN_LOG_FILTER", hide_env_values = true)]
    pub log_filter: Option<String>,

    /// How long a stopping server waits for what runs [default: 30s]
    ///
    /// On SIGTERM it takes no new runs, ends streams with RECONNECT, and waits so long for tool
    /// bodies that have begun. What does not end in time goes on after the next start.
    #[arg(long, value_name = "TIME", env = "COUNTERSIGN_DRAIN_TIMEOUT", hide_env_values = true)]
    pub drain_timeout: Option<String>,

    /// Sets a limit, such as event_bytes=2MiB; can be repeated
    ///
    /// The limits are those of the table limits in the file. A wrong name is answered with the
    /// nearest one, a wrong value with its range.
    #[arg(
        long = "limit",
        value_name = "NAME=VALUE",
        env = "COUNTERSIGN_LIMITS",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub limits: Vec<String>,
}

impl Flags {
    /// Reads the texts. A variable that is set to nothing counts as not set.
    pub(super) fn read(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
        faults: &mut Vec<String>,
    ) -> Partial {
        let texts = [
            ("listen", &self.listen),
            ("store", &self.store),
            ("agents", &self.agents),
            ("log_format", &self.log_format),
            ("log_filter", &self.log_filter),
            ("drain_timeout", &self.drain_timeout),
        ];
        let mut partial = Partial::default();
        for (key, text) in texts {
            let Some(text) = text else { continue };
            let name = format!("COUNTERSIGN_{}", key.to_ascii_uppercase());
            let from_variable = variable(&name).as_ref() == Some(text);
            if from_variable && text.is_empty() {
                continue;
            }
            if let Err(message) = partial.set(key, text, Path::new("")) {
                let flag = format!("--{}", key.replace('_', "-"));
                let place = if from_variable { name } else { flag };
                faults.push(format!("{place}: {message}"));
            }
        }
        let variable = variable("COUNTERSIGN_LIMITS").filter(|text| *text == self.limits.join(","));
        let place = if variable.is_some() { "COUNTERSIGN_LIMITS" } else { "--limit" };
        for text in self.limits.iter().filter(|text| variable.is_none() || !text.is_empty()) {
            let set = match text.split_once('=') {
                Some((name, value)) => partial.set_limit(name.trim(), value),
                None => Err("must be NAME=VALUE".to_owned()),
            };
            if let Err(message) = set {
                faults.push(format!("{place}: {message}"));
            }
        }
        partial
    }
}
