//! What only this store promises: the file, the lock, groups, what is done with damage.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::Poll;

use rusqlite::Connection;
use tempfile::TempDir;

use crate::store::contract::{batch, entry, puts, query, records, row, uid};
use crate::store::{EntryWrite, TAGS};

use super::*;

struct Place {
    _directory: TempDir,
    file: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("store.db");
        Self { _directory: directory, file }
    }

    fn open(&self) -> Sqlite {
        self.try_open().unwrap()
    }

    fn try_open(&self) -> Result<Sqlite, OpenError> {
        Sqlite::open(&self.file, Clock::manual(0))
    }

    fn raw(&self) -> Connection {
        Connection::open(&self.file).unwrap()
    }
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Appended, Error>> + Send + 'a>>;

/// Asks for an append and does not wait: it is in the queue when this returns, or refused.
async fn ask(store: &Sqlite, batch: Batch) -> Result<Answer<'_>, Error> {
    let mut answer = Box::pin(Store::append(store, batch));
    match poll_fn(|cx| Poll::Ready(answer.as_mut().poll(cx))).await {
        Poll::Pending => Ok(answer),
        Poll::Ready(Ok(early)) => panic!("{early:?} while another program has the file"),
        Poll::Ready(Err(error)) => Err(error),
    }
}

async fn done(store: &Sqlite, batch: Batch) {
    assert!(matches!(store.append(batch).await, Ok(Appended::Done { .. })));
}

#[test]
fn sqlite_is_new_enough() {
    // Before 3.51.3 a checkpoint could lose committed pages when another connection began the
    // write-ahead log anew.
    assert!(rusqlite::version_number() >= 3_051_003, "{}", rusqlite::version());
}

#[test]
fn commits_are_durable_and_readers_cannot_write() {
    let place = Place::new();
    let conn = schema::open_writer(&place.file).unwrap();
    let text = |name| conn.pragma_query_value(None, name, |row| row.get::<_, String>(0)).unwrap();
    let number = |name| conn.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(text("journal_mode"), "wal");
    assert_eq!(number("synchronous"), 2);
    let reader = schema::open_reader(&place.file).unwrap();
    assert!(reader.execute_batch("UPDATE meta SET feed = 9").is_err());
}

#[tokio::test]
async fn everything_is_there_when_it_is_opened_again() {
    let place = Place::new();
    let store = place.open();
    let all = Batch {
        entries: vec![EntryWrite::Create(entry("call", "c"))],
        snapshot: Some(vec![1]),
        ..records("a", 0, 3)
    };
    done(&store, all.clone()).await;
    let opened = Store::open(&store, &uid("a")).await.unwrap();
    let listed = store.list(query("call")).await.unwrap();
    drop(store);
    let wal = place.file.with_extension("db-wal");
    assert!(!wal.exists(), "a store that was closed is one file");
    let store = place.open();
    assert_eq!(Store::open(&store, &uid("a")).await.unwrap(), opened);
    assert_eq!(store.list(query("call")).await.unwrap(), listed);
    assert_eq!(store.append(all).await.unwrap(), Appended::Repeated);
    let next = store.append(records("a", 3, 1)).await.unwrap();
    assert_eq!(next, Appended::Done { feed: listed.1 + 1 });
}

#[tokio::test]
async fn no_number_is_given_twice_after_a_crash() {
    let place = Place::new();
    let store = place.open();
    done(&store, records("a", 0, 1)).await;
    // What a crash leaves: the files as they are while the store is open.
    let copy = Place::new();
    for suffix in ["db", "db-wal"] {
        std::fs::copy(place.file.with_extension(suffix), copy.file.with_extension(suffix)).unwrap();
    }
    let Ok(Appended::Done { feed }) = store.append(records("a", 1, 1)).await else { panic!() };
    let store = copy.open();
    let Ok(Appended::Done { feed: later }) = store.append(records("a", 1, 1)).await else {
        panic!()
    };
    assert!(later > feed, "{later} after {feed}");
}

#[test]
fn a_second_server_is_refused_whatever_it_calls_the_file() {
    let place = Place::new();
    let store = place.open();
    let directory = place.file.parent().unwrap();
    let link = directory.join("link.db");
    std::os::unix::fs::symlink(&place.file, &link).unwrap();
    let name = directory.file_name().unwrap();
    for path in [place.file.clone(), link, directory.join("..").join(name).join("store.db")] {
        let error = Sqlite::open(path, Clock::system()).err().unwrap();
        let OpenError::Held { by, .. } = &error else { panic!("{error}") };
        assert_eq!(*by, Some(std::process::id()));
        let text = error.to_string();
        assert!(text.contains("store.db is in use by another server, process "), "{text}");
    }
    drop(store);
    place.open();
}

#[test]
fn what_must_not_be_written_is_refused() {
    let place = Place::new();
    drop(place.open());
    for path in [place.file.as_path(), place.file.parent().unwrap()] {
        let before = std::fs::metadata(path).unwrap().permissions();
        let mut after = before.clone();
        after.set_readonly(true);
        std::fs::set_permissions(path, after).unwrap();
        let error = place.try_open().err();
        std::fs::set_permissions(path, before).unwrap();
        assert!(matches!(error, Some(OpenError::ReadOnly { path: named }) if named == path));
    }
    place.open();
}

