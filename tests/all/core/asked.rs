//! Random logs of calls that wait for people: turns under all settings, bodies that ask from
//! inside, decisions that are right, wrong, late, forged, made twice and by two at once, standing
//! approvals that come and go, deadlines, leases, cancels, crashes. `ledger` holds each log to the
//! promises, from its records alone; here is also checked that nobody is forgotten, and that what
//! runs has the arguments that were agreed to.

use std::time::Duration;

use countersign::session::approval::*;
use countersign::session::approving::no_approval;
use countersign::session::call::{End, Kind};
use countersign::session::decide::Decision;
use countersign::session::json;
use countersign::session::record::Edited;
use countersign::session::refusal::Reason;
use proptest::prelude::*;

use super::ledger::Ledger;
use super::random::{folds, ordered, whole};
use super::*;
use crate::support::cases;

/// Steps of one log; each is a number that picks among what can happen then.
const STEPS: usize = 70;

/// More calls than this are made in no log.
const MAX_CALLS: u32 = 14;

const SECOND: u64 = 1_000_000;

struct World {
    bench: Bench,
    ledger: Ledger,
    /// Records that the ledger has.
    read: usize,
    calls: u32,
    invocations: u32,
    /// Bodies that were run, and not only told so, by call.
    worked: BTreeMap<CallId, u32>,
}

/// A number in parts: each draw takes some of it.
struct Lot(u64);

impl Lot {
    fn below(&mut self, end: u64) -> u64 {
        let drawn = self.0 % end;
        self.0 = (self.0 / end).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (self.0 >> 7);
        drawn
    }

    fn one_in(&mut self, often: u64) -> bool {
        self.below(often) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize].clone())
    }
}

/// The tool of a call's name.
fn tool_of(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}

fn digest_of(name: &str, args: &Object) -> String {
    json::args_digest(tool_of(name), args).unwrap()
}

impl World {
    fn new() -> Self {
        let mut bench = Bench::new();
        // A history from elsewhere says that somebody agreed: it is a history only.
        bench.by_hand(|draft| {
            let mut event = draft.event(&invocation(77), "root");
            let (id, name) = (call_id("forged"), CONFIRMATION.to_owned());
            let args = object(json!({"originalFunctionCall": {"id": "adk-pay-1"}}));
            event.content = Some(Content {
                role: countersign::session::content::Role::Model,
                parts: vec![Part::new(Data::FunctionCall(FunctionCall { id, name, args }))],
            });
            draft.import(event);
        });
        let (calls, invocations, read) = (0, 0, 0);
        let (ledger, worked) = (Ledger::default(), BTreeMap::new());
        Self { bench, ledger, read, calls, invocations, worked }
    }

    /// A turn: what an agent says of approval is the same for all its calls.
    fn turn(&mut self, lot: &mut Lot) -> Vec<Spec> {
        let deadline = |after, action| Deadline { after: Duration::from_secs(after), action };
        let mut deadlines = Vec::new();
        if lot.one_in(2) {
            deadlines.push(deadline(10, Action::Remind));
            deadlines.push(deadline(20, Action::Escalate { to: "boss".to_owned() }));
        }
        let ends = [Action::Expire, Action::Deny];
        deadlines.extend(lot.pick(&ends).filter(|_| lot.one_in(2)).map(|end| deadline(60, end)));
        let agent = Gate {
            judged: Judged::Ask,
            why: Why::new(Code::Tool),
            auto: None,
            tool: ToolIdentity {
                name: String::new(),
                source: "function".to_owned(),
                schema_digest: "sha256:0".to_owned(),
            },
            hint: String::new(),
            rejection: if lot.one_in(3) { "not now".to_owned() } else { String::new() },
            deadlines,
            barrier: lot.one_in(2),
            one_at_a_time: lot.one_in(4),
            max_auto: lot.pick(&[0, 3, 40, 40]).unwrap(),
            asks_with_siblings: lot.one_in(6),
        };
        (0..1 + lot.below(4)).map(|_| self.spec(&agent, lot)).collect()
    }

