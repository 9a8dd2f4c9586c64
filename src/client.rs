//! A client of Countersign: for the command line, tests and Rust users.
//!
//! [`Client`] is the generated clients on one lazy connection, and what every caller needs beside
//! them: streams that go on by themselves where they broke off ([`Client::run`],
//! [`Client::follow`], [`Client::invocations`], [`Client::inbox`]), answers, decisions and imports
//! that are repeated safely ([`Client::submit`], [`Client::decide`], [`Client::import`]), and
//! [`refusal`], which reads why something was refused. [`message`], [`answer`] and [`answers`] are
//! short words for what is sent most. It knows nothing of terminals.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Response, Status};
use tonic_types::StatusExt;
use uuid::Uuid;

use crate::proto::v1;
use crate::proto::v1::agent_service_client::AgentServiceClient;
use crate::proto::v1::approval_service_client::ApprovalServiceClient;
use crate::proto::v1::session_service_client::SessionServiceClient;

mod follow;
mod words;

pub use follow::{Approvals, Events, Invocations};
pub use words::{answer, answers, continuation, message};

/// Where a server listens if nothing else is said.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:50051";

/// The domain of the server's reasons.
const DOMAIN: &str = "countersign";

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a connection with a request under way is tried, and how long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Bytes under way on a stream, and on all streams of a connection: with the usual windows three
/// streams that nobody reads stall all others.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 64 << 20;

/// How often, and how soon, something is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How many failures in a row, without anything new between them, are one too many.
    pub attempts: u32,
    /// The wait after the first failure; doubled by each one that follows.
    pub first_delay: Duration,
    /// The longest wait, also where the server asks for a longer one.
    pub max_delay: Duration,
}

impl Default for Retry {
    /// Ten attempts within half a minute: as long as a server takes to restart.
    fn default() -> Self {
        let [first_delay, max_delay] = [100, 5000].map(Duration::from_millis);
        Self { attempts: 10, first_delay, max_delay }
    }
}

impl Retry {
    /// How long to wait after so many failures in a row; none if that was the last one.
    fn delay(&self, failures: u32, asked: Option<Duration>) -> Option<Duration> {
        if failures >= self.attempts {
            return None;
        }
        let factor = 1_u32 << failures.saturating_sub(1).min(16);
        let delay = asked.unwrap_or(self.first_delay.saturating_mul(factor));
        // Up to a quarter less, so that clients which lost the same server do not come back at
        // once.
        let quarters = u32::from(Uuid::new_v4().as_bytes()[0]);
        Some(delay.min(self.max_delay) * (1024 - quarters) / 1024)
    }
}

/// An address that no connection can be made to.
#[derive(Debug, thiserror::Error)]
#[error("{address:?} is no address of a server: {rule}")]
pub struct AddressInvalid {
    address: String,
    rule: &'static str,
}

/// A connection to a server, made when it is first used and again when it was lost. Clones share
/// it.
#[derive(Debug, Clone)]
pub struct Client {
    address: String,
    channel: Channel,
    retry: Retry,
}

impl Client {
    /// A client of the server at `host:port` or `http://host:port`. Connects to nothing yet; has to
    /// be called inside a tokio runtime.
    pub fn new(address: &str) -> Result<Self, AddressInvalid> {
        let invalid = |rule| AddressInvalid { address: address.to_owned(), rule };
        if address.starts_with("https://") {
            return Err(invalid("this client does not speak TLS; write http://host:port"));
        }
        let host = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
        if host.contains(['/', '@', '?', '#']) {
            return Err(invalid("write host:port or http://host:port"));
        }
        let endpoint = Endpoint::from_shared(format!("http://{host}"))
            .map_err(|_| invalid("write host:port or http://host:port"))?;
        if endpoint.uri().port_u16().is_none() || endpoint.uri().host() == Some("") {
            return Err(invalid("the host or the port is missing; write host:port"));
        }
        let channel = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .connect_lazy();
        Ok(Self { address: host.to_owned(), channel, retry: Retry::default() })
    }

