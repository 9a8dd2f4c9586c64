//! Random logs: whatever comes in whatever order, the same holds. After each step: sequences have
//! no hole, prompts are whole, and who looks again appends nothing. Of each log: a fold that begins
//! at a snapshot is the fold of everything. In the end, when all have answered, nobody has the
//! session and nothing of it is open.

use countersign::session::codec;
use countersign::session::content::{Event, Role};
use countersign::session::record::Ending;
use proptest::prelude::*;

use super::*;
use crate::support::cases;

/// Steps of one log; each is a number that picks among what can happen then.
const STEPS: usize = 50;

/// More calls than this are made in no log.
const MAX_CALLS: u32 = 12;

struct World {
    bench: Bench,
    calls: u32,
    invocations: u32,
}

impl World {
    fn new() -> Self {
        Self { bench: Bench::new(), calls: 0, invocations: 0 }
    }

    fn spec(&mut self, pick: u32) -> Spec {
        self.calls += 1;
        let effect = [Effect::Once, Effect::Idempotent, Effect::Read][pick as usize % 3];
        let long_running = pick % 4 < 2;
        let expires = std::time::Duration::from_secs(60);
        let mut made = spec(
            &format!("{}-{}", ["held", "tool"][usize::from(!long_running)], self.calls),
            Behaviour {
                long_running,
                effect,
                expires_after: (pick.is_multiple_of(5) && long_running).then_some(expires),
                answers: [Answers::Once, Answers::Many][pick as usize / 7 % 2],
                ..Behaviour::default()
            },
        );
        made.failed = pick.is_multiple_of(11).then(|| object(json!({"error": "bad"})));
        made
    }

    /// One step.
    fn step(&mut self, pick: u32) {
        let of = pick / 16;
        match pick % 16 {
            0 | 1 => self.message(),
            2..=5 => self.model(of),
            6..=9 => self.body(of),
            10..=12 => self.answer(of),
            13 => self.cancel(of),
            14 if of.is_multiple_of(3) => self.bench.pass(45),
            14 => self.state(of),
            _ => self.lose(of),
        }
    }

    fn message(&mut self) {
        if self.bench.say(self.invocations + 1).is_ok() {
            self.invocations += 1;
        }
    }

    fn model(&mut self, of: u32) {
        let asked: Vec<FrameId> = self.bench.hands.models.keys().map(|(_, f)| f.clone()).collect();
        if asked.is_empty() {
            return;
        }
        let frame = asked[of as usize % asked.len()].clone();
        let kind = of / 8;
        let reply = match kind % 8 {
            0 => Err(("MODEL_DOWN".to_owned(), "no".to_owned())),
            1..=4 if self.calls < MAX_CALLS => {
                let count = 1 + kind / 8 % 3;
                Ok(calls((0..count).map(|n| self.spec(of / 16 + n * 3)).collect()))
            }
            _ => Ok(says(&format!("words {}", self.bench.log.len()))),
        };
        self.bench.reply_in(&frame, reply);
    }

    fn body(&mut self, of: u32) {
        let at_work: Vec<_> = self.bench.hands.bodies.iter().cloned().collect();
        if at_work.is_empty() {
            return;
        }
        let key = at_work[of as usize % at_work.len()].clone();
        let call = self.bench.session.calls.get(&key.0).cloned();
        let long_running = call.as_ref().is_some_and(|call| call.spec.behaviour.long_running);
        let running = call.as_ref().is_some_and(|call| call.phase == Phase::Running);
        let name = key.0.as_str().trim_start_matches("adk-").to_owned();
        let gave = match of / 8 % 8 {
            0 => Gave::Unknown,
            1 => Gave::NotRun,
            2 => Gave::Outcome(Outcome::Error(object(json!({"error": "no"})))),
            3 if long_running => Gave::Outcome(Outcome::Nothing),
            4 if running && !long_running => {
                let frame = call.unwrap().frame;
                let open = frame.as_str().matches('/').count() < 2;
                if open {
                    self.bench.open(&name, &frame, "helper", "find out");
                    return;
                }
                value(json!({"n": 1}))
            }
            _ => value(json!({"n": of})),
        };
        let delta = match of / 64 % 3 {
            0 => object(json!({"a": of})),
            1 => object(json!({"a": null, "temp:b": 1})),
            _ => Object::new(),
        };
        self.bench.back_with(&name, gave, delta, of.is_multiple_of(13));
    }

