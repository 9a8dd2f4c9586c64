//! Approvals, on their way out.

use serde_json::Value;

use super::event::kind_to_pb;
use super::json::{object_to_pb, value_to_pb};
use super::resource::{call_to_pb, time};
use crate::proto::v1 as pb;
use crate::runner::Figures;
use crate::runner::index::{self, ApprovalState, StandingView};
use crate::session::approval::{self, Action, Code, Note, Sibling, Verdict, What, Why};
use crate::session::call::{Call, Kind};
use crate::session::content::Object;
use crate::session::json::exact_if_lossy;

/// An approval. Of a call that is none it is what can be said of one.
pub(crate) fn approval_to_pb(call: &Call) -> pb::Approval {
    let none = approval::Approval {
        about: None,
        why: Why::new(Code::LongRunning),
        hint: String::new(),
        payload: None,
        requires_confirmation: true,
        siblings: Vec::new(),
        story: Vec::new(),
        lease: None,
        escalated_to: String::new(),
        verdict: None,
    };
    let approval::Approval {
        about,
        why,
        hint,
        payload,
        requires_confirmation,
        siblings,
        story,
        lease,
        escalated_to,
        verdict,
    } = call.approval.as_deref().unwrap_or(&none);
    let state = index::approval_state(call);
    let decided = story.iter().rev().find(|note| matches!(note.what, What::Decided { .. }));
    let decided = decided.filter(|_| state != Some(ApprovalState::Pending));
    let (decided_by, decided_at, comment, decision_reason) = match (decided, call.closed()) {
        (Some(Note { time, by, what, comment }), _) => {
            let reason = match what {
                What::Decided { reason, .. } => reason.as_str(),
                _ => "",
            };
            (by.to_string(), Some(*time), comment.clone(), reason.to_owned())
        }
        (None, Some(closing)) if !closing.digest.is_empty() => {
            (closing.by.to_string(), Some(closing.time), String::new(), String::new())
        }
        _ => Default::default(),
    };
    let told = story.last().map(|note| note.time);
    let closed = call.closed().map(|closing| closing.time);
    let updated = told.into_iter().chain(closed).fold(call.create_time, u64::max);
    let subject = match about {
        Some(spec) => Call { spec: spec.clone(), last: None, ..call.clone() },
        None => call.clone(),
    };
    let schema = call.spec.behaviour.answer_schema.as_ref().and_then(Value::as_object);
    pb::Approval {
        call_id: call.spec.id.to_string(),
        call: Some(call_to_pb(&subject)),
        state: state.map_or(pb::approval::State::Unspecified, state_to_pb).into(),
        allowed_verdicts: call
            .allowed_verdicts()
            .iter()
            .map(|v| verdict_to_pb(*v).into())
            .collect(),
        answer_schema: schema.map(object_to_pb),
        hint: hint.clone(),
        payload: payload.as_ref().map(value_to_pb),
        reason: Some(why_to_pb(why)),
        requires_confirmation: *requires_confirmation,
        siblings: siblings.iter().map(sibling_to_pb).collect(),
        story: story.iter().map(note_to_pb).collect(),
        assignee: lease.as_ref().map(|lease| lease.assignee.to_string()).unwrap_or_default(),
        lease_expire_time: lease.as_ref().and_then(|lease| time(lease.until)),
        escalated_to: escalated_to.clone(),
        create_time: time(call.create_time),
        update_time: time(updated),
        expire_time: call.expire_time.and_then(time),
        next_deadline: next_deadline(call),
        etag: call.revision.to_string(),
        app_name: call.session.app.to_string(),
        user_id: call.session.user.to_string(),
        session_id: call.session.id.to_string(),
        invocation_id: call.invocation.to_string(),
        agent_path: call.frame.agent_path(),
        verdict: verdict.map_or(pb::approval::Verdict::Unspecified, verdict_to_pb).into(),
        decided_by,
        decide_time: decided_at.and_then(time),
        decision_reason,
        comment,
        exact_payload_json: payload.as_ref().map(exact_value).unwrap_or_default(),
    }
}

/// The value as JSON text if a double would lose a digit of it.
fn exact_value(value: &Value) -> String {
    let alone = Object::from_iter([(String::new(), value.clone())]);
    if exact_if_lossy(&alone).is_empty() { String::new() } else { value.to_string() }
}

/// What happens next by itself: a deadline's work, or the end.
fn next_deadline(call: &Call) -> Option<pb::approval::Deadline> {
    use pb::approval::deadline::Action as Wire;
    call.held()?;
    let due = call.due()?;
    let next = call.next_deadline().filter(|(time, _)| *time == due);
    let (action, escalate_to) = match next.map(|(_, action)| action) {
        Some(Action::Deny) => (Wire::Deny, String::new()),
        Some(Action::Remind) => (Wire::Remind, String::new()),
        Some(Action::Escalate { to }) => (Wire::Escalate, to.clone()),
        None if call.spec.behaviour.end().is_some_and(|(_, denies)| denies) => {
            (Wire::Deny, String::new())
        }
        Some(Action::Expire) | None => (Wire::Expire, String::new()),
    };
    Some(pb::approval::Deadline { time: time(due), action: action.into(), escalate_to })
}

