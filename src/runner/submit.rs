//! Answers from outside: SubmitFunctionResponse, and RunAsync with responses.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::approve::check_open_etag;
use super::index::{self, InvocationView};
use super::run::{Started, check_cursor, gone};
use super::write::{self, Caller, Decided, Outcome};
use super::{Inner, Runner, lock, refuse_store, untold};
use crate::session::Session;
use crate::session::call::Call;
use crate::session::decide::{Answered, Incomings, find};
use crate::session::id::{
    AppName, CallId, EventId, InvocationId, SessionId, SessionKey, SessionUid, UserId,
};
use crate::session::refusal::{Reason, Refusal};
use crate::session::state::Queued;
use crate::tool::arguments::check_answer;

/// Answers, and whose calls they must be for.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The app that the calls must be of.
    pub app: Option<AppName>,
    /// The user that they must be of.
    pub user: Option<UserId>,
    /// The session that they must be in.
    pub session: Option<SessionId>,
    /// The answers.
    pub answers: Incomings,
    /// How the first call's approval was when the caller read it.
    pub etag: Option<u64>,
}

/// What came of answers, durable.
#[derive(Debug, Clone, PartialEq)]
pub struct Submitted {
    /// The session.
    pub uid: SessionUid,
    /// Its names.
    pub key: SessionKey,
    /// The invocation.
    pub invocation: InvocationId,
    /// What came of them.
    pub outcome: Answered,
    /// The first call, as it is now.
    pub call: Call,
    /// The invocation, as it is now.
    pub view: InvocationView,
    /// Sequence of the answers' event; 0 if it has no place yet.
    pub sequence: u64,
    /// Follow from behind this event.
    pub after_sequence: u64,
    /// Position of the answers' record.
    pub position: u64,
    /// The answers' event, if it has no place yet.
    pub own: Option<EventId>,
}

/// What is recorded of answers for a repeat of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Kept {
    outcome: Answered,
    sequence: u64,
    after_sequence: u64,
    started: Started,
}

/// Answers given now, or by an earlier request with the same mark.
pub(super) enum Given {
    Now(Box<Submitted>),
    Before(Started),
}

impl Runner {
    /// Delivers an answer; durable when this returns.
    pub async fn submit(
        &self,
        caller: Caller,
        submission: Submission,
    ) -> Result<Submitted, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        let first = submission.answers.answers.first().map(|answer| answer.call.clone());
        let done = self.detached(async move {
            inner.submit_once(&caller, "SubmitFunctionResponse", &submission).await
        });
        done.await.map_err(|refusal| match (refusal.reason, first) {
            // The session is deleted meanwhile, and its calls with it.
            (Reason::SessionNotFound | Reason::InvocationNotFound, Some(call)) => no_call(&call),
            _ => refusal,
        })
    }
}

/// There is no such call, or it is not the caller's to know.
fn no_call(id: &CallId) -> Refusal {
    Refusal::new(Reason::CallNotFound, "there is no such call").with("call_id", id)
}

impl Inner {
    /// A call by its id, as it was when it was written last, with the session that has it.
    pub(crate) async fn call(&self, id: &CallId) -> Result<Option<(SessionUid, Call)>, Refusal> {
        let stored = self.store.entry(index::CALL, id.as_str()).await.map_err(refuse_store)?;
        let Some(stored) = stored else { return Ok(None) };
        Ok(Some((stored.uid, index::read(&stored.entry.bytes)?)))
    }

    /// An open call, if memory has it and is never behind the store.
    fn call_in_memory(&self, id: &CallId) -> Option<(SessionUid, Call)> {
        let uid = lock(&self.homes).get(id).filter(|_| self.store.exclusive())?.clone();
        let call = lock(&self.cache).get(&uid)?.calls.get(id)?.clone();
        Some((uid, call))
    }

