//! Event scripts, played by the real program.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{code, err, out};

const DINNER: &str = "human_in_loop/reimburse_dinner_approved.json";

/// The scripts that come with the project.
const SCRIPTS: [(&str, usize); 11] = [
    ("human_in_loop/auto_reimburse_coffee.json", 4),
    ("human_in_loop/reimburse_dinner.json", 4),
    (DINNER, 8),
    ("long_running_functions/export_to_csv.json", 6),
    ("long_running_functions/export_to_csv_and_json.json", 10),
    ("request_input_tool/create_support_ticket.json", 6),
    ("tool_confirmation/Transfer_500_and_close_account_ACC123.json", 10),
    ("tool_confirmation/close_account_acc123.json", 7),
    ("tool_confirmation/transfer_200_confirmed.json", 8),
    ("tool_confirmation/transfer_200_declined.json", 8),
    ("tool_confirmation/transfer_50.json", 4),
];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/adk")
}

/// Runs the program in a directory, with the agents of the examples.
async fn replay(directory: &Path, args: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_countersign"));
    command.current_dir(directory).env_clear().env("COUNTERSIGN_AGENTS", examples().join("agents"));
    command.arg("replay").args(args).output().await.unwrap()
}

/// What is told of the dinner with a change.
async fn changed(change: impl FnOnce(&mut Vec<Value>), args: &[&str]) -> Output {
    falsified(DINNER, change, args).await
}

