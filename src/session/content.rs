//! What is said: contents, their parts, and the events of a conversation.
//!
//! The shapes are ADK's (`Content`, `Part`, `Event`, `EventActions`). JSON inside them is exact: a
//! number keeps every digit it came with (`serde_json` with `arbitrary_precision`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::id::{CallId, EventId, FrameId, InvocationId};

/// A JSON object, exact.
pub type Object = Map<String, Value>;

/// Who speaks in a content: ADK knows these two; results of tools are said by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A person, or a tool that gives a result back.
    User,
    /// A model.
    Model,
}

/// One thing said, in parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Content {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
}

/// One part of a content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The part's data; none only in a part that carries nothing but a signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    /// The part is the model's reasoning, not its answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub thought: bool,
    /// Opaque bytes that a model wants back unchanged.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "base64_bytes")]
    pub thought_signature: Vec<u8>,
}

/// The data of a part: exactly one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Data {
    /// Plain text.
    Text(String),
    /// The model asks for a tool.
    FunctionCall(FunctionCall),
    /// A tool, or somebody outside, answers a call.
    FunctionResponse(FunctionResponse),
    /// Bytes with their type.
    InlineData(Blob),
    /// A reference to a file.
    FileData(FileData),
    /// Code that a model wants run.
    ExecutableCode(ExecutableCode),
    /// What that code gave.
    CodeExecutionResult(CodeExecutionResult),
}

/// A model's request to run a tool, with its arguments as the model wrote them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The call's id, issued by the server.
    pub id: CallId,
    /// The tool's name.
    pub name: String,
    /// The arguments, as the model gave them.
    #[serde(default)]
    pub args: Object,
}

/// An answer to a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionResponse {
    /// The id of the call that is answered.
    pub id: CallId,
    /// The tool's name.
    pub name: String,
    /// The answer; none is a null answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Object>,
    /// True: more is to come. False: this is the last. None: as the tool declares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub will_continue: Option<bool>,
}

/// Bytes with their type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Blob {
    /// IANA media type.
    pub mime_type: String,
    /// The bytes.
    #[serde(with = "base64_bytes")]
    pub data: Vec<u8>,
    /// A name to show; may be empty.
    #[serde(default)]
    pub display_name: String,
}

/// A reference to a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileData {
    /// IANA media type.
    pub mime_type: String,
    /// Where the file is; never fetched by the server.
    pub file_uri: String,
    /// A name to show; may be empty.
    #[serde(default)]
    pub display_name: String,
}

/// Code that a model wants run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutableCode {
    /// The language, in ADK's spelling, such as `PYTHON`.
    pub language: String,
    /// The code.
    pub code: String,
}

/// What executed code gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CodeExecutionResult {
    /// The outcome, in ADK's spelling, such as `OUTCOME_OK`.
    pub outcome: String,
    /// Standard output, or the error.
    pub output: String,
}

/// What a model call cost, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_token_count: u32,
    /// Tokens of the reply.
    pub candidates_token_count: u32,
    /// All tokens.
    pub total_token_count: u32,
    /// Tokens of the prompt that came from a cache.
    pub cached_content_token_count: u32,
    /// Tokens of reasoning.
    pub thoughts_token_count: u32,
}

impl Usage {
    /// Adds another call's cost.
    pub fn add(&mut self, other: Usage) {
        let sum = |a: &mut u32, b: u32| *a = a.saturating_add(b);
        sum(&mut self.prompt_token_count, other.prompt_token_count);
        sum(&mut self.candidates_token_count, other.candidates_token_count);
        sum(&mut self.total_token_count, other.total_token_count);
        sum(&mut self.cached_content_token_count, other.cached_content_token_count);
        sum(&mut self.thoughts_token_count, other.thoughts_token_count);
    }
}

/// What an event does beside being said (ADK's `EventActions`, the part of it that exists here).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Actions {
    /// Changes of state by key, with prefix; null removes a key.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub state_delta: Object,
    /// Do not call the model after this response.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_summarization: bool,
    /// Leave the enclosing loop.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub escalate: bool,
    /// What is asked of people before calls may run, by call.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requested_tool_confirmations: BTreeMap<CallId, ToolConfirmation>,
}

/// What is asked of a person before a call may run (ADK's `ToolConfirmation`; `confirmed` is false
/// until somebody answers).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolConfirmation {
    /// The question, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// What whoever decides is to fill in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
}

