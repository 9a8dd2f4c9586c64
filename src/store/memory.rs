//! Everything in maps: for tests and trials, and the oracle that other stores are compared with.
//!
//! The maps live as long as the `Memory` does. A test that restarts a server keeps the `Arc` and
//! builds the next server on it; a test of faults says beforehand how appends shall go wrong.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use crate::session::id::{Principal, RequestId, SessionUid};

use super::failure::Failure;
use super::{
    Appended, Batch, Changes, Clock, Entry, EntryWrite, Error, Events, Kind, MAX_COUNT,
    MAX_ENTRIES, MAX_READ_ROWS, MAX_SWEEP, Opened, Query, Recorded, Row, Shared, Store, Stored,
};

#[cfg(test)]
mod tests;

/// How an append goes wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is written, and the answer says so: `Unavailable`.
    NotWritten,
    /// It is done as ever, but the answer is `Unknown`.
    UnknownWritten,
    /// Nothing is written, and the answer is `Unknown`.
    UnknownNotWritten,
}

/// A store in memory.
#[derive(Debug)]
pub struct Memory {
    clock: Clock,
    state: Mutex<State>,
    /// An append has met `stop_after`.
    stopped: watch::Sender<bool>,
    failure: Failure,
}

#[derive(Debug, Default)]
struct State {
    logs: BTreeMap<SessionUid, Log>,
    entries: BTreeMap<(Kind, String), Held>,
    shared: Shared,
    requests: BTreeMap<(Principal, String, RequestId), (Recorded, u64)>,
    /// The last feed number.
    feed: u64,
    /// Appends that wrote.
    commits: u64,
    faults: Option<(usize, Fault)>,
    stop_after: Option<u64>,
}

/// An entry or tombstone, and when it was removed.
#[derive(Debug)]
struct Held {
    stored: Stored,
    removed_at: u64,
}

#[derive(Debug, Default)]
struct Log {
    rows: Vec<Row>,
    /// The batches with records, by their first position.
    batches: BTreeMap<u64, [u8; 16]>,
    /// The last batch without records.
    bare: Option<[u8; 16]>,
    snapshot: Option<(u64, Vec<u8>)>,
    deleted: bool,
}

impl Memory {
    /// An empty store.
    pub fn new(clock: Clock) -> Self {
        let (stopped, _) = watch::channel(false);
        Self { clock, state: Mutex::default(), stopped, failure: Failure::new() }
    }

    /// The next `count` appends go wrong like this; it replaces what was asked for before.
    pub fn fail_next(&self, count: usize, fault: Fault) {
        self.state().faults = Some((count, fault));
    }

    /// Appends that wrote so far; also what a group commit would have to do alone.
    pub fn commits(&self) -> u64 {
        self.state().commits
    }

    /// Once `commits` is `count`, every append is `Unavailable`: the server has stopped there.
    pub fn stop_after(&self, count: u64) {
        self.state().stop_after = Some(count);
    }

    /// Ends when an append has met `stop_after`.
    pub async fn stopped(&self) {
        // The sender lives as long as this does.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// Takes back `stop_after` and `fail_next`, as a restart does.
    pub fn clear_faults(&self) {
        self.stopped.send_replace(false);
        let mut state = self.state();
        state.stop_after = None;
        state.faults = None;
    }

    /// Fails the store for good, as a failed fsync would: `Store::failed` ends with this.
    pub fn fail(&self, what: impl Into<String>) {
        self.failure.set(what.into());
    }

    /// Nothing panics while it holds the lock between two changes, so a poisoned one is whole.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn stops(&self) -> bool {
        self.stop_after.is_some_and(|count| self.commits >= count)
    }

    /// The fault that the next append meets.
    fn fault(&mut self) -> Option<Fault> {
        if self.stops() {
            return Some(Fault::NotWritten);
        }
        let (count, fault) = self.faults?;
        self.faults = (count > 1).then_some((count - 1, fault));
        (count > 0).then_some(fault)
    }

