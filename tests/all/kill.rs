//! Servers as processes, on an SQLite file: killed between steps and at any instant, stopped by
//! SIGTERM, and refused a start. Nothing acknowledged is ever lost, and everything goes on.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use countersign::proto::v1::agent_service_client::AgentServiceClient;
use countersign::proto::v1::session_service_client::SessionServiceClient;
use countersign::proto::v1::{self as pb, end_mark::State};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tonic::Status;
use tonic::transport::Channel;

use crate::support::{Client, say, story, submit};

mod drain;
mod history;
mod load;
mod storm;

const APP: &str = "reimbursement_agent";

/// A server in a process of its own.
pub struct Process {
    child: Child,
    pub address: String,
    /// Kept open, as whoever starts a server does.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts it and reads its address from the first line that tells one.
    pub async fn start(command: Command) -> Self {
        let mut command = tokio::process::Command::from(command);
        command.stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = in_time("a start", async {
            loop {
                let line = lines.next_line().await.unwrap().expect("it starts");
                if let Some(address) = line.strip_prefix("countersign listening on ") {
                    return address.to_owned();
                }
            }
        });
        Self { address: address.await, child, _lines: lines }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// SIGKILL.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// It is left alone for so long, and must not end by itself meanwhile.
    pub async fn lives(&mut self, time: Duration) {
        let ended = tokio::time::timeout(time, self.child.wait()).await;
        assert!(ended.is_err(), "a server ended by itself: {ended:?}");
    }

    /// SIGTERM, and no more.
    pub fn terminate(&self) {
        let pid = self.pid().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    /// The exit code, when it has ended by itself.
    pub async fn ended(mut self) -> i32 {
        let status = in_time("an end", self.child.wait()).await.unwrap();
        status.code().expect("it was not killed")
    }

    pub async fn client(&self) -> Client {
        connect(&self.address).await.unwrap()
    }
}

pub async fn connect(address: &str) -> Result<Client, tonic::transport::Error> {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await?;
    Ok(Client {
        agents: AgentServiceClient::new(channel.clone()),
        sessions: SessionServiceClient::new(channel),
    })
}

pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(Duration::from_secs(60), future).await;
    outcome.unwrap_or_else(|_| panic!("{what} took too long"))
}

/// `countersign serve` on a file in this directory, and what is asked for beside it.
fn serve(directory: &Path, more: &[&str]) -> Command {
    let store = format!("sqlite:{}", directory.join("store.db").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign"));
    command.env_clear().args(["serve", "--listen", "127.0.0.1:0", "--store", &store]).args(more);
    command.stderr(Stdio::null());
    command
}

/// What a server that does not start says.
fn refused(mut command: Command) -> (i32, String) {
    let Output { status, stdout, stderr } =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    assert!(stdout.is_empty(), "it told an address");
    (status.code().unwrap(), String::from_utf8(stderr).unwrap())
}

/// Follows an invocation to the end of the stream, from its beginning.
pub async fn attach(client: &mut Client, begun: &pb::BeginMark) -> Result<pb::EndMark, Status> {
    let request = pb::RunAsyncRequest {
        app_name: begun.app_name.clone(),
        user_id: begun.user_id.clone(),
        session_id: begun.session_id.clone(),
        invocation_id: begun.invocation_id.clone(),
        ..Default::default()
    };
    Ok(client.try_run(request).await?.end)
}

#[tokio::test]
async fn a_kill_between_any_two_steps_changes_nothing() {
    let directory = TempDir::new().unwrap();
    let server = Process::start(serve(directory.path(), &[])).await;
    let message = pb::RunAsyncRequest {
        request_id: "message".into(),
        ..say(APP, "", "Please reimburse $200 for conference travel")
    };
    let told = server.client().await.run(message.clone()).await;
    server.kill().await;

    let server = Process::start(serve(directory.path(), &[])).await;
    let mut client = server.client().await;
    let again = client.run(message).await;
    assert_eq!((again.end.state(), again.begin.replayed), (State::Paused, true));
    assert_eq!(again.begin.invocation_id, told.begin.invocation_id);
    assert_eq!((&again.events, &again.end.held_calls), (&told.events, &told.end.held_calls));
    let decision = pb::SubmitFunctionResponseRequest {
        request_id: "decision".into(),
        ..submit(&told.end.held_calls[0], json!({"status": "approved"}))
    };
    let done = client.submit(decision.clone()).await.unwrap();
    server.kill().await;

    let server = Process::start(serve(directory.path(), &[])).await;
    let mut client = server.client().await;
    let repeated = client.submit(decision).await.unwrap();
    assert_eq!((repeated.outcome(), repeated.sequence), (done.outcome(), done.sequence));
    let end = attach(&mut client, &told.begin).await.unwrap();
    assert_eq!(end.state(), State::Completed);
    server.kill().await;

    let server = Process::start(serve(directory.path(), &[])).await;
    let events = server.client().await.events(APP, &told.begin.session_id).await;
    assert_eq!(events[1..4], told.events);
    let told = story(&events);
    assert_eq!(told.len(), 8, "{told:#?}");
    assert!(told[7].ends_with("I have reimbursed you $200 for conference travel."), "{}", told[7]);
    server.terminate();
    assert_eq!(server.ended().await, 0);
}

#[tokio::test]
async fn a_file_has_one_server() {
    let directory = TempDir::new().unwrap();
    let server = Process::start(serve(directory.path(), &[])).await;
    let (code, said) = refused(serve(directory.path(), &[]));
    let holder = format!("store.db is in use by another server, process {}\n", server.pid());
    assert_eq!(code, 2, "{said}");
    assert!(said.ends_with(&holder), "{said}");
    server.kill().await;
    // Whoever was killed holds nothing.
    let server = Process::start(serve(directory.path(), &[])).await;
    server.kill().await;
}

#[tokio::test]
async fn what_is_made_is_for_the_servers_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let directory = TempDir::new().unwrap();
    let made = directory.path().join("var").join("lib");
    let server = Process::start(serve(&made, &[])).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&made), mode(made.parent().unwrap())), (0o700, 0o700));
    let mut files: Vec<_> = std::fs::read_dir(&made).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap()).collect();
    assert_eq!(names, ["store.db", "store.db-shm", "store.db-wal", "store.db.lock"]);
    for file in &files {
        assert_eq!(mode(file), 0o600, "{}", file.display());
    }
    server.kill().await;
    // Whoever lets others in is not locked out again.
    std::fs::set_permissions(&files[0], PermissionsExt::from_mode(0o640)).unwrap();
    Process::start(serve(&made, &[])).await.kill().await;
    assert_eq!(mode(&files[0]), 0o640);
}

