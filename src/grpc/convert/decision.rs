//! Requests about approvals, on their way in: filters, decisions, and what else is done with one.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::json::{object_from_pb, value_from_pb};
use super::request::{comment, is_digest, read_mark};
use super::{Faults, Refusal};
use crate::proto::{v1 as pb, wkt};
use crate::runner::index::ApprovalState;
use crate::runner::{ApprovalFilter, Decide, StandingFilter};
use crate::session::approval::{Scope, Verdict};
use crate::session::call::Kind;
use crate::session::content::Object;
use crate::session::id::{AppName, CallId, Principal, RequestId, SessionId, UserId};
use crate::session::json::{self, MAX_ARGS_DEPTH, MAX_DEPTH};

/// Longest reason for a model, in bytes.
const MAX_REASON_BYTES: usize = 4096;

/// Longest name of a tool in a filter, and longest id of a standing approval, in bytes.
const MAX_NAME_BYTES: usize = 128;

/// How long somebody has an approval unless he says otherwise.
const DEFAULT_LEASE: Duration = Duration::from_secs(15 * 60);

/// How long somebody may have an approval at most.
const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

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
    // What is approved and asked stands two levels down in what is shown of it.
    let deep = |value: &Value| json::check(value, MAX_ARGS_DEPTH).is_err();
    let edits = edited.as_ref().is_some_and(|edited| deep(&Value::Object(edited.clone())));
    for (field, is_deep) in
        [("edited_args", edits), ("payload", payload.as_ref().is_some_and(deep))]
    {
        if is_deep {
            faults.add(field, format!("must not nest deeper than {MAX_ARGS_DEPTH} levels"));
        }
    }
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

/// A refusal of an answer, in the words of the decision that it was.
pub(crate) fn refused(mut refusal: Refusal) -> Refusal {
    const NAMES: [(&str, &str); 2] = [("result.response", "result"), ("decision", "verdict")];
    let renamed = |text: &str| {
        let name = NAMES.iter().find(|(name, _)| text.starts_with(name));
        name.map(|(name, told)| format!("{told}{}", &text[name.len()..]))
    };
    for text in refusal
        .violations
        .iter_mut()
        .map(|violation| &mut violation.field)
        .chain(refusal.details.get_mut("field"))
        .chain([&mut refusal.message])
    {
        *text = renamed(text).unwrap_or_else(|| std::mem::take(text));
    }
    refusal
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
