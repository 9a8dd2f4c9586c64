//! Sessions as callers see them: made, read, listed, changed, deleted; and their events in pages.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::invocations::Listed;
use super::run::{gone, no_agent};
use super::write::{self, Caller, Decided, Outcome, Plan, Written};
use super::{Inner, Runner, index, quarantine, refuse_store, untold};
use crate::session::adk::Transcript;
use crate::session::content::{Event, Object};
use crate::session::draft::Draft;
use crate::session::id::{AppName, InvocationId, SessionId, SessionKey, SessionUid, UserId};
use crate::session::keys::{check_keys, own_keys};
use crate::session::record::{Body, Ending};
use crate::session::refusal::{Reason, Refusal};
use crate::session::state::put;
use crate::session::{Session, codec};
use crate::store::{Events, MAX_READ_ROWS, Query};

/// A session to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    /// The app.
    pub app: AppName,
    /// The user.
    pub user: UserId,
    /// The id it is to have; none: the server makes one.
    pub id: Option<SessionId>,
    /// Its first state.
    pub state: Object,
}

/// A session as callers see it.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionView {
    /// The fold.
    pub session: Arc<Session>,
    /// Its state with what it shares with others, with prefixes.
    pub state: Object,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    uid: SessionUid,
    key: SessionKey,
}

impl Runner {
    /// Makes a session; durable when this returns.
    pub async fn create_session(
        &self,
        caller: Caller,
        new: NewSession,
    ) -> Result<SessionView, Refusal> {
        self.make_session(caller, "CreateSession", new, None).await
    }

    /// Makes a session of a history that was made elsewhere, whole or not at all. Its own state is
    /// what the history left, with the changes of `new` on top.
    pub async fn import_session(
        &self,
        caller: Caller,
        new: NewSession,
        history: Transcript,
    ) -> Result<SessionView, Refusal> {
        self.make_session(caller, "ImportSession", new, Some(history)).await
    }

    async fn make_session(
        &self,
        caller: Caller,
        method: &'static str,
        new: NewSession,
        history: Option<Transcript>,
    ) -> Result<SessionView, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        self.detached(async move {
            if let Some(kept) = inner.seen::<Kept>(&caller, method).await? {
                return inner.kept_view(&kept).await;
            }
            check_keys(&new.state, "state", false)?;
            if inner.cast.app(&new.app).is_none() {
                return Err(no_agent(&new.app));
            }
            let made = || SessionId::parse(inner.ids.text()).expect("a UUID is an id");
            let id = new.id.unwrap_or_else(made);
            let key = SessionKey { app: new.app, user: new.user, id };
            let uid = SessionUid::parse(inner.ids.text()).expect("a UUID is an id");
            let own = own_keys(&new.state);
            let state = match &history {
                None => own,
                Some(history) => {
                    let mut state = history.own_state();
                    own.iter().for_each(|(key, value)| put(&mut state, key, value));
                    state
                }
            };
            let created = Body::Created { uid, key: key.clone(), state };
            let (now, by) = (inner.store.now(), caller.principal.clone());
            let mut mint = inner.ids.mint();
            let draft = Draft::begin(created, now, by, &mut mint);
            let mut draft = draft.expect("the record begins a session");
            for event in history.into_iter().flat_map(|history| history.events) {
                draft.import(event);
            }
            inner.check_events(&draft)?;
            let mut plan = Plan::new(None, draft);
            plan.entries.push(index::session_entry(&plan.session));
            plan.shared = index::shared_delta(&key, &new.state);
            let kept = Kept { uid: plan.uid.clone(), key: key.clone() };
            plan.request = write::request(&caller, method, &kept);
            match inner.write(plan).await? {
                Written::Done(_, _) => {}
                Written::Seen(recorded) => {
                    let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                    let kept = write::outcome_of::<Kept>(&recorded, mark)?;
                    return inner.kept_view(&kept).await;
                }
                Written::Conflict | Written::Exists => {
                    let message = "the user has a session of this id with this app already";
                    return Err(
                        Refusal::new(Reason::SessionExists, message).with("session_id", &key.id)
                    );
                }
            }
            inner.session_view(&key).await.map_err(untold)
        })
        .await
    }

    /// One session.
    pub async fn get_session(&self, key: &SessionKey) -> Result<SessionView, Refusal> {
        self.inner.session_view(key).await
    }

    /// A page of sessions, newest first.
    pub async fn list_sessions(
        &self,
        app: Option<&AppName>,
        user: Option<&UserId>,
        after: Option<(String, String)>,
        limit: usize,
    ) -> Result<Listed<SessionView>, Refusal> {
        let query = Query {
            kind: index::SESSION,
            tags: [app.map(ToString::to_string), user.map(ToString::to_string), None],
            states: Vec::new(),
            after,
            descending: true,
            limit,
        };
        let page = self.inner.list(query).await?;
        let mut items = Vec::with_capacity(page.items.len());
        for stored in &page.items {
            // One that was deleted meanwhile, or cannot be read, is not listed.
            match self.inner.listed(&stored.uid).await {
                Ok(view) => items.extend(view),
                Err(refusal) if refusal.reason == Reason::SessionQuarantined => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(Listed { items, next: page.next })
    }

    /// Changes keys of a session's state; durable when this returns.
    pub async fn update_state(
        &self,
        caller: Caller,
        key: SessionKey,
        delta: Object,
    ) -> Result<SessionView, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        self.detached(async move {
            let method = "UpdateSessionState";
            if let Some(kept) = inner.seen::<Kept>(&caller, method).await? {
                return inner.kept_view(&kept).await;
            }
            check_keys(&delta, "state_delta", false)?;
            if delta.is_empty() {
                return Err(Refusal::field("state_delta", "must change at least one key"));
            }
            let uid = inner.find_session(&key).await?;
            let done = inner
                .decide(&uid, &caller.principal, |draft| {
                    // ADK: a change of state by a caller has an invocation id of its own.
                    let id = InvocationId::parse(format!("p-{}", inner.ids.text()));
                    draft.change_state(id.expect("a UUID makes an id"), delta.clone());
                    let kept = Kept { uid: uid.clone(), key: key.clone() };
                    let request = write::request(&caller, method, &kept);
                    Ok(Decided { value: (), request, delete: false })
                })
                .await?;
            if let Outcome::Seen(recorded) = done.ok_or_else(gone)?.0 {
                let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                write::outcome_of::<Kept>(&recorded, mark)?;
            }
            inner.session_view(&key).await.map_err(untold)
        })
        .await
    }

    /// Deletes a session with its log. Held calls end cancelled first; one that is not there is
    /// fine.
    pub async fn delete_session(&self, caller: Caller, key: SessionKey) -> Result<(), Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        self.detached(async move {
            let method = "DeleteSession";
            if inner.seen::<Kept>(&caller, method).await?.is_some() {
                return Ok(());
            }
            let uid = match inner.find_session(&key).await {
                Ok(uid) => uid,
                Err(refusal) if refusal.reason == Reason::SessionNotFound => return Ok(()),
                Err(refusal) => return Err(refusal),
            };
            let cancelled = inner.cancel_paused(&caller, &uid).await?;
            let done = inner
                .decide(&uid, &caller.principal, |draft| {
                    if let Some(running) = &draft.session.running {
                        let message = "an invocation of the session is running; cancel it first";
                        return Err(Refusal::new(Reason::InvocationRunning, message)
                            .with("invocation_id", running));
                    }
                    if !draft.session.invocations.is_empty() {
                        return Err(Refusal::new(
                            Reason::Overloaded,
                            "the session was used while it was deleted; try again",
                        ));
                    }
                    let kept = Kept { uid: uid.clone(), key: key.clone() };
                    let request = write::request(&caller, method, &kept);
                    Ok(Decided { value: (), request, delete: true })
                })
                .await;
            let done = done.map_err(|refusal| if cancelled { untold(refusal) } else { refusal })?;
            if let Some((Outcome::Seen(recorded), _)) = done {
                let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                write::outcome_of::<Kept>(&recorded, mark)?;
            }
            Ok(())
        })
        .await
    }

    /// Events after a sequence, oldest first.
    pub async fn list_events(
        &self,
        key: &SessionKey,
        which: Events,
        limit: usize,
    ) -> Result<Vec<Event>, Refusal> {
        let uid = self.inner.find_session(key).await?;
        let rows = self.inner.store.events(&uid, which, limit.min(MAX_READ_ROWS)).await;
        let rows = rows.map_err(refuse_store)?;
        let read = |row: &crate::store::Row| {
            let record =
                codec::decode_record(&row.bytes).map_err(|wrong| quarantine(&uid, &wrong))?;
            Ok(record.body.event().cloned())
        };
        rows.iter().filter_map(|row| read(row).transpose()).collect()
    }
}

