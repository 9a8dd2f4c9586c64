//! Clients: they say, answer, cancel, delete, change and look, twice or late or wrongly; they leave
//! before they are answered, and repeat what they do not know the fate of.

use std::sync::Arc;
use std::time::Duration;

use countersign::runner::{
    Caller, Find, InvocationFilter, Mark, NewSession, Run, Runner, Submission,
};
use countersign::session::approval::CONFIRMATION;
use countersign::session::content::{Content, Data, FunctionResponse, Object, Part, Role};
use countersign::session::decide::{Answered, Incoming, Incomings};
use countersign::session::id::{
    AppName, CallId, InvocationId, Principal, RequestId, SessionId, SessionKey, UserId,
};
use countersign::session::record::{Body, Record};
use countersign::session::refusal::{Reason, Refusal};
use countersign::store::Store;
use serde_json::{Value, json};

use super::cast::APP;
use super::followers;
use super::process::Process;
use super::world::{Heard, World};

/// Longest time for which a request may take, in virtual seconds.
const PATIENCE: u64 = 300;

/// What a client did.
pub struct Deed {
    pub what: What,
    pub fate: Fate,
}

pub enum What {
    /// A message, which nobody else says.
    Say(String),
    /// An answer with a number that no other has.
    Answer {
        calls: Vec<CallId>,
        number: u64,
    },
    /// A change of state to a number that no other has.
    Change(u64),
    Cancel(InvocationId),
}

/// What it was told.
#[derive(Debug, Clone, PartialEq)]
pub enum Fate {
    Done,
    Refused(Reason),
    Unknown,
}

pub enum Reply<T> {
    Done(T),
    Refused(Refusal),
    /// Nobody knows.
    Unknown,
}

impl<T> Reply<T> {
    pub fn fate(&self) -> Fate {
        match self {
            Self::Done(_) => Fate::Done,
            Self::Refused(refusal) => Fate::Refused(refusal.reason),
            Self::Unknown => Fate::Unknown,
        }
    }
}

/// A session's names.
pub fn named(name: &str) -> SessionKey {
    SessionKey {
        app: AppName::parse(APP).unwrap(),
        user: UserId::parse("ann").unwrap(),
        id: SessionId::parse(name).unwrap(),
    }
}

pub fn object(value: Value) -> Object {
    value.as_object().unwrap().clone()
}

pub struct Client {
    pub world: Arc<World>,
    number: u64,
}

/// A process that lives, if there is one.
pub fn living(world: &World) -> Option<Process> {
    let processes = world.processes.lock().unwrap();
    let living: Vec<Process> =
        processes.iter().flatten().filter(|p| !p.life.dead.is_cancelled()).cloned().collect();
    world.pick(&living).cloned()
}

impl Client {
    pub fn new(world: &Arc<World>, number: u64) -> Self {
        Self { world: world.clone(), number }
    }

    /// All that it does.
    pub async fn live(self) {
        if self.number == 0 {
            for number in 0..self.world.profile.sessions {
                self.create(&named(&format!("s{number}"))).await;
            }
        }
        for _ in 0..self.world.profile.deeds {
            self.world.pause(600).await;
            let lot = self.world.below(100);
            match lot {
                0..24 => self.say().await,
                24..42 => self.answer().await,
                42..62 => self.approve().await,
                62..69 => self.cancel().await,
                69..73 => self.delete().await,
                73..79 => self.change().await,
                79..88 => self.look().await,
                _ => self.watch().await,
            }
        }
    }

    pub fn key(&self) -> SessionKey {
        named(&format!("s{}", self.world.below(self.world.profile.sessions)))
    }

    pub fn caller(&self) -> Caller {
        let principal = Principal::parse(format!("user:p{}", self.number % 3)).unwrap();
        let mark = self.world.percent(60).then(|| Mark {
            id: RequestId::parse(format!("r{}", self.world.count())).unwrap(),
            digest: "right".to_owned(),
        });
        Caller { principal, mark }
    }

