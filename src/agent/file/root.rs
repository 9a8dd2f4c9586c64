//! The root of an agent file: the agent itself.

use std::sync::Arc;

use super::yaml::Node;
use super::{Faults, approvals, near, read, rules, tool};
use crate::agent::{Agent, Declaration, Model};
use crate::session::id::AgentName;
use crate::session::json::Place;

/// The keys of an agent.
#[rustfmt::skip]
pub(super) const KEYS: &[&str] = &[
    "name", "model", "description", "instruction", "tools", "approvals", "script",
    "max_prompt_events",
];

/// The name of the model that follows the file's script.
const SCRIPTED: &str = "scripted";

/// Reads an agent and the place of its name. Faults are noted on the way; what is read after one
/// is of no use but for finding more.
pub(super) fn read(
    node: &Node,
    registered: &[Declaration],
    faults: &mut Faults,
) -> Option<(Agent, Place)> {
    let table = read::Table::open(node, "an agent", KEYS, faults)?;
    let name = table.need("name", faults).and_then(|node| {
        let text = read::text(node, "name", faults)?;
        let name = AgentName::parse(text);
        name.map_err(|error| faults.add(node.at, format!("`name` {error}"))).ok()
    });
    let tools = table.get("tools").map(|node| tool::read_all(node, registered, faults));
    let tools = tools.unwrap_or_default();
    let approvals = table.get("approvals").map(|node| approvals::of_agent(node, &tools, faults));
    let script = table.get("script").map(|node| rules::read(node, &tools, faults));
    let model = table.need("model", faults).and_then(|node| {
        let text = read::text(node, "model", faults)?;
        match (text, script) {
            (SCRIPTED, Some(script)) => return Some(Model::Scripted(Arc::new(script))),
            (SCRIPTED, None) => faults.add(node.at, "`model: scripted` needs a `script`"),
            (name, Some(_)) if !near::hint(name, [SCRIPTED]).is_empty() => {
                let hint = near::hint(name, [SCRIPTED]);
                faults.add(node.at, format!("`script` needs `model: {SCRIPTED}`{hint}"));
            }
            (_, Some(_)) => {
                let at = table.key_at("script");
                faults.add(at, format!("`script` is only for `model: {SCRIPTED}`"));
            }
            (name, None) if name.is_empty() || name.contains(|c: char| !c.is_ascii_graphic()) => {
                faults.add(node.at, "`model` must be a name of printable ASCII characters");
            }
            (name, None) => return Some(Model::Named(name.to_owned())),
        }
        None
    });
    let max_prompt_events = table.count("max_prompt_events", faults);
    let description = table.text("description", faults).unwrap_or_default().to_owned();
    let instruction = table.text("instruction", faults).unwrap_or_default().to_owned();
    let (name, model) = (name?, model?);
    let approvals = approvals.unwrap_or_default().seal(&tools);
    let agent =
        Agent { name, description, instruction, model, tools, approvals, max_prompt_events };
    Some((agent, table.get("name")?.at))
}
