//! Appends to the store, without a server: one log a writer, 1 KiB a record, each waits for the
//! disk. Beside them bare SQLite with the same grouping: one row, nothing else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::{Failure, Measured, Report, machine};
use crate::session::id::SessionUid;
use crate::store::sqlite::Sqlite;
use crate::store::{Appended, Batch, Clock, Row, Store};

const RECORD_BYTES: usize = 1024;

pub(super) async fn measure(report: &Report, time: Duration) -> Result<(), Failure> {
    for writers in [1_u32, 64] {
        let directory = std::env::temp_dir().join(format!("bench-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&directory)?;
        let measured = one(report, &directory, writers, time).await;
        std::fs::remove_dir_all(&directory)?;
        measured?;
    }
    Ok(())
}

async fn one(
    report: &Report,
    directory: &std::path::Path,
    writers: u32,
    time: Duration,
) -> Result<(), Failure> {
    let fsyncs = machine::fsyncs_per_second(directory)?;
    let bare = bare(&directory.join("bare.db"), writers, time).await?;
    let store = Arc::new(Sqlite::open(directory.join("store.db"), Clock::system())?);
    let (since, mut tasks) = (Instant::now(), tokio::task::JoinSet::new());
    for writer in 0..writers {
        tasks.spawn(append(store.clone(), writer, since + time));
    }
    let mut appends = 0_u64;
    while let Some(count) = tasks.join_next().await {
        appends += count??;
    }
    let rate = appends as f64 / since.elapsed().as_secs_f64();
    report.tell(
        &Measured::new("appends_per_second", rate, "1/s")
            .with("writers", writers)
            .beside("fsyncs_per_second", fsyncs)
            .beside("bare_group_commit_per_second", bare)
            .beside("of_bare", rate / bare),
    )
}

async fn append(store: Arc<Sqlite>, writer: u32, until: Instant) -> Result<u64, Failure> {
    let uid = SessionUid::parse(format!("log-{writer}"))?;
    let mut head = 0;
    while Instant::now() < until {
        let row = Row { position: head + 1, sequence: head + 1, bytes: vec![7; RECORD_BYTES] };
        let batch = Batch {
            id: uuid::Uuid::new_v4().into_bytes(),
            uid: uid.clone(),
            expected: head,
            rows: vec![row],
            entries: Vec::new(),
            snapshot: None,
            shared: Vec::new(),
            request: None,
            delete: false,
        };
        match store.append(batch).await? {
            Appended::Done { .. } => head += 1,
            other => return Err(format!("an append gave {other:?}").into()),
        }
    }
    Ok(head)
}

/// The same by SQLite alone: a thread that commits whatever waits.
async fn bare(path: &std::path::Path, writers: u32, time: Duration) -> Result<f64, Failure> {
    let connection = rusqlite::Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(
        "CREATE TABLE log (sid INTEGER, idx INTEGER, payload BLOB, PRIMARY KEY (sid, idx)) \
         WITHOUT ROWID",
    )?;
    let (send, waiting) = std::sync::mpsc::channel::<(u32, u64, oneshot::Sender<()>)>();
    let thread = std::thread::spawn(move || -> Result<(), rusqlite::Error> {
        while let Ok(first) = waiting.recv() {
            let group: Vec<_> =
                std::iter::once(first).chain(waiting.try_iter().take(511)).collect();
            connection.execute_batch("BEGIN IMMEDIATE")?;
            let mut insert = connection.prepare_cached("INSERT INTO log VALUES (?1, ?2, ?3)")?;
            for (sid, idx, _) in &group {
                insert.execute((sid, *idx as i64, [7_u8; RECORD_BYTES]))?;
            }
            drop(insert);
            connection.execute_batch("COMMIT")?;
            for (_, _, done) in group {
                let _ = done.send(());
            }
        }
        Ok(())
    });
    let (since, mut tasks) = (Instant::now(), tokio::task::JoinSet::new());
    for writer in 0..writers {
        let send = send.clone();
        tasks.spawn(async move {
            let mut count = 0;
            while since.elapsed() < time {
                let (done, wait) = oneshot::channel();
                send.send((writer, count, done))?;
                wait.await?;
                count += 1;
            }
            Ok::<_, Failure>(count)
        });
    }
    drop(send);
    let mut appends = 0;
    while let Some(count) = tasks.join_next().await {
        appends += count??;
    }
    let rate = appends as f64 / since.elapsed().as_secs_f64();
    thread.join().map_err(|_| "the bare writer failed")??;
    Ok(rate)
}
