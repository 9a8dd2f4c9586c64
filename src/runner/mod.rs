//! What makes agents run: it reads a session, asks the domain what to append, appends it, and
//! performs what the log then says is to be done.
//!
//! Invariants:
//! * Nothing is performed, told or acknowledged before the record of it is durable.
//! * One append path (`write`) for handlers, drivers and the sweeper; one reading path (`session`).
//! * Whatever a handler appends is appended in a task of its own: a client's leaving drops the
//!   handler at any await, and nothing else.
//! * An append that leaves a session able to move leaves it with an owner.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lru::LruCache;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::limits::Limits;
use crate::session::id::{CallId, Owner, Principal, RequestId, SessionUid};
use crate::session::refusal::{Reason, Refusal};
use crate::session::{Session, codec};
use crate::store::{self, Store};

mod approve;
pub mod cast;
mod drive;
mod history;
mod ids;
pub mod index;
mod invocations;
mod live;
mod perform;
pub mod prompt;
pub mod reconcile;
mod run;
mod sessions;
mod signal;
pub mod step;
mod submit;
mod trace;
mod watch;
mod write;

pub use approve::{Decide, DecidedApproval};
pub use cast::{Cast, Registry};
pub use ids::Ids;
pub(crate) use invocations::expired;
pub use invocations::{Changed, Changes, Find, InvocationFilter, Listed};
pub(crate) use run::no_agent;
pub use run::{Run, Started};
pub use sessions::{NewSession, SessionView};
pub use submit::{Submission, Submitted};
pub use watch::{Follow, Item};
pub use write::Caller;

/// Runs the agents of a cast over a store. A clone is the same runner.
#[derive(Clone)]
pub struct Runner {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    store: Arc<dyn Store>,
    cast: Cast,
    limits: Limits,
    owner: Owner,
    ids: Ids,
    hub: Arc<live::Hub>,
    cache: Mutex<LruCache<SessionUid, Arc<Session>>>,
    /// The sessions of calls that are held, which never change.
    homes: Mutex<LruCache<CallId, SessionUid>>,
    /// What the drivers that rest had read of their logs.
    histories: Mutex<LruCache<SessionUid, history::History>>,
    under_way: Mutex<HashMap<SessionUid, UnderWay>>,
    drivers: Mutex<HashMap<SessionUid, usize>>,
    tasks: TaskTracker,
    draining: CancellationToken,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// A runner with an identity of its own. `recover` is to be called before it is used.
    pub fn new(store: Arc<dyn Store>, cast: Cast, limits: Limits) -> Self {
        Self::with_ids(store, cast, limits, Ids::random())
    }

    /// A runner that gets all new ids from a source.
    pub fn with_ids(store: Arc<dyn Store>, cast: Cast, limits: Limits, ids: Ids) -> Self {
        let owner = Owner::parse(ids.uuid().to_string()).expect("a UUID is an id");
        let cached = NonZeroUsize::new(limits.cached_sessions).unwrap_or(NonZeroUsize::MIN);
        Self {
            inner: Arc::new(Inner {
                store,
                cast,
                limits,
                owner,
                ids,
                hub: Arc::default(),
                cache: Mutex::new(LruCache::new(cached)),
                homes: Mutex::new(LruCache::new(cached)),
                histories: Mutex::new(LruCache::new(history::KEPT)),
                under_way: Mutex::default(),
                drivers: Mutex::default(),
                tasks: TaskTracker::new(),
                draining: CancellationToken::new(),
            }),
        }
    }

    /// The apps that can be run.
    pub fn cast(&self) -> &Cast {
        &self.inner.cast
    }

    /// The store's clock, in microseconds since 1970.
    pub fn now(&self) -> u64 {
        self.inner.store.now()
    }

    /// Makes ids.
    pub(crate) fn mint(&self) -> impl FnMut() -> String + Send + use<'_> {
        self.inner.ids.mint()
    }

    /// Fires when the runner drains: streams end then.
    pub fn draining(&self) -> &CancellationToken {
        &self.inner.draining
    }

    /// Starts nothing new from here on. Bodies at work are awaited, for as long as the caller
    /// waits; what is not back then is recovered at the next start.
    pub async fn drain(&self) {
        self.inner.draining.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// Ends when the store has failed for good, with what happened.
    pub async fn failed(&self) -> String {
        self.inner.store.failed().await
    }

    /// The bounds that it keeps.
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// How many sessions are driven right now.
    pub fn driven(&self) -> usize {
        lock(&self.inner.drivers).len()
    }

    /// Runs something that must not end with whoever asked for it.
    async fn detached<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let task = self.inner.tasks.spawn(work);
        task.await.unwrap_or_else(|panic| {
            tracing::error!(error = %panic, "a request's task ended without an answer");
            Err(Refusal::new(Reason::WriteOutcomeUnknown, "the request ended without an answer"))
        })
    }
}

