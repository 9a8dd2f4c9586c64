//! The store's port: what durability means here, and nothing about what is kept.
//!
//! A store appends a batch to one session's log at an expected head, all or nothing; it reads logs,
//! keeps entries (small indexed rows that stand for something in a log) and numbers every group of
//! commits, so that changes of entries can be followed in commit order. It does not know what an
//! approval, a call or an invocation is: bytes are opaque, and states, tags and keys are texts.
//!
//! Invariants, held by `contract` for every store:
//! * An acknowledged append is on the disk (memory: in the maps) before it is acknowledged.
//! * Positions of a log are 1, 2, 3 ... without a hole; so are sequences of its events.
//! * A batch repeated with its id answers `Repeated` and changes nothing.
//! * A refused batch (`Conflict`, `Exists`, `RequestSeen`) changes nothing. If several refusals
//!   fit, the answer is the first of `Repeated`, `RequestSeen`, `Conflict`, `Exists`.
//! * Feed numbers are in commit order: who has read up to a number has seen all below it.

use std::collections::BTreeMap;

use async_trait::async_trait;

use crate::session::id::{Principal, RequestId, SessionUid};

mod clock;
#[cfg(test)]
mod contract;
mod failure;
pub mod memory;
pub mod sqlite;

pub use clock::Clock;

/// Most rows that one read returns.
pub const MAX_READ_ROWS: usize = 1024;

/// Most entries that one query or feed page returns.
pub const MAX_ENTRIES: usize = 1000;

/// Most requests, and most tombstones, that one sweep forgets.
pub const MAX_SWEEP: usize = 500;

/// Most entries that are counted at once.
pub const MAX_COUNT: usize = 1_000_000;

/// How many tags an entry can be found by.
pub const TAGS: usize = 4;

/// One record of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// 1, 2, 3 ... in its session.
    pub position: u64,
    /// The event's sequence, 1, 2, 3 ... in its session; 0 for a record that is no event.
    pub sequence: u64,
    /// The stored form, opaque here.
    pub bytes: Vec<u8>,
}

/// A kind of entry, such as `session`, `call`, `invocation`.
pub type Kind = &'static str;

/// A small indexed row that stands for something in a log; written with the log's batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it stands for.
    pub kind: Kind,
    /// Unique within the kind.
    pub id: String,
    /// Its state, to be filtered by. Empty: no wanted state finds it, and it stands in no feed.
    pub state: String,
    /// When it is due, in microseconds since 1970; `Store::due` finds it from then on.
    pub due: Option<u64>,
    /// Order in lists, before the id. Empty: it stands in no list and in no feed, and is found by
    /// its id and its due time only.
    pub order: String,
    /// What it can be found by; unused ones are empty. Of those that are asked for the last one
    /// leads, so that the most selective stands last.
    pub tags: [String; TAGS],
    /// The content, opaque here.
    pub bytes: Vec<u8>,
}

/// What a batch does to an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryWrite {
    /// Creates it; the whole batch is refused as `Exists` if there is one (tombstones are none).
    Create(Entry),
    /// Creates or replaces it.
    Put(Entry),
    /// Removes it; a tombstone stays in the feed. Of a missing one: nothing.
    Remove {
        /// Kind of the entry.
        kind: Kind,
        /// Id of the entry.
        id: String,
    },
}

/// An entry as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The entry; of a removed one kind, id, state, order and tags are what they were, it has no
    /// due time, and its bytes are empty.
    pub entry: Entry,
    /// The session whose batch wrote or removed it last.
    pub uid: SessionUid,
    /// The feed number of its last change.
    pub feed: u64,
    /// The feed number of its creation (a creation over a tombstone counts anew).
    pub born: u64,
    /// Removed: this is a tombstone.
    pub removed: bool,
}

/// A change of a value that several sessions share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedWrite {
    /// Whose value: an app's or a user's, as the caller spells scopes.
    pub scope: String,
    /// The key.
    pub key: String,
    /// The new value; none removes it.
    pub value: Option<Vec<u8>>,
}

/// A mark by which a repeated request is known, written with what the request did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Who asked.
    pub principal: Principal,
    /// What was asked for: the RPC's name.
    pub method: String,
    /// The caller's mark.
    pub id: RequestId,
    /// Digest of the request's body.
    pub digest: String,
    /// What came of it, opaque here.
    pub outcome: Vec<u8>,
}