#[tokio::test]
async fn a_file_that_is_read_only_is_refused() {
    let directory = TempDir::new().unwrap();
    Process::start(serve(directory.path(), &[])).await.kill().await;
    let file = directory.path().join("store.db");
    let mut permissions = std::fs::metadata(&file).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&file, permissions).unwrap();
    let (code, said) = refused(serve(directory.path(), &[]));
    assert_eq!(code, 2, "{said}");
    assert!(said.ends_with("store.db is read-only\n"), "{said}");
}

#[tokio::test]
async fn a_server_whose_disk_fails_stops_and_the_next_one_tells_the_truth() {
    let directory = TempDir::new().unwrap();
    // No file may grow beyond so many blocks: a write of the log fails then.
    let limited = serve(directory.path(), &[]);
    let mut shell = Command::new("sh");
    shell.args(["-c", r#"trap '' XFSZ; ulimit -f 2048; exec "$0" "$@""#]);
    shell.arg(limited.get_program()).args(limited.get_args()).stderr(Stdio::piped());
    let mut server = Process::start(shell).await;
    let mut said = server.child.stderr.take().unwrap();
    let mut client = server.client().await;
    let message = |n: usize| pb::RunAsyncRequest {
        request_id: format!("message-{n}"),
        ..say(APP, "", "Please reimburse $200 for conference travel")
    };
    let mut told = Vec::new();
    loop {
        match client.try_run(message(told.len())).await {
            Ok(run) if run.end.state() == State::Paused => told.push(run),
            // It was begun, or it is not known; then the server drained.
            Ok(run) => break assert_eq!(run.end.state(), State::Reconnect),
            Err(_) => break,
        }
        assert!(told.len() < 1_000, "the disk never failed");
    }
    assert!(!told.is_empty());
    assert_eq!(server.ended().await, 1);
    let mut why = String::new();
    in_time("the reason", said.read_to_string(&mut why)).await.unwrap();
    assert!(why.contains("\nthe store failed: "), "{why}");

    let server = Process::start(serve(directory.path(), &[])).await;
    let mut client = server.client().await;
    for (n, before) in told.iter().enumerate() {
        let again = client.run(message(n)).await;
        assert!(again.begin.replayed);
        assert_eq!((&again.events, &again.end), (&before.events, &before.end));
    }
    // Whether the last one is there or not, it is there once.
    let last = client.run(message(told.len())).await;
    assert_eq!(last.end.state(), State::Paused);
    let everything = pb::ListInvocationsRequest { page_size: 1_000, ..Default::default() };
    let listed = client.agents.list_invocations(everything).await.unwrap().into_inner();
    assert_eq!(listed.invocations.len(), told.len() + 1);
    server.kill().await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_refused_before_anything_is_made() {
    let directory = TempDir::new().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign"));
    let store = format!("sqlite:{}", directory.path().join("store.db").display());
    command.env_clear().args(["serve", "--listen", &address, "--store", &store]);
    let (code, said) = refused(command);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains(&address), "{said}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let directory = TempDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign"));
    command.env_clear().env("COUNTERSIGN_DRAIN_TIMEOUT", "soon");
    let flags = ["serve", "--listen", "nowhere", "--store", "floppy:", "--limit", "event_bites=1"];
    let (code, said) = refused({
        command.args(flags);
        command
    });
    assert_eq!(code, 2, "{said}");
    let places = ["--listen: ", "--store: ", "--limit: ", "COUNTERSIGN_DRAIN_TIMEOUT: "];
    assert_eq!(said.lines().count(), places.len(), "{said}");
    for place in places {
        assert!(said.lines().any(|line| line.starts_with(place)), "{place} in {said}");
    }

    let agents = directory.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    std::fs::write(agents.join("a.yaml"), "name: user\nmodel: scripted\n").unwrap();
    std::fs::write(agents.join("b.yaml"), "name: b\nmodle: scripted\n").unwrap();
    let (code, said) = refused(serve(directory.path(), &["--agents", agents.to_str().unwrap()]));
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("a.yaml:1:") && said.contains("b.yaml:2:"), "{said}");
    assert!(!directory.path().join("store.db").exists(), "a file was made for nothing");
}

