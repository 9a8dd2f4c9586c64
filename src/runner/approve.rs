//! Decisions on approvals: DecideApproval, AssignApproval, ExtendApproval, and the end of standing
//! approvals.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::index::{self, InvocationView, StandingView};
use super::run::gone;
use super::submit::Submission;
use super::write::{self, Caller, Decided, Outcome};
use super::{Inner, Runner, refuse_store, untold};
use crate::session::Session;
use crate::session::approval::{Code, Judged, Scope, Standing, Verdict};
use crate::session::approving::{check_etag, no_approval};
use crate::session::asking::decided;
use crate::session::call::{Call, Kind, later};
use crate::session::content::Object;
use crate::session::decide::{Answered, Decision, Incoming, Incomings, find};
use crate::session::draft::Draft;
use crate::session::id::{CallId, Principal, SessionKey, SessionUid};
use crate::session::record::Edited;
use crate::session::refusal::{Reason, Refusal};

/// A decision on an approval.
#[derive(Debug, Clone, PartialEq)]
pub struct Decide {
    /// The call that is to be answered.
    pub call: CallId,
    /// The verdict.
    pub verdict: Verdict,
    /// The digest of the arguments that the caller has seen.
    pub args_digest: Option<String>,
    /// How the approval was when the caller read it.
    pub etag: Option<u64>,
    /// Why, for the model.
    pub reason: String,
    /// For the record.
    pub comment: String,
    /// SUPPLY_RESULT: the result.
    pub result: Option<Object>,
    /// APPROVE of a question: with these arguments.
    pub edited: Option<Object>,
    /// APPROVE of a question: what its body is told.
    pub payload: Option<Value>,
    /// APPROVE of a question: which calls need none from here on, and until when, in microseconds
    /// since 1970.
    pub remember: Option<(Scope, Option<u64>)>,
    /// RUN_AGAIN: though the body may still be at work.
    pub force: bool,
}

/// What came of a decision, durable.
#[derive(Debug, Clone, PartialEq)]
pub struct DecidedApproval {
    /// The call that was answered, as it is now.
    pub call: Call,
    /// What came of it.
    pub outcome: Answered,
    /// Its invocation, as it is now.
    pub view: InvocationView,
    /// Follow from behind this event.
    pub after_sequence: u64,
    /// What needs no question any more.
    pub standing: Option<Standing>,
}

/// What is recorded of a request for a repeat of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Kept {
    call: CallId,
    after_sequence: u64,
}

/// The name under which a decision's request is kept.
const DECIDE: &str = "DecideApproval";

