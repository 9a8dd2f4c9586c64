//! ImportSession: a history of ADK's events, as messages or as text, on its way in.

use serde_json::Value;

use super::json::object_from_pb;
use super::request::{object, read_mark};
use super::{Faults, Refusal};
use crate::limits::Limits;
use crate::proto::v1 as pb;
use crate::runner::NewSession;
use crate::session::adk::{self, Defaults, MAX_TEXT_DEPTH, Transcript};
use crate::session::draft::Mint;
use crate::session::id::{AppName, RequestId, SessionId, UserId};
use crate::session::json;
use crate::session::refusal::Reason;

/// ImportSession, with its mark. `now` is the time of events that do not say theirs;
/// `mint` makes ids of those that have none.
pub(crate) fn import_session(
    request: pb::ImportSessionRequest,
    limits: &Limits,
    now: u64,
    mint: &mut (dyn Mint + Send),
) -> Result<(NewSession, Transcript, Option<RequestId>), Refusal> {
    let pb::ImportSessionRequest {
        app_name,
        user_id,
        session_id,
        events,
        events_json,
        state,
        request_id,
    } = request;
    let mut faults = Faults::new();
    let author = app_name.clone();
    let app = faults.id("app_name", app_name, AppName::parse);
    let user = faults.id("user_id", user_id, UserId::parse);
    let id = faults.optional_id("session_id", session_id.trim().to_owned(), SessionId::parse);
    let state = object("state", state, &mut faults);
    let mark = read_mark(&request_id, &mut faults);
    let field = if events_json.is_empty() { "events" } else { "events_json" };
    let value = match (events.is_empty(), events_json.is_empty()) {
        (false, false) => {
            faults.add(field, "must be empty if `events` is set");
            None
        }
        (true, false) => {
            let read = json::parse(&events_json, MAX_TEXT_DEPTH);
            read.map_err(|wrong| faults.add(field, wrong.to_string())).ok()
        }
        (_, true) => {
            check_count(events.len(), limits)?;
            let read = |(at, event)| {
                object_from_pb(&format!("{field}[{at}]"), event, &mut faults).map(Value::Object)
            };
            // All of them first: every fault is told.
            let events: Vec<Option<Value>> = events.into_iter().enumerate().map(read).collect();
            events.into_iter().collect::<Option<Vec<_>>>().map(Value::Array)
        }
    };
    let history = match value {
        Some(value) => {
            check_count(adk::count(&value).unwrap_or(0), limits)?;
            read(&value, field, Defaults { now, author: &author, mint }, &mut faults)
        }
        None => None,
    };
    let new = (|| Some((NewSession { app: app?, user: user?, id, state: state? }, history?)))();
    faults.finish(new).map(|(new, history)| (new, history, mark))
}

fn read(
    value: &Value,
    field: &str,
    defaults: Defaults<'_>,
    faults: &mut Faults,
) -> Option<Transcript> {
    match adk::read(value, field, defaults) {
        Ok(history) if history.events.is_empty() => {
            faults.add(field, "must hold at least one event");
            None
        }
        Ok(history) => Some(history),
        Err(wrong) => {
            wrong.into_iter().for_each(|fault| faults.add(fault.field, fault.rule));
            None
        }
    }
}

/// Small events grow when they are stored: how many come at once is bounded too.
fn check_count(events: usize, limits: &Limits) -> Result<(), Refusal> {
    let most = limits.import_events;
    if events <= most {
        return Ok(());
    }
    let text = format!("a history may have {most} events at most");
    Err(Refusal::new(Reason::LimitExceeded, text)
        .with("limit", "import_events")
        .with("value", most)
        .with("actual", events))
}
