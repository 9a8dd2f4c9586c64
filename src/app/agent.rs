//! Agents that are written in Rust: what an agent file says, and the functions beside it.

use std::sync::Arc;

use crate::agent::approvals::Approvals;
use crate::agent::{self as data, Declaration, builtin, file};
use crate::runner::Registry;
use crate::session::id::AgentName;
use crate::tool::{Declared, Tool};

/// An agent in a few lines, for [`Builder::agent`](super::Builder::agent). What is wrong with it is
/// told when the server is built.
///
/// ```
/// use countersign::app::Agent;
/// use countersign::tool::{Context, Function};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Ticket {
///     /// How urgent it is: low, medium or high.
///     urgency: String,
/// }
///
/// /// Somebody creates the ticket, sooner or later: there is nothing to return yet.
/// async fn create_ticket(ticket: Ticket, context: Context) -> Result<(), String> {
///     context.set("urgency", ticket.urgency);
///     Ok(())
/// }
///
/// let agent = Agent::new("ticket_agent")
///     .instruction("Create a ticket when you are asked to.")
///     .model("my-model")
///     .tool(Function::new("create_ticket", "Creates a ticket.", create_ticket).long_running());
/// ```
pub struct Agent {
    name: String,
    description: String,
    instruction: String,
    speaks: Option<Speaks>,
    tools: Vec<Arc<dyn Tool>>,
    unknown: Vec<String>,
    approvals: Approvals,
    max_prompt_events: Option<u32>,
}

/// What an agent speaks with.
enum Speaks {
    /// A registered model.
    Model(String),
    /// The built-in model, with rules to be read.
    Script(String),
}

impl Agent {
    /// An agent of this name, which is also the app's: a letter, then letters, digits, `_` and `-`.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            instruction: String::new(),
            speaks: None,
            tools: Vec::new(),
            unknown: Vec::new(),
            approvals: Approvals::default(),
            max_prompt_events: None,
        }
    }

    /// One line for people and for other agents.
    pub fn description(mut self, text: impl Into<String>) -> Self {
        self.description = text.into();
        self
    }

    /// What the model is told before the conversation.
    pub fn instruction(mut self, text: impl Into<String>) -> Self {
        self.instruction = text.into();
        self
    }

    /// It speaks with the model that is registered under this name
    /// ([`Builder::model`](super::Builder::model)).
    pub fn model(mut self, name: impl Into<String>) -> Self {
        self.speaks = Some(Speaks::Model(name.into()));
        self
    }

    /// It speaks with the built-in model, by these rules: the YAML that stands under `script` in an
    /// agent file.
    pub fn script(mut self, rules: impl Into<String>) -> Self {
        self.speaks = Some(Speaks::Script(rules.into()));
        self
    }

    /// A tool that it may call; the model sees them in this order. The tool is the agent's own: one
    /// of the same name that another agent has, or that the builder knows, is another tool.
    pub fn tool(mut self, tool: impl Tool) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// A tool of the server itself that it may call: `adk_request_input`, by which a model asks a
    /// person for something, or `get_user_choice`.
    pub fn built_in(mut self, name: &str) -> Self {
        match builtin::named(name).and_then(Declared::new) {
            Some(tool) => self.tools.push(Arc::new(tool)),
            None => self.unknown.push(name.to_owned()),
        }
        self
    }

    /// Which of its calls wait for a person, beside what its tools say.
    pub fn approvals(mut self, approvals: Approvals) -> Self {
        self.approvals = approvals;
        self
    }

    /// How many of the session's newest events a prompt holds, from 1 on; all, if it is not said.
    pub fn max_prompt_events(mut self, events: u32) -> Self {
        self.max_prompt_events = Some(events);
        self
    }

    /// The agent as data, its functions in the registry; or every fault.
    pub(super) fn read(self, registry: &mut Registry) -> Result<data::Agent, Vec<String>> {
        let Self { name, description, instruction, speaks, .. } = self;
        let Self { tools, unknown, approvals, max_prompt_events, .. } = self;
        let mut faults = Vec::new();
        let declarations: Vec<Declaration> =
            tools.iter().map(|tool| tool.declaration().clone()).collect();
        let model = match speaks {
            Some(Speaks::Model(model)) => Some(data::Model::Named(model)),
            Some(Speaks::Script(rules)) => {
                let rules = file::script(format!("agent {name}: script"), &rules, &declarations);
                let told = |wrong: Vec<file::Fault>| {
                    faults.extend(wrong.iter().map(ToString::to_string));
                };
                rules.map_err(told).ok().map(|script| data::Model::Scripted(Arc::new(script)))
            }
            None => {
                faults.push(format!("agent {name}: it needs a `model` or a `script`"));
                None
            }
        };
        for tool in unknown {
            let known = builtin::NAMES.join(", ");
            faults.push(format!("agent {name}: there is no built-in `{tool}`; known: {known}"));
        }
        let told = |fault| format!("agent {name}: approvals: {fault}");
        faults.extend(approvals.faults().into_iter().map(told));
        if max_prompt_events == Some(0) {
            faults.push(format!("agent {name}: `max_prompt_events` must be above 0"));
        }
        for (place, tool) in declarations.iter().enumerate() {
            let told = |fault| format!("agent {name}: tool {}: {fault}", tool.name);
            faults.extend(tool.faults().into_iter().map(told));
            if declarations[..place].iter().any(|before| before.name == tool.name) {
                faults.push(told("there are two of this name".to_owned()));
            }
        }
        let parsed = match AgentName::parse(name.as_str()) {
            Ok(parsed) => parsed,
            Err(error) => {
                faults.push(format!("agent {name}: `name` {error}"));
                return Err(faults);
            }
        };
        tools.into_iter().for_each(|tool| registry.own(&parsed, tool));
        let model = model.filter(|_| faults.is_empty()).ok_or(faults)?;
        let tools = declarations;
        let approvals = approvals.seal(&tools);
        Ok(data::Agent {
            name: parsed,
            description,
            instruction,
            model,
            tools,
            approvals,
            max_prompt_events,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::approvals::Rule;

    fn agent() -> Agent {
        Agent::new("a").model("m")
    }

    fn faults(agent: Agent) -> Vec<String> {
        agent.read(&mut Registry::default()).expect_err("it has faults")
    }

    #[test]
    fn approvals_and_built_in_tools_are_said_in_rust_too() {
        let small = Rule::new("small", "args.options.size() < 3").unwrap();
        let said = Approvals { auto_approve: vec![small], ..Approvals::default() };
        let whole = agent().built_in(builtin::USER_CHOICE).approvals(said.clone());
        let whole = whole.read(&mut Registry::default()).unwrap();
        assert_eq!(whole.tools, [builtin::named(builtin::USER_CHOICE).unwrap()]);
        assert_eq!(whole.approvals, said.seal(&whole.tools));
        assert!(whole.approvals.revision.starts_with("sha256:"));

        let told = faults(agent().built_in("adk_request_credential"));
        let known = "known: adk_request_input, get_user_choice";
        assert_eq!(
            told,
            [format!("agent a: there is no built-in `adk_request_credential`; {known}")]
        );
        let none = Approvals { max_auto_approval_iterations: 0, ..Approvals::default() };
        let told = faults(agent().approvals(none));
        assert_eq!(told, ["agent a: approvals: `max_auto_approval_iterations` must be above 0"]);
    }
}
