//! Invocations across sessions: one, a list, a watched list, and their cancelling.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::index::{self, InvocationView, State};
use super::run::gone;
use super::write::{self, Caller, Decided, Outcome};
use super::{Inner, Runner, refuse_store, signal, untold};
use crate::session::id::{AppName, InvocationId, SessionId, SessionKey, UserId};
use crate::session::refusal::{Reason, Refusal};
use crate::store::{Query, Stored};
use serde::{Deserialize, Serialize};

/// Which invocations are wanted; all that is set must match.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InvocationFilter {
    /// Of this app.
    pub app: Option<AppName>,
    /// Of this user.
    pub user: Option<UserId>,
    /// Of this session.
    pub session: Option<SessionId>,
    /// In one of these states; empty: in any.
    pub states: Vec<State>,
}

/// An invocation, and what else must be true of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Find {
    /// The invocation.
    pub id: InvocationId,
    /// Its app.
    pub app: Option<AppName>,
    /// Its user.
    pub user: Option<UserId>,
    /// Its session.
    pub session: Option<SessionId>,
}

/// A page of a list, in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    /// What is in it.
    pub items: Vec<T>,
    /// Where the next page begins; none: this is the last.
    pub next: Option<(String, String)>,
}

/// What happened to an invocation that is watched.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed {
    /// It is like this now.
    Now(Box<InvocationView>),
    /// It does not match any more, or its session was deleted.
    Removed {
        /// The invocation.
        id: InvocationId,
        /// Its session.
        session: SessionKey,
    },
    /// All that was there when the watch began has been told.
    CaughtUp,
}

/// A watched list of invocations: as they are, then each change of one.
pub struct Changes {
    inner: Arc<Inner>,
    filter: InvocationFilter,
    feed: u64,
    /// The page of the first list to read next; none: it has been told.
    list: Option<Option<(String, String)>>,
    listed: bool,
    /// The feed number before which everything may have been told already.
    known_before: u64,
    told: BTreeSet<String>,
    pending: std::collections::VecDeque<(u64, Changed)>,
    woken: signal::Receiver,
}

/// How many entries one read takes.
const PAGE: usize = 200;

impl InvocationFilter {
    fn query(&self) -> Query {
        Query {
            kind: index::INVOCATION,
            tags: [
                self.app.as_ref().map(ToString::to_string),
                self.user.as_ref().map(ToString::to_string),
                self.session.as_ref().map(ToString::to_string),
            ],
            states: self.states.iter().map(|state| state.as_str().to_owned()).collect(),
            after: None,
            descending: true,
            limit: PAGE,
        }
    }

    fn matches(&self, view: &InvocationView) -> bool {
        let SessionKey { app, user, id } = &view.session;
        self.app.as_ref().is_none_or(|wanted| wanted == app)
            && self.user.as_ref().is_none_or(|wanted| wanted == user)
            && self.session.as_ref().is_none_or(|wanted| wanted == id)
            && (self.states.is_empty() || self.states.contains(&view.state))
    }
}

#[derive(Serialize, Deserialize)]
struct Cancelled {
    id: InvocationId,
}

impl Runner {
    /// One invocation.
    pub async fn find_invocation(&self, find: &Find) -> Result<InvocationView, Refusal> {
        self.inner.find_invocation(find).await
    }

    /// A page of invocations, newest first.
    pub async fn list_invocations(
        &self,
        filter: &InvocationFilter,
        after: Option<(String, String)>,
        limit: usize,
    ) -> Result<Listed<InvocationView>, Refusal> {
        let page = self.inner.list(Query { after, limit, ..filter.query() }).await?;
        Ok(Listed { items: page.items.into_iter().filter_map(read).collect(), next: page.next })
    }

    /// Watches invocations, from behind a feed number on or from the beginning.
    pub fn watch_invocations(&self, filter: InvocationFilter, after: Option<u64>) -> Changes {
        Changes {
            inner: self.inner.clone(),
            filter,
            feed: after.unwrap_or(0),
            list: after.is_none().then_some(None),
            listed: after.is_some(),
            known_before: after.unwrap_or(0),
            told: BTreeSet::new(),
            pending: std::collections::VecDeque::new(),
            woken: self.inner.hub.feed(),
        }
    }

    /// Ends an invocation: nothing new is started, bodies at work are awaited.
    pub async fn cancel(&self, caller: Caller, find: Find) -> Result<InvocationView, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        self.detached(async move {
            let method = "CancelInvocation";
            if let Some(seen) = inner.seen::<Cancelled>(&caller, method).await? {
                let view = inner.invocation(&seen.id).await?;
                // What an earlier attempt did is durable, and may not be in memory yet.
                inner.reload(&inner.find_session(&view.session).await?).await?;
                return Ok(view);
            }
            let view = inner.find_invocation(&find).await?;
            let uid = inner.find_session(&view.session).await?;
            let done = inner
                .decide(&uid, &caller.principal, |draft| {
                    let id = find.id.clone();
                    if draft.session.invocations.contains_key(&id) {
                        draft.cancel(&id)?;
                    }
                    let request = (!draft.records.is_empty())
                        .then(|| write::request(&caller, method, &Cancelled { id }))
                        .flatten();
                    Ok(Decided { value: (), request, delete: false })
                })
                .await?;
            if let Outcome::Seen(recorded) = done.ok_or_else(gone)?.0 {
                let mark = caller.mark.as_ref().expect("only a marked request is recorded");
                write::outcome_of::<Cancelled>(&recorded, mark)?;
            }
            let view = inner.invocation(&find.id).await.map_err(untold)?;
            match view.state {
                State::Completed | State::Failed => {
                    Err(Refusal::new(Reason::InvocationEnded, "the invocation is over already")
                        .with("invocation_id", &find.id)
                        .with("state", view.state.as_str()))
                }
                State::Running | State::Paused | State::Cancelled => Ok(view),
            }
        })
        .await
    }
}

