//! What several commands share: whose sessions they speak of, and pages.

use clap::Args;

use super::Failure;
use super::console::DEFAULT_USER;
use super::text::clean_line;
use crate::client::Client;
use crate::proto::v1;

/// The most pages that are read of any list.
pub const MAX_PAGES: usize = 10_000;

/// The most entries that are asked for at once.
pub const PAGE_SIZE: i32 = 1000;

/// Whose session a command speaks of.
#[derive(Debug, Args)]
pub struct Owner {
    /// The app; may be left out where the server has only one
    #[arg(long, env = "COUNTERSIGN_APP", hide_env_values = true)]
    pub app: Option<String>,

    /// The user whose session it is
    #[arg(long, env = "COUNTERSIGN_USER", hide_env_values = true, default_value = DEFAULT_USER)]
    pub user: String,
}

/// Which of all sessions or invocations a command lists.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only of this app
    #[arg(long, env = "COUNTERSIGN_APP", hide_env_values = true)]
    pub app: Option<String>,

    /// Only of this user
    #[arg(long, env = "COUNTERSIGN_USER", hide_env_values = true)]
    pub user: Option<String>,
}

/// How many are listed.
#[derive(Debug, Args)]
pub struct Limit {
    /// How many at most; 0: all
    #[arg(
        long,
        env = "COUNTERSIGN_LIMIT",
        hide_env_values = true,
        default_value_t = 100,
        value_name = "N"
    )]
    pub limit: usize,
}

impl Limit {
    /// How many to ask for when so many are there.
    pub fn page_size(&self, there: usize) -> i32 {
        match self.limit {
            0 => PAGE_SIZE,
            limit => i32::try_from(limit.saturating_sub(there)).unwrap_or(PAGE_SIZE).min(PAGE_SIZE),
        }
    }

    /// Whether so many are enough.
    pub fn is_reached(&self, there: usize) -> bool {
        self.limit != 0 && there >= self.limit
    }
}

/// All agents of a server.
pub async fn agents(client: &Client) -> Result<Vec<v1::Agent>, Failure> {
    let mut agents = Vec::new();
    let mut request = v1::ListAgentsRequest { page_size: PAGE_SIZE, ..Default::default() };
    for _ in 0..MAX_PAGES {
        let page = client.agents().list_agents(request.clone()).await?.into_inner();
        agents.extend(page.agents);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    Ok(agents)
}

/// The app that was named, or the only one that the server has.
pub async fn resolve_app(client: &Client, app: Option<String>) -> Result<String, Failure> {
    if let Some(app) = app.filter(|app| !app.is_empty()) {
        return Ok(app);
    }
    let mut agents = agents(client).await?;
    match agents.pop() {
        None => Err(Failure::Other("the server has no agents".to_owned())),
        Some(only) if agents.is_empty() => Ok(only.name),
        Some(last) => {
            agents.push(last);
            let names: Vec<_> = agents.iter().map(|agent| clean_line(&agent.name)).collect();
            Err(Failure::Usage(format!(
                "the server has several apps; name one with --app: {}",
                names.join(", ")
            )))
        }
    }
}

/// A time without its fraction, such as `2026-01-31T12:00:00Z`; empty if there is none.
pub fn show_time(time: Option<&crate::proto::wkt::Timestamp>) -> String {
    let whole = |time: &crate::proto::wkt::Timestamp| crate::proto::wkt::Timestamp {
        seconds: time.seconds,
        nanos: 0,
    };
    time.map(|time| super::text::json(&whole(time)).trim_matches('"').to_owned())
        .unwrap_or_default()
}
