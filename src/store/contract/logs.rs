//! Logs: heads, records, snapshots, repeats.

use tokio::task::JoinSet;

use super::*;

pub(super) async fn grow(bench: Bench) {
    assert_eq!(bench.open("a").await, None);
    assert_eq!(bench.positions("a").await, [0; 0]);
    let first = bench.done(&records("a", 0, 2)).await;
    let second = bench.done(&records("a", 2, 1)).await;
    assert!(first > 0 && second > first);
    let opened = bench.open("a").await.unwrap();
    assert_eq!(
        opened,
        Opened { head: 3, snapshot: None, rows: (1..4).map(|n| row(n, 0)).collect() }
    );
    // The other log is not there; one that was begun without records is, and is empty.
    assert_eq!(bench.open("b").await, None);
    bench.done(&batch("b", 0)).await;
    assert_eq!(bench.open("b").await, Some(Opened::default()));
    assert_eq!(bench.append(&records("b", 0, 1)).await, Appended::Done { feed: second + 2 });
}

pub(super) async fn conflicts(bench: Bench) {
    let late = Batch {
        snapshot: Some(vec![1]),
        shared: vec![SharedWrite { scope: "s".into(), key: "k".into(), value: Some(vec![1]) }],
        request: Some(beside::request("r")),
        ..puts("a", 1, [entry("call", "c")])
    };
    assert_eq!(bench.append(&late).await, Appended::Conflict { head: 0 });
    bench.done(&records("a", 0, 3)).await;
    assert_eq!(bench.append(&late).await, Appended::Conflict { head: 3 });
    assert_eq!(bench.append(&records("a", 2, 1)).await, Appended::Conflict { head: 3 });
    assert_eq!(bench.append(&records("a", 4, 1)).await, Appended::Conflict { head: 3 });
    let opened = bench.open("a").await.unwrap();
    assert_eq!((opened.head, opened.snapshot), (3, None));
    assert_eq!(bench.store.entry("call", "c").await.unwrap(), None);
    assert_eq!(bench.store.shared(&["s".into()]).await.unwrap(), Shared::new());
    assert_eq!(bench.store.list(query("call")).await.unwrap(), (vec![], 1));
    // Nothing of it was kept, so at the right head it is done.
    bench.done(&Batch { expected: 3, ..late }).await;
}

pub(super) async fn repeats(bench: Bench) {
    let first =
        Batch { entries: vec![EntryWrite::Create(entry("call", "c"))], ..records("a", 0, 2) };
    let feed = bench.done(&first).await;
    let second = records("a", 2, 1);
    bench.done(&second).await;
    for batch in [&first, &second, &first] {
        assert_eq!(bench.append(batch).await, Appended::Repeated);
    }
    assert_eq!(bench.positions("a").await, [1, 2, 3]);
    assert_eq!(bench.store.entry("call", "c").await.unwrap().unwrap().feed, feed);
    assert_eq!(bench.store.list(query("call")).await.unwrap().1, feed + 1);
    // Another batch at that head is none, nor is the same id at another head or in another log.
    assert_eq!(bench.append(&records("a", 0, 2)).await, Appended::Conflict { head: 3 });
    let moved = Batch { id: first.id, ..records("a", 1, 1) };
    assert_eq!(bench.append(&moved).await, Appended::Conflict { head: 3 });
    bench.done(&Batch { id: first.id, ..records("b", 0, 1) }).await;
}

pub(super) async fn repeats_without_records(bench: Bench) {
    let bare = Batch { entries: vec![EntryWrite::Create(entry("call", "c"))], ..batch("a", 0) };
    bench.done(&bare).await;
    assert_eq!(bench.append(&bare).await, Appended::Repeated);
    // It is known after records, too, until there is another one without.
    bench.done(&records("a", 0, 1)).await;
    assert_eq!(bench.append(&bare).await, Appended::Repeated);
    bench.done(&batch("a", 1)).await;
    assert_eq!(bench.append(&bare).await, Appended::Conflict { head: 1 });
}

