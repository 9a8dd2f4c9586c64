//! The wire: what comes in is checked and converted once, what goes out is converted back. Handlers
//! convert in, make one call, convert out.
//!
//! Messages of the contract are visible here and nowhere behind.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use sha2::{Digest, Sha256};
use tonic::service::Routes;
use tonic::{Request, Status};
use tonic_health::pb::FILE_DESCRIPTOR_SET as HEALTH_DESCRIPTORS;
use tonic_health::server::HealthReporter;

use crate::limits::Limits;
use crate::proto::FILE_DESCRIPTOR_SET;
use crate::proto::v1::agent_service_server::AgentServiceServer;
use crate::proto::v1::approval_service_server::ApprovalServiceServer;
use crate::proto::v1::session_service_server::SessionServiceServer;
use crate::runner::{Caller, Mark, Runner};
use crate::session::id::{Principal, RequestId};
use crate::session::refusal::{Reason, Refusal};

mod agent;
mod approval;
pub(crate) mod convert;
mod page;
mod session;
pub(crate) mod status;
mod stream;

/// Largest request that the codec takes in, in bytes; above it the answer is the codec's.
const MAX_DECODED_BYTES: usize = 8 << 20;

/// All services over a runner, and what tells whether they serve.
pub(crate) async fn routes(runner: &Runner) -> (Routes, HealthReporter) {
    let agents = AgentServiceServer::new(agent::Agents { runner: runner.clone() })
        .max_decoding_message_size(MAX_DECODED_BYTES);
    let sessions = SessionServiceServer::new(session::Sessions { runner: runner.clone() })
        .max_decoding_message_size(MAX_DECODED_BYTES);
    let approvals = ApprovalServiceServer::new(approval::Inbox { runner: runner.clone() })
        .max_decoding_message_size(MAX_DECODED_BYTES);
    let (health, health_service) = tonic_health::server::health_reporter();
    set_serving(&health, true).await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(HEALTH_DESCRIPTORS)
    };
    let v1 = reflection().build_v1().expect("the descriptors are this build's own");
    let alpha = reflection().build_v1alpha().expect("the descriptors are this build's own");
    let routes = Routes::new(agents)
        .add_service(sessions)
        .add_service(approvals)
        .add_service(health_service)
        .add_service(v1)
        .add_service(alpha);
    (routes, health)
}

/// Tells whether the services serve, each by its name and all together.
pub(crate) async fn set_serving(health: &HealthReporter, serving: bool) {
    let state = if serving {
        tonic_health::ServingStatus::Serving
    } else {
        tonic_health::ServingStatus::NotServing
    };
    let services = ["AgentService", "SessionService", "ApprovalService"];
    let services = services.map(|service| format!("countersign.v1.{service}"));
    for name in ["".to_owned()].into_iter().chain(services) {
        health.set_service_status(name, state).await;
    }
}

/// Who is at the other end of a connection. Until identity comes everybody is the local user.
pub(crate) struct Peer {
    principal: Principal,
}

impl Peer {
    fn of<T>(_request: &Request<T>) -> Self {
        Self { principal: Principal::parse("user:local").expect("the local user's name is an id") }
    }
}

/// Who asks, and how a repeat is known: by the digest of the whole request.
fn caller(peer: &Peer, mark: Option<RequestId>, body: &[u8]) -> Caller {
    let digest = |id| Mark { id, digest: STANDARD.encode(Sha256::digest(body)) };
    Caller { principal: peer.principal.clone(), mark: mark.map(digest) }
}

/// Refuses a request that is larger than requests may be.
fn check_size<M: Message>(message: M, limits: &Limits) -> Result<M, Status> {
    let (bytes, most) = (message.encoded_len(), limits.request_bytes);
    if bytes <= most {
        return Ok(message);
    }
    let text = format!("a request may have {most} bytes at most");
    let refusal = Refusal::new(Reason::LimitExceeded, text)
        .with("limit", "request_bytes")
        .with("value", most)
        .with("actual", bytes);
    Err(status::status(refusal))
}