impl Inner {
    /// The session as it is: its fold, read on to the end of its log. None: there is no such log.
    pub(crate) async fn session(&self, uid: &SessionUid) -> Result<Option<Arc<Session>>, Refusal> {
        let cached = lock(&self.cache).get(uid).cloned();
        if let Some(session) = cached {
            if self.store.exclusive() {
                return Ok(Some(session));
            }
            return self.read_on(uid, session).await.map(Some);
        }
        self.reload(uid).await
    }

    /// The session as it is for who has read its log up to a position: what was appended stands in
    /// the store before it stands in memory.
    pub(crate) async fn session_from(
        &self,
        uid: &SessionUid,
        position: u64,
    ) -> Result<Option<Arc<Session>>, Refusal> {
        match self.session(uid).await? {
            Some(session) if session.head >= position => Ok(Some(session)),
            _ => self.reload(uid).await,
        }
    }

    /// The session as the store has it, whatever memory says.
    pub(crate) async fn reload(&self, uid: &SessionUid) -> Result<Option<Arc<Session>>, Refusal> {
        let opened = self.store.open(uid).await.map_err(refuse_store)?;
        let Some(opened) = opened else { return Ok(None) };
        let mut rows = opened.rows.into_iter();
        let mut session = match opened.snapshot {
            // A snapshot is never needed for truth: one that cannot be read is passed over.
            Some((_, bytes)) => match codec::decode_snapshot(&bytes) {
                Ok(session) => session,
                Err(wrong) => {
                    tracing::warn!(session_uid = %uid, error = %wrong, "a snapshot cannot be read");
                    let first = self.store.read(uid, 0, 1).await.map_err(refuse_store)?;
                    rows = Vec::new().into_iter();
                    first_of(uid, first.into_iter().next())?
                }
            },
            None => first_of(uid, rows.next())?,
        };
        fold(uid, &mut session, rows)?;
        let session = self.read_on(uid, Arc::new(session)).await?;
        Ok(Some(session))
    }

    pub(crate) async fn read_on(
        &self,
        uid: &SessionUid,
        mut session: Arc<Session>,
    ) -> Result<Arc<Session>, Refusal> {
        let _way = self.under_way(uid);
        loop {
            let rows = self.store.read(uid, session.head, store::MAX_READ_ROWS).await;
            let rows = rows.map_err(refuse_store)?;
            if rows.is_empty() {
                self.remember(&session);
                return Ok(session);
            }
            fold(uid, Arc::make_mut(&mut session), rows)?;
        }
    }

    /// To be held from before the store is asked until what it says is remembered.
    pub(crate) fn under_way(&self, uid: &SessionUid) -> Way<'_> {
        lock(&self.under_way).entry(uid.clone()).or_default().count += 1;
        Way { inner: self, uid: uid.clone() }
    }

    /// Keeps the newest fold of a session in memory.
    pub(crate) fn remember(&self, session: &Arc<Session>) {
        let mut under_way = lock(&self.under_way);
        if let Some(there) = under_way.get_mut(&session.uid) {
            if session.head < there.head {
                return;
            }
            there.head = session.head;
        }
        let mut cache = lock(&self.cache);
        if cache.peek(&session.uid).is_none_or(|there| there.head < session.head) {
            cache.put(session.uid.clone(), session.clone());
        }
    }

    pub(crate) fn forget(&self, uid: &SessionUid) {
        lock(&self.cache).pop(uid);
    }

    /// The session is no more, whatever comes back late.
    pub(crate) fn forget_deleted(&self, uid: &SessionUid) {
        if let Some(there) = lock(&self.under_way).get_mut(uid) {
            there.head = u64::MAX;
        }
        self.forget(uid);
    }

    /// The name under which this process does things of its own accord.
    pub(crate) fn server(&self) -> Principal {
        Principal::parse(format!("server:{}", self.owner)).expect("an owner is an id")
    }

    /// Refuses when the server drains.
    pub(crate) fn check_open(&self) -> Result<(), Refusal> {
        if self.draining.is_cancelled() {
            return Err(Refusal::new(Reason::Draining, "the server is shutting down"));
        }
        Ok(())
    }
}

/// Reads and appends of one log that have yet to come back, and how long the log was when one that
/// began since did. What comes back late is older, and must not stand in memory as the newest.
#[derive(Default)]
struct UnderWay {
    count: usize,
    head: u64,
}

