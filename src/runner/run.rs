//! RunAsync: a message sets an invocation going, answers continue one, or nothing is sent and one
//! is only followed. What comes back says what to follow; the invocation does not depend on it.

use serde::{Deserialize, Serialize};

use super::drive::Driven;
use super::submit::{Given, Submission};
use super::write::{self, Caller, Decided, Outcome, Plan, Written};
use super::{Inner, Runner, index, refuse_store, untold};
use crate::session::Session;
use crate::session::content::{Content, Object};
use crate::session::decide::{Answered, Incoming, Incomings, Start};
use crate::session::draft::Draft;
use crate::session::id::{
    AppName, EventId, InvocationId, SessionId, SessionKey, SessionUid, UserId,
};
use crate::session::keys::check_keys;
use crate::session::record::{Body, RunConfig};
use crate::session::refusal::{Reason, Refusal};
use crate::store;

/// What RunAsync wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The app.
    pub app: AppName,
    /// The user.
    pub user: UserId,
    /// The session; none: a new one.
    pub session: Option<SessionId>,
    /// The message; its parts may all be answers.
    pub message: Option<Content>,
    /// Changes of state that come with it.
    pub state_delta: Object,
    /// Pieces of texts are wanted.
    pub streaming: bool,
    /// Most model calls between two pauses; none: the server's default; 0: no limit.
    pub max_llm_calls: Option<u32>,
    /// Stands on every event of the invocation.
    pub custom_metadata: Object,
    /// The invocation to follow, or that the answers must belong to.
    pub invocation: Option<InvocationId>,
    /// Follow from behind this event on.
    pub after_sequence: u64,
}

/// What to follow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The session.
    pub uid: SessionUid,
    /// Its names.
    pub key: SessionKey,
    /// The invocation.
    pub invocation: InvocationId,
    /// Follow the log from behind this position on.
    pub after: u64,
    /// The sequence of the last event up to there.
    pub sequence: u64,
    /// Pauses up to this position are past; what ends the stream stands behind it.
    pub pauses_after: u64,
    /// The caller has the events up to this sequence.
    #[serde(default)]
    pub seen: u64,
    /// The request's own event, if it has no place yet: it is not echoed when it gets it.
    #[serde(default)]
    pub own: Option<EventId>,
    /// The request had been carried out before.
    pub replayed: bool,
}

impl Runner {
    /// Begins, continues or only finds an invocation; durable when this returns.
    pub async fn run(&self, caller: Caller, run: Run) -> Result<Started, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        self.detached(async move {
            if let Some(seen) = inner.seen::<Started>(&caller, "RunAsync").await? {
                return inner.replayed(seen).await;
            }
            let answers = run.message.as_ref().is_some_and(|m| m.responses().next().is_some());
            let begun = match (&run.message, answers) {
                (None, _) => inner.attach(&run).await,
                (Some(_), true) => inner.run_answers(&caller, &run).await,
                (Some(_), false) => inner.run_message(&caller, run.clone()).await,
            };
            let started = match begun {
                Ok(started) => started,
                Err(refusal) => {
                    let seen = inner.unless_seen::<Started>(&caller, "RunAsync", refusal).await?;
                    return inner.replayed(seen).await;
                }
            };
            inner.skip_to(started, run.after_sequence).await.map_err(untold)
        })
        .await
    }
}

/// Refuses a cursor that no event of the session has.
pub(super) fn check_cursor(after_sequence: u64, last_sequence: u64) -> Result<(), Refusal> {
    if after_sequence > last_sequence {
        let message = "after_sequence is beyond the session's last event";
        return Err(Refusal::new(Reason::CursorInvalid, message)
            .with("field", "after_sequence")
            .with("last_sequence", last_sequence));
    }
    Ok(())
}

impl Inner {
    /// What an earlier request with the same mark began, as it is to be followed now.
    async fn replayed(&self, started: Started) -> Result<Started, Refusal> {
        let session = self.session_from(&started.uid, started.after).await?.ok_or_else(gone)?;
        let pauses_after = self.past(&session, &started.invocation).await?;
        Ok(Started { replayed: true, pauses_after, ..started })
    }

    /// The session for who follows it from behind an event on. What a list has shown may not be in
    /// memory yet.
    pub(super) async fn session_behind(
        &self,
        uid: &SessionUid,
        after_sequence: u64,
    ) -> Result<std::sync::Arc<Session>, Refusal> {
        let mut session = self.session(uid).await?.ok_or_else(gone)?;
        if after_sequence > session.last_sequence {
            session = self.reload(uid).await?.ok_or_else(gone)?;
        }
        check_cursor(after_sequence, session.last_sequence)?;
        Ok(session)
    }

