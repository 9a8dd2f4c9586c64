//! The entries that stand for what is in the logs: sessions by name, calls and invocations by id,
//! deadlines. They are written with the records and could be rebuilt from them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::session::Session;
use crate::session::approval::Standing;
use crate::session::call::{Call, End, Phase};
use crate::session::content::Usage;
use crate::session::id::{AppName, CallId, InvocationId, SessionKey, UserId};
use crate::session::record::{Body, Ending, Record};
use crate::session::refusal::Refusal;
use crate::session::state::{Invocation, Touched};
use crate::store::{self, Entry, EntryWrite, Kind, SharedWrite};

/// Entries that stand for sessions, by name.
pub const SESSION: Kind = "session";
/// Entries that stand for calls.
pub const CALL: Kind = "call";
/// Entries that stand for invocations.
pub const INVOCATION: Kind = "invocation";

/// Entries that stand for standing approvals.
pub const STANDING: Kind = "standing";

/// Separates the parts of a name: no id holds a control character.
const SEPARATOR: char = '\u{1f}';

/// Where an invocation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum State {
    /// It can move by itself.
    Running,
    /// Only an answer, an expiry or a cancel can move it.
    Paused,
    /// It did what it could.
    Completed,
    /// A model failed, a limit was passed, an agent is gone.
    Failed,
    /// Somebody cancelled it.
    Cancelled,
}

impl State {
    /// As it stands in entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Paused => "PAUSED",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
        }
    }
}

/// An invocation as callers see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InvocationView {
    /// Its id.
    pub id: InvocationId,
    /// Its session.
    pub session: SessionKey,
    /// Where it stands.
    pub state: State,
    /// The calls that wait for somebody, oldest first.
    pub held: Vec<Call>,
    /// When it began, in microseconds since 1970.
    pub create_time: u64,
    /// When its state changed last, in microseconds since 1970.
    pub update_time: u64,
    /// Position of the record that began it.
    pub began_at: u64,
    /// Position of its last pause, or of its end; 0 if it never came to a rest.
    pub rested_at: u64,
    /// What its model calls cost.
    pub usage: Usage,
    /// Of a failed one: UPPER_SNAKE.
    pub error_code: String,
    /// Of a failed one: for people.
    pub error_message: String,
}

/// What callers see of an open invocation.
pub fn view(session: &Session, open: &Invocation) -> InvocationView {
    let running = session.moves(&open.id);
    InvocationView {
        id: open.id.clone(),
        session: session.key.clone(),
        state: if running { State::Running } else { State::Paused },
        held: session.held_calls(&open.id).into_iter().cloned().collect(),
        create_time: open.create_time,
        update_time: open.update_time,
        began_at: open.began_at,
        rested_at: open.rested_at,
        usage: open.usage,
        error_code: String::new(),
        error_message: String::new(),
    }
}

fn ended_view(session: &Session, over: &Invocation) -> InvocationView {
    let (state, error_code, error_message) = match &over.ended {
        Some(Ending::Failed { code, message }) => (State::Failed, code.clone(), message.clone()),
        Some(Ending::Cancelled) => (State::Cancelled, String::new(), String::new()),
        _ => (State::Completed, String::new(), String::new()),
    };
    InvocationView { state, held: Vec::new(), error_code, error_message, ..view(session, over) }
}

/// The id of the entry that stands for a session.
pub fn session_id(key: &SessionKey) -> String {
    format!("{}{SEPARATOR}{}{SEPARATOR}{}", key.app, key.user, key.id)
}

fn tags(key: &SessionKey) -> [String; 3] {
    [key.app.to_string(), key.user.to_string(), key.id.to_string()]
}

/// Order by time: texts sort as the times do.
pub fn order(time: u64) -> String {
    format!("{time:020}")
}

/// The entry that stands for a new session.
pub fn session_entry(session: &Session) -> EntryWrite {
    EntryWrite::Create(Entry {
        kind: SESSION,
        id: session_id(&session.key),
        state: String::new(),
        due: None,
        order: order(session.create_time),
        // By the third name it is found by its id.
        tags: [session.key.app.to_string(), session.key.user.to_string(), String::new()],
        bytes: session.uid.as_str().as_bytes().to_vec(),
    })
}

fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("views have text keys only")
}

/// A view as it was written.
pub fn read<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let corrupt = |wrong: serde_json::Error| store::Error::Corrupt(wrong.to_string());
    serde_json::from_slice(bytes).map_err(|wrong| super::refuse_store(corrupt(wrong)))
}

