//! A tonic server that streams a message as often as it is told, and knows nothing else: what the
//! transport allows.

use std::io::Write;
use std::pin::Pin;

use tokio_stream::Stream;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use super::Failure;
use super::streams::bare_messages;
use crate::proto::v1::agent_service_server::{AgentService, AgentServiceServer};
use crate::proto::v1::{self as pb, event::Mark};

struct Bare;

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn nothing<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("only RunAsync is served here"))
}

#[tonic::async_trait]
impl AgentService for Bare {
    type RunAsyncStream = Streamed<pb::Event>;
    type WatchInvocationsStream = Streamed<pb::WatchInvocationsResponse>;

    async fn run_async(
        &self,
        request: Request<pb::RunAsyncRequest>,
    ) -> Result<Response<Self::RunAsyncStream>, Status> {
        let (event, count) = bare_messages(&request.into_inner().app_name);
        let end = pb::Event { mark: Some(Mark::End(pb::EndMark::default())), ..Default::default() };
        let events = (0..count).map(move |_| Ok(event.clone())).chain(std::iter::once(Ok(end)));
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn submit_function_response(
        &self,
        _: Request<pb::SubmitFunctionResponseRequest>,
    ) -> Result<Response<pb::SubmitFunctionResponseResponse>, Status> {
        nothing()
    }

    async fn get_invocation(
        &self,
        _: Request<pb::GetInvocationRequest>,
    ) -> Result<Response<pb::Invocation>, Status> {
        nothing()
    }

    async fn list_invocations(
        &self,
        _: Request<pb::ListInvocationsRequest>,
    ) -> Result<Response<pb::ListInvocationsResponse>, Status> {
        nothing()
    }

    async fn watch_invocations(
        &self,
        _: Request<pb::WatchInvocationsRequest>,
    ) -> Result<Response<Self::WatchInvocationsStream>, Status> {
        nothing()
    }

    async fn cancel_invocation(
        &self,
        _: Request<pb::CancelInvocationRequest>,
    ) -> Result<Response<pb::Invocation>, Status> {
        nothing()
    }

    async fn list_agents(
        &self,
        _: Request<pb::ListAgentsRequest>,
    ) -> Result<Response<pb::ListAgentsResponse>, Status> {
        nothing()
    }

    async fn get_agent(
        &self,
        _: Request<pb::GetAgentRequest>,
    ) -> Result<Response<pb::Agent>, Status> {
        nothing()
    }
}

/// Serves until it is killed.
pub(super) async fn serve() -> Result<(), Failure> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("countersign listening on {}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    tonic::transport::Server::builder()
        .add_service(AgentServiceServer::new(Bare))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}