    /// The position up to which the pauses of an invocation are past: the one that it is in is not,
    /// nor is its end.
    pub(super) async fn past(
        &self,
        session: &Session,
        invocation: &InvocationId,
    ) -> Result<u64, Refusal> {
        let rested_at = match session.invocations.get(invocation) {
            Some(_) if session.moves(invocation) => return Ok(session.head),
            Some(open) => open.rested_at,
            None => self.invocation(invocation).await?.rested_at,
        };
        Ok(rested_at.saturating_sub(1))
    }

    /// Follows from behind an event that the caller has already, if that is later; but what ends
    /// the stream is told however far that event is behind it.
    async fn skip_to(&self, mut started: Started, sequence: u64) -> Result<Started, Refusal> {
        if sequence == 0 {
            return Ok(started);
        }
        let last = store::Events::After(sequence - 1);
        let row = self.store.events(&started.uid, last, 1).await.map_err(refuse_store)?;
        let row = row.first().filter(|row| row.sequence == sequence);
        let position = row.ok_or_else(gone)?.position;
        if position > started.after {
            started.after = position.min(started.pauses_after).max(started.after);
            started.sequence = sequence;
            started.seen = sequence;
        }
        Ok(started)
    }

    /// The uid of a session by its names.
    pub(crate) async fn find_session(&self, key: &SessionKey) -> Result<SessionUid, Refusal> {
        let found = self.store.entry(index::SESSION, &index::session_id(key)).await;
        let found = found.map_err(refuse_store)?;
        found.map(|stored| stored.uid).ok_or_else(|| {
            Refusal::new(Reason::SessionNotFound, "there is no such session")
                .with("session_id", &key.id)
        })
    }

    async fn attach(&self, run: &Run) -> Result<Started, Refusal> {
        let Some(id) = &run.invocation else {
            let rule = "is required unless invocation_id says what to follow";
            return Err(Refusal::field("new_message", rule));
        };
        let view = self.invocation(id).await?;
        let named = run.session.as_ref().is_none_or(|session| session == &view.session.id);
        if view.session.app != run.app || view.session.user != run.user || !named {
            return Err(Refusal::new(Reason::InvocationNotFound, "there is no such invocation")
                .with("invocation_id", id));
        }
        let uid = self.find_session(&view.session).await?;
        let session = self.session_behind(&uid, run.after_sequence).await?;
        Ok(Started {
            uid,
            key: view.session,
            invocation: id.clone(),
            after: view.began_at.saturating_sub(1),
            sequence: 0,
            pauses_after: self.past(&session, id).await?,
            seen: 0,
            own: None,
            replayed: false,
        })
    }

    async fn run_message(
        self: &std::sync::Arc<Self>,
        caller: &Caller,
        run: Run,
    ) -> Result<Started, Refusal> {
        if run.invocation.is_some() {
            let rule = "must be empty with a new message: the server names the invocation";
            return Err(Refusal::field("invocation_id", rule));
        }
        check_keys(&run.state_delta, "state_delta", true)?;
        let role = self.cast.app(&run.app).ok_or_else(|| no_agent(&run.app))?;
        let agent = role.agent.name.clone();
        let most = self.limits.driven_sessions;
        if super::lock(&self.drivers).len() >= most {
            let message = "as many invocations run as may run at once; try again";
            return Err(Refusal::new(Reason::Overloaded, message)
                .with("limit", "driven_sessions")
                .with("value", most));
        }
        let start = Start {
            invocation: InvocationId::parse(format!("e-{}", self.ids.text())).expect("an id"),
            agent,
            config: RunConfig {
                streaming: run.streaming,
                max_llm_calls: run.max_llm_calls.unwrap_or(self.limits.max_llm_calls),
                custom_metadata: run.custom_metadata,
            },
            message: run.message.expect("a message was seen"),
            state_delta: run.state_delta,
        };
        let after_sequence = run.after_sequence;
        let Some(id) = run.session else {
            check_cursor(after_sequence, 0)?;
            return self.run_in_new_session(caller, run.app, run.user, start).await;
        };
        let key = SessionKey { app: run.app, user: run.user, id };
        let uid = self.find_session(&key).await?;
        let done = self
            .decide(&uid, &caller.principal, |draft| {
                let after = draft.session.head;
                check_cursor(after_sequence, draft.session.last_sequence)?;
                draft.start(start.clone())?;
                let started = started(draft, after);
                let request = write::request(caller, "RunAsync", &started);
                Ok(Decided { value: started, request, delete: false })
            })
            .await?;
        match done.ok_or_else(gone)?.0 {
            Outcome::Done(started) => Ok(started),
            Outcome::Seen(recorded) => {
                let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                self.replayed(write::outcome_of(&recorded, mark)?).await
            }
        }
    }

