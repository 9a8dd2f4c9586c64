//! The driver: the loop around `step`. It reads the session, appends what follows, performs what is
//! to be performed, and waits for what comes back, or for others' facts. It holds no truth: it can
//! be dropped at any await, and the next claim goes on from the log.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::Instrument;

use super::history::History;
use super::live::Live;
use super::perform::{self, STORE_RETRY};
use super::step::{Decision, Done, Gave, Hands, ModelKey, Work, hand_in};
use super::write::{Plan, Written};
use super::{Inner, lock};
use crate::session::Session;
use crate::session::call::Call;
use crate::session::draft::Draft;
use crate::session::id::SessionUid;
use crate::session::refusal::{Reason, Refusal};

/// Longest wait before the store is asked again.
const MAX_STORE_RETRY: Duration = Duration::from_secs(5);

/// What a driver has beside its hands.
struct Driver {
    inner: Arc<Inner>,
    uid: SessionUid,
    hands: Hands,
    live: Arc<Live>,
    history: History,
    tasks: JoinSet<Done>,
    models: HashMap<ModelKey, AbortHandle>,
    /// Appends in a row that failed.
    failures: u32,
    /// Before the last append that may hold starts went to the store.
    since: Instant,
}

/// A session counts as driven for as long as one of these exists: from before its claim goes to the
/// store until its driver has ended. So nobody takes over what is just being taken. Its log is
/// followed for as long, so that memory has what was appended from the claim on.
pub(super) struct Driven {
    inner: Arc<Inner>,
    uid: SessionUid,
    live: Arc<Live>,
}

impl Driven {
    /// Counts the session as driven.
    pub fn new(inner: &Arc<Inner>, uid: &SessionUid) -> Self {
        *lock(&inner.drivers).entry(uid.clone()).or_default() += 1;
        Self { inner: inner.clone(), uid: uid.clone(), live: inner.hub.follow(uid) }
    }

    /// Nobody else drives it, or is just taking it.
    pub fn alone(&self) -> bool {
        lock(&self.inner.drivers).get(&self.uid) == Some(&1)
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let mut drivers = lock(&self.inner.drivers);
        if let Some(count) = drivers.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                drivers.remove(&self.uid);
            }
        }
    }
}

impl Inner {
    /// Drives a session under the claim that this process has just taken.
    pub(super) fn drive(self: Arc<Self>, session: Arc<Session>, driven: Driven) {
        let Some(claim) = session.claim.clone().filter(|claim| claim.owner == self.owner) else {
            return;
        };
        let uid = session.uid.clone();
        let key = &session.key;
        let span = tracing::info_span!(
            "drive",
            app = %key.app,
            session_id = %key.id,
            invocation_id = tracing::field::Empty,
            epoch = claim.epoch,
        );
        if let Some(running) = &session.running {
            span.record("invocation_id", running.as_str());
        }
        let driver = Driver {
            live: driven.live.clone(),
            hands: Hands::new(claim.owner, claim.epoch),
            history: lock(&self.histories).pop(&uid).unwrap_or_default(),
            tasks: JoinSet::new(),
            models: HashMap::new(),
            failures: 0,
            since: Instant::now(),
            inner: self.clone(),
            uid,
        };
        let drive = async move {
            driver.run(session).await;
            drop(driven);
        };
        self.tasks.spawn(drive.instrument(span));
    }
}

impl Driver {
    /// Drives until there is nothing more to do here. What was read of the log is kept for whoever
    /// goes on with it soon.
    async fn run(mut self, session: Arc<Session>) {
        self.go(session).await;
        if self.history.is_small() {
            lock(&self.inner.histories).put(self.uid, self.history);
        }
    }

