//! One batch, inside a transaction: first whether it is refused, then its writes.

use std::num::NonZeroUsize;

use lru::LruCache;
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension, Result as Sql, params};

use crate::session::id::SessionUid;
use crate::store::{Appended, Batch, Entry, EntryWrite, Kind, MAX_SWEEP, SharedWrite, TAGS};

use super::error::Trouble;
use super::list::TAG_COLUMNS;
use super::read::{PLACES, int, last, number, place};

/// Sets numbers of groups aside, up to this one.
pub(super) fn set_aside(conn: &Connection, feed: u64) -> Sql<()> {
    conn.prepare_cached("UPDATE meta SET feed = ?1")?.execute([int(feed)]).map(drop)
}

/// The sessions that were written last, as the file has them: nobody but the writer changes it. To
/// be emptied when a transaction is rolled back.
pub(super) struct Known(LruCache<SessionUid, Session>);

impl Known {
    /// How many are known.
    const SESSIONS: NonZeroUsize = NonZeroUsize::new(4096).expect("some are known");

    pub(super) fn new() -> Self {
        Self(LruCache::new(Self::SESSIONS))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The session as it is; none: it was never begun.
    fn session(&mut self, conn: &Connection, uid: &SessionUid) -> Sql<Option<Session>> {
        match self.0.get(uid) {
            Some(session) => Ok(Some(session.clone())),
            None => session(conn, uid.as_str()),
        }
    }
}

/// Writes the batch unless it is refused. After an error the transaction must be rolled back.
pub(super) fn append(
    conn: &Connection,
    known: &mut Known,
    batch: &Batch,
    feed: u64,
    now: u64,
) -> Result<Appended, Trouble> {
    let session = known.session(conn, &batch.uid)?;
    if let Some(refusal) = refusal(conn, batch, session.as_ref())? {
        return Ok(refusal);
    }
    let mut session = advance(conn, batch, session)?;
    let mut write = Write { conn, session: &mut session, feed, now };
    if let Some(snapshot) = &batch.snapshot {
        let last = batch.expected + batch.rows.len() as u64;
        let sql = "INSERT OR REPLACE INTO snapshots (sid, position, bytes) VALUES (?1, ?2, ?3)";
        conn.prepare_cached(sql)?.execute(params![write.session.sid, int(last), snapshot])?;
    }
    for entry in &batch.entries {
        match entry {
            EntryWrite::Create(entry) | EntryWrite::Put(entry) => write.put(entry)?,
            EntryWrite::Remove { kind, id } => write.remove(kind, id)?,
        }
    }
    for shared in &batch.shared {
        share(conn, shared)?;
    }
    if let Some(r) = &batch.request {
        let sql = "INSERT INTO requests (principal, method, id, digest, outcome, at)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let (principal, id) = (r.principal.as_str(), r.id.as_str());
        let values = params![principal, r.method, id, r.digest, r.outcome, int(now)];
        conn.prepare_cached(sql)?.execute(values)?;
    }
    if batch.delete {
        write.delete()?;
    }
    known.0.put(batch.uid.clone(), session);
    Ok(Appended::Done { feed })
}

#[derive(Clone)]
struct Session {
    sid: i64,
    head: u64,
    sequence: u64,
    bare: Option<[u8; 16]>,
    deleted: bool,
    /// The place of its last entry.
    last_entry: i64,
}

fn session(conn: &Connection, uid: &str) -> Sql<Option<Session>> {
    let sql = "SELECT sid, bare, deleted FROM sessions WHERE uid = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let session = statement.query_row([uid], |row| {
        let (sid, bare, deleted) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (head, sequence) = last(conn, sid)?;
        let sql = "SELECT max(place) FROM entries WHERE place > ?1 AND place <= ?2";
        let places = [place(sid, 0), place(sid, u64::MAX)];
        let last: Option<i64> = conn.prepare_cached(sql)?.query_row(places, |row| row.get(0))?;
        let last_entry = last.unwrap_or(places[0]);
        Ok(Session { sid, head, sequence, bare, deleted, last_entry })
    });
    session.optional()
}

/// Why the batch is not written, if it is not.
fn refusal(
    conn: &Connection,
    batch: &Batch,
    session: Option<&Session>,
) -> Result<Option<Appended>, Trouble> {
    if let Some(session) = session
        && repeated(conn, batch, session)?
    {
        return Ok(Some(Appended::Repeated));
    }
    if let Some(r) = &batch.request {
        let seen = super::read::request(conn, &r.principal, &r.method, &r.id)?;
        if let Some(recorded) = seen {
            return Ok(Some(Appended::RequestSeen(recorded)));
        }
    }
    let head = session.map_or(0, |session| session.head);
    if head != batch.expected || session.is_some_and(|session| session.deleted) {
        return Ok(Some(Appended::Conflict { head }));
    }
    batch.check_events(session.map_or(0, |session| session.sequence))?;
    Ok(existing(conn, batch)?)
}

