//! Following a log: the one way to see what happens, for RunAsync, watchers and whoever else. A
//! follower holds a position and reads the log from there; that the log grew is only a hint. Pieces
//! of texts are live and may be missed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::live::{Live, Placed, Speech};
use super::run::{Started, gone};
use super::{Inner, Runner, index, quarantine, refuse_store, signal};
use crate::session::call::Call;
use crate::session::codec;
use crate::session::content::Event;
use crate::session::id::{CallId, EventId, InvocationId, SessionKey, SessionUid};
use crate::session::record::{Body, Ending, Record};
use crate::session::refusal::{Reason, Refusal};
use crate::store;

/// How many records one read of a follower takes from the store, and the first one.
const READ_RECORDS: usize = 256;
const FIRST_READ: usize = 32;

/// How many bytes of records a follower holds of a read, whose client may not read on; one record
/// at least.
const READ_BYTES: usize = 1 << 20;

/// What a follower sees.
#[derive(Debug, Clone)]
pub enum Item {
    /// An event of the conversation, in order, each once.
    Event(Arc<Record>),
    /// A piece of a text that a model is speaking.
    Piece(Box<Event>),
    /// The log has been read to its end; told once.
    CaughtUp,
    /// The invocation that is followed waits for these calls.
    Paused(Vec<Call>),
    /// The invocation that is followed is over.
    Ended(Ending),
}

/// A follower of a session, or of one invocation in it.
pub struct Follow {
    inner: Arc<Inner>,
    uid: SessionUid,
    invocation: Option<InvocationId>,
    position: u64,
    pauses_after: u64,
    last_sequence: u64,
    /// Events up to this sequence are not shown.
    seen: u64,
    /// This event is not shown either.
    own: Option<EventId>,
    caught_up: bool,
    buffer: VecDeque<Placed>,
    /// How many records the next read takes.
    reads: usize,
    /// The reply whose whole text was seen last: pieces of it that come late are dropped.
    whole: Option<EventId>,
    live: Arc<Live>,
    grows: signal::Receiver,
    said: signal::Receiver,
    /// What is being spoken, and how many bytes of it were shown.
    heard: Vec<(Arc<Speech>, usize)>,
}

impl Runner {
    /// Follows what `run` gave.
    pub fn follow(&self, started: &Started) -> Follow {
        let Started { uid, invocation, after, sequence, pauses_after, seen, own, .. } = started;
        let followed = Some(invocation.clone());
        let mut follow = Follow::new(&self.inner, uid, followed, *after, *pauses_after);
        (follow.last_sequence, follow.seen, follow.own) = (*sequence, *seen, own.clone());
        follow
    }

    /// Follows a session from behind an event on, whole or for one invocation only.
    pub async fn watch(
        &self,
        key: &SessionKey,
        after_sequence: u64,
        invocation: Option<InvocationId>,
    ) -> Result<Follow, Refusal> {
        let inner = &self.inner;
        let uid = inner.find_session(key).await?;
        let session = inner.session_behind(&uid, after_sequence).await?;
        // The end of the invocation is told however far the cursor is behind it.
        let mut latest = u64::MAX;
        if let Some(id) = &invocation {
            if inner.invocation(id).await?.session != *key {
                let message = "there is no such invocation";
                return Err(Refusal::new(Reason::InvocationNotFound, message));
            }
            latest = inner.past(&session, id).await?;
        }
        let mut after = 0;
        if after_sequence > 0 {
            let which = store::Events::After(after_sequence - 1);
            let row = inner.store.events(&uid, which, 1).await.map_err(refuse_store)?;
            after = row.first().map_or(0, |row| row.position).min(latest);
        }
        let mut follow = Follow::new(inner, &uid, invocation, after, u64::MAX);
        (follow.last_sequence, follow.seen) = (after_sequence, after_sequence);
        Ok(follow)
    }
}

