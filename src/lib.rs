//! Countersign runs AI agents whose important actions wait for a human.

pub mod agent;
pub mod config;
pub mod model;
pub mod session;
pub mod store;