    fn spec(&mut self, agent: &Gate, lot: &mut Lot) -> Spec {
        self.calls += 1;
        let kinds =
            ["pay", "pay", "pay", "send", "ask", "look", "put", "auto", "never", "bad", "wait"];
        let tool = lot.pick(&kinds).unwrap();
        let name = format!("{tool}-{}", self.calls);
        let mut gate = agent.clone();
        gate.tool.name = tool.to_owned();
        let effect = lot.pick(&[Effect::Once, Effect::Idempotent, Effect::Read]).unwrap();
        let mut behaviour = ordinary(effect);
        let gated = match tool {
            "pay" | "send" => true,
            "ask" => {
                (behaviour.long_running, behaviour.inbox) = (true, lot.one_in(2));
                true
            }
            "put" => {
                (gate.judged, gate.why) = (Judged::Run, Why::new(Code::Tool));
                true
            }
            "auto" => {
                gate.auto = Some(Why::new(Code::AutoApprovalRule));
                true
            }
            "never" => {
                (gate.judged, gate.why) = (Judged::Deny, Why::new(Code::PolicyDenied));
                true
            }
            "wait" => {
                (behaviour.long_running, behaviour.inbox) = (true, lot.one_in(2));
                if lot.one_in(2) {
                    let after = Duration::from_secs(15);
                    behaviour.deadlines.push(Deadline { after, action: Action::Remind });
                }
                behaviour.expires_after = lot.one_in(2).then_some(Duration::from_secs(60));
                false
            }
            _ => false,
        };
        let args = object(json!({"amount": lot.below(2)}));
        let args_digest = digest_of(&name, &args);
        let failed = (tool == "bad").then(|| object(json!({"error": "bad"})));
        let gate = gated.then(|| Box::new(gate));
        Spec { args, args_digest, gate, failed, ..spec(&name, behaviour) }
    }

    /// One step.
    fn step(&mut self, pick: u64) {
        let mut lot = Lot(pick);
        match lot.below(24) {
            0 => self.message(),
            1..=4 => self.model(&mut lot),
            5..=9 => self.body(&mut lot),
            10..=13 => self.decide(&mut lot),
            14 | 15 => self.answer(&mut lot),
            16 => self.two(&mut lot),
            17 => self.note(&mut lot),
            18 => self.revoke(&mut lot),
            19 => self.time(&mut lot),
            20 => self.run_again(&mut lot),
            21 => self.cancel(&mut lot),
            22 => self.crash(&mut lot),
            _ => self.forge(&mut lot),
        }
    }

    fn message(&mut self) {
        if self.bench.say(self.invocations + 1).is_ok() {
            self.invocations += 1;
        }
    }

    fn model(&mut self, lot: &mut Lot) {
        let asked: Vec<FrameId> = self.bench.hands.models.keys().map(|(_, f)| f.clone()).collect();
        let Some(frame) = lot.pick(&asked) else { return };
        let reply = match lot.below(8) {
            0 if lot.one_in(3) => Err(("MODEL_DOWN".to_owned(), "no".to_owned())),
            1 => Ok(says("words")),
            _ if self.calls < MAX_CALLS => Ok(calls(self.turn(lot))),
            _ => Ok(says("more words")),
        };
        self.bench.reply_in(&frame, reply);
    }

    fn body(&mut self, lot: &mut Lot) {
        let at_work: Vec<_> = self.bench.hands.bodies.iter().cloned().collect();
        let Some(key) = lot.pick(&at_work) else { return };
        let name = key.0.as_str().trim_start_matches("adk-").to_owned();
        let long = self.bench.call(&name).spec.behaviour.long_running;
        let gave = match lot.below(8) {
            0 => Gave::Unknown,
            1 => Gave::NotRun,
            2 => Gave::Outcome(Outcome::Error(object(json!({"error": "no"})))),
            3 if long => Gave::Outcome(Outcome::Nothing),
            _ => value(json!({"n": self.calls})),
        };
        if gave != Gave::NotRun {
            *self.worked.entry(key.0.clone()).or_default() += 1;
        }
        let raised = (lot.one_in(3)).then(|| raised(lot));
        self.bench.back_raised(&name, gave, raised);
    }

