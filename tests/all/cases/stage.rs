//! The stage of these tests: an agent whose model does what the user says and remembers all that it
//! was asked, and tools that are closures.
//!
//! A text `call pay {"sum": 1} & ask` makes those calls; any other text is echoed. Responses are
//! repeated as `heard NAME RESPONSE`, unless a cue of the stage says otherwise.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use countersign::agent::approvals::{Need, ToolApproval};
use countersign::agent::{Behaviour, Body, Declaration};
use countersign::app::Builder;
use countersign::model::{Error, Model, Pieces, Reply, Request, Said};
use countersign::proto::v1::{self as pb, part::Data as PbData};
use countersign::session::content::{Content, Data, FunctionResponse, Object, Part, Role};
use countersign::store::Clock;
use countersign::store::memory::Memory;
use countersign::tool::{Context, Outcome, Tool};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{Client, Server, Told, answer, say};

/// The app of these tests.
pub const APP: &str = "clerk";

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// A tool that is a closure, counted.
pub struct Closure {
    declaration: Declaration,
    body: Box<dyn Fn(Object, Context) -> Running + Send + Sync>,
    runs: Arc<AtomicUsize>,
}

impl Closure {
    pub fn new<F>(name: &str, body: impl Fn(Object, Context) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let declaration = Declaration {
            name: name.to_owned(),
            description: format!("Does {name}."),
            parameters: json!({"type": "object", "additionalProperties": true}),
            behaviour: Behaviour::default(),
            approval: Default::default(),
            body: Body::Function,
        };
        let body = Box::new(move |args, context| -> Running { Box::pin(body(args, context)) });
        Self { declaration, body, runs: Arc::default() }
    }

    /// A tool that always gives this.
    pub fn gives(name: &str, outcome: Outcome) -> Self {
        Self::new(name, move |_, _| std::future::ready(outcome.clone()))
    }

    /// A long-running tool with the placeholder `{"status": "pending"}`.
    pub fn asks(name: &str) -> Self {
        Self::gives(name, Outcome::Value(json!({"status": "pending"}))).long_running()
    }

    /// A long-running tool without a placeholder.
    pub fn waits(name: &str) -> Self {
        Self::gives(name, Outcome::Nothing).long_running()
    }

    /// A tool that waits at a gate before it gives this.
    pub fn behind(gate: &Gate, name: &str, outcome: Outcome) -> Self {
        let gate = gate.clone();
        Self::new(name, move |_, _| {
            let (gate, outcome) = (gate.clone(), outcome.clone());
            async move {
                gate.pass().await;
                outcome
            }
        })
    }

    pub fn long_running(self) -> Self {
        self.with(|behaviour| behaviour.long_running = true)
    }

    pub fn with(mut self, change: impl FnOnce(&mut Behaviour)) -> Self {
        change(&mut self.declaration.behaviour);
        self
    }

    /// What it says of approval.
    pub fn approval(mut self, change: impl FnOnce(&mut ToolApproval)) -> Self {
        change(&mut self.declaration.approval);
        self
    }

    /// Its calls always wait for a person.
    pub fn gated(self) -> Self {
        self.approval(|approval| approval.need = Some(Need::Always))
    }

    pub fn parameters(mut self, schema: Value) -> Self {
        self.declaration.parameters = schema;
        self
    }

    /// Counts how often the body ran.
    pub fn runs(&self) -> Count {
        Count(self.runs.clone())
    }
}

#[async_trait]
impl Tool for Closure {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    async fn run(&self, args: Object, context: Context) -> Outcome {
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.body)(args, context).await
    }
}

/// How often something happened.
pub struct Count(Arc<AtomicUsize>);

