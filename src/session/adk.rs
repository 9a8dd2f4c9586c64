//! Reading the JSON of ADK's events: one event, a list of them, a file of a recorded test
//! (`{"events": [...]}`), or a whole session.
//!
//! Keys are taken as `camelCase` and as `snake_case`, unknown ones are ignored, and null is the
//! same as nothing, as ADK's own parser has it. Numbers keep their digits. All faults are told
//! together, each with its path. What is read is history: facts about calls are taken from nobody,
//! but for the digits that our own events have beside their doubles.
//!
//! The way back is the proto3 JSON of an event, which ADK's parser reads.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::content::{
    Actions, CallFacts, Content, Data, Event, Imported, Object, ToolConfirmation, Usage,
};
use super::draft::Mint;
use super::id::{CallId, EventId, InvocationId, MAX_ID_BYTES};
use super::json::{self, MAX_ARGS_DEPTH, MAX_DEPTH};
use super::refusal::Violation;
use super::state::{is_own_key, put};

mod content;
mod fields;
#[cfg(test)]
mod tests;

use fields::{Fields, Reader};

/// Deepest nesting of a text with events, in levels: what they carry nests [`MAX_DEPTH`] at most.
pub const MAX_TEXT_DEPTH: usize = 64;

/// The end of the year 9999, in seconds since 1970.
const LAST_SECOND: f64 = 253_402_300_799.0;

/// Keys of metadata that begin so are ADK's own; it tells them to nobody.
const INTERNAL: &str = "__adk_internal_";

/// What a file or a session of ADK says.
#[derive(Debug, Clone, PartialEq)]
pub struct Transcript {
    /// The app, if it is named.
    pub app_name: Option<String>,
    /// The session's state as it ended, with all prefixes, if it is there.
    pub state: Option<Object>,
    /// The events, oldest first; pieces of later ones (`partial`) are left out.
    pub events: Vec<Event>,
}

impl Transcript {
    /// The session's own state: as it is said, or else as the events changed it.
    pub fn own_state(&self) -> Object {
        let mut own = Object::new();
        let said = self.state.iter();
        let deltas = self.events.iter().map(|event| &event.actions.state_delta);
        let changes: Vec<&Object> =
            if self.state.is_some() { said.collect() } else { deltas.collect() };
        for (key, value) in changes.into_iter().flatten().filter(|(key, _)| is_own_key(key)) {
            put(&mut own, key, value);
        }
        own
    }
}

/// What is filled in where an event does not say it.
pub struct Defaults<'a> {
    /// When an event without a time was made, in microseconds since 1970.
    pub now: u64,
    /// The author of what a model said, where nobody is named.
    pub author: &'a str,
    /// Makes ids.
    pub mint: &'a mut (dyn Mint + Send),
}

/// How many events a value has that [`read`] takes; none if it has none at all.
pub fn count(value: &Value) -> Option<usize> {
    list(value).map(Vec::len)
}

fn list(value: &Value) -> Option<&Vec<Value>> {
    match value {
        Value::Array(events) => Some(events),
        Value::Object(file) => file.get("events")?.as_array(),
        _ => None,
    }
}

/// Reads a list of events, or an object that has one under `events`. Paths of faults begin with
/// `field`, as `events[2].content`.
pub fn read(
    value: &Value,
    field: &str,
    defaults: Defaults<'_>,
) -> Result<Transcript, Vec<Violation>> {
    let mut reader = Reader::default();
    let Some(values) = list(value) else {
        reader.fault(field, "must be a list of events, or an object with such a list as `events`");
        return Err(reader.faults);
    };
    let (mut app_name, mut state) = (None, None);
    if let Value::Object(file) = value {
        let file = Fields::new(file, field.to_owned());
        app_name = file.get("appName").and_then(|(value, _)| value.as_str()).map(str::to_owned);
        state = file.get("state").and_then(|(value, path)| reader.state(value, &path));
    }
    let Defaults { now, author, mint } = defaults;
    let mut history = History {
        reader,
        now,
        author,
        calls: CallIds { mint, nameless: Vec::new() },
        seen: BTreeSet::new(),
        invocation: None,
        sequence: 0,
    };
    let read = |(at, value)| history.event(value, &format!("{field}[{at}]"));
    // All of them first: every fault is told.
    let events: Vec<Option<Event>> = values.iter().enumerate().map(read).collect();
    if !history.reader.faults.is_empty() {
        return Err(history.reader.faults);
    }
    Ok(Transcript { app_name, state, events: events.into_iter().flatten().collect() })
}

