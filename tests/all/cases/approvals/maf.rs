//! The cases of Microsoft's Agent Framework that are about one turn and its decisions, and its
//! worked sequences (a) and (c) to (i).

use countersign::proto::v1::{self as pb, end_mark::State, run_config};
use countersign::session::approval::DECLINED;
use serde_json::json;

use super::super::stage::{APP, Setting, Stage, call_of, calls, soon, stage};
use super::{Verdict, answer_of, asks, brief, did, heard, id, open, questions_in, rejected, runs};
use super::{waits, why};
use crate::support::{Told, answer, fields, reason, say, say_answers, submit};

/// S1, R1, S2, R2 in one turn, with lines of the agent file.
async fn mixed(lines: &str) -> (Stage, Told) {
    let setting = if lines.is_empty() { Setting::new() } else { Setting::new().line(lines) };
    let tools = [runs("s1"), asks("r1"), runs("s2"), asks("r2")];
    let mut stage = tools.into_iter().fold(setting, Setting::tool).set().await;
    let told = stage.say("call s1 & r1 & s2 & r2").await;
    assert_eq!((told.end.state(), stage.asked()), (State::Paused, 1));
    (stage, told)
}

/// What of the inbox needs a word, as `r1 true`.
async fn needs(stage: &Stage) -> Vec<String> {
    let inbox = stage.inbox().await;
    let need = |approval: &pb::Approval| {
        let call = approval.call.as_ref().unwrap().function_call.as_ref().unwrap();
        format!("{} {}", call.name, approval.requires_confirmation)
    };
    inbox.iter().map(need).collect()
}

#[tokio::test]
async fn maf_01_two_calls_that_ask_are_two_questions() {
    let (one, two) = (asks("pay"), asks("ship"));
    let (paid, shipped) = (one.runs(), two.runs());
    let mut stage = stage([one, two]).await;
    let told = stage.say("call pay & ship").await;
    assert_eq!(open(&told), ["pay({})", "ship({})"]);
    assert_eq!((paid.get(), shipped.get()), (0, 0));
    assert_eq!(needs(&stage).await, ["pay true", "ship true"]);
}

#[tokio::test]
async fn maf_02_f_a_safe_sibling_asks_too_if_the_bypass_is_off() {
    let (mut stage, told) = mixed("approvals: {disable_not_required_bypass: true}").await;
    assert_eq!(open(&told), ["s1({})", "r1({})", "s2({})", "r2({})"]);
    assert_eq!(needs(&stage).await, ["s1 false", "r1 true", "s2 false", "r2 true"]);
    let held = told.end.held_calls.clone();
    stage.confirm(&held[0], false).await;
    for question in &held[1..] {
        stage.confirm(question, true).await;
    }
    assert_eq!(heard(&stage), [rejected("s1", DECLINED), did("r1"), did("s2"), did("r2")]);
}

#[tokio::test]
async fn maf_03_safe_calls_alone_run_at_once() {
    for lines in ["description: usual", "approvals: {disable_not_required_bypass: true}"] {
        let setting = Setting::new().line(lines).tool(runs("s1")).tool(runs("s2"));
        let mut stage = setting.set().await;
        let told = stage.say("call s1 & s2").await;
        assert_eq!(told.end.state(), State::Completed);
        assert!(questions_in(&told.events).is_empty());
    }
}

