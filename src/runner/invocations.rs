//! Invocations across sessions: one, a list, a watched list, and their cancelling.

use serde::{Deserialize, Serialize};

use super::changes::{self, Changes, Listed, PAGE, Resource};
use super::index::{self, InvocationView, State};
use super::run::gone;
use super::write::{self, Caller, Decided, Outcome};
use super::{Inner, Runner, untold};
use crate::session::id::{AppName, InvocationId, SessionId, SessionKey, UserId};
use crate::session::refusal::{Reason, Refusal};
use crate::store::{Query, Stored, TAGS};

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

/// An invocation that a watched list has no more.
#[derive(Debug, Clone, PartialEq)]
pub struct GoneInvocation {
    /// The invocation.
    pub id: InvocationId,
    /// Its session.
    pub session: SessionKey,
}

impl InvocationFilter {
    fn query(&self) -> Query {
        Query {
            kind: index::INVOCATION,
            tags: [
                self.app.as_ref().map(ToString::to_string),
                self.user.as_ref().map(ToString::to_string),
                self.session.as_ref().map(ToString::to_string),
                None,
            ],
            states: self.states.iter().map(|state| state.as_str().to_owned()).collect(),
            after: None,
            descending: true,
            limit: PAGE,
        }
    }
}

impl Resource for InvocationFilter {
    type View = InvocationView;
    type Gone = GoneInvocation;

    fn queries(&self) -> Vec<Query> {
        vec![self.query()]
    }

    fn matches(&self, view: &InvocationView) -> bool {
        let SessionKey { app, user, id } = &view.session;
        self.app.as_ref().is_none_or(|wanted| wanted == app)
            && self.user.as_ref().is_none_or(|wanted| wanted == user)
            && self.session.as_ref().is_none_or(|wanted| wanted == id)
            && (self.states.is_empty() || self.states.contains(&view.state))
    }

    fn may_have_matched(&self, tags: &[String; TAGS]) -> bool {
        let wanted = self.query().tags;
        wanted.iter().zip(tags).all(|(wanted, tag)| wanted.as_ref().is_none_or(|w| w == tag))
    }

    fn gone(stored: &Stored) -> Option<GoneInvocation> {
        let [app, user, session, _] = &stored.entry.tags;
        Some(GoneInvocation {
            id: InvocationId::parse(stored.entry.id.clone()).ok()?,
            session: SessionKey {
                app: AppName::parse(app.clone()).ok()?,
                user: UserId::parse(user.clone()).ok()?,
                id: SessionId::parse(session.clone()).ok()?,
            },
        })
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
        Ok(Listed {
            items: page.items.into_iter().filter_map(changes::read).collect(),
            next: page.next,
        })
    }

    /// Watches invocations, from behind a feed number on or from the beginning.
    pub fn watch_invocations(
        &self,
        filter: InvocationFilter,
        after: Option<u64>,
    ) -> Changes<InvocationFilter> {
        Changes::new(self.inner.clone(), filter, after)
    }

    /// Ends an invocation: nothing new is started, bodies at work are awaited.
    pub async fn cancel(&self, caller: Caller, find: Find) -> Result<InvocationView, Refusal> {
        self.inner.check_open()?;
        let inner = self.inner.clone();
        let wanted = find.id.clone();
        let done = self.detached(async move {
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
        });
        done.await.map_err(|refusal| match refusal.reason {
            // The session is deleted meanwhile, and its invocations with it.
            Reason::SessionNotFound => no_invocation(&wanted),
            _ => refusal,
        })
    }
}

/// There is no such invocation, or it is not the caller's to know.
fn no_invocation(id: &InvocationId) -> Refusal {
    Refusal::new(Reason::InvocationNotFound, "there is no such invocation")
        .with("invocation_id", id)
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
        Err(no_invocation(&find.id))
    }
}
