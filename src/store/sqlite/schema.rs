//! The file: where it is, what is in it, how connections to it are set up.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::error::OpenError;
use super::private;
use super::read::number;

/// Marks a file as ours: `Cnts`, in SQLite's `application_id`.
const APPLICATION: i64 = 0x436e_7473;

/// How long a connection waits for another program's lock, such as a backup's.
const BUSY: Duration = Duration::from_secs(5);

/// How many pages of the write-ahead log are moved into the file at once, of 4 KiB each.
const CHECKPOINT_PAGES: i64 = 16_000;

/// What a write-ahead log is cut to when it was moved, in bytes.
const LOG_BYTES: i64 = 128 << 20;

/// The page cache of the connection that writes, in KiB; negative because SQLite wants it so.
const WRITER_CACHE: i64 = -16_384;

/// Statements that a connection keeps prepared.
const STATEMENTS: usize = 128;

/// What makes each version of the schema of the one before. They are never changed, only added to;
/// SQLite's `user_version` counts those that were done.
const STEPS: [&str; 3] = [
    "
CREATE TABLE meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    feed INTEGER NOT NULL
) STRICT;
INSERT INTO meta VALUES (1, 0);

-- `sequence` is that of the last event, `bare` the id of the last batch without records.
-- The row of a deleted session stays, so that nothing is ever appended under its uid.
CREATE TABLE sessions (
    sid INTEGER PRIMARY KEY,
    uid TEXT NOT NULL UNIQUE,
    head INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    bare BLOB,
    deleted INTEGER NOT NULL DEFAULT 0
) STRICT;

