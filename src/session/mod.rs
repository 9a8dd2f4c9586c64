//! The domain.

pub mod call;
pub mod content;
pub mod id;
pub mod json;
