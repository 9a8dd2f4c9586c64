//! Replaying event scripts of ADK (`adk test`) against the real runtime.
//!
//! What goes in is what the outside said: the user's turns, and what the model replied, in order.
//! All else is made anew (ids, checks, tool bodies, responses, pauses) by the code that a server
//! runs, in memory, and then compared with the script, event by event.

use std::fmt;

use serde_json::Value;

use crate::agent::Agents;
use crate::session::adk::{self, Defaults, MAX_TEXT_DEPTH};
use crate::session::content::Event;
use crate::session::id::AppName;
use crate::session::json;

mod compare;
mod model;
mod run;

pub use compare::Difference;

/// Why a script could not be replayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable(pub Vec<String>);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Unreadable {}

impl From<String> for Unreadable {
    fn from(fault: String) -> Self {
        Self(vec![fault])
    }
}

/// A script: the events of a session as they were recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    app_name: Option<String>,
    events: Vec<Event>,
}

impl Script {
    /// Reads a script from its text: a list of events, or an object that has one under `events`.
    pub fn read(text: &str) -> Result<Self, Unreadable> {
        let value = json::parse(text, MAX_TEXT_DEPTH).map_err(|wrong| wrong.to_string())?;
        let mut minted = 0;
        let mut mint = || {
            minted += 1;
            format!("replay-{minted}")
        };
        let defaults = Defaults { now: 0, author: "model", mint: &mut mint };
        let told = adk::read(&value, "events", defaults).map_err(|faults| {
            Unreadable(faults.iter().map(|v| format!("{}: {}", v.field, v.rule)).collect())
        })?;
        let text = |event: &Event| is_turn(event) && event.function_responses().next().is_none();
        if !told.events.first().is_some_and(text) {
            return Err("events[0]: a script begins with what a user says".to_owned().into());
        }
        Ok(Self { app_name: told.app_name, events: told.events })
    }

    /// How many events it has.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it has none; one that was read has one at least.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The app that the script is for: the one that is asked for, or the one that the script names,
    /// or the first agent in it; the latter two if they are served.
    pub fn app(&self, asked: Option<&str>, agents: &Agents) -> Result<AppName, Unreadable> {
        let known = |name: &str| {
            let app = AppName::parse(name).ok()?;
            agents.get(&app).is_some().then_some(app)
        };
        let names = || agents.iter().map(|(app, _)| app.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(asked) = asked {
            let none = || format!("there is no agent {asked:?}; there are: {}", names());
            return known(asked).ok_or_else(|| none().into());
        }
        let authors = self.events.iter().map(|event| event.author.as_str());
        let named = self.app_name.as_deref().into_iter();
        let mut said = named.chain(authors.filter(|author| *author != "user"));
        said.find_map(known).ok_or_else(|| {
            format!("no agent of the script is there; there are: {}", names()).into()
        })
    }

    /// Plays the script with an app, and tells every difference, in order; none if all is equal.
    pub async fn replay(
        &self,
        agents: &Agents,
        app: &AppName,
    ) -> Result<Vec<Difference>, Unreadable> {
        let played = run::run(self, agents, app).await?;
        Ok(compare::compare(&self.events, &played))
    }
}

/// What a user says, as opposed to what ADK itself says in his name, at a node.
fn is_turn(event: &Event) -> bool {
    let node = event.imported.as_ref().is_some_and(|more| !more.node_path.is_empty());
    event.author == "user" && event.content.is_some() && !node
}

/// What came of a script.
struct Played {
    /// The events of the session.
    events: Vec<Event>,
    /// Turns that were refused: where they stand in the script, and why.
    refused: Vec<(usize, Value)>,
}
