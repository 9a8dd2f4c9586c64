//! Comparing what was recorded with what came now: in order, event by event.
//!
//! As in ADK's own runner these say nothing and are not compared: ids and times of events,
//! invocations, finish reasons, costs and signatures. Calls are numbered in their order. Numbers
//! are compared as decimals: 150 is 150.0. What one side does not have (an event before its node
//! had a path) is not compared either, nor is the role of an event that asks for confirmations:
//! before ADK's version 2 it was the user's.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::Played;
use crate::session::approval::CONFIRMATION;
use crate::session::content::{Data, Event, FunctionCall, Part, Role};
use crate::session::id::CallId;
use crate::session::json::same;

/// Most pairs of events that are lined up; longer scripts are compared place by place.
const MAX_PAIRS: usize = 4_000_000;

/// One difference between a script and its replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Which event of the script, from 1; of one that the script does not have, which of the
    /// replay.
    pub event: usize,
    /// Whose event it is.
    pub author: String,
    /// Where in the event, as `content.parts[0].text`; empty for a whole event.
    pub path: String,
    /// What the script has; none: nothing.
    pub expected: Option<Value>,
    /// What came; none: nothing.
    pub got: Option<Value>,
}

/// All differences, in order.
pub(super) fn compare(recorded: &[Event], played: &Played) -> Vec<Difference> {
    let (expected, got) = (normal(recorded), normal(&played.events));
    let refused: BTreeMap<usize, &Value> =
        played.refused.iter().map(|(at, why)| (*at, why)).collect();
    let mut all = Vec::new();
    for pair in aligned(&expected, &got, &refused) {
        match pair {
            (Some(a), Some(b)) => {
                let mut found = Found { at: a, author: &recorded[a].author, all: &mut all };
                found.values("", &expected[a], &got[b]);
            }
            (Some(a), None) => all.push(Difference {
                event: a + 1,
                author: recorded[a].author.clone(),
                path: String::new(),
                expected: Some(expected[a].clone()),
                got: refused.get(&a).map(|why| (*why).clone()),
            }),
            (None, Some(b)) => all.push(Difference {
                event: b + 1,
                author: played.events[b].author.clone(),
                path: String::new(),
                expected: None,
                got: Some(got[b].clone()),
            }),
            (None, None) => {}
        }
    }
    all
}

/// What is compared of each event.
fn normal(events: &[Event]) -> Vec<Value> {
    let mut calls = BTreeMap::new();
    events.iter().map(|event| normal_event(event, &mut calls)).collect()
}

fn numbered(calls: &mut BTreeMap<CallId, usize>, id: &CallId) -> Value {
    let next = calls.len() + 1;
    format!("fc-{}", calls.entry(id.clone()).or_insert(next)).into()
}

fn normal_event(event: &Event, calls: &mut BTreeMap<CallId, usize>) -> Value {
    let mut normal = Map::new();
    let mut put = |name: &str, value: Value| {
        let empty = match &value {
            Value::Null | Value::Bool(false) => true,
            Value::String(text) => text.is_empty(),
            Value::Array(list) => list.is_empty(),
            Value::Object(object) => object.is_empty(),
            _ => false,
        };
        if !empty {
            normal.insert(name.to_owned(), value);
        }
    };
    let more = event.imported.as_deref().cloned().unwrap_or_default();
    let frame = event.frame.as_ref().filter(|_| event.author != "user");
    put("author", event.author.as_str().into());
    put("nodePath", frame.map_or(more.node_path, |frame| frame.to_string()).into());
    if let Some(content) = &event.content {
        let parts: Vec<Value> = content.parts.iter().map(|p| normal_part(p, calls)).collect();
        let mut normal = json!({ "parts": parts });
        if !content.calls().any(|call| call.name == CONFIRMATION) {
            normal["role"] = if content.role == Role::Model { "model" } else { "user" }.into();
        }
        put("content", normal);
    }
    let held = event.long_running_tool_ids.iter().flatten();
    let mut held: Vec<Value> = held.map(|id| numbered(calls, id)).collect();
    held.sort_by_key(|id| id.as_str().map(|id| (id.len(), id.to_owned())));
    put("longRunningToolIds", held.into());
    let actions = &event.actions;
    put("stateDelta", actions.state_delta.clone().into());
    put("skipSummarization", actions.skip_summarization.into());
    put("escalate", actions.escalate.into());
    let asked = actions.requested_tool_confirmations.iter();
    let asked = asked.map(|(id, asked)| {
        let confirmation = json!({"hint": asked.hint, "payload": asked.payload});
        (numbered(calls, id).as_str().unwrap_or_default().to_owned(), confirmation)
    });
    put("requestedToolConfirmations", Value::Object(asked.collect()));
    put("transferToAgent", more.transfer_to_agent.into());
    put("artifactDelta", json!(more.artifact_delta));
    put("branch", more.branch.into());
    put("isolationScope", more.isolation_scope.into());
    put("output", more.output.unwrap_or_default());
    put("errorCode", event.error_code.as_str().into());
    put("errorMessage", event.error_message.as_str().into());
    put("interrupted", more.interrupted.into());
    put("customMetadata", event.custom_metadata.clone().into());
    Value::Object(normal)
}

