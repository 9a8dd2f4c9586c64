//! Entries: writes, lists, due times, the feed.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use super::*;

pub(super) async fn creates(bench: Bench) {
    let create = |name, id: &str| Batch {
        entries: vec![EntryWrite::Create(entry("call", id))],
        ..batch(name, 0)
    };
    let born = bench.done(&create("a", "c")).await;
    let exists = Appended::Exists { kind: "call", id: "c".into() };
    assert_eq!(bench.append(&create("b", "c")).await, exists);
    let stored = bench.store.entry("call", "c").await.unwrap().unwrap();
    let expected = entry("call", "c");
    assert_eq!(stored, Stored { entry: expected, uid: uid("a"), feed: born, born, removed: false });
    // An id is unique in its kind only.
    assert_eq!(bench.store.entry("invocation", "c").await.unwrap(), None);
    // Another session may replace it: then it is that session's, and as old as before.
    let next = Entry {
        state: "OLD".into(),
        tags: ["x".into(), "".into(), "y".into(), "".into()],
        ..stored.entry
    };
    let feed = bench.done(&puts("b", 0, [next.clone()])).await;
    let stored = bench.store.entry("call", "c").await.unwrap().unwrap();
    assert_eq!(stored, Stored { entry: next, uid: uid("b"), feed, born, removed: false });
}

pub(super) async fn own_writes(bench: Bench) {
    let create = |id: &str| EntryWrite::Create(entry("call", id));
    let put = |id: &str| EntryWrite::Put(entry("call", id));
    let remove = |id: &str| EntryWrite::Remove { kind: "call", id: id.into() };
    let writes = |entries: &[EntryWrite]| Batch { entries: entries.to_vec(), ..batch("a", 0) };
    let exists = Appended::Exists { kind: "call", id: "c".into() };
    assert_eq!(bench.append(&writes(&[create("c"), create("c")])).await, exists);
    assert_eq!(bench.append(&writes(&[put("c"), create("c")])).await, exists);
    assert_eq!(bench.open("a").await, None);
    bench.done(&writes(&[remove("c"), create("c"), remove("c"), create("c")])).await;
    assert_eq!(bench.ids(query("call")).await, ["c"]);
    bench.done(&writes(&[remove("c"), create("d"), remove("d"), create("c"), remove("c")])).await;
    assert_eq!(bench.ids(query("call")).await, [""; 0]);
}

pub(super) async fn refused(bench: Bench) {
    bench.done(&puts("a", 0, [entry("call", "c")])).await;
    let refused = Batch {
        entries: vec![
            EntryWrite::Create(entry("call", "new")),
            EntryWrite::Remove { kind: "call", id: "c".into() },
            EntryWrite::Create(entry("call", "new")),
        ],
        ..records("a", 0, 1)
    };
    let exists = Appended::Exists { kind: "call", id: "new".into() };
    assert_eq!(bench.append(&refused).await, exists);
    assert_eq!(bench.ids(query("call")).await, ["c"]);
    assert_eq!(bench.positions("a").await, [0; 0]);
}

