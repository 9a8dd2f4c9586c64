//! One more turn of a session with many events before it.

use std::time::{Duration, Instant};

use super::cycles::to_end;
use super::server::Own;
use super::{Failure, Measured, Report, quantile};
use crate::client::Client;
use crate::proto::v1::{self as pb, end_mark::State};
use crate::proto::wkt;

const USER: &str = "bench";

/// How many turns are timed at each length.
const TURNS: usize = 60;

/// How many events one session of earlier events gets at once.
const LENGTHS: [u64; 3] = [10, 1_000, 10_000];

pub(super) async fn measure(report: &Report) -> Result<(), Failure> {
    let own = Own::start().await?;
    let client = Client::new(own.address())?;
    let (mut first, mut whole) = (None, Vec::new());
    for app in ["bounded", "whole"] {
        for events in LENGTHS {
            let session = grow(&client, app, events).await?;
            let took = turns(&client, app, &session).await?;
            if app == "whole" {
                whole.push((events, took));
                continue;
            }
            let first = *first.get_or_insert(took);
            report.tell(
                &Measured::new("turn_bounded_prompt", took, "ms")
                    .with("earlier_events", events)
                    .beside("of_10", took / first),
            )?;
        }
    }
    let ((few, fast), (many, slow)) = (whole[0], whole[whole.len() - 1]);
    let slope = (slow - fast) / (many - few) as f64 * 1e3;
    report.tell(&Measured::new("turn_whole_history_slope", slope, "µs/event").beside("at_10", fast))
}

/// A session with so many events.
async fn grow(client: &Client, app: &str, events: u64) -> Result<String, Failure> {
    let mut sessions = client.sessions();
    let new = pb::CreateSessionRequest {
        app_name: app.to_owned(),
        user_id: USER.to_owned(),
        ..Default::default()
    };
    let id = sessions.create_session(new).await?.into_inner().id;
    let mut agents = client.agents();
    for _ in 0..events / 2 {
        to_end(&mut agents, say(app, &id), State::Completed).await?;
    }
    Ok(id)
}

fn say(app: &str, session: &str) -> pb::RunAsyncRequest {
    let text = pb::part::Data::Text("And one more message of some length to be noted.".to_owned());
    let part = pb::Part { data: Some(text), ..Default::default() };
    pb::RunAsyncRequest {
        app_name: app.to_owned(),
        user_id: USER.to_owned(),
        session_id: session.to_owned(),
        new_message: Some(pb::Content { role: "user".to_owned(), parts: vec![part] }),
        run_config: Some(pb::RunConfig {
            custom_metadata: Some(wkt::Struct::default()),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The median of some turns, in milliseconds.
async fn turns(client: &Client, app: &str, session: &str) -> Result<f64, Failure> {
    let mut agents = client.agents();
    let mut times: Vec<Duration> = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let since = Instant::now();
        to_end(&mut agents, say(app, session), State::Completed).await?;
        times.push(since.elapsed());
    }
    times.sort_unstable();
    Ok(quantile(&times, 0.5))
}
