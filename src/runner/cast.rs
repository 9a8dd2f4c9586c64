//! The cast: every app with all that it needs to run, put together once and checked then.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agent::{Agent, Agents, Body, Declaration, Model as ModelName};
use crate::model::scripted::Scripted;
use crate::model::{Model, ToolSpec};
use crate::session::id::{AgentName, AppName};
use crate::tool::arguments::Parameters;
use crate::tool::{Declared, Tool};

/// Functions by name, and models by name.
#[derive(Default, Clone)]
pub struct Registry {
    tools: BTreeMap<String, Arc<dyn Tool>>,
    own: BTreeMap<AgentName, BTreeMap<String, Arc<dyn Tool>>>,
    models: BTreeMap<String, Arc<dyn Model>>,
}

impl Registry {
    /// Adds a function that every agent can use; the one before of that name is given back.
    pub fn tool(&mut self, tool: impl Tool) -> Option<Arc<dyn Tool>> {
        self.tools.insert(tool.declaration().name.clone(), Arc::new(tool))
    }

    /// Adds an agent's own function, which no other agent sees; one of the same name that every
    /// agent can use is hidden from it.
    pub fn own(&mut self, agent: &AgentName, tool: Arc<dyn Tool>) {
        let name = tool.declaration().name.clone();
        self.own.entry(agent.clone()).or_default().insert(name, tool);
    }

    /// Adds a model; the one before of that name is given back.
    pub fn model(&mut self, name: impl Into<String>, model: impl Model) -> Option<Arc<dyn Model>> {
        self.models.insert(name.into(), Arc::new(model))
    }

    /// The function that an agent's tool runs.
    fn body(&self, agent: &AgentName, tool: &str) -> Option<Arc<dyn Tool>> {
        let own = self.own.get(agent).and_then(|tools| tools.get(tool));
        own.or_else(|| self.tools.get(tool)).cloned()
    }

    /// What is known of a function.
    pub fn declaration(&self, name: &str) -> Option<Declaration> {
        self.tools.get(name).map(|tool| tool.declaration().clone())
    }

    /// The names of the functions.
    pub fn tool_names(&self) -> Vec<String> {
        self.tools.keys().cloned().collect()
    }
}

/// One tool of an agent, ready to run.
pub struct Part {
    /// What is known of it.
    pub declaration: Declaration,
    /// Checks its arguments.
    pub parameters: Parameters,
    /// Its body.
    pub body: Arc<dyn Tool>,
}

/// One agent, ready to run.
pub struct Role {
    /// The agent.
    pub agent: Arc<Agent>,
    /// Its model.
    pub model: Arc<dyn Model>,
    /// What its model is told of its tools.
    pub specs: Arc<Vec<ToolSpec>>,
    /// Its tools by name.
    pub tools: BTreeMap<String, Part>,
}

/// All apps, ready to run.
#[derive(Default)]
pub struct Cast {
    roles: BTreeMap<AppName, Role>,
}

impl Cast {
    /// Puts every agent together with its model and its bodies. Every fault is told.
    pub fn new(agents: &Agents, registry: &Registry) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let mut roles = BTreeMap::new();
        for (app, agent) in agents.iter() {
            if let Some(role) = role(agent, registry, &mut faults) {
                roles.insert(app.clone(), role);
            }
        }
        if faults.is_empty() { Ok(Self { roles }) } else { Err(faults) }
    }

    /// The root agent of an app.
    pub fn app(&self, app: &AppName) -> Option<&Role> {
        self.roles.get(app)
    }

    /// An agent of an app.
    pub fn agent(&self, app: &AppName, name: &AgentName) -> Option<&Role> {
        self.app(app).filter(|role| &role.agent.name == name)
    }

    /// All root agents by app.
    pub fn apps(&self) -> impl Iterator<Item = (&AppName, &Role)> {
        self.roles.iter()
    }
}

fn role(agent: &Arc<Agent>, registry: &Registry, faults: &mut Vec<String>) -> Option<Role> {
    let before = faults.len();
    let name = &agent.name;
    let model: Option<Arc<dyn Model>> = match &agent.model {
        ModelName::Scripted(script) => Some(Arc::new(Scripted::new(script.clone()))),
        ModelName::Named(model) => {
            let known = registry.models.get(model).cloned();
            if known.is_none() {
                faults.push(format!("agent {name}: no model is registered as `{model}`"));
            }
            known
        }
    };
    let mut tools = BTreeMap::new();
    for declaration in &agent.tools {
        match part(name, declaration, registry) {
            Ok(part) => {
                tools.insert(declaration.name.clone(), part);
            }
            Err(fault) => faults.push(format!("agent {name}: tool {}: {fault}", declaration.name)),
        }
    }
    let spec = |tool: &Declaration| ToolSpec {
        name: tool.name.clone(),
        description: tool.told_description(),
        parameters: tool.parameters.clone(),
    };
    let specs = Arc::new(agent.tools.iter().map(spec).collect());
    let model = model.filter(|_| faults.len() == before)?;
    Some(Role { agent: agent.clone(), model, specs, tools })
}

fn part(agent: &AgentName, declaration: &Declaration, registry: &Registry) -> Result<Part, String> {
    let parameters = Parameters::new(&declaration.parameters).map_err(|wrong| wrong.to_string())?;
    let body: Arc<dyn Tool> = match &declaration.body {
        Body::Function => registry
            .body(agent, &declaration.name)
            .ok_or("no function is registered under this name")?,
        Body::Object(_) | Body::Asking(_) | Body::Nothing => {
            Arc::new(Declared::new(declaration.clone()).ok_or("its body is not declared")?)
        }
    };
    Ok(Part { declaration: declaration.clone(), parameters, body })
}
