//! Conditions over calls, in CEL: read and bounded once, evaluated often.

/// A condition over a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression {
    source: String,
}

impl Expression {
    /// The text that it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }
}
