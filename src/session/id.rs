//! Names and identifiers, each a type of its own with a checked parse.
//!
//! A value of one of these types keeps its rule for as long as it lives: what came over the wire or
//! from the disk is checked once, here, and never again. The module knows no clock and no source of
//! randomness: whoever mints an id passes its text in.

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest id of a session, a user, an invocation or a call, in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// Why a text is not a valid id. The text itself is never repeated: it may be hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text is empty.
    #[error("must not be empty")]
    Empty,
    /// The text is longer than the limit.
    #[error("must be at most {0} bytes long")]
    TooLong(usize),
    /// The text has a control character, which no terminal and no log shows as it is.
    #[error("must not contain control characters")]
    Control,
    /// The text is not a name: a letter, then letters, digits, `_` and `-` (ADK's rule for apps).
    #[error("must begin with a letter and hold only letters, digits, `_` and `-`")]
    NotAName,
    /// `user` is the author of what people write, so no app or agent can have that name (ADK).
    #[error("must not be `user`, which is reserved for what people write")]
    Reserved,
    /// A request id is 1 to 64 printable ASCII characters.
    #[error("must be 1 to 64 printable ASCII characters")]
    NotPrintable,
}

fn check_id(text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::Empty);
    }
    if text.len() > MAX_ID_BYTES {
        return Err(Error::TooLong(MAX_ID_BYTES));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::Control);
    }
    Ok(())
}

fn check_name(text: &str) -> Result<(), Error> {
    check_id(text)?;
    let mut chars = text.chars();
    let starts = chars.next().is_some_and(|c| c.is_ascii_alphabetic());
    if !starts || !chars.all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
        return Err(Error::NotAName);
    }
    if text == "user" {
        return Err(Error::Reserved);
    }
    Ok(())
}

fn check_request(text: &str) -> Result<(), Error> {
    let printable = text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if text.is_empty() || text.len() > 64 || !printable {
        return Err(Error::NotPrintable);
    }
    Ok(())
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident: $check:path;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the text and keeps it.
            pub fn parse(text: impl Into<String>) -> Result<Self, Error> {
                let text = text.into();
                $check(&text)?;
                Ok(Self(text))
            }

            /// The text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self, Error> {
                Self::parse(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
    )*};
}

ids! {
    /// The name of an app: the name of its root agent.
    AppName: check_name;
    /// The name of an agent, unique in its app.
    AgentName: check_name;
    /// A user, as the caller names him.
    UserId: check_id;
    /// A session's id: unique for app and user, chosen by the caller or made by the server.
    SessionId: check_id;
    /// A session's own key, new at each creation; never chosen by a caller.
    SessionUid: check_id;
    /// One invocation, `e-` and a UUID (ADK).
    InvocationId: check_id;
    /// One event, a UUID (ADK).
    EventId: check_id;
    /// One call, `adk-` and a UUID (ADK), issued by the server, unique for ever.
    CallId: check_id;
    /// A frame: one agent at work inside an invocation. Written like ADK's `node_info.path`:
    /// `root@1`, `root@1/helper@2`.
    FrameId: check_frame;
    /// One process of the server: new at each start.
    Owner: check_id;
    /// Who did something: the local user until identity comes, `tool:` and `server:` for ourselves.
    Principal: check_id;
    /// A caller's mark on a mutating request, by which a repeat is known.
    RequestId: check_request;
}

fn check_frame(text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::Empty);
    }
    if text.len() > 4096 {
        return Err(Error::TooLong(4096));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::Control);
    }
    Ok(())
}

impl FrameId {
    /// The frame of an invocation's root agent.
    pub fn root(agent: &AgentName) -> Self {
        Self(format!("{agent}@1"))
    }

    /// The `number`th frame (1, 2, 3 ...) of `agent` below this one.
    pub fn child(&self, agent: &AgentName, number: u32) -> Self {
        Self(format!("{self}/{agent}@{number}"))
    }

    /// The agent path without numbers: `root/helper`.
    pub fn agent_path(&self) -> String {
        let names = self.0.split('/').map(|part| part.split('@').next().unwrap_or(part));
        names.collect::<Vec<_>>().join("/")
    }
}

/// The three names that a caller knows a session by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionKey {
    /// The app.
    pub app: AppName,
    /// The user.
    pub user: UserId,
    /// The session of that user with that app.
    pub id: SessionId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_adks_pattern() {
        assert!(AppName::parse("reimbursement_agent").is_ok());
        assert_eq!(AppName::parse("user"), Err(Error::Reserved));
        assert_eq!(AppName::parse("1st"), Err(Error::NotAName));
        assert_eq!(AppName::parse(""), Err(Error::Empty));
        assert_eq!(UserId::parse("a\0b"), Err(Error::Control));
        assert_eq!(UserId::parse("x".repeat(129)), Err(Error::TooLong(128)));
        assert!(RequestId::parse("x".repeat(65)).is_err());
    }

    #[test]
    fn a_frame_is_written_like_a_node_path() {
        let root = FrameId::root(&AgentName::parse("root").unwrap());
        let child = root.child(&AgentName::parse("helper").unwrap(), 2);
        assert_eq!(child.as_str(), "root@1/helper@2");
        assert_eq!(child.agent_path(), "root/helper");
    }
}
