//! Which calls of an agent wait for a person: what its file says, as data, and how a call is judged
//! by it. The order of judgement is the contract's: what is denied, whether approval is needed at
//! all, and whether a rule gives it. Standing approvals stand between the two and are the session's
//! (`session::draft`), so a rule is only offered here.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::cel::{Expression, Input};
use super::{Body, Declaration, builtin};
use crate::session::approval::{Action, Code, Deadline, Gate, Judged, ToolIdentity, Why};
use crate::session::json as exact;

#[cfg(test)]
mod tests;

/// Whether a tool's calls need approval.
#[derive(Debug, Clone, PartialEq)]
pub enum Need {
    /// Each call does.
    Always,
    /// None does.
    Never,
    /// Those do for which this is true, or cannot be told.
    When(Expression),
}

/// What a tool declares of approval.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolApproval {
    /// Whether its calls need it; none: as the agent says.
    pub need: Option<Need>,
    /// What is asked; empty: ADK's text.
    pub hint: String,
    /// What the model is told if somebody refuses without a reason; empty: a text of ours.
    pub rejection: String,
    /// What happens if nobody decides, in the order of their times.
    pub deadlines: Vec<Deadline>,
}

/// A rule of an agent over its calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// What it is called in records.
    pub name: String,
    /// For which calls it is.
    pub when: Expression,
}

impl Rule {
    /// A rule of this name with a condition in CEL; the text tells what is wrong with it.
    pub fn new(name: impl Into<String>, when: &str) -> Result<Self, String> {
        let name = name.into();
        check_rule_name(&name)?;
        Ok(Self { name, when: Expression::parse(when)? })
    }
}

/// Longest name of a rule, in bytes.
pub const MAX_RULE_NAME: usize = 64;

/// Most rules of an agent: those that approve, and those that deny.
pub const MAX_RULES: usize = 1_000;

/// Most deadlines of a call.
pub const MAX_DEADLINES: usize = 16;

/// Checks the name of a rule; the text tells the rule that it breaks.
pub fn check_rule_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_graphic() || c == ' ';
    if name.trim().is_empty() || name.len() > MAX_RULE_NAME || !name.chars().all(plain) {
        return Err(format!(
            "`name` of a rule must have 1 to {MAX_RULE_NAME} printable ASCII characters"
        ));
    }
    Ok(())
}

/// Checks deadlines; the text tells what is wrong with them.
pub fn check_deadlines(deadlines: &[Deadline]) -> Result<(), String> {
    if deadlines.len() > MAX_DEADLINES {
        return Err(format!("there must not be more than {MAX_DEADLINES} deadlines"));
    }
    let mut before = Duration::ZERO;
    for (place, deadline) in deadlines.iter().enumerate() {
        if deadline.after <= before || deadline.after > MAX_DEADLINE {
            return Err("the times of deadlines must rise, to ten years at most".to_owned());
        }
        let ends = matches!(deadline.action, Action::Expire | Action::Deny);
        if ends && place + 1 < deadlines.len() {
            return Err("after a deadline that ends the call there can be none".to_owned());
        }
        if matches!(&deadline.action, Action::Escalate { to } if to.trim().is_empty()) {
            return Err("a deadline that escalates must say to whom".to_owned());
        }
        before = deadline.after;
    }
    Ok(())
}

/// What an agent says of approval. The defaults are those of MAF's harness, but that all questions
/// of a turn are asked at once, as ADK does.
#[derive(Debug, Clone, PartialEq)]
pub struct Approvals {
    /// For tools that say nothing themselves: true if their calls need approval.
    pub by_default: bool,
    /// A turn waits until all its questions are decided (MAF); else each call is for itself (ADK).
    pub barrier: bool,
    /// The questions of one turn are asked one after the other.
    pub one_at_a_time: bool,
    /// Neither rules nor standing approvals approve anything, and all questions are asked at once.
    pub disable_tool_auto_approval: bool,
    /// If one call of a turn asks, all of them do.
    pub disable_not_required_bypass: bool,
    /// Rules and standing approvals approve so many turns in a row before a person is asked.
    pub max_auto_approval_iterations: u32,
    /// Rules that approve, in their order: the first that is for a call approves it.
    pub auto_approve: Vec<Rule>,
    /// Rules that deny: a call that one of them is for never runs.
    pub deny: Vec<Rule>,
    /// `sha256:` and 16 hex digits over all of the above and the tools' conditions.
    pub revision: String,
}

