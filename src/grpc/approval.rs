//! ApprovalService: convert in, make one call, convert out.

use prost::Message;
use tonic::{Request, Response, Status};

use super::convert::Faults;
use super::convert::approval::{approval_to_pb, figures_to_pb, standing_to_pb};
use super::convert::decision::{
    self, Assign, Extend, Wanted, read_standing, read_time, read_wanted,
};
use super::convert::resource::state_to_pb;
use super::status::status;
use super::{Peer, caller, check_size, page, stream};
use crate::proto::v1::{self as pb, approval_service_server::ApprovalService};
use crate::runner::Runner;
use crate::runner::index::{self, StandingView};
use crate::session::decide::Answered;
use crate::session::id::AppName;

/// The service.
pub(super) struct Inbox {
    pub runner: Runner,
}

#[tonic::async_trait]
impl ApprovalService for Inbox {
    type WatchApprovalsStream = stream::Listing<pb::WatchApprovalsResponse>;

    async fn list_approvals(
        &self,
        request: Request<pb::ListApprovalsRequest>,
    ) -> Result<Response<pb::ListApprovalsResponse>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::ListApprovalsRequest {
            app_name: app,
            user_id: user,
            tool_name: tool,
            kinds,
            states,
            assignee,
            create_after,
            create_before,
            newest_first,
            page_size,
            page_token,
        } = message;
        let wanted = Wanted { app, user, tool, kinds, states, assignee };
        let times = format!("{create_after:?} {create_before:?} {newest_first}");
        let print = fingerprint("ListApprovals", &wanted, &times);
        let mut faults = Faults::new();
        let limits = self.runner.limits();
        let mut filter = read_wanted(wanted, &mut faults);
        filter.create_after = read_time("create_after", create_after, &mut faults);
        filter.create_before = read_time("create_before", create_before, &mut faults);
        filter.newest_first = newest_first;
        let size = page::size(page_size, limits.page_entries, &mut faults);
        let filter = faults.finish(Some(filter)).map_err(status)?;
        let after = page::read_token("page_token", &page_token, &print).map_err(status)?;
        let page = self.runner.list_approvals(&filter, after, size).await.map_err(status)?;
        let mut approvals: Vec<_> = page.items.iter().map(approval_to_pb).collect();
        let fitting = page::fitting(&approvals, limits.page_bytes);
        let next = if fitting < approvals.len() {
            let last = &page.items[fitting - 1];
            Some((index::order(last.create_time), last.spec.id.to_string()))
        } else {
            page.next
        };
        approvals.truncate(fitting);
        let next_page_token = next.map(|at| page::token(&print, at)).unwrap_or_default();
        Ok(Response::new(pb::ListApprovalsResponse { approvals, next_page_token }))
    }

    async fn get_approval(
        &self,
        request: Request<pb::GetApprovalRequest>,
    ) -> Result<Response<pb::Approval>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::GetApprovalRequest { call_id } = message;
        let call = decision::read_call(call_id).map_err(status)?;
        let found = self.runner.approval(&call).await.map_err(status)?;
        Ok(Response::new(approval_to_pb(&found)))
    }

    async fn watch_approvals(
        &self,
        request: Request<pb::WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::WatchApprovalsRequest {
            app_name: app,
            user_id: user,
            tool_name: tool,
            kinds,
            states,
            assignee,
            cursor,
        } = message;
        let wanted = Wanted { app, user, tool, kinds, states, assignee };
        let print = fingerprint("WatchApprovals", &wanted, "");
        let mut faults = Faults::new();
        let filter = read_wanted(wanted, &mut faults);
        let filter = faults.finish(Some(filter)).map_err(status)?;
        let after = page::read_cursor(&self.runner, &cursor, &print).map_err(status)?;
        let changes = self.runner.watch_approvals(filter, after);
        let cursor = page::cursor(&self.runner, print);
        let stream = stream::of_list(&self.runner, changes, cursor, stream::approval_update);
        Ok(Response::new(stream))
    }

    async fn decide_approval(
        &self,
        request: Request<pb::DecideApprovalRequest>,
    ) -> Result<Response<pb::DecideApprovalResponse>, Status> {
        use pb::decide_approval_response::Outcome;
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (decide, mark) = decision::decide(message, self.runner.now()).map_err(status)?;
        let done = self.runner.decide_approval(caller(&peer, mark, &body), decide).await;
        let done = done.map_err(|refusal| status(decision::refused(refusal)))?;
        let outcome = match done.outcome {
            Answered::Applied | Answered::Progress => Outcome::Applied,
            Answered::Queued => Outcome::Queued,
            Answered::Duplicate => Outcome::Duplicate,
        };
        let session = &done.call.session;
        let standing = done.standing.map(|standing| {
            standing_to_pb(&StandingView { session: session.clone(), standing, revoked: false })
        });
        Ok(Response::new(pb::DecideApprovalResponse {
            approval: Some(approval_to_pb(&done.call)),
            outcome: outcome.into(),
            invocation_state: state_to_pb(done.view.state).into(),
            after_sequence: i64::try_from(done.after_sequence).unwrap_or(i64::MAX),
            standing_approval: standing,
        }))
    }

    async fn assign_approval(
        &self,
        request: Request<pb::AssignApprovalRequest>,
    ) -> Result<Response<pb::Approval>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (assign, mark) = decision::assign(message).map_err(status)?;
        let Assign { call, assignee, lease, etag } = assign;
        let caller = caller(&peer, mark, &body);
        let done = self.runner.assign_approval(caller, call, assignee, lease, etag).await;
        Ok(Response::new(approval_to_pb(&done.map_err(status)?)))
    }

    async fn extend_approval(
        &self,
        request: Request<pb::ExtendApprovalRequest>,
    ) -> Result<Response<pb::Approval>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (extend, mark) = decision::extend(message, self.runner.now()).map_err(status)?;
        let Extend { call, expire_time, etag, comment } = extend;
        let caller = caller(&peer, mark, &body);
        let done = self.runner.extend_approval(caller, call, expire_time, etag, comment).await;
        Ok(Response::new(approval_to_pb(&done.map_err(status)?)))
    }

    async fn summarize_approvals(
        &self,
        request: Request<pb::SummarizeApprovalsRequest>,
    ) -> Result<Response<pb::SummarizeApprovalsResponse>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::SummarizeApprovalsRequest { app_name } = message;
        let mut faults = Faults::new();
        let app = faults.optional_id("app_name", app_name, AppName::parse);
        let app = faults.finish(Some(app)).map_err(status)?;
        let figures = self.runner.summarize(app).await.map_err(status)?;
        Ok(Response::new(figures_to_pb(&figures)))
    }

    async fn list_standing_approvals(
        &self,
        request: Request<pb::ListStandingApprovalsRequest>,
    ) -> Result<Response<pb::ListStandingApprovalsResponse>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::ListStandingApprovalsRequest {
            app_name,
            user_id,
            session_id,
            show_revoked,
            page_size,
            page_token,
        } = message;
        let revoked = show_revoked.to_string();
        let parts = ["ListStandingApprovals", &*app_name, &*user_id, &*session_id, &*revoked];
        let print = page::fingerprint(&parts);
        let mut faults = Faults::new();
        let limits = self.runner.limits();
        let names = (app_name, user_id, session_id);
        let filter = read_standing(names, show_revoked, &mut faults);
        let size = page::size(page_size, limits.page_entries, &mut faults);
        let filter = faults.finish(Some(filter)).map_err(status)?;
        let after = page::read_token("page_token", &page_token, &print).map_err(status)?;
        let page = self.runner.list_standing(&filter, after, size).await.map_err(status)?;
        let mut standing_approvals: Vec<_> = page.items.iter().map(standing_to_pb).collect();
        let fitting = page::fitting(&standing_approvals, limits.page_bytes);
        let next = if fitting < standing_approvals.len() {
            let last = &page.items[fitting - 1].standing;
            Some((index::order(last.time), last.id.clone()))
        } else {
            page.next
        };
        standing_approvals.truncate(fitting);
        let next_page_token = next.map(|at| page::token(&print, at)).unwrap_or_default();
        let reply = pb::ListStandingApprovalsResponse { standing_approvals, next_page_token };
        Ok(Response::new(reply))
    }

    async fn revoke_standing_approval(
        &self,
        request: Request<pb::RevokeStandingApprovalRequest>,
    ) -> Result<Response<pb::StandingApproval>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (id, mark) = decision::revoke(message).map_err(status)?;
        let done = self.runner.revoke_standing(caller(&peer, mark, &body), id).await;
        let (session, standing) = done.map_err(status)?;
        Ok(Response::new(standing_to_pb(&StandingView { session, standing, revoked: true })))
    }
}

fn fingerprint(method: &str, wanted: &Wanted, times: &str) -> String {
    let [app, user, tool, kinds, states, assignee] = wanted.parts();
    page::fingerprint(&[method, &app, &user, &tool, &kinds, &states, &assignee, times])
}
