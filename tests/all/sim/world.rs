//! The world of one history: its time, its lots, what is durable, and a journal of what everybody
//! did and was told. All of it is checked when everything has come to a rest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use countersign::runner::Ids;
use countersign::runner::index::{InvocationView, State};
use countersign::session::id::{CallId, EventId, InvocationId, SessionKey, SessionUid};
use countersign::session::record::Record;
use countersign::session::state::Touched;
use countersign::session::{Session, codec};
use countersign::store::Clock;
use countersign::store::memory::Memory;
use serde_json::Value;
use tokio::time::Instant;

use super::chance::{Chance, Profile};
use super::clients::Deed;
use super::followers::Stint;
use super::process::Process;

/// When every history begins, in microseconds since 1970.
const BEGIN: u64 = 1_700_000_000_000_000;

/// A log as it became durable, kept beside the store.
#[derive(Default, Clone)]
pub struct Log {
    pub records: Vec<Record>,
    /// Which append of all wrote each record: 1, 2, 3 ...
    pub commits: Vec<u64>,
    pub deleted: bool,
}

impl Log {
    /// The session that its records make; none if there are none.
    pub fn fold(&self) -> Option<Session> {
        let mut session = Session::begin(self.records.first()?)?;
        for record in &self.records[1..] {
            session.apply(record, &mut Touched::default());
        }
        Some(session)
    }
}

/// A body that was begun.
pub struct Start {
    pub call: CallId,
    pub key: String,
    /// Of the arguments that it saw.
    pub digest: String,
    /// Appends before it.
    pub commits: u64,
    /// What it said is not known, or it did not come back.
    pub unknown: bool,
}

/// A prompt: what it says of each call, which of that is new, and all texts in it.
pub struct Prompt {
    pub responses: BTreeMap<CallId, Value>,
    pub news: BTreeSet<CallId>,
    pub texts: BTreeSet<String>,
}

/// A call that clients have heard of.
#[derive(Clone)]
pub struct Heard {
    pub call: CallId,
    pub name: String,
    pub session: SessionKey,
}

#[derive(Default)]
pub struct Journal {
    pub logs: BTreeMap<SessionUid, Log>,
    pub commits: u64,
    pub starts: Vec<Start>,
    pub prompts: Vec<Prompt>,
    pub deeds: Vec<Deed>,
    pub stints: Vec<Stint>,
    pub heard: Vec<Heard>,
    pub invocations: Vec<InvocationId>,
    /// States that clients were told and that never change.
    pub ended: BTreeMap<InvocationId, State>,
    /// Up to where somebody knows a log.
    pub known: BTreeMap<SessionUid, u64>,
    /// What is wrong.
    pub wrong: Vec<String>,
    /// What happened at all, for the coverage.
    pub saw: BTreeSet<&'static str>,
    trace: Vec<String>,
    counter: u64,
    calls_left: u64,
    storm_until: u64,
}

pub struct World {
    pub profile: Profile,
    pub memory: Arc<Memory>,
    pub clock: Clock,
    pub ids: Ids,
    chance: Mutex<Chance>,
    journal: Mutex<Journal>,
    pub processes: Mutex<Vec<Option<Process>>>,
    began: Instant,
    traced: bool,
    calm: AtomicBool,
    over: AtomicBool,
}

impl World {
    pub fn new(seed: u64, traced: bool) -> Arc<Self> {
        let mut chance = Chance::new(seed);
        let profile = Profile::of(&mut chance);
        let clock = Clock::manual(BEGIN);
        let world = Self {
            memory: Arc::new(Memory::new(clock.clone())),
            clock,
            ids: Ids::seeded(seed),
            journal: Mutex::new(Journal { calls_left: 4 + chance.below(10), ..Journal::default() }),
            processes: Mutex::default(),
            chance: Mutex::new(chance),
            began: Instant::now(),
            traced,
            calm: AtomicBool::new(profile.is_calm()),
            over: AtomicBool::new(false),
            profile,
        };
        world.tell(|| format!("{:?}", world.profile));
        Arc::new(world)
    }

    /// A number below this one.
    pub fn below(&self, end: u64) -> u64 {
        self.chance.lock().unwrap().below(end)
    }

    /// True so often in a hundred.
    pub fn percent(&self, often: u64) -> bool {
        self.chance.lock().unwrap().percent(often)
    }

