//! Which calls of an agent wait for a person: what its file says, as data, and how a call is judged
//! by it. The order of judgement is the contract's: what is denied, whether approval is needed at
//! all, and whether a rule gives it. Standing approvals stand between the two and are the session's
//! (`session::draft`), so a rule is only offered here.

use std::time::Duration;

use crate::session::approval::Deadline;

/// Whether a tool's calls need approval.
#[derive(Debug, Clone, PartialEq)]
pub enum Need {
    /// Each call does.
    Always,
    /// None does.
    Never,
    /// Those do for which this is true, or cannot be told.
    When(super::cel::Expression),
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
    pub when: super::cel::Expression,
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
