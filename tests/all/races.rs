//! Many want something of one session at once, on the runtime with several threads, in memory and
//! in a file. Whoever is first is the machine's choice, differently each round; what must hold
//! whoever it was is checked after each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use countersign::app::Builder;
use countersign::proto::v1::submit_function_response_response::Outcome;
use countersign::proto::v1::{self as pb, end_mark::State};
use countersign::session::content::Object;
use countersign::store::memory::Memory;
use countersign::store::sqlite::Sqlite;
use countersign::store::{Clock, Store};
use countersign::tool::{Context, Function};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{Barrier, watch};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use crate::requests::at_rest;
use crate::support::{
    Client, Server, USER, agents, answer, json as plain, reason, say, say_answers,
};
use crate::support::{Told, submit};

mod answers;
mod others;

const APP: &str = "clerk";

/// `ask` is held with a placeholder, `wait` without; `slow` gives its placeholder when the gate is
/// opened; after each `pay` runs, which is counted. `think` waits at the gate.
const AGENT: &str = "
name: clerk
model: scripted
tools:
  - {name: ask, long_running: true, returns: {status: pending}, expires_after: 60s}
  - {name: wait, long_running: true, returns: nothing, expires_after: 60s}
  - {name: slow, long_running: true}
  - {name: think}
  - {name: pay}
script:
  - when: {user: '^ask'}
    call: {ask: {}}
  - when: {user: '^wait'}
    call: {wait: {}}
  - when: {user: '^slow'}
    call: {slow: {}}
  - when: {user: '^think'}
    call: {think: {}}
  - when: {response: ask, matching: {status: approved}}
    call: {pay: {}}
  - when: {response: wait, matching: {status: approved}}
    call: {pay: {}}
  - when: {response: slow, matching: {status: approved}}
    call: {pay: {}}
  - when: always
    say: That is all.
";

/// A server and what its bodies do.
struct Arena {
    server: Server,
    client: Client,
    clock: Clock,
    /// How often `pay` ran.
    paid: Arc<AtomicUsize>,
    /// Lets `slow` and `think` through.
    gate: watch::Sender<bool>,
    _directory: TempDir,
}

impl Arena {
    async fn new(in_memory: bool) -> Self {
        let clock = Clock::manual(1_800_000_000_000_000);
        let directory = TempDir::new().unwrap();
        let store: Arc<dyn Store> = if in_memory {
            Arc::new(Memory::new(clock.clone()))
        } else {
            Arc::new(Sqlite::open(directory.path().join("store.db"), clock.clone()).unwrap())
        };
        let paid = Arc::new(AtomicUsize::new(0));
        let (gate, _) = watch::channel(false);
        let builder = builder(&paid, &gate).store(store);
        let server = Server::stored(builder).await;
        let client = server.client().await;
        Self { server, client, clock, paid, gate, _directory: directory }
    }

    /// One on each kind of store.
    async fn both() -> [Self; 2] {
        [Self::new(true).await, Self::new(false).await]
    }

    /// Clients on connections of their own.
    async fn clients(&self, count: usize) -> Vec<Client> {
        join_all((0..count).map(|_| self.server.client())).await
    }

    /// A call that is held, in a session of its own.
    async fn held(&mut self, what: &str) -> (pb::Call, Told) {
        let told = in_time(self.client.say(APP, what)).await;
        assert_eq!(told.end.state(), State::Paused);
        (told.end.held_calls[0].clone(), told)
    }

    fn paid(&self) -> usize {
        self.paid.load(Ordering::SeqCst)
    }

    /// The end of an invocation that nobody keeps from it.
    async fn end(&mut self, call: &pb::Call) -> Told {
        let request = pb::RunAsyncRequest {
            new_message: None,
            invocation_id: call.invocation_id.clone(),
            ..say(APP, &call.session_id, "")
        };
        in_time(self.client.run(request)).await
    }

    /// The answers to a call that stand in its session, the placeholder aside.
    async fn answers(&mut self, call: &pb::Call) -> Vec<Value> {
        let id = &call.function_call.as_ref().unwrap().id;
        let events = self.client.events(APP, &call.session_id).await;
        let parts = events.iter().flat_map(|event| &event.content).flat_map(|told| &told.parts);
        let told = parts.filter_map(|part| match part.data.as_ref() {
            Some(pb::part::Data::FunctionResponse(told)) if told.id == *id => {
                told.response.as_ref().map(plain)
            }
            _ => None,
        });
        told.filter(|told| told["status"] != "pending").collect()
    }
}

fn builder(paid: &Arc<AtomicUsize>, gate: &watch::Sender<bool>) -> Builder {
    let paid = paid.clone();
    let pay = move |_: Object, _: Context| {
        paid.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok::<_, String>(json!({"status": "ok"})))
    };
    let gated = |name: &str, gives: Value| {
        let gate = gate.subscribe();
        Function::new(name, "", move |_: Object, _: Context| {
            let (mut gate, gives) = (gate.clone(), gives.clone());
            async move {
                gate.wait_for(|open| *open).await.map_err(|e| e.to_string())?;
                Ok::<_, String>(gives)
            }
        })
    };
    agents(AGENT)
        .tool(Function::new("pay", "", pay))
        .tool(gated("slow", json!({"status": "pending"})).long_running())
        .tool(gated("think", json!({"status": "thought"})))
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it comes to an end")
}

/// All of them begin when all are there.
async fn at_once<T: Send + 'static>(
    tasks: impl IntoIterator<Item: Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().collect();
    let barrier = Arc::new(Barrier::new(tasks.len()));
    let tasks = tasks.into_iter().map(|task| {
        let barrier = barrier.clone();
        tokio::spawn(async move {
            barrier.wait().await;
            task.await
        })
    });
    in_time(join_all(tasks)).await.into_iter().map(|done| done.unwrap()).collect()
}

fn approved(by: usize) -> Value {
    json!({"status": "approved", "by": by})
}

/// The reason alone.
fn why(status: &Status) -> String {
    reason(status).1
}
