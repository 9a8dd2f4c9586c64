//! What clients know for sure, and whether the logs bear it out. The checker knows no server and no
//! time: it holds the facts of all clients against what is stored at the end, and tells every
//! contradiction.
//!
//! Each message and each answer carries a mark of its own in its text, so that its event is found
//! again whether it was acknowledged or not.

use std::collections::{BTreeMap, BTreeSet};

use countersign::proto::v1::end_mark::State as End;
use countersign::proto::v1::invocation::State;
use countersign::proto::v1::part::Data;
use countersign::proto::v1::submit_function_response_response::Outcome;
use countersign::proto::v1::{self as pb};
use countersign::session::Session;
use countersign::session::record::{Body, Record};
use countersign::session::state::Touched;

use crate::support::json;

mod falsified;

/// What a client has done, or has been told.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// It sent a message with this mark; whether that arrived is not known.
    Said { mark: String },
    /// The message is durable.
    Begun { mark: String, session: String, invocation: String },
    /// It sent an answer with this mark; whether that arrived is not known.
    Tried { call: String, mark: String },
    /// The answer is durable.
    Answered(Answered),
    /// The answer was refused.
    Refused { call: String, mark: String, reason: String },
    /// The invocation is to end CANCELLED.
    Cancelled { invocation: String },
    /// The invocation was over before it could be cancelled.
    TooLate { invocation: String },
    /// What one stream showed until it ended or was cut.
    Saw(Saw),
    /// All events of a session, as they were listed.
    Listed { session: String, events: Vec<pb::Event> },
    /// The states of all invocations, as they were watched.
    Watched(BTreeMap<String, State>),
}

/// An answer that was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Answered {
    pub call: String,
    pub mark: String,
    /// The `request_id` that it was sent with; empty if without.
    pub request: String,
    /// None if a stream said so, which tells neither this nor the sequence.
    pub outcome: Option<(Outcome, i64)>,
}

/// What one stream showed.
#[derive(Debug, Clone, PartialEq)]
pub struct Saw {
    pub session: String,
    /// Only this one was followed.
    pub invocation: Option<String>,
    /// It was followed from behind this sequence on.
    pub after: i64,
    /// The invocation's first event was that of the request itself, which is not told back.
    pub own: bool,
    pub events: Vec<pb::Event>,
    /// None if the stream was cut.
    pub end: Option<pb::EndMark>,
}

/// What is stored at the end.
#[derive(Debug, Clone, Default)]
pub struct Log {
    /// Events by session, as ListEvents tells them.
    pub events: BTreeMap<String, Vec<pb::Event>>,
    /// As GetInvocation tells them.
    pub invocations: BTreeMap<String, pb::Invocation>,
    /// Records by session, as they are in the file.
    pub records: BTreeMap<String, Vec<Record>>,
    /// The idempotency keys of bodies that began, by their tool.
    pub bodies: Vec<(String, String)>,
}

/// Every contradiction, in words.
pub fn check(facts: &[Fact], log: &Log) -> Vec<String> {
    let mut checker = Checker { log, faults: Vec::new(), marks: BTreeMap::new() };
    checker.logs();
    checker.records();
    checker.bodies();
    checker.invocations();
    checker.marks(facts);
    facts.iter().for_each(|fact| checker.fact(fact));
    checker.faults
}

struct Checker<'a> {
    log: &'a Log,
    faults: Vec<String>,
    /// Where each mark stands: session and event.
    marks: BTreeMap<String, Vec<(&'a str, &'a pb::Event)>>,
}

fn parts(event: &pb::Event) -> impl Iterator<Item = &Data> {
    let contents = event.content.iter().flat_map(|content| &content.parts);
    contents.filter_map(|part| part.data.as_ref())
}

/// The mark that an event carries, if it is a message or an answer of a client.
fn mark_of(event: &pb::Event) -> Option<String> {
    parts(event).find_map(|data| match data {
        Data::Text(text) if event.author == "user" => {
            text.split_once(' ').map(|(_, mark)| mark.to_owned())
        }
        Data::FunctionResponse(told) => {
            let response = told.response.as_ref().map(json)?;
            response.get("mark")?.as_str().map(ToOwned::to_owned)
        }
        _ => None,
    })
}

