//! The rules of the built-in scripted model, as data. `model::scripted` follows them.
//!
//! Rules are tried in order; the first that matches what was said last speaks. A rule that matches
//! several responses of one message speaks once for each of them, in order.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

use crate::session::content::Object;

/// The rules, in the order in which they are tried.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// The rules.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// When it speaks.
    pub when: When,
    /// Conditions on captured values, all of which must hold.
    pub conditions: Vec<Condition>,
    /// What it says.
    pub reply: Reply,
}

/// What a rule matches: what was said last.
#[derive(Debug, Clone)]
pub enum When {
    /// The user's newest text matches one of these patterns (searched, not anchored); named groups
    /// become captures.
    User(Vec<Regex>),
    /// A tool responded: `${response.KEY}` and the call's `${args.KEY}` become captures.
    Response {
        /// The tool's name.
        tool: String,
        /// Values that the response must have, by key (top level).
        matches: BTreeMap<String, Value>,
    },
    /// Anything.
    Always,
}

/// A condition on a captured value.
#[derive(Debug, Clone)]
pub struct Condition {
    /// The capture, such as `amount` or `response.amount`.
    pub capture: String,
    /// What must hold. A capture that is absent or no number fails a numeric condition.
    pub holds: Holds,
}

/// What a condition demands. Numbers are compared exactly, as decimals.
#[derive(Debug, Clone)]
pub enum Holds {
    /// The number is below this one.
    Below(serde_json::Number),
    /// The number is this one or above.
    AtLeast(serde_json::Number),
    /// The value is this one, numbers compared as decimals.
    Equals(Value),
    /// The capture is there and not null, or is not.
    Present(bool),
}

/// What a rule says: a text, calls, or both.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// The text, with `${capture}` places (see [`template`](super::template)); empty: none.
    pub text: String,
    /// The calls, in order.
    pub calls: Vec<Call>,
}

/// A call that a rule makes.
#[derive(Debug, Clone)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// Its arguments: a text that is one `${capture}` alone becomes the captured value with its
    /// JSON type (a captured text that reads as a number, thousands commas aside, becomes that
    /// number), other texts have their places filled as text.
    pub args: Object,
}
