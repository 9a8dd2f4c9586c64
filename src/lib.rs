//! Countersign runs AI agents whose important actions wait for a human.

pub mod agent;
pub mod cli;
pub mod client;
mod grpc;
pub mod model;
pub mod proto;
pub mod runner;
pub mod session;
pub mod store;
