//! Kills at random instants under the load of many clients, again and again on the same file, some
//! of them before the server has told its address. Afterwards every client's history is held
//! against the logs.
//!
//! `COUNTERSIGN_KILLS` says how often (more than the default is the long form), `COUNTERSIGN_SEED`
//! what the clients do and when a server dies; both are printed. What happens in between is the
//! machine's: a seed brings back the load, not the interleaving.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use countersign::agent::Effect;
use countersign::app::{self, Builder};
use countersign::runner::index;
use countersign::session::codec;
use countersign::session::content::Object;
use countersign::store::sqlite::Sqlite;
use countersign::store::{Clock, Query, Store};
use countersign::tool::{Context, Function};
use tokio::sync::watch;

use super::history::{Fact, Log, check};
use super::load::{CLERK, Patient, Scene, States, random};
use super::*;
use crate::support::USER;

/// Kills of the real binary, unless it is said how many.
const KILLS: u64 = 150;
/// Of a server whose bodies leave traces, for each of those.
const OF_BODIES: u64 = 3;
const CLIENTS: u64 = 64;
const SEED: u64 = 0x5eed;
/// Longest time between a first sign of life and the kill, in milliseconds.
const LIFE: u64 = 400;
/// Longest time that a server has which dies before it serves, in milliseconds.
const BIRTH: u64 = 120;
/// One in so many dies before it serves.
const STILLBORN: u64 = 6;

const TRACES: &str = "COUNTERSIGN_TEST_TRACES";

/// The agent, with what its tools are made of.
fn agent(pay: &str, look: &str) -> String {
    format!(
        "
name: {CLERK}
model: scripted
tools:
  - {{name: ask, long_running: true, returns: {{status: pending}}}}
  - {{name: wait, long_running: true, returns: nothing}}
  - {{name: pay{pay}}}
  - {{name: look{look}}}
script:
  - when: {{user: '^(?:ask) '}}
    call: {{ask: {{}}}}
  - when: {{user: '^wait '}}
    call: {{wait: {{}}}}
  - when: {{user: '^pay '}}
    call: {{pay: {{}}}}
  - when: {{user: '^look '}}
    call: {{look: {{}}}}
  - when: {{response: ask, matching: {{status: pending}}}}
    say: Somebody is asked.
  - when: {{response: ask, matching: {{status: approved}}}}
    call: {{pay: {{}}}}
  - when: {{response: wait, matching: {{status: approved}}}}
    call: {{look: {{}}}}
  - when: always
    say: That is all.
"
    )
}

/// A body that leaves a trace before it does anything, and takes as long as the disk does.
fn body(name: &'static str, effect: Effect, traces: &Path) -> Function {
    let traces = traces.to_owned();
    let run = move |_: Object, context: Context| {
        let (traces, line) = (traces.clone(), format!("{name} {}\n", context.idempotency_key()));
        async move {
            let trace = move || {
                let mut file = std::fs::File::options().append(true).create(true).open(traces)?;
                file.write_all(line.as_bytes())?;
                file.sync_all()
            };
            let done = tokio::task::spawn_blocking(trace).await.map_err(|e| e.to_string())?;
            done.map_err(|e| e.to_string())?;
            Ok::<_, String>(json!({"status": "done"}))
        }
    };
    Function::new(name, "", run).effect(effect)
}

/// Not a test by itself: the server of the second one, whose bodies leave traces.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Ok(directory) = std::env::var(TRACES) else { return };
    let (directory, traces) = (Path::new(&directory), Path::new(&directory).join("traces"));
    let server = Builder::new()
        .tool(body("pay", Effect::Once, &traces))
        .tool(body("look", Effect::Read, &traces))
        .agent_file("clerk.yaml", &agent("", ""))
        .sqlite(directory.join("store.db"))
        .build()
        .await
        .unwrap();
    let listener = app::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    println!("\ncountersign listening on {}", listener.local_addr().unwrap());
    server.serve_on(listener, std::future::pending()).await.unwrap();
}

