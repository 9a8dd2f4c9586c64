//! Lists of what stands in many sessions, and watching them: the same for everything that has
//! entries with states and tags.
//!
//! A watched list is what a filter finds, then each change in commit order: nothing that matched
//! once changes or leaves unseen. What came before the watch, and was told by nobody knows whom,
//! is told as gone once too often rather than never.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Inner, index, refuse_store, signal};
use crate::session::refusal::{Reason, Refusal};
use crate::store::{MAX_ENTRIES, Query, Stored, TAGS};

/// How many entries one read takes.
pub(super) const PAGE: usize = 200;

/// Where something stands in a list: order and id.
pub type Place = (String, String);

/// What a filter finds, and how.
pub trait Resource: Send + Sync + 'static {
    /// What an entry says.
    type View: DeserializeOwned + Send;
    /// What is told of one that is there no more.
    type Gone: Send;

    /// The queries that find them together: one at least, all of one kind and direction.
    fn queries(&self) -> Vec<Query>;

    /// Whether one is wanted.
    fn matches(&self, view: &Self::View) -> bool;

    /// Whether one with these tags could ever have been wanted.
    fn may_have_matched(&self, tags: &[String; TAGS]) -> bool;

    /// What is told of one that is gone; none if its entry cannot be read.
    fn gone(stored: &Stored) -> Option<Self::Gone>;
}

/// A page of a list, in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed<T> {
    /// What is in it.
    pub items: Vec<T>,
    /// Where the next page begins; none: this is the last.
    pub next: Option<Place>,
}

/// What happened in a list that is watched.
#[derive(Debug, Clone, PartialEq)]
pub enum Changed<V, G> {
    /// It is like this now.
    Now(Box<V>),
    /// It does not match any more, or its session was deleted.
    Removed(G),
    /// All that was there when the watch began has been told.
    CaughtUp,
}

/// A change, with the feed number to go on from after it.
pub type Told<R> = (u64, Changed<<R as Resource>::View, <R as Resource>::Gone>);

/// A watched list: what it holds, then each change.
pub struct Changes<R: Resource> {
    inner: Arc<Inner>,
    filter: R,
    feed: u64,
    /// The page of the first list to read next; none: it has been told.
    list: Option<Option<Place>>,
    listed: bool,
    /// The feed number before which everything may have been told already.
    known_before: u64,
    told: BTreeSet<String>,
    pending: VecDeque<Told<R>>,
    woken: signal::Receiver,
}

/// What an entry says. One that cannot be read (an alarm is logged) keeps no other one from being
/// listed.
pub(super) fn read<T: DeserializeOwned>(stored: Stored) -> Option<T> {
    index::read(&stored.entry.bytes).ok()
}

/// A cursor that changes can no longer be told from: begin without one.
pub(crate) fn expired() -> Refusal {
    Refusal::new(Reason::CursorExpired, "the cursor is too old; watch again without one")
}

fn place(stored: &Stored) -> Place {
    (stored.entry.order.clone(), stored.entry.id.clone())
}

impl Inner {
    /// A page of entries, with where the next begins.
    pub(super) async fn list(&self, query: Query) -> Result<Listed<Stored>, Refusal> {
        Ok(self.list_at(query).await?.0)
    }

    /// The same, with the feed number of a moment before it was read.
    async fn list_at(&self, mut query: Query) -> Result<(Listed<Stored>, u64), Refusal> {
        let wanted = query.limit;
        let mut items: Vec<Stored> = Vec::new();
        let mut moment = None;
        // One more tells whether there is more; the store gives only so many at a time.
        loop {
            let missing = wanted + 1 - items.len();
            query.limit = missing.min(MAX_ENTRIES);
            let (page, feed) = self.store.list(query.clone()).await.map_err(refuse_store)?;
            moment.get_or_insert(feed);
            let whole = page.len() == query.limit && page.len() < missing;
            items.extend(page);
            if !whole {
                break;
            }
            query.after = items.last().map(place);
        }
        let more = items.len() > wanted;
        items.truncate(wanted);
        let next = items.last().filter(|_| more).map(place);
        Ok((Listed { next, items }, moment.unwrap_or(0)))
    }

    /// A page of what several queries find together, in their order. Whatever changes from one to
    /// another meanwhile is there once, as it was last, or comes with a later feed number.
    pub(super) async fn merged(
        &self,
        queries: Vec<Query>,
        after: Option<Place>,
        limit: usize,
    ) -> Result<(Listed<Stored>, u64), Refusal> {
        let descending = queries.first().is_some_and(|query| query.descending);
        let (mut found, mut moment, mut more) = (BTreeMap::new(), None, false);
        for query in queries {
            let query = Query { after: after.clone(), limit, ..query };
            let (page, feed) = self.list_at(query).await?;
            moment.get_or_insert(feed);
            more |= page.next.is_some();
            for stored in page.items {
                let at = place(&stored);
                let newer = |before: &Stored| before.feed < stored.feed;
                if found.get(&at).is_none_or(newer) {
                    found.insert(at, stored);
                }
            }
        }
        more |= found.len() > limit;
        let items: Vec<Stored> = match descending {
            true => found.into_values().rev().take(limit).collect(),
            false => found.into_values().take(limit).collect(),
        };
        let next = items.last().filter(|_| more).map(place);
        Ok((Listed { next, items }, moment.unwrap_or(0)))
    }
}

impl<R: Resource> Changes<R> {
    /// From behind a feed number on, or from the beginning.
    pub(super) fn new(inner: Arc<Inner>, filter: R, after: Option<u64>) -> Self {
        let woken = inner.hub.feed();
        Self {
            inner,
            filter,
            feed: after.unwrap_or(0),
            list: after.is_none().then_some(None),
            listed: after.is_some(),
            known_before: after.unwrap_or(0),
            told: BTreeSet::new(),
            pending: VecDeque::new(),
            woken,
        }
    }

    /// The next change, with the feed number to go on from after it. It can be dropped at any
    /// await.
    pub async fn next(&mut self) -> Result<Told<R>, Refusal> {
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

    async fn read_list(&mut self, after: Option<Place>) -> Result<(), Refusal> {
        let first = after.is_none();
        let queries = self.filter.queries();
        let (page, feed) = self.inner.merged(queries, after, PAGE).await?;
        if first {
            // Later pages may be newer; what changed since the first is told again.
            (self.feed, self.known_before) = (feed, feed);
        }
        self.list = page.next.map(Some);
        for stored in page.items {
            let (id, newer) = (stored.entry.id.clone(), stored.born > self.known_before);
            if let Some(view) = read(stored) {
                if newer {
                    self.told.insert(id);
                }
                self.pending.push_back((0, Changed::Now(Box::new(view))));
            }
        }
        Ok(())
    }

    async fn read_changes(&mut self) -> Result<bool, Refusal> {
        let kind = self.filter.queries().first().expect("a filter has a query").kind;
        let changes = self.inner.store.changes(kind, self.feed, PAGE).await;
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
            let may_match = self.filter.may_have_matched(&stored.entry.tags);
            if known && may_match {
                self.told.remove(&id);
                self.pending.extend(R::gone(&stored).map(|gone| (feed, Changed::Removed(gone))));
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
}