#[test]
fn what_is_not_ours_is_refused_and_left_alone() {
    let place = Place::new();
    let text = "This is no database. ".repeat(100);
    std::fs::write(&place.file, &text).unwrap();
    assert!(matches!(place.try_open().err(), Some(OpenError::NotADatabase { .. })));
    assert_eq!(std::fs::read_to_string(&place.file).unwrap(), text);

    let place = Place::new();
    place.raw().execute_batch("CREATE TABLE theirs (a)").unwrap();
    assert!(matches!(place.try_open().err(), Some(OpenError::Foreign { .. })));
    let mode: String =
        place.raw().pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete");

    let place = Place::new();
    drop(place.open());
    place.raw().pragma_update(None, "user_version", 99).unwrap();
    let error = place.try_open().err();
    assert!(matches!(error, Some(OpenError::Newer { found: 99, known: 3, .. })), "{error:?}");
}

#[test]
fn directories_are_made_if_they_can_be() {
    let place = Place::new();
    let deep = place.file.with_file_name("a").join("b").join("store.db");
    let store = Sqlite::open(&deep, Clock::system()).unwrap();
    assert_eq!(store.path(), deep.canonicalize().unwrap());
    let below = deep.join("store.db");
    let error = Sqlite::open(&below, Clock::system()).err();
    assert!(matches!(error, Some(OpenError::Path { path, .. }) if path == deep));
}

#[tokio::test]
async fn what_waits_is_one_commit() {
    let place = Place::new();
    let store = place.open();
    let other = place.raw();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut answers = Vec::new();
    for n in 0..100 {
        answers.push(ask(&store, records(&format!("own-{n}"), 0, 1)).await.unwrap());
    }
    answers.push(ask(&store, records("own-0", 0, 1)).await.unwrap());
    other.execute_batch("ROLLBACK").unwrap();
    let refused = answers.pop().unwrap();
    let mut feeds = Vec::new();
    for answer in answers {
        let Ok(Appended::Done { feed }) = answer.await else { panic!("not done") };
        feeds.push(feed);
    }
    // The first group is what the writer took before it had to wait; the second is the rest.
    assert!(store.commits() <= 2);
    assert_eq!(feeds.last(), Some(&store.commits()));
    assert!(feeds.is_sorted());
    assert_eq!(refused.await.unwrap(), Appended::Conflict { head: 1 });
}

#[tokio::test]
async fn the_queue_is_bounded_by_number_and_by_size() {
    let place = Place::new();
    let store = place.open();
    let other = place.raw();
    for (bytes, most) in [(0, writer::QUEUE + writer::GROUP), (1 << 20, 64)] {
        let name = format!("log-{bytes}");
        let large = Batch { snapshot: Some(vec![0; bytes]), ..batch(&name, 0) };
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut answers = Vec::new();
        let error = loop {
            match ask(&store, Batch { id: *uuid::Uuid::new_v4().as_bytes(), ..large.clone() }).await
            {
                Ok(answer) => answers.push(answer),
                Err(error) => break error,
            }
            assert!(answers.len() <= most);
        };
        assert_eq!(error, Error::Overloaded);
        other.execute_batch("ROLLBACK").unwrap();
        for answer in answers {
            assert!(matches!(answer.await, Ok(Appended::Done { .. })));
        }
        done(&store, batch(&name, 0)).await;
    }
    // One that is larger than the queue may be, alone.
    done(&store, Batch { snapshot: Some(vec![0; 65 << 20]), ..batch("large", 0) }).await;
}

#[tokio::test]
async fn a_batch_that_cannot_be_written_harms_no_sibling() {
    let place = Place::new();
    let store = place.open();
    for name in ["a", "bad", "b"] {
        done(&store, records(name, 0, 1)).await;
    }
    let other = place.raw();
    let damage = "CREATE TRIGGER damage BEFORE INSERT ON records
        WHEN NEW.place >> 32 = (SELECT sid FROM sessions WHERE uid = 'bad')
        BEGIN SELECT RAISE(ABORT, 'damaged'); END";
    other.execute_batch(damage).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut answers = Vec::new();
    for (name, count) in [("a", 2), ("bad", 2), ("b", 2)] {
        let touched = puts(name, 1, [entry("call", name)]);
        let records = records(name, 1, count);
        answers.push(ask(&store, Batch { rows: records.rows, ..touched }).await.unwrap());
    }
    other.execute_batch("ROLLBACK").unwrap();
    let [a, bad, b] = answers.try_into().ok().unwrap();
    assert!(matches!(a.await, Ok(Appended::Done { .. })));
    assert!(matches!(bad.await, Err(Error::Unavailable(_))));
    assert!(matches!(b.await, Ok(Appended::Done { .. })));
    // Nothing of it stayed.
    assert_eq!(store.entry("call", "bad").await.unwrap(), None);
    assert_eq!(store.read(&uid("b"), 1, 9).await.unwrap(), [row(2, 0), row(3, 0)]);
}

