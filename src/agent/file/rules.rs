//! The script of an agent file: the rules of the scripted model.
//!
//! A rule may have `cases`, which stand for as many rules with the same `when`.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Number;

use super::read::{self, Table};
use super::tool::{check_parameter, parameter_names};
use super::yaml::{Kind, Node};
use super::{Faults, near};
use crate::agent::Declaration;
use crate::agent::script::{Call, Condition, Holds, Reply, Rule, Script, When};
use crate::agent::template;
use crate::session::content::Object;

/// The keys of a case.
pub(super) const CASE_KEYS: &[&str] = &["if", "call", "calls", "say"];

/// The keys of a rule.
pub(super) const RULE_KEYS: &[&str] = &["when", "if", "call", "calls", "say", "cases"];

/// The keys of what a rule matches.
pub(super) const WHEN_KEYS: &[&str] = &["user", "response", "matching"];

/// The keys of a condition.
pub(super) const HOLDS_KEYS: &[&str] = &["below", "at_least", "equals", "present"];

/// Reads the rules.
pub(super) fn read(node: &Node, tools: &[Declaration], faults: &mut Faults) -> Script {
    let mut reader = Reader { tools, faults };
    let nodes = read::list(node, "script", reader.faults);
    if nodes.is_empty() && matches!(node.kind, Kind::List(_)) {
        reader.faults.add(node.at, "`script` must have a rule at least");
    }
    let mut rules: Vec<Rule> = Vec::new();
    for node in nodes {
        let speaks = |rule: &Rule| matches!(rule.when, When::Always) && rule.conditions.is_empty();
        if rules.last().is_some_and(speaks) {
            let message = "this rule is never reached: the one before it always speaks";
            reader.faults.add(node.at, message);
        }
        rules.extend(reader.rule(node));
    }
    Script { rules }
}

/// What the places of a rule may name.
enum Scope<'a> {
    /// The named groups, pattern by pattern.
    User(Vec<Vec<String>>),
    /// `response.KEY`, and `args.KEY` of the tool.
    Response(&'a Declaration),
    /// Nothing.
    Always,
    /// It cannot be told, since what the rule matches has a fault.
    Unknown,
}

struct Reader<'a> {
    tools: &'a [Declaration],
    faults: &'a mut Faults,
}

impl<'a> Reader<'a> {
    fn rule(&mut self, node: &Node) -> Vec<Rule> {
        let Some(table) = Table::open(node, "a rule", RULE_KEYS, self.faults) else {
            return Vec::new();
        };
        let when = table.need("when", self.faults).and_then(|node| self.when(node));
        let (when, scope) = when.unwrap_or((When::Always, Scope::Unknown));
        let cases = match table.get("cases") {
            None => vec![self.case(table, &scope)],
            Some(node) => {
                for key in CASE_KEYS.iter().filter(|key| table.get(key).is_some()) {
                    let message = format!("a rule with `cases` must have `{key}` in its cases");
                    self.faults.add(table.key_at(key), message);
                }
                self.cases(node, &scope)
            }
        };
        let rule = |(conditions, reply)| Rule { when: when.clone(), conditions, reply };
        // A rule that could not be read must not look like one that always speaks.
        if matches!(scope, Scope::Unknown) {
            return Vec::new();
        }
        cases.into_iter().map(rule).collect()
    }

    fn cases(&mut self, node: &Node, scope: &Scope<'_>) -> Vec<(Vec<Condition>, Reply)> {
        let mut cases: Vec<(Vec<Condition>, Reply)> = Vec::new();
        let nodes = read::list(node, "cases", self.faults);
        if nodes.is_empty() && matches!(node.kind, Kind::List(_)) {
            self.faults.add(node.at, "`cases` must have a case at least");
        }
        for node in nodes {
            if cases.last().is_some_and(|(conditions, _)| conditions.is_empty()) {
                let message = "this case is never reached: the one before it has no `if`";
                self.faults.add(node.at, message);
            }
            if let Some(table) = Table::open(node, "a case", CASE_KEYS, self.faults) {
                cases.push(self.case(table, scope));
            }
        }
        cases
    }

