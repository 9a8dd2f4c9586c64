//! `server ADDRESS FILE`: serves on the address, on a database of its own.

use std::sync::mpsc as threads;

use bare::bare_server::{Bare, BareServer};
use bare::{Event, Request};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Rows for each request, each in a commit that the next one waits for.
const ROWS: i64 = 4;

/// Messages for each row.
const MESSAGES: usize = 2;

/// Bytes of a row and of its message.
const BODY: usize = 400;

/// Most rows of one transaction.
const BATCH: usize = 256;

/// A row that waits for its commit.
struct Row {
    session: String,
    sequence: i64,
    body: Vec<u8>,
    durable: oneshot::Sender<()>,
}

struct Server {
    rows: threads::Sender<Row>,
}

#[tonic::async_trait]
impl Bare for Server {
    type RunStream = ReceiverStream<Result<Event, Status>>;

    async fn run(
        &self,
        request: tonic::Request<Request>,
    ) -> Result<Response<Self::RunStream>, Status> {
        let (events, stream) = mpsc::channel(32);
        tokio::spawn(answer(request.into_inner(), self.rows.clone(), events));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Appends and streams; ends early when the client or the writer is gone.
async fn answer(
    request: Request,
    rows: threads::Sender<Row>,
    events: mpsc::Sender<Result<Event, Status>>,
) -> Option<()> {
    let first = i64::from(request.half) * ROWS;
    for sequence in first..first + ROWS {
        let body = vec![b'x'; BODY];
        let (durable, committed) = oneshot::channel();
        let session = request.session.clone();
        rows.send(Row { session, sequence, body: body.clone(), durable }).ok()?;
        committed.await.ok()?;
        let id = "0193b6b4-0000-7000-8000-000000000000".to_owned();
        let event = Event { id, sequence, body, end: false };
        for _ in 0..MESSAGES {
            events.send(Ok(event.clone())).await.ok()?;
        }
    }
    events.send(Ok(Event { end: true, ..Default::default() })).await.ok()
}

/// Commits what is waiting, together, until nobody can send any more.
fn write(database: &rusqlite::Connection, rows: &threads::Receiver<Row>) -> rusqlite::Result<()> {
    while let Ok(first) = rows.recv() {
        let batch: Vec<Row> =
            std::iter::once(first).chain(rows.try_iter().take(BATCH - 1)).collect();
        database.execute_batch("begin immediate")?;
        let mut insert = database.prepare_cached("insert into log values (?, ?, ?)")?;
        for row in &batch {
            insert.execute((&row.session, row.sequence, &row.body))?;
        }
        database.execute_batch("commit")?;
        for row in batch {
            let _ = row.durable.send(());
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, file] = arguments.as_slice() else {
        return Err("usage: server ADDRESS FILE".into());
    };
    let database = rusqlite::Connection::open(file)?;
    database.execute_batch(
        "pragma journal_mode = wal;
         pragma synchronous = full;
         create table if not exists log
             (session text, sequence int, body blob, primary key (session, sequence))
             without rowid;",
    )?;
    let (rows, waiting) = threads::channel();
    std::thread::spawn(move || {
        if let Err(error) = write(&database, &waiting) {
            eprintln!("bare: {error}");
        }
    });
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .add_service(BareServer::new(Server { rows }))
        .serve(address.parse()?)
        .await?;
    Ok(())
}