    /// One of these.
    pub fn pick<'a, T>(&self, from: &'a [T]) -> Option<&'a T> {
        self.chance.lock().unwrap().pick(from)
    }

    pub fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap()
    }

    /// Virtual microseconds since 1970.
    pub fn now(&self) -> u64 {
        let now = BEGIN + u64::try_from(self.began.elapsed().as_micros()).unwrap();
        self.clock.set(now);
        now
    }

    /// One more line of the history.
    pub fn tell(&self, line: impl FnOnce() -> String) {
        if self.traced {
            let line = format!("{:>9} {}", self.began.elapsed().as_millis(), line());
            self.journal().trace.push(line);
        }
    }

    pub fn saw(&self, what: &'static str) {
        self.journal().saw.insert(what);
    }

    pub fn wrong(&self, what: impl Into<String>) {
        let what = what.into();
        self.tell(|| format!("WRONG: {what}"));
        self.journal().wrong.push(what);
    }

    pub fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong(what());
        }
    }

    pub fn take_trace(&self) -> Vec<String> {
        std::mem::take(&mut self.journal().trace)
    }

    /// A number that nobody had before.
    pub fn count(&self) -> u64 {
        let mut journal = self.journal();
        journal.counter += 1;
        journal.counter
    }

    /// Whether a model may make one more call.
    pub fn take_call(&self) -> bool {
        let mut journal = self.journal();
        let left = journal.calls_left > 0;
        journal.calls_left = journal.calls_left.saturating_sub(1);
        left
    }

    /// Takes a while, up to so many milliseconds; often only its turn.
    pub async fn pause(&self, most: u64) {
        let drawn = {
            let mut chance = self.chance.lock().unwrap();
            if most == 0 || chance.percent(30) { 0 } else { 1 + chance.below(most) }
        };
        match drawn {
            0 => tokio::task::yield_now().await,
            drawn => Self::wait(Duration::from_millis(drawn)).await,
        }
    }

    /// Virtual time goes by: it does so at once when nobody has anything else to do.
    pub async fn wait(time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Whether nothing goes wrong any more.
    pub fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }

    pub fn calm_down(&self) {
        self.calm.store(true, Ordering::Relaxed);
        self.journal().storm_until = 0;
        self.tell(|| "the faults are over".to_owned());
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// A fault comes about, so often in a thousand.
    pub fn fault(&self, permille: u64) -> bool {
        permille > 0 && !self.is_calm() && self.chance.lock().unwrap().permille(permille)
    }

    /// Whether the fate of every append is unknown for now.
    pub fn storm(&self) -> bool {
        if self.fault(self.profile.storm) {
            let lasts = 200 + self.below(2_000);
            self.journal().storm_until = self.now() + lasts * 1_000;
            self.saw("storm");
            self.tell(|| format!("a storm of {lasts} ms"));
        }
        self.journal().storm_until > self.now()
    }

    /// A batch became durable.
    pub fn appended(&self, uid: &SessionUid, rows: &[countersign::store::Row], delete: bool) {
        let records = rows.iter().map(|row| codec::decode_record(&row.bytes).unwrap());
        let records: Vec<Record> = records.collect();
        let mut journal = self.journal();
        journal.commits += 1;
        let commit = journal.commits;
        let log = journal.logs.entry(uid.clone()).or_default();
        log.deleted |= delete;
        log.commits.extend(records.iter().map(|_| commit));
        log.records.extend(records);
    }

    /// The calls that somebody may answer. Now and then it is one for which it is soon too late.
    pub fn answerable(&self) -> Vec<Heard> {
        let mut heard = self.journal().heard.clone();
        if self.percent(25) && heard.iter().any(|heard| heard.name == "soon") {
            heard.retain(|heard| heard.name == "soon");
        }
        heard
    }

    /// A client has heard of an invocation and its held calls.
    /// `before` is what somebody was told before that was asked for.
    pub fn heard(&self, view: &InvocationView, before: &BTreeMap<InvocationId, State>) {
        let before = before.get(&view.id).copied().filter(|before| *before != view.state);
        {
            let mut journal = self.journal();
            for call in &view.held {
                let (call, name) = (call.spec.id.clone(), call.spec.name.clone());
                if !journal.heard.iter().any(|heard| heard.call == call) {
                    let session = view.session.clone();
                    journal.heard.push(Heard { call, name, session });
                }
            }
            if !journal.invocations.contains(&view.id) {
                journal.invocations.push(view.id.clone());
            }
            if !matches!(view.state, State::Running | State::Paused) {
                journal.ended.insert(view.id.clone(), view.state);
            }
        }
        if let Some(before) = before {
            self.wrong(format!("{} was {before:?} and is {:?}", view.id, view.state));
        }
    }

    /// Somebody has been shown an event: it must be durable.
    pub fn shown(&self, event: &EventId) {
        let durable = self.journal().logs.values().any(|log| {
            let mut events = log.records.iter().rev().filter_map(|record| record.body.event());
            events.any(|durable| &durable.id == event)
        });
        self.check(durable, || format!("{event} was shown before it was durable"));
    }

    /// Somebody knows a log up to here: it must be durable.
    pub fn acknowledged(&self, uid: &SessionUid, position: u64) {
        let durable = {
            let mut journal = self.journal();
            let known = journal.known.entry(uid.clone()).or_default();
            *known = position.max(*known);
            journal.logs.get(uid).map_or(0, |log| log.records.len() as u64)
        };
        let what = || format!("{uid}: {position} was acknowledged, and {durable} is durable");
        self.check(position <= durable, what);
    }
}
