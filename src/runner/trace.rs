//! The log lines that follow an invocation through its pauses: one for each turn of its life, with
//! ids as fields; never arguments, contents or answers.

use crate::session::call::End;
use crate::session::id::SessionKey;
use crate::session::record::{Body, Ending, Record};

/// Tells what has just become durable.
pub(super) fn appended<'a>(key: &SessionKey, records: impl IntoIterator<Item = &'a Record>) {
    for record in records {
        one(key, record);
    }
}

fn one(SessionKey { app, user: _, id }: &SessionKey, record: &Record) {
    let by = &record.by;
    macro_rules! told {
        ($invocation:expr, $what:literal $(, $name:ident = $value:expr)*) => {
            tracing::info!(
                %app, session_id = %id, invocation_id = %$invocation, %by
                $(, $name = %$value)*, $what
            )
        };
    }
    match &record.body {
        Body::Created { .. } => tracing::info!(%app, session_id = %id, %by, "session created"),
        Body::Invoked { invocation, .. } => told!(invocation, "invocation started"),
        Body::Answered { invocation, answers, queued, .. } => {
            for answer in answers {
                let how = match answer.end {
                    None => "progress",
                    Some(End::Done) => "final",
                    Some(End::Denied) => "denied",
                    Some(End::Expired) => "expired",
                    Some(End::Cancelled) => "cancelled",
                };
                told!(
                    invocation,
                    "call answered",
                    call_id = answer.call,
                    how = how,
                    queued = queued
                );
            }
        }
        Body::Asked { invocation, questions, .. } => {
            for question in questions {
                let about = &question.call;
                told!(invocation, "approval asked for", call_id = question.id, about = about);
            }
        }
        Body::Refused { call, end, .. } => {
            let end = format!("{end:?}");
            tracing::info!(%app, session_id = %id, call_id = %call, end, %by, "call refused");
        }
        Body::RunAgain { call, forced, .. } => {
            tracing::info!(%app, session_id = %id, call_id = %call, forced, %by, "call run again");
        }
        Body::Noted { call, what, .. } => {
            let what = format!("{what:?}");
            tracing::info!(%app, session_id = %id, call_id = %call, what, %by, "approval noted");
        }
        Body::StandingMade { standing } => {
            let (standing, tool) = (&standing.id, &standing.tool.name);
            tracing::info!(%app, session_id = %id, standing, tool, %by, "standing approval made");
        }
        Body::StandingRevoked { id: standing } => {
            tracing::info!(%app, session_id = %id, standing, %by, "standing approval revoked");
        }
        Body::Placed { invocation, .. } => told!(invocation, "queued answer placed"),
        Body::CancelRequested { invocation } => told!(invocation, "cancel requested"),
        Body::Paused { invocation, held } => {
            told!(invocation, "invocation paused", held = held.len())
        }
        Body::Ended { invocation, how } => match how {
            Ending::Completed => told!(invocation, "invocation completed"),
            Ending::Cancelled => told!(invocation, "invocation cancelled"),
            Ending::Failed { code, .. } => {
                told!(invocation, "invocation failed", error_code = code)
            }
        },
        Body::Started { call, execution, attempt } => tracing::debug!(
            %app, session_id = %id, call_id = %call, execution, attempt, "body start recorded"
        ),
        Body::Lost { call, .. } => {
            tracing::warn!(%app, session_id = %id, call_id = %call, "outcome of a call is unknown");
        }
        Body::Claimed { owner, epoch } => {
            tracing::debug!(%app, session_id = %id, %owner, epoch, "session claimed");
        }
        Body::Released
        | Body::Opened { .. }
        | Body::Replied { .. }
        | Body::Returned { .. }
        | Body::Responded { .. }
        | Body::StateChanged { .. }
        | Body::Imported { .. } => {}
    }
}