impl Follow {
    fn new(
        inner: &Arc<Inner>,
        uid: &SessionUid,
        invocation: Option<InvocationId>,
        position: u64,
        pauses_after: u64,
    ) -> Self {
        let live = inner.hub.follow(uid);
        // What is done stands in the log, or soon will. What is being spoken is shown at once.
        let (done, spoken): (Vec<_>, Vec<_>) =
            live.speeches().into_iter().partition(|speech| speech.is_done());
        let heard = done.into_iter().map(|speech| (speech.clone(), speech.bytes())).collect();
        let mut said = live.said();
        if !spoken.is_empty() {
            said.mark_changed();
        }
        Self {
            inner: inner.clone(),
            uid: uid.clone(),
            invocation,
            position,
            pauses_after,
            last_sequence: 0,
            seen: 0,
            own: None,
            caught_up: false,
            buffer: VecDeque::new(),
            reads: FIRST_READ,
            whole: None,
            grows: live.grows(),
            said,
            heard,
            live,
        }
    }

    /// The last sequence that was seen, of any invocation; the cursor to go on from.
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// The next thing that happens. It can be dropped at any await and called again: nothing is
    /// missed. A log that is deleted meanwhile is SESSION_NOT_FOUND.
    pub async fn next(&mut self) -> Result<Item, Refusal> {
        loop {
            while let Some(Placed { position, record, .. }) = self.buffer.front().cloned() {
                // What was spoken of it is shown before it.
                if let Body::Replied { event, .. } = &record.body
                    && let Some(piece) = self.piece(Some(&event.id))
                {
                    return Ok(Item::Piece(piece));
                }
                // It stays in the buffer until nothing can be dropped any more.
                let item = self.item(position, &record).await?;
                self.buffer.pop_front();
                if let Some(item) = item {
                    return Ok(item);
                }
            }
            self.grows.mark_unchanged();
            if self.fill().await? {
                continue;
            }
            if !std::mem::replace(&mut self.caught_up, true) {
                return Ok(Item::CaughtUp);
            }
            tokio::select! {
                biased;
                () = self.grows.changed() => {}
                () = self.said.changed() => {
                    if let Some(piece) = self.piece(None) {
                        return Ok(Item::Piece(piece));
                    }
                }
            }
        }
    }

    /// What was spoken and is not shown yet, of this event or of any.
    fn piece(&mut self, of: Option<&EventId>) -> Option<Box<Event>> {
        let Self { live, heard, invocation, whole, .. } = self;
        let speeches = live.speeches();
        let there = |speech: &Arc<Speech>| speeches.iter().any(|one| Arc::ptr_eq(one, speech));
        // What was told whole is over; so is what is neither spoken nor has more to show.
        heard.retain(|(speech, shown)| {
            whole.as_ref() != Some(&speech.event.id) && (there(speech) || speech.bytes() > *shown)
        });
        for speech in speeches {
            let known = heard.iter().any(|(one, _)| Arc::ptr_eq(one, &speech));
            let event = &speech.event;
            let followed = invocation.as_ref().is_none_or(|id| *id == event.invocation_id);
            if !known && followed && whole.as_ref() != Some(&event.id) {
                heard.push((speech, 0));
            }
        }
        let mut wanted =
            heard.iter_mut().filter(|(speech, _)| of.is_none_or(|id| *id == speech.event.id));
        wanted.find_map(|(speech, shown)| speech.after(shown)).map(Box::new)
    }

    /// Reads on. False: there is nothing more yet.
    async fn fill(&mut self) -> Result<bool, Refusal> {
        let exclusive = self.inner.store.exclusive();
        if let Some(records) = self.live.after(self.position)
            && (exclusive || !records.is_empty())
        {
            self.buffer.extend(records);
            return Ok(!self.buffer.is_empty());
        }
        let rows = self.inner.store.read(&self.uid, self.position, self.reads).await;
        let mut rows = rows.map_err(refuse_store)?;
        self.reads = fit(&mut rows);
        for row in &rows {
            let record =
                codec::decode_record(&row.bytes).map_err(|wrong| quarantine(&self.uid, &wrong))?;
            let (position, bytes) = (row.position, row.bytes.len());
            self.buffer.push_back(Placed { position, record: Arc::new(record), bytes });
        }
        // Whoever is shown a record may act on it: memory must not be behind him.
        if let Some(last) = rows.last() {
            self.inner.session_from(&self.uid, last.position).await?;
        }
        // No log is empty: one that has nothing to read may be gone.
        if rows.is_empty() {
            let there = self.inner.session_from(&self.uid, self.position).await?;
            if there.is_none_or(|session| session.head < self.position) {
                // What was appended right before it was deleted may have come meanwhile.
                self.buffer.extend(self.live.after(self.position).unwrap_or_default());
                return if self.buffer.is_empty() { Err(gone()) } else { Ok(true) };
            }
        }
        Ok(!rows.is_empty())
    }