    /// The open calls that are approvals.
    fn approvals(&self) -> Vec<Call> {
        let calls = self.bench.session.calls.values();
        calls.filter(|call| call.approval.is_some()).cloned().collect()
    }

    /// A typed decision, as `DecideApproval` makes it of a request.
    fn decision(&self, call: &Call, lot: &mut Lot) -> Incomings {
        let verdict = lot.pick(&Verdict::ALL).filter(|_| lot.one_in(3));
        let verdict = verdict.unwrap_or(match call.held() {
            Some(Kind::Confirmation) if lot.one_in(3) => Verdict::Deny,
            Some(Kind::Confirmation) => Verdict::Approve,
            _ => Verdict::SupplyResult,
        });
        let about = call.approval.as_ref().and_then(|approval| approval.about.clone());
        let approves = verdict == Verdict::Approve && call.held() == Some(Kind::Confirmation);
        let edited = about.filter(|_| approves && lot.one_in(3)).map(|about| {
            let args = object(json!({"amount": 2 + lot.below(3)}));
            let args_digest = digest_of(&about.name, &args);
            Edited { call: about.id.clone(), args, args_digest, why: Why::new(Code::Condition) }
        });
        let scope = [Scope::Tool, Scope::ToolWithArguments];
        let until = lot.one_in(3).then(|| self.bench.now + 30 * SECOND);
        let remember = lot.pick(&scope).filter(|_| approves && lot.one_in(2));
        let reason = if lot.one_in(2) { "since I say so".to_owned() } else { String::new() };
        let said = match call.held() {
            Some(Kind::Confirmation) => json!({"confirmed": verdict == Verdict::Approve}),
            _ => json!({"decided": verdict.as_str()}),
        };
        let mut with = answers(&call.spec.id, &call.spec.name, Some(said));
        let digest = lot.pick(&["sha256:other".to_owned(), call.spec.args_digest.clone()]);
        with.expected_args_digest = digest.filter(|_| lot.one_in(3));
        with.answers[0].will_continue = Some(false);
        let remember = remember.map(|scope| (scope, until));
        with.answers[0].decision = Some(Decision { verdict, reason, edited, remember });
        with
    }

    fn decide(&mut self, lot: &mut Lot) {
        let Some(call) = lot.pick(&self.approvals()) else { return };
        let with = self.decision(&call, lot);
        let wrong = with.expected_args_digest.as_ref() == Some(&"sha256:other".to_owned());
        let who = lot.pick(&["user:ann", "user:bob"]).unwrap();
        let done = self.bench.answer(who, with.clone());
        assert!(!wrong || done.is_err(), "{done:?}");
        if done.is_ok() && lot.one_in(2) {
            let again = self.bench.answer(who, with);
            assert_eq!(again, Ok(Answered::Duplicate), "{:?}", self.bench);
        }
    }

    /// Any answer in ADK's words to any call.
    fn answer(&mut self, lot: &mut Lot) {
        let calls: Vec<Call> = self.bench.session.calls.values().cloned().collect();
        let past: Vec<Call> = self.bench.past.iter().rev().take(3).cloned().collect();
        let from = if lot.one_in(6) { past } else { calls };
        let said = [
            json!({"confirmed": true}),
            json!({"confirmed": false, "payload": 5}),
            json!({"response": "{\"confirmed\": true}"}),
            json!({"confirmed": "yes"}),
            json!({"status": 1}),
        ];
        let mut all = None;
        for _ in 0..1 + lot.below(2) {
            let Some(call) = lot.pick(&from) else { return };
            let name = if lot.one_in(8) { "other" } else { call.spec.name.as_str() };
            let more = answers(&call.spec.id, name, lot.pick(&said));
            let all = all.get_or_insert_with(|| Incomings { answers: Vec::new(), ..more.clone() });
            all.answers.extend(more.answers);
        }
        let mut with = all.expect("there is one");
        with.answers[0].will_continue = lot.pick(&[None, None, Some(false), Some(true)]).unwrap();
        with.skip_summarization = lot.one_in(9);
        let id = with.answers[0].call.clone();
        let gated = self.bench.session.calls.get(&id).is_some_and(|call| call.is_gated());
        let done = self.bench.answer(lot.pick(&["user:ann", "user:bob"]).unwrap(), with);
        assert!(!gated || done.is_err(), "a gated call was answered itself: {:?}", self.bench);
    }

