//! Countersign runs AI agents whose important actions wait for a human.

<<<<<<< HEAD
pub mod agent;
pub mod model;
pub mod runner;
=======
mod grpc;
pub mod proto;
>>>>>>> proto
pub mod session;
pub mod store;