/// What was recorded for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Digest of the body of the request that was recorded.
    pub digest: String,
    /// What came of it.
    pub outcome: Vec<u8>,
}

/// One atomic change of one session and of what stands beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Names the batch for a repeat; 16 bytes of a UUID. A batch with records is known for as long
    /// as its log; one without, until the session's next one without.
    pub id: [u8; 16],
    /// The session whose log is appended to. A log begins with its first batch, at head 0.
    pub uid: SessionUid,
    /// The head that the decision was made on: the last position.
    pub expected: u64,
    /// The records, at `expected + 1` and on, without a hole. May be empty (entries alone).
    pub rows: Vec<Row>,
    /// Changes of entries, in order.
    pub entries: Vec<EntryWrite>,
    /// A fold of the log at the batch's last position, which replaces the one before.
    pub snapshot: Option<Vec<u8>>,
    /// Changes of shared values.
    pub shared: Vec<SharedWrite>,
    /// The request that this batch carries out. If one is recorded already: `RequestSeen`.
    pub request: Option<Request>,
    /// Removes the log, its snapshot and every entry that this session wrote last, after the rest
    /// of the batch was checked and done (so what it writes to entries is removed too; shared
    /// values and the request stay); rows must be empty. The uid can never be appended to again:
    /// whatever the expected head of a later batch, it finds `Conflict { head: 0 }`.
    pub delete: bool,
}

impl Batch {
    /// Checks what can be seen in the batch alone; each store does so before anything else.
    fn check(&self) -> Result<(), Error> {
        if self.delete && !self.rows.is_empty() {
            return Err(Error::Malformed("a deletion has records"));
        }
        let last = self.expected.checked_add(self.rows.len() as u64);
        if last.is_none_or(|last| i64::try_from(last).is_err()) {
            return Err(Error::Malformed("a position is out of range"));
        }
        if !self.rows.iter().zip(self.expected + 1..).all(|(row, at)| row.position == at) {
            return Err(Error::Malformed("positions are not those behind the expected head"));
        }
        let events = || self.rows.iter().map(|row| row.sequence).filter(|&sequence| sequence > 0);
        if events().zip(events().skip(1)).any(|(one, next)| one.checked_add(1) != Some(next)) {
            return Err(Error::Malformed("sequences have a hole"));
        }
        let far = |due: u64| i64::try_from(due).is_err();
        if self.entries.iter().any(|write| write.entry().and_then(|e| e.due).is_some_and(far)) {
            return Err(Error::Malformed("a due time is out of range"));
        }
        Ok(())
    }

    /// Checks that the batch's events go on where the log's events end; each store does so when
    /// the head was found to be the expected one.
    fn check_events(&self, last: u64) -> Result<(), Error> {
        let first = self.rows.iter().map(|row| row.sequence).find(|&sequence| sequence > 0);
        if first.is_some_and(|first| last.checked_add(1) != Some(first)) {
            return Err(Error::Malformed("sequences do not go on where the log's end"));
        }
        Ok(())
    }
}

impl EntryWrite {
    /// Whether it is about this entry.
    fn names(&self, of: Kind, name: &str) -> bool {
        match self {
            Self::Create(entry) | Self::Put(entry) => entry.kind == of && entry.id == name,
            Self::Remove { kind, id } => *kind == of && id == name,
        }
    }

    /// The entry that is written, if one is.
    fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Create(entry) | Self::Put(entry) => Some(entry),
            Self::Remove { .. } => None,
        }
    }
}

/// What came of an append that reached the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Appended {
    /// Written and durable.
    Done {
        /// The feed number of the group that it was committed with.
        feed: u64,
    },
    /// The same batch (by id) had been written before; nothing was changed.
    Repeated,
    /// The log's head is another; nothing was changed.
    Conflict {
        /// The head as it is; 0 also for a log that was deleted or never begun.
        head: u64,
    },
    /// An entry to be created is there already; nothing was changed.
    Exists {
        /// Kind of the entry.
        kind: Kind,
        /// Id of the entry.
        id: String,
    },
    /// The request was recorded before; nothing was changed.
    RequestSeen(Recorded),
}

/// What a log's reader begins with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Opened {
    /// The last position of the log.
    pub head: u64,
    /// Position and bytes of the newest snapshot.
    pub snapshot: Option<(u64, Vec<u8>)>,
    /// The records after the snapshot, at most `MAX_READ_ROWS`; `read` goes on.
    pub rows: Vec<Row>,
}