pub(super) async fn refusals_in_order(bench: Bench) {
    let create = EntryWrite::Create(entry("call", "c"));
    let all =
        Batch { entries: vec![create], request: Some(beside::request("r")), ..records("a", 0, 1) };
    bench.done(&all).await;
    assert_eq!(bench.append(&all).await, Appended::Repeated);
    let other = Batch { id: [7; 16], ..all };
    let seen = Recorded { digest: "digest".into(), outcome: b"outcome".to_vec() };
    assert_eq!(bench.append(&other).await, Appended::RequestSeen(seen));
    let unasked = Batch { request: None, ..other };
    assert_eq!(bench.append(&unasked).await, Appended::Conflict { head: 1 });
    let current = Batch { expected: 1, rows: vec![row(2, 0)], ..unasked };
    let exists = Appended::Exists { kind: "call", id: "c".into() };
    assert_eq!(bench.append(&current).await, exists);
    assert_eq!(bench.positions("a").await, [1]);
}

pub(super) async fn malformed(bench: Bench) {
    let rows = |rows: &[(u64, u64)]| Batch {
        rows: rows.iter().map(|&(position, sequence)| row(position, sequence)).collect(),
        ..batch("a", 0)
    };
    let due = Entry { due: Some(u64::MAX), ..entry("call", "c") };
    let malformed = [
        rows(&[(2, 0)]),
        rows(&[(1, 0), (3, 0)]),
        rows(&[(1, 2)]),
        rows(&[(1, 1), (2, 3)]),
        rows(&[(1, 1), (2, 1)]),
        Batch { delete: true, ..rows(&[(1, 0)]) },
        batch("a", u64::MAX),
        puts("a", 0, [due]),
    ];
    for batch in malformed {
        let answer = bench.store.append(batch.clone()).await;
        assert!(matches!(answer, Err(Error::Malformed(_))), "{answer:?} for {batch:?}");
    }
    assert_eq!(bench.open("a").await, None);
    bench.done(&rows(&[(1, 1), (2, 0), (3, 2)])).await;
    let next = |sequence| Batch { rows: vec![row(4, sequence)], ..batch("a", 3) };
    for sequence in [1, 2, 4] {
        let answer = bench.store.append(next(sequence)).await;
        assert!(matches!(answer, Err(Error::Malformed(_))));
    }
    bench.done(&next(3)).await;
}

pub(super) async fn snapshots(bench: Bench) {
    let snapshot = |bytes: &[u8]| Some(bytes.to_vec());
    bench.done(&Batch { snapshot: snapshot(b"two"), ..records("a", 0, 2) }).await;
    bench.done(&records("a", 2, 2)).await;
    let opened = bench.open("a").await.unwrap();
    assert_eq!((opened.head, opened.snapshot), (4, Some((2, b"two".to_vec()))));
    assert_eq!(opened.rows, [row(3, 0), row(4, 0)]);
    bench.done(&Batch { snapshot: snapshot(b"four"), ..batch("a", 4) }).await;
    let opened = bench.open("a").await.unwrap();
    assert_eq!((opened.head, opened.snapshot), (4, Some((4, b"four".to_vec()))));
    assert_eq!(opened.rows, []);
    // The records are there all the same.
    assert_eq!(bench.positions("a").await, [1, 2, 3, 4]);
}

pub(super) async fn bounds(bench: Bench) {
    let many = MAX_READ_ROWS as u64 + 5;
    let rows = (1..=many).map(|n| row(n, n)).collect();
    bench.done(&Batch { rows, ..batch("a", 0) }).await;
    let opened = bench.open("a").await.unwrap();
    assert_eq!((opened.head, opened.rows.len()), (many, MAX_READ_ROWS));
    let (a, store) = (uid("a"), &bench.store);
    let rest = store.read(&a, MAX_READ_ROWS as u64, usize::MAX).await.unwrap();
    assert_eq!(rest.len(), 5);
    assert_eq!(store.read(&a, 0, usize::MAX).await.unwrap().len(), MAX_READ_ROWS);
    assert_eq!(store.read(&a, 3, 2).await.unwrap(), [row(4, 4), row(5, 5)]);
    assert_eq!(store.read(&a, 0, 0).await.unwrap(), []);
    assert_eq!(store.read(&a, u64::MAX, 1).await.unwrap(), []);
    let last = store.events(&a, Events::Last, usize::MAX).await.unwrap();
    assert_eq!((last.len(), last[0].sequence), (MAX_READ_ROWS, 6));
    let first = store.events(&a, Events::After(0), usize::MAX).await.unwrap();
    assert_eq!(first.len(), MAX_READ_ROWS);
}

