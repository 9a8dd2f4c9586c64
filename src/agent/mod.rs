//! What agents are, as data: their names and instructions, the tools they may call and how those
//! behave. Nothing here runs anything: bodies of tools live in `tool`, models in `model`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::session::approval::{Action, Deadline};
use crate::session::content::Object;
use crate::session::id::{AgentName, AppName};
use approvals::check_deadlines;

pub use crate::session::call::{Answers, Behaviour, DEFAULT_TIMEOUT, Decisions, Effect};

pub mod approvals;
pub mod builtin;
pub mod cel;
pub mod file;
pub mod script;
pub mod template;

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
    /// Which calls wait for a person.
    pub approvals: approvals::Approvals,
    /// How many of the session's newest events a prompt holds; none: all of them.
    pub max_prompt_events: Option<u32>,
}

/// Names that begin so are for tools of the server itself (ADK's are named so).
const RESERVED_PREFIX: &str = "adk_";

/// Checks the name of a tool; the text tells the rule that it breaks.
pub fn check_tool_name(name: &str) -> Result<(), String> {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !starts || !name.chars().all(plain) || name.len() > 64 {
        let rule = "begin with a letter or `_` and hold only letters, digits, `_` and `-`, at most";
        return Err(format!("`name` of a tool must {rule} 64"));
    }
    if name.starts_with(RESERVED_PREFIX) {
        return Err(builtin::refused(name));
    }
    Ok(())
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
    /// Which of its calls wait for a person.
    pub approval: approvals::ToolApproval,
    /// Where its body comes from.
    pub body: Body,
}

/// Where a tool's body comes from.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A registered function of the same name as the tool.
    Function,
    /// An object declared in the agent file, with `${...}` places filled from the call.
    Object(Object),
    /// The same, but a person may be asked first, from inside.
    Asking(Box<Asking>),
    /// Nothing is returned: the tool only asks somebody outside.
    Nothing,
}

/// A declared body that asks a person before it gives its object.
#[derive(Debug, Clone, PartialEq)]
pub struct Asking {
    /// For which calls it asks; none: for all.
    pub when: Option<cel::Expression>,
    /// What is asked, with places.
    pub hint: String,
    /// What whoever decides is to fill in, with places.
    pub payload: Option<Value>,
    /// What the model is told meanwhile, with places.
    pub interim: Object,
    /// What it is told if somebody refuses, with places; none: the server's own words.
    pub declined: Option<Object>,
    /// What is returned once somebody agreed, or if nobody is asked; places of what was filled in
    /// are `${confirmation.payload.KEY}`.
    pub returns: Object,
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
    /// Everything that is wrong with it, its schemas apart: the name, and words that only a
    /// long-running tool has.
    pub fn faults(&self) -> Vec<String> {
        let behaviour = &self.behaviour;
        let only_held = [
            // Where an answer says that it is final, others are not: `final_when` is what was said.
            ("answers", behaviour.answers != Answers::Once && behaviour.final_when.is_empty()),
            ("final_when", !behaviour.final_when.is_empty()),
            ("answer_schema", behaviour.answer_schema.is_some()),
            ("expires_after", behaviour.expires_after.is_some()),
            ("decisions", behaviour.decisions.is_some()),
            ("deadlines", !behaviour.deadlines.is_empty()),
            ("inbox", behaviour.inbox),
        ];
        let idle = only_held.into_iter().filter(|(_, said)| *said && !behaviour.long_running);
        let idle =
            idle.map(|(word, _)| format!("`{word}` is only for tools that are long-running"));
        let name = if builtin::is(self) { Ok(()) } else { check_tool_name(&self.name) };
        let end = behaviour.expires_after.map(|after| Deadline { after, action: Action::Expire });
        let mut held = behaviour.deadlines.clone();
        if !held.is_empty() {
            held.extend(end);
        }
        let times = [check_deadlines(&held), check_deadlines(&self.approval.deadlines)];
        let times = times.into_iter().filter_map(Result::err);
        name.err().into_iter().chain(idle).chain(times).collect()
    }

    /// What the model is told of the tool (ADK 4.2: the note stands behind a blank line).
    pub fn told_description(&self) -> String {
        match (self.behaviour.long_running, self.description.is_empty()) {
            (false, _) => self.description.clone(),
            (true, true) => LONG_RUNNING_NOTE.to_owned(),
            (true, false) => format!("{}\n\n{LONG_RUNNING_NOTE}", self.description),
        }
    }
}
