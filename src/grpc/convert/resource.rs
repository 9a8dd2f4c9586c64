//! Resources, on their way out: calls, invocations, sessions, agents.

use super::content::function_response_to_pb;
use super::event::{kind_to_pb, usage_to_pb};
use super::json::object_to_pb;
use crate::agent::approvals::{Approvals, Need, Rule, ToolApproval};
use crate::agent::{Agent, Declaration, Effect, Model};
use crate::proto::{v1 as pb, wkt};
use crate::runner::SessionView;
use crate::runner::index::{InvocationView, State};
use crate::session::call::{Answers, Behaviour, Call, End, Kind, Phase, Spec, Told};
use crate::session::content::FunctionResponse;
use crate::session::json::exact_if_lossy;

/// A time.
pub(super) fn time(micros: u64) -> Option<wkt::Timestamp> {
    Some(wkt::Timestamp::from_micros(micros))
}

fn sequence(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A call.
pub(crate) fn call_to_pb(call: &Call) -> pb::Call {
    let Call {
        spec,
        session,
        invocation,
        frame,
        sequence: _,
        index: _,
        create_time,
        expire_time,
        phase,
        body: _,
        execution: _,
        attempt: _,
        untold: _,
        last,
        told_at: _,
        revision: _,
        started: _,
        deadlines_done: _,
        gated: _,
        approval: _,
    } = call;
    let Spec { id, model_id: _, name, args, args_digest, behaviour, gate: _, failed: _ } =
        spec.as_ref();
    let (state, kind) = match phase {
        Phase::Requested | Phase::Waiting | Phase::Gated | Phase::Running => {
            (pb::call::State::Running, None)
        }
        Phase::Held(kind) => (pb::call::State::Held, Some(*kind)),
        Phase::Closed(closing) => {
            let state = match closing.end {
                End::Done => pb::call::State::Done,
                End::Denied => pb::call::State::Denied,
                End::Expired => pb::call::State::Expired,
                End::Cancelled => pb::call::State::Cancelled,
            };
            (state, closing.kind)
        }
    };
    let answered_by = match phase {
        Phase::Closed(closing) if !closing.digest.is_empty() => closing.by.to_string(),
        _ => String::new(),
    };
    let (last_response, exact_response_json, comment) = match last {
        Some(Told { response, by: _, comment }) => {
            let answer = FunctionResponse {
                id: id.clone(),
                name: name.clone(),
                response: response.clone(),
                will_continue: None,
            };
            let exact = response.as_ref().map(exact_if_lossy).unwrap_or_default();
            (Some(function_response_to_pb(&answer)), exact, comment.clone())
        }
        None => (None, String::new(), String::new()),
    };
    pb::Call {
        function_call: Some(pb::FunctionCall {
            id: id.to_string(),
            name: name.clone(),
            args: Some(object_to_pb(args)),
        }),
        state: state.into(),
        kind: kind.map_or(pb::call::Kind::Unspecified, kind_to_pb).into(),
        agent_path: frame.agent_path(),
        last_response,
        invocation_id: invocation.to_string(),
        app_name: session.app.to_string(),
        user_id: session.user.to_string(),
        session_id: session.id.to_string(),
        args_digest: args_digest.clone(),
        exact_args_json: serde_json::Value::Object(args.clone()).to_string(),
        answers: answers(behaviour, kind).into(),
        create_time: time(*create_time),
        expire_time: expire_time.and_then(time),
        answered_by,
        comment,
        exact_response_json,
    }
}

/// An outcome that is unknown is told once, whatever the tool declares.
fn answers(behaviour: &Behaviour, kind: Option<Kind>) -> pb::call::Answers {
    match behaviour.answers {
        _ if matches!(kind, Some(Kind::UnknownOutcome | Kind::Confirmation)) => {
            pb::call::Answers::Once
        }
        _ if !behaviour.long_running => pb::call::Answers::Unspecified,
        Answers::Once => pb::call::Answers::Once,
        Answers::Many => pb::call::Answers::Many,
    }
}

/// The state of an invocation.
pub(crate) fn state_to_pb(state: State) -> pb::invocation::State {
    match state {
        State::Running => pb::invocation::State::Running,
        State::Paused => pb::invocation::State::Paused,
        State::Completed => pb::invocation::State::Completed,
        State::Failed => pb::invocation::State::Failed,
        State::Cancelled => pb::invocation::State::Cancelled,
    }
}

/// An invocation.
pub(crate) fn invocation_to_pb(view: &InvocationView) -> pb::Invocation {
    let InvocationView {
        id,
        session,
        state,
        held,
        create_time,
        update_time,
        began_at: _,
        rested_at: _,
        usage,
        error_code,
        error_message,
    } = view;
    pb::Invocation {
        id: id.to_string(),
        app_name: session.app.to_string(),
        user_id: session.user.to_string(),
        session_id: session.id.to_string(),
        state: state_to_pb(*state).into(),
        held_calls: held.iter().map(call_to_pb).collect(),
        create_time: time(*create_time),
        update_time: time(*update_time),
        usage_metadata: Some(usage_to_pb(*usage)),
        error_code: error_code.clone(),
        error_message: error_message.clone(),
    }
}

/// A session.
pub(crate) fn session_to_pb(view: &SessionView) -> pb::Session {
    let SessionView { session, state } = view;
    let mut held: Vec<_> = session.calls.values().filter(|call| call.held().is_some()).collect();
    held.sort_by_key(|call| (call.sequence, call.index));
    pb::Session {
        id: session.key.id.to_string(),
        app_name: session.key.app.to_string(),
        user_id: session.key.user.to_string(),
        state: Some(object_to_pb(state)),
        create_time: time(session.create_time),
        update_time: time(session.update_time),
        last_sequence: sequence(session.last_sequence),
        running_invocation_id: session
            .running
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default(),
        held_call_ids: held.iter().map(|call| call.spec.id.to_string()).collect(),
    }
}

/// An agent.
pub(crate) fn agent_to_pb(agent: &Agent) -> pb::Agent {
    let Agent { name, description, instruction, model, tools, approvals, max_prompt_events: _ } =
        agent;
    pb::Agent {
        name: name.to_string(),
        description: description.clone(),
        model: match model {
            Model::Scripted(_) => "scripted".to_owned(),
            Model::Named(name) => name.clone(),
        },
        instruction: instruction.clone(),
        tools: tools.iter().map(tool_to_pb).collect(),
        approvals: Some(approvals_to_pb(approvals)),
    }
}

fn approvals_to_pb(approvals: &Approvals) -> pb::ApprovalSettings {
    use pb::approval_settings::Batches;
    let Approvals {
        by_default,
        barrier,
        one_at_a_time,
        disable_tool_auto_approval,
        disable_not_required_bypass,
        max_auto_approval_iterations,
        auto_approve,
        deny,
        revision,
    } = approvals;
    let rule = |rule: &Rule| pb::approval_settings::Rule {
        name: rule.name.clone(),
        condition: rule.when.source().to_owned(),
    };
    pb::ApprovalSettings {
        needed_by_default: *by_default,
        batches: if *barrier { Batches::Barrier } else { Batches::Eager }.into(),
        one_at_a_time: *one_at_a_time,
        disable_tool_auto_approval: *disable_tool_auto_approval,
        disable_not_required_bypass: *disable_not_required_bypass,
        max_auto_approval_iterations: i32::try_from(*max_auto_approval_iterations)
            .unwrap_or(i32::MAX),
        auto_approve: auto_approve.iter().map(rule).collect(),
        deny: deny.iter().map(rule).collect(),
        revision: revision.clone(),
    }
}

fn tool_to_pb(tool: &Declaration) -> pb::ToolDeclaration {
    let Declaration { name, description: _, parameters, behaviour, approval, body: _ } = tool;
    let ToolApproval { need, hint, rejection: _, deadlines: _ } = approval;
    let (needs, condition) = match need {
        None => (pb::tool_declaration::NeedsApproval::Unspecified, ""),
        Some(Need::Always) => (pb::tool_declaration::NeedsApproval::Always, ""),
        Some(Need::Never) => (pb::tool_declaration::NeedsApproval::Never, ""),
        Some(Need::When(when)) => (pb::tool_declaration::NeedsApproval::Condition, when.source()),
    };
    let schema = |schema: &serde_json::Value| schema.as_object().map(object_to_pb);
    pb::ToolDeclaration {
        name: name.clone(),
        description: tool.told_description(),
        parameters: schema(parameters),
        long_running: behaviour.long_running,
        answers: answers(behaviour, None).into(),
        effect: match behaviour.effect {
            Effect::Read => pb::tool_declaration::Effect::Read,
            Effect::Idempotent => pb::tool_declaration::Effect::Idempotent,
            Effect::Once => pb::tool_declaration::Effect::Once,
        }
        .into(),
        answer_schema: behaviour.answer_schema.as_ref().and_then(schema),
        needs_approval: needs.into(),
        approval_condition: condition.to_owned(),
        approval_hint: hint.clone(),
    }
}