    async fn go(&mut self, mut session: Arc<Session>) {
        let mut grows = self.live.grows();
        loop {
            grows.mark_unchanged();
            match self.turn(session).await {
                Turn::Over => return,
                Turn::Again => {}
                Turn::Wait => {
                    if self.stopped() {
                        return;
                    }
                    tokio::select! {
                        biased;
                        Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                            self.back(done);
                            while let Some(done) = self.tasks.try_join_next() {
                                self.back(done);
                            }
                        }
                        () = grows.changed() => {}
                        () = self.inner.draining.cancelled(), if !self.draining() => {}
                    }
                }
                Turn::Retry => tokio::time::sleep(self.pause()).await,
            }
            session = match self.read().await {
                Some(session) => session,
                None => return,
            };
        }
    }

    /// One look at the session: append what follows from it, or perform what it says.
    async fn turn(&mut self, session: Arc<Session>) -> Turn {
        let inner = self.inner.clone();
        let mut mint = inner.ids.mint();
        let now = self.inner.store.now();
        let (since, start) = (Instant::now(), !self.draining());
        let (draft, claimed, hand_in) = match self.hands.decide(&session, now, &mut mint, start) {
            Decision::Nothing => {
                self.hands.settled(start);
                return self.perform(session).await;
            }
            Decision::Append(mut draft) => {
                if start {
                    self.give_at_once(&mut draft);
                }
                (draft, false, false)
            }
            Decision::HandIn { draft, claimed } => (draft, claimed, true),
        };
        if draft.records.is_empty() {
            return self.over();
        }
        let driven = claimed.then(|| Driven::new(&self.inner, &self.uid));
        match self.inner.write(Plan::new(Some(&session), draft)).await {
            Ok(Written::Done(after, placed)) => {
                self.hands.settled(start);
                self.failures = 0;
                placed.iter().for_each(|placed| self.history.push(placed));
                if hand_in {
                    if let Some(driven) = driven {
                        self.inner.clone().drive(after, driven);
                    }
                    return self.over();
                }
                self.since = since;
                if after.claim.is_none() { Turn::Over } else { self.perform(after).await }
            }
            Ok(Written::Conflict | Written::Exists | Written::Seen(_)) => Turn::Again,
            Err(refusal) => self.failed(refusal),
        }
    }

    /// A declared body only builds an object: what it gives goes to the log with its start.
    fn give_at_once(&self, draft: &mut Draft<'_>) {
        while draft.session.calls.values().any(|call| self.hands.starts(call)) {
            let session = Arc::new(draft.session.clone());
            let started = session.calls.values().filter(|call| self.hands.starts(call));
            let declared = started.filter(|call| self.inner.is_declared(&session, call));
            let give = |call: &Call| {
                // Its start goes to the store from here, however long a model has spoken before.
                let body = body_of(&session, call.clone(), Instant::now());
                self.inner.clone().run_body(session.clone(), body).now_or_never()
            };
            let given: Vec<Done> = declared.filter_map(give).collect();
            if given.is_empty() {
                return;
            }
            for done in &given {
                hand_in(draft, done);
            }
            draft.settle();
        }
    }

    /// How long to wait after so many failures in a row.
    fn pause(&self) -> Duration {
        STORE_RETRY.saturating_mul(1 << self.failures.min(6)).min(MAX_STORE_RETRY)
    }

    /// The claim is gone: bodies at work are still awaited, and what they give is handed in.
    fn over(&self) -> Turn {
        if self.hands.bodies.is_empty() { Turn::Over } else { Turn::Wait }
    }

    /// An append failed. What is too large can never be appended: a shorter word takes its place.
    fn failed(&mut self, refusal: Refusal) -> Turn {
        tracing::warn!(reason = refusal.reason.as_str(), "a driver could not append");
        self.failures = self.failures.saturating_add(1);
        match refusal.reason {
            Reason::LimitExceeded if self.hands.shorten(&refusal.message) => Turn::Again,
            // It can never pass: whoever takes the session over next is told so too, and then it is
            // left alone.
            Reason::LimitExceeded => Turn::Over,
            _ if self.stopped() => Turn::Over,
            _ => Turn::Retry,
        }
    }

    /// Starts what the log says is started, and asks the models whose turn it is.
    async fn perform(&mut self, session: Arc<Session>) -> Turn {
        let Work { bodies, models, abandoned } = self.hands.perform(&session);
        for key in abandoned {
            if let Some(task) = self.models.remove(&key) {
                task.abort();
            }
        }
        for call in bodies {
            let body = body_of(&session, call, self.since);
            let running = self.inner.clone().run_body(session.clone(), body);
            self.tasks.spawn(running.in_current_span());
        }
        // What the log says is started is run even now: not to do so would be an unknown outcome.
        let models = if self.draining() { Vec::new() } else { models };
        let mut models = models.into_iter();
        while let Some((key, seen)) = models.next() {
            if let Err(refusal) = self.ask(&session, key.clone(), seen).await {
                tracing::warn!(reason = refusal.reason.as_str(), "a prompt could not be read");
                // Those behind it are not asked either, and must not count as asked.
                for (key, _) in std::iter::once((key, seen)).chain(models) {
                    self.hands.models.remove(&key);
                }
                return Turn::Retry;
            }
        }
        if self.hands.any_to_record(!self.draining()) { Turn::Again } else { Turn::Wait }
    }

    async fn ask(
        &mut self,
        session: &Arc<Session>,
        key: ModelKey,
        seen: u64,
    ) -> Result<(), Refusal> {
        let inner = self.inner.clone();
        let open = session.invocations.get(&key.0);
        let agent = open.and_then(|open| open.frames.get(&key.1)).map(|frame| &frame.agent);
        let role = agent.and_then(|agent| inner.cast.agent(&session.key.app, agent));
        let Some(role) = role else {
            self.hands.back(Done::Model { key, seen, reply: Err(perform::gone()) });
            return Ok(());
        };
        let request = inner.request(session, &mut self.history, &self.live, &key, role).await?;
        let streams = request.stream;
        let asked = self.inner.clone().ask_model(
            session.clone(),
            key.clone(),
            seen,
            request,
            self.live.clone(),
        );
        // Whoever has just asked for pieces is about to listen.
        let task = if streams {
            Some(self.tasks.spawn(asked.in_current_span()))
        } else {
            self.start(asked)
        };
        self.models.extend(task.map(|task| (key, task)));
        Ok(())
    }

    /// Starts a model. What is done at once needs no task of its own: none is given then.
    fn start(&mut self, work: impl Future<Output = Done> + Send + 'static) -> Option<AbortHandle> {
        let mut work = Box::pin(work.in_current_span());
        if let Some(done) = (&mut work).now_or_never() {
            self.hands.back(done);
            return None;
        }
        Some(self.tasks.spawn(work))
    }

    fn back(&mut self, done: Result<Done, tokio::task::JoinError>) {
        match done {
            Ok(done) => {
                if let Done::Model { key, .. } = &done {
                    self.models.remove(key);
                }
                self.hands.back(done);
            }
            // An abandoned model; bodies and models catch their own panics.
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(%error, "a task of a driver ended unexpectedly"),
        }
    }

    async fn read(&self) -> Option<Arc<Session>> {
        loop {
            match self.inner.session(&self.uid).await {
                Ok(session) => return session,
                Err(refusal) if refusal.reason == Reason::SessionQuarantined => return None,
                Err(_) if self.stopped() => return None,
                Err(_) => tokio::time::sleep(STORE_RETRY).await,
            }
        }
    }

    fn draining(&self) -> bool {
        self.inner.draining.is_cancelled()
    }

    /// While draining only bodies at work are waited for; the next start does the rest.
    fn stopped(&self) -> bool {
        self.draining() && self.hands.bodies.is_empty() && !self.hands.any_to_record(false)
    }
}