    async fn item(&mut self, position: u64, record: &Arc<Record>) -> Result<Option<Item>, Refusal> {
        self.position = position;
        if let Some(event) = record.body.event() {
            self.last_sequence = event.sequence.max(self.last_sequence);
            if event.sequence <= self.seen || self.own.as_ref() == Some(&event.id) {
                return Ok(None);
            }
            if self.invocation.as_ref().is_some_and(|id| id != &event.invocation_id) {
                return Ok(None);
            }
            if matches!(record.body, Body::Replied { .. }) {
                self.whole = Some(event.id.clone());
            }
            return Ok(Some(Item::Event(record.clone())));
        }
        let Some(followed) = &self.invocation else { return Ok(None) };
        match &record.body {
            Body::Paused { invocation, held }
                if invocation == followed && position > self.pauses_after =>
            {
                let held = held.clone();
                let held = self.held(&held, position).await?;
                Ok(Some(Item::Paused(held)))
            }
            Body::Ended { invocation, how } if invocation == followed => {
                Ok(Some(Item::Ended(how.clone())))
            }
            _ => Ok(None),
        }
    }

    /// The calls of the pause at a position, whole, as they are now.
    async fn held(&self, ids: &[CallId], position: u64) -> Result<Vec<Call>, Refusal> {
        let session = self.inner.session_from(&self.uid, position).await?.ok_or_else(gone)?;
        let mut held = Vec::with_capacity(ids.len());
        for id in ids {
            match session.calls.get(id) {
                Some(call) => held.push(call.clone()),
                None => held.extend(self.inner.call(id).await?.map(|(_, call)| call)),
            }
        }
        Ok(held)
    }
}

/// Takes from a read what a follower may hold, and tells how many records the next one takes: twice
/// as many as fitted.
fn fit(rows: &mut Vec<store::Row>) -> usize {
    if rows.is_empty() {
        return FIRST_READ;
    }
    let mut bytes = 0;
    let fitting = rows.iter().take_while(|row| {
        bytes += row.bytes.len();
        bytes <= READ_BYTES
    });
    let fitting = fitting.count().max(1);
    rows.truncate(fitting);
    (2 * fitting).min(READ_RECORDS)
}

impl Inner {
    /// An invocation, open or over.
    pub(crate) async fn invocation(
        &self,
        id: &InvocationId,
    ) -> Result<index::InvocationView, Refusal> {
        let stored =
            self.store.entry(index::INVOCATION, id.as_str()).await.map_err(refuse_store)?;
        let stored = stored.ok_or_else(|| {
            Refusal::new(Reason::InvocationNotFound, "there is no such invocation")
                .with("invocation_id", id)
        })?;
        index::read(&stored.entry.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many records of this size are read: how many are held, and how many are read next.
    fn read(records: usize, bytes: usize) -> (usize, usize) {
        let row = store::Row { position: 1, sequence: 1, bytes: vec![0; bytes] };
        let mut rows = vec![row; records];
        let next = fit(&mut rows);
        (rows.len(), next)
    }

    #[test]
    fn a_follower_holds_so_many_bytes_and_no_more() {
        assert_eq!(read(FIRST_READ, 100), (32, 64));
        assert_eq!(read(READ_RECORDS, 100), (256, 256));
        assert_eq!(read(FIRST_READ, READ_BYTES / 4), (4, 8));
        assert_eq!(read(FIRST_READ, 2 * READ_BYTES), (1, 2), "one at least");
        assert_eq!(read(0, 0), (0, FIRST_READ), "the log has not grown");
    }
}
