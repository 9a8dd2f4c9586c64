//! Answers that are refused, and those that are not: nothing is stored of the refused ones.

use countersign::proto::v1::{
    self as pb, end_mark::State, submit_function_response_response::Outcome as Answered,
};
use countersign::tool::Outcome;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::stage::{Closure, Stage, calls, stage};
use crate::support::{Told, answer, fields, json, object, reason, say, say_answers, story, submit};

/// A held call in a session of its own.
async fn held(stage: &mut Stage) -> (Told, pb::Call) {
    let told = stage.say("call ask").await;
    let held = told.end.held_calls[0].clone();
    (told, held)
}

/// Both ways to answer refuse it so, and nothing is stored.
async fn refused(
    stage: &mut Stage,
    told: &Told,
    answer: pb::FunctionResponse,
    code: Code,
    why: &str,
) -> [Status; 2] {
    let session = &told.begin.session_id;
    let (events, asked) = (stage.events(session).await, stage.asked());
    let request = say_answers("clerk", session, vec![answer.clone()]);
    let run = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&run), (code, why.to_owned()));
    let request =
        pb::SubmitFunctionResponseRequest { function_response: Some(answer), ..Default::default() };
    let submit = stage.client.submit(request).await.unwrap_err();
    assert_eq!(reason(&submit), (code, why.to_owned()));
    assert_eq!((stage.events(session).await, stage.asked()), (events, asked));
    [run, submit]
}

fn metadata(status: &Status, key: &str) -> String {
    let info = status.get_details_error_info().unwrap();
    info.metadata.get(key).cloned().unwrap_or_default()
}

#[tokio::test]
async fn case_26_an_unknown_id_is_named() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let unknown = pb::FunctionResponse { id: "adk-0".into(), ..answer(&call, json!({})) };
    for status in refused(&mut stage, &told, unknown, Code::NotFound, "CALL_NOT_FOUND").await {
        assert_eq!(metadata(&status, "call_id"), "adk-0");
    }
}

#[tokio::test]
async fn case_27_an_answer_without_id_is_refused() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let nameless = pb::FunctionResponse { id: String::new(), ..answer(&call, json!({})) };
    let [run, submit] =
        refused(&mut stage, &told, nameless, Code::InvalidArgument, "FIELD_INVALID").await;
    assert_eq!(fields(&run), ["new_message.parts[0].function_response.id"]);
    assert_eq!(fields(&submit), ["function_response.id"]);
}

#[tokio::test]
async fn another_name_than_the_calls_is_refused() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let other = pb::FunctionResponse { name: "beg".into(), ..answer(&call, json!({})) };
    let [run, _] =
        refused(&mut stage, &told, other, Code::InvalidArgument, "CALL_NAME_MISMATCH").await;
    assert_eq!(metadata(&run, "expected_name"), "ask");
}

#[tokio::test]
async fn case_29_a_null_answer_is_told_as_null() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (_, call) = held(&mut stage).await;
    let rest = stage.answer(&call, Value::Null).await;
    assert_eq!(stage.prompt()[2], "user < ask null");
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn case_30_an_answer_with_text_is_refused() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let session = &told.begin.session_id;
    let mut request = say_answers("clerk", session, vec![answer(&call, json!({"ok": 1}))]);
    let text = say("clerk", session, "by the way").new_message.unwrap().parts;
    request.new_message.as_mut().unwrap().parts.extend(text);
    let before = stage.events(session).await;
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "MIXED_MESSAGE".into()));
    assert_eq!((stage.events(session).await, stage.asked()), (before, 1));
}

#[tokio::test]
async fn case_31_what_a_client_says_is_the_users() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut request = say("clerk", "", "hello");
    request.new_message.as_mut().unwrap().role = "model".into();
    let told = stage.client.run(request).await;
    let events = stage.events(&told.begin.session_id).await;
    assert_eq!(events[0].content.as_ref().unwrap().role, "user");
    assert_eq!((events[0].author.as_str(), stage.prompt()), ("user", vec!["user: hello".into()]));
}

#[tokio::test]
async fn case_33_a_message_that_says_nothing_is_refused() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let told = stage.say("hello").await;
    let session = &told.begin.session_id;
    let mut none = say("clerk", session, "");
    none.new_message = None;
    let mut partless = say("clerk", session, "");
    partless.new_message.as_mut().unwrap().parts.clear();
    let mut dataless = say("clerk", session, "");
    dataless.new_message.as_mut().unwrap().parts[0].data = None;
    for (request, field) in [
        (none, "new_message"),
        (partless, "new_message.parts"),
        (dataless, "new_message.parts[0]"),
        (say("clerk", session, ""), "new_message.parts"),
    ] {
        let refused = stage.client.try_run(request).await.unwrap_err();
        assert_eq!(reason(&refused), (Code::InvalidArgument, "FIELD_INVALID".into()));
        assert_eq!(fields(&refused), [field]);
    }
    assert_eq!(stage.events(session).await.len(), 2);
}