    async fn run_in_new_session(
        self: &std::sync::Arc<Self>,
        caller: &Caller,
        app: AppName,
        user: UserId,
        start: Start,
    ) -> Result<Started, Refusal> {
        let uid = SessionUid::parse(self.ids.text()).expect("a UUID is an id");
        let id = SessionId::parse(self.ids.text()).expect("a UUID is an id");
        let key = SessionKey { app, user, id };
        let created = Body::Created { uid, key, state: Object::new() };
        let (now, by) = (self.store.now(), caller.principal.clone());
        let mut mint = self.ids.mint();
        let draft = Draft::begin(created, now, by, &mut mint);
        let mut draft = draft.expect("the record begins a session");
        draft.start(start)?;
        let started = started(&draft, 1);
        let driven = Driven::new(self, &draft.session.uid);
        draft.claim_if_free(&self.owner);
        draft.settle();
        let entry = index::session_entry(&draft.session);
        let mut plan = Plan::new(None, draft);
        plan.entries.push(entry);
        plan.request = write::request(caller, "RunAsync", &started);
        match self.write(plan).await? {
            Written::Done(session, _) => {
                self.clone().drive(session, driven);
                Ok(started)
            }
            Written::Seen(recorded) => {
                let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                self.replayed(write::outcome_of(&recorded, mark)?).await
            }
            Written::Conflict | Written::Exists => {
                Err(Refusal::new(Reason::SessionExists, "the new session is there already"))
            }
        }
    }

    async fn run_answers(
        self: &std::sync::Arc<Self>,
        caller: &Caller,
        run: &Run,
    ) -> Result<Started, Refusal> {
        let message = run.message.as_ref().expect("a message was seen");
        check_keys(&run.state_delta, "state_delta", true)?;
        if message.parts.iter().any(|part| part.response().is_none()) {
            return Err(Refusal::new(
                Reason::MixedMessage,
                "a message that answers calls must hold function responses only: the session has \
                 the conversation, so send its session_id with nothing but the answers",
            ));
        }
        let answers = message.responses().enumerate().map(|(n, part)| Incoming {
            decision: None,
            call: part.id.clone(),
            name: part.name.clone(),
            response: part.response.clone(),
            will_continue: part.will_continue,
            field: format!("new_message.parts[{n}].function_response"),
        });
        let submission = Submission {
            etag: None,
            app: Some(run.app.clone()),
            user: Some(run.user.clone()),
            session: run.session.clone(),
            answers: Incomings {
                answers: answers.collect(),
                invocation: run.invocation.clone(),
                expected_args_digest: None,
                skip_summarization: false,
                comment: String::new(),
                state_delta: run.state_delta.clone(),
            },
        };
        let given = self.give(caller, "RunAsync", &submission, run.after_sequence).await?;
        let submitted = match given {
            Given::Now(submitted) => submitted,
            Given::Before(started) => return self.replayed(started).await,
        };
        let pauses_after = match submitted.outcome {
            // What came of the answer before is shown, but no pause that is over.
            Answered::Duplicate => {
                let session = self.session(&submitted.uid).await?.ok_or_else(gone)?;
                self.past(&session, &submitted.invocation).await?
            }
            Answered::Applied | Answered::Queued | Answered::Progress => submitted.position,
        };
        Ok(Started {
            uid: submitted.uid,
            key: submitted.key,
            invocation: submitted.invocation,
            after: submitted.position,
            sequence: submitted.after_sequence,
            pauses_after,
            seen: 0,
            own: submitted.own,
            replayed: false,
        })
    }
}

fn started(draft: &Draft<'_>, before: u64) -> Started {
    let invocation = draft.session.running.clone().expect("a message runs");
    // The message of this very request is not echoed.
    let after = before + 1;
    Started {
        uid: draft.session.uid.clone(),
        key: draft.session.key.clone(),
        invocation,
        after,
        sequence: draft.session.last_sequence,
        pauses_after: after,
        seen: 0,
        own: None,
        replayed: false,
    }
}

/// No app of that name can be run.
pub(crate) fn no_agent(app: &AppName) -> Refusal {
    Refusal::new(Reason::AgentNotFound, "there is no such app").with("app_name", app)
}

/// The session was deleted meanwhile.
pub(crate) fn gone() -> Refusal {
    Refusal::new(Reason::SessionNotFound, "the session was deleted")
}
