//! A server without a mind of its own: it replies what a script says.

use std::collections::VecDeque;
use std::pin::Pin;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard};

use countersign::proto::v1;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use v1::agent_service_server::{AgentService, AgentServiceServer};
use v1::approval_service_server::{ApprovalService, ApprovalServiceServer};
use v1::session_service_server::{SessionService, SessionServiceServer};

type Reply<T> = Result<Response<T>, Status>;
type Events = Pin<Box<dyn Stream<Item = Result<v1::Event, Status>> + Send>>;
type Inbox = tokio_stream::Iter<std::vec::IntoIter<Result<v1::WatchApprovalsResponse, Status>>>;
type Updates = tokio_stream::Iter<std::vec::IntoIter<Result<v1::WatchInvocationsResponse, Status>>>;

/// What the server replies, in order, and what it was asked.
#[derive(Default)]
pub struct Script {
    pub streams: VecDeque<Result<Vec<Result<v1::Event, Status>>, Status>>,
    /// Streams stay open behind their last event.
    pub hold: bool,
    pub submits: VecDeque<Result<v1::SubmitFunctionResponseResponse, Status>>,
    pub updates: VecDeque<Vec<v1::WatchInvocationsResponse>>,
    pub invocations: Vec<v1::Invocation>,
    pub approvals: Vec<v1::Approval>,
    pub inbox: VecDeque<Vec<v1::WatchApprovalsResponse>>,
    pub decisions: VecDeque<Result<v1::DecideApprovalResponse, Status>>,
    pub decided: Vec<v1::DecideApprovalRequest>,
    pub assigned: Vec<v1::AssignApprovalRequest>,
    pub extended: Vec<v1::ExtendApprovalRequest>,
    pub listed: Vec<v1::ListApprovalsRequest>,
    pub standing: Vec<v1::StandingApproval>,
    pub agents: Vec<&'static str>,
    pub events: Vec<v1::Event>,
    pub runs: Vec<v1::RunAsyncRequest>,
    pub watches: Vec<v1::WatchSessionRequest>,
    pub submitted: Vec<v1::SubmitFunctionResponseRequest>,
    pub cursors: Vec<String>,
}

/// A server without a mind of its own.
#[derive(Clone, Default)]
pub struct Fake(Arc<Mutex<Script>>);

