//! Models: what an agent speaks with. A model gets a request whole and gives a reply, in pieces if
//! asked; it keeps nothing between two calls and knows nothing of sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use crate::session::content::{Content, Object, Part, Usage};
use crate::session::id::CallId;

pub mod scripted;

/// What a model is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Which agent asks; models that follow a script find theirs by it.
    pub agent: String,
    /// What it is told before the conversation.
    pub instruction: String,
    /// The conversation so far: every call in it has exactly one response beside it.
    pub contents: Arc<Vec<Content>>,
    /// Calls in the conversation whose response is new to this model: no reply of its frame has
    /// seen it. Responses are merged beside their calls, so where they stand does not tell what is
    /// new. Language models need not look; models that follow rules react to these. Empty: whatever
    /// stands last is new.
    pub news: BTreeSet<CallId>,
    /// The tools that it may call.
    pub tools: Arc<Vec<ToolSpec>>,
    /// Whether pieces are wanted.
    pub stream: bool,
}

/// What a model is told of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// The name to call it by.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON schema of its arguments.
    pub parameters: Value,
}

/// What a model replied.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reply {
    /// What it said, in order.
    pub parts: Vec<Said>,
    /// Why it stopped, in ADK's spelling, such as `STOP`.
    pub finish_reason: String,
    /// What it cost, if the model tells.
    pub usage: Option<Usage>,
}

/// One part of a reply. Calls have no id of ours yet: the server issues them.
#[derive(Debug, Clone, PartialEq)]
pub enum Said {
    /// A text, a thought, or data; never a call or a response.
    Part(Part),
    /// A call.
    Call {
        /// The model's own id for it, if it gave one; goes back to that model only.
        model_id: Option<String>,
        /// The tool.
        name: String,
        /// Its arguments.
        args: Object,
        /// Opaque bytes that the model wants back with the call.
        thought_signature: Vec<u8>,
    },
}

/// A model could not reply. It becomes an event with this code and message, and the run fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Error {
    /// UPPER_SNAKE.
    pub code: String,
    /// For people; without prompt, arguments or secrets.
    pub message: String,
}

/// Where a model puts the pieces of a text while it speaks.
pub trait Pieces: Send {
    /// One more piece of text; they are shown live and never stored.
    fn text(&mut self, piece: &str);
}

/// Something that replies.
#[async_trait]
pub trait Model: Send + Sync + 'static {
    /// Replies once. With `request.stream` the text goes to `pieces` as it comes, and is whole in
    /// the reply all the same.
    async fn reply(&self, request: Request, pieces: &mut dyn Pieces) -> Result<Reply, Error>;
}
