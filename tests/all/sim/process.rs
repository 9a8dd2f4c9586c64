//! A process: a runner over the one store, which can die between any two awaits. The dead wait for
//! ever, whatever they were about to do.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign::limits::Limits;
use countersign::runner::Runner;
use countersign::session::id::{Principal, RequestId, SessionUid};
use countersign::store::{
    Appended, Batch, Changes, Error, Events, Kind, Opened, Query, Recorded, Row, Shared, Store,
    Stored,
};
use tokio_util::sync::CancellationToken;

use super::cast;
use super::world::World;

/// Whether a process lives.
#[derive(Clone)]
pub struct Life {
    pub number: u64,
    pub dead: CancellationToken,
}

impl Life {
    /// Goes on only while the process lives.
    pub async fn go_on(&self) {
        if self.dead.is_cancelled() {
            std::future::pending().await
        }
    }
}

#[derive(Clone)]
pub struct Process {
    pub runner: Runner,
    pub life: Life,
}

impl Process {
    pub fn start(world: &Arc<World>) -> Self {
        let life = Life { number: world.count(), dead: CancellationToken::new() };
        let limits = Limits {
            takeovers: world.profile.takeovers,
            snapshot_records: 16,
            cached_sessions: 1,
            max_llm_calls: 6,
            ..Limits::default()
        };
        let store = Arc::new(Faulty { world: world.clone(), life: life.clone() });
        let cast = cast::cast(world, &life);
        let runner = Runner::with_ids(store, cast, limits, world.ids.clone());
        world.tell(|| format!("process {} starts", life.number));
        Self { runner, life }
    }

    /// What has to be done is done again and again, for as long as it lives.
    pub async fn reconcile(self, world: Arc<World>) {
        while !world.is_over() && !self.life.dead.is_cancelled() {
            world.pause(1_500).await;
            World::wait(Duration::from_millis(200)).await;
            self.life.go_on().await;
            let _ = self.runner.tick_deadlines().await;
            let _ = self.runner.tick_sweep().await;
            let suspect = !world.is_calm() && world.percent(world.profile.suspect);
            if !world.profile.two || suspect {
                self.take_over(&world, "suspicion").await;
            }
        }
    }

    /// Takes over what it does not drive itself.
    pub async fn take_over(&self, world: &World, why: &'static str) {
        let taken = self.runner.recover().await.unwrap_or(0);
        if taken > 0 {
            world.saw(why);
            world.tell(|| format!("process {} took over {taken} by {why}", self.life.number));
        }
    }
}

/// The store as one process sees it: late, failing, and gone when the process dies.
struct Faulty {
    world: Arc<World>,
    life: Life,
}

impl Faulty {
    fn die(&self, when: &'static str) {
        self.world.saw(when);
        self.world.tell(|| format!("process {}: {when}", self.life.number));
        self.life.dead.cancel();
    }

    async fn look<T>(&self, what: &'static str, read: impl Future<Output = T>) -> Result<T, Error> {
        let (world, life) = (&self.world, &self.life);
        life.go_on().await;
        world.pause(world.profile.delay / 2).await;
        life.go_on().await;
        if world.fault(world.profile.unread) {
            world.saw("a read that fails");
            return Err(Error::Unavailable("a fault".to_owned()));
        }
        world.tell(|| format!("process {} reads {what}", life.number));
        let read = read.await;
        world.pause(world.profile.delay / 2).await;
        life.go_on().await;
        Ok(read)
    }

