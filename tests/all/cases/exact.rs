//! Numbers keep their digits, and what is approved is what runs.

use std::sync::{Arc, Mutex};

use countersign::proto::v1::{self as pb, end_mark::State};
use countersign::session::content::Object;
use countersign::session::json;
use countersign::tool::Outcome;
use serde_json::{Value, json};

use super::stage::{Closure, stage};
use crate::support::{story, submit};

/// 2^53 + 1: no double is it.
const ACCOUNT: &str = "9007199254740993";

#[tokio::test]
async fn an_answer_keeps_every_digit() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    let exact = format!(r#"{{"account":{ACCOUNT},"sum":0.10}}"#);
    let request = pb::SubmitFunctionResponseRequest {
        response_json: exact.clone(),
        ..submit(held, Value::Null)
    };
    let done = stage.client.submit(request).await.unwrap();
    stage.client.follow(&done).await;
    assert_eq!(stage.prompt()[2], format!("user < ask {exact}"));
    let events = stage.events(&told.begin.session_id).await;
    let id = &held.function_call.as_ref().unwrap().id;
    assert_eq!(events[2].calls[id].exact_json, exact);
    assert_eq!(done.call.unwrap().exact_response_json, exact);
    // The model's words have it too.
    assert!(story(&events)[3].contains(ACCOUNT));
}

#[tokio::test]
async fn arguments_and_results_keep_every_digit() {
    let seen: Arc<Mutex<Object>> = Arc::default();
    let pay = {
        let seen = seen.clone();
        Closure::new("pay", move |args, _| {
            *seen.lock().unwrap() = args.clone();
            std::future::ready(Outcome::Value(Value::Object(args)))
        })
    };
    let mut stage = stage([pay]).await;
    let exact = format!(r#"{{"account":{ACCOUNT}}}"#);
    let told = stage.say(&format!("call pay {exact}")).await;
    assert_eq!(Value::Object(seen.lock().unwrap().clone()).to_string(), exact);
    for event in &told.events[..2] {
        assert_eq!(event.calls.values().next().unwrap().exact_json, exact);
    }
    assert_eq!(
        stage.prompt()[1..],
        [format!("model > pay({exact})"), format!("user < pay {exact}")]
    );
}

#[tokio::test]
async fn state_keeps_every_digit_for_tools() {
    let keep = Closure::new("keep", |args, context| async move {
        for (key, value) in args {
            context.set(key, value);
        }
        Outcome::Value(json!({"kept": context.get("n"), "user": context.get("user:n")}))
    });
    let mut stage = stage([keep]).await;
    let told = stage.say(&format!(r#"call keep {{"n":{ACCOUNT},"user:n":{ACCOUNT}}}"#)).await;
    stage.say_in(&told.begin.session_id, "call keep").await;
    let expected = format!(r#"user < keep {{"kept":{ACCOUNT},"user":{ACCOUNT}}}"#);
    assert_eq!(stage.prompt().last().unwrap(), &expected);
}

#[tokio::test]
async fn effective_arguments_are_digested_shown_and_run() {
    let seen: Arc<Mutex<Object>> = Arc::default();
    let schema = json!({
        "type": "object",
        "required": ["sum"],
        "properties": {
            "sum": {"type": "number"},
            "currency": {"type": "string", "default": "EUR"},
        },
    });
    let ask = {
        let seen = seen.clone();
        Closure::new("ask", move |args, _| {
            *seen.lock().unwrap() = args;
            std::future::ready(Outcome::Nothing)
        })
    };
    let mut stage = stage([ask.long_running().parameters(schema)]).await;
    let told = stage.say(r#"call ask {"sum":5.0,"mood":"fine"}"#).await;
    assert_eq!(told.end.state(), State::Paused);
    let effective = json!({"sum": 5.0, "currency": "EUR"});
    let run = Value::Object(seen.lock().unwrap().clone());
    assert!(json::same(&run, &effective), "{run}");

    let call = &told.end.held_calls[0];
    let shown: Value = serde_json::from_str(&call.exact_args_json).unwrap();
    assert!(json::same(&shown, &effective), "{shown}");
    let digest = json::args_digest("ask", effective.as_object().unwrap()).unwrap();
    assert_eq!(call.args_digest, digest);

    // The event keeps what the model wrote, and tells the rest in its facts.
    assert_eq!(story(&told.events), [r#"clerk > ask({"mood":"fine","sum":5})"#]);
    let facts = &told.events[0].calls[&call.function_call.as_ref().unwrap().id];
    assert_eq!(facts.args_digest, digest);
    let exact: Value = serde_json::from_str(&facts.exact_json).unwrap();
    assert!(json::same(&exact, &effective), "{exact}");
}

#[tokio::test]
async fn two_numbers_that_are_one_double_have_two_digests() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut digests = Vec::new();
    for number in [ACCOUNT, "9007199254740992", "9007199254740992.0", "9.007199254740992e15"] {
        let told = stage.say(&format!(r#"call ask {{"account":{number}}}"#)).await;
        digests.push(told.end.held_calls[0].args_digest.clone());
    }
    assert_ne!(digests[0], digests[1]);
    assert_eq!(digests[1], digests[2]);
    assert_eq!(digests[1], digests[3]);
}
