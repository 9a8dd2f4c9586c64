//! Cursors and page tokens that somebody has made up, with the mark of the right filter: they are
//! refused, or they show less or nothing; they never stop anything.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use countersign::proto::v1 as pb;
use prost::Message;
use tempfile::TempDir;

use super::*;
use crate::support::sample;

/// What each number or text of a place is changed into.
fn odd() -> Vec<Value> {
    let numbers = [0, 1, 5, 1 << 31, 1 << 32, i64::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX];
    let others =
        [json!(-1), json!(1.5), json!(""), json!("\0"), json!("~"), json!(null), json!([])];
    numbers.into_iter().map(Value::from).chain(others).collect()
}

/// Each token with one of its values changed.
fn made_up(token: &str) -> Vec<String> {
    let bytes = URL_SAFE_NO_PAD.decode(token).unwrap();
    let token: Value = serde_json::from_slice(&bytes).unwrap();
    let mut made = Vec::new();
    for value in odd() {
        for changed in changes(&token["at"], &value) {
            let token = json!({"f": token["f"], "at": changed});
            made.push(URL_SAFE_NO_PAD.encode(token.to_string()));
        }
    }
    made
}

fn changes(value: &Value, into: &Value) -> Vec<Value> {
    let mut all = vec![into.clone()];
    match value {
        Value::Array(items) => {
            for (n, item) in items.iter().enumerate() {
                all.extend(changes(item, into).into_iter().map(|changed| {
                    let mut items = items.clone();
                    items[n] = changed;
                    Value::Array(items)
                }));
            }
        }
        Value::Object(object) => {
            for (key, item) in object {
                all.extend(changes(item, into).into_iter().map(|changed| {
                    let mut object = object.clone();
                    object.insert(key.clone(), changed);
                    Value::Object(object)
                }));
            }
        }
        _ => {}
    }
    all
}

async fn holds(server: Server) {
    let world = World::on(server).await;
    for (method, field) in [
        ("ListSessions", "page_token"),
        ("ListInvocations", "page_token"),
        ("ListEvents", "page_token"),
        ("ListAgents", "page_token"),
        ("WatchInvocations", "cursor"),
        ("ListApprovals", "page_token"),
        ("WatchApprovals", "cursor"),
    ] {
        let page = match field {
            "cursor" => json!({}),
            _ => json!({"page_size": 1}),
        };
        let first = world.ask(&case(method, page.clone())).await.unwrap();
        let token = match method {
            "ListSessions" => read::<pb::ListSessionsResponse>(&first).next_page_token,
            "ListInvocations" => read::<pb::ListInvocationsResponse>(&first).next_page_token,
            "ListEvents" => read::<pb::ListEventsResponse>(&first).next_page_token,
            "ListAgents" => read::<pb::ListAgentsResponse>(&first).next_page_token,
            "ListApprovals" => read::<pb::ListApprovalsResponse>(&first).next_page_token,
            "WatchApprovals" => read::<pb::WatchApprovalsResponse>(&first).cursor,
            _ => read::<pb::WatchInvocationsResponse>(&first).cursor,
        };
        assert_ne!(token, "", "{method} has more than one page");
        for made in made_up(&token) {
            let case = case(method, page.clone()).but(json!({ field: made }));
            if let Err(status) = world.ask(&case).await {
                let (_, why) = reason(&status);
                let fine = ["CURSOR_INVALID", "CURSOR_EXPIRED"].contains(&why.as_str());
                assert!(fine, "{}: {status:?}", case.shown());
            }
        }
    }
    world.works().await;
}

fn read<T: Message + Default>(replies: &[prost::bytes::Bytes]) -> T {
    T::decode(replies[0].as_ref()).unwrap()
}

const SECOND: &str = "{name: other, model: scripted, script: [{when: {user: '.'}, say: hello}]}";

#[tokio::test]
async fn made_up_places_are_refused_or_empty_in_memory() {
    holds(Server::start(sample().agent_file("other.yaml", SECOND)).await).await;
}

#[tokio::test]
async fn made_up_places_are_refused_or_empty_in_sqlite() {
    let directory = TempDir::new().unwrap();
    let builder = sample().agent_file("other.yaml", SECOND);
    holds(Server::stored(builder.sqlite(directory.path().join("x.db"))).await).await;
}