#[tokio::test]
async fn a_call_that_a_client_makes_is_refused() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let mut request = say("clerk", "", "");
    let call = pb::FunctionCall { id: "adk-1".into(), name: "ask".into(), args: None };
    request.new_message.as_mut().unwrap().parts[0].data = Some(pb::part::Data::FunctionCall(call));
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "FIELD_INVALID".into()));
    assert_eq!(fields(&refused), ["new_message.parts[0].function_call"]);
}

#[tokio::test]
async fn case_34_a_finished_ordinary_call_cannot_be_answered() {
    let mut stage = stage([Closure::gives("pay", Outcome::Nothing)]).await;
    let told = stage.say("call pay").await;
    let call = pb::FunctionResponse {
        id: calls(&told.events)[0].id.clone(),
        name: "pay".into(),
        response: Some(object(json!({"paid": 0}))),
        will_continue: None,
    };
    let code = Code::FailedPrecondition;
    let [run, _] = refused(&mut stage, &told, call, code, "CALL_ALREADY_ANSWERED").await;
    assert_eq!(metadata(&run, "answered_by"), "tool:pay");
}

#[tokio::test]
async fn case_35_the_same_answer_again_changes_nothing() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let first = stage.client.submit(submit(&call, json!({"sum": 1}))).await.unwrap();
    assert_eq!(first.outcome(), Answered::Applied);
    let rest = stage.client.follow(&first).await;
    assert_eq!(rest.end.state(), State::Completed);

    // Same by content: 1.0 is 1.
    let request = pb::SubmitFunctionResponseRequest {
        function_response: Some(answer(&call, Value::Null)),
        response_json: r#"{"sum": 1.0}"#.into(),
        ..Default::default()
    };
    let again = stage.client.submit(request).await.unwrap();
    assert_eq!(again.outcome(), Answered::Duplicate);
    assert_eq!(again.invocation_state(), pb::invocation::State::Completed);
    assert_eq!((again.sequence, again.after_sequence), (first.sequence, first.after_sequence));
    let shown = stage.client.follow(&again).await;
    assert_eq!((shown.events, shown.end), (rest.events, rest.end));
    assert_eq!((stage.asked(), stage.events(&told.begin.session_id).await.len()), (2, 4));

    let other = answer(&call, json!({"sum": 2}));
    let code = Code::FailedPrecondition;
    let [_, status] = refused(&mut stage, &told, other, code, "CALL_ALREADY_ANSWERED").await;
    assert_eq!(metadata(&status, "answered_by"), first.call.unwrap().answered_by);
}

#[tokio::test]
async fn case_37_a_session_of_another_user_is_not_there() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let session = &told.begin.session_id;
    let mut request = say("clerk", session, "hello");
    request.user_id = "bob".into();
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "SESSION_NOT_FOUND".into()));
    let mut request = say_answers("clerk", session, vec![answer(&call, json!({}))]);
    request.user_id = "bob".into();
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "CALL_NOT_FOUND".into()));
    for wrong in [
        pb::SubmitFunctionResponseRequest { user_id: "bob".into(), ..submit(&call, json!({})) },
        pb::SubmitFunctionResponseRequest { app_name: "other".into(), ..submit(&call, json!({})) },
        pb::SubmitFunctionResponseRequest { session_id: "s".into(), ..submit(&call, json!({})) },
    ] {
        let refused = stage.client.submit(wrong).await.unwrap_err();
        assert_eq!(reason(&refused), (Code::NotFound, "CALL_NOT_FOUND".into()));
    }
    assert_eq!(stage.events(session).await.len(), 2);
}

#[tokio::test]
async fn case_38_another_invocation_than_the_calls_is_refused() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let session = told.begin.session_id.clone();
    let mut request = say_answers("clerk", &session, vec![answer(&call, json!({}))]);
    request.invocation_id = "e-other".into();
    let refused = stage.client.try_run(request.clone()).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "INVOCATION_MISMATCH".into()));
    let wrong = pb::SubmitFunctionResponseRequest {
        invocation_id: "e-other".into(),
        ..submit(&call, json!({}))
    };
    let refused = stage.client.submit(wrong).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "INVOCATION_MISMATCH".into()));
    assert_eq!(metadata(&refused, "invocation_id"), told.begin.invocation_id);
    request.invocation_id = told.begin.invocation_id.clone();
    assert_eq!(stage.client.run(request).await.end.state(), State::Completed);

    let mut request = say("clerk", &session, "hello");
    request.invocation_id = told.begin.invocation_id;
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::InvalidArgument, "FIELD_INVALID".into()));
    assert_eq!(fields(&refused), ["invocation_id"]);
}