    /// The calls that are answered, which must all be of one session, and that the right one.
    async fn calls(&self, to: &Submission) -> Result<(SessionUid, Vec<Call>), Refusal> {
        let mut calls: Vec<Call> = Vec::new();
        let mut home = None;
        for incoming in &to.answers.answers {
            let found = match self.call_in_memory(&incoming.call) {
                Some(found) => Some(found),
                None => self.call(&incoming.call).await?,
            };
            let (uid, call) = found.ok_or_else(|| no_call(&incoming.call))?;
            let SessionKey { app, user, id } = &call.session;
            let wanted = to.app.as_ref().is_none_or(|wanted| wanted == app)
                && to.user.as_ref().is_none_or(|wanted| wanted == user)
                && to.session.as_ref().is_none_or(|wanted| wanted == id);
            if !wanted {
                return Err(no_call(&incoming.call));
            }
            if home.get_or_insert_with(|| uid.clone()) != &uid {
                return Err(Refusal::new(
                    Reason::MixedMessage,
                    "the message answers calls of more than one invocation",
                ));
            }
            calls.push(call);
        }
        let home = home.ok_or_else(|| Refusal::field("function_response", "is required"))?;
        Ok((home, calls))
    }

    /// Delivers answers once, however often they are sent with the same mark.
    pub(super) async fn submit_once(
        self: &Arc<Self>,
        caller: &Caller,
        method: &str,
        submission: &Submission,
    ) -> Result<Submitted, Refusal> {
        if let Some(kept) = self.seen::<Kept>(caller, method).await? {
            return self.submitted_before(submission, kept).await;
        }
        let kept = match self.give(caller, method, submission, 0).await {
            Ok(Given::Now(submitted)) => return Ok(*submitted),
            Err(refusal) => self.unless_seen::<Kept>(caller, method, refusal).await?,
            Ok(Given::Before(_)) => self.seen::<Kept>(caller, method).await?.ok_or_else(gone)?,
        };
        self.submitted_before(submission, kept).await
    }

    /// Delivers answers. `after_sequence` is where their caller wants to follow from: an event that
    /// is there already.
    pub(super) async fn give(
        self: &Arc<Self>,
        caller: &Caller,
        method: &str,
        submission: &Submission,
        after_sequence: u64,
    ) -> Result<Given, Refusal> {
        for _ in 0..self.limits.conflicts {
            let (uid, past) = self.calls(submission).await?;
            let mut stale = false;
            let done = self
                .decide(&uid, &caller.principal, |draft| {
                    // An open call that the session does not hold has ended since it was read.
                    stale = past.iter().any(|call| {
                        call.closed().is_none() && !draft.session.calls.contains_key(&call.spec.id)
                    });
                    if stale {
                        return Ok(Decided::new(None));
                    }
                    check_cursor(after_sequence, draft.session.last_sequence)?;
                    let first = submission.answers.answers.first().map(|first| &first.call);
                    let first = first.and_then(|id| find(&draft.session, &past, id));
                    first.map_or(Ok(()), |call| check_open_etag(call, submission.etag))?;
                    let outcome = draft.answer(&past, &submission.answers, &check_answer)?;
                    let kept = kept(&draft.session, &past, submission, outcome);
                    let request = if draft.records.is_empty() {
                        None
                    } else if method == "RunAsync" {
                        write::request(caller, method, &kept.started)
                    } else {
                        write::request(caller, method, &kept)
                    };
                    Ok(Decided { value: Some(kept), request, delete: false })
                })
                .await?;
            let (outcome, session) = done.ok_or_else(gone)?;
            match outcome {
                Outcome::Done(Some(kept)) => {
                    let wrote = !matches!(kept.outcome, Answered::Duplicate);
                    // It may repeat an earlier attempt of the same request, carried out meanwhile.
                    let before = if wrote { None } else { self.given(caller, method).await? };
                    if let Some(started) = before {
                        return Ok(Given::Before(started));
                    }
                    let kept = self.placed(submission, kept, &past, &session).await?;
                    let submitted = self.submitted(submission, kept, &session).await;
                    let told = submitted.map_err(|no| if wrote { untold(no) } else { no })?;
                    return Ok(Given::Now(Box::new(told)));
                }
                Outcome::Done(None) => debug_assert!(stale),
                Outcome::Seen(recorded) => {
                    let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                    let started = if method == "RunAsync" {
                        write::outcome_of::<Started>(&recorded, mark)?
                    } else {
                        write::outcome_of::<Kept>(&recorded, mark)?.started
                    };
                    return Ok(Given::Before(started));
                }
            }
        }
        Err(Refusal::new(Reason::Overloaded, "others changed the call all the time; try again"))
    }