    fn write(&self, batch: Batch, now: Result<Appended, Error>) -> Result<Appended, Error> {
        let (uid, expected) = (&batch.uid, batch.expected);
        match &now {
            Ok(Appended::Done { .. }) => self.world.appended(uid, &batch.rows, batch.delete),
            Ok(Appended::Conflict { .. }) => self.world.saw("a conflict"),
            Ok(Appended::Repeated) => self.world.saw("a batch repeated"),
            Ok(Appended::RequestSeen(_)) => self.world.saw("a request seen by the store"),
            Ok(Appended::Exists { .. }) => self.world.saw("a session that exists"),
            Err(Error::Malformed(what)) => self.world.wrong(format!("a malformed batch: {what}")),
            Err(_) => {}
        }
        let number = self.life.number;
        self.world.tell(|| {
            let rows = batch.rows.iter().map(|row| String::from_utf8_lossy(&row.bytes));
            let rows = rows.collect::<Vec<_>>().join("\n            ");
            format!("process {number} appends to {uid} at {expected}: {now:?}\n            {rows}")
        });
        now
    }
}

#[async_trait]
impl Store for Faulty {
    fn now(&self) -> u64 {
        self.world.now()
    }

    fn exclusive(&self) -> bool {
        !self.world.profile.two
    }

    async fn append(&self, batch: Batch) -> Result<Appended, Error> {
        let (world, life, profile) = (&self.world, &self.life, &self.world.profile);
        life.go_on().await;
        world.pause(profile.delay).await;
        life.go_on().await;
        let storm = world.storm();
        let unknown = || Err(Error::Unknown("a fault".to_owned()));
        if world.fault(profile.crash) {
            self.die("a crash before an append");
            return std::future::pending().await;
        }
        if world.fault(profile.refused) {
            world.saw("an append refused");
            return Err(match world.percent(50) {
                true => Error::Unavailable("a fault".to_owned()),
                false => Error::Overloaded,
            });
        }
        let lost = storm || world.fault(profile.unknown);
        if lost && world.percent(50) {
            world.saw("an append unknown and not written");
            return unknown();
        }
        world.now();
        let done = world.memory.append(batch.clone()).await;
        let done = self.write(batch, done);
        if world.fault(profile.crash) {
            self.die("a crash behind an append");
            return std::future::pending().await;
        }
        world.pause(profile.delay).await;
        life.go_on().await;
        if lost {
            world.saw("an append unknown and written");
            return unknown();
        }
        done
    }

    async fn open(&self, uid: &SessionUid) -> Result<Option<Opened>, Error> {
        self.look("a log's beginning", self.world.memory.open(uid)).await?
    }

    async fn read(&self, uid: &SessionUid, after: u64, limit: usize) -> Result<Vec<Row>, Error> {
        self.look("a log", self.world.memory.read(uid, after, limit)).await?
    }

    async fn events(&self, uid: &SessionUid, of: Events, limit: usize) -> Result<Vec<Row>, Error> {
        self.look("events", self.world.memory.events(uid, of, limit)).await?
    }

    async fn entry(&self, kind: Kind, id: &str) -> Result<Option<Stored>, Error> {
        self.look("an entry", self.world.memory.entry(kind, id)).await?
    }

    async fn list(&self, query: Query) -> Result<(Vec<Stored>, u64), Error> {
        self.look("a list", self.world.memory.list(query)).await?
    }

    async fn count(&self, query: Query) -> Result<u64, Error> {
        self.look("a count", self.world.memory.count(query)).await?
    }

    async fn due(&self, kind: Kind, now: u64, limit: usize) -> Result<Vec<Stored>, Error> {
        self.look("what is due", self.world.memory.due(kind, now, limit)).await?
    }

    async fn changes(&self, kind: Kind, after: u64, limit: usize) -> Result<Changes, Error> {
        self.look("changes", self.world.memory.changes(kind, after, limit)).await?
    }

    async fn shared(&self, scopes: &[String]) -> Result<Shared, Error> {
        self.look("shared state", self.world.memory.shared(scopes)).await?
    }

    async fn request(
        &self,
        principal: &Principal,
        method: &str,
        id: &RequestId,
    ) -> Result<Option<Recorded>, Error> {
        self.look("a request", self.world.memory.request(principal, method, id)).await?
    }

    async fn sweep(&self, before: u64) -> Result<bool, Error> {
        self.look("what is old", self.world.memory.sweep(before)).await?
    }

    async fn failed(&self) -> String {
        std::future::pending().await
    }
}