    /// Asks, and asks again where nothing was done, or where the mark makes a repeat harmless.
    pub async fn ask<T, F>(
        &self,
        caller: &Caller,
        method: &str,
        ask: impl Fn(Runner) -> F,
    ) -> Reply<T>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let (world, mut maybe) = (&self.world, false);
        for _ in 0..8 {
            let Some(process) = living(world) else {
                world.pause(800).await;
                continue;
            };
            let leaves = !world.is_calm() && world.percent(world.profile.leave);
            let leaves = Duration::from_millis(world.below(60)).max(match leaves {
                true => Duration::ZERO,
                false => Duration::from_secs(PATIENCE),
            });
            let answered = tokio::select! {
                biased;
                answered = ask(process.runner.clone()) => Some(answered),
                () = process.life.dead.cancelled() => None,
                () = World::wait(leaves) => None,
            };
            let reason = match answered {
                Some(Ok(done)) => {
                    world.tell(|| format!("client {}: {method} is done", self.number));
                    return Reply::Done(done);
                }
                Some(Err(refusal)) => {
                    let (number, reason) = (self.number, refusal.reason);
                    world.tell(|| format!("client {number}: {method} is refused, {reason:?}"));
                    match reason {
                        Reason::StoreUnavailable | Reason::Overloaded => {}
                        Reason::WriteOutcomeUnknown => maybe = true,
                        _ => {
                            self.never_done(caller, method, reason).await;
                            return if maybe { Reply::Unknown } else { Reply::Refused(refusal) };
                        }
                    }
                    Some(reason)
                }
                None => {
                    world.tell(|| format!("client {} leaves {method}", self.number));
                    world.saw("a client that leaves");
                    let lived = !process.life.dead.is_cancelled();
                    let forever = lived && leaves >= Duration::from_secs(PATIENCE);
                    world.check(!forever, || format!("{method} does not come back"));
                    maybe = true;
                    None
                }
            };
            if reason == Some(Reason::WriteOutcomeUnknown) {
                world.saw("an outcome unknown to its client");
            }
            if maybe && caller.mark.is_none() {
                break;
            }
            world.pause(500).await;
        }
        Reply::Unknown
    }

    /// A request that is refused was not carried out, by whatever attempt.
    async fn never_done(&self, caller: &Caller, method: &str, reason: Reason) {
        let Some(mark) = &caller.mark else { return };
        if reason == Reason::RequestIdReused {
            return;
        }
        let recorded = self.world.memory.request(&caller.principal, method, &mark.id).await;
        if recorded.unwrap().is_some() {
            // The session may be gone since.
            use Reason::{ApprovalNotFound, CallNotFound, InvocationNotFound, SessionNotFound};
            let gone = [SessionNotFound, CallNotFound, InvocationNotFound, ApprovalNotFound];
            let gone = gone.contains(&reason);
            let what = || format!("{method} {} is refused, {reason:?}, and was done", mark.id);
            self.world.check(gone, what);
        }
    }

    pub fn note(&self, what: What, fate: Fate) {
        self.world.journal().deeds.push(Deed { what, fate });
    }

    /// A record that was acknowledged must be in a log.
    pub fn durable(&self, what: &str, is: impl Fn(&Record) -> bool) {
        let found = self.world.journal().logs.values().any(|log| log.records.iter().any(&is));
        self.world.check(found, || format!("{what} was acknowledged and is not durable"));
    }

    async fn say(&self) {
        let world = &self.world;
        let (caller, key, text) = (self.caller(), self.key(), format!("say {}", world.count()));
        let named = world.percent(90);
        let run = Run {
            app: key.app.clone(),
            user: key.user.clone(),
            session: named.then(|| key.id.clone()),
            message: Some(Content::user(text.clone())),
            state_delta: Object::new(),
            streaming: world.percent(25),
            max_llm_calls: world.percent(15).then_some(2),
            custom_metadata: Object::new(),
            invocation: None,
            after_sequence: 0,
        };
        let ask = || {
            self.ask(&caller, "RunAsync", |r| {
                let (caller, run) = (caller.clone(), run.clone());
                async move { r.run(caller, run).await }
            })
        };
        let reply = ask().await;
        self.note(What::Say(text.clone()), reply.fate());
        match reply {
            Reply::Done(started) => {
                world.acknowledged(&started.uid, started.after);
                self.durable(&text, |record| said(record) == Some(text.as_str()));
                world.journal().invocations.push(started.invocation.clone());
                if caller.mark.is_some() && world.percent(30) {
                    world.saw("a request made twice");
                    if let Reply::Done(again) = ask().await {
                        let same = again.invocation == started.invocation && again.replayed;
                        world.check(same, || format!("{text}: {started:?}, then {again:?}"));
                    }
                    self.reused(&caller, &run).await;
                }
                if world.percent(70) {
                    tokio::spawn(followers::follow_run(world.clone(), started));
                }
            }
            Reply::Refused(refusal) if refusal.reason == Reason::SessionNotFound => {
                self.create(&key).await;
            }
            Reply::Refused(_) => world.saw("a message refused"),
            Reply::Unknown => {}
        }
    }

    /// The mark with another request.
    async fn reused(&self, caller: &Caller, run: &Run) {
        let mut other = caller.clone();
        other.mark.as_mut().unwrap().digest = "other".to_owned();
        let reply = self.ask(&other, "RunAsync", |r| {
            let (other, run) = (other.clone(), run.clone());
            async move { r.run(other, run).await }
        });
        match reply.await {
            Reply::Refused(refusal) if refusal.reason == Reason::RequestIdReused => {
                self.world.saw("a mark used twice");
            }
            Reply::Unknown => {}
            other => self.world.wrong(format!("a mark was used twice: {:?}", other.fate())),
        }
    }

    async fn create(&self, key: &SessionKey) {
        let caller = self.caller();
        let SessionKey { app, user, id } = key.clone();
        let new = NewSession { app, user, id: Some(id), state: object(json!({"made": true})) };
        let reply = self.ask(&caller, "CreateSession", |r| {
            let (caller, new) = (caller.clone(), new.clone());
            async move { r.create_session(caller, new).await }
        });
        if let Reply::Done(view) = reply.await {
            self.world.acknowledged(&view.session.uid, 1);
        }
    }

    async fn answer(&self) {
        let world = &self.world;
        let heard = world.answerable();
        let mut chosen: Vec<Heard> = Vec::new();
        let count = if world.percent(20) { 2 } else { 1 };
        for _ in 0..count {
            chosen.extend(world.pick(&heard).cloned());
        }
        let Some(first) = chosen.first().cloned() else {
            return self.look().await;
        };
        let (caller, number) = (self.caller(), world.count());
        let status = *world.pick(&["approved", "working"]).unwrap();
        let will_continue = *world.pick(&[None, None, None, Some(false), Some(true)]).unwrap();
        let right = !world.percent(4);
        let said = |heard: &Heard| match heard.name.as_str() {
            CONFIRMATION => {
                json!({"confirmed": status == "approved", "payload": {"number": number}})
            }
            _ => json!({"status": status, "number": number}),
        };
        let incoming = |heard: &Heard| Incoming {
            decision: None,
            call: heard.call.clone(),
            name: if right { heard.name.clone() } else { "other".to_owned() },
            response: Some(object(said(heard))),
            will_continue,
            field: String::new(),
        };
        let skip_summarization = world.percent(8);
        let submission = Submission {
            etag: None,
            app: None,
            user: None,
            session: world.percent(30).then(|| first.session.id.clone()),
            answers: Incomings {
                answers: chosen.iter().map(incoming).collect(),
                invocation: None,
                expected_args_digest: world.percent(3).then(|| "other".to_owned()),
                skip_summarization,
                comment: String::new(),
                state_delta: Object::new(),
            },
        };
        let as_run = world.percent(25);
        let ask = |caller: Caller| {
            let (submission, first) = (submission.clone(), first.clone());
            async move {
                let method = if as_run { "RunAsync" } else { "SubmitFunctionResponse" };
                let by = caller.clone();
                self.ask(&by, method, |r| {
                    let (caller, submission) = (caller.clone(), submission.clone());
                    let run = answers_of(&submission, &first.session);
                    async move {
                        if as_run {
                            return r.run(caller, run).await.map(|started| (started, None));
                        }
                        let done = r.submit(caller, submission).await?;
                        let started = followers::started_of(&done);
                        Ok((started, Some(done)))
                    }
                })
                .await
            }
        };
        let reply = ask(caller.clone()).await;
        let calls: Vec<CallId> = chosen.iter().map(|heard| heard.call.clone()).collect();
        self.note(What::Answer { calls: calls.clone(), number }, reply.fate());
        match reply {
            Reply::Done((started, done)) => {
                world.acknowledged(&started.uid, started.after);
                self.durable(&format!("answer {number}"), |record| {
                    answered(record) == Some(number)
                });
                match done.as_ref().map(|done| done.outcome) {
                    Some(Answered::Applied) => world.saw("an answer applied"),
                    Some(Answered::Queued) => world.saw("an answer queued"),
                    Some(Answered::Progress) => world.saw("an answer of progress"),
                    Some(Answered::Duplicate) => world.wrong(format!("a new {number} is old")),
                    None => world.saw("an answer by RunAsync"),
                }
                // A call that had only progress may be closed by others when a repeat is answered.
                let closed = done.is_some_and(|done| {
                    done.outcome != Answered::Progress && done.call.closed().is_some()
                });
                if closed && calls.len() == 1 && world.percent(30) {
                    let again = ask(Caller { mark: None, ..caller }).await;
                    match again {
                        Reply::Done((_, Some(done))) => {
                            let old = done.outcome == Answered::Duplicate;
                            world.check(old, || format!("{number} again: {:?}", done.outcome));
                            world.saw("an answer made twice");
                        }
                        Reply::Refused(refusal) => {
                            let reason = refusal.reason;
                            let gone = reason == Reason::CallNotFound;
                            world.check(gone, || format!("{number} again: {reason:?}"));
                        }
                        _ => {}
                    }
                }
                if world.percent(40) {
                    tokio::spawn(followers::follow_run(world.clone(), started));
                }
            }
            Reply::Refused(refusal) => self.refused(refusal.reason, &calls),
            Reply::Unknown => {}
        }
    }

    /// No is said only to what the log says.
    fn refused(&self, reason: Reason, calls: &[CallId]) {
        let world = &self.world;
        let all_open = {
            let journal = world.journal();
            let folds = journal.logs.values().filter(|log| !log.deleted).filter_map(|l| l.fold());
            let folds: Vec<_> = folds.collect();
            calls.iter().all(|id| {
                let open = |call: &countersign::session::call::Call| call.closed().is_none();
                folds.iter().any(|fold| fold.calls.get(id).is_some_and(open))
            })
        };
        match reason {
            Reason::CallAlreadyAnswered => {
                world.saw("a call answered already");
                world.check(!all_open, || format!("{calls:?} have no answer yet"));
            }
            Reason::CallExpired => world.saw("an answer too late"),
            Reason::CallCancelled => world.saw("an answer to a cancelled call"),
            Reason::CallNotHeld => world.saw("an answer too early"),
            Reason::ConfirmationRequired => world.saw("an answer to a gated call"),
            Reason::ApprovalClaimed => world.saw("a lease that holds somebody off"),
            Reason::CallNotFound => world.saw("an answer to a call that is gone"),
            Reason::MixedMessage => world.saw("answers to two invocations"),
            Reason::CallNameMismatch | Reason::ArgsDigestMismatch => world.saw("a wrong answer"),
            Reason::FieldInvalid => world.saw("an answer that does not fit"),
            Reason::SessionNotFound => {}
            other => world.wrong(format!("an answer was refused: {other:?}")),
        }
    }

    async fn cancel(&self) {
        let world = &self.world;
        let known = world.journal().invocations.clone();
        let Some(id) = world.pick(&known).cloned() else { return };
        let (caller, find) =
            (self.caller(), Find { id: id.clone(), app: None, user: None, session: None });
        let ended = world.journal().ended.clone();
        let reply = self.ask(&caller, "CancelInvocation", |r| {
            let (caller, find) = (caller.clone(), find.clone());
            async move { r.cancel(caller, find).await }
        });
        let reply = reply.await;
        self.note(What::Cancel(id), reply.fate());
        match reply {
            Reply::Done(view) => {
                world.saw("a cancel");
                world.heard(&view, &ended);
            }
            Reply::Refused(_) => world.saw("a cancel refused"),
            Reply::Unknown => {}
        }
    }

    async fn delete(&self) {
        let (caller, key) = (self.caller(), self.key());
        let reply = self.ask(&caller, "DeleteSession", |r| {
            let (caller, key) = (caller.clone(), key.clone());
            async move { r.delete_session(caller, key).await }
        });
        match reply.await {
            Reply::Done(()) => self.world.saw("a session deleted"),
            Reply::Refused(_) => self.world.saw("a deletion refused"),
            Reply::Unknown => {}
        }
    }

    async fn change(&self) {
        let (caller, key, number) = (self.caller(), self.key(), self.world.count());
        let name = *self.world.pick(&["mine", "user:mine"]).unwrap();
        let delta = object(json!({name: number}));
        let reply = self.ask(&caller, "UpdateSessionState", |r| {
            let (caller, key, delta) = (caller.clone(), key.clone(), delta.clone());
            async move { r.update_state(caller, key, delta).await }
        });
        let reply = reply.await;
        self.note(What::Change(number), reply.fate());
        if let Reply::Done(_) = reply {
            self.world.saw("a change of state");
            self.durable("a change of state", |record| changed(record) == Some(number));
        }
    }

    async fn look(&self) {
        let world = &self.world;
        let (caller, key) = (Caller { mark: None, ..self.caller() }, self.key());
        let filter = InvocationFilter::default();
        let known = world.journal().known.clone();
        let ended = world.journal().ended.clone();
        let reply = self.ask(&caller, "ListInvocations", |r| {
            let filter = filter.clone();
            async move { r.list_invocations(&filter, None, 100).await }
        });
        if let Reply::Done(page) = reply.await {
            page.items.iter().for_each(|view| world.heard(view, &ended));
        }
        let reply = self.ask(&caller, "GetSession", |r| {
            let key = key.clone();
            async move { r.get_session(&key).await }
        });
        if let Reply::Done(view) = reply.await {
            let (uid, head) = (&view.session.uid, view.session.head);
            let known = known.get(uid).copied().unwrap_or(0);
            world.check(head >= known, || format!("{uid} is shown up to {head}, not {known}"));
            world.acknowledged(uid, head);
        }
    }

    async fn watch(&self) {
        let world = &self.world;
        let (key, known) = (self.key(), world.journal().invocations.clone());
        let invocation = match world.percent(30) {
            true => world.pick(&known).cloned(),
            false => None,
        };
        let after = world.below(6);
        tokio::spawn(followers::watch(world.clone(), key, invocation, after));
    }
}

