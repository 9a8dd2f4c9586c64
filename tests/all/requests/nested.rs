//! Objects: how deep they nest, and what they cannot hold.

use countersign::proto::{v1 as pb, wkt};
use prost::Message;
use serde_json::json;
use tonic::Code;

use super::table::wrong_structs;
use super::{Case, World, case};
use crate::support::{fields, reason};
use crate::wire::{Content, delimited};

/// Method, path of the object, and how that path is told.
const OBJECTS: &[(&str, &str, &str)] = &[
    ("RunAsync", "state_delta", "state_delta"),
    ("RunAsync", "run_config.custom_metadata", "run_config.custom_metadata"),
    ("RunAsync", "new_message.parts", "new_message.parts[1].function_response.response"),
    ("SubmitFunctionResponse", "function_response.response", "function_response.response"),
    ("CreateSession", "state", "state"),
    ("ImportSession", "state", "state"),
    ("ImportSession", "events", "events[1]"),
    ("UpdateSessionState", "state_delta", "state_delta"),
    // Last: it answers the other session's call, whose result may be any object.
    ("DecideApproval", "result", "result"),
];

/// A request with this object in place of the valid one's.
fn with(method: &'static str, path: &'static str, object: &wkt::Struct) -> Case {
    with_bytes(method, path, &object.encode_to_vec())
}

fn with_bytes(method: &'static str, path: &'static str, object: &[u8]) -> Case {
    let patch = match (method, path) {
        ("SubmitFunctionResponse", _) => {
            json!({"function_response": {"id": "$call", "name": "ask_for_approval"}})
        }
        ("DecideApproval", _) => json!({"call_id": "$other_call", "verdict": "SUPPLY_RESULT"}),
        _ => json!({}),
    };
    if path != "new_message.parts" {
        return case(method, patch).with(path, Content::Bytes(object));
    }
    let (id, name) = ("adk-1".to_owned(), "pay".to_owned());
    let mut response = pb::FunctionResponse { id, name, ..Default::default() }.encode_to_vec();
    response.extend(delimited(3, object));
    case(method, patch).with(path, Content::Bytes(&delimited(3, &response)))
}

/// An object of objects, so many levels deep.
fn objects(levels: usize) -> wkt::Struct {
    (1..levels).fold(wkt::Struct::default(), |inner, _| {
        wkt::Struct::from_iter([("a".to_owned(), inner.into())])
    })
}

/// An object of lists, so many levels deep.
fn lists(levels: usize) -> wkt::Struct {
    let list = |inner: wkt::Value| wkt::ListValue::from_iter([inner]).into();
    let inner = (2..levels).fold(wkt::ListValue::default().into(), |inner, _| list(inner));
    wkt::Struct::from_iter([("a".to_owned(), inner)])
}

/// The bytes of lists in lists, without end.
fn bottomless(levels: usize) -> Vec<u8> {
    let mut value = delimited(6, &[]);
    for _ in 0..levels {
        value = delimited(6, &delimited(1, &value));
    }
    let mut entry = delimited(1, b"a");
    entry.extend(delimited(2, &value));
    delimited(1, &entry)
}

#[tokio::test]
async fn what_is_no_json_is_refused_with_its_path() {
    let world = World::new().await;
    for &(method, path, told) in OBJECTS {
        for (object, at) in wrong_structs() {
            let case = with(method, path, &object);
            world.refuses(&case, "FIELD_INVALID", &[&format!("{told}{at}")]).await;
        }
    }
    world.works().await;
}

#[tokio::test]
async fn what_nests_too_deep_is_refused() {
    let world = World::new().await;
    let bottomless = [bottomless(60), bottomless(5_000)];
    for &(method, path, told) in OBJECTS {
        for object in [objects(33), lists(33), lists(48)] {
            let case = with(method, path, &object);
            let status = world.refusal(&case).await;
            assert_eq!(reason(&status).1, "FIELD_INVALID", "{}: {status:?}", case.shown());
            let [field] = &fields(&status)[..] else { panic!("{status:?}") };
            assert!(field.starts_with(told), "{field}");
        }
        // Beyond what decoders go down it is the codec that refuses.
        for object in &bottomless {
            let status = world.refusal(&with_bytes(method, path, object)).await;
            assert_eq!(status.code(), Code::Internal, "{status:?}");
            assert!(status.details().is_empty());
        }
    }
    world.works().await;
}

#[tokio::test]
async fn what_clients_can_still_read_is_taken() {
    for levels in [objects(32), lists(32)] {
        let world = World::new().await;
        for &(method, path, _) in OBJECTS.iter().filter(|(_, path, _)| *path != "new_message.parts")
        {
            let case = with(method, path, &levels);
            world.ask(&case).await.unwrap_or_else(|e| panic!("{}: {e:?}", case.shown()));
        }
        // As clients read it: with the generated code, and by its recursion limit.
        let mut client = world.server.client().await;
        let events = client.events(super::APP, "s1").await;
        let deepest = |event: &pb::Event| {
            let parts = event.content.iter().flat_map(|content| &content.parts);
            let answers = parts.filter_map(|part| match &part.data {
                Some(pb::part::Data::FunctionResponse(answer)) => answer.response.clone(),
                _ => None,
            });
            answers.into_iter().any(|answer| answer == levels)
        };
        assert!(events.iter().any(deepest), "the answer is in the conversation");
        let metadata = |event: &pb::Event| event.custom_metadata.as_ref() == Some(&levels);
        assert!(events.iter().any(metadata), "the metadata is on its events");
        super::at_rest(&world.server).await;
        world.ask(&case("ListInvocations", json!({}))).await.unwrap();
        world.ask(&case("WatchInvocations", json!({}))).await.unwrap();
    }
}

#[tokio::test]
async fn faults_fit_into_what_clients_take() {
    let world = World::new().await;
    // Long keys in every script, nested as deep as may be, and wrong in many places.
    for key in ["k".repeat(200), "\u{1f600}".repeat(200), "\u{1}".repeat(200), "%".repeat(200)] {
        let wrong = |n: usize| (format!("{key}{n}"), wkt::Value::from(f64::NAN));
        let inner = wkt::Struct::from_iter((0..50).map(wrong));
        let outer =
            (1..31).fold(inner, |inner, _| wkt::Struct::from_iter([(key.clone(), inner.into())]));
        let status = world.refusal(&with("CreateSession", "state", &outer)).await;
        assert_eq!(reason(&status).1, "FIELD_INVALID", "{status:?}");
        assert!(!fields(&status).is_empty());
        let sent: usize = status
            .message()
            .chars()
            .map(|c| if c.is_ascii_graphic() || c == ' ' { 1 } else { 3 * c.len_utf8() })
            .sum();
        assert!(
            sent + status.details().len() * 4 / 3 < 8 << 10,
            "{sent} and {}",
            status.details().len()
        );
    }
    world.works().await;
}
