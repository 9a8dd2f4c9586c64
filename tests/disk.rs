//! The SQLite store on a disk that fails, and in a process that is killed.
//!
//! And a whole server on such a disk: what its clients are told, when it stops, and what is there
//! after a restart.
//!
//! A program of its own, since it puts a layer between SQLite and every file of the process. The
//! layer does what the real one does until a test says how writes to the log shall go wrong.

#![expect(unsafe_code, reason = "SQLite's file layer is a table of C functions")]

use std::ffi::{c_char, c_int, c_void};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Once};

use countersign::app::{self, Builder};
use countersign::client::{Client, message, refusal};
use countersign::proto::v1::{self as pb};
use countersign::session::id::SessionUid;
use countersign::store::sqlite::Sqlite;
use countersign::store::{Appended, Batch, Clock, Error, Row, Store};
use rusqlite::ffi;
use tempfile::TempDir;
use tokio::sync::{Mutex, MutexGuard};

/// What a sync of the write-ahead log answers instead of doing it; 0: it is done.
static SYNC: AtomicI32 = AtomicI32::new(0);
/// What a write of the write-ahead log answers instead of doing it; 0: it is done.
static WRITE: AtomicI32 = AtomicI32::new(0);
/// What a sync of the database itself answers, which only checkpoints do; 0: it is done.
static CHECKPOINT: AtomicI32 = AtomicI32::new(0);
/// How many of those failed.
static FAILED: AtomicI32 = AtomicI32::new(0);
static REAL: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(ptr::null_mut());
static METHODS: AtomicPtr<ffi::sqlite3_io_methods> = AtomicPtr::new(ptr::null_mut());
static OF_DATABASE: AtomicPtr<ffi::sqlite3_io_methods> = AtomicPtr::new(ptr::null_mut());

/// Puts the layer there, and keeps other tests of this program from it meanwhile.
async fn faulty_disk() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::const_new(());
    static LAYER: Once = Once::new();
    let guard = ONE.lock().await;
    // SAFETY: the default layer lives as long as the process, and so does the leaked copy of it.
    LAYER.call_once(|| unsafe {
        let real = ffi::sqlite3_vfs_find(ptr::null());
        assert!(!real.is_null());
        REAL.store(real, Ordering::SeqCst);
        let layer = Box::leak(Box::new(*real));
        layer.zName = c"faulty".as_ptr();
        layer.xOpen = Some(open);
        assert_eq!(ffi::sqlite3_vfs_register(layer, 1), ffi::SQLITE_OK);
    });
    SYNC.store(0, Ordering::SeqCst);
    WRITE.store(0, Ordering::SeqCst);
    CHECKPOINT.store(0, Ordering::SeqCst);
    FAILED.store(0, Ordering::SeqCst);
    guard
}

/// Opens a file as ever; a write-ahead log gets our functions, and a database one of them.
unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let real = REAL.load(Ordering::SeqCst);
    // SAFETY: the arguments are SQLite's own, for the layer that would have got them.
    unsafe {
        let code = (*real).xOpen.unwrap()(real, name, file, flags, out);
        if code == ffi::SQLITE_OK && flags & ffi::SQLITE_OPEN_WAL != 0 {
            let methods = (*file).pMethods.cast_mut();
            METHODS.store(methods, Ordering::SeqCst);
            let mut ours = *methods;
            ours.xSync = Some(sync);
            ours.xWrite = Some(write);
            (*file).pMethods = Box::leak(Box::new(ours));
        }
        if code == ffi::SQLITE_OK && flags & ffi::SQLITE_OPEN_MAIN_DB != 0 {
            let methods = (*file).pMethods.cast_mut();
            OF_DATABASE.store(methods, Ordering::SeqCst);
            let mut ours = *methods;
            ours.xSync = Some(sync_database);
            (*file).pMethods = Box::leak(Box::new(ours));
        }
        code
    }
}