    fn answer(&mut self, of: u32) {
        let calls: Vec<Call> = self.bench.session.calls.values().cloned().collect();
        if calls.is_empty() {
            return;
        }
        let chosen = &calls[of as usize % calls.len()];
        let content = json!({"status": of / 8 % 2});
        let mut with = answers(&chosen.spec.id, &chosen.spec.name, Some(content));
        with.answers[0].will_continue = [None, Some(true), Some(false)][of as usize / 16 % 3];
        with.skip_summarization = (of / 16).is_multiple_of(7);
        if (of / 16).is_multiple_of(5) {
            let other = &calls[of as usize / 5 % calls.len()];
            let more = answers(&other.spec.id, &other.spec.name, Some(json!({"n": 1}))).answers;
            with.answers.extend(more);
        }
        let who = ["user:ann", "user:bob"][of as usize / 32 % 2];
        let _ = self.bench.answer(who, with);
    }

    fn cancel(&mut self, of: u32) {
        let open: Vec<_> = self.bench.session.invocations.keys().cloned().collect();
        if let Some(chosen) = open.get(of as usize % 4) {
            self.bench.fact("user:ann", |draft, _| draft.cancel(chosen)).unwrap();
        }
    }

    fn state(&mut self, of: u32) {
        let delta = object(json!({"a": of, "b": null}));
        let changed = self.bench.fact("user:ann", |draft, _| {
            draft.change_state(invocation(99), delta);
            Ok(())
        });
        changed.unwrap();
    }

    fn lose(&mut self, of: u32) {
        if self.bench.session.claim.is_none() {
            return;
        }
        let late = self.bench.hands.bodies.iter().next().cloned();
        self.bench.crash();
        let Some((call, execution, _)) = late.filter(|_| of.is_multiple_of(2)) else { return };
        let outcome = Outcome::Value(object(json!({"late": true})));
        let handed_in = self.bench.fact("server:process-0", |draft, _| {
            Ok(draft.returned(&call, execution, back(outcome, object(json!({"late": 1})))))
        });
        handed_in.unwrap();
    }

