//! The command line as a process, against a server that plays a script.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use countersign::proto::{from_json, v1};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use fake::{Fake, countersign};

mod again;
mod approvals;
mod cut;
mod demo;
mod fake;
mod replay;

/// An event from its JSON.
fn event(json: &str) -> v1::Event {
    from_json(json).unwrap()
}

fn begin() -> v1::Event {
    event(
        r#"{"begin": {"appName": "app", "userId": "u", "sessionId": "s-1", "invocationId": "e-1"}}"#,
    )
}

fn says(sequence: i64, text: &str) -> v1::Event {
    let json = format!(r#"{{"id": "{sequence}", "sequence": {sequence}, "author": "agent"}}"#);
    let part = v1::Part { data: Some(v1::part::Data::Text(text.to_owned())), ..Default::default() };
    let content = Some(v1::Content { role: "model".to_owned(), parts: vec![part] });
    v1::Event { content, ..event(&json) }
}

fn end(state: &str) -> v1::Event {
    event(&format!(r#"{{"end": {{"state": "{state}"}}}}"#))
}

const HELD: &str = r#"{"functionCall": {"id": "adk-1", "name": "ask", "args": {"amount": 200}},
    "state": "HELD", "kind": "LONG_RUNNING", "invocationId": "e-1", "appName": "app",
    "userId": "u", "sessionId": "s-1"}"#;

fn paused() -> v1::Event {
    event(&format!(r#"{{"end": {{"state": "PAUSED", "heldCalls": [{HELD}]}}}}"#))
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_exit_code_3_and_tells_what_to_type() {
    let fake = Fake::default();
    fake.stream(vec![begin(), says(2, "I have asked."), paused()]);
    let output = fake.command(&["run", "app", "please", "--user", "u"]).await;
    assert_eq!(
        out(&output),
        "session s-1\nagent   I have asked.\npaused, waiting for an answer to:\n  \
         ask({\"amount\":200})  LONG_RUNNING\n    countersign submit adk-1 \
         '{\"status\":\"approved\"}'\n"
    );
    assert_eq!((err(&output), code(&output)), ("", 3));
    let script = fake.script();
    assert_eq!((&*script.runs[0].app_name, &*script.runs[0].user_id), ("app", "u"));
    assert_eq!(script.runs[0].request_id.len(), 36);
}

#[tokio::test(flavor = "multi_thread")]
async fn how_a_run_ended_is_the_exit_code() {
    for (state, expected) in [("COMPLETED", 0), ("FAILED", 1), ("CANCELLED", 1)] {
        let fake = Fake::default();
        fake.stream(vec![begin(), end(state)]);
        let output = fake.command(&["run", "app", "please"]).await;
        assert_eq!(code(&output), expected, "{state}");
        assert_eq!(err(&output).is_empty(), expected == 0, "{state}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_where_its_stream_ended() {
    let fake = Fake::default();
    let reconnect = event(r#"{"end": {"state": "RECONNECT", "afterSequence": "2"}}"#);
    // Cut before anything came, then drained behind an entry, then cut without a word, then an
    // error on the way; what comes twice is shown once.
    fake.script().streams.push_back(Ok(vec![Ok(begin()), Err(Status::unavailable("reset"))]));
    fake.stream(vec![begin(), says(2, "two"), reconnect]);
    fake.stream(vec![begin(), says(2, "two"), says(3, "three")]);
    fake.script().streams.push_back(Err(draining()));
    fake.stream(vec![begin(), says(4, "four"), end("COMPLETED")]);
    let output = fake.command(&["run", "app", "please", "--request-id", "mine"]).await;
    assert_eq!(
        out(&output),
        "session s-1\nagent   two\nagent   three\nagent   four\n",
        "{}",
        err(&output)
    );
    assert_eq!(code(&output), 0);

    let script = fake.script();
    let asked: Vec<_> =
        script.runs.iter().map(|run| (&*run.request_id, run.after_sequence)).collect();
    assert_eq!(asked, [("mine", 0), ("mine", 0), ("", 2), ("", 3), ("", 3)]);
    assert_eq!(script.runs[0], script.runs[1]);
    let attached = &script.runs[2];
    assert_eq!((&*attached.invocation_id, &*attached.session_id), ("e-1", "s-1"));
    assert_eq!(attached.new_message, None);
}

fn draining() -> Status {
    let mut details = ErrorDetails::with_error_info("DRAINING", "countersign", []);
    details.set_retry_info(Some(std::time::Duration::from_millis(10)));
    Status::with_error_details(Code::Unavailable, "the server stops", details)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_goes_on_behind_its_cursor() {
    let fake = Fake::default();
    fake.script().agents = vec!["app"];
    let caught_up = event(r#"{"caughtUp": {"lastSequence": "4"}}"#);
    fake.stream(vec![says(4, "four"), caught_up, end("RECONNECT")]);
    fake.stream(vec![says(5, "five")]);
    let output = fake.command(&["watch", "s-1", "--after", "3"]).await;
    assert_eq!(
        out(&output),
        "    4  agent   four\n    4  caught up, what follows is live\n    5  agent   five\n"
    );
    assert_eq!((err(&output), code(&output)), ("ABORTED: the script is over\n", 1));
    let script = fake.script();
    let cursors: Vec<_> = script.watches.iter().map(|watch| watch.after_sequence).collect();
    assert_eq!(cursors, [3, 4, 5]);
    let watch = &script.watches[0];
    assert_eq!((&*watch.app_name, &*watch.user_id), ("app", "local"));
}

#[tokio::test(flavor = "multi_thread")]
async fn json_lines_are_messages() {
    let fake = Fake::default();
    let events = vec![begin(), says(2, "a\nb\x1b"), paused()];
    fake.stream(events.clone());
    let output = fake.command(&["run", "app", "please", "--json"]).await;
    let read: Vec<_> = out(&output).lines().map(event).collect();
    assert_eq!(read, events);
    assert_eq!((err(&output), code(&output)), ("", 3));
    assert!(!out(&output).contains('\x1b'));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_from_a_server_reaches_the_terminal_as_it_is() {
    let fake = Fake::default();
    fake.script().agents = vec!["app"];
    fake.script().events = vec![says(1, "\x1b[2J\x07gone\u{9b}1A\n  2  user   forged")];
    let output = fake.command(&["events", "s-1"]).await;
    assert_eq!(
        out(&output),
        "    1  agent   ␛[2J␇gone<U+009B>1A\n                 2  user   forged\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_its_reason() {
    let fake = Fake::default();
    let mut details = ErrorDetails::with_error_info("FIELD_INVALID", "countersign", []);
    details.add_bad_request_violation("user_id", "must not be empty");
    let status = Status::with_error_details(Code::InvalidArgument, "one field is wrong", details);
    fake.script().streams.push_back(Err(status));
    let output = fake.command(&["run", "app", "please"]).await;
    let told = "FIELD_INVALID: one field is wrong\n  user_id: must not be empty\n";
    assert_eq!((out(&output), err(&output), code(&output)), ("", told, 1));
}

#[test]
fn a_server_that_is_not_there_is_told_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    for args in [&["agents"][..], &["run", "app", "please"], &["submit", "c", "{}", "--name", "n"]]
    {
        let output = countersign(&address, args).output().unwrap();
        let told = format!("no server answers at {address}\nStart one with `countersign serve`");
        assert!(err(&output).starts_with(&told), "{}", err(&output));
        assert_eq!(code(&output), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_app_is_filled_in_only_if_it_is_the_only_one() {
    let fake = Fake::default();
    fake.script().agents = vec!["one", "two"];
    let output = fake.command(&["events", "s-1"]).await;
    let told = "the server has several apps; name one with --app: one, two\n";
    assert_eq!((err(&output), code(&output)), (told, 2));
}

fn applied() -> v1::SubmitFunctionResponseResponse {
    let call = HELD.replace("HELD", "DONE");
    from_json(&format!(
        r#"{{"call": {call}, "invocationState": "RUNNING", "outcome": "APPLIED", "sequence": "5",
            "afterSequence": "5"}}"#
    ))
    .unwrap()
}

fn invocation(held: &str) -> v1::Invocation {
    from_json(&format!(
        r#"{{"id": "e-1", "appName": "app", "userId": "u", "sessionId": "s-1", "state": "PAUSED",
            "heldCalls": [{held}]}}"#
    ))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_finds_its_name_and_keeps_its_digits() {
    let fake = Fake::default();
    fake.script().invocations = vec![invocation(""), invocation(HELD)];
    // Nobody knows what became of the first attempt.
    fake.script().submits = [Err(Status::unknown("cut")), Ok(applied())].into();
    let json = r#"{"amount":10000000000000001}"#;
    let output = fake.command(&["submit", "adk-1", json, "--comment", "fine"]).await;
    assert_eq!(
        out(&output),
        "APPLIED: ask is DONE, its run is RUNNING\nto see what comes of it:\n  countersign watch s-1 \
         --app app --user u --after 5\n"
    );
    assert_eq!((err(&output), code(&output)), ("", 0));
    let script = fake.script();
    assert_eq!(script.submitted[0], script.submitted[1]);
    let submitted = &script.submitted[0];
    let response = submitted.function_response.as_ref().unwrap();
    assert_eq!((&*response.id, &*response.name), ("adk-1", "ask"));
    assert_eq!((&response.response, response.will_continue), (&None, None));
    assert_eq!((&*submitted.response_json, &*submitted.comment), (json, "fine"));
    assert_eq!(submitted.request_id.len(), 36);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_can_be_followed() {
    let fake = Fake::default();
    fake.script().submits = [Ok(applied())].into();
    fake.stream(vec![begin(), says(6, "Done."), end("COMPLETED")]);
    let args = ["submit", "adk-1", "null", "--name", "ask", "--final", "--follow"];
    let output = fake.command(&args).await;
    assert_eq!(out(&output), "APPLIED: ask is DONE, its run is RUNNING\nagent   Done.\n");
    assert_eq!(code(&output), 0);
    let script = fake.script();
    assert_eq!((&*script.runs[0].invocation_id, script.runs[0].after_sequence), ("e-1", 5));
    let response = script.submitted[0].function_response.as_ref().unwrap();
    assert_eq!((&response.response, response.will_continue), (&None, Some(false)));
    assert_eq!(script.submitted[0].response_json, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_nobody_waits_for_is_asked_about() {
    let fake = Fake::default();
    let details = ErrorDetails::with_error_info("CALL_NOT_FOUND", "countersign", []);
    let status = Status::with_error_details(Code::NotFound, "there is no such call", details);
    fake.script().submits = [Err(status)].into();
    let output = fake.command(&["submit", "adk-9", "{}"]).await;
    assert_eq!(err(&output), "CALL_NOT_FOUND: there is no such call\n");
    assert_eq!(code(&output), 1);
    let script = fake.script();
    let [asked] = &script.submitted[..] else { panic!("{:?}", script.submitted) };
    assert_eq!((&*asked.request_id, &*asked.function_response.as_ref().unwrap().name), ("", "?"));
}

#[tokio::test(flavor = "multi_thread")]
async fn invocations_are_listed_and_watched() {
    let fake = Fake::default();
    fake.script().invocations = vec![invocation(HELD), invocation("")];
    let output = fake.command(&["invocations"]).await;
    assert_eq!(
        out(&output),
        "ID   STATE   APP  USER  SESSION  UPDATED  WAITS FOR\n\
         e-1  PAUSED  app  u     s-1      -        ask adk-1\n\
         e-1  PAUSED  app  u     s-1      -        -\n"
    );

    let update = |cursor: &str, update| v1::WatchInvocationsResponse {
        cursor: cursor.to_owned(),
        update: Some(update),
    };
    use v1::watch_invocations_response::{Removed, Update};
    let removed = Removed { invocation_id: "e-1".to_owned(), ..Default::default() };
    let end = v1::EndMark { state: v1::end_mark::State::Reconnect.into(), ..Default::default() };
    fake.script().updates = [
        vec![update("c1", Update::Invocation(invocation(HELD))), update("c1", Update::End(end))],
        vec![update("c2", Update::Removed(removed))],
    ]
    .into();
    let output = fake.command(&["invocations", "--watch"]).await;
    assert_eq!(out(&output), "PAUSED     e-1  app/u/s-1    waits for ask adk-1\ngone       e-1\n");
    assert_eq!(fake.script().cursors, ["", "c1", "c2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_leaves_ends_it_quietly() {
    let fake = Fake::default();
    fake.script().agents = vec!["app"];
    // More than any pipe holds.
    fake.script().events = (1..=20_000).map(|sequence| says(sequence, "again and again")).collect();
    let mut command = countersign(&fake.serve().await, &["events", "s-1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let read = move || {
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (line, child.wait_with_output().unwrap())
    };
    let (line, output) = tokio::task::spawn_blocking(read).await.unwrap();
    assert_eq!(line, "    1  agent   again and again\n");
    assert_eq!((err(&output), code(&output)), ("", 0));
}