/// The ids of the calls of a history, where they are missing: older events have none.
struct CallIds<'a> {
    mint: &'a mut (dyn Mint + Send),
    /// Calls without an id and without a response so far, oldest first.
    nameless: Vec<(String, CallId)>,
}

impl CallIds<'_> {
    /// The id of a call.
    fn call(&mut self, reader: &mut Reader, fields: &Fields<'_>, name: &str) -> Option<CallId> {
        let id = reader.text(fields, "id");
        if !id.is_empty() {
            return parse(reader, &fields.path("id"), id, CallId::parse);
        }
        let id = CallId::parse(format!("adk-{}", self.mint.next()));
        let id = id.expect("a minted text makes an id");
        self.nameless.push((name.to_owned(), id.clone()));
        Some(id)
    }

    /// The id that a response is for: without one, the oldest call of the name that has none.
    fn response(&mut self, reader: &mut Reader, fields: &Fields<'_>, name: &str) -> Option<CallId> {
        let id = reader.text(fields, "id");
        if !id.is_empty() {
            return parse(reader, &fields.path("id"), id, CallId::parse);
        }
        match self.nameless.iter().position(|(call, _)| call == name) {
            Some(at) => Some(self.nameless.remove(at).1),
            None => CallId::parse(format!("adk-{}", self.mint.next())).ok(),
        }
    }
}

fn parse<T>(
    reader: &mut Reader,
    path: &str,
    text: String,
    parse: impl FnOnce(String) -> Result<T, super::id::Error>,
) -> Option<T> {
    parse(text).map_err(|wrong| reader.fault(path, wrong.to_string())).ok()
}

/// Events that a server like this one showed have exact JSON beside what doubles do not hold. It is
/// taken where nothing but digits was lost: it is no way to say something else.
fn exact(content: &mut Content, facts: &Value) {
    for part in &mut content.parts {
        let (id, seen, depth) = match &mut part.data {
            Some(Data::FunctionCall(call)) => (&call.id, Some(&mut call.args), MAX_ARGS_DEPTH),
            Some(Data::FunctionResponse(answer)) => {
                (&answer.id, answer.response.as_mut(), MAX_DEPTH)
            }
            _ => continue,
        };
        let facts = facts.get(id.as_str()).and_then(Value::as_object);
        let (Some(seen), Some(facts)) = (seen, facts) else { continue };
        let facts = Fields::new(facts, String::new());
        let text = facts.get("exactJson").and_then(|(text, _)| text.as_str());
        if let Some(Ok(Value::Object(exact))) = text.map(|text| json::parse(text, depth))
            && json::objects_look_alike(&exact, seen)
        {
            *seen = exact;
        }
    }
}

/// A history while it is read.
struct History<'a> {
    reader: Reader,
    now: u64,
    author: &'a str,
    calls: CallIds<'a>,
    /// The ids of events so far.
    seen: BTreeSet<EventId>,
    /// The invocation of the event before.
    invocation: Option<InvocationId>,
    sequence: u64,
}

