//! The ownership model: every interleaving of drivers, answers, cancel, expiry, false suspicion and
//! crash over small scenes: a held call beside a running one, a second held call, and a model that
//! goes around again. The log, the drivers' hands and their (maybe stale) views are the state; the
//! code that decides is the server's own.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use countersign::runner::step::{BodyKey, Decision, Done, Gave, Hands, ModelKey};
use countersign::session::Session;
use countersign::session::call::{Behaviour, Effect, Kind, Spec};
use countersign::session::content::{Content, Data, FunctionCall, Object, Part};
use countersign::session::decide::{Answered, Incoming, Incomings, Reply, Start};
use countersign::session::draft::Draft;
use countersign::session::id::*;
use countersign::session::record::{Body, Outcome, Record, RunConfig};
use countersign::session::state::Touched;
use serde_json::json;

/// What may still happen from outside, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Outside {
    Answer,
    OtherAnswer,
    /// An answer to the second held call; there is one then.
    Also,
    /// One message that answers both held calls.
    Both,
    Cancel,
    Expire,
    Suspect,
    Crash,
}

#[derive(Clone)]
struct Driver {
    hands: Hands,
    view: Rc<Session>,
}

#[derive(Clone)]
struct World {
    log: Vec<Rc<Record>>,
    /// Stands for the log in a fingerprint.
    log_hash: u64,
    fold: Rc<Session>,
    drivers: Vec<Driver>,
    outside: BTreeSet<Outside>,
    faults: bool,
    /// Answers that applied, by call.
    applied: BTreeMap<&'static str, u32>,
    runs: BTreeMap<BodyKey, u32>,
    placeholder: bool,
    /// There are two held calls.
    two: bool,
    /// How often the model calls: in the first round all calls, later the running one only.
    rounds: usize,
    effect: Effect,
}

fn id<T>(parsed: Result<T, Error>) -> T {
    parsed.unwrap()
}

fn object(value: serde_json::Value) -> Object {
    value.as_object().unwrap().clone()
}

fn by(name: &str) -> Principal {
    id(Principal::parse(name))
}

fn minted(head: u64, who: &str) -> impl FnMut() -> String + use<> {
    let (mut n, who) = (0, who.to_owned());
    move || {
        n += 1;
        format!("{who}-{head}-{n}")
    }
}

const TIME: u64 = 1_000;
const DEADLINE_SECONDS: u64 = 60;

impl World {
    fn append(&mut self, records: Vec<Record>) {
        for record in records {
            Rc::make_mut(&mut self.fold).apply(&record, &mut Touched::default());
            let mut hasher = DefaultHasher::new();
            (self.log_hash, format!("{record:?}")).hash(&mut hasher);
            self.log_hash = hasher.finish();
            self.log.push(Rc::new(record));
        }
    }

    fn new(outside: &[Outside], rounds: usize, placeholder: bool, effect: Effect) -> Self {
        let key = SessionKey {
            app: id(AppName::parse("root")),
            user: id(UserId::parse("u")),
            id: id(SessionId::parse("s")),
        };
        let uid = id(SessionUid::parse("uid"));
        let mut mint = minted(0, "start");
        let created = Body::Created { uid, key, state: Object::new() };
        let mut draft = Draft::begin(created, TIME, by("user:local"), &mut mint).unwrap();
        draft
            .start(Start {
                invocation: id(InvocationId::parse("e-1")),
                agent: id(AgentName::parse("root")),
                config: RunConfig {
                    streaming: false,
                    max_llm_calls: 500,
                    custom_metadata: Object::new(),
                },
                message: Content::user("go"),
                state_delta: Object::new(),
            })
            .unwrap();
        assert!(draft.claim_if_free(&id(Owner::parse("a"))));
        draft.settle();
        let fold = Rc::new(draft.session);
        let log = draft.records.into_iter().map(Rc::new).collect();
        let hands = Hands::new(id(Owner::parse("a")), 1);
        let drivers = vec![Driver { hands, view: fold.clone() }];
        Self {
            log,
            log_hash: 0,
            fold,
            drivers,
            outside: outside.iter().copied().collect(),
            faults: outside.contains(&Outside::Suspect) || outside.contains(&Outside::Crash),
            applied: BTreeMap::new(),
            runs: BTreeMap::new(),
            placeholder,
            two: outside.contains(&Outside::Both) || outside.contains(&Outside::Also),
            rounds,
            effect,
        }
    }

