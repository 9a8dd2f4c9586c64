//! Clients under whom servers die: each runs one invocation after the other in sessions of its own,
//! answers, cancels and watches, repeats what was not acknowledged, and writes down what was.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use countersign::proto::v1::event::Mark;
use serde_json::Value;
use tokio::sync::watch;
use tonic_types::StatusExt;

use super::history::{Answered, Fact, Saw};
use super::*;
use crate::support::{USER, answer, say_answers};

/// The app of this load.
pub const CLERK: &str = "clerk";

/// Nothing comes any more, if nothing has come for so long.
const QUIET: Duration = Duration::from_secs(10);

/// The next number of a sequence, below a bound.
pub fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// What all clients share.
#[derive(Clone)]
pub struct Scene {
    /// Where the newest server is.
    pub address: watch::Receiver<String>,
    /// Counts what clients have been told.
    pub told: Arc<watch::Sender<u64>>,
    /// No more invocations.
    pub stop: Arc<AtomicBool>,
}

/// A client that outlives servers.
pub struct Patient {
    name: String,
    scene: Scene,
    client: Option<Client>,
    seed: u64,
    marks: u64,
    facts: Vec<Fact>,
}

impl Patient {
    pub fn new(name: String, seed: u64, scene: Scene) -> Self {
        Self { name, scene, client: None, seed, marks: 0, facts: Vec::new() }
    }

    /// Another one for the same person, on a connection of its own.
    fn twin(&mut self) -> Self {
        let name = self.mark();
        Self::new(name, self.seed ^ self.marks, self.scene.clone())
    }

    fn pick(&mut self, below: u64) -> u64 {
        random(&mut self.seed, below)
    }

    /// A name that nobody else uses.
    fn mark(&mut self) -> String {
        self.marks += 1;
        format!("{}-{}", self.name, self.marks)
    }

    fn tell(&self) {
        self.scene.told.send_modify(|count| *count += 1);
    }

    async fn connected(&mut self) -> Client {
        loop {
            if let Some(client) = &self.client {
                return client.clone();
            }
            let address = self.scene.address.borrow_and_update().clone();
            match connect(&address).await {
                Ok(client) => self.client = Some(client),
                Err(_) => self.scene.address.changed().await.unwrap(),
            }
        }
    }

    /// The server is gone; the next one is waited for.
    async fn cut(&mut self) {
        self.client = None;
        self.scene.address.changed().await.unwrap();
    }

    /// The same, if that is what the error says.
    async fn broken(&mut self, status: &Status) {
        assert!(status.get_details_error_info().is_none(), "a refusal: {status:?}");
        self.cut().await;
    }

    /// Asks until there is an answer.
    async fn ask<R: Clone, T, F>(
        &mut self,
        request: R,
        ask: impl Fn(Client, R) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        loop {
            let client = self.connected().await;
            match ask(client, request.clone()).await {
                Err(status) if status.get_details_error_info().is_none() => self.cut().await,
                answered => {
                    self.tell();
                    return answered;
                }
            }
        }
    }

    /// Invocations until it is told to stop.
    pub async fn life(mut self) -> Vec<Fact> {
        while !self.scene.stop.load(Ordering::SeqCst) {
            self.session().await;
        }
        self.facts
    }

    /// A session of a few invocations, watched all the while.
    async fn session(&mut self) {
        let session = self.mark();
        let request = pb::CreateSessionRequest {
            app_name: CLERK.into(),
            user_id: USER.into(),
            session_id: session.clone(),
            ..Default::default()
        };
        let made = self.ask(request, |mut client, request| async move {
            client.sessions.create_session(request).await.map(drop)
        });
        if let Err(refused) = made.await {
            // It was made, and nobody was told.
            let info = refused.get_details_error_info().unwrap();
            assert_eq!(info.reason, "SESSION_EXISTS");
        }
        let (until, known) = watch::channel(i64::MAX);
        let watcher = tokio::spawn(self.twin().watch(session.clone(), known));
        for _ in 0..=self.pick(4) {
            self.invocation(&session).await;
            if self.scene.stop.load(Ordering::SeqCst) {
                break;
            }
        }
        let request = pb::ListEventsRequest {
            app_name: CLERK.into(),
            user_id: USER.into(),
            session_id: session.clone(),
            page_size: 1_000,
            ..Default::default()
        };
        let listed = self.ask(request, |mut client, request| async move {
            client.sessions.list_events(request).await
        });
        let events = listed.await.unwrap().into_inner().events;
        until.send_replace(i64::try_from(events.len()).unwrap());
        self.facts.push(Fact::Listed { session, events });
        self.facts.extend(watcher.await.unwrap());
    }