    fn append(&mut self, batch: Batch, now: u64) -> Result<Appended, Error> {
        if let Some(refusal) = self.refusal(&batch)? {
            return Ok(refusal);
        }
        self.feed += 1;
        self.commits += 1;
        let feed = self.feed;
        let last = batch.expected + batch.rows.len() as u64;
        let log = self.logs.entry(batch.uid.clone()).or_default();
        if batch.rows.is_empty() {
            log.bare = Some(batch.id);
        } else {
            log.batches.insert(batch.expected + 1, batch.id);
            log.rows.extend(batch.rows);
        }
        if let Some(snapshot) = batch.snapshot {
            log.snapshot = Some((last, snapshot));
        }
        for write in batch.entries {
            self.write(&batch.uid, write, now);
        }
        for write in batch.shared {
            let scope = self.shared.entry(write.scope).or_default();
            match write.value {
                Some(value) => scope.insert(write.key, value),
                None => scope.remove(&write.key),
            };
        }
        if let Some(request) = batch.request {
            let recorded = Recorded { digest: request.digest, outcome: request.outcome };
            self.requests.insert((request.principal, request.method, request.id), (recorded, now));
        }
        if batch.delete {
            self.delete(&batch.uid, batch.id, now);
        }
        Ok(Appended::Done { feed })
    }

    /// Why the batch is not written, if it is not.
    fn refusal(&self, batch: &Batch) -> Result<Option<Appended>, Error> {
        batch.check()?;
        let log = self.logs.get(&batch.uid);
        let known = log.and_then(|log| match batch.rows.is_empty() {
            true => log.bare,
            false => log.batches.get(&(batch.expected + 1)).copied(),
        });
        if known == Some(batch.id) {
            return Ok(Some(Appended::Repeated));
        }
        if let Some(r) = &batch.request {
            let key = (r.principal.clone(), r.method.clone(), r.id.clone());
            if let Some((recorded, _)) = self.requests.get(&key) {
                return Ok(Some(Appended::RequestSeen(recorded.clone())));
            }
        }
        let head = log.map_or(0, |log| log.rows.len() as u64);
        if head != batch.expected || log.is_some_and(|log| log.deleted) {
            return Ok(Some(Appended::Conflict { head }));
        }
        let rows = log.iter().flat_map(|log| log.rows.iter().rev());
        batch.check_events(rows.map(|row| row.sequence).find(|&s| s > 0).unwrap_or(0))?;
        Ok(self.existing(batch))
    }

    /// The first entry to be created that is there already, by the batch's own writes or before.
    fn existing(&self, batch: &Batch) -> Option<Appended> {
        let mut live = BTreeMap::new();
        for write in &batch.entries {
            let key = match write {
                EntryWrite::Create(entry) | EntryWrite::Put(entry) => (entry.kind, &entry.id),
                EntryWrite::Remove { kind, id } => (*kind, id),
            };
            if matches!(write, EntryWrite::Create(_)) {
                let before = || self.entries.get(&(key.0, key.1.clone()));
                let there = live.get(&key).copied();
                if there.unwrap_or_else(|| before().is_some_and(|held| !held.stored.removed)) {
                    return Some(Appended::Exists { kind: key.0, id: key.1.clone() });
                }
            }
            live.insert(key, write.entry().is_some());
        }
        None
    }

    fn write(&mut self, uid: &SessionUid, write: EntryWrite, now: u64) {
        let feed = self.feed;
        match write {
            EntryWrite::Create(entry) | EntryWrite::Put(entry) => {
                let key = (entry.kind, entry.id.clone());
                let before = self.entries.get(&key).filter(|held| !held.stored.removed);
                let born = before.map_or(feed, |held| held.stored.born);
                let stored = Stored { entry, uid: uid.clone(), feed, born, removed: false };
                self.entries.insert(key, Held { stored, removed_at: 0 });
            }
            EntryWrite::Remove { kind, id } => {
                let held = self.entries.get_mut(&(kind, id));
                if let Some(held) = held.filter(|held| !held.stored.removed) {
                    held.remove(uid, feed, now);
                }
            }
        }
    }

    fn delete(&mut self, uid: &SessionUid, batch: [u8; 16], now: u64) {
        let log = Log { bare: Some(batch), deleted: true, ..Log::default() };
        self.logs.insert(uid.clone(), log);
        let feed = self.feed;
        let theirs = |held: &&mut Held| !held.stored.removed && held.stored.uid == *uid;
        for held in self.entries.values_mut().filter(theirs) {
            held.remove(uid, feed, now);
        }
    }

