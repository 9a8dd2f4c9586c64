//! What the tests through a real connection share: a server on a free port of this machine, agents
//! in a few lines, and short words for the contract's messages.

use std::net::SocketAddr;
use std::sync::Arc;

use countersign::app::{self, Builder};
use countersign::proto::v1::agent_service_client::AgentServiceClient;
use countersign::proto::v1::event::Mark;
use countersign::proto::v1::session_service_client::SessionServiceClient;
use countersign::proto::v1::{self as pb};
use countersign::proto::wkt;
use countersign::store::Clock;
use countersign::store::memory::Memory;
use proptest::test_runner::Config as ProptestConfig;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// The user of the tests.
pub const USER: &str = "ann";

/// So many cases of a property, and more with `PROPTEST_CASES` above its usual 256: a property
/// whose cases are dear has fewer of them.
pub fn cases(usual: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    let cases = (u64::from(usual) * u64::from(asked.cases)).div_ceil(256);
    let cases = u32::try_from(cases).unwrap_or(u32::MAX);
    ProptestConfig { cases, failure_persistence: None, ..asked }
}

/// A server that serves until it is stopped or dropped.
pub struct Server {
    pub address: SocketAddr,
    pub store: Arc<Memory>,
    pub runner: countersign::runner::Runner,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<Result<(), app::Error>>>,
}

impl Server {
    /// A server in memory, with what the builder has.
    pub async fn start(builder: Builder) -> Self {
        Self::start_on(builder, Arc::new(Memory::new(Clock::system()))).await
    }

    /// A server on a store that another one may have used before.
    pub async fn start_on(builder: Builder, store: Arc<Memory>) -> Self {
        Self::serve(builder.store(store.clone()), store).await
    }

    /// A server on whatever store the builder has.
    pub async fn stored(builder: Builder) -> Self {
        Self::serve(builder, Arc::new(Memory::new(Clock::system()))).await
    }

    async fn serve(builder: Builder, store: Arc<Memory>) -> Self {
        let server = builder.build().await.unwrap();
        let listener = app::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let runner = server.runner().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = tokio::spawn(server.serve_on(listener, async {
            let _ = stopped.await;
        }));
        Self { address, store, runner, stop: Some(stop), serving: Some(serving) }
    }

    /// The sample agent, served.
    pub async fn sample() -> Self {
        Self::start(sample()).await
    }

    pub async fn channel(&self) -> Channel {
        let uri = format!("http://{}", self.address);
        Channel::from_shared(uri).unwrap().connect().await.unwrap()
    }

    pub async fn client(&self) -> Client {
        let channel = self.channel().await;
        Client {
            agents: AgentServiceClient::new(channel.clone()),
            sessions: SessionServiceClient::new(channel),
        }
    }

    /// Stops as SIGTERM does.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        self.serving.take().unwrap().await.unwrap().unwrap();
    }
}

/// A server of the sample agent, to be built.
pub fn sample() -> Builder {
    agents(countersign::agent::file::samples()[0].1)
}

/// A server of one agent file, to be built.
pub fn agents(file: &str) -> Builder {
    Builder::new().agent_file("test.yaml", file)
}

/// Both services over one connection.
#[derive(Clone)]
pub struct Client {
    pub agents: AgentServiceClient<Channel>,
    pub sessions: SessionServiceClient<Channel>,
}

/// All that one RunAsync sent.
#[derive(Debug, Clone)]
pub struct Told {
    pub begin: pb::BeginMark,
    /// Entries and partial events, in order.
    pub events: Vec<pb::Event>,
    pub end: pb::EndMark,
}

impl Client {
    /// Runs to the end of the stream; panics if it is refused.
    pub async fn run(&mut self, request: pb::RunAsyncRequest) -> Told {
        self.try_run(request).await.unwrap()
    }

    /// Runs to the end of the stream, which must begin and end with the marks that the contract
    /// says.
    pub async fn try_run(&mut self, request: pb::RunAsyncRequest) -> Result<Told, Status> {
        let mut stream = self.agents.run_async(request).await?.into_inner();
        let first = stream.message().await?.expect("a stream begins");
        let Some(Mark::Begin(begin)) = first.mark else { panic!("no begin, but {first:?}") };
        let mut events = Vec::new();
        let end = loop {
            let event = stream.message().await?.expect("a stream ends with an end");
            match event.mark {
                None => events.push(event),
                Some(Mark::End(end)) => break end,
                Some(Mark::Heartbeat(_) | Mark::Pause(_)) => {}
                Some(mark) => panic!("an unexpected mark: {mark:?}"),
            }
        };
        assert!(stream.message().await?.is_none(), "something came behind the end");
        Ok(Told { begin, events, end })
    }

    /// Says something in a new session of an app.
    pub async fn say(&mut self, app: &str, text: &str) -> Told {
        self.run(say(app, "", text)).await
    }