fn repeated(conn: &Connection, batch: &Batch, session: &Session) -> Sql<bool> {
    if batch.rows.is_empty() {
        return Ok(session.bare == Some(batch.id));
    }
    if session.head <= batch.expected {
        return Ok(false);
    }
    let sql = "SELECT batch FROM records WHERE place = ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let first = [place(session.sid, batch.expected + 1)];
    let id: Option<Option<Vec<u8>>> = statement.query_row(first, |row| row.get(0)).optional()?;
    Ok(id.flatten().as_deref() == Some(&batch.id))
}

/// The first entry to be created that is there already, by the batch's own writes or before.
fn existing(conn: &Connection, batch: &Batch) -> Sql<Option<Appended>> {
    for (at, write) in batch.entries.iter().enumerate() {
        let EntryWrite::Create(Entry { kind, id, .. }) = write else { continue };
        let before = batch.entries[..at].iter().rev().find(|write| write.names(kind, id));
        let there = match before {
            Some(write) => write.entry().is_some(),
            None => {
                let sql = "SELECT 1 FROM entries WHERE kind = ?1 AND id = ?2 AND removed IS NULL";
                conn.prepare_cached(sql)?.exists([kind, id.as_str()])?
            }
        };
        if there {
            return Ok(Some(Appended::Exists { kind, id: id.clone() }));
        }
    }
    Ok(None)
}

/// Begins the log if there is none, and writes the records.
fn advance(conn: &Connection, batch: &Batch, session: Option<Session>) -> Sql<Session> {
    let bare = batch.rows.is_empty().then_some(batch.id);
    let mut session = match session {
        Some(mut session) => {
            if bare.is_some() {
                let sql = "UPDATE sessions SET bare = ?2 WHERE sid = ?1";
                conn.prepare_cached(sql)?.execute(params![session.sid, bare])?;
                session.bare = bare;
            }
            session
        }
        None => {
            let sql = "INSERT INTO sessions (uid, bare) VALUES (?1, ?2)";
            let sid = conn.prepare_cached(sql)?.insert(params![batch.uid.as_str(), bare])?;
            let last_entry = place(sid, 0);
            Session { sid, head: 0, sequence: 0, bare, deleted: false, last_entry }
        }
    };
    let sql = "INSERT INTO records (place, sequence, batch, bytes) VALUES (?1, ?2, ?3, ?4)";
    let mut insert = conn.prepare_cached(sql)?;
    for (at, row) in batch.rows.iter().enumerate() {
        let id = (at == 0).then_some(&batch.id[..]);
        session.head = row.position;
        session.sequence = session.sequence.max(row.sequence);
        let last = int(session.sequence);
        let sequence = if row.sequence > 0 { last } else { -last };
        insert.execute(params![place(session.sid, row.position), sequence, id, row.bytes])?;
    }
    Ok(session)
}

fn share(conn: &Connection, write: &SharedWrite) -> Sql<()> {
    let SharedWrite { scope, key, value } = write;
    match value {
        Some(value) => {
            let sql = "INSERT OR REPLACE INTO shared (scope, key, value) VALUES (?1, ?2, ?3)";
            conn.prepare_cached(sql)?.execute(params![scope, key, value])?;
        }
        None => {
            let sql = "DELETE FROM shared WHERE scope = ?1 AND key = ?2";
            conn.prepare_cached(sql)?.execute([scope, key])?;
        }
    }
    Ok(())
}

/// What all writes of entries of one batch have in common.
struct Write<'a> {
    conn: &'a Connection,
    session: &'a mut Session,
    feed: u64,
    now: u64,
}

/// Where an entry is, and what its indexes are made of.
struct Keys {
    place: i64,
    state: String,
    due: Option<i64>,
    ord: String,
    tags: [String; TAGS],
    born: u64,
    removed: Option<i64>,
}