impl Default for Approvals {
    fn default() -> Self {
        Self {
            by_default: false,
            barrier: true,
            one_at_a_time: false,
            disable_tool_auto_approval: false,
            disable_not_required_bypass: false,
            max_auto_approval_iterations: 40,
            auto_approve: Vec::new(),
            deny: Vec::new(),
            revision: String::new(),
        }
    }
}

/// Longest `after` of a deadline: ten years.
pub const MAX_DEADLINE: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

impl Approvals {
    /// Everything that is wrong with it.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.max_auto_approval_iterations == 0 {
            faults.push("`max_auto_approval_iterations` must be above 0".to_owned());
        }
        for (key, rules) in [("auto_approve", &self.auto_approve), ("deny", &self.deny)] {
            if rules.len() > MAX_RULES {
                faults.push(format!("`{key}` must not have more than {MAX_RULES} rules"));
            }
            let mut names = BTreeSet::new();
            let twice = rules.iter().map(|rule| &rule.name).filter(|name| !names.insert(*name));
            faults.extend(twice.map(|name| format!("`{key}` has two rules `{name}`")));
            faults.extend(rules.iter().filter_map(|rule| check_rule_name(&rule.name).err()));
        }
        faults
    }

    /// Notes the revision of what is said here and by the tools. Whoever puts an agent together
    /// calls it once, when all of it is said.
    pub fn seal(mut self, tools: &[Declaration]) -> Self {
        let rules = |rules: &[Rule]| -> Value {
            rules.iter().map(|rule| json!([rule.name, rule.when.source()])).collect()
        };
        let need = |tool: &Declaration| match &tool.approval.need {
            None => Value::Null,
            Some(Need::Always) => json!(true),
            Some(Need::Never) => json!(false),
            Some(Need::When(when)) => json!(when.source()),
        };
        let tools: Value = tools.iter().map(|tool| json!([tool.name, need(tool)])).collect();
        let said = json!([
            self.by_default,
            self.barrier,
            self.one_at_a_time,
            self.disable_tool_auto_approval,
            self.disable_not_required_bypass,
            self.max_auto_approval_iterations,
            rules(&self.auto_approve),
            rules(&self.deny),
            tools,
        ]);
        self.revision = sha256(&said)[.."sha256:".len() + 16].to_owned();
        self
    }

    /// How a call is judged before anything of it runs; none if there is nothing to be noted: its
    /// tool needs no approval, and no rule was asked.
    pub fn judge(&self, tool: &Declaration, input: &Input<'_>) -> Option<Gate> {
        let said = &tool.approval;
        let denied = self.denied(input);
        let need = match (&denied, &said.need) {
            (Some(Ok(why)), _) => return Some(self.gate(tool, Judged::Deny, why.clone())),
            // Whether it is forbidden cannot be told.
            (Some(Err(why)), _) => return Some(self.asked_of_a_person(tool, why.clone())),
            (None, Some(Need::Always)) => Ok((true, Why::new(Code::Tool))),
            (None, Some(Need::Never)) => Ok((false, Why::new(Code::Tool))),
            (None, Some(Need::When(when))) => match when.eval(input) {
                Ok(needed) => Ok((needed, self.why(Code::Condition, when.source()))),
                Err(wrong) => {
                    let why = self.why(Code::RuleFailed, when.source());
                    Err(Why { detail: format!("the condition cannot be told: {wrong}"), ..why })
                }
            },
            (None, None) => Ok((self.by_default, Why::new(Code::AgentDefault))),
        };
        match need {
            Err(why) => Some(self.asked_of_a_person(tool, why)),
            Ok((true, why)) => Some(self.asked(tool, why, input)),
            Ok((false, why)) => {
                let asked = why.code == Code::Condition || !self.deny.is_empty();
                let revision = if asked { self.revision.clone() } else { String::new() };
                let noted = asked || self.disable_not_required_bypass;
                noted.then(|| self.gate(tool, Judged::Run, Why { revision, ..why }))
            }
        }
    }

    /// Why a call is forbidden, if it is, or an error that says why that cannot be told. A rule
    /// that forbids it counts whatever the others say. Asked again when a body is about to start.
    pub fn denied(&self, input: &Input<'_>) -> Option<Result<Why, Why>> {
        let found = |rule: &Rule| self.find(std::slice::from_ref(rule), Code::PolicyDenied, input);
        let mut failed = None;
        for rule in &self.deny {
            match found(rule) {
                Some(Ok(why)) => return Some(Ok(why)),
                Some(Err(why)) => failed = failed.or(Some(why)),
                None => {}
            }
        }
        failed.map(Err)
    }

    /// What a tool is, whatever its name: approvals for good are for this and no other.
    pub fn identity(tool: &Declaration) -> ToolIdentity {
        let source = match tool.body {
            _ if builtin::is(tool) => "server",
            Body::Function => "function",
            Body::Object(_) | Body::Asking(_) | Body::Nothing => "declared",
        };
        let schema_digest = sha256(&tool.parameters);
        ToolIdentity { name: tool.name.clone(), source: source.to_owned(), schema_digest }
    }

    /// A person is asked, unless a rule is offered.
    fn asked(&self, tool: &Declaration, why: Why, input: &Input<'_>) -> Gate {
        let mut gate = self.gate(tool, Judged::Ask, why);
        if gate.max_auto > 0 {
            match self.find(&self.auto_approve, Code::AutoApprovalRule, input) {
                None => {}
                Some(Ok(why)) => gate.auto = Some(why),
                Some(Err(why)) => gate.why = why,
            }
        }
        gate
    }

    /// A person is asked whatever rules or standing approvals say.
    fn asked_of_a_person(&self, tool: &Declaration, why: Why) -> Gate {
        Gate { max_auto: 0, ..self.gate(tool, Judged::Ask, why) }
    }

    /// The first rule that is for the call; an error if one before it cannot be evaluated.
    fn find(&self, rules: &[Rule], code: Code, input: &Input<'_>) -> Option<Result<Why, Why>> {
        rules.iter().find_map(|rule| match rule.when.eval(input) {
            Ok(false) => None,
            Ok(true) => Some(Ok(self.why(code, &rule.name))),
            Err(wrong) => {
                let why = self.why(Code::RuleFailed, &rule.name);
                let detail = format!("the rule `{}` cannot be told: {wrong}", rule.name);
                Some(Err(Why { detail, ..why }))
            }
        })
    }

    fn why(&self, code: Code, rule: &str) -> Why {
        let revision = self.revision.clone();
        Why { code, rule: rule.to_owned(), revision, detail: String::new() }
    }

    fn gate(&self, tool: &Declaration, judged: Judged, why: Why) -> Gate {
        let automatic = !self.disable_tool_auto_approval;
        let said = &tool.approval;
        Gate {
            judged,
            why,
            auto: None,
            tool: Self::identity(tool),
            hint: said.hint.clone(),
            rejection: said.rejection.clone(),
            deadlines: said.deadlines.clone(),
            barrier: self.barrier,
            one_at_a_time: automatic && self.one_at_a_time,
            max_auto: if automatic { self.max_auto_approval_iterations } else { 0 },
            asks_with_siblings: judged == Judged::Run && self.disable_not_required_bypass,
        }
    }
}

/// `sha256:` and 64 hex digits; over the text of what is too deep for a canonical form.
fn sha256(value: &Value) -> String {
    exact::digest(value).unwrap_or_else(|_| {
        let digest = Sha256::digest(value.to_string().as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("sha256:{hex}")
    })
}
