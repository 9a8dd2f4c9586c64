//! Connections for readers.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::Connection;
use tokio::sync::Semaphore;

use crate::store::Error;

use super::error::{OpenError, Trouble};
use super::lock::Lock;
use super::schema;

/// How many reads run at once; more wait their turn.
const READERS: usize = 4;

/// A few connections, each lent to one read at a time.
pub(super) struct Pool {
    idle: Mutex<Vec<Connection>>,
    turns: Arc<Semaphore>,
    /// A read that outlives the store still keeps others from the file.
    _lock: Arc<Lock>,
}

impl Pool {
    pub(super) fn open(path: &Path, lock: Arc<Lock>) -> Result<Self, OpenError> {
        let idle = (0..READERS).map(|_| schema::open_reader(path)).collect::<Result<_, _>>()?;
        let turns = Arc::new(Semaphore::new(READERS));
        Ok(Self { idle: Mutex::new(idle), turns, _lock: lock })
    }

    /// Runs the work on a connection, on a thread that may block. If the caller goes away, the work
    /// is done to its end, and the connection comes back all the same.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Error> {
        let closed = || Error::Unavailable("the store is closed".into());
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| closed())?;
        let conn = self.idle().pop().ok_or_else(closed)?;
        let lent = Lent { conn: Some(conn), pool: Arc::clone(self) };
        let done = tokio::task::spawn_blocking(move || {
            let result = lent.conn.as_ref().map(work);
            drop(lent);
            drop(turn);
            result
        });
        match done.await {
            Ok(result) => Ok(result.ok_or_else(closed)??),
            Err(error) => Err(Error::Unavailable(format!("a read did not end: {error}"))),
        }
    }

    /// Runs a short piece of work where the caller is: a few rows by key, which are nearly always
    /// in the page cache. Handing them to another thread would cost more than the work.
    pub(super) async fn glance<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&Connection) -> Result<T, Trouble>,
    ) -> Result<T, Error> {
        let closed = || Error::Unavailable("the store is closed".into());
        let _turn = self.turns.acquire().await.map_err(|_| closed())?;
        let conn = self.idle().pop().ok_or_else(closed)?;
        let lent = Lent { conn: Some(conn), pool: Arc::clone(self) };
        Ok(lent.conn.as_ref().map(work).ok_or_else(closed)??)
    }

    /// Closes the connections that are not lent; later reads find none.
    pub(super) fn close(&self) {
        self.turns.close();
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A lent connection, which goes back whatever becomes of the work.
struct Lent {
    conn: Option<Connection>,
    pool: Arc<Pool>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.pool.idle().push(conn);
        }
    }
}
