//! AgentService: convert in, make one call, convert out.

use prost::Message;
use tonic::{Request, Response, Status};

use super::convert::request;
use super::convert::resource::{agent_to_pb, call_to_pb, invocation_to_pb, state_to_pb};
use super::status::status;
use super::{Peer, caller, check_size, page, stream};
use crate::proto::v1::{self as pb, agent_service_server::AgentService};
use crate::runner::Runner;
use crate::session::decide::Answered;
use crate::session::id::AppName;
use crate::session::refusal::Refusal;

/// The service.
pub(super) struct Agents {
    pub runner: Runner,
}

#[tonic::async_trait]
impl AgentService for Agents {
    type RunAsyncStream = stream::Events;
    type WatchInvocationsStream = stream::Listing<pb::WatchInvocationsResponse>;

    async fn run_async(
        &self,
        request: Request<pb::RunAsyncRequest>,
    ) -> Result<Response<Self::RunAsyncStream>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (run, on_pause, mark) = request::run(message).map_err(status)?;
        let started = self.runner.run(caller(&peer, mark, &body), run).await.map_err(status)?;
        Ok(Response::new(stream::of_run(&self.runner, &started, on_pause)))
    }

    async fn submit_function_response(
        &self,
        request: Request<pb::SubmitFunctionResponseRequest>,
    ) -> Result<Response<pb::SubmitFunctionResponseResponse>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (submission, mark) = request::submit(message).map_err(status)?;
        let done = self.runner.submit(caller(&peer, mark, &body), submission).await;
        let done = done.map_err(status)?;
        let outcome = match done.outcome {
            Answered::Applied => pb::submit_function_response_response::Outcome::Applied,
            Answered::Queued => pb::submit_function_response_response::Outcome::Queued,
            Answered::Progress => pb::submit_function_response_response::Outcome::Progress,
            Answered::Duplicate => pb::submit_function_response_response::Outcome::Duplicate,
        };
        Ok(Response::new(pb::SubmitFunctionResponseResponse {
            call: Some(call_to_pb(&done.call)),
            invocation_state: state_to_pb(done.view.state).into(),
            outcome: outcome.into(),
            sequence: i64::try_from(done.sequence).unwrap_or(i64::MAX),
            after_sequence: i64::try_from(done.after_sequence).unwrap_or(i64::MAX),
        }))
    }

    async fn get_invocation(
        &self,
        request: Request<pb::GetInvocationRequest>,
    ) -> Result<Response<pb::Invocation>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::GetInvocationRequest { app_name, user_id, session_id, invocation_id } = message;
        let names = (app_name, user_id, session_id);
        let (find, _) = request::find(names, invocation_id, "").map_err(status)?;
        let view = self.runner.find_invocation(&find).await.map_err(status)?;
        Ok(Response::new(invocation_to_pb(&view)))
    }

    async fn list_invocations(
        &self,
        request: Request<pb::ListInvocationsRequest>,
    ) -> Result<Response<pb::ListInvocationsResponse>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::ListInvocationsRequest {
            app_name,
            user_id,
            session_id,
            states,
            page_size,
            page_token,
        } = message;
        let print = fingerprint("ListInvocations", [&app_name, &user_id, &session_id], &states);
        let mut faults = super::convert::Faults::new();
        let limits = self.runner.limits();
        let filter = request::read_filter((app_name, user_id, session_id), states, &mut faults);
        let size = page::size(page_size, limits.page_entries, &mut faults);
        let filter = faults.finish(Some(filter)).map_err(status)?;
        let after = page::read_token("page_token", &page_token, &print).map_err(status)?;
        let page = self.runner.list_invocations(&filter, after, size).await.map_err(status)?;
        let mut invocations: Vec<_> = page.items.iter().map(invocation_to_pb).collect();
        let fitting = page::fitting(&invocations, limits.page_bytes);
        let next = if fitting < invocations.len() {
            let last = &page.items[fitting - 1];
            let order = crate::runner::index::order(last.create_time);
            Some((order, last.id.to_string()))
        } else {
            page.next
        };
        invocations.truncate(fitting);
        let next_page_token = next.map(|at| page::token(&print, at)).unwrap_or_default();
        Ok(Response::new(pb::ListInvocationsResponse { invocations, next_page_token }))
    }

    async fn watch_invocations(
        &self,
        request: Request<pb::WatchInvocationsRequest>,
    ) -> Result<Response<Self::WatchInvocationsStream>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::WatchInvocationsRequest { app_name, user_id, session_id, states, cursor } = message;
        let print = fingerprint("WatchInvocations", [&app_name, &user_id, &session_id], &states);
        let mut faults = super::convert::Faults::new();
        let filter = request::read_filter((app_name, user_id, session_id), states, &mut faults);
        let filter = faults.finish(Some(filter)).map_err(status)?;
        let after = page::read_cursor(&self.runner, &cursor, &print).map_err(status)?;
        let changes = self.runner.watch_invocations(filter, after);
        let cursor = page::cursor(&self.runner, print);
        let stream = stream::of_list(&self.runner, changes, cursor, stream::invocation_update);
        Ok(Response::new(stream))
    }

    async fn cancel_invocation(
        &self,
        request: Request<pb::CancelInvocationRequest>,
    ) -> Result<Response<pb::Invocation>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let pb::CancelInvocationRequest {
            app_name,
            user_id,
            session_id,
            invocation_id,
            request_id,
        } = message;
        let names = (app_name, user_id, session_id);
        let (find, mark) = request::find(names, invocation_id, &request_id).map_err(status)?;
        let view = self.runner.cancel(caller(&peer, mark, &body), find).await.map_err(status)?;
        Ok(Response::new(invocation_to_pb(&view)))
    }

    async fn list_agents(
        &self,
        request: Request<pb::ListAgentsRequest>,
    ) -> Result<Response<pb::ListAgentsResponse>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::ListAgentsRequest { page_size, page_token } = message;
        let limits = self.runner.limits();
        let mut faults = super::convert::Faults::new();
        let size = page::size(page_size, limits.page_entries, &mut faults);
        let size = faults.finish(Some(size)).map_err(status)?;
        let print = page::fingerprint(&["ListAgents"]);
        let after: Option<String> =
            page::read_token("page_token", &page_token, &print).map_err(status)?;
        let rest =
            self.runner.cast().apps().filter(|(app, _)| {
                after.as_ref().is_none_or(|after| app.as_str() > after.as_str())
            });
        let mut agents: Vec<_> =
            rest.take(size + 1).map(|(_, role)| agent_to_pb(&role.agent)).collect();
        let fitting = page::fitting(&agents, limits.page_bytes).min(size);
        let more = fitting < agents.len();
        agents.truncate(fitting);
        let last = agents.last().filter(|_| more).map(|agent| agent.name.clone());
        let next_page_token = last.map(|at| page::token(&print, at)).unwrap_or_default();
        Ok(Response::new(pb::ListAgentsResponse { agents, next_page_token }))
    }

    async fn get_agent(
        &self,
        request: Request<pb::GetAgentRequest>,
    ) -> Result<Response<pb::Agent>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::GetAgentRequest { name } = message;
        let app = AppName::parse(name)
            .map_err(|wrong| status(Refusal::field("name", wrong.to_string())))?;
        let role = self.runner.cast().app(&app);
        let role = role.ok_or_else(|| status(crate::runner::no_agent(&app)))?;
        Ok(Response::new(agent_to_pb(&role.agent)))
    }
}

fn fingerprint(method: &str, names: [&String; 3], states: &[i32]) -> String {
    let mut states = states.to_vec();
    states.sort_unstable();
    let [app, user, session] = names;
    page::fingerprint(&[method, app, user, session, &format!("{states:?}")])
}
