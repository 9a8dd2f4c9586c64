//! What an agent file says of approval: of the agent, of a tool, and when what happens by itself.

use std::collections::HashMap;
use std::time::Duration;

use super::read::{self, Table};
use super::tool::{check_parameter, parameter_names};
use super::yaml::{Kind, Node};
use super::{Faults, near};
use crate::agent::Declaration;
use crate::agent::approvals::{
    Approvals, MAX_DEADLINE, MAX_DEADLINES, MAX_RULES, Need, Rule, ToolApproval, check_rule_name,
};
use crate::agent::cel::Expression;
use crate::session::approval::{Action, Deadline};

/// The keys of an agent's approvals.
pub(super) const KEYS: &[&str] = &[
    "default",
    "batches",
    "one_at_a_time",
    "disable_tool_auto_approval",
    "disable_not_required_bypass",
    "max_auto_approval_iterations",
    "auto_approve",
    "deny",
];

/// MAF has it; here it cannot be said.
const BINDING: &str = "disable_response_binding";

/// The keys of a tool's approval.
pub(super) const TOOL_KEYS: &[&str] =
    &["when", "need", "hint", "rejection", "expires_after", "deadlines"];

/// The keys of a rule.
pub(super) const RULE_KEYS: &[&str] = &["name", "when"];

/// The keys of a deadline.
pub(super) const DEADLINE_KEYS: &[&str] = &["after", "do", "to"];

/// Reads what stands under `approvals`.
pub(super) fn of_agent(node: &Node, tools: &[Declaration], faults: &mut Faults) -> Approvals {
    let mut said = Approvals::default();
    let known: Vec<&str> = KEYS.iter().copied().chain([BINDING]).collect();
    let Some(table) = Table::open(node, "`approvals`", &known, faults) else { return said };
    if table.get(BINDING).is_some() {
        let message = format!(
            "`{BINDING}`: an answer is always for the one call that was asked; this cannot be \
             switched off"
        );
        faults.add(table.key_at(BINDING), message);
    }
    if let Some(always) = either(table, "default", ["never", "always"], faults) {
        said.by_default = always;
    }
    if let Some(eager) = either(table, "batches", ["barrier", "eager"], faults) {
        said.barrier = !eager;
    }
    let mut flag = |key: &str, value: &mut bool| {
        if let Some(given) = table.flag(key, faults) {
            *value = given;
        }
    };
    flag("one_at_a_time", &mut said.one_at_a_time);
    flag("disable_tool_auto_approval", &mut said.disable_tool_auto_approval);
    flag("disable_not_required_bypass", &mut said.disable_not_required_bypass);
    if let Some(most) = table.count("max_auto_approval_iterations", faults) {
        said.max_auto_approval_iterations = most;
    }
    said.auto_approve = rules(table, "auto_approve", tools, faults);
    said.deny = rules(table, "deny", tools, faults);
    said
}

/// Which of two words it is: true if it is the second.
fn either(table: Table<'_>, key: &str, words: [&str; 2], faults: &mut Faults) -> Option<bool> {
    let node = table.get(key)?;
    let text = read::text(node, key, faults)?.to_ascii_lowercase();
    let found = words.iter().position(|word| *word == text);
    if found.is_none() {
        let hint = near::hint(&text, words);
        faults.add(node.at, format!("`{key}` must be {} or {}{hint}", words[0], words[1]));
    }
    found.map(|place| place == 1)
}

fn rules(
    table: Table<'_>,
    key: &'static str,
    tools: &[Declaration],
    faults: &mut Faults,
) -> Vec<Rule> {
    let Some(node) = table.get(key) else { return Vec::new() };
    let nodes = read::list(node, key, faults);
    if nodes.len() > MAX_RULES {
        faults.add(node.at, format!("`{key}` must not have more than {MAX_RULES} rules"));
        return Vec::new();
    }
    let mut lines: HashMap<&str, usize> = HashMap::new();
    let mut rules = Vec::new();
    for node in nodes {
        let Some(table) = Table::open(node, "a rule", RULE_KEYS, faults) else { continue };
        let name = table.need("name", faults).and_then(|node| {
            let name = read::text(node, "name", faults)?;
            check_rule_name(name).map_err(|fault| faults.add(node.at, fault)).ok()?;
            if let Some(line) = lines.insert(name, node.at.line) {
                faults.add(node.at, format!("there is a rule `{name}` already, in line {line}"));
            }
            Some(name.to_owned())
        });
        let when = table.need("when", faults).and_then(|node| {
            let when = condition(node, "when", None, faults)?;
            check_arguments(node, &when, tools, faults);
            Some(when)
        });
        if let (Some(name), Some(when)) = (name, when) {
            rules.push(Rule { name, when });
        }
    }
    rules
}

/// A rule is for any tool, so that an argument must be one of any.
fn check_arguments(node: &Node, when: &Expression, tools: &[Declaration], faults: &mut Faults) {
    let known: Option<Vec<Vec<&str>>> = tools.iter().map(parameter_names).collect();
    let (Some(known), Some(named)) = (known, when.arguments()) else { return };
    let known = known.concat();
    for name in named.filter(|name| !known.contains(name)) {
        let hint = near::hint(name, known.iter().copied());
        faults.add(node.at, format!("no tool of the agent has a parameter `{name}`{hint}"));
    }
}

