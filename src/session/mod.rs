//! THE DOMAIN, pure: no async, no clock, no I/O. A session is its records; everything here either
//! folds them (`state`), decides which come next (`decide`, `moves`) or says what they are.
//!
//! It must not know stores, models, tools, the wire, or who runs it.

pub mod adk;
pub mod approval;
pub mod approving;
pub mod asking;
pub mod call;
pub mod codec;
pub mod content;
pub mod decide;
pub mod draft;
pub mod id;
pub mod json;
pub mod keys;
pub mod moves;
pub mod record;
pub mod refusal;
pub mod state;

pub use refusal::{Reason, Refusal};
pub use state::Session;
