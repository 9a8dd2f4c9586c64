//! The core over records: given a session, when something arrives, then these records. No store, no
//! task, no clock; the code that decides is the server's own, and replies are made by hand.

use std::collections::BTreeMap;

use countersign::runner::prompt;
use countersign::runner::step::{BodyKey, Decision, Done, Gave, Hands, ModelKey, Work};
use countersign::session::approval::{CONFIRMATION, Raised};
use countersign::session::call::{Answers, Behaviour, Call, Effect, Phase, Spec};
use countersign::session::content::{Content, Data, FunctionCall, Object, Part};
use countersign::session::decide::{Answered, Back, Incoming, Incomings, Reply, Start, find};
use countersign::session::draft::Draft;
use countersign::session::id::*;
use countersign::session::record::{Body, Outcome, Record, RunConfig};
use countersign::session::state::Touched;
use countersign::session::{Refusal, Session};
use serde_json::{Value, json};

mod asked;
mod gates;
pub mod ledger;
mod random;
mod story;
mod table;
pub mod tree;

pub fn id<T>(parsed: Result<T, Error>) -> T {
    parsed.unwrap()
}

pub fn by(name: &str) -> Principal {
    id(Principal::parse(name))
}

pub fn object(value: Value) -> Object {
    value.as_object().unwrap().clone()
}

pub fn call_id(name: &str) -> CallId {
    id(CallId::parse(format!("adk-{name}")))
}

pub fn agent(name: &str) -> AgentName {
    id(AgentName::parse(name))
}

pub fn root() -> FrameId {
    FrameId::root(&agent("root"))
}

pub fn invocation(number: u32) -> InvocationId {
    id(InvocationId::parse(format!("e-{number}")))
}

/// What a body gave, with a change of state.
pub fn back(outcome: Outcome, state_delta: Object) -> Back {
    Back { state_delta, ..Back::of(outcome) }
}

/// A call that a model makes; its id is made of the name.
pub fn spec(name: &str, behaviour: Behaviour) -> Spec {
    Spec {
        id: call_id(name),
        model_id: None,
        name: name.to_owned(),
        args: Object::new(),
        args_digest: format!("sha256:{name}"),
        behaviour,
        gate: None,
        failed: None,
    }
}

pub fn long_running() -> Behaviour {
    Behaviour { long_running: true, effect: Effect::Read, ..Behaviour::default() }
}

pub fn ordinary(effect: Effect) -> Behaviour {
    Behaviour { effect, ..Behaviour::default() }
}

pub fn says(text: &str) -> Reply {
    Reply {
        parts: vec![Part::text(text)],
        calls: Vec::new(),
        facts: Vec::new(),
        finish_reason: "STOP".to_owned(),
        usage: None,
        event_id: None,
    }
}

pub fn calls(specs: Vec<Spec>) -> Reply {
    let part = |spec: &Spec| {
        let (id, name) = (spec.id.clone(), spec.name.clone());
        Part::new(Data::FunctionCall(FunctionCall { id, name, args: Object::new() }))
    };
    Reply { parts: specs.iter().map(part).collect(), calls: specs, ..says("") }
}

/// An answer to a call, as the tool declares.
pub fn answers(call: &CallId, name: &str, response: Option<Value>) -> Incomings {
    Incomings {
        answers: vec![Incoming {
            decision: None,
            call: call.clone(),
            name: name.to_owned(),
            response: response.map(object),
            will_continue: None,
            field: "function_response".to_owned(),
        }],
        invocation: None,
        expected_args_digest: None,
        skip_summarization: false,
        comment: String::new(),
        state_delta: Object::new(),
    }
}

pub fn value(value: Value) -> Gave {
    Gave::Outcome(Outcome::Value(object(value)))
}

/// A session, its log, and the driver that has it.
pub struct Bench {
    pub log: Vec<Record>,
    pub session: Session,
    pub hands: Hands,
    pub now: u64,
    /// Calls of invocations that have ended.
    pub past: Vec<Call>,
    /// How often bodies were started here, by call.
    pub ran: BTreeMap<CallId, u32>,
    /// The calls whose bodies were started here last, as they were then.
    pub begun: Vec<Call>,
    minted: u32,
    owners: u32,
}