#[tokio::test]
async fn what_nobody_wrote_is_corrupt_and_the_rest_goes_on() {
    let place = Place::new();
    let store = place.open();
    for name in ["hole", "short", "far", "nameless", "good"] {
        done(
            &store,
            Batch { rows: records(name, 0, 3).rows, ..puts(name, 0, [entry(kind(name), "e")]) },
        )
        .await;
    }
    place
        .raw()
        .execute_batch(
            "DELETE FROM records WHERE place =
                (SELECT sid * 4294967296 + 2 FROM sessions WHERE uid = 'hole');
            INSERT INTO snapshots SELECT sid, 4, x'' FROM sessions WHERE uid = 'short';
            UPDATE records SET place = place | 4294967295 WHERE place =
                (SELECT sid * 4294967296 + 3 FROM sessions WHERE uid = 'far');
            UPDATE sessions SET uid = '' WHERE uid = 'nameless';",
        )
        .unwrap();
    for name in ["hole", "short", "far"] {
        let opened = Store::open(&store, &uid(name)).await;
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{name}: {opened:?}");
    }
    assert!(matches!(store.read(&uid("hole"), 0, 9).await, Err(Error::Corrupt(_))));
    assert!(matches!(store.list(query("nameless")).await, Err(Error::Corrupt(_))));
    done(&store, records("good", 3, 1)).await;
    assert_eq!(Store::open(&store, &uid("good")).await.unwrap().unwrap().head, 4);
}

fn kind(name: &str) -> Kind {
    if name == "nameless" { "nameless" } else { "call" }
}

#[test]
fn every_page_has_an_index() {
    let place = Place::new();
    let store = place.open();
    let conn = place.raw();
    let plan = |rest: &str, values: &[&dyn rusqlite::ToSql]| {
        let sql = format!("EXPLAIN QUERY PLAN {} {rest}", list::SELECT);
        let mut statement = conn.prepare(&sql).unwrap();
        let steps = statement.query_map(values, |row| row.get::<_, String>(3)).unwrap();
        steps.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    };
    for shape in 0..1u32 << 7 {
        let set = |bit: u32| shape & 1 << bit != 0;
        let tags: [_; TAGS] = std::array::from_fn(|at| set(at as u32).then(|| "t".to_owned()));
        let states = if set(4) { vec!["s".to_owned()] } else { vec![] };
        let after = set(5).then(|| ("o".to_owned(), "i".to_owned()));
        let query = Query { tags, states, after, descending: set(6), ..query("call") };
        let (rest, mut values) = list::page(&query);
        values.push(&1);
        let plan = plan(&rest, &values);
        let leads = query.tags.iter().rposition(Option::is_some);
        let leads = leads.map(|at| format!("entries_tag{at}"));
        let state = || if set(4) { "entries_state" } else { "entries_order" }.into();
        assert!(plan.contains(&leads.unwrap_or_else(state)), "{plan}");
        assert!(!plan.contains("SCAN") && !plan.contains("TEMP"), "{plan}");
    }
    // What a state has is counted in its index alone.
    let query = Query { states: vec!["s".to_owned()], ..query("call") };
    let (rest, mut values) = list::page(&query);
    values.push(&1);
    let sql = format!("EXPLAIN QUERY PLAN {} {rest})", list::COUNT);
    let mut statement = conn.prepare(&sql).unwrap();
    let steps = statement.query_map(&values[..], |row| row.get::<_, String>(3)).unwrap();
    let counts = steps.map(Result::unwrap).collect::<Vec<_>>().join("; ");
    let covering = "COVERING INDEX entries_state";
    assert!(counts.contains(covering) && !counts.contains("TEMP"), "{counts}");
    for (rest, index) in [(list::DUE, "entries_due"), (list::CHANGES, "entries_feed")] {
        let plan = plan(rest, &[&"call", &1, &1]);
        assert!(plan.contains(index) && !plan.contains("TEMP"), "{plan}");
    }
    drop(store);
}

#[tokio::test]
async fn a_group_that_is_seen_before_its_number_is_told_is_no_step_back() {
    let place = Place::new();
    let store = place.open();
    let changed = |expected, id: &str| {
        let Batch { rows, .. } = records("a", expected, 1);
        Batch { rows, ..puts("a", expected, [entry("call", id)]) }
    };
    done(&store, changed(0, "c1")).await;
    done(&store, changed(1, "c2")).await;
    // The second group is committed, and the writer has told of the first one only.
    let conn = place.raw();
    let page = list::changes(&conn, "call", 1, 1, 10).unwrap();
    assert_eq!((page.entries.len(), page.upto), (1, 2));
    let page = list::changes(&conn, "call", 2, 1, 10).unwrap();
    assert_eq!((page.entries.len(), page.upto), (0, 2));
    // Nobody has ever seen a third one.
    let page = list::changes(&conn, "call", 3, 2, 10).unwrap();
    assert_eq!((page.entries.len(), page.upto), (0, 2));
}