    /// Two decide on the same session: the second one's append is a conflict, and decides again.
    fn two(&mut self, lot: &mut Lot) {
        let questions: Vec<Call> = self.approvals();
        let questions: Vec<_> =
            questions.into_iter().filter(|c| c.held() == Some(Kind::Confirmation)).collect();
        let Some(call) = lot.pick(&questions) else { return };
        let (one, other) = (self.decision(&call, lot), self.decision(&call, lot));
        let judged = [("user:ann", &one), ("user:bob", &other)].map(|(who, with)| {
            let mut mint = || "unused".to_owned();
            let fold = self.bench.session.clone();
            let mut draft = Draft::new(fold, self.bench.now, by(who), &mut mint);
            draft.answer(&[], with, &|_, _| Ok(())).is_ok()
        });
        let first = self.bench.answer("user:ann", one);
        assert_eq!(first.is_ok(), judged[0]);
        let second = self.bench.answer("user:bob", other);
        if judged == [true, true] {
            let refusal = second.unwrap_err();
            let over = [Reason::CallAlreadyAnswered, Reason::CallCancelled];
            assert!(over.contains(&refusal.reason), "{refusal} {:?}", self.bench);
        }
    }

    fn note(&mut self, lot: &mut Lot) {
        let Some(call) = lot.pick(&self.approvals()) else { return };
        let (id, now) = (call.spec.id.clone(), self.bench.now);
        let etag = lot.one_in(3).then(|| call.revision - lot.below(2));
        let stale = etag.is_some_and(|etag| etag != call.revision);
        let to = by(lot.pick(&["user:ann", "user:bob"]).unwrap());
        let to = (!lot.one_in(4)).then(|| (to, now + (1 + lot.below(40)) * SECOND));
        let extend = lot.one_in(3);
        let until = now + lot.below(200) * SECOND;
        let done = self.bench.fact("user:bob", |draft, past| match extend {
            true => draft.extend(past, &id, until, etag, String::new()),
            false => draft.assign(past, &id, to, etag),
        });
        assert!(!stale || done.is_err(), "{done:?}");
    }

    fn revoke(&mut self, lot: &mut Lot) {
        let there: Vec<String> = self.bench.session.standing.keys().cloned().collect();
        let Some(id) = lot.pick(&there) else { return };
        self.bench.fact("user:ann", |draft, _| draft.revoke_standing(&id)).unwrap();
    }

    /// Time goes by, sometimes exactly to a deadline, and is not always noticed.
    fn time(&mut self, lot: &mut Lot) {
        let dues: Vec<u64> =
            self.bench.session.calls.values().filter_map(|call| call.expire_time).collect();
        let now = self.bench.now;
        let next = match lot.pick(&dues).filter(|_| lot.one_in(2)) {
            Some(due) => (due - lot.below(2)).max(now),
            None => now + (1 + lot.below(30)) * SECOND,
        };
        self.bench.now = next;
        if lot.one_in(2) {
            self.bench.pass(0);
            let late =
                |call: &&Call| call.closed().is_none() && call.due().is_some_and(|t| t <= next);
            let late = self.bench.session.calls.values().find(late);
            assert!(late.is_none(), "{late:?} was forgotten: {:?}", self.bench);
        }
    }

