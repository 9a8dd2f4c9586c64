//! Approvals across sessions: one, a list, a watched list, figures; and the standing ones. It reads
//! entries only: what is decided on them is `approve`.

use super::changes::{self, Changes, Listed, PAGE, Place, Resource};
use super::index::{self, ApprovalState, StandingView};
use super::{Inner, Runner, refuse_store};
use crate::session::approving::no_approval;
use crate::session::call::{Call, Kind};
use crate::session::id::{AppName, CallId, Principal, SessionId, SessionKey, UserId};
use crate::session::refusal::Refusal;
use crate::store::{MAX_COUNT, Query, Stored, TAGS};

/// All kinds of approvals.
const KINDS: [Kind; 4] = [Kind::LongRunning, Kind::Confirmation, Kind::Input, Kind::UnknownOutcome];

/// Which approvals are wanted; all that is set must match.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ApprovalFilter {
    /// Of this app.
    pub app: Option<AppName>,
    /// Of this user.
    pub user: Option<UserId>,
    /// About calls of this tool.
    pub tool: Option<String>,
    /// That this principal took last.
    pub assignee: Option<Principal>,
    /// Of one of these kinds; empty: of any.
    pub kinds: Vec<Kind>,
    /// In one of these states; empty: those that wait.
    pub states: Vec<ApprovalState>,
    /// Asked at this time or later, in microseconds since 1970.
    pub create_after: Option<u64>,
    /// Asked before this time, in microseconds since 1970.
    pub create_before: Option<u64>,
    /// The newest first; else the oldest.
    pub newest_first: bool,
}

/// An approval that a watched list has no more.
#[derive(Debug, Clone, PartialEq)]
pub struct GoneApproval {
    /// The call that asks.
    pub call: CallId,
    /// Its app.
    pub app: AppName,
    /// Its user.
    pub user: UserId,
}

/// How many approvals there are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Figures {
    /// How many are in a state and of a kind, without those that are none.
    pub counts: Vec<(ApprovalState, Kind, u64)>,
    /// What waits longest.
    pub oldest: Option<Call>,
}

/// Which standing approvals are wanted; all that is set must match.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StandingFilter {
    /// Of this app.
    pub app: Option<AppName>,
    /// Of this user.
    pub user: Option<UserId>,
    /// Of this session.
    pub session: Option<SessionId>,
    /// Those that were taken back too.
    pub revoked: bool,
}

impl ApprovalFilter {
    /// The wanted states, each once, what waits first: whatever is decided between two reads is
    /// seen twice rather than never.
    fn wanted(&self) -> impl Iterator<Item = ApprovalState> {
        let pending = self.states.is_empty();
        let wanted = move |state: &ApprovalState| {
            self.states.contains(state) || pending && *state == ApprovalState::Pending
        };
        ApprovalState::ALL.into_iter().filter(wanted)
    }

    /// What they are found by: app, user, tool, assignee.
    fn values(&self) -> [Option<&str>; TAGS] {
        [
            self.app.as_ref().map(AppName::as_str),
            self.user.as_ref().map(UserId::as_str),
            self.tool.as_deref(),
            self.assignee.as_ref().map(Principal::as_str),
        ]
    }

    /// One query a state, or one a state and kind where there is no tag to lead: so each reads
    /// nothing but what it gives.
    fn finds(&self) -> Vec<Query> {
        let values = self.values();
        let tagged = values.iter().any(Option::is_some);
        let kinds = match self.kinds.is_empty() {
            true if tagged => &[][..],
            true => &KINDS[..],
            false => &self.kinds[..],
        };
        let query = |state: ApprovalState, kinds: &[Kind]| Query {
            kind: index::CALL,
            tags: values.map(|value| value.map(|value| index::approval_tag(state, value))),
            states: kinds.iter().map(|kind| index::approval_entry_state(state, *kind)).collect(),
            after: None,
            descending: self.newest_first,
            limit: PAGE,
        };
        let mut queries = Vec::new();
        for state in self.wanted() {
            match tagged {
                true => queries.push(query(state, kinds)),
                false => queries.extend(kinds.iter().map(|kind| query(state, &[*kind]))),
            }
        }
        queries
    }

    /// Where the list begins: behind what is out of its time.
    fn begin(&self) -> Option<Place> {
        let from = if self.newest_first { self.create_before } else { self.create_after };
        from.map(|time| (index::order(time), String::new()))
    }

    /// Whether something, and with it all behind it, is out of the list's time.
    fn is_over(&self, order: &str) -> bool {
        match self.newest_first {
            true => self.create_after.is_some_and(|time| order < &*index::order(time)),
            false => self.create_before.is_some_and(|time| order >= &*index::order(time)),
        }
    }
}

impl Resource for ApprovalFilter {
    type View = Call;
    type Gone = GoneApproval;

    fn queries(&self) -> Vec<Query> {
        self.finds()
    }

