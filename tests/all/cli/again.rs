//! What is said again, and what is set in the environment: against the real server where that
//! matters.

use std::process::Output;

use crate::support::{self, Server};

use super::fake::{Fake, countersign};
use super::{begin, code, end, err, event, out, says};

async fn run(address: &str, args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = countersign(address, args);
    command.envs(variables.iter().copied());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// The id of the call in the command that a pause shows.
fn call_of(output: &Output) -> String {
    let (_, rest) = out(output).split_once("countersign submit ").expect("a command to type");
    rest.split(' ').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_given_again_is_known_though_its_call_is_closed() {
    let server = Server::sample().await;
    let address = server.address.to_string();
    let asked = run(&address, &["run", "reimbursement_agent", "Please reimburse $200 for x"], &[]);
    let asked = asked.await;
    assert_eq!(code(&asked), 3, "{}", err(&asked));
    let call = call_of(&asked);
    let yes = r#"{"status":"approved"}"#;
    let marked = ["submit", &call, yes, "--request-id", "mine"];
    let first = run(&address, &[&marked[..], &["--follow"]].concat(), &[]).await;
    assert!(out(&first).starts_with("APPLIED: ask_for_approval is DONE"), "{}", err(&first));
    assert_eq!(code(&first), 0);

    let again = run(&address, &marked, &[]).await;
    assert!(out(&again).starts_with("APPLIED: ask_for_approval"), "{}", err(&again));
    let same = run(&address, &["submit", &call, yes], &[]).await;
    assert!(out(&same).starts_with("DUPLICATE: ask_for_approval"), "{}", err(&same));
    let other = run(&address, &["submit", &call, r#"{"status":"rejected"}"#], &[]).await;
    assert!(err(&other).starts_with("CALL_ALREADY_ANSWERED: "), "{}", err(&other));
    assert!(err(&other).contains("answered by: "), "{}", err(&other));
    assert_eq!(code(&other), 1);
    let none = run(&address, &["submit", "adk-none", yes], &[]).await;
    assert!(err(&none).starts_with("CALL_NOT_FOUND: "), "{}", err(&none));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_with_a_schema_is_not_guessed() {
    let file = countersign::agent::file::samples()[0].1;
    let form = "    answer_schema: {type: object}\n";
    let (before, after) = file.split_once("    long_running: true\n").expect("a tool that waits");
    let file = format!("{before}    long_running: true\n{form}{after}");
    let server = Server::start(support::agents(&file)).await;
    let args = ["run", "reimbursement_agent", "Please reimburse $200 for x"];
    let output = run(&server.address.to_string(), &args, &[]).await;
    assert!(out(&output).trim_end().ends_with("'{...}'"), "{}", out(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_told_once() {
    let held = |id: &str| {
        let call = super::HELD.replace("adk-1", id);
        event(&format!(r#"{{"pause": {{"heldCalls": [{call}]}}}}"#))
    };
    let fake = Fake::default();
    fake.stream(vec![begin(), says(2, "two"), held("adk-1"), end("RECONNECT")]);
    fake.stream(vec![begin(), held("adk-1"), end("RECONNECT")]);
    fake.stream(vec![begin(), held("adk-2"), says(3, "three"), end("COMPLETED")]);
    let output = fake.command(&["run", "app", "please", "--follow"]).await;
    assert_eq!(code(&output), 0, "{}", err(&output));
    let told = out(&output);
    assert_eq!(told.matches("paused, waiting").count(), 2, "{told}");
    assert_eq!(told.matches("submit adk-1").count(), 1, "{told}");
    assert_eq!(told.matches("submit adk-2").count(), 1, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_flags_take_yes_and_no() {
    let fake = Fake::default();
    fake.script().agents = vec!["app"];
    let address = fake.serve().await;
    for (value, json) in [
        ("1", true),
        ("yes", true),
        ("on", true),
        ("true", true),
        ("0", false),
        ("no", false),
        ("off", false),
        ("false", false),
        ("", false),
    ] {
        let output = run(&address, &["agents"], &[("COUNTERSIGN_JSON", value)]).await;
        assert_eq!((err(&output), code(&output)), ("", 0), "{value}");
        assert_eq!(out(&output).starts_with('{'), json, "{value}");
        for variable in ["FOLLOW", "STREAM"] {
            fake.stream(vec![begin(), end("COMPLETED")]);
            let variable = format!("COUNTERSIGN_{variable}");
            let output = run(&address, &["run", "app", "hi"], &[(&variable, value)]).await;
            assert_eq!((err(&output), code(&output)), ("", 0), "{variable}={value}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_faults_are_told_before_it_serves() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("bad.yaml"), "nonsense: 1\n").unwrap();
    let dir = dir.path().to_str().unwrap();
    let args = ["serve", "--store", "memory:", "--listen", "nowhere", "--agents", dir];
    let output = run("", &args, &[]).await;
    assert_eq!(code(&output), 2, "{}", err(&output));
    assert!(err(&output).contains("--listen: must be"), "{}", err(&output));
    assert!(err(&output).contains("bad.yaml"), "{}", err(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_without_a_server_show_no_flag_for_one() {
    for (command, shown) in [("serve", false), ("demo", false), ("run", true)] {
        let output = run("", &[command, "--help"], &[]).await;
        assert_eq!(out(&output).contains("--server"), shown, "{command}");
    }
}