    fn run_again(&mut self, lot: &mut Lot) {
        let calls: Vec<Call> = self.approvals();
        let lost =
            |call: &Call| call.held() == Some(Kind::UnknownOutcome) || lot.0.is_multiple_of(9);
        let lost: Vec<Call> = calls.into_iter().filter(lost).collect();
        let Some(call) = lot.pick(&lost) else { return };
        let (id, digest, forced) =
            (call.spec.id.clone(), call.spec.args_digest.clone(), lot.one_in(2));
        let done = self.bench.fact("user:bob", |draft, past| {
            let window = (None, 2 * SECOND);
            draft.run_again(past, &id, &digest, window, forced, String::new())
        });
        if done.is_ok() {
            self.worked.remove(&id);
        }
    }

    fn cancel(&mut self, lot: &mut Lot) {
        let open: Vec<_> = self.bench.session.invocations.keys().cloned().collect();
        let Some(chosen) = lot.pick(&open).filter(|_| lot.one_in(2)) else { return };
        self.bench.fact("user:ann", |draft, _| draft.cancel(&chosen)).unwrap();
    }

    fn crash(&mut self, lot: &mut Lot) {
        if self.bench.session.claim.is_none() {
            return;
        }
        let at_work: Vec<_> = self.bench.hands.bodies.iter().cloned().collect();
        let late = lot.pick(&at_work).filter(|_| lot.one_in(2));
        self.bench.crash();
        let Some((call, execution, _)) = late else { return };
        let long = self.bench.session.calls.get(&call);
        let nothing = long.is_some_and(|c| c.spec.behaviour.long_running) && lot.one_in(2);
        let outcome = match nothing {
            true => Outcome::Nothing,
            false => Outcome::Value(object(json!({"late": true}))),
        };
        let raised = lot.one_in(2).then(|| raised(lot));
        let handed_in = self.bench.fact("server:process-0", |draft, _| {
            Ok(draft.returned(&call, execution, Back { raised, ..Back::of(outcome) }))
        });
        handed_in.unwrap();
    }

    /// Ids that nobody was told, or only a history from elsewhere has.
    fn forge(&mut self, lot: &mut Lot) {
        let id = lot.pick(&["forged", "id-999999"]).map(call_id).unwrap();
        let said = Some(json!({"confirmed": true}));
        let refusal = self.bench.answer("user:ann", answers(&id, CONFIRMATION, said)).unwrap_err();
        assert_eq!(refusal.reason, Reason::CallNotFound);
        let noted = self.bench.fact("user:ann", |draft, past| draft.assign(past, &id, None, None));
        assert_eq!(noted.unwrap_err().reason, no_approval(&id).reason);
    }

    /// Everyone comes back, agrees and has answered.
    fn finish(&mut self) {
        for _ in 0..500 {
            let bench = &mut self.bench;
            if let Some((_, frame)) = bench.hands.models.keys().next().cloned() {
                bench.reply_in(&frame, Ok(says("done")));
            } else if let Some((call, ..)) = bench.hands.bodies.iter().next().cloned() {
                *self.worked.entry(call.clone()).or_default() += 1;
                let name = call.as_str().trim_start_matches("adk-").to_owned();
                bench.back(&name, value(json!({"n": 1})));
            } else if let Some(call) = bench.session.calls.values().find(|c| c.held().is_some()) {
                let said = match call.held() {
                    Some(Kind::Confirmation) => json!({"confirmed": true}),
                    _ => json!({"end": 1}),
                };
                let mut with = answers(&call.spec.id, &call.spec.name, Some(said));
                with.answers[0].will_continue = Some(false);
                if bench.answer("user:ann", with).is_err() {
                    bench.pass(60);
                }
            } else {
                break;
            }
            self.check();
        }
        let session = &self.bench.session;
        assert!(session.invocations.is_empty(), "{:?}", self.bench);
        assert!(session.claim.is_none() && session.calls.is_empty() && session.queued.is_empty());
        assert_eq!(self.ledger.open().count(), 0);
        for call in &self.bench.past {
            let closing = call.closed().expect("it is over");
            assert!(call.untold.is_none(), "{:?}: {:?}", call.spec.id, self.bench);
            if call.asks().is_some() {
                let verdict = call.approval.as_ref().unwrap().verdict;
                assert_eq!(verdict.is_some(), matches!(closing.end, End::Done | End::Denied));
            }
        }
    }

