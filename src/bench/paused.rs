//! What many paused sessions cost: memory, disk, and the next start.

use std::time::Duration;

use super::cycles::run;
use super::server::Own;
use super::{Failure, Measured, Report, machine};
use crate::client::Client;
use crate::proto::v1::{self as pb, end_mark::State};

/// How many clients pause sessions at once.
const CLIENTS: u32 = 64;

const MIB: f64 = (1 << 20) as f64;

pub(super) async fn measure(report: &Report, paused: u32) -> Result<(), Failure> {
    let mut own = Own::start().await?;
    // The same load first with nothing left behind, so that caches and allocator are warm.
    let empty_start = own.restart()?;
    pause(own.address(), CLIENTS * 8).await?;
    own.restart()?;
    warm(own.address()).await?;
    let (memory, disk) = (machine::resident(own.pid())?, machine::bytes_in(own.directory())?);
    pause(own.address(), paused).await?;
    let grown = machine::bytes_in(own.directory())?;
    let after_load = machine::resident(own.pid())?;
    let start = own.restart()?;
    warm(own.address()).await?;
    let with = machine::resident(own.pid())?;
    let more = |bytes: u64| (bytes as f64 - memory as f64) / MIB;
    report.tell(
        &Measured::new("paused_memory", more(with), "MiB")
            .with("paused", paused)
            .beside("idle_mib", memory as f64 / MIB)
            .beside("right_after_the_load_mib", more(after_load)),
    )?;
    let each = grown.saturating_sub(disk) as f64 / f64::from(paused) / 1024.0;
    report.tell(&Measured::new("paused_disk", each, "KiB/session").with("paused", paused))?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    report.tell(
        &Measured::new("start_to_serving", ms(start), "ms")
            .with("paused", paused)
            .beside("without_paused", ms(empty_start)),
    )
}

/// One whole cycle, so that the server has used what it uses.
async fn warm(address: &str) -> Result<(), Failure> {
    let client = Client::new(address)?;
    let part = said("Please reimburse $50 for meals");
    run(&mut client.agents(), "warm", "", part, State::Completed).await?;
    Ok(())
}

fn said(text: &str) -> pb::Part {
    pb::Part { data: Some(pb::part::Data::Text(text.to_owned())), ..Default::default() }
}

async fn pause(address: &str, count: u32) -> Result<(), Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let mine = count / CLIENTS + u32::from(client < count % CLIENTS);
        let mut agents = Client::new(address)?.agents();
        tasks.spawn(async move {
            for _ in 0..mine {
                let part = said("Please reimburse $200 for conference travel");
                run(&mut agents, "bench", "", part, State::Paused).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
