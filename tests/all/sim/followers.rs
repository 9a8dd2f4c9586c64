//! Followers: they join early, late, twice, with and without a cursor, leave, and come back where
//! they were. What each connection showed is checked against the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use countersign::runner::index::State;
use countersign::runner::{
    Caller, Changed, Follow, InvocationFilter, Item, Run, Started, Submitted,
};
use countersign::session::content::Object;
use countersign::session::id::{EventId, InvocationId, Principal, SessionKey};
use countersign::session::record::Record;

use super::clients::living;
use super::process::Process;
use super::world::{Heard, World};

/// How often a follower looks whether all is over.
const GLANCE: Duration = Duration::from_millis(700);

/// What one connection showed.
pub struct Stint {
    pub key: SessionKey,
    pub invocation: Option<InvocationId>,
    /// What it followed from; of a watcher only the sequence.
    pub from: From,
    pub seen: Vec<Seen>,
    pub end: End,
}

pub enum From {
    After(u64),
    Started(Box<Started>),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    Event(EventId),
    Paused,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum End {
    /// Nobody ended it.
    Open,
    /// The follower left, or its process died.
    Left,
    /// The log had been read to its end when all was over.
    Whole,
    /// The session is gone.
    Gone,
    /// The invocation ended.
    Ended,
}

/// What to follow after an answer.
pub fn started_of(done: &Submitted) -> Started {
    Started {
        uid: done.uid.clone(),
        key: done.key.clone(),
        invocation: done.invocation.clone(),
        after: done.position,
        sequence: done.after_sequence,
        pauses_after: done.position,
        seen: 0,
        own: done.own.clone(),
        replayed: false,
    }
}

/// Follows what a request began, and comes back when its process dies.
pub async fn follow_run(world: Arc<World>, started: Started) {
    let (key, id) = (started.key.clone(), started.invocation.clone());
    let mut next = Some(started);
    while let Some(started) = next.take() {
        let Some(process) = living(&world) else { return };
        let follow = process.runner.follow(&started);
        let from = From::Started(Box::new(started));
        let at = begin(&world, &key, Some(&id), from);
        let (again, after) = stint(&world, &process, follow, at).await;
        if again {
            next = attach(&world, &key, &id, after).await;
        }
    }
}

/// Attaches to an invocation from behind a cursor on.
async fn attach(world: &World, key: &SessionKey, id: &InvocationId, after: u64) -> Option<Started> {
    let caller = Caller { principal: Principal::parse("user:p9").unwrap(), mark: None };
    let run = Run {
        app: key.app.clone(),
        user: key.user.clone(),
        session: None,
        message: None,
        state_delta: Object::new(),
        streaming: false,
        max_llm_calls: None,
        custom_metadata: Object::new(),
        invocation: Some(id.clone()),
        after_sequence: after,
    };
    for _ in 0..20 {
        world.pause(800).await;
        let Some(process) = living(world) else { continue };
        let attached = tokio::select! {
            biased;
            attached = process.runner.run(caller.clone(), run.clone()) => attached,
            () = process.life.dead.cancelled() => continue,
        };
        match attached {
            Ok(started) => {
                world.saw("a run attached to");
                return Some(started);
            }
            Err(refusal) if transient(&refusal) => {}
            Err(_) => return None,
        }
    }
    None
}

fn transient(refusal: &countersign::session::Refusal) -> bool {
    use countersign::session::refusal::Reason::*;
    matches!(refusal.reason, StoreUnavailable | Overloaded | WriteOutcomeUnknown | Draining)
}

/// Watches a session, and comes back with its cursor until all is over.
pub async fn watch(
    world: Arc<World>,
    key: SessionKey,
    invocation: Option<InvocationId>,
    after: u64,
) {
    let (mut after, mut again) = (after, true);
    while again {
        world.pause(300).await;
        let Some(process) = living(&world) else { continue };
        let watched = tokio::select! {
            biased;
            watched = process.runner.watch(&key, after, invocation.clone()) => watched,
            () = process.life.dead.cancelled() => continue,
        };
        let follow = match watched {
            Ok(follow) => follow,
            Err(refusal) if transient(&refusal) => continue,
            Err(_) => {
                world.saw("a watch refused");
                return;
            }
        };
        let at = begin(&world, &key, invocation.as_ref(), From::After(after));
        (again, after) = stint(&world, &process, follow, at).await;
    }
}

fn begin(world: &World, key: &SessionKey, invocation: Option<&InvocationId>, from: From) -> usize {
    let mut journal = world.journal();
    let (key, invocation) = (key.clone(), invocation.cloned());
    journal.stints.push(Stint { key, invocation, from, seen: Vec::new(), end: End::Open });
    journal.stints.len() - 1
}

/// One connection. True: it is to be taken up again behind the sequence.
async fn stint(
    world: &Arc<World>,
    process: &Process,
    mut follow: Follow,
    at: usize,
) -> (bool, u64) {
    let mut caught_up = false;
    let end = loop {
        let item = tokio::select! {
            biased;
            item = follow.next() => item,
            () = process.life.dead.cancelled() => break End::Left,
            () = World::wait(GLANCE) => {
                if world.is_over() {
                    // Two processes wake each other's followers only by the store.
                    break if caught_up && !world.profile.two { End::Whole } else { End::Left };
                }
                if !world.is_calm() && world.percent(4) {
                    world.saw("a follower that leaves");
                    break End::Left;
                }
                continue;
            }
        };
        let seen = match item {
            Ok(Item::Event(record)) => {
                let event = record.body.event().unwrap();
                world.tell(|| format!("follower {at} sees {} {}", event.sequence, event.id));
                world.shown(&event.id);
                hear(world, &record, at);
                Seen::Event(event.id.clone())
            }
            Ok(Item::Paused(held)) => {
                world.tell(|| format!("follower {at} sees a pause of {}", held.len()));
                Seen::Paused
            }
            Ok(Item::Ended(how)) => {
                world.tell(|| format!("follower {at} sees the end, {how:?}"));
                Seen::Ended
            }
            Ok(Item::CaughtUp) => {
                world.check(!caught_up, || "a follower caught up twice".to_owned());
                caught_up = true;
                if world.is_over() && world.profile.two {
                    break End::Whole;
                }
                continue;
            }
            Ok(Item::Piece(_)) => {
                world.saw("a piece of a text");
                continue;
            }
            Err(refusal) if transient(&refusal) => break End::Left,
            Err(_) => {
                world.saw("a follower of a session that is gone");
                break End::Gone;
            }
        };
        let ended = seen == Seen::Ended;
        world.journal().stints[at].seen.push(seen);
        if ended {
            world.saw("a follower to the end");
            break End::Ended;
        }
    };
    world.journal().stints[at].end = end;
    world.tell(|| format!("follower {at} ends: {end:?}"));
    (end == End::Left, follow.last_sequence())
}

/// Whoever sees calls can answer them, held or not.
fn hear(world: &World, record: &Record, at: usize) {
    let event = record.body.event().unwrap();
    let mut journal = world.journal();
    let session = journal.stints[at].key.clone();
    for call in event.function_calls() {
        if !journal.heard.iter().any(|heard| heard.call == call.id) {
            let (call, name, session) = (call.id.clone(), call.name.clone(), session.clone());
            journal.heard.push(Heard { call, name, session });
        }
    }
}

/// Watches all invocations; gives how each stands in the end, none for one that was removed.
pub async fn watch_invocations(world: Arc<World>) -> BTreeMap<InvocationId, Option<State>> {
    let (mut told, mut ended, mut cursor) = (BTreeMap::new(), BTreeMap::new(), None);
    let mut whole = false;
    while !whole {
        let Some(process) = living(&world) else {
            world.pause(300).await;
            continue;
        };
        let mut changes = process.runner.watch_invocations(InvocationFilter::default(), cursor);
        let last = world.is_over();
        loop {
            let next = tokio::select! {
                biased;
                next = changes.next() => next,
                () = process.life.dead.cancelled() => break,
                () = World::wait(GLANCE) => {
                    if last {
                        whole = true;
                        break;
                    }
                    if world.is_over() { break }
                    continue;
                }
            };
            match next {
                Ok((feed, Changed::Now(view))) => {
                    world.heard(&view, &ended);
                    if !matches!(view.state, State::Running | State::Paused) {
                        ended.insert(view.id.clone(), view.state);
                    }
                    world.tell(|| format!("{} is {:?}, feed {feed}", view.id, view.state));
                    told.insert(view.id.clone(), Some(view.state));
                    if feed > 0 {
                        cursor = Some(feed);
                    }
                }
                Ok((feed, Changed::Removed(gone))) => {
                    told.insert(gone.id, None);
                    cursor = Some(feed);
                }
                Ok((feed, Changed::CaughtUp)) => cursor = Some(feed),
                Err(refusal) => {
                    world.check(transient(&refusal), || format!("changes end: {refusal}"));
                    world.pause(300).await;
                    break;
                }
            }
        }
    }
    told
}