    /// Every world that may follow.
    fn next(&self) -> Vec<World> {
        let mut next = Vec::new();
        for n in 0..self.drivers.len() {
            let driver = &self.drivers[n];
            if driver.view.head != self.fold.head {
                let mut world = self.clone();
                world.drivers[n].view = self.fold.clone();
                next.push(world);
            }
            next.extend(self.stepped(n));
            for key in &driver.hands.bodies {
                next.push(self.body_back(n, key));
            }
            for (key, seen) in &driver.hands.models {
                next.push(self.model_back(n, key, *seen));
            }
        }
        for outside in &self.outside {
            next.extend(self.happens(*outside));
        }
        next
    }

    fn stepped(&self, n: usize) -> Option<World> {
        let mut world = self.clone();
        let driver = &mut world.drivers[n];
        let mut mint = minted(driver.view.head, driver.hands.owner.as_str());
        let decision = driver.hands.decide(&driver.view, TIME, &mut mint, true);
        let stop = matches!(decision, Decision::HandIn { .. });
        let mut taken = false;
        let draft = match decision {
            Decision::Nothing => {
                let before = driver.hands.clone();
                let work = driver.hands.perform(&driver.view.clone());
                for call in work.bodies {
                    let key = (call.spec.id.clone(), call.execution, call.attempt);
                    *world.runs.entry(key).or_default() += 1;
                }
                return (world.drivers[n].hands != before).then_some(world);
            }
            Decision::Append(draft) => draft,
            Decision::HandIn { draft, claimed } => {
                taken = claimed;
                draft
            }
        };
        if !draft.records.is_empty() {
            if driver.view.head != self.fold.head {
                return None; // A conflict: the driver reads on, which is a step of its own.
            }
            let claim = draft.session.claim.clone();
            let records = draft.records;
            world.append(records);
            let epoch = world.fold.epoch;
            let driver = &mut world.drivers[n];
            driver.hands.settled(true);
            driver.view = world.fold.clone();
            if taken && claim.is_some() {
                let hands = Hands::new(driver.hands.owner.clone(), epoch);
                world.drivers.push(Driver { hands, view: world.fold.clone() });
            }
        }
        let driver = &world.drivers[n];
        if stop && driver.hands.bodies.is_empty() && driver.hands.done.is_empty() {
            world.drivers.remove(n);
        } else if stop && self.drivers[n].hands.done.is_empty() {
            let hands = &mut world.drivers[n].hands;
            if hands.models.is_empty() {
                return None;
            }
            hands.models.clear();
        }
        Some(world)
    }

    fn body_back(&self, n: usize, key: &BodyKey) -> World {
        let mut world = self.clone();
        let long = self.fold.calls.get(&key.0).map(|call| call.spec.behaviour.long_running);
        let outcome = match long {
            Some(true) if !self.placeholder => Outcome::Nothing,
            _ => Outcome::Value(object(json!({"status": "body"}))),
        };
        world.drivers[n].hands.back(Done::Body {
            key: key.clone(),
            gave: Gave::Outcome(outcome),
            state_delta: Object::new(),
            skip_summarization: false,
            raised: None,
        });
        world
    }

    fn model_back(&self, n: usize, key: &ModelKey, seen: u64) -> World {
        let mut world = self.clone();
        let hands = &mut world.drivers[n].hands;
        let replies = self.log.iter().filter(|r| matches!(r.body, Body::Replied { .. })).count();
        let more = replies < self.rounds;
        let specs = if more { self.calls(replies) } else { Vec::new() };
        let call = |spec: &Spec| {
            let (id, name) = (spec.id.clone(), spec.name.clone());
            Part::new(Data::FunctionCall(FunctionCall { id, name, args: Object::new() }))
        };
        let parts = if more { specs.iter().map(call).collect() } else { vec![Part::text("done")] };
        let reply = Reply {
            parts,
            calls: specs,
            facts: Vec::new(),
            finish_reason: "STOP".to_owned(),
            usage: None,
            event_id: None,
        };
        hands.back(Done::Model { key: key.clone(), seen, reply: Ok(reply) });
        world
    }

