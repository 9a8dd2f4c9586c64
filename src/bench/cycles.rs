//! Cycles: message, pause, decision, final text, each client one after another in sessions of its
//! own, as an ADK client does it: both halves by RunAsync.

use std::time::{Duration, Instant};

use super::{Failure, Measured, Report, quantile};
use crate::client::Client;
use crate::proto::v1::{self as pb, end_mark::State, event::Mark};
use crate::proto::wkt;

const APP: &str = "reimbursement_agent";

/// How long the phases of one client's cycles took.
#[derive(Default)]
struct Times {
    pause: Vec<Duration>,
    first: Vec<Duration>,
    end: Vec<Duration>,
}

/// Measures cycles with each number of clients.
pub(super) async fn measure(
    report: &Report,
    address: &str,
    clients: &[u32],
    time: Duration,
    fsyncs: Option<f64>,
) -> Result<(), Failure> {
    for &clients in clients {
        // The first moments are not counted: connections open, caches fill.
        load(address, clients, Duration::from_millis(500)).await?;
        let since = Instant::now();
        let mut times = load(address, clients, time).await?;
        let cycles = times.end.len() as f64 / since.elapsed().as_secs_f64();
        let told = Measured::new("cycles_per_second", cycles, "1/s").with("clients", clients);
        let beside = |told: Measured| match fsyncs {
            Some(rate) => told.beside("fsyncs_per_second", rate),
            None => told,
        };
        report.tell(&beside(told))?;
        for (name, times) in [
            ("message_to_pause", &mut times.pause),
            ("decision_to_final", &mut times.end),
            ("decision_to_first_event", &mut times.first),
        ] {
            times.sort_unstable();
            let told = Measured::new(name, quantile(times, 0.5), "ms").with("clients", clients);
            report.tell(&beside(told.beside("p99", quantile(times, 0.99))))?;
        }
    }
    Ok(())
}

async fn load(address: &str, clients: u32, time: Duration) -> Result<Times, Failure> {
    let until = Instant::now() + time;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..clients {
        let client = Client::new(address)?;
        tasks.spawn(one(client, n, until));
    }
    let mut all = Times::default();
    while let Some(times) = tasks.join_next().await {
        let times = times??;
        all.pause.extend(times.pause);
        all.first.extend(times.first);
        all.end.extend(times.end);
    }
    Ok(all)
}

async fn one(client: Client, n: u32, until: Instant) -> Result<Times, Failure> {
    let mut agents = client.agents();
    let mut times = Times::default();
    let user = format!("user-{n}");
    while Instant::now() < until {
        let since = Instant::now();
        let text = "Please reimburse $200 for conference travel".to_owned();
        let said = pb::Part { data: Some(pb::part::Data::Text(text)), ..Default::default() };
        let (_, end) = run(&mut agents, &user, "", said, State::Paused).await?;
        times.pause.push(since.elapsed());
        let call = end.held_calls.first().ok_or("nothing is held")?;
        let asked = call.function_call.as_ref().ok_or("a call without a call")?;
        let approved = wkt::Value::from("approved");
        let response = wkt::Struct::from_iter([("status".to_owned(), approved)]);
        let answer = pb::part::Data::FunctionResponse(pb::FunctionResponse {
            id: asked.id.clone(),
            name: asked.name.clone(),
            response: Some(response),
            will_continue: None,
        });
        let since = Instant::now();
        let said = pb::Part { data: Some(answer), ..Default::default() };
        let session = call.session_id.clone();
        let (first, _) = run(&mut agents, &user, &session, said, State::Completed).await?;
        times.first.push(first - since);
        times.end.push(since.elapsed());
    }
    Ok(times)
}

type Agents = pb::agent_service_client::AgentServiceClient<tonic::transport::Channel>;

/// Says something, and waits for the end. Gives the time of the first entry.
pub(super) async fn run(
    agents: &mut Agents,
    user: &str,
    session: &str,
    said: pb::Part,
    wanted: State,
) -> Result<(Instant, pb::EndMark), Failure> {
    let request = pb::RunAsyncRequest {
        app_name: APP.to_owned(),
        user_id: user.to_owned(),
        session_id: session.to_owned(),
        new_message: Some(pb::Content { role: "user".to_owned(), parts: vec![said] }),
        ..Default::default()
    };
    to_end(agents, request, wanted).await
}

/// Runs to the end of the stream.
pub(super) async fn to_end(
    agents: &mut Agents,
    request: pb::RunAsyncRequest,
    wanted: State,
) -> Result<(Instant, pb::EndMark), Failure> {
    let mut stream = agents.run_async(request).await?.into_inner();
    let mut first = None;
    while let Some(event) = stream.message().await? {
        match event.mark {
            None => first = first.or_else(|| Some(Instant::now())),
            Some(Mark::End(end)) if end.state() == wanted => {
                // To its status: a stream that is dropped before counts as reset.
                while stream.message().await?.is_some() {}
                return Ok((first.unwrap_or_else(Instant::now), end));
            }
            Some(Mark::End(end)) => return Err(format!("an end: {:?}", end.state()).into()),
            Some(_) => {}
        }
    }
    Err("the stream was cut".into())
}