impl Fake {
    pub fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap()
    }

    /// The next stream will be this.
    pub fn stream(&self, events: Vec<v1::Event>) {
        self.script().streams.push_back(Ok(events.into_iter().map(Ok).collect()));
    }

    fn next_stream(&self) -> Reply<Events> {
        let next = self.script().streams.pop_front();
        let events = next.unwrap_or_else(|| Err(Status::aborted("the script is over")))?;
        let events = tokio_stream::iter(events);
        if self.script().hold {
            return Ok(Response::new(Box::pin(events.chain(tokio_stream::pending()))));
        }
        Ok(Response::new(Box::pin(events)))
    }

    /// Serves on a free port while `countersign` runs with these arguments.
    pub async fn command(&self, args: &[&str]) -> Output {
        let address = self.serve().await;
        let mut command = countersign(&address, args);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    pub async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server::builder()
            .add_service(AgentServiceServer::new(self.clone()))
            .add_service(SessionServiceServer::new(self.clone()))
            .add_service(ApprovalServiceServer::new(self.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }
}

/// The binary with these arguments, for the server at this address.
pub fn countersign(address: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_countersign"));
    command.env_clear().env("COUNTERSIGN_SERVER", address).args(args);
    command
}

fn unscripted<T>() -> Reply<T> {
    Err(Status::unimplemented("not in any script"))
}

#[tonic::async_trait]
impl AgentService for Fake {
    type RunAsyncStream = Events;
    type WatchInvocationsStream = Updates;

    async fn run_async(&self, request: Request<v1::RunAsyncRequest>) -> Reply<Events> {
        self.script().runs.push(request.into_inner());
        self.next_stream()
    }

    async fn submit_function_response(
        &self,
        request: Request<v1::SubmitFunctionResponseRequest>,
    ) -> Reply<v1::SubmitFunctionResponseResponse> {
        let mut script = self.script();
        script.submitted.push(request.into_inner());
        script.submits.pop_front().expect("an answer in the script").map(Response::new)
    }

    async fn list_invocations(
        &self,
        request: Request<v1::ListInvocationsRequest>,
    ) -> Reply<v1::ListInvocationsResponse> {
        // A page each.
        let request = request.into_inner();
        let index: usize = request.page_token.parse().unwrap_or(0);
        let script = self.script();
        let more = index + 1 < script.invocations.len();
        Ok(Response::new(v1::ListInvocationsResponse {
            invocations: script.invocations.get(index).cloned().into_iter().collect(),
            next_page_token: if more { (index + 1).to_string() } else { String::new() },
        }))
    }

    async fn watch_invocations(
        &self,
        request: Request<v1::WatchInvocationsRequest>,
    ) -> Reply<Updates> {
        let mut script = self.script();
        script.cursors.push(request.into_inner().cursor);
        let Some(updates) = script.updates.pop_front() else {
            return Err(Status::aborted("the script is over"));
        };
        let updates: Vec<_> = updates.into_iter().map(Ok).collect();
        Ok(Response::new(tokio_stream::iter(updates)))
    }

    async fn list_agents(
        &self,
        _: Request<v1::ListAgentsRequest>,
    ) -> Reply<v1::ListAgentsResponse> {
        let agent = |name: &&str| v1::Agent { name: (*name).to_owned(), ..Default::default() };
        let agents = self.script().agents.iter().map(agent).collect();
        Ok(Response::new(v1::ListAgentsResponse { agents, ..Default::default() }))
    }

    async fn get_invocation(&self, _: Request<v1::GetInvocationRequest>) -> Reply<v1::Invocation> {
        unscripted()
    }

    async fn cancel_invocation(
        &self,
        _: Request<v1::CancelInvocationRequest>,
    ) -> Reply<v1::Invocation> {
        unscripted()
    }

    async fn get_agent(&self, _: Request<v1::GetAgentRequest>) -> Reply<v1::Agent> {
        unscripted()
    }
}

#[tonic::async_trait]
impl SessionService for Fake {
    type WatchSessionStream = Events;

    async fn watch_session(&self, request: Request<v1::WatchSessionRequest>) -> Reply<Events> {
        self.script().watches.push(request.into_inner());
        self.next_stream()
    }

    async fn list_events(
        &self,
        _: Request<v1::ListEventsRequest>,
    ) -> Reply<v1::ListEventsResponse> {
        let events = self.script().events.clone();
        Ok(Response::new(v1::ListEventsResponse { events, ..Default::default() }))
    }

    async fn list_sessions(
        &self,
        _: Request<v1::ListSessionsRequest>,
    ) -> Reply<v1::ListSessionsResponse> {
        Ok(Response::new(v1::ListSessionsResponse::default()))
    }

    async fn create_session(&self, _: Request<v1::CreateSessionRequest>) -> Reply<v1::Session> {
        unscripted()
    }

    async fn import_session(&self, _: Request<v1::ImportSessionRequest>) -> Reply<v1::Session> {
        unscripted()
    }

    async fn get_session(&self, _: Request<v1::GetSessionRequest>) -> Reply<v1::Session> {
        unscripted()
    }

    async fn delete_session(&self, _: Request<v1::DeleteSessionRequest>) -> Reply<()> {
        unscripted()
    }

    async fn update_session_state(
        &self,
        _: Request<v1::UpdateSessionStateRequest>,
    ) -> Reply<v1::Session> {
        unscripted()
    }
}

#[tonic::async_trait]
impl ApprovalService for Fake {
    type WatchApprovalsStream = Inbox;

    async fn list_approvals(
        &self,
        request: Request<v1::ListApprovalsRequest>,
    ) -> Reply<v1::ListApprovalsResponse> {
        let mut script = self.script();
        script.listed.push(request.into_inner());
        let approvals = script.approvals.clone();
        Ok(Response::new(v1::ListApprovalsResponse { approvals, ..Default::default() }))
    }

    async fn get_approval(&self, _: Request<v1::GetApprovalRequest>) -> Reply<v1::Approval> {
        let first = self.script().approvals.first().cloned();
        first.map(Response::new).ok_or_else(|| Status::not_found("not in any script"))
    }

    async fn watch_approvals(&self, _: Request<v1::WatchApprovalsRequest>) -> Reply<Inbox> {
        let Some(updates) = self.script().inbox.pop_front() else {
            return Err(Status::aborted("the script is over"));
        };
        let updates: Vec<_> = updates.into_iter().map(Ok).collect();
        Ok(Response::new(tokio_stream::iter(updates)))
    }

    async fn decide_approval(
        &self,
        request: Request<v1::DecideApprovalRequest>,
    ) -> Reply<v1::DecideApprovalResponse> {
        let mut script = self.script();
        script.decided.push(request.into_inner());
        script.decisions.pop_front().expect("a decision in the script").map(Response::new)
    }

    async fn assign_approval(
        &self,
        request: Request<v1::AssignApprovalRequest>,
    ) -> Reply<v1::Approval> {
        let mut script = self.script();
        script.assigned.push(request.into_inner());
        Ok(Response::new(script.approvals[0].clone()))
    }

    async fn extend_approval(
        &self,
        request: Request<v1::ExtendApprovalRequest>,
    ) -> Reply<v1::Approval> {
        let mut script = self.script();
        script.extended.push(request.into_inner());
        Ok(Response::new(script.approvals[0].clone()))
    }

    async fn summarize_approvals(
        &self,
        _: Request<v1::SummarizeApprovalsRequest>,
    ) -> Reply<v1::SummarizeApprovalsResponse> {
        let count = |state: v1::approval::State, kind: v1::call::Kind, count| {
            v1::summarize_approvals_response::Count {
                state: state.into(),
                kind: kind.into(),
                count,
            }
        };
        let pending = v1::approval::State::Pending;
        Ok(Response::new(v1::SummarizeApprovalsResponse {
            counts: vec![
                count(pending, v1::call::Kind::LongRunning, 12),
                count(pending, v1::call::Kind::Confirmation, 3),
            ],
            oldest_pending: self.script().approvals.first().cloned(),
        }))
    }

    async fn list_standing_approvals(
        &self,
        _: Request<v1::ListStandingApprovalsRequest>,
    ) -> Reply<v1::ListStandingApprovalsResponse> {
        let standing_approvals = self.script().standing.clone();
        let reply = v1::ListStandingApprovalsResponse { standing_approvals, ..Default::default() };
        Ok(Response::new(reply))
    }

    async fn revoke_standing_approval(
        &self,
        _: Request<v1::RevokeStandingApprovalRequest>,
    ) -> Reply<v1::StandingApproval> {
        Ok(Response::new(self.script().standing[0].clone()))
    }
}