    fn calls(&self, round: usize) -> Vec<Spec> {
        let spec = |name: &str, behaviour: Behaviour| Spec {
            id: id(CallId::parse(format!("adk-{name}"))),
            model_id: None,
            name: name.to_owned(),
            args: Object::new(),
            args_digest: String::new(),
            behaviour,
            gate: None,
            failed: None,
        };
        let held = Behaviour {
            long_running: true,
            effect: Effect::Read,
            expires_after: Some(std::time::Duration::from_secs(DEADLINE_SECONDS)),
            ..Behaviour::default()
        };
        let tool = Behaviour { effect: self.effect, ..Behaviour::default() };
        if round > 0 {
            return vec![spec(&format!("tool-{round}"), tool)];
        }
        let mut specs = vec![spec("held", held.clone()), spec("tool", tool)];
        if self.two {
            specs.push(spec("also", held));
        }
        specs
    }

    fn happens(&self, outside: Outside) -> Option<World> {
        let mut world = self.clone();
        let head = self.fold.head;
        let mut mint = minted(head, "outside");
        let (who, now) = match outside {
            Outside::OtherAnswer => ("user:other", TIME),
            Outside::Expire => ("server:b", TIME + DEADLINE_SECONDS * 1_000_000),
            _ => ("user:local", TIME),
        };
        let mut draft = Draft::new(Session::clone(&self.fold), now, by(who), &mut mint);
        let owner = id(Owner::parse("b"));
        match outside {
            Outside::Answer | Outside::OtherAnswer | Outside::Also | Outside::Both => {
                let incoming = |name: &str| Incoming {
                    decision: None,
                    call: id(CallId::parse(format!("adk-{name}"))),
                    name: name.to_owned(),
                    response: Some(object(json!({"status": who}))),
                    will_continue: None,
                    field: "function_response".to_owned(),
                };
                let to: &[&str] = match outside {
                    Outside::Also => &["also"],
                    Outside::Both => &["held", "also"],
                    _ => &["held"],
                };
                let answers = Incomings {
                    answers: to.iter().map(|name| incoming(name)).collect(),
                    invocation: None,
                    expected_args_digest: None,
                    skip_summarization: false,
                    comment: String::new(),
                    state_delta: Object::new(),
                };
                match draft.answer(&[], &answers, &|_, _| Ok(())) {
                    Ok(Answered::Applied) => {
                        to.iter().for_each(|name| *world.applied.entry(name).or_default() += 1);
                    }
                    Ok(other) => panic!("an answer by {who} gave {other:?}"),
                    // Too early, or too late: it may come at any other instant too.
                    Err(_) if self.idle() => {}
                    Err(_) => return None,
                }
            }
            Outside::Cancel => match draft.cancel(&id(InvocationId::parse("e-1"))) {
                Ok(()) => {}
                Err(_) if self.idle() => {}
                Err(_) => return None,
            },
            Outside::Expire => {
                if !draft.expire() && !self.idle() {
                    return None;
                }
            }
            Outside::Suspect => {
                if self.fold.claim.is_none() {
                    return self.idle().then(|| world.without(outside));
                }
                draft.take(&owner);
            }
            Outside::Crash => {
                if self.fold.claim.is_none() {
                    return self.idle().then(|| world.without(outside));
                }
                world.drivers.clear();
                draft.take(&owner);
            }
        }
        draft.claim_if_free(&owner);
        if draft.session.claim.as_ref().is_some_and(|c| c.epoch > self.fold.epoch) {
            draft.settle();
        }
        let claimed = draft.session.claim.clone().filter(|claim| claim.epoch > self.fold.epoch);
        let records = draft.records;
        world.append(records);
        if let Some(claim) = claimed {
            let hands = Hands::new(claim.owner, claim.epoch);
            world.drivers.push(Driver { hands, view: world.fold.clone() });
        }
        Some(world.without(outside))
    }

    fn without(mut self, outside: Outside) -> World {
        self.outside.remove(&outside);
        self
    }

    /// Nothing but the outside can move.
    fn idle(&self) -> bool {
        self.drivers.is_empty()
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.log_hash.hash(&mut hasher);
        for driver in &self.drivers {
            driver.view.head.hash(&mut hasher);
            let Hands { owner, epoch, bodies, models, done } = &driver.hands;
            (owner, epoch, bodies, models).hash(&mut hasher);
            for done in done {
                format!("{done:?}").hash(&mut hasher);
            }
        }
        self.outside.hash(&mut hasher);
        self.applied.hash(&mut hasher);
        self.runs.hash(&mut hasher);
        hasher.finish()
    }