/// Reads a condition; of a tool it may only name its parameters.
pub(super) fn condition(
    node: &Node,
    key: &str,
    tool: Option<&Declaration>,
    faults: &mut Faults,
) -> Option<Expression> {
    let text = read::text(node, key, faults)?;
    let read = Expression::parse(text);
    let when = read.map_err(|fault| faults.add(node.at, format!("`{key}`: {fault}"))).ok()?;
    if let (Some(tool), Some(named)) = (tool, when.arguments()) {
        named.for_each(|name| check_parameter(node, tool, name, faults));
    }
    Some(when)
}

/// Reads what stands under `approval` of a tool. What is not said stays as its function says.
pub(super) fn of_tool(node: &Node, tool: &Declaration, faults: &mut Faults) -> ToolApproval {
    let mut said = tool.approval.clone();
    if let Kind::Text(text) = &node.kind {
        match text.to_ascii_lowercase().as_str() {
            "always" => said.need = Some(Need::Always),
            "never" => said.need = Some(Need::Never),
            other => {
                let hint = near::hint(other, ["always", "never"]);
                let message = "`approval` must be always, never, or a map such as";
                faults.add(node.at, format!("{message} {{when: args.amount > 100.0}}{hint}"));
            }
        }
        return said;
    }
    if !matches!(node.kind, Kind::Map(_)) {
        let fault = read::wrong(node, "approval", "always, never, or a map", faults);
        return fault.unwrap_or(said);
    }
    let Some(table) = Table::open(node, "`approval`", TOOL_KEYS, faults) else { return said };
    if let Some(node) = table.get("when") {
        if table.get("need").is_some() {
            faults.add(table.key_at("need"), "`approval` must have `when` or `need`, not both");
        }
        said.need = condition(node, "when", Some(tool), faults).map(Need::When);
    } else if let Some(always) = either(table, "need", ["never", "always"], faults) {
        said.need = Some(if always { Need::Always } else { Need::Never });
    }
    if let Some(hint) = table.text("hint", faults) {
        hint.clone_into(&mut said.hint);
    }
    if let Some(rejection) = table.text("rejection", faults) {
        rejection.clone_into(&mut said.rejection);
    }
    if let Some(deadlines) = deadlines(table, faults) {
        said.deadlines = deadlines;
    }
    said
}

/// Reads `deadlines` and `expires_after`, which is short for a last one that expires; none if there
/// is neither.
pub(super) fn deadlines(table: Table<'_>, faults: &mut Faults) -> Option<Vec<Deadline>> {
    let end = table.duration("expires_after", faults);
    let node = table.get("deadlines");
    let mut list = Vec::new();
    let mut ends = None;
    let nodes = node.map_or(&[][..], |node| read::list(node, "deadlines", faults));
    for node in nodes {
        let Some(deadline) = deadline(node, faults) else { continue };
        if let Some(line) = ends {
            faults
                .add(node.at, format!("the call is over by then, by the deadline in line {line}"));
        }
        check_after(node, deadline.after, &list, faults);
        if matches!(deadline.action, Action::Expire | Action::Deny) {
            ends = Some(node.at.line);
        }
        list.push(deadline);
    }
    if let (Some(after), Some(node)) = (end, table.get("expires_after"))
        && !nodes.is_empty()
    {
        if let Some(line) = ends {
            let by = format!("by the deadline in line {line}");
            faults.add(node.at, format!("`expires_after`: the call is over by then, {by}"));
        }
        check_after(node, after, &list, faults);
    }
    list.extend(end.map(|after| Deadline { after, action: Action::Expire }));
    if list.len() > MAX_DEADLINES
        && let Some(node) = node
    {
        faults.add(node.at, format!("there must not be more than {MAX_DEADLINES} deadlines"));
    }
    (node.is_some() || end.is_some()).then_some(list)
}

fn check_after(node: &Node, after: Duration, before: &[Deadline], faults: &mut Faults) {
    if before.last().is_some_and(|last| after <= last.after) {
        faults.add(node.at, "the times of `deadlines` must rise");
    }
    if after > MAX_DEADLINE {
        faults.add(node.at, "a deadline must be within ten years");
    }
}

fn deadline(node: &Node, faults: &mut Faults) -> Option<Deadline> {
    let table = Table::open(node, "a deadline", DEADLINE_KEYS, faults)?;
    table.need("after", faults);
    let after = table.duration("after", faults);
    let to = table.get("to").and_then(|node| {
        let text = read::text(node, "to", faults)?;
        if text.trim().is_empty() {
            faults.add(node.at, "`to` must not be empty");
        }
        Some(text.to_owned())
    });
    let node = table.need("do", faults)?;
    let word = read::text(node, "do", faults)?.to_ascii_lowercase();
    if word != "escalate" && table.get("to").is_some() {
        faults.add(table.key_at("to"), "`to` is only for `do: escalate`");
    }
    let action = match word.as_str() {
        "remind" => Action::Remind,
        "expire" => Action::Expire,
        "deny" => Action::Deny,
        "escalate" => {
            table.need("to", faults);
            Action::Escalate { to: to? }
        }
        other => {
            let hint = near::hint(other, ["remind", "escalate", "expire", "deny"]);
            faults.add(node.at, format!("`do` must be remind, escalate, expire or deny{hint}"));
            return None;
        }
    };
    Some(Deadline { after: after?, action })
}
