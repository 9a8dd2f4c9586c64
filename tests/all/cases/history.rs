//! What the model is told of what was before.

use countersign::agent::Answers;
use countersign::proto::v1::end_mark::State;
use countersign::tool::Outcome;
use serde_json::json;

use super::stage::{Closure, Setting, calls, stage};
use crate::support::{story, submit};

const APPROVED: &str = r#"user < ask {"status":"approved"}"#;

#[tokio::test]
async fn case_41_chat_between_call_and_answer_is_told_the_next_time() {
    let mut stage = stage([Closure::asks("ask")]).await;
    let told = stage.say("call ask").await;
    let session = &told.begin.session_id;
    let chat = stage.say_in(session, "hello").await;
    assert_eq!(chat.end.state(), State::Completed);
    assert_ne!(chat.begin.invocation_id, told.begin.invocation_id);
    stage.answer(&told.end.held_calls[0], json!({"status": "approved"})).await;
    assert_eq!(stage.prompt(), ["user: call ask", "model > ask({})", APPROVED]);
    stage.say_in(session, "thanks").await;
    assert_eq!(
        stage.prompt(),
        [
            "user: call ask",
            "model > ask({})",
            APPROVED,
            r#"model: heard ask {"status":"pending"}"#,
            "user: hello",
            "model: you said: hello",
            r#"model: heard ask {"status":"approved"}"#,
            "user: thanks",
        ]
    );
}

#[tokio::test]
async fn case_42_of_several_updates_only_the_last_is_told() {
    let ask = Closure::asks("ask").with(|behaviour| behaviour.answers = Answers::Many);
    let mut stage = stage([ask]).await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    for step in 1..=3 {
        let rest = stage.answer(held, json!({"step": step})).await;
        assert_eq!(rest.end.state(), State::Paused);
        let last = format!(r#"user < ask {{"step":{step}}}"#);
        assert_eq!(stage.prompt(), ["user: call ask", "model > ask({})", last.as_str()]);
    }
}

#[tokio::test]
async fn case_43_words_about_an_update_are_dropped_once_they_are_stale() {
    let ask = Closure::waits("ask").with(|behaviour| behaviour.answers = Answers::Many);
    let mut stage = stage([ask]).await;
    let told = stage.say("call ask").await;
    let held = &told.end.held_calls[0];
    stage.answer(held, json!({"step": 1})).await;
    let mut last = submit(held, json!({"status": "approved"}));
    last.function_response.as_mut().unwrap().will_continue = Some(false);
    let done = stage.client.submit(last).await.unwrap();
    stage.client.follow(&done).await;
    stage.say_in(&told.begin.session_id, "thanks").await;
    assert_eq!(
        stage.prompt(),
        [
            "user: call ask",
            "model > ask({})",
            APPROVED,
            r#"model: heard ask {"status":"approved"}"#,
            "user: thanks",
        ]
    );
}

#[tokio::test]
async fn case_45_calls_of_one_turn_have_their_responses_in_one_content() {
    let pay = Closure::gives("pay", Outcome::Value(json!({"paid": 5})));
    let mut stage = stage([pay, Closure::asks("ask")]).await;
    let told = stage.say("call pay & ask").await;
    stage.answer(&told.end.held_calls[0], json!({"status": "approved"})).await;
    stage.say_in(&told.begin.session_id, "thanks").await;
    let prompt = stage.prompt();
    assert_eq!(prompt[1], "model > pay({}) + model > ask({})");
    assert_eq!(prompt[2], format!(r#"user < pay {{"paid":5}} + {APPROVED}"#));
    assert_eq!(prompt.iter().filter(|line| line.contains(" < ")).count(), 1);
}

#[tokio::test]
async fn case_46_what_was_said_between_call_and_answer_stands_behind_both() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let session = &told.begin.session_id;
    stage.say_in(session, "hello").await;
    stage.answer(&told.end.held_calls[0], json!({"status": "approved"})).await;
    stage.say_in(session, "thanks").await;
    assert_eq!(
        stage.prompt(),
        [
            "user: call ask",
            "model > ask({})",
            APPROVED,
            "user: hello",
            "model: you said: hello",
            r#"model: heard ask {"status":"approved"}"#,
            "user: thanks",
        ]
    );
}

#[tokio::test]
async fn case_47_a_response_without_its_call_is_dropped() {
    let pay = Closure::gives("pay", Outcome::Nothing);
    let mut stage = Setting::new().tool(pay).line("max_prompt_events: 3").set().await;
    let told = stage.say("call pay").await;
    stage.say_in(&told.begin.session_id, "hello").await;
    assert_eq!(stage.prompt(), [r#"model: heard pay {"result":null}"#, "user: hello"]);
}

#[tokio::test]
async fn a_call_that_is_answered_late_is_in_the_prompt_however_short_that_is() {
    let setting = Setting::new().tool(Closure::waits("ask")).line("max_prompt_events: 3");
    let mut stage = setting.set().await;
    let told = stage.say("call ask").await;
    for _ in 0..3 {
        stage.say_in(&told.begin.session_id, "hello").await;
    }
    let rest = stage.answer(&told.end.held_calls[0], json!({"status": "approved"})).await;
    assert_eq!(stage.prompt(), ["model > ask({})", APPROVED]);
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn case_50_an_id_that_the_model_uses_twice_is_two_calls() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask & ask").await;
    let ids: Vec<_> = calls(&told.events).into_iter().map(|call| call.id).collect();
    assert_ne!(ids[0], ids[1]);
    stage.answer(&told.end.held_calls[1], json!({"n": 2})).await;
    let rest = stage.answer(&told.end.held_calls[0], json!({"n": 1})).await;
    assert_eq!(story(&rest.events), [r#"clerk: heard ask {"n":2}, heard ask {"n":1}"#]);
    let request = stage.request();
    let answered: Vec<_> =
        request.contents[2].responses().map(|answer| answer.id.to_string()).collect();
    assert_eq!(answered, [ids[1].clone(), ids[0].clone()]);
}

#[tokio::test]
async fn text_while_a_call_is_held_is_told_that_it_is_pending() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("call ask").await;
    let session = &told.begin.session_id;
    let chat = stage.say_in(session, "hello").await;
    assert_eq!(
        stage.prompt(),
        ["user: call ask", "model > ask({})", r#"user < ask {"status":"pending"}"#, "user: hello"]
    );
    assert_eq!(chat.end.state(), State::Completed);
    assert_eq!(chat.end.held_calls, []);
    // It was made up and never stored, and the call is still held.
    let stored = story(&stage.events(session).await);
    assert_eq!(
        stored,
        ["user: call ask", "clerk > ask({})", "user: hello", "clerk: you said: hello"]
    );
    let rest = stage.answer(&told.end.held_calls[0], json!({"status": "approved"})).await;
    assert_eq!(rest.end.state(), State::Completed);
}