    /// The same connection with another patience.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// Host and port of the server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// All RPCs about agents, as generated.
    pub fn agents(&self) -> AgentServiceClient<Channel> {
        AgentServiceClient::new(self.channel.clone())
    }

    /// All RPCs about sessions, as generated.
    pub fn sessions(&self) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.channel.clone())
    }

    /// All RPCs about approvals, as generated.
    pub fn approvals(&self) -> ApprovalServiceClient<Channel> {
        ApprovalServiceClient::new(self.channel.clone())
    }

    /// RunAsync up to its end: where the stream breaks off, or the server asks to reconnect, it
    /// goes on behind the last entry received. Without a `request_id` it gets one, so that the
    /// message is never given twice.
    pub fn run(&self, request: v1::RunAsyncRequest) -> Events {
        Events::run(self.clone(), request)
    }

    /// WatchSession, which goes on behind the last entry received where the stream breaks off. With
    /// an `invocation_id` it ends with that invocation, without one never.
    pub fn follow(&self, request: v1::WatchSessionRequest) -> Events {
        Events::watch(self.clone(), request)
    }

    /// WatchInvocations, which goes on behind the last message received where the stream breaks
    /// off. Never ends by itself.
    pub fn invocations(&self, request: v1::WatchInvocationsRequest) -> Invocations {
        Invocations::new(self.clone(), request)
    }

    /// SubmitFunctionResponse, repeated while nobody knows what became of it. Without a
    /// `request_id` it gets one, so that a repeat is recognised.
    pub async fn submit(
        &self,
        mut request: v1::SubmitFunctionResponseRequest,
    ) -> Result<v1::SubmitFunctionResponseResponse, Status> {
        fill_request_id(&mut request.request_id);
        let call = async || {
            self.agents().submit_function_response(request.clone()).await.map(Response::into_inner)
        };
        self.repeated(call).await
    }

    /// WatchApprovals, which goes on behind the last message received where the stream breaks off.
    /// Never ends by itself.
    pub fn inbox(&self, request: v1::WatchApprovalsRequest) -> Approvals {
        Approvals::new(self.clone(), request)
    }

    /// DecideApproval, repeated while nobody knows what became of it. Without a `request_id` it
    /// gets one, so that a repeat is recognised.
    pub async fn decide(
        &self,
        mut request: v1::DecideApprovalRequest,
    ) -> Result<v1::DecideApprovalResponse, Status> {
        fill_request_id(&mut request.request_id);
        let call = async || {
            self.approvals().decide_approval(request.clone()).await.map(Response::into_inner)
        };
        self.repeated(call).await
    }

    /// ImportSession, repeated while nobody knows what became of it. Without a `request_id` it gets
    /// one, so that a repeat is recognised.
    pub async fn import(
        &self,
        mut request: v1::ImportSessionRequest,
    ) -> Result<v1::Session, Status> {
        fill_request_id(&mut request.request_id);
        let call = async || {
            self.sessions().import_session(request.clone()).await.map(Response::into_inner)
        };
        self.repeated(call).await
    }

    /// Calls until it is known what came of it, as long as patience lasts.
    async fn repeated<T>(&self, call: impl AsyncFn() -> Result<T, Status>) -> Result<T, Status> {
        let mut failures = 0;
        loop {
            match call().await {
                Ok(reply) => return Ok(reply),
                Err(status) if failures == 0 && is_unreachable(&status) => return Err(status),
                Err(status) => {
                    failures += 1;
                    self.wait(failures, status).await?;
                }
            }
        }
    }

    /// Waits before the next attempt, or gives the error back where another one is of no use.
    async fn wait(&self, failures: u32, status: Status) -> Result<(), Status> {
        if !may_pass(&status) {
            return Err(status);
        }
        let asked = refusal(&status).and_then(|refusal| refusal.retry_after);
        match self.retry.delay(failures, asked) {
            Some(delay) => tokio::time::sleep(delay).await,
            None => return Err(status),
        }
        Ok(())
    }
}

/// A new mark for a request.
pub fn new_request_id() -> String {
    Uuid::new_v4().to_string()
}

fn fill_request_id(request_id: &mut String) {
    if request_id.is_empty() {
        *request_id = new_request_id();
    }
}

