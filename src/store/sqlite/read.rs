//! Reads of logs, shared values and requests, and how columns become values.

use std::collections::BTreeMap;

use rusqlite::types::Type;
use rusqlite::{Connection, Error as SqlError, OptionalExtension, Result as Sql, params};

use crate::session::id::{Principal, RequestId, SessionUid};
use crate::store::{Error, Events, MAX_READ_ROWS, Opened, Recorded, Row, Shared};

use super::error::Trouble;

/// A number for SQLite, which knows signed ones only. Batches are checked to fit; a larger bound of
/// a read means the same as the largest.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from SQLite.
pub(super) fn number(row: &rusqlite::Row<'_>, column: usize) -> Sql<u64> {
    let value: i64 = row.get(column)?;
    u64::try_from(value).map_err(|_| SqlError::IntegralValueOutOfRange(column, value))
}

/// A session's uid from SQLite.
pub(super) fn uid(row: &rusqlite::Row<'_>, column: usize) -> Sql<SessionUid> {
    let invalid = |error| SqlError::FromSqlConversionFailure(column, Type::Text, Box::new(error));
    SessionUid::parse(row.get::<_, String>(column)?).map_err(invalid)
}

/// Where the row with a number stands that is a session's own: a record by its position, or an
/// entry. A number beyond all others stands at the end of the session's places.
pub(super) fn place(sid: i64, number: u64) -> i64 {
    sid.saturating_mul(PLACES).saturating_add(int(number).min(PLACES - 1))
}

/// How many places a session has in a table.
pub(super) const PLACES: i64 = 1 << 32;

fn record(row: &rusqlite::Row<'_>) -> Sql<Row> {
    let (position, sequence) = (number(row, 0)? % PLACES as u64, row.get::<_, i64>(1)?);
    // Negative: no event.
    Ok(Row { position, sequence: u64::try_from(sequence).unwrap_or(0), bytes: row.get(2)? })
}

fn limit(limit: usize) -> i64 {
    limit.min(MAX_READ_ROWS) as i64
}

/// The session's key.
fn live(conn: &Connection, uid: &SessionUid) -> Sql<Option<i64>> {
    let sql = "SELECT sid FROM sessions WHERE uid = ?1 AND deleted = 0";
    let mut statement = conn.prepare_cached(sql)?;
    statement.query_row([uid.as_str()], |row| row.get(0)).optional()
}

/// Position and sequence of the last record and the last event of a log; 0 if there is none.
pub(super) fn last(conn: &Connection, sid: i64) -> Sql<(u64, u64)> {
    let sql = "SELECT place, abs(sequence) FROM records
        WHERE place > ?1 AND place <= ?2 ORDER BY place DESC LIMIT 1";
    let mut statement = conn.prepare_cached(sql)?;
    let last = statement.query_row([place(sid, 0), place(sid, u64::MAX)], |row| {
        Ok((number(row, 0)? % PLACES as u64, number(row, 1)?))
    });
    Ok(last.optional()?.unwrap_or_default())
}

pub(super) fn open(conn: &Connection, uid: &SessionUid) -> Result<Option<Opened>, Trouble> {
    let moment = conn.unchecked_transaction()?;
    let Some(sid) = live(&moment, uid)? else { return Ok(None) };
    let (head, _) = last(&moment, sid)?;
    let sql = "SELECT position, bytes FROM snapshots WHERE sid = ?1";
    let mut statement = moment.prepare_cached(sql)?;
    let found = statement.query_row([sid], |row| Ok((number(row, 0)?, row.get(1)?)));
    let snapshot: Option<(u64, Vec<u8>)> = found.optional()?;
    let after = snapshot.as_ref().map_or(0, |(position, _)| *position);
    let rows = records(&moment, sid, after, MAX_READ_ROWS)?;
    let whole = usize::try_from(head.saturating_sub(after)).unwrap_or(usize::MAX);
    if after > head || rows.len() != whole.min(MAX_READ_ROWS) {
        return Err(Error::Corrupt(format!("the log of {uid} does not reach its head")).into());
    }
    Ok(Some(Opened { head, snapshot, rows }))
}