pub(super) async fn removes_(bench: Bench) {
    let full = Entry {
        state: "HELD".into(),
        due: Some(5),
        order: "o".into(),
        tags: ["x", "y", "z", "t"].map(str::to_owned),
        ..entry("call", "c")
    };
    let born = bench.done(&puts("a", 0, [full.clone()])).await;
    let feed = bench.done(&removes("b", 0, "call", "c")).await;
    assert_eq!(bench.store.entry("call", "c").await.unwrap(), None);
    assert_eq!(bench.store.due("call", 9, 9).await.unwrap(), []);
    assert_eq!(bench.store.list(query("call")).await.unwrap(), (vec![], feed));
    let tombstone = Stored {
        entry: Entry { due: None, bytes: Vec::new(), ..full.clone() },
        uid: uid("b"),
        feed,
        born,
        removed: true,
    };
    let changes = bench.store.changes("call", 0, 9).await.unwrap();
    assert_eq!(changes, Changes { entries: vec![tombstone], upto: feed, more: false });
    // Once is enough: the second time, and for what never was, there is nothing to do.
    bench.done(&removes("b", 0, "call", "c")).await;
    let last = bench.done(&removes("b", 0, "call", "never")).await;
    let changes = bench.store.changes("call", feed, 9).await.unwrap();
    assert_eq!(changes, Changes { entries: vec![], upto: last, more: false });
    // Over a tombstone an entry is born anew, created or put.
    let create = Batch { entries: vec![EntryWrite::Create(full.clone())], ..batch("a", 0) };
    let born = bench.done(&create).await;
    assert_eq!(bench.store.entry("call", "c").await.unwrap().unwrap().born, born);
    bench.done(&removes("a", 0, "call", "c")).await;
    let born = bench.done(&puts("a", 0, [full.clone()])).await;
    let stored = bench.store.entry("call", "c").await.unwrap().unwrap();
    assert_eq!(stored, Stored { entry: full, uid: uid("a"), feed: born, born, removed: false });
}

pub(super) async fn deleted(bench: Bench) {
    bench.done(&puts("a", 0, ["kept", "lost", "gone"].map(|id| entry("call", id)))).await;
    bench.done(&puts("b", 0, [entry("call", "kept")])).await;
    bench.done(&removes("a", 0, "call", "gone")).await;
    let own = puts("a", 0, [entry("session", "a")]);
    let feed = bench.done(&Batch { delete: true, ..own }).await;
    assert_eq!(bench.ids(query("call")).await, ["kept"]);
    assert_eq!(bench.ids(query("session")).await, [""; 0]);
    let changed = bench.store.changes("call", feed - 1, 9).await.unwrap().entries;
    assert_eq!(ids(&changed), ["lost"]);
    assert!(changed[0].removed && changed[0].entry.bytes.is_empty());
    let changed = bench.store.changes("session", feed - 1, 9).await.unwrap().entries;
    assert_eq!((ids(&changed), changed[0].removed), (vec!["a".to_owned()], true));
}

pub(super) async fn lists(bench: Bench) {
    let tagged = |id: &str, state: &str, tags: [&str; TAGS]| Entry {
        state: state.into(),
        tags: tags.map(str::to_owned),
        ..entry("call", id)
    };
    let entries = [
        tagged("a", "HELD", ["app", "user", "", ""]),
        tagged("b", "DONE", ["app", "user", "x", "me"]),
        tagged("c", "HELD", ["app", "other", "x", ""]),
        tagged("d", "LOST", ["", "user", "", "me"]),
        entry("invocation", "e"),
    ];
    let feed = bench.done(&puts("a", 0, entries)).await;
    let list = async |states: &[&str], tags: [Option<&str>; TAGS]| {
        let states = states.iter().map(|state| state.to_string()).collect();
        let tags = tags.map(|tag| tag.map(str::to_owned));
        let asked = Query { states, tags, ..query("call") };
        let (found, at) = bench.store.list(asked.clone()).await.unwrap();
        assert_eq!(at, feed);
        let count = bench.store.count(asked).await.unwrap();
        assert_eq!(count, found.len() as u64);
        ids(&found).concat()
    };
    assert_eq!(list(&[], [None; TAGS]).await, "abcd");
    assert_eq!(list(&["HELD"], [None; TAGS]).await, "ac");
    assert_eq!(list(&["HELD", "LOST", "NONE"], [None; TAGS]).await, "acd");
    assert_eq!(list(&[], [Some("app"), None, None, None]).await, "abc");
    assert_eq!(list(&[], [None, Some("user"), None, None]).await, "abd");
    assert_eq!(list(&[], [None, None, Some("x"), None]).await, "bc");
    assert_eq!(list(&[], [Some(""), None, None, None]).await, "d");
    assert_eq!(list(&[], [Some("app"), Some("user"), Some(""), None]).await, "a");
    assert_eq!(list(&["HELD", "DONE"], [Some("app"), None, Some("x"), None]).await, "bc");
    assert_eq!(list(&["HELD"], [Some("app"), None, Some("x"), None]).await, "c");
    assert_eq!(list(&[], [None, None, None, Some("me")]).await, "bd");
    assert_eq!(list(&["DONE"], [Some("app"), None, None, Some("me")]).await, "b");
    assert_eq!(list(&[], [None, None, Some("x"), Some("")]).await, "c");
    assert_eq!(list(&["NONE"], [None; TAGS]).await, "");
}

