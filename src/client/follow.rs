//! Streams that go on by themselves where they broke off.
//!
//! A stream of events broke off unless its last message was a mark `end` other than RECONNECT. The
//! next one begins behind the last entry received, so nothing comes twice and nothing is missed;
//! partial events in between are lost, since they live on the wire only.

use tonic::{Status, Streaming};

use super::{Client, fill_request_id, is_unreachable};
use crate::proto::v1;
use crate::proto::v1::event::Mark;
use crate::proto::v1::watch_approvals_response::Update as ApprovalUpdate;
use crate::proto::v1::watch_invocations_response::Update as InvocationUpdate;

/// The events of an invocation or a session, over any number of connections.
#[derive(Debug)]
pub struct Events {
    link: Link<v1::Event>,
    source: Source,
    /// The sequence of the last entry received, or what the caller began behind.
    after: i64,
    /// The first mark `begin`, which was given out.
    begun: Option<v1::BeginMark>,
    /// The mark `end` was given out.
    over: bool,
}

/// What is asked for when a connection is opened.
#[derive(Debug)]
enum Source {
    /// A message or answers: repeated as they are until an entry has come, so that the server knows
    /// them again.
    Message(Box<v1::RunAsyncRequest>),
    /// An invocation that exists.
    Invocation(Box<v1::RunAsyncRequest>),
    /// A session.
    Session(v1::WatchSessionRequest),
}

impl Events {
    pub(super) fn run(client: Client, mut request: v1::RunAsyncRequest) -> Self {
        let after = request.after_sequence;
        let source = if request.new_message.is_some() {
            fill_request_id(&mut request.request_id);
            Source::Message(Box::new(request))
        } else {
            Source::Invocation(Box::new(request))
        };
        Self { link: Link::new(client), source, after, begun: None, over: false }
    }

    pub(super) fn watch(client: Client, request: v1::WatchSessionRequest) -> Self {
        let (after, source) = (request.after_sequence, Source::Session(request));
        Self { link: Link::new(client), source, after, begun: None, over: false }
    }

    /// The sequence of the last entry received: what to go on behind.
    pub fn after_sequence(&self) -> i64 {
        self.after
    }

