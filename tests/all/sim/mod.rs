//! The simulation: whole histories of processes, clients, followers and faults, with the runner
//! that serves and the store that is the oracle, in virtual time and on one thread. One number, the
//! seed, makes all of a history, so whatever goes wrong in one can be seen again.
//!
//! `COUNTERSIGN_SEEDS=100000 cargo test --test all sim` tries more of them,
//! `COUNTERSIGN_SEEDS=7..8` these ones, and with `COUNTERSIGN_TRACE=1` prints what happened.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use countersign::runner::{Caller, Submission};
use countersign::session::decide::{Incoming, Incomings};
use countersign::session::id::Principal;
use countersign::session::{Session, content::Object};
use serde_json::json;

use chance::Chance;
use clients::{Client, living};
use process::Process;
use world::World;

mod cast;
mod chance;
mod check;
mod clients;
mod deciders;
mod followers;
mod process;
mod world;

/// How many histories are tried unless the environment says otherwise.
const SEEDS: u64 = 1_000;

/// Longest time until everything rests, in virtual seconds.
const REST: u64 = 300;

/// All that must have happened in a thousand histories, or they would prove nothing.
const COVERAGE: &[&str] = &[
    "a batch repeated",
    "a body out of time",
    "a body that asks",
    "a body started again",
    "a body of an approved call",
    "a call refused",
    "a body that does not know",
    "a body that fails",
    "a body that needs no summary",
    "a body that panics",
    "a call answered already",
    "a call cancelled",
    "a call expired",
    "a cancel",
    "a cancel refused",
    "a change of state",
    "a client that leaves",
    "a conflict",
    "a decision refused",
    "a decision that changes arguments",
    "a lease",
    "a lease that holds somebody off",
    "a question asked",
    "a question approved",
    "a question denied",
    "a question denied by its deadline",
    "a question expired",
    "a reminder",
    "a standing approval made",
    "a standing approval revoked",
    "a standing approval used",
    "an answer to a gated call",
    "an escalation",
    "an extension",
    "an unknown outcome run again",
    "a crash before an append",
    "a crash behind an append",
    "a deletion refused",
    "a follower of a session that is gone",
    "a follower that leaves",
    "a follower to the end",
    "a limit of model calls",
    "a mark used twice",
    "a message refused",
    "a model that fails",
    "a model that panics",
    "a model that says nothing",
    "a pause",
    "a piece of a text",
    "a queued answer placed",
    "a read that fails",
    "a request made twice",
    "a request seen by the store",
    "a run attached to",
    "a session deleted",
    "a session that exists",
    "a takeover",
    "a watch refused",
    "a wrong answer",
    "an answer applied",
    "an answer by RunAsync",
    "an answer made twice",
    "an answer of progress",
    "an answer queued",
    "an answer that does not fit",
    "an answer that overtakes its body",
    "an answer to a call that is gone",
    "an answer to a cancelled call",
    "an answer too early",
    "an answer too late",
    "an append refused",
    "an append unknown and not written",
    "an append unknown and written",
    "an invocation cancelled",
    "an invocation completed",
    "an invocation failed",
    "an invocation given up",
    "an outcome unknown to its client",
    "an unknown outcome",
    "an unknown outcome settled late",
    "answers to two invocations",
    "everything over",
    "storm",
    "suspicion",
];

/// What became of a history.
struct Outcome {
    wrong: Vec<String>,
    saw: Vec<&'static str>,
    trace: Vec<String>,
}

/// One history.
fn simulate(seed: u64, traced: bool) -> Outcome {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new(seed, traced);
        live(&world).await;
        let trace = world.take_trace();
        let mut journal = world.journal();
        let saw = journal.saw.iter().copied().collect();
        Outcome { wrong: std::mem::take(&mut journal.wrong), saw, trace }
    })
}

