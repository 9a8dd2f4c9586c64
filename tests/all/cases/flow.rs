//! Unknown tools, failing tools and models, limits, words while they are spoken.

use countersign::proto::v1::{self as pb, end_mark::State, invocation, run_config};
use countersign::tool::Outcome;
use serde_json::json;

use super::stage::{APP, Closure, Setting, call_of, calls, soon, stage};
use crate::support::{USER, say, story};

fn with_limit(session: &str, text: &str, max_llm_calls: i32) -> pb::RunAsyncRequest {
    let run_config =
        Some(pb::RunConfig { max_llm_calls: Some(max_llm_calls), ..Default::default() });
    pb::RunAsyncRequest { run_config, ..say(APP, session, text) }
}

#[tokio::test]
async fn case_94_an_unknown_tool_is_told_with_those_there_are() {
    let mut stage = stage([Closure::waits("ask"), Closure::gives("pay", Outcome::Nothing)]).await;
    let told = stage.say("call stroll").await;
    let error = &story(&told.events)[1];
    assert!(error.contains("error") && error.contains("ask") && error.contains("pay"), "{error}");
    assert_eq!((stage.asked(), told.end.state()), (2, State::Completed));
    assert!(told.events[0].long_running_tool_ids.is_empty());
}

#[tokio::test]
async fn case_95_one_failing_tool_leaves_the_others_result() {
    let pay = Closure::gives("pay", Outcome::Value(json!({"paid": 5})));
    let post = Closure::gives("post", Outcome::Error(json!("no stamps")));
    let panic = Closure::new("panic", |_, _| async { panic!("on purpose") });
    let mut stage = stage([pay, post, panic]).await;
    let told = stage.say("call pay & post & panic").await;
    let responses = story(&told.events)[1].clone();
    assert!(
        responses.starts_with(
            r#"clerk < pay({"paid":5}) + clerk < post({"error":"no stamps"}) + clerk < panic({"#
        ),
        "{responses}"
    );
    assert!(!responses.contains("on purpose"), "{responses}");
    assert_eq!((stage.asked(), told.end.state()), (2, State::Completed));
}

#[tokio::test]
async fn case_98_the_third_of_two_model_calls_fails() {
    let pay = Closure::gives("pay", Outcome::Nothing);
    let runs = pay.runs();
    let setting = Setting::new().tool(pay);
    let mut stage = setting.cue(|_| Some(call_of("pay", Default::default()))).set().await;
    let told = soon(stage.client.run(with_limit("", "call pay", 2))).await;
    assert_eq!(told.end.state(), State::Failed);
    assert_eq!(told.end.error_code, "LIMIT_EXCEEDED");
    assert_eq!((stage.asked(), runs.get(), told.events.len()), (2, 2, 5));
    assert_eq!(story(&told.events)[4], "clerk ! LIMIT_EXCEEDED");
    assert!(told.events[4].error_message.contains("max_llm_calls"));
    // The session goes on, with a budget of its own.
    let next = soon(stage.client.run(with_limit(&told.begin.session_id, "hello", 1))).await;
    assert_eq!(next.end.state(), State::Completed);
}

#[tokio::test]
async fn case_98_an_answer_begins_a_budget_anew() {
    let pay = Closure::gives("pay", Outcome::Nothing);
    let setting = Setting::new().tool(pay).tool(Closure::waits("ask"));
    let pays = |name: &str| (name == "ask").then(|| call_of("pay", Default::default()));
    let mut stage = setting.cue(move |heard| pays(&heard.name)).set().await;
    let told = soon(stage.client.run(with_limit("", "call ask", 2))).await;
    assert_eq!(told.end.state(), State::Paused);
    let rest = stage.answer(&told.end.held_calls[0], json!({"ok": true})).await;
    assert_eq!((stage.asked(), rest.end.state()), (3, State::Completed));
}

#[tokio::test]
async fn case_99_pieces_are_shown_and_not_stored() {
    let pay = Closure::gives("pay", Outcome::Nothing);
    let runs = pay.runs();
    let mut stage = stage([pay]).await;
    let mut request = say(APP, "", "call pay");
    let streaming_mode = run_config::StreamingMode::Sse.into();
    request.run_config = Some(pb::RunConfig { streaming_mode, ..Default::default() });
    let told = soon(stage.client.run(request)).await;
    let (partial, whole): (Vec<_>, Vec<_>) =
        told.events.into_iter().partition(|event| event.partial);
    // Whoever is slow gets longer pieces, and all of the text.
    let lines = story(&partial).into_iter();
    let said: String =
        lines.filter_map(|line| Some(line.strip_prefix("clerk: ")?.to_owned())).collect();
    assert_eq!(said, r#"heard pay {"result":null}"#);
    assert_eq!(whole.len(), 3);
    let last = &whole[2];
    assert!(partial.iter().all(|event| event.id == last.id && event.sequence == 0));
    assert_eq!((runs.get(), calls(&whole).len()), (1, 1));
    let stored = stage.events(&told.begin.session_id).await;
    assert_eq!(stored[1..], whole);
}

#[tokio::test]
async fn streaming_outlives_a_pause() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut request = say(APP, "", "call ask");
    let streaming_mode = run_config::StreamingMode::Sse.into();
    request.run_config = Some(pb::RunConfig { streaming_mode, ..Default::default() });
    let told = soon(stage.client.run(request)).await;
    // Whoever answers with a plain request gets the pieces too.
    let call = told.end.held_calls[0].clone();
    let answers = vec![crate::support::answer(&call, json!({"n": 1}))];
    let session = &told.begin.session_id;
    let rest = soon(stage.client.run(crate::support::say_answers(APP, session, answers))).await;
    assert!(rest.events.iter().any(|event| event.partial), "{:?}", rest.events);
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn a_model_that_fails_ends_the_run_and_says_why() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("fail").await;
    assert_eq!(story(&told.events), ["clerk ! MODEL_UNWILLING"]);
    assert!(told.events[0].final_response);
    assert_eq!(told.end.state(), State::Failed);
    assert_eq!(told.end.error_code, "MODEL_UNWILLING");
    assert_eq!(told.end.error_message, "it does not want to");
    let request = pb::GetInvocationRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        invocation_id: told.begin.invocation_id,
        ..Default::default()
    };
    let invocation = stage.client.agents.get_invocation(request).await.unwrap().into_inner();
    assert_eq!(invocation.state(), invocation::State::Failed);
    assert_eq!(invocation.error_code, "MODEL_UNWILLING");
}

#[tokio::test]
async fn a_run_that_fails_closes_the_calls_that_it_held() {
    let setting = Setting::new().tool(Closure::asks("ask")).tool(Closure::asks("beg"));
    let asks = |name: &str| (name == "ask").then(|| call_of("ask", Default::default()));
    let mut stage = setting.cue(move |heard| asks(&heard.name)).set().await;
    let told = soon(stage.client.run(with_limit("", "call beg & ask", 3))).await;
    assert_eq!(told.end.state(), State::Failed);
    let id = calls(&told.events)[0].id.clone();
    let answer = pb::SubmitFunctionResponseRequest {
        function_response: Some(pb::FunctionResponse {
            id,
            name: "beg".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let refused = stage.client.submit(answer).await.unwrap_err();
    assert_eq!(crate::support::reason(&refused).1, "CALL_CANCELLED");
    let last = &told.events.last().unwrap();
    assert!(
        story(std::slice::from_ref(last))[0].contains("cancelled"),
        "{:?}",
        story(&told.events)
    );
}