pub(super) async fn pages(bench: Bench) {
    let order = |id: &str, order: &str| Entry { order: order.into(), ..entry("call", id) };
    let entries = [order("d", "1"), order("b", "2"), order("a", "2"), order("c", "3")];
    bench.done(&puts("a", 0, entries)).await;
    for (descending, expected) in [(false, ["d", "a", "b", "c"]), (true, ["c", "b", "a", "d"])] {
        let mut after = None;
        let mut seen = Vec::new();
        loop {
            let page = Query { after, descending, limit: 1, ..query("call") };
            let (found, _) = bench.store.list(page).await.unwrap();
            let Some(last) = found.last() else { break };
            after = Some((last.entry.order.clone(), last.entry.id.clone()));
            seen.extend(ids(&found));
        }
        assert_eq!(seen, expected);
    }
    let few = Query { limit: 2, ..query("call") };
    assert_eq!(bench.ids(few).await, ["d", "a"]);
    assert_eq!(bench.ids(Query { limit: 0, ..query("call") }).await, [""; 0]);
    let many = (0..MAX_ENTRIES + 1).map(|n| entry("many", &n.to_string()));
    bench.done(&puts("a", 0, many)).await;
    let all = Query { limit: usize::MAX, ..query("many") };
    assert_eq!(bench.ids(all.clone()).await.len(), MAX_ENTRIES);
    // A count has a limit of its own, and begins behind a place too.
    let count = async |query: Query| bench.store.count(query).await.unwrap();
    assert_eq!(count(all.clone()).await, MAX_ENTRIES as u64 + 1);
    assert_eq!(count(Query { limit: 7, ..all.clone() }).await, 7);
    let after = Some(("2".to_owned(), "a".to_owned()));
    let behind = Query { after: after.clone(), ..query("call") };
    assert_eq!(count(behind.clone()).await, 2);
    assert_eq!(count(Query { descending: true, ..behind }).await, 1);
    assert_eq!(count(query("none")).await, 0);
}

pub(super) async fn due(bench: Bench) {
    let due = |id: &str, due| Entry { due, ..entry("call", id) };
    let entries = [
        due("c", Some(1)),
        due("a", Some(2)),
        due("b", Some(2)),
        due("d", Some(3)),
        due("e", None),
    ];
    bench.done(&puts("a", 0, entries)).await;
    let ids = async |now, limit| ids(&bench.store.due("call", now, limit).await.unwrap()).concat();
    assert_eq!(ids(0, 9).await, "");
    assert_eq!(ids(2, 9).await, "cab");
    assert_eq!(ids(2, 2).await, "ca");
    assert_eq!(ids(u64::MAX, 9).await, "cabd");
    assert_eq!(ids(9, 0).await, "");
    bench.done(&puts("a", 0, [due("c", None), due("e", Some(0)), due("d", Some(9))])).await;
    assert_eq!(ids(8, 9).await, "eab");
}