    fn matches(&self, call: &Call) -> bool {
        let SessionKey { app, user, id: _ } = &call.session;
        let approval = call.approval.as_deref();
        let assignee = approval.and_then(|approval| approval.lease.as_ref());
        let assignee = assignee.map(|lease| &lease.assignee);
        self.app.as_ref().is_none_or(|wanted| wanted == app)
            && self.user.as_ref().is_none_or(|wanted| wanted == user)
            && self.tool.as_ref().is_none_or(|wanted| wanted == index::approval_tool(call))
            && self.assignee.as_ref().is_none_or(|wanted| Some(wanted) == assignee)
            && (self.kinds.is_empty() || self.kinds.contains(&index::approval_kind(call)))
            && index::approval_state(call).is_some_and(|state| self.wanted().any(|s| s == state))
    }

    fn may_have_matched(&self, tags: &[String; TAGS]) -> bool {
        let [app, user, tool, _] = self.values();
        // Who has it changes.
        [app, user, tool]
            .iter()
            .zip(tags)
            .all(|(wanted, tag)| wanted.is_none_or(|wanted| wanted == index::tag_value(tag)))
    }

    fn gone(stored: &Stored) -> Option<GoneApproval> {
        let [app, user, ..] = &stored.entry.tags;
        Some(GoneApproval {
            call: CallId::parse(stored.entry.id.clone()).ok()?,
            app: AppName::parse(index::tag_value(app)).ok()?,
            user: UserId::parse(index::tag_value(user)).ok()?,
        })
    }
}

impl Runner {
    /// One approval.
    pub async fn approval(&self, id: &CallId) -> Result<Call, Refusal> {
        let (_, call) = self.inner.call(id).await?.ok_or_else(|| no_approval(id))?;
        if call.approval.is_some() {
            return Ok(call);
        }
        // What is asked about it has an id of its own.
        let question = call.gated.as_ref().and_then(|gated| gated.question.as_ref());
        Err(match question {
            Some(question) => no_approval(id).with("question_id", question),
            None => no_approval(id),
        })
    }

    /// A page of approvals, by the time they were asked.
    pub async fn list_approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<Place>,
        limit: usize,
    ) -> Result<Listed<Call>, Refusal> {
        let begin = filter.begin();
        let after = match (after, begin) {
            (Some(after), Some(begin)) if filter.newest_first => Some(after.min(begin)),
            // None is the beginning, and less than any place.
            (after, begin) => after.max(begin),
        };
        let (mut page, _) = self.inner.merged(filter.finds(), after, limit).await?;
        let within = page.items.iter().take_while(|stored| !filter.is_over(&stored.entry.order));
        let within = within.count();
        if within < page.items.len() {
            page.items.truncate(within);
            page.next = None;
        }
        let items = page.items.into_iter().filter_map(changes::read).collect();
        Ok(Listed { items, next: page.next })
    }

    /// Watches approvals, from behind a feed number on or from the beginning.
    pub fn watch_approvals(
        &self,
        filter: ApprovalFilter,
        after: Option<u64>,
    ) -> Changes<ApprovalFilter> {
        Changes::new(self.inner.clone(), filter, after)
    }

    /// How many approvals there are, of an app or of all.
    pub async fn summarize(&self, app: Option<AppName>) -> Result<Figures, Refusal> {
        let mut counts = Vec::new();
        for (state, kind) in ApprovalState::ALL.into_iter().flat_map(|s| KINDS.map(|k| (s, k))) {
            let (states, kinds) = (vec![state], vec![kind]);
            let filter =
                ApprovalFilter { app: app.clone(), states, kinds, ..ApprovalFilter::default() };
            let count = self.inner.count(filter.finds()).await?;
            if count > 0 {
                counts.push((state, kind, count));
            }
        }
        let filter = ApprovalFilter { app, ..ApprovalFilter::default() };
        let oldest = self.list_approvals(&filter, None, 1).await?.items.pop();
        Ok(Figures { counts, oldest })
    }

    /// A page of standing approvals, the newest first.
    pub async fn list_standing(
        &self,
        filter: &StandingFilter,
        after: Option<Place>,
        limit: usize,
    ) -> Result<Listed<StandingView>, Refusal> {
        let StandingFilter { app, user, session, revoked } = filter;
        let query = Query {
            kind: index::STANDING,
            tags: [
                app.as_ref().map(ToString::to_string),
                user.as_ref().map(ToString::to_string),
                session.as_ref().map(ToString::to_string),
                None,
            ],
            states: match revoked {
                true => Vec::new(),
                false => vec![StandingView::state(false).to_owned()],
            },
            after,
            descending: true,
            limit,
        };
        let page = self.inner.list(query).await?;
        let items = page.items.into_iter().filter_map(changes::read).collect();
        Ok(Listed { items, next: page.next })
    }
}

impl Inner {
    /// How many entries the queries find.
    async fn count(&self, queries: Vec<Query>) -> Result<u64, Refusal> {
        let mut count = 0;
        for query in queries {
            let query = Query { limit: MAX_COUNT, ..query };
            count += self.store.count(query).await.map_err(refuse_store)?;
        }
        Ok(count)
    }
}
