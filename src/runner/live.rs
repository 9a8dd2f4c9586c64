//! What is live in this process: who is woken when a log grows, and the newest records of the logs
//! that somebody follows. Hints and a cache, never the truth: whoever is woken reads the log.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{broadcast, watch};

use crate::session::content::Event;
use crate::session::id::SessionUid;
use crate::session::record::Record;

/// How many of a followed log's newest records are kept in memory.
const TAIL_RECORDS: usize = 64;

/// How many pieces of text a follower may be behind before it misses some.
const PIECES: usize = 64;

/// A record with its position.
pub type Placed = (u64, Arc<Record>);

/// One log that somebody in this process follows.
pub struct Live {
    uid: SessionUid,
    hub: Weak<Hub>,
    tail: Mutex<Tail>,
    head: watch::Sender<u64>,
    pieces: broadcast::Sender<Arc<Event>>,
}

#[derive(Default)]
struct Tail {
    records: VecDeque<Placed>,
    /// The log was deleted.
    gone: bool,
}

/// All logs that somebody in this process follows.
#[derive(Default)]
pub struct Hub {
    live: Mutex<HashMap<SessionUid, Weak<Live>>>,
    feed: watch::Sender<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// Follows a log; it is followed until the last clone of what is returned is dropped.
    pub fn follow(self: &Arc<Self>, uid: &SessionUid) -> Arc<Live> {
        let mut live = lock(&self.live);
        if let Some(there) = live.get(uid).and_then(Weak::upgrade) {
            return there;
        }
        let new = Arc::new(Live {
            uid: uid.clone(),
            hub: Arc::downgrade(self),
            tail: Mutex::default(),
            head: watch::Sender::new(0),
            pieces: broadcast::Sender::new(PIECES),
        });
        live.insert(uid.clone(), Arc::downgrade(&new));
        new
    }

    /// Wakes who follows the log.
    pub fn appended(&self, uid: &SessionUid, records: Vec<Placed>, feed: u64) {
        let there = lock(&self.live).get(uid).and_then(Weak::upgrade);
        if let Some(live) = there {
            live.appended(records);
        }
        self.feed.send_if_modified(|last| {
            let newer = feed > *last;
            *last = feed.max(*last);
            newer
        });
    }

    /// Changes whenever entries of any session changed: to the number of the feed.
    pub fn feed(&self) -> watch::Receiver<u64> {
        self.feed.subscribe()
    }
}

impl Live {
    fn appended(&self, records: Vec<Placed>) {
        let Some((last, _)) = records.last() else {
            lock(&self.tail).gone = true;
            self.head.send_modify(|_| ());
            return;
        };
        let last = *last;
        {
            let mut tail = lock(&self.tail);
            let next = tail.records.back().map(|(position, _)| position + 1);
            if next.is_some_and(|next| next != records[0].0) {
                tail.records.clear();
            }
            tail.records.extend(records);
            while tail.records.len() > TAIL_RECORDS {
                tail.records.pop_front();
            }
        }
        self.head.send_modify(|head| *head = last.max(*head));
    }

    /// The records after a position, if memory has them all up to the newest. None: ask the store.
    pub fn after(&self, position: u64) -> Option<Vec<Placed>> {
        let tail = lock(&self.tail);
        let first = tail.records.front()?.0;
        if position + 1 < first {
            return None;
        }
        let skip = usize::try_from(position + 1 - first).ok()?;
        let records: Vec<Placed> = tail.records.iter().skip(skip).cloned().collect();
        // A log is told to its end before it is told that it is gone.
        (!tail.gone || !records.is_empty()).then_some(records)
    }

    /// Changes whenever the log grows, or is deleted.
    pub fn grows(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    /// Sends a piece of a text that a model is speaking. Nobody may be listening.
    pub fn speak(&self, piece: Event) {
        let _ = self.pieces.send(Arc::new(piece));
    }

    /// The pieces from now on.
    pub fn pieces(&self) -> broadcast::Receiver<Arc<Event>> {
        self.pieces.subscribe()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let Some(hub) = self.hub.upgrade() else { return };
        let mut live = lock(&hub.live);
        // Somebody may have begun to follow it anew since.
        if live.get(&self.uid).is_some_and(|there| there.strong_count() == 0) {
            live.remove(&self.uid);
        }
    }
}