/// RunAsync with the same answers.
fn answers_of(submission: &Submission, session: &SessionKey) -> Run {
    let part = |incoming: &Incoming| {
        Part::new(Data::FunctionResponse(FunctionResponse {
            id: incoming.call.clone(),
            name: incoming.name.clone(),
            response: incoming.response.clone(),
            will_continue: incoming.will_continue,
        }))
    };
    let parts = submission.answers.answers.iter().map(part).collect();
    Run {
        app: session.app.clone(),
        user: session.user.clone(),
        session: submission.session.clone(),
        message: Some(Content { role: Role::User, parts }),
        state_delta: Object::new(),
        streaming: false,
        max_llm_calls: None,
        custom_metadata: Object::new(),
        invocation: None,
        after_sequence: 0,
    }
}

/// The text of a message's record.
pub fn said(record: &Record) -> Option<&str> {
    let Body::Invoked { event, .. } = &record.body else { return None };
    match event.content.as_ref()?.parts.first()?.data.as_ref()? {
        Data::Text(text) => Some(text),
        _ => None,
    }
}

/// The number of an answer's record.
pub fn answered(record: &Record) -> Option<u64> {
    let answers = match &record.body {
        Body::Answered { answers, .. } => answers,
        Body::RunAgain { comment, .. } => return commented(comment),
        _ => return None,
    };
    answers.iter().find_map(|answer| {
        let response = answer.response.as_ref()?;
        let inner = response.get("payload").and_then(|payload| payload.get("number"));
        let number = response.get("number").or(inner).and_then(Value::as_u64);
        number.or_else(|| commented(&answer.comment))
    })
}

fn commented(comment: &str) -> Option<u64> {
    comment.strip_prefix("number ")?.parse().ok()
}

/// The number of a change of state by a caller.
pub fn changed(record: &Record) -> Option<u64> {
    let Body::StateChanged { event } = &record.body else { return None };
    event.actions.state_delta.values().find_map(Value::as_u64)
}
