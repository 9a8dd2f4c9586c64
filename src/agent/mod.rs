//! What agents are, as data: their names and instructions, the tools they may call and how those
//! behave. Nothing here runs anything: bodies of tools live in `tool`, models in `model`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::session::content::Object;
use crate::session::id::{AgentName, AppName};

pub mod file;
pub mod script;
pub mod template;

/// How long a body may run unless its tool says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The note that ADK adds to the description of a long-running tool, in our words.
pub const LONG_RUNNING_NOTE: &str = "NOTE: This is a long-running operation. Do not call this tool \
     again if it has already returned an intermediate or pending status.";

/// An agent: a model with an instruction and tools.
#[derive(Debug, Clone)]
pub struct Agent {
    /// Its name, which is also the app's if it is a root.
    pub name: AgentName,
    /// One line for people and for other agents.
    pub description: String,
    /// What the model is told before the conversation.
    pub instruction: String,
    /// Which model speaks.
    pub model: Model,
    /// The tools that it may call, in the order the model sees them.
    pub tools: Vec<Declaration>,
    /// How many of the session's newest events a prompt holds; none: all of them.
    pub max_prompt_events: Option<u32>,
}

/// Which model an agent speaks with.
#[derive(Debug, Clone)]
pub enum Model {
    /// The built-in model, which follows rules.
    Scripted(Arc<script::Script>),
    /// A model registered under this name.
    Named(String),
}

/// What is known of a tool without running it. What a call needs of it is recorded with the call.
#[derive(Debug, Clone, PartialEq)]
pub struct Declaration {
    /// The name that the model calls it by: letters, digits, `_`, `-`, at most 64.
    pub name: String,
    /// What the model is told of it; the note of a long-running tool is added when it is told.
    pub description: String,
    /// JSON schema of its arguments: an object schema.
    pub parameters: Value,
    /// What happens when it is called.
    pub behaviour: Behaviour,
    /// Where its body comes from.
    pub body: Body,
}

/// How a tool's calls behave; recorded with each call, so that a later change of the tool never
/// changes a call that was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Behaviour {
    /// The outcome comes from outside, after the body gave a placeholder or nothing.
    pub long_running: bool,
    /// What an answer without `will_continue` means.
    pub answers: Answers,
    /// An answer is final if each of these keys holds one of the listed values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub final_when: BTreeMap<String, Vec<Value>>,
    /// JSON schema that final answers must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_schema: Option<Value>,
    /// A call that nobody answered for so long ends as expired; counted from its request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<Duration>,
    /// The objects that the typed decisions send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decisions: Option<Decisions>,
    /// What may be done when it is not known whether the body ran.
    pub effect: Effect,
    /// How long the body may run.
    pub timeout: Duration,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            long_running: false,
            answers: Answers::Once,
            final_when: BTreeMap::new(),
            answer_schema: None,
            expires_after: None,
            decisions: None,
            effect: Effect::Once,
            timeout: DEFAULT_TIMEOUT,
        }
    }
}

/// What an answer without `will_continue` means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Answers {
    /// The first one is final.
    Once,
    /// It is told to the model, and the call stays held, unless `final_when` matches (ADK).
    Many,
}

/// The objects that the typed decisions on a long-running call send.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decisions {
    /// Sent when it is approved.
    pub approve: Object,
    /// Sent when it is denied.
    pub deny: Object,
}

/// What may be done when it is not known whether a body ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Effect {
    /// It only reads: run it again freely.
    Read,
    /// It can be run again with the same key.
    Idempotent,
    /// It must not be run again: somebody is asked what happened.
    Once,
}

/// Where a tool's body comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A registered function of the same name as the tool.
    Function,
    /// An object declared in the agent file, with `${...}` places filled from the call.
    Object(Object),
    /// Nothing is returned: the tool only asks somebody outside.
    Nothing,
}

/// All agents that a server knows, by app.
#[derive(Debug, Clone, Default)]
pub struct Agents {
    by_app: BTreeMap<AppName, Arc<Agent>>,
}

impl Agents {
    /// Adds an app; its name is its root agent's. The one before of that name is given back.
    pub fn insert(&mut self, root: Agent) -> Option<Arc<Agent>> {
        let app = AppName::parse(root.name.as_str()).expect("agents and apps are named alike");
        self.by_app.insert(app, Arc::new(root))
    }

    /// The root agent of an app.
    pub fn get(&self, app: &AppName) -> Option<&Arc<Agent>> {
        self.by_app.get(app)
    }

    /// All apps by name.
    pub fn iter(&self) -> impl Iterator<Item = (&AppName, &Arc<Agent>)> {
        self.by_app.iter()
    }
}

impl Agent {
    /// The tool of this name.
    pub fn tool(&self, name: &str) -> Option<&Declaration> {
        self.tools.iter().find(|tool| tool.name == name)
    }
}

impl Declaration {
    /// What the model is told of the tool (ADK 4.2: the note stands behind a blank line).
    pub fn told_description(&self) -> String {
        match (self.behaviour.long_running, self.description.is_empty()) {
            (false, _) => self.description.clone(),
            (true, true) => LONG_RUNNING_NOTE.to_owned(),
            (true, false) => format!("{}\n\n{LONG_RUNNING_NOTE}", self.description),
        }
    }
}
