//! Stop after the n-th append, restart, compare: whatever the last thing was that became durable,
//! the story ends as if nothing had happened, and no body of effect ONCE runs twice.
//!
//! The scenario has two long-running calls and an ordinary one in one turn, and a client that
//! answers one after the other. The server runs in a runtime of its own, which is dropped with all
//! its tasks; the client repeats what was not acknowledged, with the same `request_id`.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countersign::agent::Effect;
use countersign::app::Builder;
use countersign::proto::v1::{self as pb, end_mark::State};
use countersign::runner::index;
use countersign::session::content::Object;
use countersign::session::state::Touched;
use countersign::session::{Session, codec};
use countersign::store::memory::Memory;
use countersign::store::{Clock, Query, Store};
use countersign::tool::{Context, Function};
use serde_json::{Value, json};
use tokio::runtime::{Builder as RuntimeBuilder, Runtime};
use tonic::Status;

use crate::support::{Client, Server, USER, json, say, submit};

mod drain;

const APP: &str = "clerk";

const AGENT: &str = "
name: clerk
model: scripted
instruction: Ask both, and work meanwhile.
tools:
  - name: ask_ann
  - name: ask_bob
  - name: work
script:
  - when: {user: '.'}
    calls: [{ask_ann: {}}, {work: {}}, {ask_bob: {}}]
  - when: {response: ask_ann, matching: {status: pending}}
    say: Ann thinks.
  - when: {response: ask_bob, matching: {status: pending}}
    say: Bob thinks.
  - when: {response: ask_ann}
    say: 'Ann: ${response.status}'
  - when: {response: ask_bob}
    say: 'Bob: ${response.status}'
  - when: {response: work}
    say: 'Worked: ${response.result}'
";