    fn always(&self) {
        assert!(self.applied.values().all(|won| *won <= 1), "two answers won");
        for (key, runs) in &self.runs {
            assert_eq!(*runs, 1, "{key:?} was run more than once: {}", self.story());
            if self.effect == Effect::Once && key.0.as_str().starts_with("adk-tool") {
                assert_eq!(key.2, 1, "a ONCE body was run again");
            }
        }
        let unknown = self.fold.calls.values().any(|c| c.held() == Some(Kind::UnknownOutcome));
        assert!(self.faults || !unknown, "an unknown outcome without a fault");
        let sequences: Vec<u64> =
            self.log.iter().filter_map(|r| r.body.event()).map(|e| e.sequence).collect();
        let wanted: Vec<u64> = (1..=sequences.len() as u64).collect();
        assert_eq!(sequences, wanted, "sequences have a hole");
    }

    fn at_the_end(&self) {
        assert!(self.fold.claim.is_none(), "somebody still holds the session: {}", self.story());
        assert!(!self.fold.can_move(), "the session could move and nobody moves it");
        let Some(open) = self.fold.invocations.values().next() else {
            self.answers_were_seen();
            return;
        };
        let held = self.fold.held_calls(&open.id);
        assert!(!held.is_empty(), "an open invocation that waits for nobody: {}", self.story());
    }

    /// The log, a line a record.
    fn story(&self) -> String {
        let line = |record: &Rc<Record>| {
            let mut line = format!("{} {:?}", record.by, record.body);
            line.truncate(150);
            line
        };
        self.log.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Nothing that somebody decided went untold, unless the invocation was cancelled.
    fn answers_were_seen(&self) {
        let cancelled =
            self.log.iter().any(|record| matches!(record.body, Body::CancelRequested { .. }));
        if cancelled {
            return;
        }
        let answered = |record: &Rc<Record>| matches!(record.body, Body::Answered { .. });
        let answered = self.log.iter().rposition(answered).map_or(0, |at| at as u64 + 1);
        let seen = |record: &Rc<Record>| match record.body {
            Body::Replied { seen, .. } => seen,
            _ => 0,
        };
        let seen = self.log.iter().map(seen).max();
        let told = seen >= Some(answered);
        assert!(told, "the invocation ended and no prompt had an answer: {}", self.story());
    }
}

fn explore(first: World) -> usize {
    let mut seen = HashSet::from([first.fingerprint()]);
    let mut todo = vec![first];
    let mut ends = 0;
    while let Some(world) = todo.pop() {
        world.always();
        let next = world.next();
        if next.is_empty() {
            world.at_the_end();
            ends += 1;
        }
        todo.extend(next.into_iter().filter(|world| seen.insert(world.fingerprint())));
    }
    assert!(ends > 0);
    seen.len()
}

#[test]
fn every_interleaving_keeps_the_promises() {
    use Outside::*;
    let once: &[&[Outside]] = &[
        &[],
        &[Answer],
        &[Answer, OtherAnswer],
        &[Answer, Cancel],
        &[Answer, Expire],
        &[Answer, Suspect],
        &[Answer, Crash],
        &[Cancel, Suspect],
        &[Cancel, Crash],
        &[Answer, Suspect, Crash],
        &[Both],
        &[Both, Cancel],
        &[Both, Crash],
        &[Answer, Also],
        &[Answer, Also, Expire],
    ];
    let twice: &[&[Outside]] =
        &[&[Answer], &[Answer, Cancel], &[Answer, Expire], &[Answer, Suspect], &[Answer, Crash]];
    let scenes = once.iter().map(|scene| (scene, 1)).chain(twice.iter().map(|scene| (scene, 2)));
    let scenes = scenes.chain([(&twice[0], 4)]);
    let scenes = Mutex::new(scenes.flat_map(|(scene, rounds)| {
        let with = move |placeholder| {
            [Effect::Once, Effect::Read].map(|effect| (*scene, rounds, placeholder, effect))
        };
        [false, true].into_iter().flat_map(with)
    }));
    let next = || scenes.lock().unwrap().next();
    let worlds = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((scene, rounds, placeholder, effect)) = next() {
                    let seen = explore(World::new(scene, rounds, placeholder, effect));
                    println!("{seen:>7} {scene:?} x {rounds}, {placeholder}, {effect:?}");
                    worlds.fetch_add(seen, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{} worlds", worlds.into_inner());
}
