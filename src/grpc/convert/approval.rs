//! Approvals: on their way out, and requests about them on their way in.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::event::kind_to_pb;
use super::json::{object_from_pb, object_to_pb, value_from_pb, value_to_pb};
use super::request::{comment, is_digest, read_mark};
use super::resource::{call_to_pb, time};
use super::{Faults, Refusal};
use crate::proto::{v1 as pb, wkt};
use crate::runner::index::{self, ApprovalState, StandingView};
use crate::runner::{ApprovalFilter, Decide, Figures, StandingFilter};
use crate::session::approval::{self, Action, Code, Note, Scope, Sibling, Verdict, What, Why};
use crate::session::call::{Call, Kind};
use crate::session::content::Object;
use crate::session::id::{AppName, CallId, Principal, RequestId, SessionId, UserId};
use crate::session::json::{self, MAX_DEPTH, exact_if_lossy};

/// Longest reason for a model, in bytes.
const MAX_REASON_BYTES: usize = 4096;

/// Longest name of a tool in a filter, and longest id of a standing approval, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// How long somebody has an approval unless he says otherwise.
const DEFAULT_LEASE: Duration = Duration::from_secs(15 * 60);

/// How long somebody may have an approval at most.
const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

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

/// What lists and watches of approvals are filtered by.
pub(crate) struct Wanted {
    pub app: String,
    pub user: String,
    pub tool: String,
    pub kinds: Vec<i32>,
    pub states: Vec<i32>,
    pub assignee: String,
}

impl Wanted {
    /// What tells it from others.
    pub(crate) fn parts(&self) -> [String; 6] {
        let Self { app, user, tool, kinds, states, assignee } = self;
        let sorted = |numbers: &[i32]| {
            let numbers: BTreeSet<_> = numbers.iter().collect();
            format!("{numbers:?}")
        };
        let [app, user, tool, assignee] = [app, user, tool, assignee].map(String::clone);
        [app, user, tool, sorted(kinds), sorted(states), assignee]
    }
}

/// A filter of approvals, without times.
pub(crate) fn read_wanted(wanted: Wanted, faults: &mut Faults) -> ApprovalFilter {
    let Wanted { app, user, tool, kinds, states, assignee } = wanted;
    let kinds = kinds.into_iter().enumerate().filter_map(|(n, kind)| {
        use pb::call::Kind as Wire;
        match Wire::try_from(kind) {
            Ok(Wire::LongRunning) => Some(Kind::LongRunning),
            Ok(Wire::Confirmation) => Some(Kind::Confirmation),
            Ok(Wire::Input) => Some(Kind::Input),
            Ok(Wire::UnknownOutcome) => Some(Kind::UnknownOutcome),
            Ok(Wire::Unspecified) | Err(_) => {
                faults.add(format!("kinds[{n}]"), "is no kind of a call");
                None
            }
        }
    });
    // What is named twice is one; what goes to the store is as short as the enum.
    let kinds: BTreeSet<Kind> = kinds.collect();
    let states = states.into_iter().enumerate().filter_map(|(n, state)| {
        use pb::approval::State as Wire;
        match Wire::try_from(state) {
            Ok(Wire::Pending) => Some(ApprovalState::Pending),
            Ok(Wire::Approved) => Some(ApprovalState::Approved),
            Ok(Wire::Denied) => Some(ApprovalState::Denied),
            Ok(Wire::Answered) => Some(ApprovalState::Answered),
            Ok(Wire::Expired) => Some(ApprovalState::Expired),
            Ok(Wire::Cancelled) => Some(ApprovalState::Cancelled),
            Ok(Wire::Unspecified) | Err(_) => {
                faults.add(format!("states[{n}]"), "is no state of an approval");
                None
            }
        }
    });
    let states: BTreeSet<ApprovalState> = states.collect();
    if tool.len() > MAX_NAME_BYTES {
        faults.add("tool_name", format!("must be at most {MAX_NAME_BYTES} bytes long"));
    }
    ApprovalFilter {
        app: faults.optional_id("app_name", app, AppName::parse),
        user: faults.optional_id("user_id", user, UserId::parse),
        tool: (!tool.is_empty()).then_some(tool),
        assignee: faults.optional_id("assignee", assignee, Principal::parse),
        kinds: kinds.into_iter().collect(),
        states: states.into_iter().collect(),
        ..ApprovalFilter::default()
    }
}

/// A time of a request, in microseconds since 1970.
pub(crate) fn read_time(
    field: &str,
    time: Option<wkt::Timestamp>,
    faults: &mut Faults,
) -> Option<u64> {
    let micros = time?.micros();
    if micros.is_none() {
        faults.add(field, "must be a time from 1970 to 9999");
    }
    micros
}