-- `batch` is the id of the batch that begins here.
CREATE TABLE records (
    sid INTEGER NOT NULL,
    position INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    batch BLOB,
    bytes BLOB NOT NULL,
    PRIMARY KEY (sid, position)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX records_events ON records (sid, sequence) WHERE sequence > 0;

CREATE TABLE snapshots (
    sid INTEGER PRIMARY KEY,
    position INTEGER NOT NULL,
    bytes BLOB NOT NULL
) STRICT;

-- `removed` is when it was; such a row is a tombstone, without a due time and bytes.
CREATE TABLE entries (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    due INTEGER,
    ord TEXT NOT NULL,
    tag0 TEXT NOT NULL,
    tag1 TEXT NOT NULL,
    tag2 TEXT NOT NULL,
    sid INTEGER NOT NULL,
    feed INTEGER NOT NULL,
    born INTEGER NOT NULL,
    removed INTEGER,
    bytes BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_feed ON entries (kind, feed, id);
CREATE INDEX entries_due ON entries (kind, due, id) WHERE due IS NOT NULL;
CREATE INDEX entries_order ON entries (kind, ord, id) WHERE removed IS NULL;
CREATE INDEX entries_state ON entries (kind, state, ord, id) WHERE removed IS NULL;
CREATE INDEX entries_tag0 ON entries (kind, tag0, ord, id) WHERE removed IS NULL AND tag0 <> '';
CREATE INDEX entries_tag1 ON entries (kind, tag1, ord, id) WHERE removed IS NULL AND tag1 <> '';
CREATE INDEX entries_tag2 ON entries (kind, tag2, ord, id) WHERE removed IS NULL AND tag2 <> '';
CREATE INDEX entries_sid ON entries (sid) WHERE removed IS NULL;
CREATE INDEX entries_removed ON entries (removed) WHERE removed IS NOT NULL;

CREATE TABLE shared (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE requests (
    principal TEXT NOT NULL,
    method TEXT NOT NULL,
    id TEXT NOT NULL,
    digest TEXT NOT NULL,
    outcome BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (principal, method, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX requests_at ON requests (at);
",
    "
-- A page holds much more of a table with row ids before it needs others for what is left over.
--
-- `place` is sid * 2^32 + position. `sequence` of a record that is no event is that of the last
-- event before it, negative (0: none); so its amount never falls, and events are found by halving.
CREATE TABLE new_records (
    place INTEGER PRIMARY KEY,
    sequence INTEGER NOT NULL,
    batch BLOB,
    bytes BLOB NOT NULL
) STRICT;
INSERT INTO new_records
    SELECT sid * 4294967296 + position,
        CASE WHEN sequence > 0 THEN sequence ELSE -max(sequence) OVER (
            PARTITION BY sid ORDER BY position ROWS UNBOUNDED PRECEDING) END,
        batch, bytes
    FROM records ORDER BY sid, position;
DROP TABLE records;
ALTER TABLE new_records RENAME TO records;

-- The last record of a log tells its head.
ALTER TABLE sessions DROP COLUMN head;
ALTER TABLE sessions DROP COLUMN sequence;

-- `place` is sid * 2^32 + a number of the session's own. What has no order stands in no list and no
-- feed, and what has no state in no feed: they cost no row in their indexes.
CREATE TABLE new_entries (
    place INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    state TEXT NOT NULL,
    due INTEGER,
    ord TEXT NOT NULL,
    tag0 TEXT NOT NULL,
    tag1 TEXT NOT NULL,
    tag2 TEXT NOT NULL,
    feed INTEGER NOT NULL,
    born INTEGER NOT NULL,
    removed INTEGER,
    bytes BLOB NOT NULL
) STRICT;
INSERT INTO new_entries
    SELECT sid * 4294967296 + row_number() OVER (PARTITION BY sid ORDER BY born, kind, id),
        kind, id, state, due, iif(kind = 'call', '', ord), tag0, tag1,
        iif(kind = 'session', '', tag2), feed, born, removed, bytes
    FROM entries;
DROP TABLE entries;
ALTER TABLE new_entries RENAME TO entries;
CREATE UNIQUE INDEX entries_id ON entries (kind, id);
CREATE INDEX entries_feed ON entries (kind, feed, id) WHERE ord <> '' AND state <> '';
CREATE INDEX entries_due ON entries (kind, due, id) WHERE due IS NOT NULL;
CREATE INDEX entries_order ON entries (kind, ord, id) WHERE removed IS NULL AND ord <> '';
CREATE INDEX entries_state ON entries (kind, state, ord, id)
    WHERE removed IS NULL AND ord <> '' AND state <> '';
CREATE INDEX entries_tag0 ON entries (kind, tag0, ord, id)
    WHERE removed IS NULL AND ord <> '' AND tag0 <> '';
CREATE INDEX entries_tag1 ON entries (kind, tag1, ord, id)
    WHERE removed IS NULL AND ord <> '' AND tag1 <> '';
CREATE INDEX entries_tag2 ON entries (kind, tag2, ord, id)
    WHERE removed IS NULL AND ord <> '' AND tag2 <> '';
CREATE INDEX entries_removed ON entries (removed) WHERE removed IS NOT NULL;

-- From here on `feed` of `meta` is a number that no group has had while the store is open, and the
-- last group's when it was closed.
",
    "
-- A fourth tag. What has none costs no row in its index, as before.
ALTER TABLE entries ADD COLUMN tag3 TEXT NOT NULL DEFAULT '';
CREATE INDEX entries_tag3 ON entries (kind, tag3, ord, id)
    WHERE removed IS NULL AND ord <> '' AND tag3 <> '';

-- With `removed`, which is NULL in all of it, what a state has is counted in the index alone.
DROP INDEX entries_state;
CREATE INDEX entries_state ON entries (kind, state, ord, id, removed)
    WHERE removed IS NULL AND ord <> '' AND state <> '';
",
];

/// Makes the directories above the file and follows links, so that one file has one name and
/// with it one lock.
pub(super) fn place(path: &Path) -> Result<PathBuf, OpenError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            OpenError::ReadOnly { path: parent.into() }
        }
        _ => OpenError::Path { path: parent.into(), source },
    };
    private::directories(parent).map_err(failed)?;
    let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::IsADirectory.into()))?;
    let path = match path.canonicalize() {
        Ok(path) => path,
        Err(_) => parent.canonicalize().map_err(failed)?.join(name),
    };
    // The superuser may write what is marked as read-only, and would; so it is looked at here.
    let directory = path.parent().unwrap_or(parent);
    for path in [directory, &path] {
        if fs::metadata(path).is_ok_and(|data| data.permissions().readonly()) {
            return Err(OpenError::ReadOnly { path: path.into() });
        }
    }
    Ok(path)
}