    /// Everyone comes back and has answered.
    fn finish(&mut self) {
        for _ in 0..500 {
            let bench = &mut self.bench;
            if let Some((_, frame)) = bench.hands.models.keys().next().cloned() {
                bench.reply_in(&frame, Ok(says("done")));
            } else if let Some((call, ..)) = bench.hands.bodies.iter().next().cloned() {
                let name = call.as_str().trim_start_matches("adk-").to_owned();
                bench.back(&name, value(json!({"n": 1})));
            } else if let Some(call) = bench.session.calls.values().find(|c| c.held().is_some()) {
                let mut with = answers(&call.spec.id, &call.spec.name, Some(json!({"end": 1})));
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
        for call in &self.bench.past {
            assert!(call.closed().is_some(), "{:?} is open: {:?}", call.spec.id, self.bench);
            assert!(self.bench.told(&call.spec.name) > 0, "{:?}: {:?}", call.spec.id, self.bench);
        }
        self.answers_were_seen();
    }

    /// No answer went untold, unless the invocation was cancelled or has failed.
    fn answers_were_seen(&self) {
        let log = &self.bench.log;
        let completed = log.iter().filter_map(|record| match &record.body {
            Body::Ended { invocation, how: Ending::Completed } => Some(invocation),
            _ => None,
        });
        for invocation in completed {
            let mut told = 0;
            let mut seen = 0;
            for (position, record) in (1..).zip(log) {
                let Some(event) = record.body.event() else { continue };
                if &event.invocation_id != invocation {
                    continue;
                }
                match &record.body {
                    Body::Answered { .. } | Body::Placed { .. }
                        if !event.actions.skip_summarization =>
                    {
                        told = position;
                    }
                    Body::Replied { seen: upto, .. } => seen = *upto,
                    _ => {}
                }
            }
            assert!(seen >= told, "{told} was in no prompt of {invocation}: {:?}", self.bench);
        }
    }

    fn check(&mut self) {
        let bench = &self.bench;
        let events = bench.log.iter().filter_map(|record| record.body.event());
        let sequences: Vec<u64> = events.map(|event| event.sequence).collect();
        assert_eq!(sequences, (1..=sequences.len() as u64).collect::<Vec<_>>());
        let claimed = bench.session.claim.is_some();
        assert!(claimed || !bench.session.can_move(), "nobody moves it: {bench:?}");
        let busy = !bench.hands.models.is_empty() || !bench.hands.bodies.is_empty();
        assert!(!claimed || busy, "nothing moves it: {bench:?}");
        for key in bench.hands.models.keys() {
            let contents = bench.prompt_of(key);
            whole(&contents, bench);
            ordered(&contents, bench);
        }
        for call in bench.session.calls.values().filter(|call| call.closed().is_none()) {
            assert!(call.attempt <= 3 && call.execution == 1);
        }
        let before = self.bench.log.len();
        self.bench.drive();
        if claimed {
            self.bench.by_hand(|draft| draft.settle());
        }
        assert_eq!(self.bench.since(before), [""; 0], "it was settled: {:?}", self.bench);
    }
}

/// A fold from any snapshot is the fold of everything, and so are the calls that it let go.
pub fn folds(bench: &Bench) {
    let log = &bench.log;
    let stored: Vec<_> = log.iter().map(codec::encode_record).collect();
    let read: Vec<_> = stored.iter().map(|r| codec::decode_record(r).unwrap()).collect();
    assert_eq!(&read, log);
    let past = |touched: Touched| -> Vec<Call> {
        touched.ended.into_iter().flat_map(|(_, calls)| calls).collect()
    };
    let mut folds = vec![(Session::begin(&read[0]).unwrap(), 0)];
    let mut over = Vec::new();
    for record in &read[1..] {
        let (mut next, mut touched) = (folds.last().unwrap().0.clone(), Touched::default());
        next.apply(record, &mut touched);
        over.extend(past(touched));
        folds.push((next, over.len()));
    }
    assert_eq!(folds.last().map(|(fold, _)| fold), Some(&bench.session));
    assert_eq!(over, bench.past);
    for (at, (fold, gone)) in folds.iter().enumerate() {
        let mut again = codec::decode_snapshot(&codec::encode_snapshot(fold)).unwrap();
        assert_eq!(&again, fold);
        let mut touched = Touched::default();
        for record in &read[at + 1..] {
            again.apply(record, &mut touched);
        }
        assert_eq!(again, bench.session);
        assert_eq!(past(touched), bench.past[*gone..]);
    }
}

/// Every call has exactly one response, in the content directly behind it.
pub fn whole(contents: &[Content], bench: &Bench) {
    let mut waiting: Vec<&CallId> = Vec::new();
    for content in contents {
        let mut responses: Vec<&CallId> = content.responses().map(|part| &part.id).collect();
        responses.sort();
        waiting.sort();
        assert_eq!(responses, waiting, "{contents:?} {bench:?}");
        waiting = content.calls().map(|call| &call.id).collect();
        assert!(waiting.is_empty() || content.role == Role::Model);
    }
    assert!(waiting.is_empty(), "{contents:?} {bench:?}");
    assert!(!contents.is_empty(), "an empty prompt: {bench:?}");
}

/// What is told stands in the order of the log, a reply where its prompt was built; responses in
/// the order in which their calls were first answered, each the last one that its call has.
pub fn ordered(contents: &[Content], bench: &Bench) {
    let mut log: Vec<(u64, u64, &Event)> = Vec::new();
    for (position, record) in (1..).zip(&bench.log) {
        let Some(event) = record.body.event() else { continue };
        let place = match &record.body {
            Body::Replied { seen, .. } if event.error_code.is_empty() => *seen,
            _ => position,
        };
        log.push((place, position, event));
    }
    let answers: Vec<_> = log.iter().flat_map(|(_, _, e)| e.function_responses()).collect();
    log.sort_by_key(|(place, position, _)| (*place, *position));
    let mut rest = log.iter().filter_map(|(_, _, event)| event.content.as_ref());
    for content in contents {
        let mut before = 0;
        for response in content.responses() {
            let first = answers.iter().position(|answer| answer.id == response.id);
            let first = first.unwrap_or(answers.len());
            assert!(before <= first, "{contents:?} {bench:?}");
            before = first;
            let last = answers.iter().rfind(|answer| answer.id == response.id);
            let held = || object(json!({"status": "pending"}));
            let expected = last.map_or_else(|| Some(held()), |last| last.response.clone());
            assert_eq!(response.response, expected, "{bench:?}");
        }
        if content.responses().next().is_none() {
            let told = |event: &Content| content.parts.iter().all(|p| event.parts.contains(p));
            assert!(rest.any(told), "{content:?} is out of order in {contents:?} {bench:?}");
        }
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn whatever_comes_the_same_holds(steps in prop::collection::vec(0..100_000_u32, 1..STEPS)) {
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