/// What bodies ran: the tool and the idempotency key.
type Ran = Arc<Mutex<Vec<(&'static str, String)>>>;

fn tool(name: &'static str, effect: Effect, gives: &'static str, ran: &Ran) -> Function {
    let ran = ran.clone();
    let body = move |_: Object, context: Context| {
        ran.lock().unwrap().push((name, context.idempotency_key().to_owned()));
        context.set(format!("{name} ran"), true);
        let gives: Value = serde_json::from_str(gives).unwrap();
        async move { Ok::<_, Infallible>(gives) }
    };
    Function::new(name, "", body).effect(effect)
}

fn builder(effect: Effect, ran: &Ran) -> Builder {
    let pending = r#"{"status": "pending"}"#;
    // So that there are snapshots in logs this short.
    let limits = countersign::limits::Limits { snapshot_records: 5, ..Default::default() };
    Builder::new()
        .limits(limits)
        .tool(tool("ask_ann", effect, pending, ran).long_running())
        .tool(tool("ask_bob", effect, pending, ran).long_running())
        .tool(tool("work", effect, r#"{"result": "done"}"#, ran))
        .agent_file("clerk.yaml", AGENT)
}

/// A server that can be killed: everything of it ends at its next await.
struct Process {
    runtime: Runtime,
    server: Server,
}

impl Process {
    fn start(builder: Builder, store: &Arc<Memory>) -> Self {
        let threads = RuntimeBuilder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = threads.unwrap();
        let server = runtime.block_on(Server::start_on(builder, store.clone()));
        Self { runtime, server }
    }

    fn kill(self) {
        self.runtime.shutdown_timeout(Duration::from_secs(10));
        drop(self.server);
    }
}

/// What a client knows and wants: it survives the servers.
#[derive(Default)]
struct Asker {
    begun: Option<pb::BeginMark>,
    /// An answer that was not acknowledged.
    pending: Option<pb::SubmitFunctionResponseRequest>,
    /// The calls of unknown outcome that it has answered, by name.
    unknown: BTreeSet<String>,
    completed: bool,
}

impl Asker {
    /// Goes on where it is, to the end of the scenario.
    async fn play(&mut self, client: &mut Client) -> Result<(), Status> {
        while !self.completed {
            if let Some(pending) = &self.pending {
                client.submit(pending.clone()).await?;
                self.pending = None;
            }
            let end = self.follow(client).await?;
            match end.state() {
                State::Completed => self.completed = true,
                State::Paused => self.pending = Some(self.decide(&end.held_calls)),
                other => panic!("it ended {other:?}: {end:?}"),
            }
        }
        Ok(())
    }

    async fn follow(&mut self, client: &mut Client) -> Result<pb::EndMark, Status> {
        let request = match &self.begun {
            None => pb::RunAsyncRequest { request_id: "message".into(), ..say(APP, "", "go") },
            Some(begun) => pb::RunAsyncRequest {
                new_message: None,
                invocation_id: begun.invocation_id.clone(),
                ..say(APP, &begun.session_id, "")
            },
        };
        let mut stream = client.agents.run_async(request).await?.into_inner();
        while let Some(event) = stream.message().await? {
            match event.mark {
                Some(pb::event::Mark::Begin(begin)) => self.begun = Some(begin),
                Some(pb::event::Mark::End(end)) => return Ok(end),
                _ => {}
            }
        }
        Err(Status::unavailable("the stream broke off"))
    }

    /// Calls of unknown outcome first, with the outcome that they would have had, then in order.
    fn decide(&mut self, held: &[pb::Call]) -> pb::SubmitFunctionResponseRequest {
        let unknown = |call: &&pb::Call| call.kind() == pb::call::Kind::UnknownOutcome;
        let call = held.iter().find(unknown).or(held.first()).expect("somebody is waited for");
        let name = call.function_call.as_ref().unwrap().name.clone();
        if unknown(&call) {
            self.unknown.insert(name.clone());
        }
        let answer = match name.as_str() {
            "work" => json!({"result": "done"}),
            _ => json!({"status": "approved"}),
        };
        pb::SubmitFunctionResponseRequest {
            request_id: format!("answer-{name}"),
            ..submit(call, answer)
        }
    }
}

/// How a session ended, without ids and times.
#[derive(Debug, PartialEq)]
struct Story {
    events: Vec<Value>,
    state: Value,
    /// The last response of each call, by name.
    outcomes: BTreeMap<String, Value>,
}

async fn story(client: &mut Client, session: &str) -> Story {
    let events = client.events(APP, session).await;
    let request = pb::GetSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
    };
    let found = client.sessions.get_session(request).await.unwrap().into_inner();
    let mut names = BTreeMap::new();
    let mut outcomes = BTreeMap::new();
    for event in &events {
        let number = names.len();
        names.entry(event.id.clone()).or_insert(format!("event {number}"));
        names.entry(event.invocation_id.clone()).or_insert("invocation".to_owned());
        for part in event.content.iter().flat_map(|content| &content.parts) {
            match &part.data {
                Some(pb::part::Data::FunctionCall(call)) => {
                    names.insert(call.id.clone(), format!("call of {}", call.name));
                }
                Some(pb::part::Data::FunctionResponse(answer)) => {
                    let response = json(answer.response.as_ref().unwrap());
                    outcomes.insert(answer.name.clone(), response);
                }
                _ => {}
            }
        }
    }
    let event = |event: &pb::Event| {
        let mut event = event.clone();
        // They stand in the order of the ids, which are random.
        event.long_running_tool_ids.sort_by_key(|id| names.get(id).cloned());
        let text = countersign::proto::to_json(&event).unwrap();
        renamed(serde_json::from_str(&text).unwrap(), &names)
    };
    let state = json(found.state.as_ref().unwrap());
    Story { events: events.iter().map(event).collect(), state, outcomes }
}

/// The value with ids by their names and without times.
fn renamed(value: Value, names: &BTreeMap<String, String>) -> Value {
    let name = |text: String| names.get(&text).cloned().unwrap_or(text);
    match value {
        Value::String(text) => Value::String(name(text)),
        Value::Array(values) => {
            let mut values: Vec<_> = values.into_iter().map(|v| renamed(v, names)).collect();
            if values.iter().all(Value::is_string) {
                // A set of ids, in their order.
                values.sort_by_key(Value::to_string);
            }
            Value::Array(values)
        }
        Value::Object(object) => object
            .into_iter()
            .filter(|(key, _)| key != "timestamp")
            .map(|(key, value)| (name(key), renamed(value, names)))
            .collect(),
        other => other,
    }
}

/// Nobody drives a session, and none could move; snapshots are what their logs say.
async fn at_rest(server: &Server, store: &Memory) {
    crate::requests::at_rest(server).await;
    let query = Query { kind: index::SESSION, limit: 10, ..Query::default() };
    let (sessions, _) = store.list(query).await.unwrap();
    assert_eq!(sessions.len(), 1, "a repeated message made a session of its own");
    for found in sessions {
        let rows = store.read(&found.uid, 0, 1_000).await.unwrap();
        let opened = store.open(&found.uid).await.unwrap().unwrap();
        let snapshot = opened
            .snapshot
            .map(|(position, bytes)| (position, codec::decode_snapshot(&bytes).unwrap()));
        let mut session: Option<Session> = None;
        for row in rows {
            let record = codec::decode_record(&row.bytes).unwrap();
            match &mut session {
                None => session = Session::begin(&record),
                Some(session) => session.apply(&record, &mut Touched::default()),
            }
            if let Some((position, snapshot)) = &snapshot
                && row.position == *position
            {
                assert_eq!(session.as_ref(), Some(snapshot));
            }
        }
        let session = session.unwrap();
        assert!(session.claim.is_none() && !session.can_move(), "{session:?}");
    }
}

/// What came of one scenario.
struct Played {
    story: Story,
    unknown: BTreeSet<String>,
    ran: Vec<(&'static str, String)>,
    commits: u64,
}

/// Plays the scenario; the server stops after so many appends, if it gets there, and is restarted.
fn play(effect: Effect, stop_after: Option<u64>) -> Played {
    let store = Arc::new(Memory::new(Clock::system()));
    let ran = Ran::default();
    let client = RuntimeBuilder::new_current_thread().enable_all().build().unwrap();
    let mut asker = Asker::default();
    let mut process = Process::start(builder(effect, &ran), &store);
    if let Some(count) = stop_after {
        store.stop_after(count);
        client.block_on(async {
            let mut client = process.server.client().await;
            tokio::select! {
                played = asker.play(&mut client) => drop(played),
                () = store.stopped() => {}
            }
        });
        process.kill();
        store.clear_faults();
        process = Process::start(builder(effect, &ran), &store);
    }
    let story = client.block_on(async {
        let in_time = tokio::time::timeout(Duration::from_secs(30), async {
            let mut client = process.server.client().await;
            asker.play(&mut client).await.unwrap();
            at_rest(&process.server, &store).await;
            story(&mut client, &asker.begun.as_ref().unwrap().session_id).await
        });
        in_time.await.unwrap_or_else(|_| panic!("stuck after a stop at {stop_after:?}"))
    });
    process.kill();
    let ran = ran.lock().unwrap().clone();
    Played { story, unknown: asker.unknown, ran, commits: store.commits() }
}

fn runs(ran: &[(&str, String)], tool: &str) -> (usize, usize) {
    let keys: Vec<&String> = ran.iter().filter(|(name, _)| *name == tool).map(|(_, k)| k).collect();
    (keys.len(), keys.iter().collect::<BTreeSet<_>>().len())
}

const TOOLS: [&str; 3] = ["ask_ann", "ask_bob", "work"];

/// The scenario without a stop, and the number of its appends if none share a batch.
fn whole(effect: Effect) -> Played {
    let whole = play(effect, None);
    assert!(whole.unknown.is_empty());
    for tool in TOOLS {
        assert_eq!(runs(&whole.ran, tool), (1, 1), "{tool}");
        assert_eq!(whole.story.state[format!("{tool} ran")], true);
    }
    assert_eq!(whole.story.outcomes["ask_bob"], json!({"status": "approved"}));
    whole
}

/// A story must be another one; the first difference is shown.
fn assert_same(played: &Story, whole: &Story, stop: u64) {
    for (at, (event, expected)) in played.events.iter().zip(&whole.events).enumerate() {
        assert_eq!(event, expected, "event {}, stopped after {stop}", at + 1);
    }
    assert_eq!(played, whole, "stopped after {stop}");
}

/// Bodies that come back at once share an append, or not: one run has up to two more than another.
const SPREAD: u64 = 2;

fn what_may_run_again(effect: Effect) {
    let whole = whole(effect);
    let mut again = 0;
    for stop in 1..=whole.commits + SPREAD {
        let played = play(effect, Some(stop));
        assert_same(&played.story, &whole.story, stop);
        assert!(played.unknown.is_empty(), "stopped after {stop}: {:?}", played.unknown);
        for tool in TOOLS {
            let (count, keys) = runs(&played.ran, tool);
            assert!((1..=2).contains(&count), "{tool} ran {count} times, stopped after {stop}");
            assert_eq!(keys, 1, "attempts of one execution share their key");
            again += count - 1;
        }
    }
    assert!(again > 0, "no stop was between a start and its result");
}

#[test]
fn bodies_that_read_run_again_and_the_story_is_the_same() {
    what_may_run_again(Effect::Read);
}

#[test]
fn idempotent_bodies_run_again_with_the_same_key() {
    what_may_run_again(Effect::Idempotent);
}

#[test]
fn bodies_that_run_once_never_run_twice() {
    let whole = whole(Effect::Once);
    let mut unknown = 0;
    for stop in 1..=whole.commits + SPREAD {
        let played = play(Effect::Once, Some(stop));
        for tool in TOOLS {
            let (count, _) = runs(&played.ran, tool);
            let asked = played.unknown.contains(tool);
            assert!(count == 1 || (count == 0 && asked), "{tool}: {count}, stopped after {stop}");
        }
        assert_eq!(played.story.outcomes, whole.story.outcomes, "stopped after {stop}");
        if played.unknown.is_empty() {
            assert_same(&played.story, &whole.story, stop);
        }
        unknown += played.unknown.len();
    }
    assert!(unknown > 0, "no stop was between a start and its result");
}