/// One that cannot be read (an alarm is logged) keeps no other one from being listed.
fn read(stored: Stored) -> Option<InvocationView> {
    index::read(&stored.entry.bytes).ok()
}

impl Inner {
    async fn find_invocation(&self, find: &Find) -> Result<InvocationView, Refusal> {
        let view = self.invocation(&find.id).await?;
        let SessionKey { app, user, id } = &view.session;
        let wanted = find.app.as_ref().is_none_or(|wanted| wanted == app)
            && find.user.as_ref().is_none_or(|wanted| wanted == user)
            && find.session.as_ref().is_none_or(|wanted| wanted == id);
        if wanted {
            return Ok(view);
        }
        Err(Refusal::new(Reason::InvocationNotFound, "there is no such invocation")
            .with("invocation_id", &find.id))
    }

    /// A page of entries, with where the next begins.
    pub(super) async fn list(&self, mut query: Query) -> Result<Listed<Stored>, Refusal> {
        let wanted = query.limit;
        query.limit = wanted + 1;
        let (mut items, _) = self.store.list(query).await.map_err(refuse_store)?;
        let more = items.len() > wanted;
        items.truncate(wanted);
        let last = items.last().map(|s| (s.entry.order.clone(), s.entry.id.clone()));
        Ok(Listed { next: last.filter(|_| more), items })
    }
}

impl Changes {
    /// The next change, with the feed number to go on from after it. It can be dropped at any
    /// await.
    pub async fn next(&mut self) -> Result<(u64, Changed), Refusal> {
        loop {
            if let Some(next) = self.pending.pop_front() {
                return Ok(next);
            }
            if let Some(page) = self.list.clone() {
                self.read_list(page).await?;
                continue;
            }
            if !std::mem::replace(&mut self.listed, true) {
                return Ok((self.feed, Changed::CaughtUp));
            }
            self.woken.mark_unchanged();
            if self.read_changes().await? {
                continue;
            }
            self.woken.changed().await;
        }
    }

    async fn read_list(&mut self, after: Option<(String, String)>) -> Result<(), Refusal> {
        let first = after.is_none();
        let query = Query { after, ..self.filter.query() };
        let (page, feed) = self.inner.store.list(query).await.map_err(refuse_store)?;
        if first {
            // Later pages may be newer; what changed since the first is told again.
            (self.feed, self.known_before) = (feed, feed);
        }
        let last = page.last().map(|s| (s.entry.order.clone(), s.entry.id.clone()));
        self.list = (page.len() == PAGE).then_some(last);
        for stored in page {
            let newer = stored.born > self.known_before;
            if let Some(view) = read(stored) {
                if newer {
                    self.told.insert(view.id.to_string());
                }
                self.pending.push_back((0, Changed::Now(Box::new(view))));
            }
        }
        Ok(())
    }

    async fn read_changes(&mut self) -> Result<bool, Refusal> {
        let changes = self.inner.store.changes(index::INVOCATION, self.feed, PAGE).await;
        let changes = changes.map_err(refuse_store)?;
        if changes.upto < self.feed {
            // The store is not the one that the cursor came from, or it has gone back.
            return Err(expired());
        }
        for stored in changes.entries {
            let (id, feed) = (stored.entry.id.clone(), stored.feed);
            let known = self.told.contains(&id) || stored.born <= self.known_before;
            if !stored.removed {
                let Some(view) = read(stored.clone()) else { continue };
                if self.filter.matches(&view) {
                    // Older ones may have been told whatever is kept here.
                    if stored.born > self.known_before {
                        self.told.insert(id);
                    }
                    self.pending.push_back((feed, Changed::Now(Box::new(view))));
                    continue;
                }
            }
            let may_match = self.may_have_matched(&stored.entry.tags);
            if known && may_match {
                self.told.remove(&id);
                self.pending.extend(removed(&stored).map(|gone| (feed, gone)));
            }
        }
        let more = !self.pending.is_empty() || changes.more;
        // The cursor of a message must not skip its siblings of the same group.
        let upto = self.feed;
        let mut rest = self.pending.len();
        for (feed, _) in &mut self.pending {
            rest -= 1;
            *feed = if rest == 0 { changes.upto } else { upto.max(feed.saturating_sub(1)) };
        }
        self.feed = changes.upto;
        Ok(more)
    }

    /// Whether an invocation with these names could ever have matched.
    fn may_have_matched(&self, tags: &[String; 3]) -> bool {
        let wanted = self.filter.query().tags;
        wanted.iter().zip(tags).all(|(wanted, tag)| wanted.as_ref().is_none_or(|w| w == tag))
    }
}

/// A cursor that changes can no longer be told from: begin without one.
pub(crate) fn expired() -> Refusal {
    Refusal::new(Reason::CursorExpired, "the cursor is too old; watch again without one")
}

fn removed(stored: &Stored) -> Option<Changed> {
    let [app, user, session] = &stored.entry.tags;
    Some(Changed::Removed {
        id: InvocationId::parse(stored.entry.id.clone()).ok()?,
        session: SessionKey {
            app: AppName::parse(app.clone()).ok()?,
            user: UserId::parse(user.clone()).ok()?,
            id: SessionId::parse(session.clone()).ok()?,
        },
    })
}
