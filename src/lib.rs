//! Countersign runs AI agents whose important actions wait for a human.

pub mod agent;
pub mod app;
pub mod bench;
pub mod cli;
pub mod client;
pub mod config;
mod grpc;
pub mod limits;
pub mod model;
pub mod proto;
pub mod runner;
pub mod session;
pub mod store;
pub mod tool;