/// A body whose start goes to the store, or went there, from a moment on.
fn body_of(session: &Session, call: Call, since: Instant) -> perform::Body {
    let siblings = |other: &&Call| other.sequence == call.sequence;
    let siblings = session.calls.values().filter(siblings).count();
    perform::Body { call, since, siblings }
}

/// How a look at the session ended.
enum Turn {
    /// Wait for what comes back, or for others.
    Wait,
    /// Look again.
    Again,
    /// Look again, a little later.
    Retry,
    /// There is nothing more to do here.
    Over,
}

impl Hands {
    /// Replaces what came back and was too large to be recorded. False: there is nothing to
    /// replace.
    fn shorten(&mut self, message: &str) -> bool {
        let mut any = false;
        for done in &mut self.done {
            match done {
                Done::Body { gave: gave @ Gave::Outcome(_), state_delta, .. } => {
                    let error = crate::tool::arguments::error(message.to_owned());
                    let error = Gave::Outcome(crate::session::record::Outcome::Error(error));
                    any |= *gave != error;
                    *gave = error;
                    state_delta.clear();
                }
                Done::Model { reply: reply @ Ok(_), .. } => {
                    *reply = Err(("LIMIT_EXCEEDED".to_owned(), message.to_owned()));
                    any = true;
                }
                _ => {}
            }
        }
        any
    }
}