/// A filter of standing approvals.
pub(crate) fn read_standing(
    (app, user, session): (String, String, String),
    revoked: bool,
    faults: &mut Faults,
) -> StandingFilter {
    StandingFilter {
        app: faults.optional_id("app_name", app, AppName::parse),
        user: faults.optional_id("user_id", user, UserId::parse),
        session: faults.optional_id("session_id", session.trim().to_owned(), SessionId::parse),
        revoked,
    }
}

fn read_etag(etag: &str, faults: &mut Faults) -> Option<u64> {
    if etag.is_empty() {
        return None;
    }
    let plain = etag.bytes().all(|byte| byte.is_ascii_digit());
    let read = etag.parse().ok().filter(|_| plain);
    if read.is_none() {
        faults.add("etag", "must be one that an approval had");
    }
    read
}

/// A value that comes as a message or as exact text; `field` is the message's.
fn either<M, T>(
    field: &str,
    message: Option<M>,
    text: &str,
    read: impl FnOnce(&str, M, &mut Faults) -> Option<T>,
    exact: impl FnOnce(Value) -> Option<T>,
    faults: &mut Faults,
) -> Option<T> {
    let text_field = format!("{field}_json");
    if text.is_empty() {
        return message.and_then(|message| read(field, message, faults));
    }
    if message.is_some() {
        faults.add(&text_field, format!("must be empty if {field} is set"));
    }
    match json::parse(text, MAX_DEPTH).map(exact) {
        Ok(Some(value)) => Some(value),
        Ok(None) => {
            faults.add(text_field, "must be a JSON object");
            None
        }
        Err(wrong) => {
            faults.add(text_field, wrong.to_string());
            None
        }
    }
}

fn object(value: Value) -> Option<Object> {
    match value {
        Value::Object(object) => Some(object),
        _ => None,
    }
}

/// DecideApproval, with its mark.
pub(crate) fn decide(
    request: pb::DecideApprovalRequest,
    now: u64,
) -> Result<(Decide, Option<RequestId>), Refusal> {
    let pb::DecideApprovalRequest {
        call_id,
        verdict,
        args_digest,
        etag,
        reason,
        comment: note,
        result,
        result_json,
        edited_args,
        edited_args_json,
        payload,
        payload_json,
        remember,
        force,
        request_id,
    } = request;
    use pb::approval::Verdict as Wire;
    let mut faults = Faults::new();
    let call = faults.id("call_id", call_id, CallId::parse);
    let verdict = match Wire::try_from(verdict) {
        Ok(Wire::Approve) => Some(Verdict::Approve),
        Ok(Wire::Deny) => Some(Verdict::Deny),
        Ok(Wire::RequestChanges) => Some(Verdict::RequestChanges),
        Ok(Wire::SupplyResult) => Some(Verdict::SupplyResult),
        Ok(Wire::RunAgain) => Some(Verdict::RunAgain),
        Ok(Wire::Unspecified) | Err(_) => {
            faults.add("verdict", "must be a verdict");
            None
        }
    };
    let digest = (!args_digest.is_empty()).then_some(args_digest);
    if digest.as_ref().is_some_and(|digest| !is_digest(digest)) {
        faults.add("args_digest", "must be `sha256:` and 64 hex digits in lower case");
    }
    let etag = read_etag(&etag, &mut faults);
    if reason.len() > MAX_REASON_BYTES {
        faults.add("reason", format!("must be at most {MAX_REASON_BYTES} bytes long"));
    } else if reason.trim().is_empty() && verdict == Some(Verdict::RequestChanges) {
        faults.add("reason", "must tell what to change");
    }
    let note = comment(note, &mut faults);
    let only = |field: &str, there: bool, of: Verdict, faults: &mut Faults| {
        if there && verdict.is_some_and(|verdict| verdict != of) {
            faults.add(field, format!("goes with {} only", of.as_str()));
        }
    };
    only("result", result.is_some(), Verdict::SupplyResult, &mut faults);
    only("result_json", !result_json.is_empty(), Verdict::SupplyResult, &mut faults);
    only("edited_args", edited_args.is_some(), Verdict::Approve, &mut faults);
    only("edited_args_json", !edited_args_json.is_empty(), Verdict::Approve, &mut faults);
    only("remember", remember.is_some(), Verdict::Approve, &mut faults);
    only("force", force, Verdict::RunAgain, &mut faults);
    let result = either("result", result, &result_json, object_from_pb, object, &mut faults);
    let edited =
        either("edited_args", edited_args, &edited_args_json, object_from_pb, object, &mut faults);
    let payload = either("payload", payload, &payload_json, value_from_pb, Some, &mut faults);
    let remember = remember.and_then(|remember| read_remember(remember, now, &mut faults));
    let mark = read_mark(&request_id, &mut faults);
    let decide = (|| {
        Some(Decide {
            call: call?,
            verdict: verdict?,
            args_digest: digest,
            etag,
            reason,
            comment: note,
            result,
            edited,
            payload,
            remember,
            force,
        })
    })();
    faults.finish(decide).map(|decide| (decide, mark))
}