impl Write<'_> {
    fn put(&mut self, entry: &Entry) -> Sql<()> {
        match self.keys(entry.kind, &entry.id)? {
            Some(before) if self.owns(&before) => self.update(entry, &before),
            Some(before) => {
                // It moves to the places of the session that wrote it last.
                self.drop(&before)?;
                let born = if before.removed.is_some() { self.feed } else { before.born };
                self.insert(entry, born, None)
            }
            None => self.insert(entry, self.feed, None),
        }
    }

    fn owns(&self, keys: &Keys) -> bool {
        keys.place / PLACES == self.session.sid
    }

    fn keys(&self, kind: Kind, id: &str) -> Sql<Option<Keys>> {
        let sql = "SELECT place, state, due, ord, tag0, tag1, tag2, tag3, born, removed
            FROM entries
            WHERE kind = ?1 AND id = ?2";
        let mut statement = self.conn.prepare_cached(sql)?;
        let keys = statement.query_row([kind, id], |row| {
            let tags = [row.get(4)?, row.get(5)?, row.get(6)?, row.get(7)?];
            let (place, state, due, ord) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            let (born, removed) = (number(row, 8)?, row.get(9)?);
            Ok(Keys { place, state, due, ord, tags, born, removed })
        });
        keys.optional()
    }

    fn insert(&mut self, entry: &Entry, born: u64, removed: Option<u64>) -> Sql<()> {
        self.session.last_entry += 1;
        let place = self.session.last_entry;
        let sql = "INSERT INTO entries
            (place, kind, id, state, due, ord, tag0, tag1, tag2, tag3, feed, born, removed, bytes)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)";
        let Entry { kind, id, state, due, order, tags, bytes } = entry;
        let [tag0, tag1, tag2, tag3] = tags;
        let (due, feed, born) = (due.map(int), int(self.feed), int(born));
        let removed = removed.map(int);
        let values = params![
            place, kind, id, state, due, order, tag0, tag1, tag2, tag3, feed, born, removed, bytes
        ];
        self.conn.prepare_cached(sql)?.execute(values).map(drop)
    }

    fn drop(&self, keys: &Keys) -> Sql<()> {
        let sql = "DELETE FROM entries WHERE place = ?1";
        self.conn.prepare_cached(sql)?.execute([keys.place]).map(drop)
    }

    /// Sets only what changes: SQLite rewrites every index whose columns are set, even to the same.
    fn update(&self, entry: &Entry, before: &Keys) -> Sql<()> {
        let (feed, due) = (int(self.feed), entry.due.map(int));
        let mut sql = String::from("UPDATE entries SET feed = ?1, bytes = ?2");
        let mut values: Vec<&dyn ToSql> = vec![&feed, &entry.bytes];
        let mut set = |column: &str, changed: bool, value| {
            if changed {
                values.push(value);
                sql.push_str(&format!(", {column} = ?{}", values.len()));
            }
        };
        set("state", before.state != entry.state, &entry.state);
        set("due", before.due != due, &due);
        set("ord", before.ord != entry.order, &entry.order);
        let tags = TAG_COLUMNS.into_iter().zip(&before.tags).zip(&entry.tags);
        for ((column, before), tag) in tags {
            set(column, before != tag, tag);
        }
        set("born", before.removed.is_some(), &feed);
        set("removed", before.removed.is_some(), &None::<i64>);
        values.push(&before.place);
        sql.push_str(&format!(" WHERE place = ?{}", values.len()));
        self.conn.prepare_cached(&sql)?.execute(&values[..]).map(drop)
    }

    fn remove(&mut self, kind: Kind, id: &str) -> Sql<()> {
        let Some(before) = self.keys(kind, id)?.filter(|keys| keys.removed.is_none()) else {
            return Ok(());
        };
        if self.owns(&before) {
            return self.bury(before.place, before.place);
        }
        self.drop(&before)?;
        let Keys { state, ord: order, tags, born, .. } = before;
        let (id, bytes) = (id.to_owned(), Vec::new());
        let tombstone = Entry { kind, id, state, due: None, order, tags, bytes };
        self.insert(&tombstone, born, Some(self.now))
    }

    /// Makes tombstones of the entries at these places, both included.
    fn bury(&self, from: i64, to: i64) -> Sql<()> {
        let sql = "UPDATE entries SET removed = ?1, feed = ?2, due = NULL, bytes = x''
            WHERE place BETWEEN ?3 AND ?4 AND removed IS NULL";
        let values = params![int(self.now), int(self.feed), from, to];
        self.conn.prepare_cached(sql)?.execute(values).map(drop)
    }

    fn delete(&mut self) -> Sql<()> {
        let sid = self.session.sid;
        let (from, to) = (place(sid, 0), place(sid, u64::MAX));
        let sql = "DELETE FROM records WHERE place > ?1 AND place <= ?2";
        self.conn.prepare_cached(sql)?.execute([from, to])?;
        let sql = "DELETE FROM snapshots WHERE sid = ?1";
        self.conn.prepare_cached(sql)?.execute([sid])?;
        self.bury(from, to)?;
        let sql = "UPDATE sessions SET deleted = 1 WHERE sid = ?1";
        self.conn.prepare_cached(sql)?.execute([sid])?;
        (self.session.head, self.session.sequence, self.session.deleted) = (0, 0, true);
        Ok(())
    }
}

/// Forgets some old requests and tombstones; true if there may be more.
pub(super) fn sweep(conn: &Connection, before: u64) -> Sql<bool> {
    let requests = "DELETE FROM requests WHERE (principal, method, id) IN
        (SELECT principal, method, id FROM requests WHERE at < ?1 ORDER BY at LIMIT ?2)";
    let tombstones = "DELETE FROM entries WHERE place IN (SELECT place FROM entries
        WHERE removed IS NOT NULL AND removed < ?1 ORDER BY removed LIMIT ?2)";
    let mut more = false;
    for sql in [requests, tombstones] {
        let gone = conn.prepare_cached(sql)?.execute(params![int(before), MAX_SWEEP as i64])?;
        more |= gone >= MAX_SWEEP;
    }
    Ok(more)
}
