//! Reads of entries. Each has an index in the schema that gives its order, so a page costs a page.

use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Result as Sql, params};

use crate::store::{Changes, Entry, Kind, MAX_COUNT, MAX_ENTRIES, Query, Stored, TAGS};

use super::error::Trouble;
use super::read::{int, number, uid};

/// The columns of an entry's tags.
pub(super) const TAG_COLUMNS: [&str; TAGS] = ["tag0", "tag1", "tag2", "tag3"];

/// The columns of `stored`. Entries come first in the join, whatever SQLite thinks.
pub(super) const SELECT: &str =
    "SELECT e.id, e.state, e.due, e.ord, e.tag0, e.tag1, e.tag2, e.tag3, e.bytes,
    e.feed, e.born, e.removed IS NOT NULL, s.uid
    FROM entries AS e CROSS JOIN sessions AS s ON s.sid = e.place >> 32";

/// What follows `SELECT` for what is due.
pub(super) const DUE: &str = "WHERE e.kind = ?1 AND e.due IS NOT NULL AND e.due <= ?2
    ORDER BY e.due, e.id LIMIT ?3";

/// What follows `SELECT` for a page of changes.
pub(super) const CHANGES: &str =
    "WHERE e.kind = ?1 AND e.ord <> '' AND e.state <> '' AND e.feed > ?2
    ORDER BY e.feed, e.id LIMIT ?3";

fn stored(kind: Kind, row: &rusqlite::Row<'_>) -> Sql<Stored> {
    let due = row.get::<_, Option<i64>>(2)?.map(|_| number(row, 2)).transpose()?;
    let entry = Entry {
        kind,
        id: row.get(0)?,
        state: row.get(1)?,
        due,
        order: row.get(3)?,
        tags: [row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?],
        bytes: row.get(8)?,
    };
    let (feed, born) = (number(row, 9)?, number(row, 10)?);
    Ok(Stored { entry, uid: uid(row, 12)?, feed, born, removed: row.get(11)? })
}

fn select(conn: &Connection, kind: Kind, rest: &str, values: &[&dyn ToSql]) -> Sql<Vec<Stored>> {
    let mut statement = conn.prepare_cached(&format!("{SELECT} {rest}"))?;
    statement.query_map(values, |row| stored(kind, row))?.collect()
}

pub(super) fn entry(conn: &Connection, kind: Kind, id: &str) -> Result<Option<Stored>, Trouble> {
    let one = format!("{SELECT} WHERE e.kind = ?1 AND e.id = ?2 AND e.removed IS NULL");
    let mut statement = conn.prepare_cached(&one)?;
    Ok(statement.query_row([kind, id], |row| stored(kind, row)).optional()?)
}

pub(super) fn list(conn: &Connection, query: &Query) -> Result<Vec<Stored>, Trouble> {
    let limit = query.limit.min(MAX_ENTRIES) as i64;
    let (rest, mut values) = page(query);
    values.push(&limit);
    Ok(select(conn, query.kind, &rest, &values)?)
}

pub(super) fn count(conn: &Connection, query: &Query) -> Result<u64, Trouble> {
    let limit = query.limit.min(MAX_COUNT) as i64;
    let (rest, mut values) = page(query);
    values.push(&limit);
    let mut statement = conn.prepare_cached(&format!("{COUNT} {rest})"))?;
    Ok(statement.query_row(&values[..], |row| number(row, 0))?)
}

/// What stands before the conditions of a count, which is closed behind them. It needs the index
/// alone where nothing but one state is asked for.
pub(super) const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM entries AS e";