/// The connection that writes. Makes or renews the schema.
pub(super) fn open_writer(path: &Path) -> Result<Connection, OpenError> {
    // SQLite would make it for everybody; the log and its index get the mode of the file. If it is
    // there, or cannot be made, it is SQLite that tells.
    drop(private::options().create_new(true).open(path));
    let mut conn =
        connect(path, OpenFlags::SQLITE_OPEN_CREATE).map_err(|error| refusal(path, error))?;
    let (application, version) = marks(&conn).map_err(|error| refusal(path, error))?;
    let known = STEPS.len() as i64;
    if application != APPLICATION {
        let tables = "SELECT count(*) FROM sqlite_schema";
        let tables: i64 =
            conn.query_row(tables, [], |row| row.get(0)).map_err(|error| refusal(path, error))?;
        if application != 0 || version != 0 || tables != 0 {
            return Err(OpenError::Foreign { path: path.into() });
        }
    }
    if version > known {
        return Err(OpenError::Newer { path: path.into(), found: version, known });
    }
    if conn.is_readonly("main").map_err(|error| refusal(path, error))? {
        return Err(OpenError::ReadOnly { path: path.into() });
    }
    if !prepare(&mut conn, version).map_err(|error| refusal(path, error))? {
        return Err(OpenError::NoLog { path: path.into() });
    }
    Ok(conn)
}

/// The number from which on none was given to a group of commits.
pub(super) fn feed(path: &Path, conn: &Connection) -> Result<u64, OpenError> {
    conn.query_row("SELECT feed FROM meta", [], |row| number(row, 0))
        .map_err(|error| refusal(path, error))
}

/// A connection that only reads. It is opened for writing all the same, as the write-ahead log's
/// index wants to be written by readers too.
pub(super) fn open_reader(path: &Path) -> Result<Connection, OpenError> {
    let open = || {
        let conn = connect(path, OpenFlags::empty())?;
        conn.pragma_update(None, "query_only", true)?;
        Ok(conn)
    };
    open().map_err(|error| refusal(path, error))
}

fn connect(path: &Path, more: OpenFlags) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | more;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(BUSY)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    // Plans do not depend on bound values: a statement is prepared once, not at each use.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(conn)
}

/// Whose file it is, and the version of its schema.
fn marks(conn: &Connection) -> rusqlite::Result<(i64, i64)> {
    let application = conn.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok((application, version))
}

/// Durability first: a commit returns when its fsync has. False: there can be no write-ahead log.
fn prepare(conn: &mut Connection, version: i64) -> rusqlite::Result<bool> {
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        return Ok(false);
    }
    conn.pragma_update(None, "synchronous", "full")?;
    conn.pragma_update(None, "fullfsync", true)?;
    conn.pragma_update(None, "checkpoint_fullfsync", true)?;
    conn.pragma_update(None, "cache_size", WRITER_CACHE)?;
    let number = |name, value: i64| {
        conn.pragma_update_and_check(None, name, value, |row| row.get::<_, i64>(0)).map(drop)
    };
    number("wal_autocheckpoint", CHECKPOINT_PAGES)?;
    number("journal_size_limit", LOG_BYTES)?;
    let done = usize::try_from(version).unwrap_or(0).min(STEPS.len());
    if done < STEPS.len() {
        let change = conn.transaction()?;
        for step in &STEPS[done..] {
            change.execute_batch(step)?;
        }
        change.pragma_update(None, "application_id", APPLICATION)?;
        change.pragma_update(None, "user_version", STEPS.len() as i64)?;
        change.commit()?;
    }
    Ok(true)
}

fn refusal(path: &Path, source: rusqlite::Error) -> OpenError {
    let path = path.into();
    match source.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotADatabase { path },
        Some(ErrorCode::ReadOnly) => OpenError::ReadOnly { path },
        _ => OpenError::Sqlite { path, source },
    }
}