    fn when(&mut self, node: &Node) -> Option<(When, Scope<'a>)> {
        if matches!(&node.kind, Kind::Text(text) if text == "always") {
            return Some((When::Always, Scope::Always));
        }
        let table = Table::open(node, "`when` (if not `always`)", WHEN_KEYS, self.faults)?;
        match (table.get("user"), table.get("response")) {
            (Some(user), None) => {
                if table.get("matching").is_some() {
                    let message = "`matching` is only for a `response`";
                    self.faults.add(table.key_at("matching"), message);
                }
                self.patterns(user)
            }
            (None, Some(response)) => self.response(table, response),
            _ => {
                self.faults.add(node.at, "`when` must have `user` or `response`, not both");
                None
            }
        }
    }

    fn patterns(&mut self, node: &Node) -> Option<(When, Scope<'a>)> {
        let texts = read::texts(node, "user", self.faults);
        let mut patterns = Vec::new();
        for (node, text) in &texts {
            match Regex::new(text) {
                Ok(pattern) => patterns.push(pattern),
                Err(error) => {
                    // The parser's message is a picture of several lines; its last line tells it.
                    let message = error.to_string();
                    let last = message.lines().last().unwrap_or_default();
                    let last = last.trim_start_matches("error: ");
                    self.faults.add(node.at, format!("this is no regular expression: {last}"));
                }
            }
        }
        if patterns.is_empty() || patterns.len() < texts.len() {
            return None;
        }
        let named = |p: &Regex| p.capture_names().flatten().map(str::to_owned).collect();
        let names = patterns.iter().map(named).collect();
        Some((When::User(patterns), Scope::User(names)))
    }

    fn response(&mut self, table: Table<'_>, node: &Node) -> Option<(When, Scope<'a>)> {
        let mut matches = BTreeMap::new();
        if let Some(matching) = table.object("matching", self.faults) {
            matches.extend(matching);
        }
        let name = read::text(node, "response", self.faults)?;
        let tool = self.tool(node, name)?;
        Some((When::Response { tool: tool.name.clone(), matches }, Scope::Response(tool)))
    }