/// What is told of a script with a change.
async fn falsified(name: &str, change: impl FnOnce(&mut Vec<Value>), args: &[&str]) -> Output {
    let directory = TempDir::new().unwrap();
    let script = std::fs::read_to_string(examples().join(name)).unwrap();
    let mut script: Value = serde_json::from_str(&script).unwrap();
    change(script["events"].as_array_mut().unwrap());
    std::fs::write(directory.path().join("x.json"), script.to_string()).unwrap();
    replay(directory.path(), &[&["x.json"], args].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_of_the_examples_are_played_as_they_say() {
    let output = replay(&examples(), &SCRIPTS.map(|(name, _)| name)).await;
    let line = |(name, n): &(&str, usize)| format!("{name}: equal, {n} events\n");
    let lines: String = SCRIPTS.iter().map(line).collect();
    assert_eq!((out(&output), err(&output), code(&output)), (lines.as_str(), "", 0));
}

/// One false word in a script of approvals, where it is, and how many differences it makes.
#[tokio::test(flavor = "multi_thread")]
async fn a_false_word_about_an_approval_is_a_difference_at_its_place() {
    let part = "/content/parts/0/functionResponse/response";
    let asked = "/content/parts/0/functionCall/args";
    let about = format!("{asked}/originalFunctionCall");
    for (name, event, place, value, shown) in [
        ("create_support_ticket", 5, format!("{part}/ticket_id"), json!("T"), "response.ticket_id"),
        ("Transfer_500_and_close_account_ACC123", 4, format!("{part}/error"), json!("no"), "error"),
        (
            "close_account_acc123",
            3,
            format!("{about}/args/account_id"),
            json!("ACC124"),
            "args.account_id",
        ),
        ("close_account_acc123", 3, format!("{about}/id"), json!("fc-2"), "Call.id"),
        ("close_account_acc123", 4, "/actions/skipSummarization".into(), json!(false), "Summ"),
        (
            "close_account_acc123",
            4,
            "/actions/requestedToolConfirmations/fc-1/hint".into(),
            json!("May it?"),
            "requestedToolConfirmations.fc-1.hint",
        ),
        ("transfer_200_confirmed", 3, format!("{asked}/toolConfirmation/hint"), json!("?"), "hint"),
        ("transfer_200_declined", 7, format!("{part}/error"), json!("Declined."), "response.error"),
        ("transfer_50", 3, format!("{part}/amount"), json!(51), "response.amount"),
    ] {
        let known = SCRIPTS.iter().find(|(script, _)| script.contains(name)).unwrap().0;
        let change = |events: &mut Vec<Value>| {
            *events[event - 1].pointer_mut(&place).unwrap_or_else(|| panic!("{place}")) = value;
        };
        let output = falsified(known, change, &["--json"]).await;
        let lines: Vec<Value> =
            out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), code(&output)), (2, 1), "{name} {place}: {lines:#?}");
        assert_eq!(lines[0]["event"], event, "{name} {place}");
        assert!(lines[0]["path"].as_str().unwrap().contains(shown), "{}", lines[0]);
    }

    // A decision that is turned around changes what follows it.
    let no = |events: &mut Vec<Value>| {
        events[5]["content"]["parts"][0]["functionResponse"]["response"] =
            json!({"confirmed": false});
    };
    let output = falsified("tool_confirmation/transfer_200_confirmed.json", no, &[]).await;
    assert!(out(&output).contains("The transfer of 200 to BOB was declined."), "{}", out(&output));
    assert_eq!(code(&output), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_a_question_and_a_wrapped_answer_are_no_difference() {
    let change = |events: &mut Vec<Value>| {
        events[2]["content"]["role"] = json!("user");
        // ADK's web page answers so.
        events[4]["content"]["parts"][0]["functionResponse"]["response"] =
            json!({"response": "{\"confirmed\": true}"});
    };
    let output = falsified("tool_confirmation/close_account_acc123.json", change, &[]).await;
    assert_eq!(out(&output), "x.json: equal, 7 events\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_says_nothing_is_not_compared() {
    let output = changed(
        |events| {
            for (at, event) in events.iter_mut().enumerate() {
                event["timestamp"] = json!(1_700_000_000.5 + at as f64);
                event["id"] = json!(format!("other-{at}"));
                event["invocationId"] = json!(if at < 4 { "i-7" } else { "i-8" });
                event["modelVersion"] = json!("m-1");
                event["usageMetadata"] = json!({"totalTokenCount": 7});
                event.as_object_mut().unwrap().remove("nodeInfo");
                event.as_object_mut().unwrap().remove("finishReason");
            }
            events[1]["content"]["parts"][0]["functionCall"]["args"]["amount"] = json!(150.0);
        },
        &[],
    );
    assert_eq!(out(&output.await), "x.json: equal, 8 events\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_shown_with_its_place() {
    let change = |events: &mut Vec<Value>| {
        events[2]["content"]["parts"][0]["functionResponse"]["response"]["amount"] = json!(151);
        events[6]["content"]["parts"][0]["functionResponse"]["response"] =
            json!({"status": "ok", "note": "\u{1b}[31m"});
        events[2]["actions"] = json!({"stateDelta": {"n": 1}});
    };
    let output = changed(change, &[]).await;
    let told = "\
x.json: 3 differences in 8 events
--- x.json
+++ replay
@@ event 3 (reimbursement_agent), content.parts[0].functionResponse.response.amount @@
-151
+150
@@ event 3 (reimbursement_agent), stateDelta @@
-{\"n\":1}
@@ event 7 (reimbursement_agent), content.parts[0].functionResponse.response.note @@
-\"\\u001b[31m\"
";
    assert_eq!((out(&output), err(&output), code(&output)), (told, "", 1));

    let output = changed(change, &["--json"]).await;
    let lines: Vec<Value> =
        out(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        lines[0],
        json!({"file": "x.json", "event": 3, "author": "reimbursement_agent", "expected": 151,
            "got": 150, "path": "content.parts[0].functionResponse.response.amount"})
    );
    assert_eq!(lines[1].get("got"), None);
    assert_eq!(lines[3], json!({"file": "x.json", "events": 8, "differences": 3}));
    assert_eq!(code(&output), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_one_side_lacks_are_told_and_the_rest_is_compared() {
    let output = changed(|events| drop(events.remove(2)), &[]).await;
    let shown = out(&output);
    assert!(shown.starts_with("x.json: 1 difference in 7 events\n"), "{shown}");
    assert!(
        shown.contains("@@ event 3 (reimbursement_agent): not in the script @@\n+{"),
        "{shown}"
    );

    let twice = changed(|events| events.insert(3, events[2].clone()), &[]).await;
    let shown = out(&twice);
    assert!(shown.starts_with("x.json: 1 difference in 9 events\n"), "{shown}");
    assert!(shown.contains("(reimbursement_agent): missing @@\n-{"), "{shown}");

    // One is missing and one too many: those two are told, and no others.
    let both = changed(
        |events| {
            let told = events.remove(2);
            events.push(told);
        },
        &[],
    );
    let output = both.await;
    let shown = out(&output);
    assert!(shown.starts_with("x.json: 2 differences in 8 events\n"), "{shown}");

    // The model is asked once more than there are replies.
    let short = changed(|events| events.truncate(3), &[]).await;
    assert!(out(&short).contains(r#""errorCode":"SCRIPT_ENDED""#), "{}", out(&short));
    assert_eq!(code(&short), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_refused_is_a_difference() {
    let output = changed(|events| events.insert(5, events[4].clone()), &[]).await;
    // The same answer again is known, and nothing is told twice.
    assert!(out(&output).contains("(user): missing @@\n-{"), "{}", out(&output));
    let other = changed(
        |events| {
            let mut again = events[4].clone();
            again["content"]["parts"][0]["functionResponse"]["response"] = json!({"status": "no"});
            events.push(again);
        },
        &[],
    );
    let output = other.await;
    assert!(out(&output).contains("@@ event 9 (user): refused @@\n-{"), "{}", out(&output));
    assert!(out(&output).contains("CALL_ALREADY_ANSWERED"), "{}", out(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_played_is_exit_code_2() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("torn.json", "{\"events\": [");
    write("none.json", "{\"events\": []}");
    write("wrong.json", r#"[{"author": "user", "content": {"parts": [{"text": 1}]}, "id": 2}]"#);
    write("other.json", r#"[{"author": "user", "content": {"parts": [{"text": "hi"}]}}]"#);
    for (file, told) in [
        ("gone.json", "gone.json: "),
        ("torn.json", "torn.json: line 1, column 13: "),
        ("none.json", "none.json: events[0]: a script begins with what a user says\n"),
        (
            "wrong.json",
            "wrong.json: events[0].content.parts[0].text: must be a text\nevents[0].id: ",
        ),
        (
            "other.json",
            "other.json: no agent of the script is there; there are: account_agent, choice_agent, \
             export_agent, reimbursement_agent, support_agent, tool_confirmation_agent\n",
        ),
    ] {
        let output = replay(directory.path(), &[file]).await;
        assert!(err(&output).starts_with(told), "{}", err(&output));
        assert_eq!((out(&output), code(&output)), ("", 2));
        let output = replay(directory.path(), &[file, "--json"]).await;
        let line: Value = serde_json::from_str(out(&output)).unwrap();
        assert_eq!((&line["file"], code(&output)), (&json!(file), 2));
        assert!(!line["error"].as_str().unwrap().is_empty());
    }
    let output = replay(directory.path(), &["other.json", "--app", "nobody"]).await;
    assert!(err(&output).contains("there is no agent \"nobody\""), "{}", err(&output));
    let output = replay(directory.path(), &["other.json", "--agents", "nowhere"]).await;
    assert!(err(&output).contains("nowhere"), "{}", err(&output));
    assert_eq!(code(&output), 2);
    let output = replay(directory.path(), &[]).await;
    assert_eq!(code(&output), 2);
}