pub(super) async fn changes(bench: Bench) {
    let empty = bench.store.changes("call", 0, 9).await.unwrap();
    assert_eq!(empty, Changes::default());
    let mut feeds = Vec::new();
    for id in ["b", "a", "c", "b"] {
        feeds.push(bench.done(&puts("a", 0, [entry("call", id)])).await);
    }
    let last = bench.done(&puts("a", 0, [entry("invocation", "i")])).await;
    let page = bench.store.changes("call", 0, 9).await.unwrap();
    assert_eq!((ids(&page.entries).concat(), page.upto, page.more), ("acb".into(), last, false));
    let page = bench.store.changes("call", 0, 2).await.unwrap();
    assert_eq!((ids(&page.entries).concat(), page.upto, page.more), ("ac".into(), feeds[2], true));
    let page = bench.store.changes("call", feeds[2], 2).await.unwrap();
    assert_eq!((ids(&page.entries).concat(), page.upto, page.more), ("b".into(), last, false));
    // Who knows more than there is learns where the feed is.
    let page = bench.store.changes("call", u64::MAX, 2).await.unwrap();
    assert_eq!(page, Changes { upto: last, ..Changes::default() });
}

pub(super) async fn change_pages(bench: Bench) {
    let calls = |ids: &str| {
        let entries = ids.chars().map(|id| entry("call", &id.to_string())).collect::<Vec<_>>();
        puts("a", 0, entries)
    };
    let mut feeds = Vec::new();
    for ids in ["z", "edcba", "fg", "h"] {
        feeds.push(bench.done(&calls(ids)).await);
    }
    let page = async |after, limit| {
        let page = bench.store.changes("call", after, limit).await.unwrap();
        (ids(&page.entries).concat(), page.upto, page.more)
    };
    assert_eq!(page(0, 3).await, ("z".into(), feeds[0], true));
    assert_eq!(page(feeds[0], 3).await, ("abcde".into(), feeds[1], true));
    assert_eq!(page(feeds[0], 6).await, ("abcde".into(), feeds[1], true));
    assert_eq!(page(feeds[0], 7).await, ("abcdefg".into(), feeds[2], true));
    assert_eq!(page(feeds[1], 3).await, ("fgh".into(), feeds[3], false));
    assert_eq!(page(feeds[1], 0).await, ("fg".into(), feeds[2], true));
    assert_eq!(page(feeds[2], 0).await, ("h".into(), feeds[3], false));
    let feed = bench.done(&calls("abcdefghijz")).await;
    assert_eq!(page(0, 1).await, ("abcdefghijz".into(), feed, false));
}

/// Follows the feed while many write, and in the end knows what there is.
pub(super) async fn watchers(bench: Bench) {
    const WRITERS: u64 = 16;
    const EACH: u64 = 16;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let store = Arc::clone(&bench.store);
        writers.spawn(async move {
            let name = format!("writer-{writer}");
            for head in 0..EACH {
                let entry =
                    |n| Entry { state: head.to_string(), ..entry("call", &format!("{name}-{n}")) };
                let entries = (0..head % 3 + 1).map(entry).map(EntryWrite::Put).collect();
                let batch = Batch { entries, ..records(&name, head, 1) };
                assert!(matches!(store.append(batch).await, Ok(Appended::Done { .. })));
            }
        });
    }
    let mut known = BTreeMap::new();
    let mut after = 0;
    let mut writing = true;
    loop {
        let page = bench.store.changes("call", after, 3).await.unwrap();
        assert!(page.upto >= after);
        for stored in page.entries {
            assert!(stored.feed > after && stored.feed <= page.upto, "{stored:?}");
            known.insert(stored.entry.id.clone(), stored);
        }
        after = page.upto;
        if !page.more && !writing {
            break;
        }
        writing = writers.try_join_next().is_some() || !writers.is_empty();
        tokio::task::yield_now().await;
    }
    let (all, feed) = bench.store.list(query("call")).await.unwrap();
    assert_eq!(feed, after);
    let all = all.into_iter().map(|stored| (stored.entry.id.clone(), stored));
    assert_eq!(known, all.collect());
    assert_eq!(known.len() as u64, WRITERS * 3);
}