/// An event as faults name it.
fn name(session: &str, event: &pb::Event) -> String {
    format!("event {} of session {session}", event.sequence)
}

fn over(state: State) -> bool {
    matches!(state, State::Completed | State::Failed | State::Cancelled)
}

impl<'a> Checker<'a> {
    fn fault(&mut self, what: impl Into<String>) {
        self.faults.push(what.into());
    }

    /// Events are numbered 1, 2, 3 ..., and no id is there twice.
    fn logs(&mut self) {
        let log = self.log;
        let mut ids = BTreeSet::new();
        for (session, events) in &log.events {
            for (event, sequence) in events.iter().zip(1..) {
                if event.sequence != sequence {
                    self.fault(format!("{} stands at {sequence}", name(session, event)));
                }
                if !ids.insert(&event.id) {
                    self.fault(format!("{} has another one's id", name(session, event)));
                }
                if !log.invocations.contains_key(&event.invocation_id) {
                    self.fault(format!("{} is of no invocation", name(session, event)));
                }
                if let Some(mark) = mark_of(event) {
                    self.marks.entry(mark).or_default().push((session, event));
                }
            }
        }
    }

    /// No call is closed twice from outside, no body is started twice under one number, and whoever
    /// could move has moved.
    fn records(&mut self) {
        let log = self.log;
        for (session, records) in &log.records {
            let (mut closed, mut started) = (BTreeSet::new(), BTreeSet::new());
            let mut fold: Option<Session> = None;
            for record in records {
                match &record.body {
                    Body::Answered { answers, .. } => {
                        for answer in answers.iter().filter(|answer| answer.end.is_some()) {
                            if !closed.insert(&answer.call) {
                                let call = &answer.call;
                                self.fault(format!("call {call} was closed twice"));
                            }
                        }
                    }
                    Body::Started { call, execution, attempt } => {
                        let new = started.insert((call, execution, attempt));
                        if !new {
                            self.fault(format!("{call}/{execution} was started twice at once"));
                        }
                    }
                    _ => {}
                }
                match &mut fold {
                    None => fold = Session::begin(record),
                    Some(fold) => fold.apply(record, &mut Touched::default()),
                }
            }
            if fold.is_none_or(|fold| fold.claim.is_some() || fold.can_move()) {
                self.fault(format!("session {session} could move and did not"));
            }
            let events = records.iter().filter(|record| record.body.event().is_some()).count();
            if log.events.get(session).is_none_or(|told| told.len() != events) {
                self.fault(format!("session {session} does not tell the events of its records"));
            }
        }
        if log.records.len() != log.events.len() {
            self.fault("sessions and logs are not as many");
        }
    }

    /// What must not be done twice was begun once at most; the key stays the same.
    fn bodies(&mut self) {
        let mut begun: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for (tool, key) in &self.log.bodies {
            *begun.entry((tool, key)).or_default() += 1;
        }
        for ((tool, key), times) in begun {
            let most = if tool == "pay" { 1 } else { 3 };
            if times > most {
                self.fault(format!("{tool} with key {key} was begun {times} times"));
            }
        }
    }

    /// Each invocation is over or waits for somebody, and each of its calls has its answer.
    fn invocations(&mut self) {
        let log = self.log;
        for (id, invocation) in &log.invocations {
            let state = invocation.state();
            let waits = state == State::Paused && !invocation.held_calls.is_empty();
            if !waits && !matches!(state, State::Completed | State::Cancelled) {
                self.fault(format!("invocation {id} is {state:?}"));
            }
            let events: Vec<&pb::Event> = self.events_of(&invocation.session_id, Some(id));
            let held: BTreeSet<&str> = held(&invocation.held_calls).collect();
            for event in &events {
                for data in parts(event) {
                    let Data::FunctionCall(call) = data else { continue };
                    let told = events.iter().flat_map(|event| parts(event)).filter(
                        |data| matches!(data, Data::FunctionResponse(told) if told.id == call.id),
                    );
                    // A placeholder, and the answer.
                    let most = 1 + usize::from(event.long_running_tool_ids.contains(&call.id));
                    let (told, least) = (told.count(), usize::from(!held.contains(&*call.id)));
                    if !(least..=most).contains(&told) {
                        self.fault(format!("call {} has {told} responses", call.id));
                    }
                }
            }
        }
    }