fn normal_part(part: &Part, calls: &mut BTreeMap<CallId, usize>) -> Value {
    let mut normal = match &part.data {
        None => json!({}),
        Some(Data::Text(text)) => json!({ "text": text }),
        Some(Data::FunctionCall(call)) => json!({"functionCall":
            {"id": numbered(calls, &call.id), "name": call.name, "args": normal_args(call, calls)}}),
        Some(Data::FunctionResponse(answer)) => json!({"functionResponse":
            {"id": numbered(calls, &answer.id), "name": answer.name, "response": answer.response}}),
        Some(Data::InlineData(blob)) => json!({"inlineData":
            {"mimeType": blob.mime_type, "data": STANDARD.encode(&blob.data)}}),
        Some(Data::FileData(file)) => json!({"fileData":
            {"mimeType": file.mime_type, "fileUri": file.file_uri}}),
        Some(Data::ExecutableCode(code)) => json!({"executableCode":
            {"language": code.language, "code": code.code}}),
        Some(Data::CodeExecutionResult(result)) => json!({"codeExecutionResult":
            {"outcome": result.outcome, "output": result.output}}),
    };
    if part.thought {
        normal["thought"] = true.into();
    }
    normal
}

/// The arguments of a call; a question names the call that it is about.
fn normal_args(call: &FunctionCall, calls: &mut BTreeMap<CallId, usize>) -> Value {
    let mut args = Value::Object(call.args.clone());
    if call.name == CONFIRMATION
        && let Some(id) = args.pointer_mut("/originalFunctionCall/id")
        && let Some(about) = id.as_str().and_then(|id| CallId::parse(id).ok())
    {
        *id = numbered(calls, &about);
    }
    args
}

/// What kind of event it is: those of the same kind are compared with each other.
fn kind(event: &Value) -> Vec<&str> {
    let mut kind = vec![event["author"].as_str().unwrap_or_default()];
    for part in event["content"]["parts"].as_array().into_iter().flatten() {
        let Some((key, value)) = part.as_object().and_then(|part| part.iter().next()) else {
            continue;
        };
        kind.push(key);
        kind.extend(value["name"].as_str());
    }
    kind
}

type Pair = (Option<usize>, Option<usize>);

/// Lines the events up, so that one that is missing does not make all that follow differ. A turn
/// that was refused has no like.
fn aligned(a: &[Value], b: &[Value], refused: &BTreeMap<usize, &Value>) -> Vec<Pair> {
    let (kinds_a, kinds_b): (Vec<_>, Vec<_>) =
        (a.iter().map(kind).collect(), b.iter().map(kind).collect());
    if kinds_a == kinds_b || a.len().saturating_mul(b.len()) > MAX_PAIRS {
        let some = |at: usize, len: usize| (at < len).then_some(at);
        return (0..a.len().max(b.len())).map(|i| (some(i, a.len()), some(i, b.len()))).collect();
    }
    // The value of pairing two events: more for equal ones, so that a repeated kind finds its own.
    let worth = |i: usize, j: usize| match kinds_a[i] == kinds_b[j] && !refused.contains_key(&i) {
        true if same(&a[i], &b[j]) => 3,
        true => 2,
        false => 0,
    };
    let mut best = vec![vec![0_u32; b.len() + 1]; a.len() + 1];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            let pair = match worth(i, j) {
                0 => 0,
                worth => best[i + 1][j + 1] + worth,
            };
            best[i][j] = pair.max(best[i + 1][j]).max(best[i][j + 1]);
        }
    }
    let (mut i, mut j, mut pairs) = (0, 0, Vec::new());
    while i < a.len() && j < b.len() {
        let worth = worth(i, j);
        if worth > 0 && best[i][j] == best[i + 1][j + 1] + worth {
            pairs.push((Some(i), Some(j)));
            (i, j) = (i + 1, j + 1);
        } else if best[i][j] == best[i + 1][j] {
            pairs.push((Some(i), None));
            i += 1;
        } else {
            pairs.push((None, Some(j)));
            j += 1;
        }
    }
    pairs.extend((i..a.len()).map(|i| (Some(i), None)));
    pairs.extend((j..b.len()).map(|j| (None, Some(j))));
    pairs
}

/// The differences of one event.
struct Found<'a> {
    at: usize,
    author: &'a str,
    all: &'a mut Vec<Difference>,
}

impl Found<'_> {
    fn values(&mut self, path: &str, expected: &Value, got: &Value) {
        match (expected, got) {
            (Value::Object(a), Value::Object(b)) => {
                let keys: Vec<&String> =
                    a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))).collect();
                for key in keys {
                    // Events of ADK before its version 2 have no node.
                    if path.is_empty() && key == "nodePath" && !a.contains_key(key) {
                        continue;
                    }
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    self.both(&path, a.get(key), b.get(key));
                }
            }
            (Value::Array(a), Value::Array(b)) => {
                for at in 0..a.len().max(b.len()) {
                    self.both(&format!("{path}[{at}]"), a.get(at), b.get(at));
                }
            }
            (a, b) if same(a, b) => {}
            (a, b) => self.note(path, Some(a), Some(b)),
        }
    }

    fn both(&mut self, path: &str, expected: Option<&Value>, got: Option<&Value>) {
        match (expected, got) {
            (Some(a), Some(b)) => self.values(path, a, b),
            (a, b) => self.note(path, a, b),
        }
    }

    fn note(&mut self, path: &str, expected: Option<&Value>, got: Option<&Value>) {
        self.all.push(Difference {
            event: self.at + 1,
            author: self.author.to_owned(),
            path: path.to_owned(),
            expected: expected.cloned(),
            got: got.cloned(),
        });
    }
}
