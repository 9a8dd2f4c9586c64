//! What is live in this process: who is woken when a log grows, and the newest records of the logs
//! that somebody follows. Hints and a cache, never the truth: whoever is woken reads the log.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{lock, signal};
use crate::session::content::{Content, Event, Part, Role};
use crate::session::id::SessionUid;
use crate::session::record::Record;

/// How many of a followed log's newest records are kept in memory.
const TAIL_RECORDS: usize = 64;

/// How much of a text that a model is speaking is shown piece by piece, in bytes. No reply may be
/// longer.
const SPEECH_BYTES: usize = 4 * 1024 * 1024;

/// How many bytes of them, as they are stored.
const TAIL_BYTES: usize = 256 * 1024;

/// A record of a log.
#[derive(Debug, Clone)]
pub struct Placed {
    /// Where it stands.
    pub position: u64,
    /// The record.
    pub record: Arc<Record>,
    /// The size of its stored form.
    pub bytes: usize,
}

/// One log that somebody in this process follows.
pub struct Live {
    uid: SessionUid,
    hub: Weak<Hub>,
    tail: Mutex<Tail>,
    head: signal::Sender,
    /// What models are speaking, and what the last one said that is done.
    speeches: Mutex<Vec<Arc<Speech>>>,
    said: signal::Sender,
}

/// A text that a model is speaking. Whoever follows takes what he has not shown yet: one who is
/// slow gets longer pieces, and misses none.
pub struct Speech {
    /// The reply to come, without content.
    pub event: Event,
    text: Mutex<String>,
    done: AtomicBool,
}

impl Speech {
    /// What was said behind so many bytes; they become those that were said. None: nothing.
    pub fn after(&self, bytes: &mut usize) -> Option<Event> {
        let text = lock(&self.text);
        let piece = text.get(*bytes..).filter(|piece| !piece.is_empty())?.to_owned();
        *bytes = text.len();
        drop(text);
        let content = Content { role: Role::Model, parts: vec![Part::text(piece)] };
        Some(Event { content: Some(content), ..self.event.clone() })
    }

    /// How many bytes were said.
    pub fn bytes(&self) -> usize {
        lock(&self.text).len()
    }

    /// No more is said.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }
}

/// Speaks to whoever follows a log, until it is dropped.
pub struct Speaker {
    live: Arc<Live>,
    speech: Arc<Speech>,
}

impl Speaker {
    /// Says some more.
    pub fn say(&self, piece: &str) {
        let mut text = lock(&self.speech.text);
        if text.len() + piece.len() <= SPEECH_BYTES {
            text.push_str(piece);
        }
        drop(text);
        self.live.said.send_modify(|_| ());
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.speech.done.store(true, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Tail {
    records: VecDeque<Placed>,
    /// The size of all of them.
    bytes: usize,
    /// The log was deleted.
    gone: bool,
}

impl Tail {
    fn clear(&mut self) {
        self.records.clear();
        self.bytes = 0;
    }

    fn extend(&mut self, records: &[Placed]) {
        self.records.extend(records.iter().cloned());
        self.bytes += records.iter().map(|placed| placed.bytes).sum::<usize>();
        while self.records.len() > TAIL_RECORDS || self.bytes > TAIL_BYTES {
            let Some(oldest) = self.records.pop_front() else { return };
            self.bytes -= oldest.bytes;
        }
    }
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
            speeches: Mutex::default(),
            said: signal::Sender::default(),
        });
        live.insert(uid.clone(), Arc::downgrade(&new));
        new
    }

    /// The log may have grown without anybody knowing: memory is not trusted, and who follows it
    /// reads the store.
    pub fn lost(&self, uid: &SessionUid) {
        let there = lock(&self.live).get(uid).and_then(Weak::upgrade);
        if let Some(live) = there {
            lock(&live.tail).clear();
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
        let Some(last) = records.last().map(|placed| placed.position) else {
            lock(&self.tail).gone = true;
            self.head.send_modify(|_| ());
            return;
        };
        // Two writers may come here in another order than their records have: the later ones stand
        // in the tail already, and whoever lacks these reads the store. Tail and head change under
        // one lock.
        let mut tail = lock(&self.tail);
        if last > self.head.get() {
            let next = tail.records.back().map(|placed| placed.position + 1);
            if next.is_some_and(|next| next != records[0].position) {
                tail.clear();
            }
            tail.extend(records);
        }
        self.head.send_modify(|head| *head = last.max(*head));
    }

    /// The records after a position, if memory has them all up to the newest. None: ask the store.
    pub fn after(&self, position: u64) -> Option<Vec<Placed>> {
        let tail = lock(&self.tail);
        let first = tail.records.front()?.position;
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

    /// Begins to speak: a reply that is to come as this event.
    pub fn speak(self: &Arc<Self>, event: Event) -> Speaker {
        let (text, done) = (Mutex::default(), AtomicBool::new(false));
        let speech = Arc::new(Speech { event, text, done });
        let mut speeches = lock(&self.speeches);
        speeches.retain(|speech| !speech.is_done());
        speeches.push(speech.clone());
        Speaker { live: self.clone(), speech }
    }

    /// What models are speaking, and what the last one said that is done.
    pub fn speeches(&self) -> Vec<Arc<Speech>> {
        lock(&self.speeches).clone()
    }

    /// Changes whenever a model has said some more.
    pub fn said(&self) -> signal::Receiver {
        self.said.subscribe()
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
        positions.map(|position| Placed { position, record: record.clone(), bytes: 100 }).collect()
    }

    fn positions(tail: Option<Vec<Placed>>) -> Option<Vec<u64>> {
        tail.map(|records| records.into_iter().map(|placed| placed.position).collect())
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
    fn a_tail_is_bounded_by_its_bytes() {
        let (hub, uid) = (Arc::new(Hub::default()), SessionUid::parse("uid").unwrap());
        let live = hub.follow(&uid);
        let mut records = placed(1..=4);
        records[1].bytes = TAIL_BYTES - 150;
        hub.appended(&uid, &records, Some(1));
        assert_eq!(positions(live.after(1)), None);
        assert_eq!(positions(live.after(2)), Some(vec![3, 4]));
        records[3].bytes = TAIL_BYTES + 1;
        records[3].position = 5;
        hub.appended(&uid, &records[3..], Some(2));
        assert_eq!(positions(live.after(4)), None, "what is too large is in the store only");
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