#[tokio::test]
async fn a_stream_that_waits_is_asked_to_reconnect() {
    let directory = TempDir::new().unwrap();
    let server = Process::start(serve(directory.path(), &[])).await;
    let mut client = server.client().await;
    let follow =
        pb::RunConfig { on_pause: pb::run_config::OnPause::Follow.into(), ..Default::default() };
    let request = pb::RunAsyncRequest {
        run_config: Some(follow),
        ..say(APP, "", "Please reimburse $200 for conference travel")
    };
    let mut stream = client.agents.run_async(request).await.unwrap().into_inner();
    let mut begun = None;
    loop {
        match stream.message().await.unwrap().unwrap().mark {
            Some(pb::event::Mark::Begin(begin)) => begun = Some(begin),
            Some(pb::event::Mark::Pause(_)) => break,
            _ => {}
        }
    }
    server.terminate();
    let last = in_time("an end", stream.message()).await.unwrap().unwrap();
    let Some(pb::event::Mark::End(end)) = last.mark else { panic!("{last:?}") };
    assert_eq!((end.state(), end.after_sequence), (State::Reconnect, 4));
    assert!(stream.message().await.unwrap().is_none());
    assert_eq!(server.ended().await, 0);

    let server = Process::start(serve(directory.path(), &[])).await;
    let end = attach(&mut server.client().await, &begun.unwrap()).await.unwrap();
    assert_eq!(end.state(), State::Paused);
}

/// Reads a connection to its end.
async fn to_the_end(mut stream: impl AsyncReadExt + Unpin) -> String {
    let mut text = String::new();
    in_time("a connection", stream.read_to_string(&mut text)).await.unwrap();
    text
}