pub(super) fn rows(
    conn: &Connection,
    uid: &SessionUid,
    after: u64,
    limit: usize,
) -> Result<Vec<Row>, Trouble> {
    let moment = conn.unchecked_transaction()?;
    match live(&moment, uid)? {
        Some(sid) => records(&moment, sid, after, limit),
        None => Ok(Vec::new()),
    }
}

fn records(conn: &Connection, sid: i64, after: u64, most: usize) -> Result<Vec<Row>, Trouble> {
    let sql = "SELECT place, sequence, bytes FROM records
        WHERE place > ?1 AND place <= ?2 ORDER BY place LIMIT ?3";
    let mut statement = conn.prepare_cached(sql)?;
    let places = params![place(sid, after), place(sid, u64::MAX), limit(most)];
    let found = statement.query_map(places, record)?;
    let rows = found.collect::<Sql<Vec<_>>>()?;
    let holes = rows.iter().zip(after.saturating_add(1)..).any(|(row, at)| row.position != at);
    if holes {
        return Err(Error::Corrupt(format!("a log has a hole after {after}")).into());
    }
    Ok(rows)
}

pub(super) fn events(
    conn: &Connection,
    uid: &SessionUid,
    which: Events,
    most: usize,
) -> Result<Vec<Row>, Trouble> {
    let moment = conn.unchecked_transaction()?;
    let Some(sid) = live(&moment, uid)? else { return Ok(Vec::new()) };
    let (after, sql) = match which {
        Events::After(sequence) => (
            told(&moment, sid, sequence)?,
            "SELECT place, sequence, bytes FROM records
            WHERE place > ?1 AND place <= ?2 AND sequence > 0 ORDER BY place LIMIT ?3",
        ),
        Events::Last => (
            0,
            "SELECT place, sequence, bytes FROM records
            WHERE place > ?1 AND place <= ?2 AND sequence > 0 ORDER BY place DESC LIMIT ?3",
        ),
    };
    let mut statement = moment.prepare_cached(sql)?;
    let places = params![place(sid, after), place(sid, u64::MAX), limit(most)];
    let found = statement.query_map(places, record)?;
    let mut rows = found.collect::<Sql<Vec<_>>>()?;
    if which == Events::Last {
        rows.reverse();
    }
    Ok(rows)
}

/// The last position up to which no event has a later sequence.
fn told(conn: &Connection, sid: i64, sequence: u64) -> Result<u64, Trouble> {
    let (head, _) = last(conn, sid)?;
    let sql = "SELECT abs(sequence) FROM records WHERE place = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    // An event's position is never less than its sequence.
    let (mut from, mut to) = (sequence.min(head), head);
    while from < to {
        let middle = from + (to - from).div_ceil(2);
        let there = statement.query_row([place(sid, middle)], |row| number(row, 0)).optional()?;
        let there = there.ok_or_else(|| Error::Corrupt(format!("a log lacks {middle}")))?;
        if there > sequence {
            to = middle - 1;
        } else {
            from = middle;
        }
    }
    Ok(from)
}

pub(super) fn shared(conn: &Connection, scopes: Vec<String>) -> Result<Shared, Trouble> {
    let moment = conn.unchecked_transaction()?;
    let sql = "SELECT key, value FROM shared WHERE scope = ?1";
    let mut statement = moment.prepare_cached(sql)?;
    let mut shared = Shared::new();
    for scope in scopes {
        let found = statement.query_map([&scope], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let values = found.collect::<Sql<BTreeMap<_, _>>>()?;
        if !values.is_empty() {
            shared.insert(scope, values);
        }
    }
    Ok(shared)
}

pub(super) fn request(
    conn: &Connection,
    principal: &Principal,
    method: &str,
    id: &RequestId,
) -> Result<Option<Recorded>, Trouble> {
    let sql = "SELECT digest, outcome FROM requests
        WHERE principal = ?1 AND method = ?2 AND id = ?3";
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_row([principal.as_str(), method, id.as_str()], |row| {
        Ok(Recorded { digest: row.get(0)?, outcome: row.get(1)? })
    });
    Ok(found.optional()?)
}