    fn log(&self, uid: &SessionUid) -> Option<&Log> {
        self.logs.get(uid).filter(|log| !log.deleted)
    }

    /// The kind's entries and tombstones.
    fn kind(&self, kind: Kind) -> impl Iterator<Item = &Stored> {
        let from = Bound::Included((kind, String::new()));
        let kinds = self.entries.range((from, Bound::Unbounded));
        kinds.take_while(move |((k, _), _)| *k == kind).map(|(_, held)| &held.stored)
    }

    /// The kind's entries.
    fn live(&self, kind: Kind) -> impl Iterator<Item = &Stored> {
        self.kind(kind).filter(|stored| !stored.removed)
    }

    /// The kind's entries and tombstones that stand in lists and in the feed.
    fn listed(&self, kind: Kind) -> impl Iterator<Item = &Stored> {
        self.kind(kind).filter(|stored| !stored.entry.order.is_empty())
    }

    /// The entries that a query wants, behind its place.
    fn wanted<'a>(&'a self, query: &'a Query) -> impl Iterator<Item = &'a Stored> {
        let behind = |stored: &Stored| match &query.after {
            Some(after) if query.descending => place(stored) < *after,
            Some(after) => place(stored) > *after,
            None => true,
        };
        let live = self.listed(query.kind).filter(|stored| !stored.removed);
        live.filter(move |stored| query.wants(&stored.entry) && behind(stored))
    }
}

/// Where an entry stands in lists.
fn place(stored: &Stored) -> (String, String) {
    (stored.entry.order.clone(), stored.entry.id.clone())
}

impl Held {
    fn remove(&mut self, uid: &SessionUid, feed: u64, now: u64) {
        self.stored.uid = uid.clone();
        self.stored.feed = feed;
        self.stored.removed = true;
        self.stored.entry.due = None;
        self.stored.entry.bytes.clear();
        self.removed_at = now;
    }
}

impl Log {
    fn after(&self, position: u64) -> impl Iterator<Item = &Row> {
        let skipped = usize::try_from(position).unwrap_or(usize::MAX);
        self.rows.iter().skip(skipped)
    }
}

impl Query {
    /// Whether an entry of the kind is wanted; places and limits aside.
    fn wants(&self, entry: &Entry) -> bool {
        let tags = self.tags.iter().zip(&entry.tags);
        tags.into_iter().all(|(want, tag)| want.as_ref().is_none_or(|want| want == tag))
            && (self.states.is_empty()
                || !entry.state.is_empty() && self.states.contains(&entry.state))
    }
}