fn setting(name: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(name) else { return default };
    let hex = text.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16));
    hex.unwrap_or_else(|| text.parse()).unwrap_or_else(|_| panic!("{name}: not a number: {text}"))
}

/// Kills servers of this command, so often, under load. All that the clients know.
async fn storm(command: impl Fn() -> Command, kills: u64, seed: u64) -> Vec<Fact> {
    let mut seed = seed;
    let mut server = Process::start(command()).await;
    let (addresses, address) = watch::channel(server.address.clone());
    let (told, stop) = (Arc::new(watch::Sender::new(0)), Arc::new(AtomicBool::new(false)));
    let scene = Scene { address, told: told.clone(), stop: stop.clone() };
    let clients = (0..CLIENTS).map(|number| {
        let name = format!("c{number}");
        tokio::spawn(Patient::new(name, random(&mut seed, u64::MAX) ^ number, scene.clone()).life())
    });
    let clients: Vec<_> = clients.collect();
    let (goal, known) = watch::channel(None);
    let changes = tokio::spawn(Patient::new("watcher".into(), 0, scene.clone()).changes(known));
    let mut count = told.subscribe();
    for _ in 0..kills {
        let before = *count.borrow_and_update();
        in_time("a sign of life", count.wait_for(|count| *count > before)).await.unwrap();
        server.lives(Duration::from_millis(random(&mut seed, LIFE))).await;
        server.kill().await;
        while random(&mut seed, STILLBORN) == 0 {
            let life = Duration::from_millis(random(&mut seed, BIRTH));
            let mut server = tokio::process::Command::from(command());
            let mut server = server.stdout(Stdio::null()).kill_on_drop(true).spawn().unwrap();
            let ended = tokio::time::timeout(life, server.wait()).await;
            assert!(ended.is_err(), "a server ended by itself: {ended:?}");
            server.kill().await.unwrap();
        }
        server = Process::start(command()).await;
        addresses.send_replace(server.address.clone());
    }
    stop.store(true, Ordering::SeqCst);
    let mut facts = Vec::new();
    for client in clients {
        facts.extend(in_time("the last invocations", client).await.unwrap());
    }
    let mut client = server.client().await;
    settled(&mut client).await;
    let states = list(&mut client).await;
    let states: States = states.into_iter().map(|(id, now)| (id, now.state())).collect();
    goal.send_replace(Some(states));
    facts.extend(in_time("all changes", changes).await.unwrap());
    server.kill().await;
    facts
}

/// Nothing runs any more.
async fn settled(client: &mut Client) {
    let request = pb::ListInvocationsRequest {
        states: vec![pb::invocation::State::Running.into()],
        page_size: 1,
        ..Default::default()
    };
    let rest = async {
        while !client
            .agents
            .list_invocations(request.clone())
            .await
            .unwrap()
            .into_inner()
            .invocations
            .is_empty()
        {}
    };
    in_time("a rest", rest).await;
}

/// All invocations by id.
async fn list(client: &mut Client) -> BTreeMap<String, pb::Invocation> {
    let (mut all, mut page_token) = (BTreeMap::new(), String::new());
    loop {
        let request =
            pb::ListInvocationsRequest { page_size: 1_000, page_token, ..Default::default() };
        let page = client.agents.list_invocations(request).await.unwrap().into_inner();
        all.extend(page.invocations.into_iter().map(|one| (one.id.clone(), one)));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return all;
        }
    }
}