impl Inner {
    /// Refuses a history with an event that is too large, and says which.
    fn check_events(&self, draft: &Draft<'_>) -> Result<(), Refusal> {
        let most = self.limits.event_bytes;
        for record in &draft.records {
            let Some(event) = record.body.event() else { continue };
            let bytes = codec::encode_record(record).len();
            if bytes > most {
                let text = format!("an event may have {most} bytes at most");
                return Err(Refusal::new(Reason::LimitExceeded, text)
                    .with("limit", "event_bytes")
                    .with("value", most)
                    .with("actual", bytes)
                    .with("sequence", event.sequence));
            }
        }
        Ok(())
    }

    /// The session that a request made or changed before, as it is now. One that was deleted since
    /// is gone, whoever has its names now.
    async fn kept_view(&self, kept: &Kept) -> Result<SessionView, Refusal> {
        // What an earlier attempt did is durable, and may not be in memory yet.
        self.reload(&kept.uid).await?;
        let view = self.session_view(&kept.key).await?;
        if view.session.uid == kept.uid { Ok(view) } else { Err(gone()) }
    }

    pub(super) async fn session_view(&self, key: &SessionKey) -> Result<SessionView, Refusal> {
        let uid = self.find_session(key).await?;
        let session = self.session(&uid).await?.ok_or_else(gone)?;
        let state = self.merged_state(&session).await?;
        Ok(SessionView { session, state })
    }

    async fn listed(&self, uid: &SessionUid) -> Result<Option<SessionView>, Refusal> {
        let Some(session) = self.session(uid).await? else { return Ok(None) };
        let state = self.merged_state(&session).await?;
        Ok(Some(SessionView { session, state }))
    }

    /// Ends the paused invocations of a session that is to be deleted, as a record that followers
    /// and watchers see. True: there were some.
    async fn cancel_paused(
        self: &Arc<Self>,
        caller: &Caller,
        uid: &SessionUid,
    ) -> Result<bool, Refusal> {
        let done = self.decide(uid, &caller.principal, |draft| {
            if let Some(running) = &draft.session.running {
                let message = "an invocation of the session is running; cancel it first";
                return Err(
                    Refusal::new(Reason::InvocationRunning, message).with("invocation_id", running)
                );
            }
            let paused: Vec<InvocationId> = draft.session.invocations.keys().cloned().collect();
            for invocation in &paused {
                draft.end(invocation, Ending::Cancelled);
            }
            Ok(Decided::new(!paused.is_empty()))
        });
        Ok(matches!(done.await?, Some((Outcome::Done(true), _))))
    }
}