unsafe extern "C" fn sync_database(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    match CHECKPOINT.load(Ordering::SeqCst) {
        // SAFETY: as in `open`; all databases of this process have the same functions.
        0 => unsafe { (*OF_DATABASE.load(Ordering::SeqCst)).xSync.unwrap()(file, flags) },
        code => {
            FAILED.fetch_add(1, Ordering::SeqCst);
            code
        }
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    match SYNC.load(Ordering::SeqCst) {
        // SAFETY: as in `open`; all logs of this process have the same functions.
        0 => unsafe { (*METHODS.load(Ordering::SeqCst)).xSync.unwrap()(file, flags) },
        code => code,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    count: c_int,
    at: i64,
) -> c_int {
    match WRITE.load(Ordering::SeqCst) {
        // SAFETY: as in `sync`.
        0 => unsafe { (*METHODS.load(Ordering::SeqCst)).xWrite.unwrap()(file, bytes, count, at) },
        code => code,
    }
}

fn uid(name: &str) -> SessionUid {
    SessionUid::parse(name).unwrap()
}

/// One record at a head; its batch is known by log and head.
fn batch(name: &str, expected: u64) -> Batch {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&expected.to_be_bytes());
    let row = Row { position: expected + 1, sequence: 0, bytes: vec![7; 1024] };
    Batch {
        id,
        uid: uid(name),
        expected,
        rows: vec![row],
        entries: Vec::new(),
        snapshot: None,
        shared: Vec::new(),
        request: None,
        delete: false,
    }
}

fn store(directory: &Path) -> Sqlite {
    Sqlite::open(directory.join("store.db"), Clock::system()).unwrap()
}

async fn head(store: &Sqlite) -> u64 {
    Store::open(store, &uid("a")).await.unwrap().map_or(0, |opened| opened.head)
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_written_until_a_restart() {
    let _disk = faulty_disk().await;
    for fault in [(&SYNC, ffi::SQLITE_IOERR_FSYNC), (&WRITE, ffi::SQLITE_IOERR_WRITE)] {
        let directory = TempDir::new().unwrap();
        let broken = store(directory.path());
        assert_eq!(broken.append(batch("a", 0)).await.unwrap(), Appended::Done { feed: 1 });
        fault.0.store(fault.1, Ordering::SeqCst);
        let answer = broken.append(batch("a", 1)).await;
        assert!(matches!(answer, Err(Error::Unknown(_))), "{answer:?}");
        assert!(broken.failed().await.starts_with("a commit failed: "));
        // The disk is well again, but who knows what it has forgotten.
        fault.0.store(0, Ordering::SeqCst);
        for next in [batch("a", 1), batch("b", 0)] {
            let answer = broken.append(next).await;
            assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
        }
        assert!(matches!(broken.sweep(0).await, Err(Error::Unavailable(_))));
        assert_eq!(head(&broken).await, 1);
        drop(broken);
        let restarted = store(directory.path());
        let before = head(&restarted).await;
        let answer = restarted.append(batch("a", 1)).await.unwrap();
        match before {
            // Numbers of groups that were set aside and not used are passed over.
            1 => assert!(matches!(answer, Appended::Done { feed } if feed > 1), "{answer:?}"),
            2 => assert_eq!(answer, Appended::Repeated),
            other => panic!("a head of {other}"),
        }
        assert_eq!(head(&restarted).await, 2);
    }
}

#[tokio::test]
async fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let _disk = faulty_disk().await;
    let directory = TempDir::new().unwrap();
    let full = store(directory.path());
    full.append(batch("a", 0)).await.unwrap();
    // What fits into the cache is written by the commit; what does not, by a statement.
    let mut large = batch("a", 1);
    large.rows[0].bytes = vec![7; 32 << 20];
    for refused in [batch("a", 1), large] {
        WRITE.store(ffi::SQLITE_FULL, Ordering::SeqCst);
        let answer = full.append(refused).await;
        assert!(matches!(answer, Err(Error::Unavailable(_))), "{answer:?}");
        assert_eq!(head(&full).await, 1);
        WRITE.store(0, Ordering::SeqCst);
    }
    assert_eq!(full.append(batch("a", 1)).await.unwrap(), Appended::Done { feed: 2 });
    drop(full);
    assert_eq!(head(&store(directory.path())).await, 2);
}

#[tokio::test]
async fn a_failed_checkpoint_loses_nothing() {
    let _disk = faulty_disk().await;
    let directory = TempDir::new().unwrap();
    let broken = store(directory.path());
    CHECKPOINT.store(ffi::SQLITE_IOERR_FSYNC, Ordering::SeqCst);
    let mut head_now = 0;
    // The log is moved into the file when it has 16000 pages of 4 KiB.
    while FAILED.load(Ordering::SeqCst) == 0 {
        let mut large = batch("a", head_now);
        large.rows[0].bytes = vec![7; 16 << 20];
        let answer = broken.append(large).await;
        assert!(matches!(answer, Ok(Appended::Done { .. })), "the commit counts: {answer:?}");
        head_now += 1;
        assert!(head_now < 16, "there was no checkpoint");
    }
    // It goes on, from the log, and so does whoever opens the file later.
    assert!(matches!(broken.append(batch("b", 0)).await, Ok(Appended::Done { .. })));
    assert_eq!(head(&broken).await, head_now);
    drop(broken);
    assert!(FAILED.load(Ordering::SeqCst) > 1, "closing makes one too");
    for fault in [ffi::SQLITE_IOERR_FSYNC, 0] {
        CHECKPOINT.store(fault, Ordering::SeqCst);
        let again = store(directory.path());
        assert_eq!(head(&again).await, head_now);
        assert!(Store::open(&again, &uid("b")).await.unwrap().is_some());
        let rows = again.read(&uid("a"), head_now - 1, 1).await.unwrap();
        assert_eq!(rows[0].bytes.len(), 16 << 20);
    }
}

const DESK: &str = "
name: desk
model: scripted
script:
  - when: always
    say: Hello.
";

/// A server on the file in this directory, that stops by itself only.
async fn serve(directory: &Path) -> (Client, tokio::task::JoinHandle<Result<(), app::Error>>) {
    let store = Arc::new(store(directory));
    let server = Builder::new().agent_file("desk.yaml", DESK).store(store).build().await.unwrap();
    let listener = app::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let client = Client::new(&listener.local_addr().unwrap().to_string()).unwrap();
    (client, tokio::spawn(server.serve_on(listener, std::future::pending())))
}

/// A message with this mark, and what its stream ends with; or why it was refused.
async fn say(client: &Client, mark: &str) -> Result<pb::EndMark, String> {
    let request = pb::RunAsyncRequest {
        app_name: "desk".into(),
        user_id: "ann".into(),
        new_message: Some(message("hello")),
        request_id: mark.into(),
        ..Default::default()
    };
    let broke = |status: tonic::Status| match refusal(&status) {
        Some(refusal) => refusal.reason,
        None => format!("{status:?}"),
    };
    let mut stream = client.agents().run_async(request).await.map_err(broke)?.into_inner();
    while let Some(event) = stream.message().await.map_err(broke)? {
        if let Some(pb::event::Mark::End(end)) = event.mark {
            return Ok(end);
        }
    }
    Err("the stream ended without an end".into())
}

async fn invocations(client: &Client) -> usize {
    let request = pb::ListInvocationsRequest::default();
    client.agents().list_invocations(request).await.unwrap().into_inner().invocations.len()
}

#[tokio::test]
async fn a_server_on_a_full_disk_says_so_and_goes_on_when_there_is_room() {
    let _disk = faulty_disk().await;
    let directory = TempDir::new().unwrap();
    let (client, serving) = serve(directory.path()).await;
    say(&client, "one").await.unwrap();
    WRITE.store(ffi::SQLITE_FULL, Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(say(&client, "two").await.unwrap_err(), "STORE_UNAVAILABLE");
        assert_eq!(invocations(&client).await, 1, "reads go on");
        say(&client, "one").await.expect("what was done is told from what is there");
    }
    WRITE.store(0, Ordering::SeqCst);
    say(&client, "two").await.unwrap();
    assert_eq!(invocations(&client).await, 2);
    assert!(!serving.is_finished());
    serving.abort();
}

#[tokio::test]
async fn a_server_whose_sync_failed_stops_and_the_restart_tells_the_truth() {
    let _disk = faulty_disk().await;
    let directory = TempDir::new().unwrap();
    let (client, serving) = serve(directory.path()).await;
    say(&client, "one").await.unwrap();
    SYNC.store(ffi::SQLITE_IOERR_FSYNC, Ordering::SeqCst);
    // Nobody may say that it was not written.
    let told = say(&client, "two").await.unwrap_err();
    assert_ne!(told, "STORE_UNAVAILABLE");
    let stopped = tokio::time::timeout(std::time::Duration::from_secs(60), serving).await;
    let stopped = stopped.expect("it stops").unwrap().unwrap_err().to_string();
    assert!(stopped.starts_with("the store failed: a commit failed: "), "{stopped}");
    SYNC.store(0, Ordering::SeqCst);
    let (client, serving) = serve(directory.path()).await;
    assert!((1..=2).contains(&invocations(&client).await));
    say(&client, "one").await.unwrap();
    say(&client, "two").await.unwrap();
    assert_eq!(invocations(&client).await, 2, "the message is there once");
    serving.abort();
}

const CHILD: &str = "COUNTERSIGN_TEST_STORE";

/// Not a test by itself: the process that the next one kills. It appends and says what is done.
#[tokio::test]
async fn child() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    let store = store(Path::new(&directory));
    for expected in head(&store).await.. {
        store.append(batch("a", expected)).await.unwrap();
        println!("\ndone {}", expected + 1);
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let _disk = faulty_disk().await;
    let directory = TempDir::new().unwrap();
    let mut acknowledged = 0;
    for round in 1..=5 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while acknowledged < round * 20 {
            let line = lines.next().unwrap().unwrap();
            if let Some(position) = line.strip_prefix("done ") {
                acknowledged = position.parse::<u64>().unwrap();
            }
        }
        let file = directory.path().join("store.db");
        let refusal = Sqlite::open(&file, Clock::system()).err().unwrap().to_string();
        let holder = format!("store.db is in use by another server, process {}", child.id());
        assert!(refusal.ends_with(&holder), "{refusal}");
        child.kill().unwrap();
        child.wait().unwrap();
        let left = lines.map_while(Result::ok).filter_map(|line| {
            line.strip_prefix("done ").and_then(|position| position.parse::<u64>().ok())
        });
        acknowledged = left.last().unwrap_or(acknowledged);
        let store = store(directory.path());
        let head = head(&store).await;
        assert!(head == acknowledged || head == acknowledged + 1, "{head} of {acknowledged}");
        let again = store.append(batch("a", head - 1)).await.unwrap();
        assert_eq!(again, Appended::Repeated);
        acknowledged = head;
    }
}