/// What follows `SELECT` for a query, with its values but for the last one, the limit.
///
/// One condition leads, by its index: the last tag that is not empty, which is the most selective,
/// else the only state. The rest filter: a `+` before a column keeps SQLite from another index,
/// which would have to be sorted.
pub(super) fn page(query: &Query) -> (String, Vec<&dyn ToSql>) {
    let mut sql = String::from("WHERE e.kind = ?1 AND e.removed IS NULL AND e.ord <> ''");
    let mut values: Vec<&dyn ToSql> = vec![&query.kind];
    let mut led = false;
    for (column, tag) in TAG_COLUMNS.into_iter().zip(&query.tags).rev() {
        let Some(tag) = tag else { continue };
        values.push(tag);
        let number = values.len();
        if led || tag.is_empty() {
            sql.push_str(&format!(" AND +e.{column} = ?{number}"));
        } else {
            sql.push_str(&format!(" AND e.{column} = ?{number} AND e.{column} <> ''"));
            led = true;
        }
    }
    if let [state] = &query.states[..] {
        values.push(state);
        let plus = if led { "+" } else { "" };
        let number = values.len();
        sql.push_str(&format!(" AND {plus}e.state = ?{number} AND e.state <> ''"));
    } else if !query.states.is_empty() {
        let first = values.len() + 1;
        values.extend(query.states.iter().map(|state| state as &dyn ToSql));
        let numbers = (first..=values.len()).map(|number| format!("?{number}"));
        let numbers = numbers.collect::<Vec<_>>().join(", ");
        sql.push_str(&format!(" AND +e.state IN ({numbers}) AND +e.state <> ''"));
    }
    let (than, direction) = if query.descending { ("<", "DESC") } else { (">", "ASC") };
    if let Some((order, id)) = &query.after {
        values.extend([order as &dyn ToSql, id]);
        let last = values.len();
        sql.push_str(&format!(" AND (e.ord, e.id) {than} (?{}, ?{last})", last - 1));
    }
    let limit = values.len() + 1;
    sql.push_str(&format!(" ORDER BY e.ord {direction}, e.id {direction} LIMIT ?{limit}"));
    (sql, values)
}

pub(super) fn due(
    conn: &Connection,
    kind: Kind,
    now: u64,
    limit: usize,
) -> Result<Vec<Stored>, Trouble> {
    Ok(select(conn, kind, DUE, params![kind, int(now), limit.min(MAX_ENTRIES) as i64])?)
}

/// A page of changes; `feed` is the number of a group that was committed before this is called.
pub(super) fn changes(
    conn: &Connection,
    kind: Kind,
    after: u64,
    feed: u64,
    limit: usize,
) -> Result<Changes, Trouble> {
    let moment = conn.unchecked_transaction()?;
    let limit = limit.clamp(1, MAX_ENTRIES);
    let mut entries = select(&moment, kind, CHANGES, params![kind, int(after), limit as i64 + 1])?;
    // Groups that were committed since may be in the page, and are whole then.
    let upto = |entries: &[Stored]| entries.last().map_or(feed, |last| last.feed.max(feed));
    if entries.is_empty() && after > feed {
        // A group can be seen before the writer tells its number; then whoever saw it asks from
        // there on. Otherwise the file has gone back.
        let seen = "SELECT 1 FROM entries
            WHERE kind = ?1 AND ord <> '' AND state <> '' AND feed = ?2";
        let seen = moment.prepare_cached(seen)?.exists(params![kind, int(after)])?;
        return Ok(Changes { entries, upto: if seen { after } else { feed }, more: false });
    }
    if entries.len() <= limit {
        return Ok(Changes { upto: upto(&entries), entries, more: false });
    }
    // There is more. A group's entries share a number: the page ends before the first group that
    // does not fit whole, unless it is the only one.
    let next = entries[limit].feed;
    let whole = entries.partition_point(|stored| stored.feed < next);
    if whole > 0 {
        entries.truncate(whole);
        let upto = entries[whole - 1].feed;
        return Ok(Changes { entries, upto, more: true });
    }
    let rest = "WHERE e.kind = ?1 AND e.ord <> '' AND e.state <> '' AND e.feed = ?2
        ORDER BY e.id";
    let entries = select(&moment, kind, rest, params![kind, int(next)])?;
    let later = "SELECT 1 FROM entries
        WHERE kind = ?1 AND ord <> '' AND state <> '' AND feed > ?2";
    let more = moment.prepare_cached(later)?.exists(params![kind, int(next)])?;
    let upto = if more { next } else { upto(&entries) };
    Ok(Changes { entries, upto, more })
}
