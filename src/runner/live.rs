//! What is live in this process: who is woken when a log grows, and the newest records of the logs
//! that somebody follows. Hints and a cache, never the truth: whoever is woken reads the log.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::broadcast;

use super::{lock, signal};
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
    head: signal::Sender,
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
    feed: signal::Sender,
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
            head: signal::Sender::default(),
            pieces: broadcast::Sender::new(PIECES),
        });
        live.insert(uid.clone(), Arc::downgrade(&new));
        new
    }

    /// The log may have grown without anybody knowing: memory is not trusted, and who follows it
    /// reads the store.
    pub fn lost(&self, uid: &SessionUid) {
        let there = lock(&self.live).get(uid).and_then(Weak::upgrade);
        if let Some(live) = there {
            lock(&live.tail).records.clear();
            live.head.send_modify(|_| ());
        }
        self.feed.send_modify(|_| ());
    }

    /// Wakes who follows the log. The number of the feed is not known of what was written before.
    pub fn appended(&self, uid: &SessionUid, records: &[Placed], feed: Option<u64>) {
        let there = lock(&self.live).get(uid).and_then(Weak::upgrade);
        if let Some(live) = there {
            live.appended(records);
        }
        self.feed.send_if_modified(|last| {
            let newer = feed.is_none_or(|feed| feed > *last);
            *last = feed.unwrap_or_default().max(*last);
            newer
        });
    }

    /// Changes whenever entries of any session changed: to the number of the feed.
    pub fn feed(&self) -> signal::Receiver {
        self.feed.subscribe()
    }
}

impl Live {
    fn appended(&self, records: &[Placed]) {
        let Some((last, _)) = records.last() else {
            lock(&self.tail).gone = true;
            self.head.send_modify(|_| ());
            return;
        };
        let last = *last;
        // Two writers may come here in another order than their records have: the later ones stand
        // in the tail already, and whoever lacks these reads the store. Tail and head change under
        // one lock.
        let mut tail = lock(&self.tail);
        if last > self.head.get() {
            let next = tail.records.back().map(|(position, _)| position + 1);
            if next.is_some_and(|next| next != records[0].0) {
                tail.records.clear();
            }
            tail.records.extend(records.iter().cloned());
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
    pub fn grows(&self) -> signal::Receiver {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::id::{InvocationId, Principal};
    use crate::session::record::Body;

    fn placed(positions: std::ops::RangeInclusive<u64>) -> Vec<Placed> {
        let body = Body::CancelRequested { invocation: InvocationId::parse("e-1").unwrap() };
        let record = Record { time: 1, by: Principal::parse("user:local").unwrap(), body };
        let record = Arc::new(record);
        positions.map(|position| (position, record.clone())).collect()
    }

    fn positions(tail: Option<Vec<Placed>>) -> Option<Vec<u64>> {
        tail.map(|records| records.into_iter().map(|(position, _)| position).collect())
    }

    #[test]
    fn records_that_come_late_hide_no_newer_ones() {
        let (hub, uid) = (Arc::new(Hub::default()), SessionUid::parse("uid").unwrap());
        let live = hub.follow(&uid);
        hub.appended(&uid, &placed(1..=4), Some(1));
        hub.appended(&uid, &placed(7..=7), Some(3));
        hub.appended(&uid, &placed(5..=6), Some(2));
        assert_eq!(positions(live.after(4)), None, "memory has not all of them");
        assert_eq!(positions(live.after(6)), Some(vec![7]));
        hub.appended(&uid, &placed(8..=8), Some(4));
        assert_eq!(positions(live.after(6)), Some(vec![7, 8]));
    }

    #[test]
    fn what_is_not_known_is_read_from_the_store() {
        let (hub, uid) = (Arc::new(Hub::default()), SessionUid::parse("uid").unwrap());
        let live = hub.follow(&uid);
        hub.appended(&uid, &placed(1..=4), Some(1));
        let (mut grows, mut feed) = (live.grows(), hub.feed());
        hub.lost(&uid);
        assert!(grows.has_changed() && feed.has_changed());
        assert_eq!(positions(live.after(4)), None);
        grows.mark_unchanged();
        feed.mark_unchanged();
        hub.appended(&uid, &placed(5..=5), None);
        assert!(grows.has_changed() && feed.has_changed());
    }
}
