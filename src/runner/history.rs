//! The history that a driver builds its prompts from: the events of the log, kept in memory while
//! the session is driven, and read on as the log grows.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::live::{Live, Placed};
use super::prompt::Told;
use super::{Inner, quarantine, refuse_store};
use crate::session::id::SessionUid;
use crate::session::record::{Body, Record};
use crate::session::refusal::Refusal;
use crate::session::{Session, codec};
use crate::store::{Events, MAX_READ_ROWS, Row};

/// How many histories are kept while nobody drives their sessions.
pub(super) const KEPT: NonZeroUsize = NonZeroUsize::new(128).expect("some are kept");

/// A history of more bytes, as they are stored, is not kept.
const SMALL: usize = 32 * 1024;

/// What has been read of a log.
#[derive(Default)]
pub(super) struct History {
    told: Vec<Told>,
    /// The size of all that was ever read.
    bytes: usize,
    /// The position up to which it was read; none: not at all.
    upto: Option<u64>,
}

impl History {
    /// Takes a record that this process has just appended, if nothing is missing before it.
    pub fn push(&mut self, placed: &Placed) {
        if self.upto.is_some_and(|upto| upto + 1 == placed.position) {
            self.upto = Some(placed.position);
            self.bytes += placed.bytes;
            self.told.extend(told(placed.position, &placed.record));
        }
    }

    /// Keeping it costs little.
    pub fn is_small(&self) -> bool {
        self.upto.is_some() && self.bytes <= SMALL
    }

    /// Reads on to the session's head and gives what a prompt may hold: the newest `most` events
    /// (none: all), and the events whose calls were answered since.
    pub async fn upto(
        &mut self,
        inner: &Inner,
        session: &Session,
        live: &Live,
        most: Option<u32>,
    ) -> Result<Vec<Told>, Refusal> {
        let uid = &session.uid;
        let most = most.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        // What memory has of the log from its beginning needs no store.
        if self.upto.is_none()
            && let Some(most) = most
            && live.after(0).is_none()
        {
            let rows = inner.store.events(uid, Events::Last, most.min(MAX_READ_ROWS)).await;
            let rows = rows.map_err(refuse_store)?;
            self.upto = Some(rows.last().map_or(0, |row| row.position));
            self.extend(uid, rows)?;
        }
        while self.upto.unwrap_or(0) < session.head {
            let after = *self.upto.get_or_insert(0);
            if let Some(records) = live.after(after).filter(|records| !records.is_empty()) {
                records.iter().for_each(|placed| self.push(placed));
                continue;
            }
            let missing = usize::try_from(session.head - after).unwrap_or(MAX_READ_ROWS);
            let rows = inner.store.read(uid, after, missing.min(MAX_READ_ROWS)).await;
            let rows = rows.map_err(refuse_store)?;
            let Some(last) = rows.last() else { break };
            self.upto = Some(last.position);
            self.extend(uid, rows)?;
        }
        let mut history = self.told.clone();
        history.retain(|told| told.position <= session.head);
        let Some(most) = most else { return Ok(history) };
        self.told.drain(..self.told.len().saturating_sub(most));
        history.drain(..history.len().saturating_sub(most));
        let first = history.first().map_or(0, |told| told.event.sequence);
        let mut missing: Vec<u64> = session
            .calls
            .values()
            .filter(|call| call.sequence < first && call.told_at > 0)
            .map(|call| call.sequence)
            .collect();
        missing.sort_unstable();
        missing.dedup();
        for (at, sequence) in missing.into_iter().enumerate() {
            let rows = inner.store.events(uid, Events::After(sequence - 1), 1).await;
            for row in rows.map_err(refuse_store)? {
                history.splice(at..at, read(uid, &row)?);
            }
        }
        Ok(history)
    }

    fn extend(&mut self, uid: &SessionUid, rows: Vec<Row>) -> Result<(), Refusal> {
        for row in rows.iter().filter(|row| row.sequence > 0) {
            self.bytes += row.bytes.len();
            self.told.extend(read(uid, row)?);
        }
        Ok(())
    }
}

fn read(uid: &SessionUid, row: &Row) -> Result<Option<Told>, Refusal> {
    let record = codec::decode_record(&row.bytes).map_err(|wrong| quarantine(uid, &wrong))?;
    Ok(told(row.position, &record))
}

fn told(position: u64, record: &Record) -> Option<Told> {
    let seen = match &record.body {
        Body::Replied { seen, event, .. } if event.error_code.is_empty() => Some(*seen),
        _ => None,
    };
    record.body.event().map(|event| Told { event: Arc::new(event.clone()), position, seen })
}