impl Bench {
    /// A session without an invocation.
    pub fn new() -> Self {
        let key = SessionKey {
            app: id(AppName::parse("root")),
            user: id(UserId::parse("ann")),
            id: id(SessionId::parse("s")),
        };
        let uid = id(SessionUid::parse("uid"));
        let body = Body::Created { uid, key, state: Object::new() };
        let record = Record { time: 1_000, by: by("user:ann"), body };
        let session = Session::begin(&record).unwrap();
        Self {
            log: vec![record],
            session,
            hands: Hands::new(owner(0), 0),
            now: 1_000,
            past: Vec::new(),
            ran: BTreeMap::new(),
            begun: Vec::new(),
            minted: 0,
            owners: 0,
        }
    }

    /// A session whose root agent was told "go" and has been asked.
    pub fn started() -> Self {
        let mut bench = Self::new();
        bench.say(1).unwrap();
        bench
    }

    /// A session whose root agent made these calls.
    pub fn called(specs: Vec<Spec>) -> Self {
        let mut bench = Self::started();
        bench.reply(calls(specs));
        bench
    }

    /// A message begins an invocation of this number.
    pub fn say(&mut self, number: u32) -> Result<(), Refusal> {
        self.say_with(number, 500, Object::new())
    }

    pub fn say_with(
        &mut self,
        number: u32,
        max_llm_calls: u32,
        state_delta: Object,
    ) -> Result<(), Refusal> {
        let custom_metadata = Object::new();
        let config = RunConfig { streaming: false, max_llm_calls, custom_metadata };
        let (invocation, agent) = (invocation(number), agent("root"));
        let message = Content::user("go");
        let start = Start { invocation, agent, config, message, state_delta };
        self.fact("user:ann", |draft, _| draft.start(start))
    }

