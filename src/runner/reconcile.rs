//! What nobody asks for and has to be done: sessions whose owner is gone, deadlines, and
//! forgetting.
//!
//! Every job is a `tick` that does a piece of work and says whether there is more. The server calls
//! them in a loop; tests call them directly.

use std::sync::Arc;
use std::time::Duration;

use super::drive::Driven;
use super::write::{Decided, Plan, Written};
use super::{Inner, Runner, index, refuse_store};
use crate::session::Session;
use crate::session::draft::Draft;
use crate::session::id::SessionUid;
use crate::session::refusal::Refusal;
use crate::store::Query;

/// How many entries one tick takes.
const PIECE: usize = 200;

/// How many pieces one job takes before the others have their turn.
const PIECES: usize = 100;

/// How often the server ticks.
pub const EVERY: Duration = Duration::from_secs(1);

/// How often the server forgets.
const SWEEP_EVERY: u32 = 60;

impl Runner {
    /// Takes over every session that a former process drove. The store is this process's alone, so
    /// whoever else owns one is dead. To be called before anything else is served.
    pub async fn recover(&self) -> Result<usize, Refusal> {
        let mut taken = 0;
        let mut after = None;
        loop {
            let (running, next) = self.running(after).await?;
            for uid in running {
                taken += usize::from(self.inner.take_over(&uid).await?);
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(taken),
            }
        }
    }

    /// Sessions that can move and are driven by nobody are driven again. It reads what runs, which
    /// is bounded by the sessions that are driven at once.
    pub async fn tick_running(&self) -> Result<bool, Refusal> {
        self.recover().await.map(|_| false)
    }

    /// Calls whose deadline has passed are over. True: there is more.
    pub async fn tick_deadlines(&self) -> Result<bool, Refusal> {
        let inner = &self.inner;
        let due = inner.store.due(index::CALL, inner.store.now(), PIECE).await;
        let due = due.map_err(refuse_store)?;
        let more = due.len() == PIECE;
        let mut uids: Vec<SessionUid> = due.into_iter().map(|stored| stored.uid).collect();
        uids.dedup();
        let mut kept = false;
        for uid in uids {
            let expired = inner
                .decide(&uid, &inner.server(), |draft| {
                    draft.expire();
                    Ok(Decided::new(()))
                })
                .await;
            match expired {
                Ok(_) => kept = true,
                Err(refusal) => tracing::warn!(
                    session_uid = %uid,
                    reason = refusal.reason.as_str(),
                    "a deadline could not be kept"
                ),
            }
        }
        // If none could be kept the next ones are the same: they have time until the next round.
        Ok(more && kept)
    }

    /// Requests and tombstones that are old enough are forgotten. True: there is more.
    pub async fn tick_sweep(&self) -> Result<bool, Refusal> {
        let keep = u64::try_from(self.inner.limits.remember_requests.as_micros());
        let before = self.inner.store.now().saturating_sub(keep.unwrap_or(u64::MAX));
        self.inner.store.sweep(before).await.map_err(refuse_store)
    }

    /// Ticks until the runner drains.
    pub async fn reconcile(&self) {
        let mut round = 0_u32;
        while !self.inner.draining.is_cancelled() {
            round = round.wrapping_add(1);
            self.all("deadlines", || self.tick_deadlines()).await;
            self.all("running", || self.tick_running()).await;
            if round.is_multiple_of(SWEEP_EVERY) {
                self.all("sweep", || self.tick_sweep()).await;
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(EVERY) => {}
                () = self.inner.draining.cancelled() => {}
            }
        }
    }

    async fn all<F: Future<Output = Result<bool, Refusal>>>(
        &self,
        job: &str,
        tick: impl Fn() -> F,
    ) {
        for _ in 0..PIECES {
            match tick().await {
                Ok(true) if !self.inner.draining.is_cancelled() => {}
                Ok(_) => return,
                Err(refusal) => {
                    tracing::warn!(job, reason = refusal.reason.as_str(), "a job failed");
                    return;
                }
            }
        }
    }

    /// The sessions with an invocation that can move: only such a session has an owner.
    async fn running(
        &self,
        after: Option<(String, String)>,
    ) -> Result<(Vec<SessionUid>, Option<(String, String)>), Refusal> {
        let states = vec![index::State::Running.as_str().to_owned()];
        let query =
            Query { kind: index::INVOCATION, states, after, limit: PIECE, ..Query::default() };
        let page = self.inner.list(query).await?;
        Ok((page.items.into_iter().map(|stored| stored.uid).collect(), page.next))
    }
}

impl Inner {
    /// Claims a session whose owner is gone and drives it. False: it needs nobody, somebody else
    /// was first, or it was claimed too often for nothing: then it waits until somebody answers.
    async fn take_over(self: &Arc<Self>, uid: &SessionUid) -> Result<bool, Refusal> {
        let driven = Driven::new(self, uid);
        if !driven.alone() {
            return Ok(false);
        }
        let session = match self.session(uid).await {
            Ok(Some(session)) => session,
            Ok(None) => return Ok(false),
            // One session that cannot be read keeps no other one waiting.
            Err(_) => return Ok(false),
        };
        if session.claim.is_none() {
            return Ok(false);
        }
        let mut mint = self.ids.mint();
        let now = self.store.now();
        let mut draft = Draft::new(Session::clone(&session), now, self.server(), &mut mint);
        draft.take(&self.owner);
        if session.attempts >= self.limits.takeovers {
            tracing::error!(
                session_uid = %uid,
                attempts = session.attempts,
                "an invocation was taken over too often for nothing, and is given up"
            );
            draft.give_up(session.attempts);
        }
        match self.write(Plan::new(Some(&session), draft)).await? {
            Written::Done(after, _) => {
                self.clone().drive(after, driven);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
