//! What makes agents run.

pub mod cast;
pub mod index;
pub mod live;
pub mod prompt;
pub mod step;
