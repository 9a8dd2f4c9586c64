//! What it costs to judge a call by an agent's rules.

use std::time::Instant;

use serde_json::json;

use super::{Failure, Measured, Report};
use crate::agent::approvals::{Approvals, Need, Rule, ToolApproval};
use crate::agent::cel::{Call, Expression, Input};
use crate::agent::{Behaviour, Body, Declaration};

/// How many rules an agent has.
const RULES: usize = 1_000;

/// How often a call is judged.
const ROUNDS: u32 = 200;

pub(super) fn measure(report: &Report) -> Result<(), Failure> {
    let (none, one, all) = (judge(0)?, judge(1)?, judge(RULES)?);
    report.tell(
        &Measured::new("judgement", all, "µs")
            .with("rules", RULES as u64)
            .beside("with_1_rule", one)
            .beside("without_rules", none),
    )
}

/// Microseconds a call, of a tool that asks, with rules that are for other calls.
fn judge(rules: usize) -> Result<f64, Failure> {
    let rule = |n: usize| {
        let when = format!("tool == 'pay' && args.amount < {n}.0 && args.to.startsWith('x')");
        Ok(Rule { name: format!("rule-{n}"), when: Expression::parse(&when)? })
    };
    let auto_approve = (0..rules).map(rule).collect::<Result<Vec<_>, Failure>>()?;
    let tool = Declaration {
        name: "pay".to_owned(),
        description: String::new(),
        parameters: json!({"type": "object"}),
        behaviour: Behaviour::default(),
        approval: ToolApproval { need: Some(Need::Always), ..ToolApproval::default() },
        body: Body::Function,
    };
    let approvals = Approvals { auto_approve, ..Approvals::default() };
    let approvals = approvals.seal(std::slice::from_ref(&tool));
    let args = json!({"amount": 5000, "to": "ann", "purpose": "travel"});
    let args = args.as_object().ok_or("an object")?;
    let since = Instant::now();
    for _ in 0..ROUNDS {
        let call =
            Call { args, tool: "pay", agent: "payer", app: "payer", user: "ann", session: "s" };
        if approvals.judge(&tool, &Input::new(call)).is_none_or(|gate| !gate.asks()) {
            return Err("the call was not asked about".into());
        }
    }
    Ok(since.elapsed().as_secs_f64() * 1e6 / f64::from(ROUNDS))
}
