//! What an idle watcher costs the server.

use super::server::Own;
use super::{Failure, Measured, Report, machine};
use crate::client::Client;
use crate::proto::v1::{self as pb, event::Mark};

/// How many watchers share a connection.
const PER_CONNECTION: u32 = 1000;

pub(super) async fn measure(report: &Report, watchers: u32) -> Result<(), Failure> {
    let own = Own::start().await?;
    let client = Client::new(own.address())?;
    let (app, user) = ("bounded", "bench");
    let new = pb::CreateSessionRequest {
        app_name: app.to_owned(),
        user_id: user.to_owned(),
        ..Default::default()
    };
    let session = client.sessions().create_session(new).await?.into_inner().id;
    let before = machine::resident(own.pid())?;
    let mut streams = Vec::new();
    let mut connection = client;
    for n in 0..watchers {
        if n % PER_CONNECTION == 0 {
            connection = Client::new(own.address())?;
        }
        let request = pb::WatchSessionRequest {
            app_name: app.to_owned(),
            user_id: user.to_owned(),
            session_id: session.clone(),
            ..Default::default()
        };
        let mut stream = connection.sessions().watch_session(request).await?.into_inner();
        while let Some(event) = stream.message().await? {
            if matches!(event.mark, Some(Mark::CaughtUp(_))) {
                break;
            }
        }
        streams.push(stream);
    }
    let after = machine::resident(own.pid())?;
    let each = (after.saturating_sub(before)) as f64 / f64::from(watchers) / 1024.0;
    report.tell(
        &Measured::new("watcher", each, "KiB")
            .with("watchers", watchers)
            .beside("idle_mib", before as f64 / f64::from(1 << 20)),
    )
}
