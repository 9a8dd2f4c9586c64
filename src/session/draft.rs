//! A draft: the records that a decision wants appended, folded as they are added, so that what is
//! decided next in the same batch sees what was decided before. Time, ids and names are passed in.

use std::collections::BTreeMap;

use super::content::{Actions, Content, Event, Object, Part, Role};
use super::id::{EventId, FrameId, InvocationId, Principal};
use super::record::{Body, Record};
use super::state::{Session, Touched};

/// Makes texts that were never made before: UUIDs.
pub trait Mint {
    /// The next one.
    fn next(&mut self) -> String;
}

impl<F: FnMut() -> String> Mint for F {
    fn next(&mut self) -> String {
        self()
    }
}

/// Records in the making.
pub struct Draft<'a> {
    /// The session with the records folded in.
    pub session: Session,
    /// The records so far.
    pub records: Vec<Record>,
    /// What they changed.
    pub touched: Touched,
    /// The store's time, in microseconds since 1970.
    pub now: u64,
    /// Who decides.
    pub by: Principal,
    mint: &'a mut (dyn Mint + Send),
}

impl<'a> Draft<'a> {
    /// A draft on top of a session.
    pub fn new(session: Session, now: u64, by: Principal, mint: &'a mut (dyn Mint + Send)) -> Self {
        let (records, touched) = (Vec::new(), Touched::default());
        Self { session, records, touched, now, by, mint }
    }

    /// A draft whose first record begins a session.
    pub fn begin(
        body: Body,
        now: u64,
        by: Principal,
        mint: &'a mut (dyn Mint + Send),
    ) -> Option<Self> {
        let record = Record { time: now, by: by.clone(), body };
        let mut draft = Self::new(Session::begin(&record)?, now, by, mint);
        draft.records.push(record);
        Some(draft)
    }

    /// Adds a record by whoever decides.
    pub fn push(&mut self, body: Body) {
        self.push_by(self.by.clone(), body);
    }

    /// Adds a record by somebody else.
    pub fn push_by(&mut self, by: Principal, body: Body) {
        let record = Record { time: self.now, by, body };
        self.session.apply(&record, &mut self.touched);
        self.records.push(record);
    }

    /// A new id.
    pub fn mint(&mut self) -> String {
        self.mint.next()
    }

    /// The session's next event, empty.
    pub fn event(&mut self, invocation: &InvocationId, author: &str) -> Event {
        let metadata = self.session.invocations.get(invocation);
        let custom_metadata =
            metadata.map(|open| open.config.custom_metadata.clone()).unwrap_or_default();
        Event {
            id: EventId::parse(self.mint()).expect("a minted text is an id"),
            sequence: self.session.last_sequence + 1,
            invocation_id: invocation.clone(),
            author: author.to_owned(),
            time: self.now,
            frame: None,
            content: None,
            long_running_tool_ids: None,
            actions: Actions::default(),
            finish_reason: String::new(),
            usage: None,
            error_code: String::new(),
            error_message: String::new(),
            custom_metadata,
            calls: BTreeMap::new(),
            imported: None,
        }
    }

    /// Adds an event of another server's history. It gets the next sequence, and changes nothing.
    pub fn import(&mut self, mut event: Event) {
        event.sequence = self.session.last_sequence + 1;
        self.push(Body::Imported { event });
    }

    /// The session's next event, by the agent of a frame, with these parts.
    pub fn frame_event(
        &mut self,
        invocation: &InvocationId,
        frame: &FrameId,
        role: Role,
        parts: Vec<Part>,
        state_delta: Object,
    ) -> Event {
        let open = self.session.invocations.get(invocation);
        let agent = open.and_then(|open| open.frames.get(frame)).map(|f| f.agent.to_string());
        let mut event = self.event(invocation, &agent.unwrap_or_default());
        event.frame = Some(frame.clone());
        event.content = (!parts.is_empty()).then_some(Content { role, parts });
        event.actions.state_delta = state_delta;
        event
    }
}
