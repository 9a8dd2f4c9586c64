//! Streams of events: the log as a follower sees it, with marks between the entries. A stream ends
//! with a mark `end` and status OK, or with an error; a cut connection can look like neither.

use std::pin::Pin;
use std::time::Duration;

use futures_util::stream;
use tokio::time::{Instant, MissedTickBehavior, Sleep};
use tokio_stream::Stream;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

use super::convert::approval::approval_to_pb;
use super::convert::event::event_to_pb;
use super::convert::request::OnPause;
use super::convert::resource::{call_to_pb, invocation_to_pb};
use super::status::status;
use crate::proto::v1::{self as pb, event::Mark};
use crate::runner::index::InvocationView;
use crate::runner::{
    Changed, Changes, Follow, GoneApproval, GoneInvocation, Item, Resource, Runner, Started,
};
use crate::session::call::Call;
use crate::session::record::Ending;

/// A stream of events.
pub(super) type Events = Pin<Box<dyn Stream<Item = Result<pb::Event, Status>> + Send>>;

/// What a stream does with what it sees.
struct Watcher {
    follow: Follow,
    begin: Option<pb::BeginMark>,
    /// What to do at a pause; none: the stream is a watcher's, which shows no pauses.
    on_pause: Option<OnPause>,
    /// Marks the end of the log that was there at the beginning.
    shows_caught_up: bool,
    beat: tokio::time::Interval,
    /// When something was sent last.
    sent: Instant,
    /// The server drains.
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The stream is as old as one may be.
    aged: Pin<Box<Sleep>>,
    over: bool,
}

/// The mark's event: it has no id and is no entry.
pub(super) fn mark(mark: Mark) -> pb::Event {
    pb::Event { mark: Some(mark), ..pb::Event::default() }
}

/// The stream of RunAsync.
pub(super) fn of_run(runner: &Runner, started: &Started, on_pause: OnPause) -> Events {
    let begin = pb::BeginMark {
        app_name: started.key.app.to_string(),
        user_id: started.key.user.to_string(),
        session_id: started.key.id.to_string(),
        invocation_id: started.invocation.to_string(),
        replayed: started.replayed,
    };
    let follow = runner.follow(started);
    Watcher::new(runner, follow, Some(begin), Some(on_pause)).stream()
}

/// The stream of WatchSession.
pub(super) fn of_session(runner: &Runner, follow: Follow) -> Events {
    let mut watcher = Watcher::new(runner, follow, None, None);
    watcher.shows_caught_up = true;
    watcher.stream()
}

