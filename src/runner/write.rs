//! The append path: from a draft to a durable batch, with what goes beside it.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::drive::Driven;
use super::live::Placed;
use super::{Inner, Mark, index, refuse_store};
use crate::session::draft::Draft;
use crate::session::id::{Principal, SessionUid};
use crate::session::record::Record;
use crate::session::refusal::{Reason, Refusal};
use crate::session::state::Touched;
use crate::session::{Session, codec};
use crate::store::{self, Appended, Batch, EntryWrite, Recorded, Request, Row, SharedWrite};

/// How often a batch whose fate is unknown is repeated.
const REPEATS: u32 = 20;

/// Pause between two of those.
const REPEAT_AFTER: Duration = Duration::from_millis(50);

/// Who asks, and how a repeat of his request is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who asks.
    pub principal: Principal,
    /// His mark on the request, if he made one.
    pub mark: Option<Mark>,
}

/// What is appended: a draft without its tie to a mint.
pub(crate) struct Plan {
    pub uid: SessionUid,
    pub expected: u64,
    pub records: Vec<Record>,
    pub session: Session,
    pub touched: Touched,
    pub entries: Vec<EntryWrite>,
    pub shared: Vec<SharedWrite>,
    pub request: Option<Request>,
    pub delete: bool,
}

impl Plan {
    /// What a draft on top of a session wants; `before` is none for a session that begins.
    pub fn new(before: Option<&Session>, draft: Draft<'_>) -> Self {
        let Draft { session, records, touched, .. } = draft;
        Self {
            uid: session.uid.clone(),
            expected: before.map_or(0, |before| before.head),
            records,
            touched,
            entries: Vec::new(),
            shared: Vec::new(),
            request: None,
            delete: false,
            session,
        }
    }
}

/// What came of a write.
pub(crate) enum Written {
    /// It is durable: the session now, and the records with their positions.
    Done(Arc<Session>, Vec<Placed>),
    /// Somebody else appended first.
    Conflict,
    /// Something that was to be new is there already.
    Exists,
    /// The request was carried out before.
    Seen(Recorded),
}

impl Inner {
    /// Makes a plan durable, remembers the session and wakes whoever follows it.
    pub(crate) async fn write(&self, plan: Plan) -> Result<Written, Refusal> {
        let Plan { uid, expected, records, session, touched, .. } = plan;
        let mut rows = Vec::with_capacity(records.len());
        let mut placed = Vec::with_capacity(records.len());
        for (position, record) in (expected + 1..).zip(records) {
            let sequence = record.body.event().map_or(0, |event| event.sequence);
            let bytes = codec::encode_record(&record);
            // An answer that is queued has no sequence yet, and will be an event all the same.
            if bytes.len() > self.limits.event_bytes {
                return Err(self.too_large(bytes.len()));
            }
            rows.push(Row { position, sequence, bytes });
            placed.push((position, Arc::new(record)));
        }
        let every = self.limits.snapshot_records.max(1);
        let due = session.head / every > expected / every;
        let mut entries = plan.entries;
        entries.extend(index::entries(&session, &touched));
        let mut shared = plan.shared;
        let beside = shared.iter().filter_map(|write| write.value.as_ref()).map(Vec::len).sum();
        if beside > self.limits.event_bytes {
            return Err(self.too_large(beside));
        }
        let records = placed.iter().map(|(_, record)| record.as_ref());
        shared.extend(index::shared(&session.key, records));
        let batch = Batch {
            id: self.ids.uuid().into_bytes(),
            uid: uid.clone(),
            expected,
            rows,
            entries,
            snapshot: due.then(|| codec::encode_snapshot(&session)),
            shared,
            request: plan.request,
            delete: plan.delete,
        };
        let _way = self.under_way(&uid);
        // It may be written though nobody knows: then memory is behind, and the tail has a hole.
        let appended = self.append(batch).await.inspect_err(|_| {
            self.forget(&uid);
            self.hub.lost(&uid);
        })?;
        let feed = match appended {
            Appended::Done { feed } => Some(feed),
            Appended::Repeated => None,
            Appended::Conflict { .. } => {
                self.forget(&uid);
                return Ok(Written::Conflict);
            }
            Appended::Exists { .. } => return Ok(Written::Exists),
            Appended::RequestSeen(recorded) => return Ok(Written::Seen(recorded)),
        };
        super::trace::appended(&session.key, placed.iter().map(|(_, record)| record.as_ref()));
        let session = Arc::new(session);
        if plan.delete {
            self.forget_deleted(&uid);
        } else {
            self.remember(&session);
        }
        self.hub.appended(&uid, &placed, feed);
        Ok(Written::Done(session, placed))
    }

    /// Appends until it is known what came of it, as far as that is possible.
    async fn append(&self, batch: Batch) -> Result<Appended, Refusal> {
        let mut unknown = None;
        for _ in 0..REPEATS {
            match self.store.append(batch.clone()).await {
                Err(store::Error::Unknown(why)) => unknown = Some(why),
                // After an unknown fate, that nothing was written now says nothing of before.
                Err(error) => match unknown {
                    Some(why) => return Err(refuse_store(store::Error::Unknown(why))),
                    None => return Err(refuse_store(error)),
                },
                Ok(appended) => return Ok(appended),
            }
            tokio::time::sleep(REPEAT_AFTER).await;
        }
        Err(refuse_store(store::Error::Unknown(unknown.unwrap_or_default())))
    }