    fn check(&mut self) {
        for record in &self.bench.log[self.read..] {
            self.ledger.add(record);
        }
        self.read = self.bench.log.len();
        let wrong = &self.ledger.wrong;
        assert!(wrong.is_empty(), "{}\n{:?}", wrong.join("\n"), self.bench);
        let bench = &self.bench;
        for spec in bench.begun.iter().map(|call| &call.spec) {
            let digest = digest_of(&spec.name, &spec.args);
            assert_eq!(digest, spec.args_digest, "others run: {bench:?}");
        }
        for (id, times) in &self.worked {
            let spec = &bench.call(id.as_str().trim_start_matches("adk-")).spec;
            let asked = bench.call(id.as_str().trim_start_matches("adk-")).execution;
            assert!(*times <= asked * Ledger::may_run(spec), "{id} ran {times} times: {bench:?}");
        }
        let claimed = bench.session.claim.is_some();
        assert!(claimed || !bench.session.can_move(), "nobody moves it: {bench:?}");
        let busy = !bench.hands.models.is_empty() || !bench.hands.bodies.is_empty();
        assert!(!claimed || busy, "nothing moves it: {bench:?}");
        bench.session.calls.values().for_each(|call| self.cared_for(call));
        for key in bench.hands.models.keys() {
            let contents = bench.prompt_of(key);
            whole(&contents, bench);
            ordered(&contents, bench);
        }
        let before = self.bench.log.len();
        self.bench.drive();
        if claimed {
            self.bench.by_hand(|draft| draft.settle());
        }
        assert_eq!(self.bench.since(before), [""; 0], "it was settled: {:?}", self.bench);
    }

    /// Each open call is somebody's to move.
    fn cared_for(&self, call: &Call) {
        let session = &self.bench.session;
        let open = |id: &CallId| session.calls.get(id).is_some_and(|call| call.held().is_some());
        let question = call.gated.as_ref().and_then(|gated| gated.question.as_ref());
        let turn = session.turn(call);
        let asked = |call: &&Call| {
            let question = call.gated.as_ref().and_then(|gated| gated.question.as_ref());
            question.is_some_and(open)
        };
        // What a frame has to tell is told when all its bodies are back, and then people are asked.
        let beside = session.frame_calls(&call.invocation, &call.frame);
        let working = |call: &&Call| call.body.is_some();
        let runs = session.running.as_ref() == Some(&call.invocation);
        let ending = session.invocations[&call.invocation].ending.is_some();
        let right = match &call.phase {
            Phase::Held(_) | Phase::Closed(_) => true,
            Phase::Running => call.body.is_some(),
            // Its invocation waits for another one, or for bodies before it ends.
            Phase::Requested => !runs && session.running.is_some(),
            Phase::Gated | Phase::Waiting => {
                question.is_some_and(open)
                    || turn.iter().any(asked)
                    || beside.iter().any(working)
                    || (!runs && session.running.is_some())
                    || ending
            }
        };
        assert!(right || ending, "{} waits for nobody: {:?}", call.spec.id, self.bench);
        let Some(approval) = &call.approval else { return };
        let Some(about) = approval.about.as_ref().filter(|_| call.held().is_some()) else { return };
        let gated = &session.calls[&about.id];
        assert_eq!(gated.spec, *about, "other arguments are shown than would run");
        assert_eq!(gated.gated.as_ref().unwrap().question.as_ref(), Some(&call.spec.id));
        assert!(matches!(gated.phase, Phase::Gated), "{:?}", self.bench);
    }
}

fn raised(lot: &mut Lot) -> Raised {
    Raised {
        hint: "really?".to_owned(),
        payload: lot.one_in(2).then(|| json!({"days": 0})),
        declined: lot.one_in(2).then(|| object(json!({"status": "declined"}))),
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn nothing_that_needs_a_person_runs_without_one(
        steps in prop::collection::vec(any::<u64>(), 1..STEPS),
    ) {
        let mut world = World::new();
        world.message();
        for pick in steps {
            world.step(pick);
            world.check();
        }
        world.finish();
        folds(&world.bench);
    }
}