    /// A fact, as anyone appends it: what it sets going is taken, and driven as far as it goes.
    pub fn fact<T>(
        &mut self,
        who: &str,
        decide: impl FnOnce(&mut Draft<'_>, &[Call]) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let minted = &mut self.minted;
        let mut mint = || next_id(minted);
        let mut draft = Draft::new(self.session.clone(), self.now, by(who), &mut mint);
        let decided = decide(&mut draft, &self.past);
        if decided.is_err() || draft.records.is_empty() {
            assert!(draft.records.is_empty(), "a refusal changed something");
            return decided;
        }
        let claimed = draft.claim_if_free(&self.hands.owner);
        if claimed {
            draft.settle();
        }
        let records = draft.records;
        self.append(records);
        if claimed {
            self.hands = Hands::new(self.hands.owner.clone(), self.session.epoch);
        }
        self.drive();
        decided
    }

    pub fn answer(&mut self, who: &str, with: Incomings) -> Result<Answered, Refusal> {
        self.fact(who, |draft, past| draft.answer(past, &with, &|_, _| Ok(())))
    }

    /// A move made by hand, and nothing that follows from it.
    pub fn by_hand<T>(&mut self, make: impl FnOnce(&mut Draft<'_>) -> T) -> T {
        let minted = &mut self.minted;
        let mut mint = || next_id(minted);
        let who = by(&format!("server:{}", self.hands.owner));
        let mut draft = Draft::new(self.session.clone(), self.now, who, &mut mint);
        let made = make(&mut draft);
        let records = draft.records;
        self.append(records);
        made
    }

    /// The driver looks at the session until nothing follows.
    pub fn drive(&mut self) {
        loop {
            let minted = &mut self.minted;
            let mut mint = || next_id(minted);
            let decision = self.hands.decide(&self.session, self.now, &mut mint, true);
            let records = match decision {
                Decision::Nothing => Vec::new(),
                Decision::Append(draft) => draft.records,
                Decision::HandIn { draft, claimed } => {
                    assert!(!claimed, "a fact left a session without an owner");
                    draft.records
                }
            };
            let over = records.is_empty();
            self.append(records);
            self.hands.settled(true);
            if over {
                break;
            }
        }
        let Work { bodies, models: _, abandoned: _ } = self.hands.perform(&self.session);
        for call in &bodies {
            *self.ran.entry(call.spec.id.clone()).or_default() += 1;
        }
        self.begun = bodies;
    }

    pub fn append(&mut self, records: Vec<Record>) {
        for record in records {
            let mut touched = Touched::default();
            self.session.apply(&record, &mut touched);
            self.past.extend(touched.ended.into_iter().flat_map(|(_, calls)| calls));
            self.log.push(record);
        }
    }

    /// The model of the root's frame replies.
    pub fn reply(&mut self, reply: Reply) {
        let frame = root();
        self.reply_in(&frame, Ok(reply));
    }

    /// The model of a frame replies, or fails.
    pub fn reply_in(&mut self, frame: &FrameId, reply: Result<Reply, (String, String)>) {
        let asked = self.hands.models.iter().find(|((_, f), _)| f == frame);
        let (key, seen) = asked.map(|(key, seen)| (key.clone(), *seen)).expect("it was asked");
        self.hands.back(Done::Model { key, seen, reply });
        self.drive();
    }

    /// A body comes back.
    pub fn back(&mut self, name: &str, gave: Gave) {
        self.back_with(name, gave, Object::new(), false);
    }

    /// A body comes back with a question of its own.
    pub fn raises(&mut self, name: &str, interim: Value, raised: Raised) {
        self.back_raised(name, value(interim), Some(raised));
    }

    pub fn back_raised(&mut self, name: &str, gave: Gave, raised: Option<Raised>) {
        let key = self.key_of(name);
        let (state_delta, skip_summarization) = (Object::new(), false);
        self.hands.back(Done::Body { key, gave, state_delta, skip_summarization, raised });
        self.drive();
    }

    /// The body of a call that is at work.
    fn key_of(&self, name: &str) -> BodyKey {
        let at_work = self.hands.bodies.iter().find(|(id, _, _)| *id == call_id(name));
        at_work.cloned().unwrap_or_else(|| panic!("{name} is at work: {self:?}"))
    }

    /// The newest question about a call.
    pub fn question(&self, name: &str) -> CallId {
        let gated = self.call(name).gated.as_ref().expect("it is gated");
        gated.question.clone().expect("somebody was asked")
    }

    /// Somebody says yes or no to the newest question about a call, in ADK's words.
    pub fn confirm(&mut self, name: &str, confirmed: bool) -> Result<Answered, Refusal> {
        let said = json!({"confirmed": confirmed});
        let with = answers(&self.question(name), CONFIRMATION, Some(said));
        self.answer("user:ann", with)
    }

    pub fn back_with(&mut self, name: &str, gave: Gave, state_delta: Object, skip: bool) {
        let key = self.key_of(name);
        let (skip_summarization, raised) = (skip, None);
        self.hands.back(Done::Body { key, gave, state_delta, skip_summarization, raised });
        self.drive();
    }

    /// The body of a call turns out to be an agent: a frame of its own works for the call.
    pub fn open(&mut self, name: &str, parent: &FrameId, helper: &str, task: &str) -> FrameId {
        let call = call_id(name);
        let number = 1 + self.frames().iter().filter(|frame| frame.call.is_some()).count() as u32;
        let frame = parent.child(&agent(helper), number);
        let opened = frame.clone();
        self.hands.bodies.retain(|(id, _, _)| *id != call);
        self.by_hand(|draft| {
            let invocation = draft.session.calls[&call].invocation.clone();
            let mut event = draft.event(&invocation, "user");
            event.frame = Some(opened.clone());
            event.content = Some(Content::user(task));
            let agent = agent(helper);
            draft.push(Body::Opened { invocation, frame: opened, agent, call, event });
        });
        self.drive();
        frame
    }

    fn frames(&self) -> Vec<&countersign::session::state::Frame> {
        let running = self.session.running.as_ref().expect("it runs");
        self.session.invocations[running].frames.values().collect()
    }

    /// The process that drives is gone, and another one takes the session.
    pub fn crash(&mut self) {
        self.owners += 1;
        let owner = owner(self.owners);
        self.by_hand(|draft| draft.take(&owner));
        self.hands = Hands::new(owner, self.session.epoch);
        self.drive();
    }

    /// Time passes, and deadlines are kept.
    pub fn pass(&mut self, seconds: u64) {
        self.now += seconds * 1_000_000;
        let expired = self.fact("server:sweeper", |draft, _| {
            draft.expire();
            Ok(())
        });
        expired.unwrap();
    }

    /// A call, open or past.
    pub fn call(&self, name: &str) -> &Call {
        find(&self.session, &self.past, &call_id(name)).expect("there is such a call")
    }

    pub fn phase(&self, name: &str) -> String {
        match &self.call(name).phase {
            Phase::Requested => "REQUESTED".to_owned(),
            Phase::Waiting => "WAITING".to_owned(),
            Phase::Gated => "GATED".to_owned(),
            Phase::Running => "RUNNING".to_owned(),
            Phase::Held(kind) => format!("HELD {}", word(kind)),
            Phase::Closed(closing) => word(&closing.end),
        }
    }

    /// The frames whose models are asked right now.
    pub fn asked(&self) -> Vec<String> {
        self.hands.models.keys().map(|(_, frame)| frame.to_string()).collect()
    }

    /// How many responses to a call have been told.
    pub fn told(&self, name: &str) -> usize {
        let id = call_id(name);
        let events = self.log.iter().filter_map(|record| record.body.event());
        events.flat_map(|event| event.function_responses()).filter(|part| part.id == id).count()
    }

    /// The kinds of the records behind a position.
    pub fn since(&self, position: usize) -> Vec<&'static str> {
        self.log[position..].iter().map(|record| kind(&record.body)).collect()
    }

    /// The prompt of a frame, a line a part.
    pub fn prompt(&self, frame: &FrameId) -> Vec<String> {
        let running = self.session.running.clone().expect("it runs");
        self.prompt_of(&(running, frame.clone())).iter().flat_map(lines).collect()
    }

    pub fn prompt_of(&self, (invocation, frame): &ModelKey) -> Vec<Content> {
        let held = self.session.pending_calls();
        prompt::build(&self.history(), prompt::Frame { invocation, frame }, &held)
    }

    fn history(&self) -> Vec<prompt::Told> {
        let told = |(at, record): (usize, &Record)| {
            let seen = match &record.body {
                Body::Replied { seen, event, .. } if event.error_code.is_empty() => Some(*seen),
                _ => None,
            };
            let event = record.body.event()?.clone();
            Some(prompt::Told { event: event.into(), position: at as u64 + 1, seen })
        };
        self.log.iter().enumerate().filter_map(told).collect()
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, record) in self.log.iter().enumerate() {
            write!(f, "\n{} {} {}", at + 1, record.by, kind(&record.body))?;
            let event = record.body.event();
            for part in event.iter().filter_map(|e| e.content.as_ref()).flat_map(lines) {
                write!(f, " {part}")?;
            }
            if let Body::Started { call, attempt: n, .. }
            | Body::Returned { call, execution: n, .. } = &record.body
            {
                write!(f, " {call} {n}")?;
            }
        }
        writeln!(f)?;
        write!(f, "{:?}", self.hands)
    }
}