    /// What an earlier attempt of the request set going.
    async fn given(&self, caller: &Caller, method: &str) -> Result<Option<Started>, Refusal> {
        if method == "RunAsync" {
            return self.seen::<Started>(caller, method).await;
        }
        Ok(self.seen::<Kept>(caller, method).await?.map(|kept| kept.started))
    }

    /// A repeat of an answer is followed from where that answer stands.
    async fn placed(
        &self,
        submission: &Submission,
        mut kept: Kept,
        past: &[Call],
        session: &Session,
    ) -> Result<Kept, Refusal> {
        let first = &submission.answers.answers.first().expect("answers were seen").call;
        let call =
            find(session, past, first).filter(|_| matches!(kept.outcome, Answered::Duplicate));
        let Some(call) = call else { return Ok(kept) };
        if let Some(closing) = call.closed() {
            kept.started.after = closing.position.max(call.told_at);
        }
        let before = kept.started.after.saturating_sub(1);
        let rows = self.store.read(&session.uid, before, 1).await.map_err(refuse_store)?;
        // One that is queued has no place yet.
        if let Some(row) = rows.first().filter(|row| row.sequence > 0) {
            (kept.sequence, kept.after_sequence) = (row.sequence, row.sequence);
            kept.started.sequence = row.sequence;
        }
        Ok(kept)
    }

    async fn submitted_before(
        &self,
        submission: &Submission,
        kept: Kept,
    ) -> Result<Submitted, Refusal> {
        let (uid, position) = (&kept.started.uid, kept.started.after);
        let session = self.session_from(uid, position).await?.ok_or_else(gone)?;
        self.submitted(submission, kept, &session).await
    }

    /// What is told of answers, with call and invocation as they are now.
    async fn submitted(
        &self,
        submission: &Submission,
        kept: Kept,
        session: &Session,
    ) -> Result<Submitted, Refusal> {
        let first = &submission.answers.answers.first().expect("answers were seen").call;
        let id = &kept.started.invocation;
        let call = match session.calls.get(first) {
            Some(call) => call.clone(),
            None => self.call(first).await?.ok_or_else(|| no_call(first))?.1,
        };
        let view = match session.invocations.get(id) {
            Some(open) => index::view(session, open),
            None => self.invocation(id).await?,
        };
        Ok(Submitted {
            uid: kept.started.uid,
            key: kept.started.key,
            invocation: kept.started.invocation,
            outcome: kept.outcome,
            call,
            view,
            sequence: kept.sequence,
            after_sequence: kept.after_sequence,
            position: kept.started.after,
            own: kept.started.own,
        })
    }
}

fn kept(session: &Session, past: &[Call], submission: &Submission, outcome: Answered) -> Kept {
    let first = &submission.answers.answers.first().expect("answers were seen").call;
    let call = find(session, past, first).expect("an answered call was found");
    let told = matches!(outcome, Answered::Applied | Answered::Progress);
    let sequence = if told { session.last_sequence } else { 0 };
    let position = session.head;
    let answers = |queued: &&Queued| queued.answers.iter().any(|answer| &answer.call == first);
    let queued = session.queued.iter().rev().find(answers);
    Kept {
        outcome,
        sequence,
        after_sequence: session.last_sequence,
        started: Started {
            uid: session.uid.clone(),
            key: session.key.clone(),
            invocation: call.invocation.clone(),
            after: position,
            sequence: session.last_sequence,
            pauses_after: position,
            seen: 0,
            own: queued.map(|queued| queued.event.id.clone()),
            replayed: false,
        },
    }
}
