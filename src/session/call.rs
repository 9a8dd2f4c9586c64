//! The life of one call.

use serde::{Deserialize, Serialize};

/// Why a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    /// The tool is long-running: its body ran, the outcome comes from outside.
    LongRunning,
    /// A body was started, no definite answer came, and none can come any more.
    UnknownOutcome,
}
