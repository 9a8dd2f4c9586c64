//! One long-running call: placeholder, progress, answer, nothing, errors.

use countersign::agent::Answers;
use countersign::agent::LONG_RUNNING_NOTE;
use countersign::proto::v1::{call, end_mark::State};
use countersign::tool::Outcome;
use serde_json::{Value, json};

use super::stage::{Closure, calls, stage};
use crate::support::{answer, json, say_answers, story};

#[tokio::test]
async fn case_01_a_placeholder_is_told_and_the_model_acknowledges() {
    let ask = Closure::asks("ask");
    let runs = ask.runs();
    let mut stage = stage([ask]).await;
    let told = stage.say(r#"call ask {"sum":5}"#).await;
    assert_eq!(
        story(&told.events),
        [
            r#"clerk > ask({"sum":5})"#,
            r#"clerk < ask({"status":"pending"})"#,
            r#"clerk: heard ask {"status":"pending"}"#,
        ]
    );
    let id = calls(&told.events)[0].id.clone();
    assert!(id.starts_with("adk-"), "{id}");
    assert_eq!(told.events[0].long_running_tool_ids, [id.as_str()]);
    assert_eq!(told.events[0].calls[&id].kind(), call::Kind::LongRunning);
    assert_eq!((runs.get(), stage.asked()), (1, 2));
    assert_eq!(told.end.state(), State::Paused);
    let held = &told.end.held_calls[0];
    assert_eq!(held.function_call.as_ref().unwrap().id, id);
    assert_eq!((held.state(), held.answers()), (call::State::Held, call::Answers::Once));
}

#[tokio::test]
async fn case_02_progress_is_one_more_model_call_and_no_run_of_the_tool() {
    let ask = Closure::asks("ask").with(|behaviour| behaviour.answers = Answers::Many);
    let runs = ask.runs();
    let mut stage = stage([ask]).await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    assert_eq!(held.answers(), call::Answers::Many);
    let answers = vec![answer(held, json!({"status": "still waiting"}))];
    let rest = stage.client.run(say_answers("clerk", &told.begin.session_id, answers)).await;
    assert_eq!(story(&rest.events), [r#"clerk: heard ask {"status":"still waiting"}"#]);
    assert_eq!((runs.get(), stage.asked()), (1, 3));
    assert_eq!(rest.end.state(), State::Paused);
    let response = rest.end.held_calls[0].last_response.clone().unwrap().response.unwrap();
    assert_eq!(json(&response), json!({"status": "still waiting"}));
}

#[tokio::test]
async fn case_03_the_prompt_shows_the_newest_response_only() {
    let ask = Closure::asks("ask").with(|behaviour| behaviour.answers = Answers::Many);
    let mut stage = stage([ask]).await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    stage.answer(held, json!({"status": "still waiting"})).await;
    let mut last = answer(held, json!({"result": "done"}));
    last.will_continue = Some(false);
    let rest = stage.client.run(say_answers("clerk", &told.begin.session_id, vec![last])).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(
        stage.prompt(),
        ["user: call ask", "model > ask({})", r#"user < ask {"result":"done"}"#]
    );
    assert_eq!(stage.asked(), 4);
}

#[tokio::test]
async fn case_05_without_a_placeholder_only_the_call_is_told() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    assert_eq!(story(&told.events), ["clerk > ask({})"]);
    assert_eq!((stage.asked(), told.end.state()), (1, State::Paused));
    assert_eq!(told.end.held_calls[0].last_response, None);
}

#[tokio::test]
async fn case_06_the_answer_stands_beside_its_call() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let rest = stage.answer(&told.end.held_calls[0], json!({"status": "approved"})).await;
    assert_eq!(story(&rest.events), [r#"clerk: heard ask {"status":"approved"}"#]);
    assert_eq!(rest.begin.invocation_id, told.begin.invocation_id);
    assert_eq!((stage.asked(), rest.end.state()), (2, State::Completed));
    assert_eq!(
        stage.prompt(),
        ["user: call ask", "model > ask({})", r#"user < ask {"status":"approved"}"#]
    );
}

#[tokio::test]
async fn case_07_what_is_empty_is_no_placeholder() {
    let values = [json!({}), json!(""), json!([]), json!(0), json!(false), Value::Null];
    for value in values {
        let tool = Closure::gives("ask", Outcome::Value(value.clone())).long_running();
        let mut stage = stage([tool]).await;
        let told = stage.say("call ask").await;
        assert_eq!(story(&told.events), ["clerk > ask({})"], "{value}");
        assert_eq!((stage.asked(), told.end.state()), (1, State::Paused), "{value}");
    }
}

#[tokio::test]
async fn case_09_an_ordinary_tool_that_returns_nothing_has_a_null_result() {
    let mut stage = stage([Closure::gives("pay", Outcome::Nothing)]).await;
    let told = stage.say("call pay").await;
    assert_eq!(
        story(&told.events),
        [
            "clerk > pay({})",
            r#"clerk < pay({"result":null})"#,
            r#"clerk: heard pay {"result":null}"#
        ]
    );
    assert_eq!(told.end.state(), State::Completed);
}

#[tokio::test]
async fn case_10_the_event_of_a_long_running_call_is_final_though_more_follows() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let told = stage.say("call ask").await;
    let finals: Vec<bool> = told.events.iter().map(|event| event.final_response).collect();
    assert_eq!(finals, [true, false, true]);
}

#[tokio::test]
async fn case_11_only_events_with_long_running_calls_list_their_ids() {
    let mut stage = stage([Closure::gives("pay", Outcome::Nothing)]).await;
    let told = stage.say("call pay").await;
    // On the wire an empty list and none are the same.
    assert!(told.events.iter().all(|event| event.long_running_tool_ids.is_empty()));
    assert!(!told.events[0].final_response);
}

#[tokio::test]
async fn case_13_state_is_kept_though_the_tool_returns_nothing() {
    let tool = Closure::new("ask", |_, context| async move {
        context.set("asked", 1);
        Outcome::Nothing
    });
    let mut stage = stage([tool.long_running()]).await;
    let told = stage.say("call ask").await;
    assert_eq!(story(&told.events), ["clerk > ask({})", "clerk (no content)"]);
    let delta = told.events[1].actions.clone().unwrap().state_delta.unwrap();
    assert_eq!(json(&delta), json!({"asked": 1}));
    assert_eq!((stage.asked(), told.end.state()), (1, State::Paused));
    let rest = stage.answer(&told.end.held_calls[0], json!({"ok": true})).await;
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn case_14_a_long_running_tool_that_fails_is_done_and_the_run_goes_on() {
    let failing = Closure::gives("ask", Outcome::Error("no manager".into())).long_running();
    let panicking = Closure::new("panic", |_, _| async { panic!("on purpose") }).long_running();
    let mut stage = stage([failing, panicking]).await;
    let told = stage.say("call ask").await;
    assert_eq!(
        story(&told.events),
        [
            "clerk > ask({})",
            r#"clerk < ask({"error":"no manager"})"#,
            r#"clerk: heard ask {"error":"no manager"}"#,
        ]
    );
    assert_eq!(told.events[0].long_running_tool_ids.len(), 1);
    assert_eq!(told.end.state(), State::Completed);
    let told = stage.say("call panic").await;
    assert!(story(&told.events)[1].contains("error"), "{:?}", story(&told.events));
    assert_eq!(told.end.state(), State::Completed);
}

#[tokio::test]
async fn case_15_a_missing_argument_is_named_and_the_tool_not_run() {
    let schema = json!({
        "type": "object", "required": ["sum"], "properties": {"sum": {"type": "number"}},
    });
    let ask = Closure::asks("ask").parameters(schema);
    let runs = ask.runs();
    let mut stage = stage([ask]).await;
    let told = stage.say("call ask").await;
    let told_error = &story(&told.events)[1];
    assert!(told_error.contains("error") && told_error.contains("sum"), "{told_error}");
    assert_eq!(told.events[0].long_running_tool_ids.len(), 1);
    assert_eq!((runs.get(), stage.asked(), told.end.state()), (0, 2, State::Completed));
}

#[tokio::test]
async fn the_model_is_told_that_a_tool_is_long_running() {
    let mut stage = stage([Closure::waits("ask"), Closure::gives("pay", Outcome::Nothing)]).await;
    stage.say("hello").await;
    let descriptions: Vec<_> =
        stage.request().tools.iter().map(|tool| tool.description.clone()).collect();
    assert_eq!(descriptions, [format!("Does ask.\n\n{LONG_RUNNING_NOTE}"), "Does pay.".into()]);
}