impl Count {
    pub fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Stops whoever comes by until it is opened for him.
#[derive(Clone)]
pub struct Gate {
    came: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Gate {
    pub fn new() -> Self {
        Self { came: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }

    pub async fn pass(&self) {
        self.came.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// Until somebody stands before it.
    pub async fn reached(&self) {
        soon(self.came.acquire()).await.unwrap().forget();
    }

    /// Lets one pass.
    pub fn open(&self) {
        self.open.add_permits(1);
    }
}

/// What must happen, and at once: a test that waits for something else fails instead of hanging.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    let limit = std::time::Duration::from_secs(20);
    tokio::time::timeout(limit, what).await.expect("it did not happen")
}

type Cue = dyn Fn(&FunctionResponse) -> Option<Said> + Send + Sync;

/// The model of the stage.
#[derive(Clone)]
struct Recorder {
    asked: Arc<Mutex<Vec<Request>>>,
    cue: Arc<Cue>,
    gate: Option<Gate>,
}

impl Recorder {
    fn reply(&self, request: &Request) -> Result<Vec<Said>, Error> {
        let new = request.contents.iter().flat_map(Content::responses);
        let new: Vec<_> = new.filter(|response| request.news.contains(&response.id)).collect();
        if !new.is_empty() {
            let heard = |response: &FunctionResponse| format!("heard {}", told(response));
            let cued: Vec<_> = new.iter().filter_map(|response| (self.cue)(response)).collect();
            if !cued.is_empty() {
                return Ok(cued);
            }
            let heard: Vec<_> = new.into_iter().map(heard).collect();
            return Ok(vec![text(&heard.join(", "))]);
        }
        let said = request.contents.last().map(Content::plain_text).unwrap_or_default();
        if said == "fail" {
            let message = "it does not want to".to_owned();
            return Err(Error { code: "MODEL_UNWILLING".to_owned(), message });
        }
        let Some(calls) = said.strip_prefix("call ") else {
            return Ok(vec![text(&format!("you said: {said}"))]);
        };
        let call = |written: &str| {
            let (name, args) = written.split_once(' ').unwrap_or((written, "{}"));
            call_of(name, serde_json::from_str(args).unwrap())
        };
        Ok(calls.split(" & ").map(call).collect())
    }
}

#[async_trait]
impl Model for Recorder {
    async fn reply(&self, request: Request, pieces: &mut dyn Pieces) -> Result<Reply, Error> {
        self.asked.lock().unwrap().push(request.clone());
        let parts = self.reply(&request)?;
        if request.stream {
            for said in &parts {
                if let Said::Part(Part { data: Some(Data::Text(text)), .. }) = said {
                    text.split_inclusive(' ').for_each(|word| pieces.text(word));
                }
            }
        }
        if let Some(gate) = &self.gate {
            gate.pass().await;
        }
        Ok(Reply { parts, finish_reason: "STOP".to_owned(), usage: None })
    }
}

/// A text that a model says.
pub fn text(text: &str) -> Said {
    Said::Part(Part::text(text))
}

/// A call that a model makes.
pub fn call_of(name: &str, args: Object) -> Said {
    let (model_id, name) = (Some("same".to_owned()), name.to_owned());
    Said::Call { model_id, name, args, thought_signature: Vec::new() }
}

fn told(response: &FunctionResponse) -> String {
    let value = response.response.clone().map_or(Value::Null, Value::Object);
    format!("{} {value}", response.name)
}

/// A prompt, a line a content: `user: text`, `model > name(args)`, `user < name response`.
fn lines(request: &Request) -> Vec<String> {
    let line = |content: &Content| {
        let role = match content.role {
            Role::User => "user",
            Role::Model => "model",
        };
        let part = |part: &Part| match &part.data {
            Some(Data::Text(text)) => format!("{role}: {text}"),
            Some(Data::FunctionCall(call)) => {
                format!("{role} > {}({})", call.name, Value::Object(call.args.clone()))
            }
            Some(Data::FunctionResponse(response)) => format!("{role} < {}", told(response)),
            other => format!("{role} {other:?}"),
        };
        content.parts.iter().map(part).collect::<Vec<_>>().join(" + ")
    };
    request.contents.iter().map(line).collect()
}

/// A stage to be set.
pub struct Setting {
    builder: Builder,
    recorder: Recorder,
    tools: String,
    more: String,
    store: Arc<Memory>,
    file: Option<PathBuf>,
}

impl Setting {
    pub fn new() -> Self {
        let recorder = Recorder { asked: Arc::default(), cue: Arc::new(|_| None), gate: None };
        Self {
            builder: Builder::new(),
            recorder,
            tools: String::new(),
            more: String::new(),
            store: Arc::new(Memory::new(Clock::system())),
            file: None,
        }
    }

    pub fn tool(mut self, tool: Closure) -> Self {
        self.tools += &format!("  - name: {}\n", tool.declaration().name);
        self.builder = self.builder.tool(tool);
        self
    }

    /// A tool of the server itself.
    pub fn built_in(mut self, name: &str) -> Self {
        self.tools += &format!("  - name: {name}\n");
        self
    }

    /// On a store that another server may have used before.
    pub fn store(mut self, store: &Arc<Memory>) -> Self {
        self.store = store.clone();
        self
    }

    /// In a file.
    pub fn sqlite(mut self, path: &Path) -> Self {
        self.file = Some(path.to_owned());
        self
    }

    /// A line of the agent file.
    pub fn line(mut self, line: &str) -> Self {
        self.more += line;
        self.more.push('\n');
        self
    }

    /// What the model says to a response instead of repeating it.
    pub fn cue(
        mut self,
        cue: impl Fn(&FunctionResponse) -> Option<Said> + Send + Sync + 'static,
    ) -> Self {
        self.recorder.cue = Arc::new(cue);
        self
    }

    /// The model waits here before it replies.
    pub fn model_behind(mut self, gate: &Gate) -> Self {
        self.recorder.gate = Some(gate.clone());
        self
    }

    /// Time stands, until the clock is moved.
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.store = Arc::new(Memory::new(clock.clone()));
        self
    }

    pub async fn set(self) -> Stage {
        let Self { builder, recorder, tools, more, store, file: path } = self;
        let tools = if tools.is_empty() { String::new() } else { format!("tools:\n{tools}") };
        let file = format!("name: {APP}\nmodel: recorder\n{more}{tools}");
        let builder = builder.model("recorder", recorder.clone()).agent_file("clerk.yaml", &file);
        let server = match path {
            Some(path) => Server::stored(builder.sqlite(path)).await,
            None => Server::start_on(builder, store).await,
        };
        let client = server.client().await;
        Stage { server, client, asked: recorder.asked }
    }
}

/// An agent of these tools, served.
pub async fn stage(tools: impl IntoIterator<Item = Closure>) -> Stage {
    tools.into_iter().fold(Setting::new(), Setting::tool).set().await
}

/// An agent that is served, and what its model was asked.
pub struct Stage {
    pub server: Server,
    pub client: Client,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl Stage {
    /// All prompts so far, as lines.
    pub fn prompts(&self) -> Vec<Vec<String>> {
        self.asked.lock().unwrap().iter().map(lines).collect()
    }

    /// The newest prompt.
    pub fn prompt(&self) -> Vec<String> {
        self.prompts().pop().expect("the model was asked")
    }

    /// How often the model was asked.
    pub fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The newest request whole.
    pub fn request(&self) -> Request {
        self.asked.lock().unwrap().last().cloned().expect("the model was asked")
    }

    /// Says something in a new session.
    pub async fn say(&mut self, text: &str) -> Told {
        soon(self.client.say(APP, text)).await
    }

    /// Says something in a session.
    pub async fn say_in(&mut self, session: &str, text: &str) -> Told {
        soon(self.client.run(say(APP, session, text))).await
    }

    /// Answers a call and follows what comes of it.
    pub async fn answer(&mut self, call: &pb::Call, response: Value) -> Told {
        let request = pb::SubmitFunctionResponseRequest {
            function_response: Some(answer(call, response)),
            ..Default::default()
        };
        let done = self.client.submit(request).await.unwrap();
        soon(self.client.follow(&done)).await
    }

    /// The events of a session.
    pub async fn events(&mut self, session: &str) -> Vec<pb::Event> {
        self.client.events(APP, session).await
    }
}

/// The calls of events, in order.
pub fn calls(events: &[pb::Event]) -> Vec<pb::FunctionCall> {
    let parts = events.iter().flat_map(|event| &event.content).flat_map(|content| &content.parts);
    let calls = parts.filter_map(|part| match &part.data {
        Some(PbData::FunctionCall(call)) => Some(call.clone()),
        _ => None,
    });
    calls.collect()
}
