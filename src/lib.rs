//! Countersign runs AI agents whose important actions wait for a human.

pub mod proto;
pub mod session;
pub mod store;