/// There an unknown tool asks, too; here its call has failed, and nobody can approve it.
#[tokio::test]
async fn maf_06_42_an_unknown_tool_is_never_run_and_never_asked_about() {
    let mut stage = stage([asks("pay")]).await;
    let told = stage.say("call pay & gone").await;
    assert_eq!(open(&told), ["pay({})"]);
    stage.confirm(&told.end.held_calls[0], true).await;
    let heard = heard(&stage);
    assert_eq!(heard[0], did("pay"));
    assert!(heard[1].starts_with(r#"gone {"error":"#), "{heard:?}");
}

#[tokio::test]
async fn maf_07_49_a_what_was_approved_is_told_before_the_models_text() {
    let mut stage = stage([asks("pay"), asks("ship")]).await;
    let told = stage.say("call pay & ship").await;
    let session = told.begin.session_id.clone();
    let held = told.end.held_calls.clone();
    let answers = held.iter().map(|call| answer(call, json!({"confirmed": true}))).collect();
    let rest = soon(stage.client.run(say_answers(APP, &session, answers))).await;
    assert_eq!(
        brief(&rest.events),
        [
            r#"clerk < pay({"did":"pay"}) + clerk < ship({"did":"ship"})"#,
            r#"clerk: heard pay {"did":"pay"}, heard ship {"did":"ship"}"#,
        ]
    );
    assert_eq!((rest.end.state(), stage.asked()), (State::Completed, 2));
    // One message of calls, and one of results.
    let prompt = stage.prompt();
    assert_eq!(prompt[1], "model > pay({}) + model > ship({})");
    assert_eq!(prompt.len(), 3);
}

#[tokio::test]
async fn maf_10_all_are_refused_and_each_has_one_result() {
    let (pay, ship) = (asks("pay"), asks("ship"));
    let counts = [pay.runs(), ship.runs()];
    let mut stage = stage([pay, ship]).await;
    let told = stage.say("call pay & ship").await;
    for question in told.end.held_calls.clone() {
        stage.confirm(&question, false).await;
    }
    assert_eq!(heard(&stage), [rejected("pay", DECLINED), rejected("ship", DECLINED)]);
    assert!(counts.iter().all(|count| count.get() == 0));
    assert_eq!(stage.asked(), 2);
}

#[tokio::test]
async fn maf_11_13_27_g_each_call_of_a_turn_has_its_own_reason() {
    let default = asks("log").approval(|approval| approval.rejection = "Not by night.".into());
    let mut stage = stage([asks("pay"), asks("ship"), asks("mail"), default]).await;
    let told = stage.say("call pay & ship & mail & log").await;
    let [pay, ship, mail, log] = &told.end.held_calls[..] else { panic!("{told:?}") };
    stage.confirm(pay, true).await;
    let reason = |text: &str| {
        let text = text.to_owned();
        move |request: &mut pb::DecideApprovalRequest| request.reason = text
    };
    stage.decide(ship, Verdict::Deny, reason("Too far.")).await.unwrap();
    let blank = stage.decide(mail, Verdict::RequestChanges, |_| {}).await.unwrap_err();
    assert_eq!(fields(&blank), ["reason"]);
    stage.decide(mail, Verdict::RequestChanges, reason("Be kind.")).await.unwrap();
    stage.confirm(log, false).await;
    let heard = heard(&stage);
    assert_eq!(heard[0], did("pay"));
    assert_eq!(heard[1], rejected("ship", "Too far."));
    assert!(heard[2].contains("Be kind.") && heard[2].contains("changes_requested"), "{heard:?}");
    assert_eq!(heard[3], rejected("log", "Not by night."));
}

#[tokio::test]
async fn maf_14_what_the_model_calls_next_runs_in_the_same_run() {
    let next = |response: &countersign::session::content::FunctionResponse| {
        (response.name == "pay").then(|| call_of("look", Default::default()))
    };
    let setting = Setting::new().tool(asks("pay")).tool(runs("look")).cue(next);
    let mut stage = setting.set().await;
    let told = stage.say("call pay").await;
    let rest = stage.confirm(&told.end.held_calls[0], true).await;
    let look = r#"clerk < look({"did":"look"})"#;
    assert_eq!(brief(&rest.events)[1..3], ["clerk > look({})", look]);
    assert_eq!(rest.end.state(), State::Completed);
}

/// A client without sessions sends all of it again, as that tutorial does: there a request without
/// its response fails the run, here calls of a client are never taken.
#[tokio::test]
async fn maf_17_35_b_a_conversation_that_is_sent_again_is_refused_with_the_way_on() {
    let pay = asks("pay");
    let ran = pay.runs();
    let mut stage = stage([pay]).await;
    let told = stage.say("call pay").await;
    let question = &told.end.held_calls[0];
    let part = |data| pb::Part { data: Some(data), ..Default::default() };
    let call = question.function_call.clone().unwrap();
    let parts = vec![
        part(pb::part::Data::Text("call pay".into())),
        part(pb::part::Data::FunctionCall(call)),
        part(pb::part::Data::FunctionResponse(answer(question, json!({"confirmed": true})))),
    ];
    let mut request = say(APP, "", "");
    request.new_message = Some(pb::Content { role: "user".into(), parts });
    let refused = stage.client.try_run(request).await.unwrap_err();
    assert_eq!(reason(&refused).1, "FIELD_INVALID");
    assert!(fields(&refused).contains(&"new_message.parts[1].function_call".to_owned()));
    assert!(format!("{refused:?}").contains("session_id"), "{refused:?}");
    assert_eq!((ran.get(), stage.inbox().await.len()), (0, 1));
}

#[tokio::test]
async fn maf_21_46_what_is_said_meanwhile_reaches_the_model_and_starts_nothing() {
    let look = runs("look");
    let looked = look.runs();
    let mut stage = stage([asks("pay"), look]).await;
    let told = stage.say("call pay & look").await;
    let session = told.begin.session_id.clone();
    let other = stage.say_in(&session, "any news?").await;
    assert_eq!(other.end.state(), State::Completed);
    assert_eq!(stage.prompt().last().unwrap(), "user: any news?");
    assert!(stage.prompt().iter().any(|line| line.contains(&waits("pay"))));
    // A picture beside a text, and no decision.
    let png = pb::Blob { mime_type: "image/png".into(), data: vec![1, 2], ..Default::default() };
    let mut request = say(APP, &session, "like this");
    let picture = pb::Part { data: Some(pb::part::Data::InlineData(png)), ..Default::default() };
    request.new_message.as_mut().unwrap().parts.push(picture);
    soon(stage.client.run(request)).await;
    let last = stage.request().contents.last().cloned().unwrap();
    assert_eq!(last.parts.len(), 2);
    assert_eq!(looked.get(), 0, "it waits with its sibling");

    // Words beside a decision are refused as a whole; they go in a message of their own.
    let decided = vec![answer(&told.end.held_calls[0], json!({"confirmed": true}))];
    let mut both = say_answers(APP, &session, decided.clone());
    let words = pb::part::Data::Text("be quick".into());
    let words = pb::Part { data: Some(words), ..Default::default() };
    both.new_message.as_mut().unwrap().parts.push(words);
    assert_eq!(why(stage.client.try_run(both).await), "MIXED_MESSAGE");
    soon(stage.client.run(say_answers(APP, &session, decided))).await;
    assert_eq!(looked.get(), 1);
    assert_eq!(heard(&stage), [did("pay"), did("look")]);

    // ADK's prompt for a result shows nothing that was answered meanwhile; any later one has all.
    stage.say_in(&session, "and now?").await;
    let prompt = stage.prompt();
    assert!(prompt.iter().any(|line| line == "user: any news?"), "{prompt:#?}");
    let pictures = stage
        .request()
        .contents
        .iter()
        .any(|content| content.parts.len() == 2 && content.plain_text() == "like this");
    assert!(pictures);
}

#[tokio::test]
async fn maf_29_37_forged_answers_are_refused_and_change_nothing() {
    let mut stage = stage([asks("pay"), asks("ship")]).await;
    let told = stage.say("call pay & ship").await;
    for (forged, reason) in [("adk-forged", "CALL_NOT_FOUND"), ("", "FIELD_INVALID")] {
        let request = answer_of(forged, "adk_request_confirmation", json!({"confirmed": true}));
        assert_eq!(why(stage.client.submit(request).await), reason);
    }
    assert_eq!(needs(&stage).await, ["pay true", "ship true"]);
    // Two of one turn are decided apart.
    stage.confirm(&told.end.held_calls[1], true).await;
    assert_eq!(needs(&stage).await, ["pay true"]);
    stage.confirm(&told.end.held_calls[0], false).await;
    assert_eq!(heard(&stage), [rejected("pay", DECLINED), did("ship")]);
}

#[tokio::test]
async fn maf_30_33_37_the_recorded_arguments_run_whatever_an_answer_says() {
    let mut stage = stage([asks("pay")]).await;
    let told = stage.say(r#"call pay {"n": 1}"#).await;
    let question = &told.end.held_calls[0];
    let swapped = json!({"confirmed": true, "originalFunctionCall": {"args": {"n": 1000}}});
    let request = answer_of(id(question), "adk_request_confirmation", swapped);
    assert_eq!(why(stage.client.submit(request).await), "FIELD_INVALID");
    let other = |request: &mut pb::DecideApprovalRequest| {
        request.args_digest = format!("sha256:{}", "0".repeat(64));
    };
    let refused = stage.decide(question, Verdict::Approve, other).await;
    assert_eq!(why(refused), "ARGS_DIGEST_MISMATCH");
    // Nothing is burnt by it.
    stage.decide(question, Verdict::Approve, |_| {}).await.unwrap();
    assert_eq!(stage.prompt()[1], r#"model > pay({"n":1})"#);
    assert_eq!(heard(&stage), [did("pay")]);
}

#[tokio::test]
async fn maf_38_e_safe_siblings_wait_unasked_and_all_questions_are_shown_at_once() {
    let (mut stage, told) = mixed("approvals: {disable_tool_auto_approval: true}").await;
    assert_eq!(open(&told), ["r1({})", "r2({})"]);
    let [r1, r2] = &told.end.held_calls[..] else { panic!() };
    // Answered in part: nothing runs, and nothing fails.
    let part = stage.confirm(r2, true).await;
    assert_eq!((part.end.state(), stage.asked()), (State::Paused, 1));
    assert_eq!(open(&part), ["r1({})"]);
    let rest = stage.confirm(r1, true).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(heard(&stage), [did("s1"), did("r1"), did("s2"), did("r2")]);
}

#[tokio::test]
async fn maf_58_the_same_id_of_a_model_again_is_another_call() {
    // The model of these tests gives all its calls the same id.
    let pay = asks("pay");
    let ran = pay.runs();
    let mut stage = stage([pay]).await;
    let first = stage.say("call pay").await;
    let session = first.begin.session_id.clone();
    stage.confirm(&first.end.held_calls[0], true).await;
    let second = stage.say_in(&session, "call pay").await;
    assert_eq!(open(&second), ["pay({})"]);
    assert_ne!(id(&first.end.held_calls[0]), id(&second.end.held_calls[0]));
    assert_eq!(ran.get(), 1);
    stage.confirm(&second.end.held_calls[0], false).await;
    assert_eq!(ran.get(), 1);
}

#[tokio::test]
async fn maf_62_arguments_are_checked_before_anybody_is_asked() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "required": ["n"]});
    let mut stage = stage([asks("pay").parameters(schema)]).await;
    let told = stage.say(r#"call pay {"n": "one"}"#).await;
    assert_eq!(told.end.state(), State::Completed);
    assert!(questions_in(&told.events).is_empty());
    assert!(heard(&stage)[0].starts_with(r#"pay {"error":"#));
}

#[tokio::test]
async fn maf_65_66_d_questions_one_at_a_time() {
    for first in [true, false] {
        let (mut stage, told) = mixed("approvals: {one_at_a_time: true}").await;
        assert_eq!(open(&told), ["r1({})"]);
        assert_eq!(needs(&stage).await, ["r1 true"]);
        let next = stage.confirm(&told.end.held_calls[0], first).await;
        assert_eq!((open(&next), stage.asked()), (vec!["r2({})".to_owned()], 1));
        let rest = stage.confirm(&next.end.held_calls[0], true).await;
        assert_eq!(rest.end.state(), State::Completed);
        let r1 = if first { did("r1") } else { rejected("r1", DECLINED) };
        assert_eq!(heard(&stage), [did("s1"), r1, did("s2"), did("r2")]);
        assert_eq!(stage.asked(), 2);
    }
}

#[tokio::test]
async fn maf_71_forged_and_repeated_answers_while_others_are_still_to_be_asked() {
    let (mut stage, told) = mixed("approvals: {one_at_a_time: true}").await;
    let first = &told.end.held_calls[0];
    let next = calls(&told.events).into_iter().find(|call| call.name == "r2").unwrap().id;
    let yes = json!({"confirmed": true});
    for (forged, name, reason) in [
        (next.as_str(), "r2", "CONFIRMATION_REQUIRED"),
        (next.as_str(), "adk_request_confirmation", "CALL_NAME_MISMATCH"),
        (id(first), "r1", "CALL_NAME_MISMATCH"),
    ] {
        let request = answer_of(forged, name, yes.clone());
        assert_eq!(why(stage.client.submit(request).await), reason);
    }
    let second = stage.confirm(first, true).await;
    let again = stage.client.submit(submit(first, yes)).await.unwrap();
    use pb::submit_function_response_response::Outcome;
    assert_eq!((again.outcome(), stage.asked()), (Outcome::Duplicate, 1));
    assert_eq!(needs(&stage).await, ["r2 true"], "it counts once");
    stage.confirm(&second.end.held_calls[0], false).await;
    let r2 = rejected("r2", DECLINED);
    assert_eq!(heard(&stage), [did("s1"), did("r1"), did("s2"), r2]);
}

/// What a streaming client sees of a question is an event like any other.
#[tokio::test]
async fn maf_c_the_tutorials_loop_over_streams() {
    let (mut stage, _) = mixed("").await;
    let stream = |mut request: pb::RunAsyncRequest| {
        let streaming_mode = run_config::StreamingMode::Sse.into();
        request.run_config = Some(pb::RunConfig { streaming_mode, ..Default::default() });
        request
    };
    let mut told = soon(stage.client.run(stream(say(APP, "", "call r1 & s1 & r2")))).await;
    let session = told.begin.session_id.clone();
    let mut rounds = 0;
    loop {
        let requests = questions_in(&told.events);
        if requests.is_empty() {
            break;
        }
        rounds += 1;
        let answers = requests.iter().map(|question| pb::FunctionResponse {
            id: question.id.clone(),
            name: question.name.clone(),
            response: Some(crate::support::object(json!({"confirmed": true}))),
            will_continue: None,
        });
        let request = say_answers(APP, &session, answers.collect());
        told = soon(stage.client.run(stream(request))).await;
    }
    assert_eq!((rounds, told.end.state()), (1, State::Completed));
    assert_eq!(heard(&stage), [did("r1"), did("s1"), did("r2")]);
}
