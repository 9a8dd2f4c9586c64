//! What stands beside logs and entries: shared values, requests, sweeps, the clock.

use std::time::Duration;

use super::*;

pub(super) fn request(id: &str) -> Request {
    Request {
        principal: principal(),
        method: "RunAsync".into(),
        id: RequestId::parse(id).unwrap(),
        digest: "digest".into(),
        outcome: b"outcome".to_vec(),
    }
}

fn principal() -> Principal {
    Principal::parse("local").unwrap()
}

async fn recorded(bench: &Bench, method: &str, id: &str) -> Option<Recorded> {
    let id = RequestId::parse(id).unwrap();
    bench.store.request(&principal(), method, &id).await.unwrap()
}

pub(super) async fn shared(bench: Bench) {
    let write = |scope: &str, key: &str, value: Option<&str>| SharedWrite {
        scope: scope.into(),
        key: key.into(),
        value: value.map(|value| value.into()),
    };
    let writes = |name, shared: &[SharedWrite]| Batch { shared: shared.to_vec(), ..batch(name, 0) };
    let first = [
        write("app", "k", Some("v")),
        write("app", "l", Some("w")),
        write("user", "k", Some("u")),
        write("user", "k", Some("x")),
    ];
    bench.done(&writes("a", &first)).await;
    bench.done(&writes("b", &[write("app", "k", None), write("app", "never", None)])).await;
    let shared = async |scopes: &[&str]| {
        let scopes = scopes.iter().map(|scope| scope.to_string()).collect::<Vec<_>>();
        bench.store.shared(&scopes).await.unwrap()
    };
    let values = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.into())]);
    let app = ("app".to_owned(), values("l", "w"));
    let user = ("user".to_owned(), values("k", "x"));
    assert_eq!(shared(&["user", "app", "none"]).await, Shared::from([app.clone(), user.clone()]));
    assert_eq!(shared(&["app", "app"]).await, Shared::from([app]));
    assert_eq!(shared(&[]).await, Shared::new());
    // They outlive the session that wrote them; the last value takes the scope along.
    bench.done(&Batch { delete: true, ..batch("a", 0) }).await;
    assert_eq!(shared(&["user"]).await, Shared::from([user]));
    bench.done(&writes("b", &[write("user", "k", None)])).await;
    assert_eq!(shared(&["user"]).await, Shared::new());
}

pub(super) async fn requests(bench: Bench) {
    let asked = |name, request| Batch { request: Some(request), ..batch(name, 0) };
    assert_eq!(recorded(&bench, "RunAsync", "r").await, None);
    bench.done(&asked("a", request("r"))).await;
    let seen = Recorded { digest: "digest".into(), outcome: b"outcome".to_vec() };
    assert_eq!(recorded(&bench, "RunAsync", "r").await, Some(seen.clone()));
    assert_eq!(recorded(&bench, "Cancel", "r").await, None);
    // What is seen is the first one, whatever else is different.
    let other = Request { digest: "other".into(), outcome: vec![], ..request("r") };
    assert_eq!(bench.append(&asked("b", other)).await, Appended::RequestSeen(seen));
    assert_eq!(bench.open("b").await, None);
    let stranger = Principal::parse("stranger").unwrap();
    bench.done(&asked("b", Request { principal: stranger, ..request("r") })).await;
    bench.done(&asked("b", Request { method: "Cancel".into(), ..request("r") })).await;
    bench.done(&asked("b", request("s"))).await;
    // It outlives the session: a deletion can be asked for again.
    let delete = Batch { delete: true, ..asked("b", request("t")) };
    bench.done(&delete).await;
    assert!(recorded(&bench, "RunAsync", "t").await.is_some());
}

pub(super) async fn sweeps(bench: Bench) {
    let old = Batch { request: Some(request("old")), ..puts("a", 0, [entry("call", "old")]) };
    bench.done(&old).await;
    bench.done(&puts("a", 0, [entry("call", "kept")])).await;
    bench.done(&removes("a", 0, "call", "old")).await;
    bench.clock.advance(Duration::from_secs(1));
    let new = Batch { request: Some(request("new")), ..puts("a", 0, [entry("call", "new")]) };
    bench.done(&new).await;
    let feed = bench.done(&removes("a", 0, "call", "new")).await;
    assert!(!bench.store.sweep(START).await.unwrap());
    assert_eq!(
        ids(&bench.store.changes("call", 0, 9).await.unwrap().entries).concat(),
        "keptoldnew"
    );
    assert!(!bench.store.sweep(START + 1).await.unwrap());
    let changes = bench.store.changes("call", 0, 9).await.unwrap();
    assert_eq!((ids(&changes.entries).concat(), changes.upto), ("keptnew".into(), feed));
    assert_eq!(recorded(&bench, "RunAsync", "old").await, None);
    assert!(recorded(&bench, "RunAsync", "new").await.is_some());
    // What is forgotten can be done again.
    bench.done(&Batch { request: Some(request("old")), ..batch("a", 0) }).await;
}

pub(super) async fn sweep_bounds(bench: Bench) {
    let many = (0..MAX_SWEEP + 1).map(|n| entry("call", &n.to_string()));
    bench.done(&puts("a", 0, many)).await;
    bench.done(&Batch { delete: true, ..batch("a", 0) }).await;
    assert!(bench.store.sweep(START + 1).await.unwrap());
    assert_eq!(bench.store.changes("call", 0, MAX_ENTRIES).await.unwrap().entries.len(), 1);
    assert!(!bench.store.sweep(START + 1).await.unwrap());
    assert_eq!(bench.store.changes("call", 0, MAX_ENTRIES).await.unwrap().entries, []);
}

pub(super) async fn clock(bench: Bench) {
    assert_eq!(bench.store.now(), START);
    bench.clock.set(START + 7);
    assert_eq!(bench.store.now(), START + 7);
}