    fn tool(&mut self, node: &Node, name: &str) -> Option<&'a Declaration> {
        let tool = self.tools.iter().find(|tool| tool.name == name);
        if tool.is_none() {
            let hint = near::hint(name, self.tools.iter().map(|tool| tool.name.as_str()));
            self.faults.add(node.at, format!("the agent has no tool `{name}`{hint}"));
        }
        tool
    }

    fn case(&mut self, table: Table<'_>, scope: &Scope<'_>) -> (Vec<Condition>, Reply) {
        let conditions = table.get("if").map(|node| self.conditions(node, scope));
        let mut calls = Vec::new();
        if let Some(node) = table.get("call") {
            calls.extend(self.call(node, scope));
            if table.get("calls").is_some() {
                self.faults.add(table.key_at("calls"), "give `call` or `calls`, not both");
            }
        }
        if let Some(node) = table.get("calls") {
            for node in read::list(node, "calls", self.faults) {
                calls.extend(self.call(node, scope));
            }
        }
        let say = table.get("say");
        let text = say.and_then(|node| Some((node, read::text(node, "say", self.faults)?)));
        if let Some((node, _)) = text {
            self.places(node, scope);
        }
        let text = text.map(|(_, text)| text.to_owned()).unwrap_or_default();
        let calls_none = table.get("call").is_none() && table.get("calls").is_none();
        let says_none = say.is_none_or(|node| matches!(&node.kind, Kind::Text(t) if t.is_empty()));
        if calls_none && says_none {
            self.faults.add(table.at(), "a rule must `say` something or `call` a tool");
        }
        (conditions.unwrap_or_default(), Reply { text, calls })
    }

    fn conditions(&mut self, node: &Node, scope: &Scope<'_>) -> Vec<Condition> {
        let mut conditions = Vec::new();
        if !matches!(node.kind, Kind::Map(_)) {
            self.faults.add(node.at, "`if` must be a map such as {amount: {below: 100}}");
        }
        for (key, node) in node.entries() {
            self.place(node, &key.text, scope);
            let Some(table) = Table::open(node, "a condition", HOLDS_KEYS, self.faults) else {
                continue;
            };
            if node.entries().is_empty() {
                let keys = HOLDS_KEYS.join(", ");
                self.faults.add(node.at, format!("a condition must have one of: {keys}"));
            }
            let holds = [
                self.number(table, "below").map(Holds::Below),
                self.number(table, "at_least").map(Holds::AtLeast),
                table.get("equals").map(|node| Holds::Equals(read::value(node, self.faults))),
                table.flag("present", self.faults).map(Holds::Present),
            ];
            let condition = |holds| Condition { capture: key.text.clone(), holds };
            conditions.extend(holds.into_iter().flatten().map(condition));
        }
        conditions
    }

    fn number(&mut self, table: Table<'_>, key: &str) -> Option<Number> {
        let node = table.get(key)?;
        match &node.kind {
            Kind::Number(number) => Some(number.clone()),
            _ => read::wrong(node, key, "a number", self.faults),
        }
    }

    fn call(&mut self, node: &Node, scope: &Scope<'_>) -> Option<Call> {
        let [(key, args)] = node.entries() else {
            self.faults.add(node.at, "a call must be a map of one tool, such as {pay: {to: me}}");
            return None;
        };
        self.places(args, scope);
        let tool = self.tool(&Node { at: key.at, kind: Kind::Null }, &key.text);
        let object = match args.kind {
            Kind::Null => Object::new(),
            _ => read::object(args, &key.text, self.faults)?,
        };
        let tool = tool?;
        for (key, _) in args.entries() {
            let node = Node { at: key.at, kind: Kind::Null };
            check_parameter(&node, tool, &key.text, self.faults);
        }
        let required = tool.parameters.get("required").and_then(|list| list.as_array());
        for name in required.into_iter().flatten().filter_map(|name| name.as_str()) {
            let known = parameter_names(tool).is_none_or(|names| names.contains(&name));
            if known && !object.contains_key(name) {
                let message = format!("a call of `{}` must have `{name}`", tool.name);
                self.faults.add(key.at, message);
            }
        }
        Some(Call { name: tool.name.clone(), args: object })
    }

    /// Checks the places of all texts of a node.
    fn places(&mut self, node: &Node, scope: &Scope<'_>) {
        match &node.kind {
            Kind::List(nodes) => nodes.iter().for_each(|node| self.places(node, scope)),
            Kind::Map(entries) => entries.iter().for_each(|(_, node)| self.places(node, scope)),
            Kind::Text(text) => match template::check(text) {
                Err(error) => self.faults.add(node.at, error.to_string()),
                Ok(names) => names.iter().for_each(|name| self.place(node, name, scope)),
            },
            _ => {}
        }
    }

    /// Checks the name of one place.
    fn place(&mut self, node: &Node, name: &str, scope: &Scope<'_>) {
        match scope {
            Scope::Unknown => {}
            Scope::Always => {
                self.faults.add(node.at, format!("`{name}`: nothing is captured by `always`"));
            }
            Scope::User(patterns) => {
                let missing = patterns.iter().filter(|p| !p.iter().any(|n| n == name)).count();
                if missing == patterns.len() {
                    let hint = near::hint(name, patterns.iter().flatten().map(String::as_str));
                    let message = format!("no pattern captures `{name}`{hint}");
                    self.faults.add(node.at, message);
                } else if missing > 0 {
                    let all = patterns.len();
                    let message = format!("{missing} of {all} patterns do not capture `{name}`");
                    self.faults.add(node.at, message);
                }
            }
            Scope::Response(tool) => match name.split_once('.') {
                Some(("response", _)) => {}
                Some(("args", name)) => check_parameter(node, tool, name, self.faults),
                _ => {
                    let names = parameter_names(tool).unwrap_or_default();
                    let hint = match names.contains(&name) {
                        true => format!(" (did you mean `args.{name}`?)"),
                        false => String::new(),
                    };
                    let message = format!("`{name}` is neither `response.KEY` nor `args.NAME`");
                    self.faults.add(node.at, message + &hint);
                }
            },
        }
    }
}
