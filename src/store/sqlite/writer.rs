//! The thread that writes, and its queue: group commit.
//!
//! Whatever waits when the thread is free becomes one transaction. Each batch is checked before it
//! is written, so a refused one costs its siblings nothing. Only if SQLite cannot do a statement is
//! the group rolled back and each batch done alone, to find whose fault it was.

use std::path::Path;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::store::failure::Failure;
use crate::store::{Appended, Batch, Clock, EntryWrite, Error};

use super::error::{OpenError, Trouble};
use super::lock::Lock;
use super::mover::Mover;
use super::{apply, schema};

/// Most appends that wait; one more is `Overloaded`.
pub(super) const QUEUE: usize = 4096;

/// Most that waiting appends hold together, in KiB; one more is `Overloaded`.
const QUEUE_KIB: u32 = 64 << 10;

/// Most appends in one group.
pub(super) const GROUP: usize = 512;

/// How many numbers of groups are set aside in the file at once, so that not every group has to
/// write its own there. After a crash those that are left are passed over.
const NUMBERS: u64 = 64;

/// The queue's near end.
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    room: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Failure>,
    commits: Arc<AtomicU64>,
    feed: Arc<AtomicU64>,
}

enum Job {
    Append(Box<Waiting>),
    Sweep(u64, oneshot::Sender<Result<bool, Error>>),
}

struct Waiting {
    batch: Batch,
    reply: oneshot::Sender<Result<Appended, Error>>,
    room: OwnedSemaphorePermit,
}

impl Writer {
    pub(super) fn start(
        path: &Path,
        conn: Connection,
        clock: Clock,
        failure: Arc<Failure>,
        lock: Arc<Lock>,
    ) -> Result<Self, OpenError> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let last = schema::feed(path, &conn)?;
        let (commits, feed) = (Arc::<AtomicU64>::default(), Arc::new(AtomicU64::new(last)));
        let thread = Thread {
            conn,
            clock,
            failure: Arc::clone(&failure),
            commits: Arc::clone(&commits),
            feed: Arc::clone(&feed),
            set_aside: last,
            known: apply::Known::new(),
            mover: Some(Mover::start(path)?),
        };
        let work = move || {
            let _lock = lock;
            thread.run(queue);
        };
        let thread = thread::Builder::new().name("store".into()).spawn(work);
        let thread = thread.map_err(|source| OpenError::Thread { source })?;
        let room = Arc::new(Semaphore::new(QUEUE_KIB as usize));
        Ok(Self { jobs: Some(jobs), room, thread: Some(thread), failure, commits, feed })
    }

    /// The number of the last group: whoever begins to read now sees it and all before.
    pub(super) fn feed(&self) -> u64 {
        self.feed.load(Ordering::SeqCst)
    }

    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    pub(super) async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        let room = Arc::clone(&self.room).try_acquire_many_owned(weight(&batch));
        let room = room.map_err(|_| Error::Overloaded)?;
        let (reply, answer) = oneshot::channel();
        self.send(Job::Append(Box::new(Waiting { batch, reply, room })))?;
        answer.await.unwrap_or_else(|_| Err(Error::Unknown("the writer has ended".into())))
    }

    pub(super) async fn sweep(&self, before: u64) -> Result<bool, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Sweep(before, reply))?;
        answer.await.unwrap_or_else(|_| Err(Error::Unknown("the writer has ended".into())))
    }

    fn send(&self, job: Job) -> Result<(), Error> {
        if let Some(what) = self.failure.get() {
            return Err(Error::Unavailable(what));
        }
        let closed = || Error::Unavailable("the store is closed".into());
        self.jobs.as_ref().ok_or_else(closed)?.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::Overloaded,
            mpsc::error::TrySendError::Closed(_) => closed(),
        })
    }

    /// Waits until what was taken in is done and the connection is closed.
    pub(super) fn close(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been told already, as a failure.
            let _ = thread.join();
        }
    }
}

/// What a batch holds while it waits, in KiB; never more than there is, or it could not be let in.
fn weight(batch: &Batch) -> u32 {
    let rows = batch.rows.iter().map(|row| row.bytes.len());
    let entries = batch.entries.iter().filter_map(EntryWrite::entry).map(|e| e.bytes.len());
    let shared = batch.shared.iter().filter_map(|write| write.value.as_ref()).map(Vec::len);
    let outcome = batch.request.as_ref().map(|request| &request.outcome);
    let rest = batch.snapshot.iter().chain(outcome).map(Vec::len);
    let bytes: usize = rows.chain(entries).chain(shared).chain(rest).sum();
    u32::try_from(bytes / 1024 + 1).unwrap_or(QUEUE_KIB).min(QUEUE_KIB)
}

/// The queue's far end.
struct Thread {
    conn: Connection,
    clock: Clock,
    failure: Arc<Failure>,
    commits: Arc<AtomicU64>,
    /// The number of the last group.
    feed: Arc<AtomicU64>,
    /// The last number that was set aside in the file.
    set_aside: u64,
    known: apply::Known,
    mover: Option<Mover>,
}

/// Where a transaction ended that did not commit.
enum Stop {
    /// It was not begun, since the store has failed before.
    Failed(String),
    /// It could not be begun.
    Begin(Trouble),
    /// It was rolled back.
    Work(Trouble),
    /// The commit itself did not succeed.
    Commit(rusqlite::Error),
}