/// One entry of the conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The event's id.
    pub id: EventId,
    /// 1, 2, 3 ... in its session, without a hole. Order is this, never a timestamp.
    pub sequence: u64,
    /// The invocation it belongs to; for a change of state by a caller, one of its own.
    pub invocation_id: InvocationId,
    /// `user`, or the name of the agent.
    pub author: String,
    /// When the event was made, in microseconds since 1970 by the store's clock.
    pub time: u64,
    /// The frame that it belongs to; none for what a user wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frame: Option<FrameId>,
    /// What was said; none for an event that only acts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// On an event with calls: the ids of those that are long-running, maybe none. Others: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_running_tool_ids: Option<BTreeSet<CallId>>,
    /// What it does.
    #[serde(default)]
    pub actions: Actions,
    /// Why the model stopped, in ADK's spelling (`STOP`); empty if no model spoke.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub finish_reason: String,
    /// What the model call cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// An error's code; empty if there was none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error_code: String,
    /// An error's text for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error_message: String,
    /// A caller's own data, of the run.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub custom_metadata: Object,
    /// Facts about calls by id that stand in no part of the content.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub calls: BTreeMap<CallId, CallFacts>,
    /// What an imported event says beside all this; none on what was made here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<Box<Imported>>,
}

/// What events of ADK say and events made here do not. It is kept of imported ones, to be shown
/// again, and has no effect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Imported {
    /// Which node of an agent tree made it (`node_info.path`). It is no frame of this server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_path: String,
    /// The branch of parallel agents.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub branch: String,
    /// The scope of a sub-agent with a task of its own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub isolation_scope: String,
    /// The output of a workflow node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The agent that control was handed to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub transfer_to_agent: String,
    /// Artifacts that were saved: version by name of file.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub artifact_delta: BTreeMap<String, i32>,
    /// The model's turn was over.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub turn_complete: bool,
    /// Somebody interrupted the model.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

/// Facts about one call that an event tells beside its content.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallFacts {
    /// Why the call is held, if this event says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<super::call::Kind>,
    /// Digest of the effective arguments.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub args_digest: String,
    /// The effective arguments as JSON text, where they are not the ones that the model wrote.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exact_json: String,
    /// What whoever answered noted for the record.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub comment: String,
}

impl Part {
    /// A part with this data and nothing beside it.
    pub fn new(data: Data) -> Self {
        Self { data: Some(data), thought: false, thought_signature: Vec::new() }
    }

    /// A part of plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Data::Text(text.into()))
    }

    /// The call in this part, if it is one.
    pub fn call(&self) -> Option<&FunctionCall> {
        match &self.data {
            Some(Data::FunctionCall(call)) => Some(call),
            _ => None,
        }
    }

    /// The response in this part, if it is one.
    pub fn response(&self) -> Option<&FunctionResponse> {
        match &self.data {
            Some(Data::FunctionResponse(response)) => Some(response),
            _ => None,
        }
    }
}

impl Content {
    /// A user's plain text.
    pub fn user(text: impl Into<String>) -> Self {
        Self { role: Role::User, parts: vec![Part::text(text)] }
    }

    /// A model's plain text.
    pub fn model(text: impl Into<String>) -> Self {
        Self { role: Role::Model, parts: vec![Part::text(text)] }
    }

    /// The calls, in part order.
    pub fn calls(&self) -> impl Iterator<Item = &FunctionCall> {
        self.parts.iter().filter_map(Part::call)
    }

    /// The responses, in part order.
    pub fn responses(&self) -> impl Iterator<Item = &FunctionResponse> {
        self.parts.iter().filter_map(Part::response)
    }

    /// The plain text of all parts that are no thoughts, joined.
    pub fn plain_text(&self) -> String {
        let texts = self.parts.iter().filter(|part| !part.thought).filter_map(|p| match &p.data {
            Some(Data::Text(text)) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

impl Event {
    /// The calls of the event, in part order.
    pub fn function_calls(&self) -> impl Iterator<Item = &FunctionCall> {
        self.content.iter().flat_map(Content::calls)
    }

    /// The responses of the event, in part order.
    pub fn function_responses(&self) -> impl Iterator<Item = &FunctionResponse> {
        self.content.iter().flat_map(Content::responses)
    }

    /// ADK's `is_final_response` (2.13). It never means that a stream is over.
    pub fn is_final_response(&self) -> bool {
        let long_running = self.long_running_tool_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        if self.actions.skip_summarization || long_running {
            return true;
        }
        let calls = self.function_calls().next().is_some();
        if !self.error_code.is_empty() && !calls {
            return true;
        }
        let last = self.content.as_ref().and_then(|content| content.parts.last());
        let code = matches!(last.and_then(|p| p.data.as_ref()), Some(Data::CodeExecutionResult(_)));
        !calls && self.function_responses().next().is_none() && !code
    }
}

/// Bytes as base64 text in stored JSON.
mod base64_bytes {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(from)?).map_err(de::Error::custom)
    }
}
