//! SessionService: convert in, make one call, convert out.

use prost::Message;
use tonic::{Request, Response, Status};

use super::convert::event::event_to_pb;
use super::convert::resource::session_to_pb;
use super::convert::{Faults, import, request};
use super::status::status;
use super::{Peer, caller, check_size, page, stream};
use crate::proto::v1::{self as pb, session_service_server::SessionService};
use crate::runner::Runner;
use crate::session::content::Event;
use crate::session::id::{AppName, InvocationId, UserId};
use crate::session::refusal::{Reason, Refusal};
use crate::store::Events;

/// How many reads of the log one page of events takes at most, when a time is asked for.
const MAX_READS: usize = 16;

/// The service.
pub(super) struct Sessions {
    pub runner: Runner,
}

#[tonic::async_trait]
impl SessionService for Sessions {
    type WatchSessionStream = stream::Events;

    async fn create_session(
        &self,
        request: Request<pb::CreateSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (new, mark) = request::create_session(message).map_err(status)?;
        let view = self.runner.create_session(caller(&peer, mark, &body), new).await;
        Ok(Response::new(session_to_pb(&view.map_err(status)?)))
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::GetSessionRequest { app_name, user_id, session_id } = message;
        let key = request::key(app_name, user_id, session_id).map_err(status)?;
        let view = self.runner.get_session(&key).await.map_err(status)?;
        Ok(Response::new(session_to_pb(&view)))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Result<Response<pb::ListSessionsResponse>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::ListSessionsRequest { app_name, user_id, page_size, page_token } = message;
        let print = page::fingerprint(&["ListSessions", &app_name, &user_id]);
        let mut faults = Faults::new();
        let app = faults.optional_id("app_name", app_name, AppName::parse);
        let user = faults.optional_id("user_id", user_id, UserId::parse);
        let limits = self.runner.limits();
        let size = page::size(page_size, limits.page_entries, &mut faults);
        faults.finish(Some(())).map_err(status)?;
        let after = page::read_token("page_token", &page_token, &print).map_err(status)?;
        let page = self.runner.list_sessions(app.as_ref(), user.as_ref(), after, size).await;
        let page = page.map_err(status)?;
        let mut sessions: Vec<_> = page.items.iter().map(session_to_pb).collect();
        let fitting = page::fitting(&sessions, limits.page_bytes);
        let next = if fitting < sessions.len() {
            let last = &page.items[fitting - 1].session;
            let order = crate::runner::index::order(last.create_time);
            Some((order, crate::runner::index::session_id(&last.key)))
        } else {
            page.next
        };
        sessions.truncate(fitting);
        let next_page_token = next.map(|at| page::token(&print, at)).unwrap_or_default();
        Ok(Response::new(pb::ListSessionsResponse { sessions, next_page_token }))
    }

    async fn delete_session(
        &self,
        request: Request<pb::DeleteSessionRequest>,
    ) -> Result<Response<()>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (key, mark) = request::delete_session(message).map_err(status)?;
        self.runner.delete_session(caller(&peer, mark, &body), key).await.map_err(status)?;
        Ok(Response::new(()))
    }

    async fn update_session_state(
        &self,
        request: Request<pb::UpdateSessionStateRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        let peer = Peer::of(&request);
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let body = message.encode_to_vec();
        let (key, delta, mark) = request::update_state(message).map_err(status)?;
        let view = self.runner.update_state(caller(&peer, mark, &body), key, delta).await;
        Ok(Response::new(session_to_pb(&view.map_err(status)?)))
    }

    async fn import_session(
        &self,
        request: Request<pb::ImportSessionRequest>,
    ) -> Result<Response<pb::Session>, Status> {
        let peer = Peer::of(&request);
        let limits = self.runner.limits();
        let message = check_size(request.into_inner(), limits)?;
        let body = message.encode_to_vec();
        let (new, history, mark) =
            import::import_session(message, limits, self.runner.now(), &mut self.runner.mint())
                .map_err(status)?;
        let view = self.runner.import_session(caller(&peer, mark, &body), new, history).await;
        Ok(Response::new(session_to_pb(&view.map_err(status)?)))
    }

    async fn list_events(
        &self,
        request: Request<pb::ListEventsRequest>,
    ) -> Result<Response<pb::ListEventsResponse>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::ListEventsRequest {
            app_name,
            user_id,
            session_id,
            page_size,
            page_token,
            num_recent_events,
            after_time,
        } = message;
        let recent = format!("{num_recent_events:?} {after_time:?}");
        let print = page::fingerprint(&["ListEvents", &app_name, &user_id, &session_id, &recent]);
        let mut faults = Faults::new();
        let key = request::read_key(app_name, user_id, session_id, &mut faults);
        let recent = num_recent_events
            .map(|recent| request::count("num_recent_events", recent.into(), &mut faults));
        let after_time = after_time.and_then(|time| {
            let micros = time.micros();
            if micros.is_none() {
                faults.add("after_time", "must be a time since 1970");
            }
            micros
        });
        let limits = self.runner.limits();
        let size = page::size(page_size, limits.page_entries, &mut faults);
        let key = faults.finish(key).map_err(status)?;
        let token: Option<u64> =
            page::read_token("page_token", &page_token, &print).map_err(status)?;
        let last = self.runner.get_session(&key).await.map_err(status)?.session.last_sequence;
        let first = recent.map_or(0, |recent| last.saturating_sub(recent));
        let mut after = token.unwrap_or(first);
        let mut events: Vec<Event> = Vec::new();
        let mut at_end = after >= last;
        for _ in 0..MAX_READS {
            if at_end || events.len() > size {
                break;
            }
            let which = Events::After(after);
            let read = self.runner.list_events(&key, which, size + 1).await.map_err(status)?;
            let Some(newest) = read.last() else {
                at_end = true;
                break;
            };
            (after, at_end) = (newest.sequence, newest.sequence >= last);
            let wanted = |event: &Event| after_time.is_none_or(|time| event.time >= time);
            events.extend(read.into_iter().filter(wanted));
        }
        let mut page: Vec<_> = events.iter().take(size).map(event_to_pb).collect();
        page.truncate(page::fitting(&page, limits.page_bytes));
        let next = match page.last() {
            Some(shown) if page.len() < events.len() => {
                Some(u64::try_from(shown.sequence).unwrap_or_default())
            }
            _ => (!at_end).then_some(after),
        };
        let next_page_token = next.map(|at| page::token(&print, at)).unwrap_or_default();
        Ok(Response::new(pb::ListEventsResponse { events: page, next_page_token }))
    }

    async fn watch_session(
        &self,
        request: Request<pb::WatchSessionRequest>,
    ) -> Result<Response<Self::WatchSessionStream>, Status> {
        let message = check_size(request.into_inner(), self.runner.limits())?;
        let pb::WatchSessionRequest {
            app_name,
            user_id,
            session_id,
            after_sequence,
            invocation_id,
        } = message;
        let mut faults = Faults::new();
        let key = request::read_key(app_name, user_id, session_id, &mut faults);
        let invocation = faults.optional_id("invocation_id", invocation_id, InvocationId::parse);
        let after = request::count("after_sequence", after_sequence, &mut faults);
        let key = faults.finish(key).map_err(status)?;
        if self.runner.draining().is_cancelled() {
            let refusal = Refusal::new(Reason::Draining, "the server is shutting down");
            return Err(status(refusal));
        }
        let follow = self.runner.watch(&key, after, invocation).await.map_err(status)?;
        Ok(Response::new(stream::of_session(&self.runner, follow)))
    }
}