fn state_to_pb(state: ApprovalState) -> pb::approval::State {
    match state {
        ApprovalState::Pending => pb::approval::State::Pending,
        ApprovalState::Approved => pb::approval::State::Approved,
        ApprovalState::Denied => pb::approval::State::Denied,
        ApprovalState::Answered => pb::approval::State::Answered,
        ApprovalState::Expired => pb::approval::State::Expired,
        ApprovalState::Cancelled => pb::approval::State::Cancelled,
    }
}

fn verdict_to_pb(verdict: Verdict) -> pb::approval::Verdict {
    match verdict {
        Verdict::Approve => pb::approval::Verdict::Approve,
        Verdict::Deny => pb::approval::Verdict::Deny,
        Verdict::RequestChanges => pb::approval::Verdict::RequestChanges,
        Verdict::SupplyResult => pb::approval::Verdict::SupplyResult,
        Verdict::RunAgain => pb::approval::Verdict::RunAgain,
    }
}

fn why_to_pb(why: &Why) -> pb::approval::Reason {
    use pb::approval::reason::Code as Wire;
    let Why { code, rule, revision, detail } = why;
    let code = match code {
        Code::Tool => Wire::Tool,
        Code::AgentDefault => Wire::AgentDefault,
        Code::Condition => Wire::Condition,
        Code::RuleFailed => Wire::RuleFailed,
        Code::PolicyDenied => Wire::PolicyDenied,
        Code::StandingApproval => Wire::StandingApproval,
        Code::AutoApprovalRule => Wire::AutoApprovalRule,
        Code::AutoApprovalCap => Wire::AutoApprovalCap,
        Code::Sibling => Wire::Sibling,
        Code::Body => Wire::Body,
        Code::LongRunning => Wire::LongRunning,
        Code::Input => Wire::Input,
        Code::UnknownOutcome => Wire::UnknownOutcome,
    };
    pb::approval::Reason {
        code: code.into(),
        rule: rule.clone(),
        revision: revision.clone(),
        detail: detail.clone(),
    }
}

fn sibling_to_pb(sibling: &Sibling) -> pb::approval::Sibling {
    let Sibling { call, name, asks } = sibling;
    pb::approval::Sibling {
        call_id: call.to_string(),
        tool_name: name.clone(),
        requires_confirmation: *asks,
    }
}

fn note_to_pb(note: &Note) -> pb::approval::Note {
    use pb::approval::note::What as Wire;
    let Note { time: at, by, what, comment } = note;
    let mut told = pb::approval::Note {
        time: time(*at),
        by: by.to_string(),
        comment: comment.clone(),
        ..Default::default()
    };
    let kind = match what {
        What::Asked => Wire::Asked,
        What::Progress => Wire::Progress,
        What::Decided { verdict, reason, args_digest } => {
            told.verdict = verdict.map_or(pb::approval::Verdict::Unspecified, verdict_to_pb).into();
            (told.reason, told.args_digest) = (reason.clone(), args_digest.clone());
            Wire::Decided
        }
        What::Edited { from, to } => {
            (told.old_args_digest, told.args_digest) = (from.clone(), to.clone());
            Wire::Edited
        }
        What::Assigned { to, until } => {
            (told.assignee, told.until) = (to.to_string(), time(*until));
            Wire::Assigned
        }
        What::Unassigned => Wire::Unassigned,
        What::Extended { expire_time } => {
            told.until = time(*expire_time);
            Wire::Extended
        }
        What::Reminded => Wire::Reminded,
        What::Escalated { to } => {
            told.escalated_to = to.clone();
            Wire::Escalated
        }
        What::Expired => Wire::Expired,
        What::Cancelled => Wire::Cancelled,
    };
    told.what = kind.into();
    told
}

/// A standing approval.
pub(crate) fn standing_to_pb(view: &StandingView) -> pb::StandingApproval {
    let StandingView { session, standing, revoked } = view;
    let approval::Standing { id, tool, args_digest, args, until, call, by, time: at } = standing;
    let approval::ToolIdentity { name, source, schema_digest } = tool;
    pb::StandingApproval {
        id: id.clone(),
        app_name: session.app.to_string(),
        user_id: session.user.to_string(),
        session_id: session.id.to_string(),
        tool_name: name.clone(),
        tool_source: source.clone(),
        tool_schema_digest: schema_digest.clone(),
        args_digest: args_digest.clone().unwrap_or_default(),
        exact_args_json: match args {
            Some(args) => Value::Object(args.clone()).to_string(),
            None => String::new(),
        },
        call_id: call.to_string(),
        created_by: by.to_string(),
        create_time: time(*at),
        expire_time: until.and_then(time),
        revoked: *revoked,
    }
}

/// How many approvals there are.
pub(crate) fn figures_to_pb(figures: &Figures) -> pb::SummarizeApprovalsResponse {
    let Figures { counts, oldest } = figures;
    let count = |(state, kind, count): &(ApprovalState, Kind, u64)| {
        pb::summarize_approvals_response::Count {
            state: state_to_pb(*state).into(),
            kind: kind_to_pb(*kind).into(),
            count: i64::try_from(*count).unwrap_or(i64::MAX),
        }
    };
    pb::SummarizeApprovalsResponse {
        counts: counts.iter().map(count).collect(),
        oldest_pending: oldest.as_ref().map(approval_to_pb),
    }
}
