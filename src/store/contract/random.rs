//! Random batches on both stores: after each step they must say the same.

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::Config;

use super::*;

const NAMES: [&str; 3] = ["a", "b", "c"];
const KINDS: [Kind; 2] = ["call", "owner"];
const IDS: [&str; 4] = ["1", "2", "3", "4"];
const STATES: [&str; 4] = ["NEW", "HELD", "DONE", ""];
const ORDERS: [&str; 3] = ["", "x", "y"];
const TAG_VALUES: [&str; 3] = ["", "p", "q"];

/// One step; heads and sequences are those of the moment, so that most batches are done.
#[derive(Debug, Clone)]
enum Step {
    Append(Draft),
    /// The same batch as some steps before.
    Repeat(usize),
    Sweep(u64),
    Advance(u64),
    /// The file is closed and opened again.
    Reopen,
}

#[derive(Debug, Clone)]
struct Draft {
    name: &'static str,
    /// How far the expected head is from the right one.
    off: i64,
    events: Vec<bool>,
    entries: Vec<EntryWrite>,
    snapshot: bool,
    shared: Vec<SharedWrite>,
    request: Option<&'static str>,
    delete: bool,
}

fn entries() -> impl Strategy<Value = EntryWrite> {
    let tag = || select(&TAG_VALUES[..]);
    let tags = [tag(), tag(), tag(), tag()];
    let keys = (select(&KINDS[..]), select(&IDS[..]), select(&STATES[..]), select(&ORDERS[..]));
    (0..5, keys, tags, proptest::option::of(0..4u64), any::<u8>()).prop_map(
        |(write, (kind, id, state, order), tags, due, byte)| {
            let entry = Entry {
                kind,
                id: id.into(),
                state: state.into(),
                due,
                order: order.into(),
                tags: tags.map(str::to_owned),
                bytes: vec![byte],
            };
            match write {
                0 => EntryWrite::Create(entry),
                1 => EntryWrite::Remove { kind, id: id.into() },
                _ => EntryWrite::Put(entry),
            }
        },
    )
}

fn shared() -> impl Strategy<Value = SharedWrite> {
    let value = proptest::option::of(any::<u8>());
    (select(&ORDERS[..]), select(&IDS[..]), value).prop_map(|(scope, key, value)| SharedWrite {
        scope: scope.into(),
        key: key.into(),
        value: value.map(|byte| vec![byte]),
    })
}

fn steps() -> impl Strategy<Value = Step> {
    let off = prop_oneof![9 => Just(0i64), 1 => Just(1), 1 => Just(-1)];
    let request = proptest::option::weighted(0.2, select(&IDS[..]));
    let draft = (
        (select(&NAMES[..]), off, proptest::collection::vec(any::<bool>(), 0..4)),
        proptest::collection::vec(entries(), 0..4),
        (proptest::bool::weighted(0.2), proptest::collection::vec(shared(), 0..2), request),
        proptest::bool::weighted(0.03),
    );
    let draft =
        draft.prop_map(|((name, off, events), entries, (snapshot, shared, request), delete)| {
            let events = if delete { Vec::new() } else { events };
            Step::Append(Draft { name, off, events, entries, snapshot, shared, request, delete })
        });
    prop_oneof![
        20 => draft,
        3 => (0..6usize).prop_map(Step::Repeat),
        1 => (0..4u64).prop_map(Step::Sweep),
        2 => (0..3u64).prop_map(Step::Advance),
        1 => Just(Step::Reopen),
    ]
}

fn queries() -> impl Strategy<Value = (Query, u64, usize)> {
    let tags = || proptest::option::weighted(0.3, select(&TAG_VALUES[..]));
    let states = proptest::collection::vec(select(&STATES[..]), 0..3);
    let after = proptest::option::of((select(&ORDERS[..]), select(&IDS[..])));
    (
        select(&KINDS[..]),
        [tags(), tags(), tags(), tags()],
        states,
        after,
        any::<bool>(),
        0..5usize,
        0..20u64,
    )
        .prop_map(|(kind, tags, states, after, descending, limit, feed)| {
            let query = Query {
                kind,
                tags: tags.map(|tag| tag.map(str::to_owned)),
                states: states.into_iter().map(str::to_owned).collect(),
                after: after.map(|(order, id)| (order.to_owned(), id.to_owned())),
                descending,
                limit,
            };
            (query, feed, limit)
        })
}