fn read_remember(
    remember: pb::decide_approval_request::Remember,
    now: u64,
    faults: &mut Faults,
) -> Option<(Scope, Option<u64>)> {
    use pb::decide_approval_request::remember::Scope as Wire;
    let pb::decide_approval_request::Remember { scope, until } = remember;
    let scope = match Wire::try_from(scope) {
        Ok(Wire::Tool) => Some(Scope::Tool),
        Ok(Wire::ToolWithArguments) => Some(Scope::ToolWithArguments),
        Ok(Wire::Unspecified) | Err(_) => {
            faults.add("remember.scope", "must say how far it reaches");
            None
        }
    };
    let until = read_time("remember.until", until, faults);
    if until.is_some_and(|until| until <= now) {
        faults.add("remember.until", "must be in the future");
    }
    scope.map(|scope| (scope, until))
}

/// AssignApproval.
pub(crate) struct Assign {
    pub call: CallId,
    pub assignee: Option<Principal>,
    pub lease: Duration,
    pub etag: Option<u64>,
}

/// AssignApproval, with its mark.
pub(crate) fn assign(
    request: pb::AssignApprovalRequest,
) -> Result<(Assign, Option<RequestId>), Refusal> {
    let pb::AssignApprovalRequest { call_id, assignee, lease, etag, request_id } = request;
    let mut faults = Faults::new();
    let call = faults.id("call_id", call_id, CallId::parse);
    if assignee.is_empty() && lease.is_some() {
        faults.add("lease", "must come with an assignee");
    }
    let assignee = faults.optional_id("assignee", assignee, Principal::parse);
    let lease = match lease {
        None => DEFAULT_LEASE,
        Some(lease) => {
            let fits = |lease: &Duration| !lease.is_zero() && *lease <= MAX_LEASE;
            lease.to_std().filter(fits).unwrap_or_else(|| {
                faults.add("lease", "must be above 0 and 24 hours at most");
                DEFAULT_LEASE
            })
        }
    };
    let etag = read_etag(&etag, &mut faults);
    let mark = read_mark(&request_id, &mut faults);
    let assign = call.map(|call| Assign { call, assignee, lease, etag });
    faults.finish(assign).map(|assign| (assign, mark))
}

/// ExtendApproval.
pub(crate) struct Extend {
    pub call: CallId,
    pub expire_time: u64,
    pub etag: Option<u64>,
    pub comment: String,
}

/// ExtendApproval, with its mark.
pub(crate) fn extend(
    request: pb::ExtendApprovalRequest,
    now: u64,
) -> Result<(Extend, Option<RequestId>), Refusal> {
    let pb::ExtendApprovalRequest { call_id, expire_time, etag, comment: note, request_id } =
        request;
    let mut faults = Faults::new();
    let call = faults.id("call_id", call_id, CallId::parse);
    if expire_time.is_none() {
        faults.add("expire_time", "is required");
    }
    let expire_time = read_time("expire_time", expire_time, &mut faults);
    if expire_time.is_some_and(|time| time <= now) {
        faults.add("expire_time", "must be in the future");
    }
    let etag = read_etag(&etag, &mut faults);
    let comment = comment(note, &mut faults);
    let mark = read_mark(&request_id, &mut faults);
    let extend = (|| Some(Extend { call: call?, expire_time: expire_time?, etag, comment }))();
    faults.finish(extend).map(|extend| (extend, mark))
}

/// An approval by its id.
pub(crate) fn read_call(call_id: String) -> Result<CallId, Refusal> {
    let mut faults = Faults::new();
    let call = faults.id("call_id", call_id, CallId::parse);
    faults.finish(call)
}

/// RevokeStandingApproval, with its mark.
pub(crate) fn revoke(
    request: pb::RevokeStandingApprovalRequest,
) -> Result<(String, Option<RequestId>), Refusal> {
    let pb::RevokeStandingApprovalRequest { id, request_id } = request;
    let mut faults = Faults::new();
    // Its rules are those of the ids of calls.
    let id = faults.id("id", id, CallId::parse);
    let mark = read_mark(&request_id, &mut faults);
    faults.finish(id).map(|id| (id.to_string(), mark))
}
