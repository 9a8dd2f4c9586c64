//! Following a log: the one way to see what happens, for RunAsync, watchers and whoever else. A
//! follower holds a position and reads the log from there; that the log grew is only a hint. Pieces
//! of texts are live and may be missed.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::live::{Live, Placed};
use super::run::{Started, gone};
use super::{Inner, Runner, index, quarantine, refuse_store, signal};
use crate::session::call::Call;
use crate::session::codec;
use crate::session::content::Event;
use crate::session::id::{CallId, EventId, InvocationId, SessionKey, SessionUid};
use crate::session::record::{Body, Ending, Record};
use crate::session::refusal::{Reason, Refusal};
use crate::store;

/// How many records one read of a follower takes from the store.
const READ_RECORDS: usize = 256;

/// What a follower sees.
#[derive(Debug, Clone)]
pub enum Item {
    /// An event of the conversation, in order, each once.
    Event(Arc<Record>),
    /// A piece of a text that a model is speaking.
    Piece(Arc<Event>),
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
    /// The reply whose whole text was seen last: pieces of it that come late are dropped.
    whole: Option<EventId>,
    live: Arc<Live>,
    grows: signal::Receiver,
    pieces: broadcast::Receiver<Arc<Event>>,
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
            whole: None,
            grows: live.grows(),
            pieces: live.pieces(),
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
            while let Some((position, record)) = self.buffer.front().cloned() {
                if let Some(piece) = self.piece_before(&record) {
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
                piece = self.pieces.recv() => match piece {
                    Ok(piece) if self.wants(&piece) => return Ok(Item::Piece(piece)),
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    // Impossible while `live` is held; then only the log tells.
                    Err(RecvError::Closed) => {}
                },
            }
        }
    }

    /// A piece that came before the whole text that the record tells: it is shown first.
    fn piece_before(&mut self, record: &Record) -> Option<Arc<Event>> {
        let Body::Replied { event, .. } = &record.body else { return None };
        loop {
            match self.pieces.try_recv() {
                Ok(piece) if piece.id == event.id && self.wants(&piece) => return Some(piece),
                Ok(_) | Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    fn wants(&self, piece: &Event) -> bool {
        let followed = self.invocation.as_ref().is_none_or(|id| id == &piece.invocation_id);
        followed && self.whole.as_ref() != Some(&piece.id)
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
        let rows = self.inner.store.read(&self.uid, self.position, READ_RECORDS).await;
        let rows = rows.map_err(refuse_store)?;
        for row in &rows {
            let record =
                codec::decode_record(&row.bytes).map_err(|wrong| quarantine(&self.uid, &wrong))?;
            self.buffer.push_back((row.position, Arc::new(record)));
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