    /// Watches a session up to an event that is known later.
    async fn watch(mut self, session: String, mut until: watch::Receiver<i64>) -> Vec<Fact> {
        let mut cursor = 0;
        while cursor < *until.borrow_and_update() {
            let mut client = self.connected().await;
            let request = pb::WatchSessionRequest {
                app_name: CLERK.into(),
                user_id: USER.into(),
                session_id: session.clone(),
                after_sequence: cursor,
                ..Default::default()
            };
            let mut saw = Saw {
                session: session.clone(),
                invocation: None,
                after: cursor,
                own: false,
                events: Vec::new(),
                end: None,
            };
            let mut stream = match client.sessions.watch_session(request).await {
                Ok(stream) => stream.into_inner(),
                Err(status) => {
                    self.broken(&status).await;
                    continue;
                }
            };
            let broke = loop {
                if cursor >= *until.borrow() {
                    break None;
                }
                let message = tokio::select! {
                    message = stream.message() => message,
                    _ = until.changed() => continue,
                };
                match message {
                    Ok(Some(event)) if event.mark.is_none() => {
                        cursor = event.sequence;
                        saw.events.push(event);
                        self.tell();
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("a stream ended without an end"),
                    Err(status) => break Some(status),
                }
            };
            self.facts.push(Fact::Saw(saw));
            if let Some(status) = broke {
                self.broken(&status).await;
            }
        }
        self.facts
    }

    /// One message and all that comes of it, to an end or to a pause that is left alone.
    async fn invocation(&mut self, session: &str) {
        let mark = self.mark();
        let what = ["ask", "ask", "ask", "wait", "pay", "look", "hello"][self.pick(7) as usize];
        let message = pb::RunAsyncRequest {
            request_id: mark.clone(),
            ..say(CLERK, session, &format!("{what} {mark}"))
        };
        self.facts.push(Fact::Said { mark: mark.clone() });
        let (id, mut cursor, mut end) = self.begin(session, &mark, message).await;
        loop {
            let ended = match end {
                Some(end) => end,
                None => self.follow(session, &id, &mut cursor).await,
            };
            if ended.state() != State::Paused {
                return;
            }
            if !self.decide(session, &id, &ended.held_calls[0]).await {
                return;
            }
            end = None;
        }
    }

    /// Begins, by whatever it takes; the cursor to go on from, and the end if it came to that.
    async fn begin(
        &mut self,
        session: &str,
        mark: &str,
        message: pb::RunAsyncRequest,
    ) -> (String, i64, Option<pb::EndMark>) {
        let cancels = self.pick(10) == 0;
        loop {
            let (begun, saw) = self.stream(session, None, 0, message.clone(), cancels).await;
            let Some(id) = begun else {
                self.cut().await;
                continue;
            };
            let (session, invocation) = (session.to_owned(), id.clone());
            self.facts.push(Fact::Begun { mark: mark.to_owned(), session, invocation });
            let cursor = saw.events.last().map_or(0, |event| event.sequence);
            let end = saw.end.clone();
            self.facts.push(Fact::Saw(saw));
            if cancels {
                self.cancel(&id).await;
            } else if end.is_none() {
                self.cut().await;
                // Either the same again, or on from where it broke off.
                if cursor == 0 || self.pick(2) == 0 {
                    continue;
                }
            }
            return (id, cursor, end);
        }
    }

    /// Follows an invocation to the end of a stream, on as many servers as it takes.
    async fn follow(&mut self, session: &str, id: &str, cursor: &mut i64) -> pb::EndMark {
        loop {
            let request = pb::RunAsyncRequest {
                new_message: None,
                invocation_id: id.to_owned(),
                after_sequence: *cursor,
                ..say(CLERK, session, "")
            };
            let (_, saw) = self.stream(session, Some(id), *cursor, request, false).await;
            *cursor = saw.events.last().map_or(*cursor, |event| event.sequence);
            let end = saw.end.clone();
            self.facts.push(Fact::Saw(saw));
            match end {
                Some(end) => return end,
                None => self.cut().await,
            }
        }
    }

    /// One stream of RunAsync: which invocation it followed, and what it showed.
    async fn stream(
        &mut self,
        session: &str,
        invocation: Option<&str>,
        after: i64,
        request: pb::RunAsyncRequest,
        leaves: bool,
    ) -> (Option<String>, Saw) {
        let mut saw = Saw {
            session: session.to_owned(),
            invocation: invocation.map(ToOwned::to_owned),
            after,
            own: invocation.is_none(),
            events: Vec::new(),
            end: None,
        };
        let mut begun = None;
        let mut client = self.connected().await;
        let mut stream = match client.agents.run_async(request).await {
            Ok(stream) => stream.into_inner(),
            Err(status) => {
                assert!(status.get_details_error_info().is_none(), "a refusal: {status:?}");
                return (None, saw);
            }
        };
        loop {
            let event = match stream.message().await {
                Ok(Some(event)) => event,
                Ok(None) => break,
                Err(status) => {
                    assert!(status.get_details_error_info().is_none(), "a refusal: {status:?}");
                    break;
                }
            };
            self.tell();
            match event.mark {
                Some(Mark::Begin(begin)) => {
                    saw.invocation = Some(begin.invocation_id.clone());
                    begun = Some(begin.invocation_id);
                    if leaves {
                        break;
                    }
                }
                Some(Mark::End(end)) => saw.end = Some(end),
                Some(_) => {}
                None => saw.events.push(event),
            }
        }
        (begun, saw)
    }

    /// Somebody decides, or two at once; false: nobody does.
    async fn decide(&mut self, session: &str, invocation: &str, call: &pb::Call) -> bool {
        match self.pick(9) {
            0 | 1 => self.submit(call, None, true).await,
            2 => {
                // The same again, as it is and with its mark.
                let mark = self.mark();
                self.submit(call, Some(&mark), true).await;
                self.submit(call, Some(&mark), true).await;
                self.submit(call, Some(&mark), false).await;
            }
            3 => {
                let (mut twin, mark) = (self.twin(), self.mark());
                let same = Some(mark.as_str());
                tokio::join!(self.submit(call, same, false), twin.submit(call, same, false));
                self.facts.append(&mut twin.facts);
            }
            4 => {
                let mut twin = self.twin();
                tokio::join!(self.submit(call, None, true), twin.submit(call, None, false));
                self.facts.append(&mut twin.facts);
            }
            5 => {
                let mut twin = self.twin();
                tokio::join!(self.submit(call, None, true), twin.cancel(invocation));
                self.facts.append(&mut twin.facts);
            }
            6 => self.cancel(invocation).await,
            7 => self.answer_by_message(session, call).await,
            _ => return false,
        }
        true
    }

    /// Answers a call until it is known what became of it.
    async fn submit(&mut self, call: &pb::Call, mark: Option<&str>, with_id: bool) {
        let mark = mark.map_or_else(|| self.mark(), ToOwned::to_owned);
        let request = if with_id { mark.clone() } else { String::new() };
        let answer = pb::SubmitFunctionResponseRequest {
            request_id: request.clone(),
            ..submit(call, approval(&mark))
        };
        let id = call.function_call.as_ref().unwrap().id.clone();
        self.facts.push(Fact::Tried { call: id.clone(), mark: mark.clone() });
        let done =
            self.ask(answer, |mut client, answer| async move { client.submit(answer).await }).await;
        self.facts.push(match done {
            Ok(done) => {
                let outcome = Some((done.outcome(), done.sequence));
                Fact::Answered(Answered { call: id, mark, request, outcome })
            }
            Err(refused) => refusal(id, mark, &refused),
        });
    }

    /// Answers as ADK's clients do: by a message. Its stream is left once it has begun.
    async fn answer_by_message(&mut self, session: &str, call: &pb::Call) {
        let mark = self.mark();
        let request = pb::RunAsyncRequest {
            request_id: mark.clone(),
            ..say_answers(CLERK, session, vec![answer(call, approval(&mark))])
        };
        let id = call.function_call.as_ref().unwrap().id.clone();
        self.facts.push(Fact::Tried { call: id.clone(), mark: mark.clone() });
        let begun = self.ask(request, |mut client, request| async move {
            let mut stream = client.agents.run_async(request).await?.into_inner();
            let first = stream.message().await?;
            first.ok_or_else(|| Status::unavailable("the stream broke off")).map(drop)
        });
        let begun = begun.await;
        self.facts.push(match begun {
            Ok(()) => {
                Fact::Answered(Answered { call: id, request: mark.clone(), mark, outcome: None })
            }
            Err(refused) => refusal(id, mark, &refused),
        });
    }

    async fn cancel(&mut self, invocation: &str) {
        let request = pb::CancelInvocationRequest {
            invocation_id: invocation.to_owned(),
            request_id: self.mark(),
            ..Default::default()
        };
        let done = self.ask(request, |mut client, request| async move {
            client.agents.cancel_invocation(request).await.map(drop)
        });
        let done = done.await;
        let invocation = invocation.to_owned();
        self.facts.push(match done {
            Ok(()) => Fact::Cancelled { invocation },
            Err(refused) => {
                let info = refused.get_details_error_info().unwrap();
                assert_eq!(info.reason, "INVOCATION_ENDED");
                Fact::TooLate { invocation }
            }
        });
    }

    /// Watches all invocations until they are as somebody says that they are, or nothing comes any
    /// more.
    pub async fn changes(mut self, mut goal: watch::Receiver<Option<States>>) -> Vec<Fact> {
        let (mut states, mut cursor) = (States::new(), String::new());
        while goal.borrow_and_update().as_ref() != Some(&states) {
            let mut client = self.connected().await;
            let request =
                pb::WatchInvocationsRequest { cursor: cursor.clone(), ..Default::default() };
            let mut stream = match client.agents.watch_invocations(request).await {
                Ok(stream) => stream.into_inner(),
                Err(status) => {
                    self.broken(&status).await;
                    continue;
                }
            };
            while goal.borrow_and_update().as_ref() != Some(&states) {
                let message = tokio::select! {
                    message = tokio::time::timeout(QUIET, stream.message()) => message,
                    _ = goal.changed() => continue,
                };
                // Whether that is all, the checker tells.
                let Ok(message) = message else {
                    if goal.borrow().is_some() {
                        return vec![Fact::Watched(states)];
                    }
                    continue;
                };
                let message = match message {
                    Ok(Some(message)) => message,
                    Ok(None) => panic!("a stream ended without an end"),
                    Err(status) => {
                        self.broken(&status).await;
                        break;
                    }
                };
                cursor = message.cursor;
                use pb::watch_invocations_response::Update;
                match message.update.unwrap() {
                    Update::Invocation(now) => {
                        states.insert(now.id.clone(), now.state());
                    }
                    Update::Removed(gone) => {
                        states.remove(&gone.invocation_id);
                    }
                    Update::CaughtUp(_) | Update::Heartbeat(_) | Update::End(_) => {}
                }
            }
        }
        vec![Fact::Watched(states)]
    }
}

/// The states of invocations.
pub type States = BTreeMap<String, pb::invocation::State>;

fn approval(mark: &str) -> Value {
    json!({"status": "approved", "mark": mark})
}

fn refusal(call: String, mark: String, refused: &Status) -> Fact {
    let reason = refused.get_details_error_info().unwrap().reason;
    if reason == "CALL_ALREADY_ANSWERED" {
        let who = refused.get_details_error_info().unwrap().metadata;
        assert!(!who.is_empty(), "it names who won: {refused:?}");
    }
    Fact::Refused { call, mark, reason }
}