impl Runner {
    /// Decides on an approval; durable when this returns. Errors: APPROVAL_NOT_FOUND,
    /// VERDICT_NOT_ALLOWED, ARGS_DIGEST_REQUIRED, ARGS_DIGEST_MISMATCH, ARGS_SCHEMA_VIOLATION,
    /// RESPONSE_SCHEMA_VIOLATION, POLICY_DENIED, APPROVAL_CLAIMED, ETAG_MISMATCH, FIELD_INVALID,
    /// and those of answers.
    pub async fn decide_approval(
        &self,
        caller: Caller,
        decide: Decide,
    ) -> Result<DecidedApproval, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        let id = decide.call.clone();
        let done = self.detached(async move { inner.decide_on(&caller, decide).await });
        done.await.map_err(|refusal| as_approval(refusal, &id))
    }

    /// Takes an approval for a while, or gives it back. Errors: APPROVAL_NOT_FOUND,
    /// APPROVAL_CLAIMED, ETAG_MISMATCH, and those of what is over.
    pub async fn assign_approval(
        &self,
        caller: Caller,
        call: CallId,
        assignee: Option<Principal>,
        lease: Duration,
        etag: Option<u64>,
    ) -> Result<Call, Refusal> {
        self.change_approval(caller, "AssignApproval", call, move |draft, past, id| {
            let to = assignee.clone().map(|to| (to, later(draft.now, lease)));
            draft.assign(past, id, to, etag)
        })
        .await
    }

    /// Moves an approval's deadline to a later time. Errors: APPROVAL_NOT_FOUND, FIELD_INVALID,
    /// ETAG_MISMATCH, and those of what is over.
    pub async fn extend_approval(
        &self,
        caller: Caller,
        call: CallId,
        expire_time: u64,
        etag: Option<u64>,
        comment: String,
    ) -> Result<Call, Refusal> {
        self.change_approval(caller, "ExtendApproval", call, move |draft, past, id| {
            draft.extend(past, id, expire_time, etag, comment.clone())
        })
        .await
    }

    /// Revokes a standing approval: calls that it was for ask again. One that is revoked already is
    /// given as it was. Errors: STANDING_APPROVAL_NOT_FOUND.
    pub async fn revoke_standing(
        &self,
        caller: Caller,
        id: String,
    ) -> Result<(SessionKey, Standing), Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        self.detached(async move {
            let method = "RevokeStandingApproval";
            let again = inner.seen::<String>(&caller, method).await?;
            let stored = inner.store.entry(index::STANDING, &id).await.map_err(refuse_store)?;
            let Some(stored) = stored else { return Err(no_standing(&id)) };
            let view: StandingView = index::read(&stored.entry.bytes)?;
            if again.is_some() || view.revoked {
                return Ok((view.session, view.standing));
            }
            let done = inner
                .decide(&stored.uid, &caller.principal, |draft| {
                    draft.revoke_standing(&id)?;
                    let request = write::request(&caller, method, &id);
                    Ok(Decided { value: (), request, delete: false })
                })
                .await?;
            done.ok_or_else(gone)?;
            Ok((view.session, view.standing))
        })
        .await
    }

    async fn change_approval(
        &self,
        caller: Caller,
        method: &'static str,
        id: CallId,
        change: impl Change,
    ) -> Result<Call, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        let wanted = id.clone();
        let done = self.detached(async move {
            if let Some(seen) = inner.seen::<Kept>(&caller, method).await? {
                return Ok(inner.approval_call(&seen.call).await?.1);
            }
            let (uid, past) = inner.approval_call(&id).await?;
            let past = [past];
            let done = inner
                .decide(&uid, &caller.principal, |draft| {
                    change(draft, &past, &id)?;
                    let kept = Kept { call: id.clone(), after_sequence: 0 };
                    let wrote = !draft.records.is_empty();
                    let request = wrote.then(|| write::request(&caller, method, &kept)).flatten();
                    Ok(Decided { value: (), request, delete: false })
                })
                .await;
            let done = match done {
                Ok(done) => done,
                // What stands in its way may be what an earlier attempt of it has done.
                Err(refusal) => {
                    inner.unless_seen::<Kept>(&caller, method, refusal).await?;
                    return Ok(inner.approval_call(&id).await.map_err(untold)?.1);
                }
            };
            let (outcome, session) = done.ok_or_else(gone)?;
            if let Outcome::Seen(recorded) = outcome {
                let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                write::outcome_of::<Kept>(&recorded, mark)?;
                return Ok(inner.approval_call(&id).await.map_err(untold)?.1);
            }
            Ok(find(&session, &past, &id).expect("a changed call was found").clone())
        });
        done.await.map_err(|refusal| as_approval(refusal, &wanted))
    }
}