impl Drop for Thread {
    fn drop(&mut self) {
        if thread::panicking() {
            self.failure.set("the writer panicked".into());
        }
    }
}

impl Thread {
    fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        let mut group = Vec::with_capacity(GROUP);
        while let Some(first) = queue.blocking_recv() {
            let mut next = Some(first);
            while let Some(job) = next {
                match job {
                    Job::Append(waiting) => group.push(*waiting),
                    Job::Sweep(before, reply) => {
                        let _ = reply.send(self.sweep(before));
                    }
                }
                next = if group.len() < GROUP { queue.try_recv().ok() } else { None };
            }
            self.append(&mut group);
        }
        self.give_back();
        // Whoever closes last moves the rest of the log, and that is the writer's part.
        self.mover = None;
    }

    /// The numbers that were set aside and are not used are given back.
    fn give_back(&mut self) {
        let last = self.feed.load(Ordering::SeqCst);
        if last < self.set_aside
            && let Err(stop) = self.transact(|conn, _| Ok((apply::set_aside(conn, last)?, true)))
        {
            // They are passed over then.
            let error = self.error(stop);
            tracing::debug!(%error, "numbers of groups were not given back");
        }
    }

    /// Writes what waits and answers. Who does not wait any more does not mind.
    fn append(&mut self, group: &mut Vec<Waiting>) {
        let (mut batches, mut replies, mut rooms) = (Vec::new(), Vec::new(), Vec::new());
        for Waiting { batch, reply, room } in group.drain(..) {
            batches.push(batch);
            replies.push(reply);
            rooms.push(room);
        }
        let answers = self.group(&batches);
        drop(rooms);
        for (reply, answer) in replies.into_iter().zip(answers) {
            let _ = reply.send(answer);
        }
    }

    fn group(&mut self, batches: &[Batch]) -> Vec<Result<Appended, Error>> {
        let now = self.clock.now();
        let feed = self.feed.load(Ordering::SeqCst) + 1;
        let set_aside = if feed > self.set_aside { feed + NUMBERS - 1 } else { self.set_aside };
        let more = set_aside > self.set_aside;
        let done = self.transact(|conn, known| {
            let append = |batch| apply::append(conn, known, batch, feed, now);
            let answers = batches.iter().map(append).collect::<Result<Vec<_>, Trouble>>()?;
            let wrote = answers.iter().any(|answer| matches!(answer, Appended::Done { .. }));
            if wrote && more {
                apply::set_aside(conn, set_aside)?;
            }
            Ok((answers, wrote))
        });
        match done {
            Ok((answers, wrote)) => {
                if wrote {
                    self.set_aside = set_aside;
                    self.feed.store(feed, Ordering::SeqCst);
                    self.mover.iter_mut().for_each(Mover::wrote);
                }
                self.commits.fetch_add(u64::from(wrote), Ordering::SeqCst);
                answers.into_iter().map(Ok).collect()
            }
            Err(Stop::Work(trouble)) if batches.len() > 1 && !trouble.is_io() => {
                batches.iter().flat_map(|batch| self.group(slice::from_ref(batch))).collect()
            }
            Err(stop) => vec![Err(self.error(stop)); batches.len()],
        }
    }

    fn sweep(&mut self, before: u64) -> Result<bool, Error> {
        let done = self.transact(|conn, _| Ok((apply::sweep(conn, before)?, true)));
        done.map(|(more, _)| more).map_err(|stop| self.error(stop))
    }

    /// Runs work that says whether it wrote, and commits if it did.
    fn transact<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut apply::Known) -> Result<(T, bool), Trouble>,
    ) -> Result<(T, bool), Stop> {
        if let Some(what) = self.failure.get() {
            return Err(Stop::Failed(what));
        }
        self.run_cached("BEGIN IMMEDIATE").map_err(|error| Stop::Begin(error.into()))?;
        let end = match work(&self.conn, &mut self.known) {
            Ok((done, true)) => match self.run_cached("COMMIT") {
                Ok(()) => return Ok((done, true)),
                Err(error) => Err(Stop::Commit(error)),
            },
            Ok((done, false)) => Ok((done, false)),
            Err(trouble) => Err(Stop::Work(trouble)),
        };
        if end.is_err() {
            self.known.clear();
        }
        // SQLite has rolled back itself after some errors.
        if !self.conn.is_autocommit()
            && let Err(error) = self.run_cached("ROLLBACK")
        {
            self.failure.set(format!("a rollback failed: {error}"));
        }
        end
    }

    fn run_cached(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }

    /// What is said to those who wait. After an I/O error the store has failed: what SQLite and the
    /// kernel believe to be on the disk need not be there, and only a restart reads it anew.
    ///
    /// A commit that finds the disk full is no such error. Its last page, which makes it count, was
    /// not written; so it was rolled back like any other.
    fn error(&self, stop: Stop) -> Error {
        match stop {
            Stop::Failed(what) => Error::Unavailable(what),
            Stop::Begin(trouble) | Stop::Work(trouble) => {
                let io = trouble.is_io();
                let error = Error::from(trouble);
                if io {
                    self.failure.set(error.to_string());
                }
                error
            }
            Stop::Commit(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {
                Trouble::Sql(error).into()
            }
            Stop::Commit(error) => {
                let what = format!("a commit failed: {error}");
                self.failure.set(what.clone());
                Error::Unknown(what)
            }
        }
    }
}