/// What a server tells, and what is in the file when it is gone.
async fn log(command: Command, directory: &Path) -> Log {
    let server = Process::start(command).await;
    let mut client = server.client().await;
    let mut log = Log::default();
    for id in list(&mut client).await.into_keys() {
        let request = pb::GetInvocationRequest { invocation_id: id.clone(), ..Default::default() };
        let one = client.agents.get_invocation(request).await.unwrap().into_inner();
        log.invocations.insert(id, one);
    }
    let mut page_token = String::new();
    loop {
        let request = pb::ListSessionsRequest {
            app_name: CLERK.into(),
            user_id: USER.into(),
            page_size: 1_000,
            page_token,
        };
        let page = client.sessions.list_sessions(request).await.unwrap().into_inner();
        for session in page.sessions {
            let events = client.events(CLERK, &session.id).await;
            log.events.insert(session.id, events);
        }
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    server.kill().await;
    let store = Sqlite::open(directory.join("store.db"), Clock::system()).unwrap();
    let mut query = Query { kind: index::SESSION, limit: 1_000, ..Query::default() };
    loop {
        let (sessions, _) = store.list(query.clone()).await.unwrap();
        let Some(last) = sessions.last() else { break };
        query.after = Some((last.entry.order.clone(), last.entry.id.clone()));
        for found in sessions {
            let mut records: Vec<countersign::session::record::Record> = Vec::new();
            loop {
                let after = u64::try_from(records.len()).unwrap();
                let rows = store.read(&found.uid, after, 1_000).await.unwrap();
                if rows.is_empty() {
                    break;
                }
                records.extend(rows.iter().map(|row| codec::decode_record(&row.bytes).unwrap()));
            }
            let session = countersign::session::Session::begin(&records[0]).unwrap();
            log.records.insert(session.key.id.to_string(), records);
        }
    }
    let traces = std::fs::read_to_string(directory.join("traces")).unwrap_or_default();
    let traces = traces.lines().map(|line| line.split_once(' ').unwrap());
    log.bodies = traces.map(|(tool, key)| (tool.to_owned(), key.to_owned())).collect();
    log
}

/// The whole of it: the storm, and the reckoning.
async fn survives(command: impl Fn() -> Command, kills: u64, directory: &TempDir) -> Log {
    let seed = setting("COUNTERSIGN_SEED", SEED);
    println!("COUNTERSIGN_KILLS={kills} COUNTERSIGN_SEED={seed:#x}");
    let since = std::time::Instant::now();
    let facts = storm(&command, kills, seed).await;
    let log = log(command(), directory.path()).await;
    let (mut told, mut answers) = (0, 0);
    for fact in &facts {
        told += usize::from(matches!(fact, Fact::Begun { .. }));
        answers += usize::from(matches!(fact, Fact::Answered(_)));
    }
    println!(
        "{kills} kills, {told} messages and {answers} answers acknowledged, {} sessions, {} \
         invocations, {} bodies, {:.0?}",
        log.events.len(),
        log.invocations.len(),
        log.bodies.len(),
        since.elapsed()
    );
    let faults = check(&facts, &log);
    if !faults.is_empty() {
        let kept = std::env::temp_dir().join(format!("countersign-storm-{}", std::process::id()));
        let file = directory.path().join("store.db");
        let copied = std::fs::copy(file, &kept).map(|_| kept);
        panic!("{} faults; the file is {copied:?}:\n{}", faults.len(), faults.join("\n"));
    }
    assert!(told as u64 > kills && answers > 0, "{told} messages, {answers} answers only");
    log
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_binary_survives_kills_at_any_instant() {
    let directory = TempDir::new().unwrap();
    let agents = directory.path().join("agents");
    std::fs::create_dir(&agents).unwrap();
    let returns = ", returns: {status: done}";
    let file = agent(&format!("{returns}, effect: once"), returns);
    std::fs::write(agents.join("clerk.yaml"), file).unwrap();
    let command = || serve(directory.path(), &["--agents", agents.to_str().unwrap()]);
    survives(command, setting("COUNTERSIGN_KILLS", KILLS), &directory).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_are_begun_as_often_as_they_may_be() {
    let directory = TempDir::new().unwrap();
    let command = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "kill::storm::child", "--nocapture"])
            .env(TRACES, directory.path())
            .stderr(Stdio::null());
        command
    };
    let kills = setting("COUNTERSIGN_KILLS", KILLS).div_ceil(OF_BODIES);
    let log = survives(command, kills, &directory).await;
    assert!(!log.bodies.is_empty());
}