async fn live(world: &Arc<World>) {
    for slot in 0..if world.profile.two { 2 } else { 1 } {
        world.processes.lock().unwrap().push(None);
        tokio::spawn(keep(world.clone(), slot));
    }
    let watcher = tokio::spawn(followers::watch_invocations(world.clone()));
    let clients = (0..world.profile.clients)
        .map(|number| tokio::spawn(Client::new(world, number).live()))
        .collect::<Vec<_>>();
    for client in clients {
        let done = tokio::time::timeout(Duration::from_secs(1_000), client).await;
        match done {
            Ok(Ok(())) => {}
            Ok(Err(panic)) => world.wrong(format!("a client panicked: {panic}")),
            Err(_) => world.wrong("a client does not end"),
        }
    }
    world.calm_down();
    rest(world).await;
    if world.percent(60) {
        answer_all(world).await;
    }
    world.end();
    let told = tokio::time::timeout(Duration::from_secs(60), watcher).await;
    let told = match told {
        Ok(Ok(told)) => told,
        other => return world.wrong(format!("the watcher does not end: {other:?}")),
    };
    World::wait(Duration::from_secs(60)).await;
    let fresh = Process::start(world);
    check::all(world, &fresh, &told).await;
}

/// Starts a process in this place, and the next one when it has died.
async fn keep(world: Arc<World>, slot: usize) {
    while !world.is_over() {
        let process = Process::start(&world);
        let dead = process.life.dead.clone();
        let born = async {
            // Nothing is served before.
            while let Err(refusal) = process.runner.recover().await {
                world.tell(|| format!("recovery failed: {refusal}"));
                world.pause(300).await;
            }
            world.processes.lock().unwrap()[slot] = Some(process.clone());
            tokio::spawn(process.clone().reconcile(world.clone()));
        };
        tokio::select! {
            biased;
            () = dead.cancelled() => {}
            () = born => dead.cancelled().await,
        }
        world.pause(2_000).await;
    }
}

/// Waits until nothing can move any more.
async fn rest(world: &Arc<World>) {
    for second in 0..REST {
        World::wait(Duration::from_secs(1)).await;
        // Of two processes none knows that the other one has made a session move.
        if world.profile.two
            && second % 8 == 7
            && let Some(process) = living(world)
        {
            process.take_over(world, "a takeover").await;
        }
        if open(world).iter().all(|fold| fold.claim.is_none() && !due(world, fold)) {
            // A body that nobody waits for may still come back.
            World::wait(Duration::from_secs(8)).await;
            return;
        }
    }
    world.wrong("nothing comes to a rest");
}

fn open(world: &World) -> Vec<Session> {
    let journal = world.journal();
    journal.logs.values().filter(|log| !log.deleted).filter_map(|log| log.fold()).collect()
}

/// A deadline has passed and nobody has kept it, or will pass before all is over.
fn due(world: &World, fold: &Session) -> bool {
    let soon = world.now() + REST * 1_000_000;
    let mut calls = fold.calls.values().filter(|call| call.closed().is_none());
    calls.any(|call| call.due().is_some_and(|due| due <= soon))
}