    fn events_of(&self, session: &str, invocation: Option<&str>) -> Vec<&'a pb::Event> {
        let log = self.log;
        let events = log.events.get(session).into_iter().flatten();
        let is = |event: &&pb::Event| invocation.is_none_or(|id| id == event.invocation_id);
        events.filter(is).collect()
    }

    /// Whatever carries a mark was sent by somebody, and is there once at most.
    fn marks(&mut self, facts: &[Fact]) {
        let sent: BTreeSet<&str> = facts
            .iter()
            .filter_map(|fact| match fact {
                Fact::Said { mark } | Fact::Tried { mark, .. } => Some(mark.as_str()),
                _ => None,
            })
            .collect();
        for (mark, places) in std::mem::take(&mut self.marks) {
            if places.len() != 1 {
                self.fault(format!("{mark} stands in {} events", places.len()));
            }
            if !sent.contains(mark.as_str()) {
                self.fault(format!("{mark} was sent by nobody"));
            }
            self.marks.insert(mark, places);
        }
        let mut begun: BTreeMap<&str, &str> = BTreeMap::new();
        let mut outcomes: BTreeMap<&str, (Outcome, i64)> = BTreeMap::new();
        let mut applied: BTreeMap<&str, &Answered> = BTreeMap::new();
        for fact in facts {
            match fact {
                Fact::Begun { mark, invocation, .. } => {
                    let before = begun.insert(mark, invocation);
                    if before.is_some_and(|before| before != invocation) {
                        self.fault(format!("{mark} began two invocations"));
                    }
                }
                Fact::Answered(answered) => {
                    let Some(outcome) = answered.outcome else { continue };
                    let request = answered.request.as_str();
                    if !request.is_empty()
                        && outcomes.insert(request, outcome).is_some_and(|was| was != outcome)
                    {
                        self.fault(format!("request {request} has two outcomes"));
                    }
                    if outcome.0 != Outcome::Duplicate
                        && let Some(other) = applied.insert(&answered.call, answered)
                        && (request.is_empty() || other.request != request)
                    {
                        self.fault(format!("call {} was answered twice", answered.call));
                    }
                }
                _ => {}
            }
        }
    }

    /// The only event with a mark.
    fn marked(&self, mark: &str) -> Option<(&'a str, &'a pb::Event)> {
        self.marks.get(mark).and_then(|places| places.first()).copied()
    }

    fn fact(&mut self, fact: &Fact) {
        match fact {
            Fact::Said { .. } | Fact::Tried { .. } => {}
            Fact::Begun { mark, session, invocation } => {
                let stands = self.marked(mark);
                let right = |(at, event): (&str, &pb::Event)| {
                    at == session && event.invocation_id == *invocation
                };
                if !stands.is_some_and(right) {
                    self.fault(format!("the message {mark} of {invocation} is lost"));
                }
            }
            Fact::Answered(answered) => self.answered(answered),
            Fact::Refused { call, mark, reason } => {
                if self.marked(mark).is_some() {
                    self.fault(format!("{mark} was refused ({reason}) and stands in the log"));
                }
                let closed = |answer: &&countersign::session::record::Answer| {
                    answer.call.as_str() == call && answer.end.is_some()
                };
                let by_somebody = self.log.records.values().flatten().any(|record| {
                    matches!(&record.body, Body::Answered { answers, .. }
                        if answers.iter().any(|answer| closed(&answer)))
                });
                let expected = ["CALL_ALREADY_ANSWERED", "CALL_CANCELLED"];
                if !expected.contains(&reason.as_str()) || !by_somebody {
                    self.fault(format!("{mark} was refused without cause: {reason}"));
                }
            }
            Fact::Cancelled { invocation } => {
                if self.state(invocation) != Some(State::Cancelled) {
                    self.fault(format!("the cancelling of {invocation} is lost"));
                }
            }
            Fact::TooLate { invocation } => {
                if !self.state(invocation).is_some_and(over) {
                    self.fault(format!("{invocation} was said to be over"));
                }
            }
            Fact::Saw(saw) => self.saw(saw),
            Fact::Listed { session, events } => {
                let stored = self.log.events.get(session).map_or(&[][..], Vec::as_slice);
                if !stored.starts_with(events) {
                    self.fault(format!("what was listed of {session} is not its log"));
                }
            }
            Fact::Watched(states) => {
                let stored = &self.log.invocations;
                if states.len() != stored.len() {
                    self.fault("not all invocations were watched");
                }
                for (id, state) in states {
                    if self.state(id) != Some(*state) {
                        self.fault(format!("{id} was watched to be {state:?}"));
                    }
                }
            }
        }
    }

    fn state(&self, invocation: &str) -> Option<State> {
        self.log.invocations.get(invocation).map(|invocation| invocation.state())
    }

    fn answered(&mut self, answered: &Answered) {
        let Answered { call, mark, outcome, .. } = answered;
        let Some((_, event)) = self.marked(mark) else {
            return self.fault(format!("the answer {mark} to {call} is lost"));
        };
        let answers =
            parts(event).any(|data| matches!(data, Data::FunctionResponse(a) if a.id == *call));
        if !answers {
            self.fault(format!("the answer {mark} stands at another call than {call}"));
        }
        let right = match outcome {
            None => true,
            Some((Outcome::Applied | Outcome::Duplicate, told)) => event.sequence == *told,
            Some((Outcome::Queued, told)) => *told == 0,
            Some(_) => false,
        };
        if !right {
            self.fault(format!("the answer {mark} was told to be {outcome:?}"));
        }
    }

    /// A stream shows what the log has after its cursor, without a gap, as far as it came.
    fn saw(&mut self, saw: &Saw) {
        let Saw { session, invocation, after, own, events, end } = saw;
        let stored = self.events_of(session, invocation.as_deref());
        let stored: Vec<_> = stored
            .into_iter()
            .skip(usize::from(*own))
            .filter(|event| event.sequence > *after)
            .collect();
        let shown = invocation.as_deref().unwrap_or(session);
        let fits = events.len() <= stored.len();
        if !fits || events.iter().zip(&stored).any(|(one, other)| one != *other) {
            return self.fault(format!("a stream of {shown} after {after} is not its log"));
        }
        let Some(end) = end else { return };
        let id = invocation.as_deref().unwrap_or_default();
        let state = self.state(id);
        let said = match end.state() {
            End::Completed => Some(State::Completed),
            End::Cancelled => Some(State::Cancelled),
            End::Failed => Some(State::Failed),
            End::Paused if !end.held_calls.is_empty() => None,
            other => return self.fault(format!("a stream of {id} ended with {other:?}")),
        };
        if said.is_some() && said != state {
            self.fault(format!("{id} was said to be {said:?} and is {state:?}"));
        }
        if said.is_some() && events.len() != stored.len() {
            self.fault(format!("a stream of {id} ended before its end"));
        }
        let pauses = |record: &Record| {
            matches!(&record.body, Body::Paused { invocation, held } if invocation.as_str() == id
                && self::held(&end.held_calls).all(|call| held.iter().any(|h| h.as_str() == call)))
        };
        let records = self.log.records.get(session);
        if said.is_none() && !records.is_some_and(|records| records.iter().any(pauses)) {
            self.fault(format!("{id} never waited for what it was said to wait for"));
        }
    }
}

/// The ids of calls.
fn held(calls: &[pb::Call]) -> impl Iterator<Item = &str> {
    calls.iter().filter_map(|call| call.function_call.as_ref()).map(|call| call.id.as_str())
}