/// One of them.
pub(crate) struct Way<'a> {
    inner: &'a Inner,
    uid: SessionUid,
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        let mut under_way = lock(&self.inner.under_way);
        if let Some(there) = under_way.get_mut(&self.uid) {
            there.count -= 1;
            if there.count == 0 {
                under_way.remove(&self.uid);
            }
        }
    }
}

/// The session that the first record of a log begins.
fn first_of(uid: &SessionUid, row: Option<store::Row>) -> Result<Session, Refusal> {
    let record = row.map(|row| codec::decode_record(&row.bytes)).transpose();
    let record = record.map_err(|wrong| quarantine(uid, &wrong))?;
    let begun = record.as_ref().and_then(Session::begin);
    begun.ok_or_else(|| quarantine(uid, &"the log does not begin a session"))
}

fn fold(
    uid: &SessionUid,
    session: &mut Session,
    rows: impl IntoIterator<Item = store::Row>,
) -> Result<(), Refusal> {
    for row in rows {
        let record = codec::decode_record(&row.bytes).map_err(|wrong| quarantine(uid, &wrong))?;
        session.apply(&record, &mut crate::session::state::Touched::default());
    }
    Ok(())
}

/// A session that cannot be read: it alone is refused, and an alarm is logged.
pub(crate) fn quarantine(uid: &SessionUid, wrong: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(session_uid = %uid, error = %wrong, "a session cannot be read");
    Refusal::new(Reason::SessionQuarantined, "the session's log cannot be read by this server")
}

/// The world failed: the cause goes to the log, the caller learns what he can do.
pub(crate) fn refuse_store(error: store::Error) -> Refusal {
    match error {
        store::Error::Overloaded => {
            Refusal::new(Reason::Overloaded, "too many requests wait for the store; try again")
        }
        store::Error::Unavailable(why) => {
            tracing::warn!(error = %why, "the store is not available");
            Refusal::new(
                Reason::StoreUnavailable,
                "the store is not available; nothing was written",
            )
        }
        store::Error::Unknown(why) => {
            tracing::error!(error = %why, "the fate of a write is unknown");
            let message = "it is not known whether the request was carried out; repeat it";
            Refusal::new(Reason::WriteOutcomeUnknown, message)
        }
        store::Error::Malformed(what) => {
            tracing::error!(error = what, "a batch was malformed");
            Refusal::new(
                Reason::StoreUnavailable,
                "the request could not be stored; nothing was written",
            )
        }
        store::Error::Corrupt(why) => {
            tracing::error!(error = %why, "the store holds what nobody wrote");
            let message = "the session's log cannot be read by this server";
            Refusal::new(Reason::SessionQuarantined, message)
        }
    }
}

/// What was done could not be told: the caller must not be told that nothing was written.
pub(crate) fn untold(refusal: Refusal) -> Refusal {
    if !refusal.reason.wrote_nothing() {
        return refusal;
    }
    let message = "the request was carried out, and what came of it cannot be read; repeat it";
    Refusal::new(Reason::WriteOutcomeUnknown, message)
}

/// A caller's mark on a request, with a digest of the request's body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// The mark.
    pub id: RequestId,
    /// Tells bodies apart.
    pub digest: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::content::Object;
    use crate::session::id::{AppName, SessionId, SessionKey, UserId};
    use crate::session::record::{Body, Record};
    use crate::store::{Clock, memory::Memory};

    fn session(head: u64) -> Arc<Session> {
        let key = SessionKey {
            app: AppName::parse("root").unwrap(),
            user: UserId::parse("ann").unwrap(),
            id: SessionId::parse("s1").unwrap(),
        };
        let uid = SessionUid::parse("uid").unwrap();
        let body = Body::Created { uid, key, state: Object::new() };
        let by = Principal::parse("user:ann").unwrap();
        let begun = Session::begin(&Record { time: 1, by, body }).unwrap();
        Arc::new(Session { head, ..begun })
    }

    #[test]
    fn what_comes_back_late_is_not_remembered_as_the_newest() {
        let store = Arc::new(Memory::new(Clock::system()));
        let inner = Runner::new(store, Cast::default(), Limits::default()).inner;
        let uid = session(1).uid.clone();
        let there = || lock(&inner.cache).peek(&uid).map(|session| session.head);
        let late = inner.under_way(&uid);
        let way = inner.under_way(&uid);
        inner.remember(&session(5));
        drop(way);
        // Others were used since, or somebody did not trust it.
        inner.forget(&uid);
        inner.remember(&session(4));
        assert_eq!(there(), None);
        inner.remember(&session(6));
        assert_eq!(there(), Some(6));
        inner.forget_deleted(&uid);
        inner.remember(&session(7));
        assert_eq!(there(), None);
        drop(late);
        assert!(lock(&inner.under_way).is_empty());
    }
}
