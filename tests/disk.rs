//! The SQLite store on a disk that fails, and in a process that is killed.
//!
//! A program of its own, since it puts a layer between SQLite and every file of the process. The
//! layer does what the real one does until a test says how writes to the log shall go wrong.

#![expect(unsafe_code, reason = "SQLite's file layer is a table of C functions")]

use std::ffi::{c_char, c_int, c_void};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

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
static REAL: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(ptr::null_mut());
static METHODS: AtomicPtr<ffi::sqlite3_io_methods> = AtomicPtr::new(ptr::null_mut());

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
    guard
}

/// Opens a file as ever; a write-ahead log gets our functions.
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
        code
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
            1 => assert_eq!(answer, Appended::Done { feed: 2 }),
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
