//! Countersign runs AI agents whose important actions wait for a human.

mod grpc;
pub mod proto;
pub mod session;
pub mod store;
