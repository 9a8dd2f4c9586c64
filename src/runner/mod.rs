//! What makes agents run.

pub mod prompt;