impl History<'_> {
    /// An event; none if it is wrong, or a piece of a later one.
    fn event(&mut self, value: &Value, path: &str) -> Option<Event> {
        let Value::Object(object) = value else {
            self.reader.fault(path, "must be an object");
            return None;
        };
        let fields = Fields::new(object, path.to_owned());
        if self.reader.flag(&fields, "partial") {
            return None;
        }
        let time = self.time(&fields);
        let author = self.author(&fields);
        let inner = self.reader.fields(&fields, "content");
        let mut content = inner
            .and_then(|inner| content::content(&mut self.reader, &mut self.calls, &inner, &author));
        if let (Some(content), Some((facts, _))) = (&mut content, fields.get("calls")) {
            exact(content, facts);
        }
        let long_running_tool_ids = self.long_running(&fields, content.as_ref());
        let reader = &mut self.reader;
        let usage = reader.fields(&fields, "usageMetadata").map(|usage| Usage {
            prompt_token_count: reader.count(&usage, "promptTokenCount"),
            candidates_token_count: reader.count(&usage, "candidatesTokenCount"),
            total_token_count: reader.count(&usage, "totalTokenCount"),
            cached_content_token_count: reader.count(&usage, "cachedContentTokenCount"),
            thoughts_token_count: reader.count(&usage, "thoughtsTokenCount"),
        });
        let finish_reason = reader.text(&fields, "finishReason");
        let error_code = reader.text(&fields, "errorCode");
        let error_message = reader.text(&fields, "errorMessage");
        let mut custom_metadata = self.object(&fields, "customMetadata");
        custom_metadata.retain(|key, _| !key.starts_with(INTERNAL));
        let (actions, imported) = self.actions(&fields);
        let id = self.id(&fields);
        let invocation_id = self.invocation(&fields)?;
        self.sequence += 1;
        Some(Event {
            id: id?,
            sequence: self.sequence,
            invocation_id,
            author,
            time,
            frame: None,
            content,
            long_running_tool_ids,
            actions,
            finish_reason,
            usage,
            error_code,
            error_message,
            custom_metadata,
            calls: BTreeMap::<CallId, CallFacts>::new(),
            imported,
        })
    }

    fn time(&mut self, fields: &Fields<'_>) -> u64 {
        let Some((value, path)) = fields.get("timestamp") else { return self.now };
        match value.as_f64().filter(|seconds| (0.0..=LAST_SECOND).contains(seconds)) {
            // Not negative, and far below the largest integer. The parts apart: multiplied whole it
            // would lose microseconds.
            Some(seconds) => {
                let micros = (seconds.fract() * 1e6).round() as u64;
                seconds.trunc() as u64 * 1_000_000 + micros
            }
            None => {
                self.reader.fault(path, "must be seconds since 1970, before the year 10000");
                0
            }
        }
    }

    fn author(&mut self, fields: &Fields<'_>) -> String {
        let author = self.reader.text(fields, "author");
        if author.is_empty() {
            let inner = fields.get("content").and_then(|(content, _)| content.get("role"));
            let user = inner.and_then(Value::as_str) == Some("user");
            return if user { "user".to_owned() } else { self.author.to_owned() };
        }
        if author.len() > MAX_ID_BYTES || author.chars().any(char::is_control) {
            let rule = "must be at most 128 bytes long and contain no control characters";
            self.reader.fault(fields.path("author"), rule);
        }
        author
    }

    /// An event's own id, unless an earlier event has it.
    fn id(&mut self, fields: &Fields<'_>) -> Option<EventId> {
        let text = self.reader.text(fields, "id");
        let id = match text.is_empty() {
            true => None,
            false => Some(parse(&mut self.reader, &fields.path("id"), text, EventId::parse)?),
        };
        if let Some(id) = id.filter(|id| self.seen.insert(id.clone())) {
            return Some(id);
        }
        let id = EventId::parse(self.calls.mint.next()).expect("a minted text is an id");
        self.seen.insert(id.clone());
        Some(id)
    }

    /// An event without an invocation belongs to that of the event before.
    fn invocation(&mut self, fields: &Fields<'_>) -> Option<InvocationId> {
        let text = self.reader.text(fields, "invocationId");
        if !text.is_empty() {
            let path = fields.path("invocationId");
            self.invocation = Some(parse(&mut self.reader, &path, text, InvocationId::parse)?);
        }
        let mint = &mut self.calls.mint;
        let made = || {
            InvocationId::parse(format!("e-{}", mint.next())).expect("a minted text makes an id")
        };
        Some(self.invocation.get_or_insert_with(made).clone())
    }

    fn long_running(
        &mut self,
        fields: &Fields<'_>,
        content: Option<&Content>,
    ) -> Option<BTreeSet<CallId>> {
        let said = self.reader.list(fields, "longRunningToolIds");
        let mut ids = BTreeSet::new();
        for (at, value) in said.iter().flat_map(|(list, _)| list.iter()).enumerate() {
            let path = format!("{}[{at}]", fields.path("longRunningToolIds"));
            match value {
                Value::String(id) => {
                    ids.extend(parse(&mut self.reader, &path, id.clone(), CallId::parse));
                }
                _ => self.reader.fault(path, "must be a text"),
            }
        }
        // On an event with calls it says which are long-running, maybe none; else it is not there.
        let calls = content.is_some_and(|content| content.calls().next().is_some());
        (calls || !ids.is_empty()).then_some(ids)
    }

    fn object(&mut self, fields: &Fields<'_>, name: &str) -> Object {
        let object = fields.get(name);
        let object = object.and_then(|(value, path)| self.reader.object(value, &path, MAX_DEPTH));
        object.unwrap_or_default()
    }

    fn actions(&mut self, fields: &Fields<'_>) -> (Actions, Option<Box<Imported>>) {
        let (mut actions, mut imported) = (Actions::default(), Imported::default());
        if let Some(said) = self.reader.fields(fields, "actions") {
            let delta = said.get("stateDelta");
            let delta = delta.and_then(|(value, path)| self.reader.state(value, &path));
            actions.state_delta = delta.unwrap_or_default();
            actions.skip_summarization = self.reader.flag(&said, "skipSummarization");
            actions.escalate = self.reader.flag(&said, "escalate");
            imported.transfer_to_agent = self.reader.text(&said, "transferToAgent");
            imported.artifact_delta = self.versions(&said);
            actions.requested_tool_confirmations = self.confirmations(&said);
        }
        let reader = &mut self.reader;
        if let Some(node) = reader.fields(fields, "nodeInfo") {
            imported.node_path = reader.text(&node, "path");
        }
        imported.branch = reader.text(fields, "branch");
        imported.isolation_scope = reader.text(fields, "isolationScope");
        imported.output =
            fields.get("output").and_then(|(v, path)| reader.json(v, &path, MAX_DEPTH));
        imported.turn_complete = reader.flag(fields, "turnComplete");
        imported.interrupted = reader.flag(fields, "interrupted");
        let says = imported != Imported::default();
        (actions, says.then(|| Box::new(imported)))
    }

    fn versions(&mut self, fields: &Fields<'_>) -> BTreeMap<String, i32> {
        let Some(files) = self.reader.fields(fields, "artifactDelta") else {
            return BTreeMap::new();
        };
        let path = fields.path("artifactDelta");
        let version = |(name, value): (&String, &Value)| {
            let version = value.as_i64().and_then(|version| i32::try_from(version).ok());
            if version.is_none() {
                self.reader.fault(&path, "must have a whole number for each file");
            }
            Some((name.clone(), version?))
        };
        files.iter().filter_map(version).collect()
    }
    /// What was asked about calls, by their ids; that nobody had said yes yet is not kept.
    fn confirmations(&mut self, fields: &Fields<'_>) -> BTreeMap<CallId, ToolConfirmation> {
        let name = "requestedToolConfirmations";
        let Some(asked) = self.reader.fields(fields, name) else { return BTreeMap::new() };
        let path = fields.path(name);
        let confirmation = |(id, value): (&String, &Value)| {
            let id = parse(&mut self.reader, &path, id.clone(), CallId::parse)?;
            let Value::Object(said) = value else {
                self.reader.fault(format!("{path}.{id}"), "must be an object");
                return None;
            };
            let said = Fields::new(said, format!("{path}.{id}"));
            let hint = self.reader.text(&said, "hint");
            let payload = said.get("payload");
            let payload = payload.and_then(|(v, path)| self.reader.json(v, &path, MAX_DEPTH));
            Some((id, ToolConfirmation { hint, payload }))
        };
        asked.iter().filter_map(confirmation).collect()
    }
}