fn beats(every: Duration) -> tokio::time::Interval {
    let mut beat = tokio::time::interval_at(Instant::now() + every, every);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

impl Watcher {
    fn new(
        runner: &Runner,
        follow: Follow,
        begin: Option<pb::BeginMark>,
        on_pause: Option<OnPause>,
    ) -> Self {
        let limits = runner.limits();
        Self {
            follow,
            begin,
            on_pause,
            shows_caught_up: false,
            beat: beats(limits.heartbeat),
            sent: Instant::now(),
            draining: Box::pin(runner.draining().clone().cancelled_owned()),
            aged: Box::pin(tokio::time::sleep(limits.stream_age)),
            over: false,
        }
    }

    fn stream(self) -> Events {
        Box::pin(stream::unfold(self, |mut watcher| async move {
            let event = watcher.next().await?;
            watcher.sent = Instant::now();
            watcher.over |= event.is_err();
            Some((event, watcher))
        }))
    }

    async fn next(&mut self) -> Option<Result<pb::Event, Status>> {
        if self.over {
            return None;
        }
        if let Some(begin) = self.begin.take() {
            return Some(Ok(mark(Mark::Begin(begin))));
        }
        loop {
            let item = tokio::select! {
                biased;
                () = &mut self.draining => return Some(Ok(self.reconnect())),
                () = &mut self.aged => return Some(Ok(self.reconnect())),
                item = self.follow.next() => item,
                _ = self.beat.tick() => {
                    // Only a quiet stream beats. What is sent does not wind the timer anew.
                    let next = self.sent + self.beat.period();
                    if next > Instant::now() {
                        self.beat.reset_at(next);
                        continue;
                    }
                    let last_sequence = sequence(self.follow.last_sequence());
                    let beat = pb::HeartbeatMark { last_sequence };
                    return Some(Ok(mark(Mark::Heartbeat(beat))));
                }
            };
            match item {
                Ok(item) => {
                    if let Some(event) = self.show(item) {
                        return Some(Ok(event));
                    }
                }
                Err(refusal) => return Some(Err(status(refusal))),
            }
        }
    }

    /// What is sent for an item, if anything is.
    fn show(&mut self, item: Item) -> Option<pb::Event> {
        match item {
            Item::Event(record) => record.body.event().map(event_to_pb),
            Item::Piece(event) => Some(pb::Event { partial: true, ..event_to_pb(&event) }),
            Item::CaughtUp => {
                let last_sequence = sequence(self.follow.last_sequence());
                let caught_up = pb::CaughtUpMark { last_sequence };
                self.shows_caught_up.then(|| mark(Mark::CaughtUp(caught_up)))
            }
            Item::Paused(held) => match self.on_pause? {
                OnPause::Detach => Some(self.end(pb::end_mark::State::Paused, &held, "", "")),
                OnPause::Follow => {
                    let held_calls = held.iter().map(call_to_pb).collect();
                    Some(mark(Mark::Pause(pb::PauseMark { held_calls })))
                }
            },
            Item::Ended(how) => Some(match how {
                Ending::Completed => self.end(pb::end_mark::State::Completed, &[], "", ""),
                Ending::Cancelled => self.end(pb::end_mark::State::Cancelled, &[], "", ""),
                Ending::Failed { code, message } => {
                    self.end(pb::end_mark::State::Failed, &[], &code, &message)
                }
            }),
        }
    }

    fn reconnect(&mut self) -> pb::Event {
        self.end(pb::end_mark::State::Reconnect, &[], "", "")
    }

    fn end(
        &mut self,
        state: pb::end_mark::State,
        held: &[Call],
        code: &str,
        message: &str,
    ) -> pb::Event {
        self.over = true;
        mark(Mark::End(pb::EndMark {
            state: state.into(),
            held_calls: held.iter().map(call_to_pb).collect(),
            error_code: code.to_owned(),
            error_message: message.to_owned(),
            after_sequence: sequence(self.follow.last_sequence()),
        }))
    }
}

fn sequence(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A stream of a watched list.
pub(super) type Listing<M> = Pin<Box<dyn Stream<Item = Result<M, Status>> + Send>>;

/// What a message of a watched list tells.
pub(super) enum Update<V, G> {
    /// A change of the list.
    Changed(Changed<V, G>),
    /// Nothing happened.
    Heartbeat,
    /// The stream ends.
    End(pb::EndMark),
}

/// Watches a list; `cursor` writes a feed number for the caller, `tell` makes a message with the
/// cursor.
pub(super) fn of_list<R: Resource, M: 'static>(
    runner: &Runner,
    mut changes: Changes<R>,
    cursor: impl Fn(u64) -> String + Send + Sync + 'static,
    tell: impl Fn(String, Update<R::View, R::Gone>) -> M + Send + Sync + 'static,
) -> Listing<M> {
    let limits = runner.limits().clone();
    let (draining, mut beat) = (runner.draining().clone(), beats(limits.heartbeat));
    let until = Instant::now() + limits.stream_age;
    let mut last = String::new();
    let next = async move |over: &mut bool| {
        let update = tokio::select! {
            biased;
            () = draining.cancelled() => None,
            () = tokio::time::sleep_until(until) => None,
            changed = changes.next() => Some(changed.map(Some)),
            _ = beat.tick() => Some(Ok(None)),
        };
        beat.reset();
        let update = match update {
            None => {
                *over = true;
                let state = pb::end_mark::State::Reconnect.into();
                Update::End(pb::EndMark { state, ..pb::EndMark::default() })
            }
            Some(Ok(None)) => Update::Heartbeat,
            Some(Ok(Some((feed, changed)))) => {
                last = cursor(feed);
                Update::Changed(changed)
            }
            Some(Err(refusal)) => {
                *over = true;
                return Err(status(refusal));
            }
        };
        Ok(tell(last.clone(), update))
    };
    Box::pin(stream::unfold((next, false), |(mut next, mut over)| async move {
        if over {
            return None;
        }
        let message = next(&mut over).await;
        Some((message, (next, over)))
    }))
}

/// A message of WatchInvocations.
pub(super) fn invocation_update(
    cursor: String,
    update: Update<InvocationView, GoneInvocation>,
) -> pb::WatchInvocationsResponse {
    use pb::watch_invocations_response::{Removed, Update as Wire};
    let update = match update {
        Update::Changed(Changed::Now(view)) => Wire::Invocation(invocation_to_pb(&view)),
        Update::Changed(Changed::Removed(GoneInvocation { id, session })) => {
            Wire::Removed(Removed {
                invocation_id: id.to_string(),
                app_name: session.app.to_string(),
                user_id: session.user.to_string(),
                session_id: session.id.to_string(),
            })
        }
        Update::Changed(Changed::CaughtUp) => Wire::CaughtUp(pb::CaughtUpMark::default()),
        Update::Heartbeat => Wire::Heartbeat(pb::HeartbeatMark::default()),
        Update::End(end) => Wire::End(end),
    };
    pb::WatchInvocationsResponse { cursor, update: Some(update) }
}

/// A message of WatchApprovals.
pub(super) fn approval_update(
    cursor: String,
    update: Update<Call, GoneApproval>,
) -> pb::WatchApprovalsResponse {
    use pb::watch_approvals_response::{Removed, Update as Wire};
    let update = match update {
        Update::Changed(Changed::Now(call)) => Wire::Approval(approval_to_pb(&call)),
        Update::Changed(Changed::Removed(GoneApproval { call, app, user })) => {
            Wire::Removed(Removed {
                call_id: call.to_string(),
                app_name: app.to_string(),
                user_id: user.to_string(),
            })
        }
        Update::Changed(Changed::CaughtUp) => Wire::CaughtUp(pb::CaughtUpMark::default()),
        Update::Heartbeat => Wire::Heartbeat(pb::HeartbeatMark::default()),
        Update::End(end) => Wire::End(end),
    };
    pb::WatchApprovalsResponse { cursor, update: Some(update) }
}