/// A change of an approval that is open, given its call, in case that is over.
trait Change:
    Fn(&mut Draft<'_>, &[Call], &CallId) -> Result<(), Refusal> + Send + Sync + 'static
{
}

impl<F> Change for F where
    F: Fn(&mut Draft<'_>, &[Call], &CallId) -> Result<(), Refusal> + Send + Sync + 'static
{
}

/// What is said of calls, said of approvals.
fn as_approval(refusal: Refusal, id: &CallId) -> Refusal {
    match refusal.reason {
        Reason::CallNotFound | Reason::SessionNotFound | Reason::InvocationNotFound => {
            no_approval(id)
        }
        _ => refusal,
    }
}

fn no_standing(id: &str) -> Refusal {
    let message = "there is no such standing approval";
    Refusal::new(Reason::StandingApprovalNotFound, message).with("standing_id", id)
}

impl Inner {
    /// A call that is an approval, by its id, with the session that has it.
    async fn approval_call(&self, id: &CallId) -> Result<(SessionUid, Call), Refusal> {
        let found = self.call(id).await?.filter(|(_, call)| call.approval.is_some());
        found.ok_or_else(|| no_approval(id))
    }

    async fn decide_on(
        self: &Arc<Self>,
        caller: &Caller,
        decide: Decide,
    ) -> Result<DecidedApproval, Refusal> {
        let (uid, past) = self.approval_call(&decide.call).await?;
        if decide.verdict == Verdict::RunAgain {
            return self.run_again(caller, decide, uid, past).await;
        }
        // It may be open in memory with more than its entry had.
        let session = self.session(&uid).await?.ok_or_else(gone)?;
        let call = find(&session, std::slice::from_ref(&past), &decide.call).unwrap_or(&past);
        let checked = if call.closed().is_none() { check_digest(call, &decide) } else { Ok(()) };
        let incoming = match checked.and_then(|()| self.incoming(&session, call, &decide)) {
            Ok(incoming) => incoming,
            // What stands in its way may be what an earlier attempt of it has done.
            Err(refusal) => {
                self.unless_seen::<Value>(caller, DECIDE, refusal).await?;
                Incoming {
                    call: decide.call.clone(),
                    name: call.spec.name.clone(),
                    response: None,
                    will_continue: Some(false),
                    decision: None,
                    field: String::new(),
                }
            }
        };
        let submission = Submission {
            app: None,
            user: None,
            session: None,
            answers: Incomings {
                answers: vec![incoming],
                invocation: None,
                expected_args_digest: decide.args_digest.clone(),
                skip_summarization: false,
                comment: decide.comment.clone(),
                state_delta: Object::new(),
            },
            etag: decide.etag,
        };
        let submitted = self.submit_once(caller, DECIDE, &submission).await?;
        let standing = match &decide.remember {
            Some(_) => self.made_with(&uid, &decide.call).await.map_err(untold)?,
            None => None,
        };
        Ok(DecidedApproval {
            call: submitted.call,
            outcome: submitted.outcome,
            view: submitted.view,
            after_sequence: submitted.after_sequence,
            standing,
        })
    }

    /// The standing approval that was made with the approval of a question.
    async fn made_with(&self, uid: &SessionUid, id: &CallId) -> Result<Option<Standing>, Refusal> {
        let Some(session) = self.session(uid).await? else { return Ok(None) };
        Ok(session.standing.values().find(|standing| &standing.call == id).cloned())
    }

    /// The answer that carries a decision.
    fn incoming(
        &self,
        session: &Session,
        call: &Call,
        decide: &Decide,
    ) -> Result<Incoming, Refusal> {
        let kind = call.held().or_else(|| call.closed().and_then(|closing| closing.kind));
        let verdict = decide.verdict;
        check_fields(kind, decide)?;
        let edited = match &decide.edited {
            Some(args) => Some(self.edited(session, call, args)?),
            None => None,
        };
        let decisions = call.spec.behaviour.decisions.as_ref();
        let response = match (kind, verdict, decisions) {
            (Some(Kind::Confirmation), ..) => {
                let mut said = json!({"confirmed": verdict == Verdict::Approve});
                if let Some(payload) = &decide.payload {
                    said["payload"] = payload.clone();
                }
                said.as_object().cloned()
            }
            (_, Verdict::SupplyResult, _) => decide.result.clone(),
            (_, Verdict::Approve, Some(d)) => Some(decided(call, &d.approve, &decide.reason)),
            (_, Verdict::Deny, Some(d)) => Some(decided(call, &d.deny, &decide.reason)),
            (_, Verdict::Deny, None) => {
                let mut response = crate::tool::arguments::error("The user declined to answer.");
                if !decide.reason.is_empty() {
                    response.insert("reason".to_owned(), decide.reason.clone().into());
                }
                Some(response)
            }
            _ => None,
        };
        Ok(Incoming {
            call: decide.call.clone(),
            name: call.spec.name.clone(),
            response,
            will_continue: Some(false),
            decision: Some(Decision {
                verdict,
                reason: decide.reason.clone(),
                edited,
                remember: decide.remember,
            }),
            field: if verdict == Verdict::SupplyResult { "result" } else { "decision" }.to_owned(),
        })
    }

    /// Arguments in the place of a gated call's: checked, filled in, and judged from the top.
    fn edited(&self, session: &Session, call: &Call, args: &Object) -> Result<Edited, Refusal> {
        let about = call.approval.as_ref().and_then(|approval| approval.about.clone());
        let about = about.ok_or_else(|| {
            Refusal::field("edited_args", "is only for the approval of a call before it runs")
        })?;
        let (role, part) = session
            .calls
            .get(&about.id)
            .and_then(|gated| Some((self.role_of(session, gated)?, self.part_of(session, gated)?)))
            .ok_or_else(|| {
                let message = "the tool is not there any more; its arguments cannot be checked";
                Refusal::new(Reason::ToolChanged, message).with("call_id", &call.spec.id)
            })?;
        let args = part.parameters.effective(args).map_err(|wrong| {
            let told = wrong.get("error").and_then(Value::as_str).unwrap_or_default();
            let mut refusal = Refusal::field("edited_args", told);
            refusal.reason = Reason::ArgsSchemaViolation;
            refusal.with("call_id", &call.spec.id)
        })?;
        // They are told with the result, which has its own room.
        let room = self.limits.event_bytes / 4 / (call_siblings(call) + 1);
        if Value::Object(args.clone()).to_string().len() > room {
            let rule = format!("must have {room} bytes at most");
            return Err(Refusal::field("edited_args", rule));
        }
        let args_digest = crate::session::json::args_digest(&about.name, &args)
            .map_err(|wrong| Refusal::field("edited_args", wrong.to_string()))?;
        let gate = self.judged(role, &session.key, part, &args);
        let why = match gate {
            Some(gate) if gate.judged == Judged::Deny => {
                let message = "the agent's policy forbids the call with these arguments";
                return Err(Refusal::new(Reason::PolicyDenied, message)
                    .with("call_id", &call.spec.id)
                    .with("rule", gate.why.rule)
                    .with("revision", gate.why.revision));
            }
            Some(gate) => gate.why,
            None => crate::session::approval::Why::new(Code::Tool),
        };
        Ok(Edited { call: about.id.clone(), args, args_digest, why })
    }

    async fn run_again(
        self: &Arc<Self>,
        caller: &Caller,
        decide: Decide,
        uid: SessionUid,
        past: Call,
    ) -> Result<DecidedApproval, Refusal> {
        let window = u64::try_from(self.limits.start_window.as_micros()).unwrap_or(u64::MAX);
        let past = [past];
        let seen = self.seen::<Kept>(caller, DECIDE).await?;
        let kept = match seen {
            Some(kept) => kept,
            None => {
                check_fields(Some(Kind::UnknownOutcome), &decide)?;
                let digest = decide.args_digest.clone().ok_or_else(no_digest)?;
                let done = self
                    .decide(&uid, &caller.principal, |draft| {
                        let id = decide.call.clone();
                        let comment = decide.comment.clone();
                        let etag = (decide.etag, window);
                        draft.run_again(&past, &id, &digest, etag, decide.force, comment)?;
                        let after_sequence = draft.session.last_sequence;
                        let kept = Kept { call: id, after_sequence };
                        let request = write::request(caller, DECIDE, &kept);
                        Ok(Decided { value: kept, request, delete: false })
                    })
                    .await;
                match done.map(|done| done.map(|(outcome, _)| outcome)) {
                    Ok(Some(Outcome::Done(kept))) => kept,
                    Ok(Some(Outcome::Seen(recorded))) => {
                        let mark = caller.mark.as_ref().expect("only a marked one is recorded");
                        write::outcome_of(&recorded, mark)?
                    }
                    Ok(None) => return Err(gone()),
                    Err(refusal) => self.unless_seen(caller, DECIDE, refusal).await?,
                }
            }
        };
        let (_, call) = self.approval_call(&kept.call).await.map_err(untold)?;
        let view = self.invocation(&call.invocation).await.map_err(untold)?;
        let (outcome, after_sequence) = (Answered::Applied, kept.after_sequence);
        Ok(DecidedApproval { call, outcome, view, after_sequence, standing: None })
    }
}

/// How many calls share the turn of a question's call with it.
fn call_siblings(question: &Call) -> usize {
    question.approval.as_ref().map_or(0, |approval| approval.siblings.len())
}

/// Fields that the verdict has no use for are refused, and those that it needs are asked for.
fn check_fields(kind: Option<Kind>, decide: &Decide) -> Result<(), Refusal> {
    let question = kind == Some(Kind::Confirmation) && decide.verdict == Verdict::Approve;
    let supplies = decide.verdict == Verdict::SupplyResult;
    let only = [
        ("edited_args", decide.edited.is_some() && !question, "the approval of a question"),
        ("payload", decide.payload.is_some() && !question, "the approval of a question"),
        ("remember", decide.remember.is_some() && !question, "the approval of a question"),
        ("result", decide.result.is_some() && !supplies, "SUPPLY_RESULT"),
        ("force", decide.force && decide.verdict != Verdict::RunAgain, "RUN_AGAIN"),
    ];
    if let Some((field, _, what)) = only.into_iter().find(|(_, wrong, _)| *wrong) {
        return Err(Refusal::field(field, format!("is only for {what}")));
    }
    if supplies && decide.result.is_none() {
        return Err(Refusal::field("result", "is required for SUPPLY_RESULT"));
    }
    if decide.verdict == Verdict::RequestChanges && decide.reason.is_empty() {
        return Err(Refusal::field("reason", "is required for REQUEST_CHANGES"));
    }
    Ok(())
}

/// An approval is for what was seen.
fn check_digest(call: &Call, decide: &Decide) -> Result<(), Refusal> {
    let needed = decide.verdict == Verdict::Approve && decide.args_digest.is_none();
    if needed && call.allowed_verdicts().contains(&Verdict::Approve) {
        return Err(no_digest().with("call_id", &call.spec.id));
    }
    Ok(())
}

fn no_digest() -> Refusal {
    let message = "args_digest is required: say which arguments are decided on";
    Refusal::new(Reason::ArgsDigestRequired, message).with("field", "args_digest")
}

/// The approval must be as the caller has read it, as long as it is open.
pub(super) fn check_open_etag(call: &Call, etag: Option<u64>) -> Result<(), Refusal> {
    if call.closed().is_some() { Ok(()) } else { check_etag(call, etag) }
}