#[async_trait]
impl Store for Memory {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn exclusive(&self) -> bool {
        true
    }

    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        if let Some(what) = self.failure.get() {
            return Err(Error::Unavailable(what));
        }
        let now = self.clock.now();
        let mut state = self.state();
        let unknown = || Error::Unknown("asked for by a test".into());
        if state.stops() {
            self.stopped.send_replace(true);
        }
        match state.fault() {
            Some(Fault::NotWritten) => Err(Error::Unavailable("asked for by a test".into())),
            Some(Fault::UnknownNotWritten) => Err(unknown()),
            Some(Fault::UnknownWritten) => state.append(batch, now).and_then(|_| Err(unknown())),
            None => state.append(batch, now),
        }
    }

    async fn open(&self, uid: &SessionUid) -> Result<Option<Opened>, Error> {
        Ok(self.state().log(uid).map(|log| {
            let after = log.snapshot.as_ref().map_or(0, |(position, _)| *position);
            let rows = log.after(after).take(MAX_READ_ROWS).cloned().collect();
            Opened { head: log.rows.len() as u64, snapshot: log.snapshot.clone(), rows }
        }))
    }

    async fn read(&self, uid: &SessionUid, after: u64, limit: usize) -> Result<Vec<Row>, Error> {
        let state = self.state();
        let rows = state.log(uid).into_iter().flat_map(|log| log.after(after));
        Ok(rows.take(limit.min(MAX_READ_ROWS)).cloned().collect())
    }

    async fn events(
        &self,
        uid: &SessionUid,
        which: Events,
        limit: usize,
    ) -> Result<Vec<Row>, Error> {
        let state = self.state();
        let limit = limit.min(MAX_READ_ROWS);
        let log = state.log(uid);
        let events = log.iter().flat_map(|log| &log.rows).filter(|row| row.sequence > 0);
        Ok(match which {
            Events::After(after) => {
                events.filter(|row| row.sequence > after).take(limit).cloned().collect()
            }
            Events::Last => {
                let events: Vec<_> = events.collect();
                events[events.len().saturating_sub(limit)..].iter().copied().cloned().collect()
            }
        })
    }

    async fn entry(&self, kind: Kind, id: &str) -> Result<Option<Stored>, Error> {
        let state = self.state();
        let held = state.entries.get(&(kind, id.to_owned()));
        Ok(held.map(|held| &held.stored).filter(|stored| !stored.removed).cloned())
    }

    async fn list(&self, query: Query) -> Result<(Vec<Stored>, u64), Error> {
        let state = self.state();
        let mut found: Vec<_> = state.wanted(&query).collect();
        found.sort_by_key(|stored| place(stored));
        if query.descending {
            found.reverse();
        }
        let page = found.into_iter().take(query.limit.min(MAX_ENTRIES));
        Ok((page.cloned().collect(), state.feed))
    }

    async fn count(&self, query: Query) -> Result<u64, Error> {
        let found = self.state().wanted(&query).count();
        Ok(found.min(query.limit).min(MAX_COUNT) as u64)
    }

    async fn due(&self, kind: Kind, now: u64, limit: usize) -> Result<Vec<Stored>, Error> {
        let state = self.state();
        let due = |stored: &&Stored| stored.entry.due.is_some_and(|due| due <= now);
        let mut found: Vec<_> = state.live(kind).filter(due).collect();
        found.sort_by_key(|stored| (stored.entry.due, &stored.entry.id));
        Ok(found.into_iter().take(limit.min(MAX_ENTRIES)).cloned().collect())
    }

    async fn changes(&self, kind: Kind, after: u64, limit: usize) -> Result<Changes, Error> {
        let state = self.state();
        let fed = |stored: &&Stored| !stored.entry.state.is_empty() && stored.feed > after;
        let mut found: Vec<_> = state.listed(kind).filter(fed).collect();
        found.sort_by_key(|stored| (stored.feed, &stored.entry.id));
        let limit = limit.clamp(1, MAX_ENTRIES);
        let mut end = found.len();
        // A group's entries share a number: the page ends before the first group that does not fit
        // whole, unless it is the only one.
        if let Some(next) = found.get(limit).map(|stored| stored.feed) {
            end = found.partition_point(|stored| stored.feed < next);
            if end == 0 {
                end = found.partition_point(|stored| stored.feed == next);
            }
        }
        let more = end < found.len();
        let upto = if more { found[end - 1].feed } else { state.feed };
        Ok(Changes { entries: found[..end].iter().copied().cloned().collect(), upto, more })
    }

    async fn shared(&self, scopes: &[String]) -> Result<Shared, Error> {
        let state = self.state();
        let found = scopes.iter().filter_map(|scope| state.shared.get_key_value(scope));
        let some = found.filter(|(_, values)| !values.is_empty());
        Ok(some.map(|(scope, values)| (scope.clone(), values.clone())).collect())
    }

    async fn request(
        &self,
        principal: &Principal,
        method: &str,
        id: &RequestId,
    ) -> Result<Option<Recorded>, Error> {
        let key = (principal.clone(), method.to_owned(), id.clone());
        Ok(self.state().requests.get(&key).map(|(recorded, _)| recorded.clone()))
    }

    async fn sweep(&self, before: u64) -> Result<bool, Error> {
        let mut state = self.state();
        let old = state.requests.iter().filter(|(_, (_, at))| *at < before);
        let requests: Vec<_> = old.take(MAX_SWEEP).map(|(key, _)| key.clone()).collect();
        let gone = |held: &Held| held.stored.removed && held.removed_at < before;
        let old = state.entries.iter().filter(|(_, held)| gone(held));
        let tombstones: Vec<_> = old.take(MAX_SWEEP).map(|(key, _)| key.clone()).collect();
        for key in &requests {
            state.requests.remove(key);
        }
        for key in &tombstones {
            state.entries.remove(key);
        }
        Ok(requests.len() == MAX_SWEEP || tombstones.len() == MAX_SWEEP)
    }

    async fn failed(&self) -> String {
        self.failure.wait().await
    }
}