#[tokio::test]
async fn case_39_an_invocation_alone_is_followed_and_nothing_set_going() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let mut request = say("clerk", &told.begin.session_id, "");
    request.new_message = None;
    request.invocation_id = told.begin.invocation_id.clone();
    let again = stage.client.run(request.clone()).await;
    assert_eq!(story(&again.events), ["user: call ask", "clerk > ask({})"]);
    assert_eq!((again.end.state(), &again.end.held_calls[0]), (State::Paused, &call));
    request.after_sequence = told.end.after_sequence;
    let again = stage.client.run(request.clone()).await;
    assert_eq!((again.events.len(), again.end), (0, told.end));
    assert_eq!(stage.asked(), 1);

    request.invocation_id = "e-other".into();
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::NotFound, "INVOCATION_NOT_FOUND".into()));
}

#[tokio::test]
async fn the_digest_of_what_was_decided_on_must_be_the_calls() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let with = |digest: &str| pb::SubmitFunctionResponseRequest {
        expected_args_digest: digest.into(),
        ..submit(&call, json!({}))
    };
    let wrong = format!("sha256:{}", "0".repeat(64));
    let refused = stage.client.submit(with(&wrong)).await.unwrap_err();
    assert_eq!(reason(&refused), (Code::FailedPrecondition, "ARGS_DIGEST_MISMATCH".into()));
    let refused = stage.client.submit(with("sha256:0")).await.unwrap_err();
    assert_eq!(fields(&refused), ["expected_args_digest"]);
    let id = &call.function_call.as_ref().unwrap().id;
    assert_eq!(told.events[0].calls[id].args_digest, call.args_digest);
    let done = stage.client.submit(with(&call.args_digest)).await.unwrap();
    assert_eq!(done.outcome(), Answered::Applied);
}

#[tokio::test]
async fn an_answer_must_match_the_schema_of_its_tool() {
    let schema = json!({"type": "object", "required": ["status"]});
    let ask = Closure::waits("ask").with(|behaviour| behaviour.answer_schema = Some(schema));
    let mut stage = stage([ask]).await;
    let (told, call) = held(&mut stage).await;
    let code = Code::InvalidArgument;
    let wrong = answer(&call, json!({"secret": 1}));
    let [run, submit] = refused(&mut stage, &told, wrong, code, "RESPONSE_SCHEMA_VIOLATION").await;
    assert_eq!(fields(&run), ["new_message.parts[0].function_response.response"]);
    assert_eq!(fields(&submit), ["function_response.response"]);
    assert!(!submit.message().contains("secret"), "{}", submit.message());
    // Progress is no final answer, so the schema says nothing of it.
    let mut progress = answer(&call, json!({"half": true}));
    progress.will_continue = Some(true);
    let session = &told.begin.session_id;
    let told = stage.client.run(say_answers("clerk", session, vec![progress])).await;
    assert_eq!(told.end.state(), State::Paused);
    let rest = stage.answer(&call, json!({"status": "ok"})).await;
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn the_two_forms_of_an_answer_exclude_each_other() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (_, call) = held(&mut stage).await;
    for (response, text) in
        [(json!({}), "{}"), (Value::Null, "[1]"), (Value::Null, r#"{"a":1,"a":2}"#)]
    {
        let request = pb::SubmitFunctionResponseRequest {
            response_json: text.into(),
            ..submit(&call, response)
        };
        let refused = stage.client.submit(request).await.unwrap_err();
        assert_eq!(reason(&refused), (Code::InvalidArgument, "FIELD_INVALID".into()));
        assert_eq!(fields(&refused), ["response_json"]);
    }
}

#[tokio::test]
async fn a_comment_is_for_the_record_and_not_for_the_model() {
    let mut stage = stage([Closure::waits("ask")]).await;
    let (told, call) = held(&mut stage).await;
    let request = pb::SubmitFunctionResponseRequest {
        comment: "phoned her".into(),
        ..submit(&call, json!({"ok": true}))
    };
    let done = stage.client.submit(request).await.unwrap();
    assert_eq!(done.call.as_ref().unwrap().comment, "phoned her");
    stage.client.follow(&done).await;
    let events = stage.events(&told.begin.session_id).await;
    let id = &call.function_call.as_ref().unwrap().id;
    assert_eq!(events[2].calls[id].comment, "phoned her");
    assert!(!stage.prompt().concat().contains("phoned"));
    let response = done.call.unwrap().last_response.unwrap().response.unwrap();
    assert_eq!(json(&response), json!({"ok": true}));
}