fn invocation_entry(view: &InvocationView) -> EntryWrite {
    EntryWrite::Put(Entry {
        kind: INVOCATION,
        id: view.id.to_string(),
        state: view.state.as_str().to_owned(),
        due: None,
        order: order(view.create_time),
        tags: tags(&view.session),
        bytes: bytes(view),
    })
}

/// A standing approval as callers see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StandingView {
    /// Its session.
    pub session: SessionKey,
    /// What it is.
    pub standing: Standing,
    /// Somebody took it back.
    pub revoked: bool,
}

impl StandingView {
    /// The state of its entry.
    pub fn state(revoked: bool) -> &'static str {
        if revoked { "REVOKED" } else { "ACTIVE" }
    }
}

/// The entry that stands for a standing approval.
pub fn standing_entry(key: &SessionKey, standing: &Standing, revoked: bool) -> EntryWrite {
    let view = StandingView { session: key.clone(), standing: standing.clone(), revoked };
    EntryWrite::Put(Entry {
        kind: STANDING,
        id: standing.id.clone(),
        state: StandingView::state(revoked).to_owned(),
        due: None,
        order: order(standing.time),
        tags: tags(key),
        bytes: bytes(&view),
    })
}

fn call_entry(call: &Call) -> EntryWrite {
    let state = match &call.phase {
        Phase::Requested | Phase::Waiting | Phase::Gated | Phase::Running => "RUNNING",
        Phase::Held(_) => "HELD",
        Phase::Closed(closing) => match closing.end {
            End::Done => "DONE",
            End::Denied => "DENIED",
            End::Expired => "EXPIRED",
            End::Cancelled => "CANCELLED",
        },
    };
    EntryWrite::Put(Entry {
        kind: CALL,
        id: call.spec.id.to_string(),
        state: state.to_owned(),
        due: call.due(),
        // It is found by its id and its deadline only: each index more is a row to write.
        order: String::new(),
        tags: Default::default(),
        bytes: bytes(call),
    })
}

/// The changes of entries that go with records.
pub fn entries(session: &Session, touched: &Touched) -> Vec<EntryWrite> {
    let mut writes = Vec::new();
    let find = |id: &CallId| {
        let ended = || touched.ended.iter().flat_map(|(_, calls)| calls);
        session.calls.get(id).or_else(|| ended().find(|call| &call.spec.id == id))
    };
    writes.extend(touched.calls.iter().filter_map(find).map(call_entry));
    let open = touched.invocations.iter().filter_map(|id| session.invocations.get(id));
    writes.extend(open.map(|open| invocation_entry(&view(session, open))));
    let ended = touched.ended.iter().map(|(over, _)| ended_view(session, over));
    writes.extend(ended.map(|view| invocation_entry(&view)));
    let standing = touched.standing.iter();
    writes.extend(standing.map(|(one, revoked)| standing_entry(&session.key, one, *revoked)));
    writes
}

/// The scope of an app's state.
pub fn app_scope(app: &AppName) -> String {
    format!("app{SEPARATOR}{app}")
}

/// The scope of a user's state.
pub fn user_scope(app: &AppName, user: &UserId) -> String {
    format!("user{SEPARATOR}{app}{SEPARATOR}{user}")
}

/// The changes of state that records make for other sessions too.
pub fn shared<'a>(
    key: &SessionKey,
    records: impl IntoIterator<Item = &'a Record>,
) -> Vec<SharedWrite> {
    // What was imported is history: it changes nothing that others see.
    let records = records.into_iter().filter(|r| !matches!(r.body, Body::Imported { .. }));
    let events = records.filter_map(|record| record.body.event());
    events.flat_map(|event| shared_delta(key, &event.actions.state_delta)).collect()
}

/// The part of a change of state that other sessions share.
pub fn shared_delta(key: &SessionKey, delta: &crate::session::content::Object) -> Vec<SharedWrite> {
    let write = |(name, value): (&String, &Value)| {
        let scope = if name.starts_with("app:") {
            app_scope(&key.app)
        } else if name.starts_with("user:") {
            user_scope(&key.app, &key.user)
        } else {
            return None;
        };
        let value = (!value.is_null()).then(|| bytes(value));
        Some(SharedWrite { scope, key: name.clone(), value })
    };
    delta.iter().filter_map(write).collect()
}