    /// The next event; none after the mark `end`. Marks `end` that only ask to reconnect, and
    /// `begin` of every connection but the first, are kept back. An error is final: it is a
    /// refusal, or the server did not come back in time.
    pub async fn next(&mut self) -> Result<Option<v1::Event>, Status> {
        while !self.over {
            if !self.link.is_open() {
                let opened = self.open().await;
                self.link.opened(opened).await?;
            } else if let Some(event) = self.link.receive().await?
                && let Some(event) = self.take(event).await?
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    async fn open(&self) -> Result<Streaming<v1::Event>, Status> {
        let (client, after_sequence) = (&self.link.client, self.after);
        let reply = match &self.source {
            Source::Message(request) => client.agents().run_async((**request).clone()).await?,
            Source::Invocation(request) => {
                let request = v1::RunAsyncRequest { after_sequence, ..(**request).clone() };
                client.agents().run_async(request).await?
            }
            Source::Session(request) => {
                let request = v1::WatchSessionRequest { after_sequence, ..request.clone() };
                client.sessions().watch_session(request).await?
            }
        };
        Ok(reply.into_inner())
    }

    /// What the caller gets to see of an event.
    async fn take(&mut self, event: v1::Event) -> Result<Option<v1::Event>, Status> {
        match &event.mark {
            Some(Mark::Begin(begin)) => {
                let first = self.begun.is_none();
                self.begun.get_or_insert_with(|| begin.clone());
                Ok(first.then_some(event))
            }
            Some(Mark::End(end)) if end.state() == v1::end_mark::State::Reconnect => {
                self.advance(end.after_sequence);
                self.link.lost(Status::unavailable("the server asks to reconnect")).await?;
                Ok(None)
            }
            Some(Mark::End(_)) => {
                self.over = true;
                self.link.finish().await;
                Ok(Some(event))
            }
            Some(Mark::Heartbeat(_)) => {
                self.link.failures = 0;
                Ok(Some(event))
            }
            Some(Mark::Pause(_) | Mark::CaughtUp(_)) => Ok(Some(event)),
            None if (1..=self.after).contains(&event.sequence) => Ok(None),
            None => {
                self.link.failures = 0;
                self.advance(event.sequence);
                Ok(Some(event))
            }
        }
    }

    /// Something up to this sequence was received: from now on the invocation is followed, not the
    /// message repeated, since a repeat tells from the start.
    fn advance(&mut self, sequence: i64) {
        if sequence <= self.after {
            return;
        }
        self.after = sequence;
        if let (Source::Message(request), Some(begin)) = (&self.source, &self.begun) {
            let v1::BeginMark { app_name, user_id, session_id, invocation_id, replayed: _ } =
                begin.clone();
            self.source = Source::Invocation(Box::new(v1::RunAsyncRequest {
                app_name,
                user_id,
                session_id,
                invocation_id,
                run_config: request.run_config.clone(),
                ..Default::default()
            }));
        }
    }
}

/// A watched list over any number of connections: what it is, its messages, and how it is opened.
macro_rules! watch {
    (
        $(#[$doc:meta])*
        $name:ident, $request:ty, $message:ty, $update:ident, $service:ident.$rpc:ident
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            link: Link<$message>,
            request: $request,
        }

        impl $name {
            pub(super) fn new(client: Client, request: $request) -> Self {
                Self { link: Link::new(client), request }
            }

            /// The next message. An error is final: it is a refusal, or the server did not come
            /// back in time; after CURSOR_EXPIRED begin again with a new snapshot.
            pub async fn next(&mut self) -> Result<$message, Status> {
                loop {
                    if !self.link.is_open() {
                        let request = self.request.clone();
                        let opened = self.link.client.$service().$rpc(request).await;
                        self.link.opened(opened.map(tonic::Response::into_inner)).await?;
                        continue;
                    }
                    let Some(message) = self.link.receive().await? else { continue };
                    if !message.cursor.is_empty() {
                        self.request.cursor.clone_from(&message.cursor);
                    }
                    match message.update {
                        Some($update::End(_)) | None => {
                            let asked = Status::unavailable("the server asks to reconnect");
                            self.link.lost(asked).await?;
                        }
                        Some(_) => {
                            self.link.failures = 0;
                            return Ok(message);
                        }
                    }
                }
            }
        }
    };
}

watch!(
    /// The invocations that a filter matches, over any number of connections.
    Invocations,
    v1::WatchInvocationsRequest,
    v1::WatchInvocationsResponse,
    InvocationUpdate,
    agents.watch_invocations
);

watch!(
    /// The approvals that a filter matches, over any number of connections.
    Approvals,
    v1::WatchApprovalsRequest,
    v1::WatchApprovalsResponse,
    ApprovalUpdate,
    approvals.watch_approvals
);

/// One stream after the other, with the patience of its client.
#[derive(Debug)]
struct Link<M> {
    client: Client,
    stream: Option<Streaming<M>>,
    /// The server was reached at least once.
    reached: bool,
    /// Failures since something new was received.
    failures: u32,
}

/// How long the status of a stream is waited for that has told its end.
const FINISH: std::time::Duration = std::time::Duration::from_secs(1);

impl<M> Link<M> {
    fn new(client: Client) -> Self {
        Self { client, stream: None, reached: false, failures: 0 }
    }

    fn is_open(&self) -> bool {
        self.stream.is_some()
    }

    /// Takes a new stream, or waits before the next attempt.
    async fn opened(&mut self, opened: Result<Streaming<M>, Status>) -> Result<(), Status> {
        match opened {
            Ok(stream) => {
                self.stream = Some(stream);
                self.reached = true;
                Ok(())
            }
            // Nobody is there: said at once. One who was there may come back.
            Err(status) if !self.reached && is_unreachable(&status) => Err(status),
            Err(status) => self.lost(status).await,
        }
    }

    /// Reads a stream that has told its end up to its status. One that is dropped before counts as
    /// reset, and after a thousand of those the HTTP/2 library gives the connection up.
    async fn finish(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        let rest = async { while let Ok(Some(_)) = stream.message().await {} };
        // A server that does not end the stream is not waited for.
        let _ = tokio::time::timeout(FINISH, rest).await;
    }

    /// The next message; none where the stream is lost.
    async fn receive(&mut self) -> Result<Option<M>, Status> {
        let Some(stream) = &mut self.stream else { return Ok(None) };
        match stream.message().await {
            Ok(Some(message)) => Ok(Some(message)),
            Ok(None) => {
                self.lost(Status::unavailable("the stream broke off without an end")).await?;
                Ok(None)
            }
            Err(status) => {
                self.lost(status).await?;
                Ok(None)
            }
        }
    }

    /// Lets the stream go, and waits before the next attempt if there is to be one.
    async fn lost(&mut self, status: Status) -> Result<(), Status> {
        self.stream = None;
        self.failures += 1;
        self.client.wait(self.failures, status).await
    }
}