/// Whatever is held is answered, until everything is over.
async fn answer_all(world: &Arc<World>) {
    for _ in 0..60 {
        let folds = open(world);
        let held = folds.iter().flat_map(|fold| fold.calls.values());
        let Some(call) = held.into_iter().find(|call| call.held().is_some()).cloned() else {
            world.saw("everything over");
            let over = folds.iter().all(|fold| fold.invocations.is_empty());
            return world.check(over, || "something is open and held by nobody".to_owned());
        };
        let Some(process) = living(world) else { continue };
        let caller = Caller { principal: Principal::parse("user:last").unwrap(), mark: None };
        let response = match call.asks() {
            Some(_) => json!({"confirmed": world.percent(70)}),
            None => json!({"status": "approved", "number": world.count()}),
        };
        let answer = Incoming {
            decision: None,
            call: call.spec.id.clone(),
            name: call.spec.name.clone(),
            response: response.as_object().cloned(),
            will_continue: Some(false),
            field: String::new(),
        };
        let answers = Incomings {
            answers: vec![answer],
            invocation: None,
            expected_args_digest: None,
            skip_summarization: false,
            comment: String::new(),
            state_delta: Object::new(),
        };
        let submission = Submission { app: None, user: None, session: None, answers, etag: None };
        let done = process.runner.submit(caller, submission).await;
        let expired = call.expire_time.is_some_and(|due| due <= world.now());
        let lease = call.approval.as_ref().and_then(|approval| approval.lease.as_ref());
        let claimed = lease.is_some();
        let right = done.is_ok() || expired || claimed;
        world.check(right, || format!("a held call cannot be answered: {done:?}"));
        rest(world).await;
    }
    world.wrong("invocations are never over");
}

/// The seeds that the environment asks for, or the first ones.
fn seeds() -> Range<u64> {
    let Ok(asked) = std::env::var("COUNTERSIGN_SEEDS") else { return 0..SEEDS };
    let number = |text: &str| text.parse::<u64>().expect("COUNTERSIGN_SEEDS is COUNT or FROM..TO");
    match asked.split_once("..") {
        Some((from, to)) => number(from)..number(to),
        None => 0..number(&asked),
    }
}

/// Tries these seeds on all processors; gives how many histories saw each thing.
fn try_all(seeds: Range<u64>, traced: bool) -> BTreeMap<&'static str, u64> {
    let next = AtomicU64::new(seeds.start);
    let saw: Mutex<BTreeMap<&'static str, u64>> = Mutex::default();
    let wrong: Mutex<BTreeMap<u64, String>> = Mutex::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end || wrong.lock().unwrap().len() >= 5 {
                return;
            }
            let outcome = simulate(seed, traced);
            outcome.trace.iter().for_each(|line| println!("{line}"));
            outcome.saw.iter().for_each(|w| *saw.lock().unwrap().entry(w).or_default() += 1);
            if !outcome.wrong.is_empty() {
                println!("seed {seed} is wrong");
                wrong.lock().unwrap().insert(seed, outcome.wrong.join("\n    "));
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().unwrap();
    let told = |(seed, wrong): (&u64, &String)| {
        format!(
            "seed {seed}: {wrong}\n  again: COUNTERSIGN_TRACE=1 COUNTERSIGN_SEEDS={seed}..{} \
             cargo test --test all sim::every -- --nocapture",
            seed + 1
        )
    };
    let told: Vec<_> = wrong.iter().map(told).collect();
    assert!(told.is_empty(), "{}", told.join("\n"));
    saw.into_inner().unwrap()
}

#[test]
fn every_seed_keeps_the_promises() {
    let seeds = seeds();
    let traced = std::env::var_os("COUNTERSIGN_TRACE").is_some();
    let count = seeds.end.saturating_sub(seeds.start);
    let saw = try_all(seeds, traced);
    for (what, histories) in &saw {
        println!("{histories:>7} {what}");
    }
    if count >= SEEDS {
        let missing: Vec<_> = COVERAGE.iter().filter(|what| !saw.contains_key(**what)).collect();
        assert!(missing.is_empty(), "no history saw {missing:?}");
    }
}

#[test]
fn a_seed_makes_the_same_history_again() {
    let from = Chance::new(seeds().start).below(1 << 40);
    for seed in from..from + 30 {
        let (one, same) = (simulate(seed, true), simulate(seed, true));
        let differs = one.trace.iter().zip(&same.trace).position(|(one, same)| one != same);
        let at = differs.map(|at| (&one.trace[at], &same.trace[at]));
        assert!(at.is_none(), "seed {seed}: {at:?}");
        assert_eq!(one.trace.len(), same.trace.len(), "seed {seed}");
    }
}