fn owner(number: u32) -> Owner {
    id(Owner::parse(format!("process-{number}")))
}

fn next_id(minted: &mut u32) -> String {
    *minted += 1;
    format!("id-{minted}")
}

fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).unwrap().as_str().unwrap().to_owned()
}

fn lines(content: &Content) -> Vec<String> {
    let line = |part: &Part| match &part.data {
        Some(Data::Text(text)) => format!("{}: {text}", word(&content.role)),
        Some(Data::FunctionCall(call)) => format!("> {}", call.name),
        Some(Data::FunctionResponse(one)) => format!("< {} {}", one.name, json!(one.response)),
        other => format!("{other:?}"),
    };
    content.parts.iter().map(line).collect()
}

/// The name of a record's kind, as it is stored.
pub fn kind(body: &Body) -> &'static str {
    match body {
        Body::Created { .. } => "created",
        Body::Invoked { .. } => "invoked",
        Body::Claimed { .. } => "claimed",
        Body::Released => "released",
        Body::Opened { .. } => "opened",
        Body::Replied { .. } => "replied",
        Body::Started { .. } => "started",
        Body::Returned { .. } => "returned",
        Body::Asked { .. } => "asked",
        Body::Refused { .. } => "refused",
        Body::RunAgain { .. } => "run_again",
        Body::Noted { .. } => "noted",
        Body::StandingMade { .. } => "standing_made",
        Body::StandingRevoked { .. } => "standing_revoked",
        Body::Responded { .. } => "responded",
        Body::Lost { .. } => "lost",
        Body::Answered { .. } => "answered",
        Body::Placed { .. } => "placed",
        Body::CancelRequested { .. } => "cancel_requested",
        Body::Paused { .. } => "paused",
        Body::Ended { .. } => "ended",
        Body::StateChanged { .. } => "state_changed",
        Body::Imported { .. } => "imported",
    }
}