    /// Answers a call.
    pub async fn submit(
        &mut self,
        request: pb::SubmitFunctionResponseRequest,
    ) -> Result<pb::SubmitFunctionResponseResponse, Status> {
        Ok(self.agents.submit_function_response(request).await?.into_inner())
    }

    /// The end of what an answer set going: follows the invocation from behind the answer on.
    pub async fn follow(&mut self, done: &pb::SubmitFunctionResponseResponse) -> Told {
        let call = done.call.as_ref().unwrap();
        self.run(pb::RunAsyncRequest {
            app_name: call.app_name.clone(),
            user_id: call.user_id.clone(),
            session_id: call.session_id.clone(),
            invocation_id: call.invocation_id.clone(),
            after_sequence: done.after_sequence,
            ..Default::default()
        })
        .await
    }

    /// All events of a session.
    pub async fn events(&mut self, app: &str, session: &str) -> Vec<pb::Event> {
        let request = pb::ListEventsRequest {
            app_name: app.into(),
            user_id: USER.into(),
            session_id: session.into(),
            page_size: 1000,
            ..Default::default()
        };
        let page = self.sessions.list_events(request).await.unwrap().into_inner();
        assert_eq!(page.next_page_token, "");
        page.events
    }
}

/// RunAsync with a text.
pub fn say(app: &str, session: &str, text: &str) -> pb::RunAsyncRequest {
    let text = pb::Part { data: Some(pb::part::Data::Text(text.into())), ..Default::default() };
    pb::RunAsyncRequest {
        app_name: app.into(),
        user_id: USER.into(),
        session_id: session.into(),
        new_message: Some(pb::Content { role: "user".into(), parts: vec![text] }),
        ..Default::default()
    }
}

/// RunAsync with answers, as ADK's clients send them.
pub fn say_answers(
    app: &str,
    session: &str,
    answers: Vec<pb::FunctionResponse>,
) -> pb::RunAsyncRequest {
    let part = |answer| pb::Part {
        data: Some(pb::part::Data::FunctionResponse(answer)),
        ..Default::default()
    };
    let parts = answers.into_iter().map(part).collect();
    pb::RunAsyncRequest {
        new_message: Some(pb::Content { role: "user".into(), parts }),
        ..say(app, session, "")
    }
}

/// A function response.
pub fn answer(call: &pb::Call, response: Value) -> pb::FunctionResponse {
    let call = call.function_call.as_ref().unwrap();
    pb::FunctionResponse {
        id: call.id.clone(),
        name: call.name.clone(),
        response: (!response.is_null()).then(|| object(response)),
        will_continue: None,
    }
}

/// SubmitFunctionResponse for a call.
pub fn submit(call: &pb::Call, response: Value) -> pb::SubmitFunctionResponseRequest {
    pb::SubmitFunctionResponseRequest {
        function_response: Some(answer(call, response)),
        ..Default::default()
    }
}

/// JSON as a `Struct`.
pub fn object(value: Value) -> wkt::Struct {
    countersign::proto::from_json(&value.to_string()).unwrap()
}

/// A `Struct` as JSON.
pub fn json(object: &wkt::Struct) -> Value {
    serde_json::from_str(&countersign::proto::to_json(object).unwrap()).unwrap()
}

/// What happened, a line an entry: `author: text`, `author > name(args)`, `author <
/// name(response)`.
pub fn story(events: &[pb::Event]) -> Vec<String> {
    let part = |event: &pb::Event, part: &pb::Part| {
        let author = &event.author;
        match part.data.as_ref() {
            Some(pb::part::Data::Text(text)) => format!("{author}: {text}"),
            Some(pb::part::Data::FunctionCall(call)) => {
                let args = call.args.as_ref().map(json).unwrap_or(Value::Null);
                format!("{author} > {}({args})", call.name)
            }
            Some(pb::part::Data::FunctionResponse(answer)) => {
                let response = answer.response.as_ref().map(json).unwrap_or(Value::Null);
                format!("{author} < {}({response})", answer.name)
            }
            other => format!("{author} {other:?}"),
        }
    };
    let line = |event: &pb::Event| {
        let parts = event.content.iter().flat_map(|content| &content.parts);
        let parts: Vec<String> = parts.map(|p| part(event, p)).collect();
        match (parts.is_empty(), event.error_code.as_str()) {
            (true, "") => format!("{} (no content)", event.author),
            (true, code) => format!("{} ! {code}", event.author),
            (false, _) => parts.join(" + "),
        }
    };
    events.iter().map(line).collect()
}

/// The reason of a refusal, with its code.
pub fn reason(status: &Status) -> (Code, String) {
    let info =
        status.get_details_error_info().unwrap_or_else(|| panic!("no ErrorInfo: {status:?}"));
    assert_eq!(info.domain, "countersign");
    (status.code(), info.reason)
}

/// The fields that a refusal names.
pub fn fields(status: &Status) -> Vec<String> {
    let listed = status.get_details_bad_request().map(|bad| bad.field_violations);
    listed.unwrap_or_default().into_iter().map(|violation| violation.field).collect()
}
