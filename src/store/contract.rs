//! What the port promises, asked of every store; and every store compared with the oracle.

use std::sync::Arc;

use tempfile::TempDir;

use super::memory::Memory;
use super::sqlite::Sqlite;
use super::*;

mod beside;
mod entries;
mod logs;
mod random;

/// A store to be tested, fresh, with a clock that stands at `START`.
struct Bench {
    store: Arc<dyn Store>,
    clock: Clock,
    _directory: Option<TempDir>,
}

const START: u64 = 1_000_000;

impl Bench {
    fn memory() -> Self {
        let clock = Clock::manual(START);
        Self { store: Arc::new(Memory::new(clock.clone())), clock, _directory: None }
    }

    fn sqlite() -> Self {
        let directory = TempDir::new().unwrap();
        let clock = Clock::manual(START);
        let store = Sqlite::open(directory.path().join("store.db"), clock.clone()).unwrap();
        Self { store: Arc::new(store), clock, _directory: Some(directory) }
    }

    async fn append(&self, batch: &Batch) -> Appended {
        self.store.append(batch.clone()).await.unwrap()
    }

    /// Appends, and expects that it was written.
    async fn done(&self, batch: &Batch) -> u64 {
        match self.append(batch).await {
            Appended::Done { feed } => feed,
            other => panic!("{other:?} instead of Done"),
        }
    }

    async fn open(&self, name: &str) -> Option<Opened> {
        self.store.open(&uid(name)).await.unwrap()
    }

    async fn positions(&self, name: &str) -> Vec<u64> {
        let rows = self.store.read(&uid(name), 0, MAX_READ_ROWS).await.unwrap();
        rows.iter().map(|row| row.position).collect()
    }

    async fn ids(&self, query: Query) -> Vec<String> {
        ids(&self.store.list(query).await.unwrap().0)
    }
}

fn ids(found: &[Stored]) -> Vec<String> {
    found.iter().map(|stored| stored.entry.id.clone()).collect()
}

pub(super) fn uid(name: &str) -> SessionUid {
    SessionUid::parse(name).unwrap()
}

/// A batch of nothing at a head, with an id of its own.
pub(super) fn batch(name: &str, expected: u64) -> Batch {
    Batch {
        id: *uuid::Uuid::new_v4().as_bytes(),
        uid: uid(name),
        expected,
        rows: Vec::new(),
        entries: Vec::new(),
        snapshot: None,
        shared: Vec::new(),
        request: None,
        delete: false,
    }
}

/// A batch of records that are no events.
pub(super) fn records(name: &str, expected: u64, count: u64) -> Batch {
    let rows = (expected + 1..=expected + count).map(|position| row(position, 0)).collect();
    Batch { rows, ..batch(name, expected) }
}

pub(super) fn row(position: u64, sequence: u64) -> Row {
    Row { position, sequence, bytes: format!("record {position}").into_bytes() }
}

pub(super) fn entry(kind: Kind, id: &str) -> Entry {
    Entry {
        kind,
        id: id.into(),
        state: "NEW".into(),
        due: None,
        order: "o".into(),
        tags: Default::default(),
        bytes: format!("content of {id}").into_bytes(),
    }
}

pub(super) fn puts(name: &str, expected: u64, entries: impl IntoIterator<Item = Entry>) -> Batch {
    let entries = entries.into_iter().map(EntryWrite::Put).collect();
    Batch { entries, ..batch(name, expected) }
}

fn removes(name: &str, expected: u64, kind: Kind, id: &str) -> Batch {
    let entries = vec![EntryWrite::Remove { kind, id: id.into() }];
    Batch { entries, ..batch(name, expected) }
}

pub(super) fn query(kind: Kind) -> Query {
    Query { kind, limit: MAX_ENTRIES, ..Query::default() }
}

/// Makes each case a test of each store; a new store is one more module.
macro_rules! hold {
    ($($module:ident::$case:ident as $name:ident;)*) => {
        mod memory {
            $(#[tokio::test]
            async fn $name() {
                super::$module::$case(super::Bench::memory()).await;
            })*
        }

        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                super::$module::$case(super::Bench::sqlite()).await;
            })*
        }
    };
}

hold! {
    logs::grow as a_log_grows_from_its_first_batch;
    logs::conflicts as a_stale_batch_changes_nothing;
    logs::repeats as a_repeated_batch_changes_nothing;
    logs::repeats_without_records as a_repeated_batch_without_records_changes_nothing;
    logs::refusals_in_order as the_first_refusal_that_fits_is_the_answer;
    logs::malformed as a_malformed_batch_changes_nothing;
    logs::snapshots as a_snapshot_replaces_the_one_before;
    logs::bounds as reads_are_bounded;
    logs::events as events_are_found_by_sequence;
    logs::deleted as a_deleted_log_is_gone_for_ever;
    logs::races as one_of_many_wins_each_position;
    entries::creates as an_entry_is_created_once;
    entries::own_writes as a_batch_sees_its_own_entries;
    entries::refused as a_refused_batch_writes_no_entry;
    entries::removes_ as a_removed_entry_leaves_a_tombstone;
    entries::deleted as a_deleted_session_takes_the_entries_it_wrote_last;
    entries::lists as lists_filter;
    entries::pages as lists_have_pages_in_both_directions;
    entries::due as due_entries_come_earliest_first;
    entries::changes as changes_come_in_order_each_once;
    entries::change_pages as a_page_of_changes_never_splits_a_group;
    entries::watchers as who_follows_the_feed_misses_nothing;
    beside::shared as shared_values_are_found_by_scope;
    beside::requests as a_request_is_seen_once;
    beside::sweeps as a_sweep_forgets_what_is_old;
    beside::sweep_bounds as a_sweep_is_bounded;
    beside::clock as the_clock_is_the_stores;
}
