//! Moves the write-ahead log into the file, beside the writer and a piece at a time. SQLite does so
//! when the log has grown long, and whoever appends then waits for all of it; of what has been
//! moved already little is left to wait for.

use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

use super::error::OpenError;
use super::schema;

/// So many groups are written between two moves.
const GROUPS: u32 = 128;

/// The thread that moves. It ends when this is dropped.
pub(super) struct Mover {
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    groups: u32,
}

impl Mover {
    pub(super) fn start(path: &Path) -> Result<Self, OpenError> {
        let conn = schema::open_reader(path)?;
        let (wake, woken) = sync_channel(1);
        let work = move || {
            while woken.recv().is_ok() {
                move_log(&conn);
            }
        };
        let thread = thread::Builder::new().name("store-log".into()).spawn(work);
        let thread = thread.map_err(|source| OpenError::Thread { source })?;
        Ok(Self { wake: Some(wake), thread: Some(thread), groups: 0 })
    }

    /// A group was written.
    pub(super) fn wrote(&mut self) {
        self.groups += 1;
        if self.groups >= GROUPS {
            self.groups = 0;
            // If it is at work still it will be told the next time.
            let _ = self.wake.as_ref().map(|wake| wake.try_send(()));
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What cannot be moved stays in the log, where it is durable, and is moved later.
fn move_log(conn: &Connection) {
    let moved = conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    if let Err(error) = moved {
        tracing::warn!(%error, "the write-ahead log could not be moved into the file");
    }
}