/// Which events of a log to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Events {
    /// Those after a sequence, oldest first.
    After(u64),
    /// The last ones, oldest first.
    Last,
}

/// Which entries a list wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// The kind.
    pub kind: Kind,
    /// Wanted value of each tag; none: any.
    pub tags: [Option<String>; TAGS],
    /// Wanted states; empty: any.
    pub states: Vec<String>,
    /// Go on behind this (order, id).
    pub after: Option<(String, String)>,
    /// Newest order first.
    pub descending: bool,
    /// At most so many, and at most `MAX_ENTRIES` (or `MAX_COUNT`).
    pub limit: usize,
}

/// A page of changes of entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// The entries in order of their last change, each once, as they are now.
    pub entries: Vec<Stored>,
    /// Ask again after this: all changes up to it are in this page or before it. Less than what was
    /// asked for if the store has gone back, which only a restored backup does.
    pub upto: u64,
    /// There is more already.
    pub more: bool,
}

/// Values that sessions share, by scope and key.
pub type Shared = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// The store failed. Refusals are no errors: they are answers (`Appended`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was written, and the request can be made again.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Too much waits for the store already; nothing was written.
    #[error("too many appends wait for the store")]
    Overloaded,
    /// Whether it was written is not known: repeat the same batch until the answer is another.
    #[error("it is not known whether the store wrote: {0}")]
    Unknown(String),
    /// The batch breaks a rule of this port, a fault of the program; nothing was written.
    #[error("malformed batch: {0}")]
    Malformed(&'static str),
    /// What was read cannot be what was written.
    #[error("the store holds what nobody wrote: {0}")]
    Corrupt(String),
}

/// A durable home of logs.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The store's clock, in microseconds since 1970. Deadlines and timestamps are measured by it.
    fn now(&self) -> u64;

    /// Whether no other process can append here: then what this process has appended is all there
    /// is.
    fn exclusive(&self) -> bool;

    /// Writes a batch, all or nothing, and durable when this returns `Done`. Dropping the future
    /// does not take the batch back: it may be written or not.
    async fn append(&self, batch: Batch) -> Result<Appended, Error>;

    /// Snapshot and records of a log; none if it was never begun or is deleted.
    async fn open(&self, uid: &SessionUid) -> Result<Option<Opened>, Error>;

    /// Records after a position, oldest first, at most `limit` and `MAX_READ_ROWS`. Of a log that
    /// is not there: none.
    async fn read(&self, uid: &SessionUid, after: u64, limit: usize) -> Result<Vec<Row>, Error>;

    /// Records that are events, oldest first, at most `limit` and `MAX_READ_ROWS`.
    async fn events(
        &self,
        uid: &SessionUid,
        which: Events,
        limit: usize,
    ) -> Result<Vec<Row>, Error>;

    /// One entry; none if it is not there or is removed.
    async fn entry(&self, kind: Kind, id: &str) -> Result<Option<Stored>, Error>;

    /// A page of entries with an order that are not removed, in (order, id), with the feed number
    /// of the moment: every change up to it is in the page.
    async fn list(&self, query: Query) -> Result<(Vec<Stored>, u64), Error>;

    /// How many entries a query wants, places and direction as in `list`: at most `limit` and
    /// `MAX_COUNT` are counted.
    async fn count(&self, query: Query) -> Result<u64, Error>;

    /// Entries whose due time is at or before `now`, earliest first.
    async fn due(&self, kind: Kind, now: u64, limit: usize) -> Result<Vec<Stored>, Error>;

    /// Entries of the kind with order and state that changed after a feed number, removed ones too:
    /// at least one if there are any, and all with the same number in one page, which is longer
    /// than `limit` only for that.
    async fn changes(&self, kind: Kind, after: u64, limit: usize) -> Result<Changes, Error>;

    /// Shared values of these scopes; a scope without values is absent.
    async fn shared(&self, scopes: &[String]) -> Result<Shared, Error>;

    /// What was recorded for a request.
    async fn request(
        &self,
        principal: &Principal,
        method: &str,
        id: &RequestId,
    ) -> Result<Option<Recorded>, Error>;

    /// Forgets requests recorded before, and tombstones made before, this time; at most `MAX_SWEEP`
    /// of each. True: there may be more.
    async fn sweep(&self, before: u64) -> Result<bool, Error>;

    /// Ends when the store has failed in a way after which only a restart tells the truth (a failed
    /// fsync), with what happened. Never ends otherwise.
    async fn failed(&self) -> String;
}
