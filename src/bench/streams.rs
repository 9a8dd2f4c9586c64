//! Events a second, to one stream and to many: read from the log, and pieces of a text that is
//! being spoken; each beside a bare tonic server that streams the same messages. Of a text that is
//! spoken faster than it is sent several words are one message; so words are counted, and the bare
//! server sends each as a message.

use std::time::{Duration, Instant};

use super::server::{Bare, Own, TALK_WORDS};
use super::{Failure, Measured, Report};
use crate::client::Client;
use crate::proto::v1::{self as pb, event::Mark};
use crate::proto::wkt;

const USER: &str = "bench";

/// How many events the log has that is caught up on.
const LOGGED: usize = 2000;

pub(super) async fn measure(
    report: &Report,
    clients: &[u32],
    time: Duration,
) -> Result<(), Failure> {
    let own = Own::start().await?;
    let bare = Bare::start()?;
    let session = log(&Client::new(own.address())?).await?;
    for &clients in clients {
        let pick = |kind| Kind { kind, session: session.clone() };
        let (caught_up, _) = load(own.address(), clients, time, pick("catch_up")).await?;
        let (logged, _) = load(bare.address(), clients, time, pick("bare_logged")).await?;
        report.tell(
            &Measured::new("catch_up_events_per_second", caught_up, "1/s")
                .with("clients", clients)
                .beside("bare_tonic_per_second", logged)
                .beside("of_bare", caught_up / logged),
        )?;
        let (messages, spoken) = load(own.address(), clients, time, pick("pieces")).await?;
        let (_, pieces) = load(bare.address(), clients, time, pick("bare_pieces")).await?;
        report.tell(
            &Measured::new("partial_words_per_second", spoken, "1/s")
                .with("clients", clients)
                .beside("messages_per_second", messages)
                .beside("bare_tonic_per_second", pieces)
                .beside("of_bare", spoken / pieces),
        )?;
    }
    Ok(())
}

#[derive(Clone)]
struct Kind {
    kind: &'static str,
    session: String,
}

/// A session with many events of about 1 KiB.
async fn log(client: &Client) -> Result<String, Failure> {
    let mut sessions = client.sessions();
    let names = ("bounded".to_owned(), USER.to_owned());
    let new = pb::CreateSessionRequest {
        app_name: names.0.clone(),
        user_id: names.1.clone(),
        ..Default::default()
    };
    let id = sessions.create_session(new).await?.into_inner().id;
    for _ in 0..LOGGED {
        let value = wkt::Value::from("x".repeat(900));
        sessions
            .update_session_state(pb::UpdateSessionStateRequest {
                app_name: names.0.clone(),
                user_id: names.1.clone(),
                session_id: id.clone(),
                state_delta: Some(wkt::Struct::from_iter([("note".to_owned(), value)])),
                request_id: String::new(),
            })
            .await?;
    }
    Ok(id)
}

/// Events and spoken words a second.
async fn load(
    address: &str,
    clients: u32,
    time: Duration,
    kind: Kind,
) -> Result<(f64, f64), Failure> {
    let since = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        tasks.spawn(one(Client::new(address)?, since + time, kind.clone()));
    }
    let (mut events, mut words) = (0_u64, 0_u64);
    while let Some(counts) = tasks.join_next().await {
        let (more, spoken) = counts??;
        events += more;
        words += spoken;
    }
    let seconds = since.elapsed().as_secs_f64();
    Ok((events as f64 / seconds, words as f64 / seconds))
}

async fn one(client: Client, until: Instant, kind: Kind) -> Result<(u64, u64), Failure> {
    let (mut events, mut words) = (0, 0);
    while Instant::now() < until {
        let mut stream = match kind.kind {
            "catch_up" => {
                let request = pb::WatchSessionRequest {
                    app_name: "bounded".to_owned(),
                    user_id: USER.to_owned(),
                    session_id: kind.session.clone(),
                    ..Default::default()
                };
                client.sessions().watch_session(request).await?.into_inner()
            }
            "pieces" => client.agents().run_async(talk("talker")).await?.into_inner(),
            bare => client.agents().run_async(talk(bare)).await?.into_inner(),
        };
        while let Some(event) = stream.message().await? {
            match event.mark {
                None => {
                    events += 1;
                    words += if event.partial { spaces(&event) } else { 0 };
                }
                Some(Mark::CaughtUp(_) | Mark::End(_)) => break,
                Some(_) => {}
            }
        }
    }
    Ok((events, words))
}

/// How many words a piece says: the talker says a space behind each.
fn spaces(event: &pb::Event) -> u64 {
    let parts = event.content.iter().flat_map(|content| &content.parts);
    let texts = parts.filter_map(|part| match &part.data {
        Some(pb::part::Data::Text(text)) => Some(text),
        _ => None,
    });
    texts.map(|text| text.bytes().filter(|byte| *byte == b' ').count() as u64).sum()
}

fn talk(app: &str) -> pb::RunAsyncRequest {
    let text = pb::part::Data::Text("talk".to_owned());
    let part = pb::Part { data: Some(text), ..Default::default() };
    pb::RunAsyncRequest {
        app_name: app.to_owned(),
        user_id: USER.to_owned(),
        new_message: Some(pb::Content { role: "user".to_owned(), parts: vec![part] }),
        run_config: Some(pb::RunConfig {
            streaming_mode: pb::run_config::StreamingMode::Sse.into(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The messages that the bare server streams: like those of the log, or like pieces.
pub(super) fn bare_messages(app: &str) -> (pb::Event, usize) {
    let event = pb::Event {
        id: uuid::Uuid::nil().to_string(),
        invocation_id: format!("e-{}", uuid::Uuid::nil()),
        author: "talker".to_owned(),
        timestamp: 1.8e9,
        ..Default::default()
    };
    if app == "bare_logged" {
        let value = wkt::Value::from("x".repeat(900));
        let delta = wkt::Struct::from_iter([("note".to_owned(), value)]);
        let actions = pb::EventActions { state_delta: Some(delta), ..Default::default() };
        return (pb::Event { actions: Some(actions), sequence: 1, ..event }, LOGGED);
    }
    let text = pb::part::Data::Text("word ".to_owned());
    let part = pb::Part { data: Some(text), ..Default::default() };
    let content = pb::Content { role: "model".to_owned(), parts: vec![part] };
    let info = pb::NodeInfo { path: "talker@1".to_owned() };
    let event = pb::Event {
        content: Some(content),
        partial: true,
        node_info: Some(info),
        actions: Some(pb::EventActions::default()),
        ..event
    };
    (event, TALK_WORDS)
}
