//! SIGTERM while a body is at work. The body is the test's own: it connects to the test, tells its
//! key, and is done when the test says so. The server is this program with the test `child`.

use countersign::agent::Effect;
use countersign::app::{self, Builder};
use countersign::session::content::Object;
use countersign::tool::{Context, Function};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::*;

const DIRECTORY: &str = "COUNTERSIGN_TEST_DIRECTORY";
const GATE: &str = "COUNTERSIGN_TEST_GATE";
const DRAIN: &str = "COUNTERSIGN_TEST_DRAIN";
const EFFECT: &str = "COUNTERSIGN_TEST_EFFECT";

const AGENT: &str = "
name: worker
model: scripted
tools: [{name: work}]
script:
  - when: {response: work}
    say: 'Worked: ${response.result}'
  - when: {user: '.'}
    call: {work: {}}
";

/// Not a test by itself: the server of the others.
#[tokio::test]
async fn child() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let gate = std::env::var(GATE).unwrap();
    let effect = match std::env::var(EFFECT).unwrap().as_str() {
        "READ" => Effect::Read,
        _ => Effect::Once,
    };
    let work = Function::new("work", "", move |_: Object, context: Context| {
        let gate = gate.clone();
        async move {
            let mut gate = TcpStream::connect(gate).await.map_err(|e| e.to_string())?;
            let key = context.idempotency_key().to_owned() + "\n";
            gate.write_all(key.as_bytes()).await.map_err(|e| e.to_string())?;
            let mut said = String::new();
            gate.read_to_string(&mut said).await.map_err(|e| e.to_string())?;
            Ok::<_, String>(json!({"result": said}))
        }
    });
    let drain = Duration::from_secs(std::env::var(DRAIN).unwrap().parse().unwrap());
    let server = Builder::new()
        .tool(work.effect(effect))
        .agent_file("worker.yaml", AGENT)
        .drain_timeout(drain)
        .sqlite(Path::new(&directory).join("store.db"))
        .build()
        .await
        .unwrap();
    let listener = app::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let mut stop =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    println!("\ncountersign listening on {}", listener.local_addr().unwrap());
    let stopped = async move {
        stop.recv().await;
    };
    server.serve_on(listener, stopped).await.unwrap();
}

/// What a test has: a directory, and the gate where bodies knock.
struct Scene {
    directory: TempDir,
    gate: TcpListener,
    drain_seconds: u64,
    effect: &'static str,
}

impl Scene {
    async fn new(drain_seconds: u64, effect: &'static str) -> Self {
        let gate = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { directory: TempDir::new().unwrap(), gate, drain_seconds, effect }
    }

    async fn start(&self) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "kill::drain::child", "--nocapture"])
            .env(DIRECTORY, self.directory.path())
            .env(GATE, self.gate.local_addr().unwrap().to_string())
            .env(DRAIN, self.drain_seconds.to_string())
            .env(EFFECT, self.effect)
            .stderr(Stdio::null());
        Process::start(command).await
    }

    /// A body at work, and its key.
    async fn body(&self) -> (TcpStream, String) {
        let (mut stream, _) = in_time("a body", self.gate.accept()).await.unwrap();
        let mut key = String::new();
        in_time("a key", async {
            while !key.ends_with('\n') {
                key.push(char::from(stream.read_u8().await.unwrap()));
            }
        })
        .await;
        (stream, key.trim().to_owned())
    }
}

/// Says something and gives the stream back with its beginning.
async fn begin(client: &mut Client) -> (tonic::Streaming<pb::Event>, pb::BeginMark) {
    let request = say("worker", "", "go");
    let mut stream = client.agents.run_async(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let Some(pb::event::Mark::Begin(begun)) = first.mark else { panic!("{first:?}") };
    (stream, begun)
}

async fn end(mut stream: tonic::Streaming<pb::Event>) -> pb::EndMark {
    loop {
        let event = in_time("an end", stream.message()).await.unwrap().unwrap();
        if let Some(pb::event::Mark::End(end)) = event.mark {
            return end;
        }
    }
}

#[tokio::test]
async fn a_body_at_work_is_awaited_and_its_result_kept() {
    let scene = Scene::new(30, "ONCE").await;
    let server = scene.start().await;
    let mut client = server.client().await;
    let (stream, begun) = begin(&mut client).await;
    let (mut body, _) = scene.body().await;
    server.terminate();
    let end = end(stream).await;
    assert_eq!((end.state(), end.after_sequence), (State::Reconnect, 2));
    // Nothing new is begun meanwhile, and nobody is told that it was.
    let refused = client.agents.run_async(say("worker", "", "go")).await.unwrap_err();
    // If the connection closes before it is asked, the client says so in words of its own.
    let closing = [tonic::Code::Unavailable, tonic::Code::Cancelled];
    assert!(closing.contains(&refused.code()), "{refused:?}");
    body.write_all(b"all").await.unwrap();
    body.shutdown().await.unwrap();
    assert_eq!(server.ended().await, 0);

    let server = scene.start().await;
    let mut client = server.client().await;
    let end = attach(&mut client, &begun).await.unwrap();
    assert_eq!(end.state(), State::Completed);
    let events = client.events("worker", &begun.session_id).await;
    let told = [
        "user: go",
        "worker > work({})",
        r#"worker < work({"result":"all"})"#,
        "worker: Worked: all",
    ];
    assert_eq!(story(&events), told);
}

#[tokio::test]
async fn a_body_that_never_ends_is_left_and_asked_about() {
    let scene = Scene::new(1, "ONCE").await;
    let server = scene.start().await;
    let (stream, begun) = begin(&mut server.client().await).await;
    let (body, key) = scene.body().await;
    server.terminate();
    assert_eq!(end(stream).await.state(), State::Reconnect);
    assert_eq!(server.ended().await, 0);
    assert_eq!(to_the_end(body).await, "", "the body is gone with its server");

    let server = scene.start().await;
    let mut client = server.client().await;
    let end = attach(&mut client, &begun).await.unwrap();
    assert_eq!(end.state(), State::Paused);
    let held = &end.held_calls[0];
    assert_eq!(held.kind(), pb::call::Kind::UnknownOutcome);
    assert_eq!(key, format!("{}/1", held.function_call.as_ref().unwrap().id));
    client.submit(submit(held, json!({"result": "most"}))).await.unwrap();
    assert_eq!(attach(&mut client, &begun).await.unwrap().state(), State::Completed);
}

#[tokio::test]
async fn a_body_that_never_ends_runs_again_if_it_may() {
    let scene = Scene::new(1, "READ").await;
    let server = scene.start().await;
    let (stream, begun) = begin(&mut server.client().await).await;
    let (body, key) = scene.body().await;
    server.terminate();
    assert_eq!(end(stream).await.state(), State::Reconnect);
    assert_eq!(server.ended().await, 0);
    drop(body);

    let server = scene.start().await;
    let (mut body, again) = scene.body().await;
    assert_eq!(again, key);
    body.write_all(b"all").await.unwrap();
    body.shutdown().await.unwrap();
    let end = attach(&mut server.client().await, &begun).await.unwrap();
    assert_eq!(end.state(), State::Completed);
}
