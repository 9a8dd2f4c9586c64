//! Between the messages of the contract and the domain, in one place. Every conversion takes its
//! source apart field by field, so that a new field cannot be forgotten.
//!
//! What comes in is checked here once; all faults are told together, each with its path in the
//! request. What goes out cannot fail: the domain holds nothing that the wire does not.

#[cfg(test)]
mod adk_tests;
pub(crate) mod approval;
pub(crate) mod content;
pub(crate) mod decision;
pub(crate) mod event;
pub(crate) mod import;
pub(crate) mod json;
pub(crate) mod request;
pub(crate) mod resource;

use crate::session::id;
pub(crate) use crate::session::refusal::{Refusal, Violation};

/// How many faults are collected from one request; more are not looked at.
const MAX_FAULTS: usize = 1000;

/// The faults of one request, collected while it is converted. A conversion that gives none has
/// said why here.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Violation>);

impl Faults {
    /// None so far.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Notes a fault.
    pub(crate) fn add(&mut self, field: impl Into<String>, description: impl Into<String>) {
        if self.0.len() < MAX_FAULTS {
            self.0.push(Violation { field: field.into(), rule: description.into() });
        }
    }

    /// A required id: none, and a fault, if it is empty or invalid.
    pub(crate) fn id<T>(
        &mut self,
        field: &str,
        text: String,
        parse: impl FnOnce(String) -> Result<T, id::Error>,
    ) -> Option<T> {
        parse(text).map_err(|error| self.add(field, error.to_string())).ok()
    }

    /// An optional id: none if it is empty; none, and a fault, if it is invalid.
    pub(crate) fn optional_id<T>(
        &mut self,
        field: &str,
        text: String,
        parse: impl FnOnce(String) -> Result<T, id::Error>,
    ) -> Option<T> {
        if text.is_empty() { None } else { self.id(field, text, parse) }
    }

    /// The value, or all faults. A conversion that gives nothing has noted why.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, Refusal> {
        debug_assert!(value.is_some() || !self.0.is_empty(), "nothing, and no reason");
        value.filter(|_| self.0.is_empty()).ok_or_else(|| Refusal::fields(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::id::{AppName, SessionId};

    #[test]
    fn all_faults_are_told_together() {
        let mut faults = Faults::new();
        assert!(faults.id("app_name", "1st".into(), AppName::parse).is_none());
        assert!(faults.optional_id("session_id", String::new(), SessionId::parse).is_none());
        assert!(faults.optional_id("session_id", "a\nb".into(), SessionId::parse).is_none());
        let violations = faults.finish(Some(())).unwrap_err().violations;
        let fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["app_name", "session_id"]);
        assert_eq!(Faults::new().finish(Some(1)), Ok(1));
    }
}