    fn too_large(&self, bytes: usize) -> Refusal {
        let most = self.limits.event_bytes;
        Refusal::new(Reason::LimitExceeded, format!("an event may have {most} bytes at most"))
            .with("limit", "event_bytes")
            .with("value", most)
            .with("actual", bytes)
    }

    /// Decides on a session as it is and appends what was decided, again if somebody else was
    /// first. What sets an unowned session going takes it for this process. The decision must be
    /// repeatable: it is made anew on the session as it then is. None: there is no such session.
    pub(crate) async fn decide<T>(
        self: &Arc<Self>,
        uid: &SessionUid,
        by: &Principal,
        mut decision: impl FnMut(&mut Draft<'_>) -> Result<Decided<T>, Refusal>,
    ) -> Result<Option<(Outcome<T>, Arc<Session>)>, Refusal> {
        for _ in 0..self.limits.conflicts {
            let Some(before) = self.session(uid).await? else { return Ok(None) };
            let mut mint = self.ids.mint();
            let now = self.store.now();
            let mut draft = Draft::new(Session::clone(&before), now, by.clone(), &mut mint);
            let decided = match decision(&mut draft) {
                Ok(decided) if decided.delete || !draft.records.is_empty() => decided,
                // What is durable already may be in memory a moment later: that nothing is to be
                // done is said only to what the log says, and so is no.
                nothing => {
                    let there = self.read_on(uid, before.clone()).await?;
                    if there.head > before.head {
                        continue;
                    }
                    return nothing.map(|decided| Some((Outcome::Done(decided.value), before)));
                }
            };
            let claimed = !decided.delete && draft.claim_if_free(&self.owner);
            let driven = claimed.then(|| Driven::new(self, uid));
            if claimed {
                draft.settle();
            }
            let mut plan = Plan::new(Some(&before), draft);
            plan.request = decided.request;
            plan.delete = decided.delete;
            match self.write(plan).await? {
                Written::Done(after, _) => {
                    if let Some(driven) = driven {
                        self.clone().drive(after.clone(), driven);
                    }
                    return Ok(Some((Outcome::Done(decided.value), after)));
                }
                Written::Seen(recorded) => {
                    // What an earlier attempt did is durable, and may not be in memory yet.
                    self.reload(uid).await?;
                    return Ok(Some((Outcome::Seen(recorded), before)));
                }
                Written::Conflict | Written::Exists => {}
            }
        }
        let message = "others changed the session all the time; try again";
        Err(Refusal::new(Reason::Overloaded, message))
    }

    /// What was recorded for a request, if it was made before with the same body.
    pub(crate) async fn seen<T: DeserializeOwned>(
        &self,
        caller: &Caller,
        method: &str,
    ) -> Result<Option<T>, Refusal> {
        let Some(mark) = &caller.mark else { return Ok(None) };
        let recorded = self.store.request(&caller.principal, method, &mark.id).await;
        let Some(recorded) = recorded.map_err(refuse_store)? else { return Ok(None) };
        outcome_of(&recorded, mark).map(Some)
    }

    /// A refusal of a request stands, unless an earlier attempt of it has been carried out since it
    /// was looked for: then what that one did is the outcome.
    pub(crate) async fn unless_seen<T: DeserializeOwned>(
        &self,
        caller: &Caller,
        method: &str,
        refusal: Refusal,
    ) -> Result<T, Refusal> {
        if refusal.reason.wrote_nothing() {
            return Err(refusal);
        }
        self.seen(caller, method).await?.ok_or(refusal)
    }
}

/// What a decision gives beside its records.
pub(crate) struct Decided<T> {
    pub value: T,
    pub request: Option<Request>,
    pub delete: bool,
}

impl<T> Decided<T> {
    pub fn new(value: T) -> Self {
        Self { value, request: None, delete: false }
    }
}

/// What came of a decision.
pub(crate) enum Outcome<T> {
    /// It was made now.
    Done(T),
    /// The request was carried out before.
    Seen(Recorded),
}

/// The mark of a request, with its outcome.
pub(crate) fn request(caller: &Caller, method: &str, outcome: &impl Serialize) -> Option<Request> {
    let mark = caller.mark.as_ref()?;
    Some(Request {
        principal: caller.principal.clone(),
        method: method.to_owned(),
        id: mark.id.clone(),
        digest: mark.digest.clone(),
        outcome: serde_json::to_vec(outcome).expect("outcomes have text keys only"),
    })
}

/// The outcome that was recorded for a request; another body with the same mark is refused.
pub(crate) fn outcome_of<T: DeserializeOwned>(
    recorded: &Recorded,
    mark: &Mark,
) -> Result<T, Refusal> {
    if recorded.digest != mark.digest {
        let message = "request_id was used before, with another request";
        return Err(Refusal::new(Reason::RequestIdReused, message).with("request_id", &mark.id));
    }
    serde_json::from_slice(&recorded.outcome)
        .map_err(|wrong| refuse_store(store::Error::Corrupt(wrong.to_string())))
}