pub(super) async fn events(bench: Bench) {
    let rows = vec![row(1, 0), row(2, 1), row(3, 0), row(4, 2), row(5, 3), row(6, 0)];
    bench.done(&Batch { rows, ..batch("a", 0) }).await;
    bench.done(&Batch { rows: vec![row(1, 1)], ..batch("b", 0) }).await;
    let events = async |which, limit| bench.store.events(&uid("a"), which, limit).await.unwrap();
    assert_eq!(events(Events::After(0), 9).await, [row(2, 1), row(4, 2), row(5, 3)]);
    assert_eq!(events(Events::After(1), 1).await, [row(4, 2)]);
    assert_eq!(events(Events::After(3), 9).await, []);
    assert_eq!(events(Events::Last, 2).await, [row(4, 2), row(5, 3)]);
    assert_eq!(events(Events::Last, 0).await, []);
    assert_eq!(bench.store.events(&uid("c"), Events::Last, 9).await.unwrap(), []);
}

pub(super) async fn deleted(bench: Bench) {
    let first = Batch { snapshot: Some(vec![1]), ..records("a", 0, 2) };
    bench.done(&first).await;
    let delete = Batch { delete: true, ..batch("a", 2) };
    let stale = Batch { expected: 1, id: [9; 16], ..delete.clone() };
    assert_eq!(bench.append(&stale).await, Appended::Conflict { head: 2 });
    bench.done(&delete).await;
    assert_eq!(bench.append(&delete).await, Appended::Repeated);
    assert_eq!(bench.open("a").await, None);
    assert_eq!(bench.positions("a").await, [0; 0]);
    assert_eq!(bench.store.events(&uid("a"), Events::Last, 9).await.unwrap(), []);
    for late in [first, records("a", 0, 1), records("a", 2, 1), batch("a", 0)] {
        assert_eq!(bench.append(&late).await, Appended::Conflict { head: 0 });
    }
    let again = Batch { delete: true, ..batch("a", 0) };
    assert_eq!(bench.append(&again).await, Appended::Conflict { head: 0 });
    // A log that was never begun can be deleted before it is.
    bench.done(&Batch { delete: true, ..batch("b", 0) }).await;
    assert_eq!(bench.append(&records("b", 0, 1)).await, Appended::Conflict { head: 0 });
}

/// Each task has a log of its own, and all fight over one that all append to.
pub(super) async fn races(bench: Bench) {
    const TASKS: u64 = 64;
    const EACH: u64 = 4;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&bench.store);
        tasks.spawn(async move {
            let own = format!("own-{task}");
            let mut won = Vec::new();
            for head in 0..EACH {
                let answer = store.append(records(&own, head, 1)).await.unwrap();
                assert!(matches!(answer, Appended::Done { .. }));
                let mut fought = head;
                loop {
                    match store.append(records("all", fought, 1)).await.unwrap() {
                        Appended::Done { .. } => break won.push(fought + 1),
                        Appended::Conflict { head } => {
                            assert!(head > fought, "a head never goes back");
                            fought = head;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            won
        });
    }
    let mut won = Vec::new();
    while let Some(positions) = tasks.join_next().await {
        won.extend(positions.unwrap());
    }
    won.sort_unstable();
    assert!(won.iter().copied().eq(1..=TASKS * EACH), "each position is won once");
    assert_eq!(bench.open("all").await.unwrap().head, TASKS * EACH);
    for task in 0..TASKS {
        assert_eq!(bench.positions(&format!("own-{task}")).await, [1, 2, 3, 4]);
    }
}