/// Why the server refused something: nothing of it was done, unless the reason says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, such as `CALL_NOT_HELD`.
    pub reason: String,
    /// The same for people.
    pub message: String,
    /// Everything variable, by name.
    pub metadata: BTreeMap<String, String>,
    /// The wrong fields, for those reasons that are about fields.
    pub violations: Vec<Violation>,
    /// How long to wait before the same is worth trying again; none if it is not.
    pub retry_after: Option<Duration>,
}

/// One fault of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field's path, such as `new_message.parts[0].text`.
    pub field: String,
    /// The rule that it breaks.
    pub rule: String,
}

/// The server's own reason for an error; none if it comes from the connection, a proxy or a
/// library.
pub fn refusal(status: &Status) -> Option<Refusal> {
    let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN)?;
    let violations = status.get_details_bad_request().map(|bad| bad.field_violations);
    let read = |violation: tonic_types::FieldViolation| Violation {
        field: violation.field,
        rule: violation.description,
    };
    Some(Refusal {
        reason: info.reason,
        message: status.message().to_owned(),
        metadata: info.metadata.into_iter().collect(),
        violations: violations.unwrap_or_default().into_iter().map(read).collect(),
        retry_after: status.get_details_retry_info().and_then(|retry| retry.retry_delay),
    })
}

/// Whether no connection to the server could be made at all.
pub fn is_unreachable(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Whether the same request, with the same `request_id`, may succeed later.
fn may_pass(status: &Status) -> bool {
    match refusal(status) {
        Some(refusal) => refusal.retry_after.is_some() || refusal.reason == "WRITE_OUTCOME_UNKNOWN",
        // A cut connection comes as any of these, depending on where it was cut.
        None => matches!(
            status.code(),
            Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
        ),
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::*;

    #[tokio::test]
    async fn an_address_is_a_host_and_a_port() {
        for address in ["127.0.0.1:50051", "http://localhost:1/", "[::1]:50051", "a.example:80"] {
            assert!(Client::new(address).is_ok(), "{address}");
        }
        for address in ["", "localhost", "https://a:1", "http://a:1/b", "a b:1", ":1", "u@a:1"] {
            assert!(Client::new(address).is_err(), "{address}");
        }
        assert_eq!(Client::new("http://localhost:1/").unwrap().address(), "localhost:1");
    }

    #[test]
    fn a_refusal_is_read_whole() {
        let mut details = ErrorDetails::with_error_info(
            "FIELD_INVALID",
            "countersign",
            [("violations".to_owned(), "1".to_owned())],
        );
        details.add_bad_request_violation("user_id", "must not be empty");
        details.set_retry_info(Some(Duration::from_millis(1500)));
        let status = Status::with_error_details(Code::InvalidArgument, "user_id: wrong", details);
        let read = refusal(&status).unwrap();
        assert_eq!((&*read.reason, &*read.message), ("FIELD_INVALID", "user_id: wrong"));
        assert_eq!(read.metadata["violations"], "1");
        let rule = "must not be empty".to_owned();
        assert_eq!(read.violations, [Violation { field: "user_id".to_owned(), rule }]);
        assert_eq!(read.retry_after, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn reasons_of_others_are_not_ours() {
        assert_eq!(refusal(&Status::unavailable("connection reset")), None);
        let details = ErrorDetails::with_error_info("STOCKOUT", "example.com", []);
        let status = Status::with_error_details(Code::Unavailable, "no", details);
        assert_eq!(refusal(&status), None);
    }

    #[test]
    fn waits_grow_to_a_bound_and_end() {
        let retry = Retry::default();
        for failures in 1..retry.attempts {
            let delay = retry.delay(failures, None).unwrap();
            let whole = (retry.first_delay * (1 << (failures - 1))).min(retry.max_delay);
            assert!(delay <= whole && delay >= whole * 3 / 4, "{failures}: {delay:?}");
        }
        assert_eq!(retry.delay(retry.attempts, None), None);
        let asked = Some(Duration::from_secs(3600));
        assert!(retry.delay(1, asked).unwrap() <= retry.max_delay);
    }
}