type Log = (Option<Opened>, Vec<Row>, Vec<Row>, Vec<Row>);
type Entries = (Changes, (Vec<Stored>, u64), Vec<Stored>);

/// Everything that a store says about itself.
#[derive(Debug, PartialEq)]
struct View {
    logs: Vec<Log>,
    entries: Vec<Entries>,
    asked: ((Vec<Stored>, u64), u64, Changes, Vec<Stored>),
    one: Vec<Option<Stored>>,
    shared: Shared,
    requests: Vec<Option<Recorded>>,
}

async fn view(
    store: &dyn Store,
    (query_, feed, limit): &(Query, u64, usize),
) -> Result<View, Error> {
    let (mut logs, mut entries) = (Vec::new(), Vec::new());
    let (mut one, mut requests) = (Vec::new(), Vec::new());
    for name in NAMES {
        let uid = uid(name);
        let opened = store.open(&uid).await?;
        let rows = store.read(&uid, 0, MAX_READ_ROWS).await?;
        let after = store.events(&uid, Events::After(*feed), *limit).await?;
        logs.push((opened, rows, after, store.events(&uid, Events::Last, *limit).await?));
    }
    for kind in KINDS {
        let due = store.due(kind, *feed % 4, *limit).await?;
        entries.push((store.changes(kind, 0, 100).await?, store.list(query(kind)).await?, due));
        one.push(store.entry(kind, IDS[*limit % IDS.len()]).await?);
    }
    for id in IDS {
        let request = beside::request(id);
        requests.push(store.request(&request.principal, &request.method, &request.id).await?);
    }
    let kind = query_.kind;
    let asked = (
        store.list(query_.clone()).await?,
        store.count(query_.clone()).await?,
        store.changes(kind, *feed, *limit).await?,
        store.due(kind, *feed % 4, *limit).await?,
    );
    let shared = store.shared(&ORDERS.map(str::to_owned)).await?;
    Ok(View { logs, entries, asked, one, shared, requests })
}

/// Makes the draft a batch for the log as it is.
async fn finish(store: &dyn Store, draft: Draft) -> Batch {
    let uid = uid(draft.name);
    let head = store.open(&uid).await.unwrap().unwrap_or_default().head;
    let last = store.events(&uid, Events::Last, 1).await.unwrap();
    let mut sequence = last.first().map_or(0, |row| row.sequence);
    let expected = head.saturating_add_signed(draft.off);
    let rows = (expected + 1..).zip(draft.events).map(|(position, event)| {
        sequence += u64::from(event);
        row(position, if event { sequence } else { 0 })
    });
    Batch {
        rows: rows.collect(),
        entries: draft.entries,
        snapshot: draft.snapshot.then(|| vec![head as u8]),
        shared: draft.shared,
        request: draft.request.map(beside::request),
        delete: draft.delete,
        ..batch(draft.name, expected)
    }
}

async fn compare(steps: Vec<(Step, (Query, u64, usize))>) {
    let clock = Clock::manual(0);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("store.db");
    let oracle = Memory::new(clock.clone());
    let mut store = Sqlite::open(&file, clock.clone()).unwrap();
    let mut batches: Vec<Batch> = Vec::new();
    for (step, asked) in steps {
        let batch = match step {
            Step::Append(draft) => Some(finish(&oracle, draft).await),
            Step::Repeat(back) => batches.iter().rev().nth(back).cloned(),
            Step::Sweep(before) => {
                assert_eq!(store.sweep(before).await, oracle.sweep(before).await);
                None
            }
            Step::Advance(micros) => {
                clock.advance(std::time::Duration::from_micros(micros));
                None
            }
            Step::Reopen => {
                drop(store);
                store = Sqlite::open(&file, clock.clone()).unwrap();
                None
            }
        };
        if let Some(batch) = batch {
            let answer = oracle.append(batch.clone()).await;
            assert_eq!(store.append(batch.clone()).await, answer, "{batch:?}");
            batches.push(batch);
        }
        assert_eq!(view(&store, &asked).await, view(&oracle, &asked).await);
    }
}

proptest! {
    #![proptest_config(Config { cases: 48, failure_persistence: None, ..Config::default() })]

    #[test]
    fn sqlite_does_as_memory_does(
        steps in proptest::collection::vec((steps(), queries()), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(compare(steps));
    }
}
