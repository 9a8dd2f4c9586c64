//! Everything in one SQLite file: the default store.
//!
//! One thread owns the connection that writes. It takes what waits, writes it as one transaction
//! and answers when the commit is on the disk, so many appends share one fsync. Readers have
//! connections of their own, see what is committed and never wait for the writer. A lock beside
//! the file keeps a second server away: whoever holds it is the only writer there is.
//!
//! The file must be on a local disk: SQLite's write-ahead log does not work over a network.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use crate::session::id::{Principal, RequestId, SessionUid};

use super::failure::Failure;
use super::{
    Appended, Batch, Changes, Clock, Error, Events, Kind, Opened, Query, Recorded, Row, Shared,
    Store, Stored,
};

mod apply;
mod error;
mod list;
mod lock;
mod mover;
mod pool;
mod private;
mod read;
mod schema;
#[cfg(test)]
mod tests;
mod writer;

pub use error::OpenError;

use lock::Lock;
use pool::Pool;
use writer::Writer;

/// A store in a file.
///
/// Dropping it waits until the group at work is committed, moves the write-ahead log into the file
/// and releases the lock.
pub struct Sqlite {
    clock: Clock,
    path: PathBuf,
    readers: Arc<Pool>,
    writer: Writer,
    failure: Arc<Failure>,
}

impl Sqlite {
    /// Opens the file, or makes it and the directories above it. Blocks, for milliseconds.
    pub fn open(path: impl AsRef<Path>, clock: Clock) -> Result<Self, OpenError> {
        let path = schema::place(path.as_ref())?;
        let lock = Arc::new(Lock::take(&path)?);
        let failure = Arc::new(Failure::new());
        let conn = schema::open_writer(&path)?;
        let readers = Arc::new(Pool::open(&path, Arc::clone(&lock))?);
        let writer = Writer::start(&path, conn, clock.clone(), Arc::clone(&failure), lock)?;
        Ok(Self { clock, path, readers, writer, failure })
    }

    /// The file, its links followed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Groups of appends committed since it was opened, each with one fsync.
    pub fn commits(&self) -> u64 {
        self.writer.commits()
    }
}

impl Drop for Sqlite {
    /// Readers first: whoever closes last moves the write-ahead log, and that is the writer's part.
    fn drop(&mut self) {
        self.readers.close();
        self.writer.close();
    }
}

/// Reads of so many rows at most are made where the caller is.
const GLANCE_ROWS: usize = 64;

#[async_trait]
impl Store for Sqlite {
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn exclusive(&self) -> bool {
        true
    }

    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        batch.check()?;
        self.writer.append(batch).await
    }

    async fn open(&self, uid: &SessionUid) -> Result<Option<Opened>, Error> {
        let uid = uid.clone();
        self.readers.read(move |conn| read::open(conn, &uid)).await
    }

    async fn read(&self, uid: &SessionUid, after: u64, limit: usize) -> Result<Vec<Row>, Error> {
        if limit <= GLANCE_ROWS {
            return self.readers.glance(|conn| read::rows(conn, uid, after, limit)).await;
        }
        let uid = uid.clone();
        self.readers.read(move |conn| read::rows(conn, &uid, after, limit)).await
    }

    async fn events(
        &self,
        uid: &SessionUid,
        which: Events,
        limit: usize,
    ) -> Result<Vec<Row>, Error> {
        if limit <= GLANCE_ROWS {
            return self.readers.glance(|conn| read::events(conn, uid, which, limit)).await;
        }
        let uid = uid.clone();
        self.readers.read(move |conn| read::events(conn, &uid, which, limit)).await
    }

    async fn entry(&self, kind: Kind, id: &str) -> Result<Option<Stored>, Error> {
        self.readers.glance(|conn| list::entry(conn, kind, id)).await
    }

    async fn list(&self, query: Query) -> Result<(Vec<Stored>, u64), Error> {
        // Before the page is read: what is committed meanwhile may be in it, or comes later.
        let feed = self.writer.feed();
        let found = self.readers.read(move |conn| list::list(conn, &query)).await?;
        Ok((found, feed))
    }

    async fn count(&self, query: Query) -> Result<u64, Error> {
        self.readers.read(move |conn| list::count(conn, &query)).await
    }

    async fn due(&self, kind: Kind, now: u64, limit: usize) -> Result<Vec<Stored>, Error> {
        self.readers.read(move |conn| list::due(conn, kind, now, limit)).await
    }

    async fn changes(&self, kind: Kind, after: u64, limit: usize) -> Result<Changes, Error> {
        let feed = self.writer.feed();
        self.readers.read(move |conn| list::changes(conn, kind, after, feed, limit)).await
    }

    async fn shared(&self, scopes: &[String]) -> Result<Shared, Error> {
        let scopes = scopes.to_vec();
        self.readers.read(move |conn| read::shared(conn, scopes)).await
    }

    async fn request(
        &self,
        principal: &Principal,
        method: &str,
        id: &RequestId,
    ) -> Result<Option<Recorded>, Error> {
        self.readers.glance(|conn| read::request(conn, principal, method, id)).await
    }

    async fn sweep(&self, before: u64) -> Result<bool, Error> {
        self.writer.sweep(before).await
    }

    async fn failed(&self) -> String {
        self.failure.wait().await
    }
}
