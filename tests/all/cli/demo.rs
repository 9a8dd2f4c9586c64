//! The demo against a server that does as told, and against one that does not.

use countersign::proto::{from_json, v1};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::fake::Fake;
use super::{begin, code, end, err, event, out, says};

/// Like [`super::says`], with parts from their JSON and the call `id` as long-running.
fn does(sequence: i64, part: &str, long_running: &str) -> v1::Event {
    event(&format!(
        r#"{{"id": "{sequence}", "sequence": {sequence}, "author": "agent",
            "longRunningToolIds": [{long_running}], "content": {{"parts": [{part}]}}}}"#
    ))
}

fn call(id: &str, name: &str, amount: u32, purpose: &str) -> String {
    let args = format!(r#"{{"amount": {amount}, "purpose": "{purpose}"}}"#);
    format!(r#"{{"id": "{id}", "name": "{name}", "args": {args}}}"#)
}

fn placeholder(id: &str, amount: u32) -> String {
    let response = format!(r#"{{"amount": {amount}, "status": "pending", "ticketId": "t-{id}"}}"#);
    format!(r#"{{"id": "{id}", "name": "ask_for_approval", "response": {response}}}"#)
}

fn pays(sequence: i64, amount: u32, purpose: &str) -> [v1::Event; 2] {
    let call = call("adk-pay", "reimburse", amount, purpose);
    let response = r#"{"id": "adk-pay", "name": "reimburse", "response": {"status": "ok"}}"#;
    [
        does(sequence, &format!(r#"{{"functionCall": {call}}}"#), ""),
        does(sequence + 1, &format!(r#"{{"functionResponse": {response}}}"#), ""),
    ]
}

fn held(id: &str, amount: u32, purpose: &str, state: &str) -> String {
    format!(
        r#"{{"functionCall": {}, "state": "{state}", "kind": "LONG_RUNNING",
            "lastResponse": {}, "invocationId": "e-1", "appName": "app", "userId": "u",
            "sessionId": "s-1"}}"#,
        call(id, "ask_for_approval", amount, purpose),
        placeholder(id, amount)
    )
}

fn asks(id: &str, amount: u32, purpose: &str) -> Vec<v1::Event> {
    let call = call(id, "ask_for_approval", amount, purpose);
    let (response, held) = (placeholder(id, amount), held(id, amount, purpose, "HELD"));
    vec![
        begin(),
        does(2, &format!(r#"{{"functionCall": {call}}}"#), &format!("\"{id}\"")),
        does(3, &format!(r#"{{"functionResponse": {response}}}"#), ""),
        says(4, "It has been sent for approval."),
        event(&format!(r#"{{"end": {{"state": "PAUSED", "heldCalls": [{held}]}}}}"#)),
    ]
}

fn applied(id: &str, amount: u32, purpose: &str) -> v1::SubmitFunctionResponseResponse {
    let call = held(id, amount, purpose, "DONE");
    let json = format!(
        r#"{{"call": {call}, "invocationState": "RUNNING", "outcome": "APPLIED",
            "sequence": "5", "afterSequence": "5"}}"#
    );
    from_json(&json).unwrap()
}

/// A server that plays its part; the last words of the run that is rejected are given.
fn server(rejected: v1::Event) -> Fake {
    let fake = Fake::default();
    let [pay, paid] = pays(2, 50, "meals");
    fake.stream(vec![begin(), pay, paid, says(4, "You got $50."), end("COMPLETED")]);
    fake.stream(asks("adk-1", 200, "conference travel"));
    let [pay, paid] = pays(6, 200, "conference travel");
    fake.stream(vec![begin(), pay, paid, says(8, "You got $200."), end("COMPLETED")]);
    fake.stream(asks("adk-2", 150, "client dinner"));
    fake.stream(vec![begin(), rejected, end("COMPLETED")]);
    let reason = ErrorDetails::with_error_info("CALL_ALREADY_ANSWERED", "countersign", []);
    let late = Status::with_error_details(Code::FailedPrecondition, "it is answered", reason);
    fake.script().submits = [
        Ok(applied("adk-1", 200, "conference travel")),
        Err(late),
        Ok(applied("adk-2", 150, "client dinner")),
    ]
    .into();
    fake
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_tells_the_main_job() {
    let fake = server(says(6, "It was rejected."));
    let output = fake.command(&["demo"]).await;
    assert_eq!((err(&output), code(&output)), ("", 0));
    for told in [
        "\n1. A small amount is paid at once\n\n$ countersign run reimbursement_agent 'Please \
         reimburse $50 for meals'\nsession s-1\nagent → reimburse({\"amount\":50,\"purpose\":\
         \"meals\"})\nagent ← reimburse {\"status\":\"ok\"}\nagent   You got $50.\n",
        "\npaused, waiting for an answer to:\n  ask_for_approval({\"amount\":200,\"purpose\":\
         \"conference travel\"})  LONG_RUNNING\n    countersign submit adk-1 ",
        "\n$ countersign submit adk-1 '{\"amount\":200,\"approver_feedback\":\"Have a good trip!\",\
         \"status\":\"approved\",\"ticketId\":\"t-adk-1\"}' --follow\nAPPLIED: ask_for_approval is \
         DONE, its run is RUNNING\nagent → reimburse({\"amount\":200,",
        "\nCALL_ALREADY_ANSWERED: it is answered\n",
        "DONE, its run is RUNNING\nagent   It was rejected.\n",
    ] {
        assert!(out(&output).contains(told), "{told}\nis not in\n{}", out(&output));
    }
    let script = fake.script();
    let answer = script.submitted[0].function_response.clone().unwrap();
    assert_eq!((&*answer.id, &*answer.name), ("adk-1", "ask_for_approval"));
    assert_eq!(answer.response.unwrap().fields.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_fails_where_anything_is_not_as_told() {
    let [pay, _] = pays(6, 150, "client dinner");
    let output = server(pay).command(&["demo"]).await;
    let told = "the demo failed: expected that nothing is paid\n";
    assert_eq!((err(&output), code(&output)), (told, 1));
}
