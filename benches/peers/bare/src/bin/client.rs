//! `client ADDRESS CLIENTS SECONDS`: runs cycles as `countersign bench` does, and prints one JSON
//! object.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bare::Request;
use bare::bare_client::BareClient;
use tonic::transport::Channel;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long it runs before anything is counted.
const WARM_UP: Duration = Duration::from_millis(500);

/// How long the server may take until it can be reached.
const READY: Duration = Duration::from_secs(30);

/// How long the two halves of one client's cycles took.
#[derive(Default)]
struct Times {
    pause: Vec<Duration>,
    end: Vec<Duration>,
    errors: u64,
}

/// One request, to the end of its stream.
async fn half(
    client: &mut BareClient<Channel>,
    session: &str,
    half: i32,
) -> Result<Duration, Failure> {
    let since = Instant::now();
    let text = "Please reimburse $200 for conference travel".to_owned();
    let request = Request { session: session.to_owned(), text, half };
    let mut stream = client.run(request).await?.into_inner();
    let mut ended = false;
    while let Some(event) = stream.message().await? {
        ended |= event.end;
    }
    if ended { Ok(since.elapsed()) } else { Err("the stream was cut".into()) }
}

async fn one(address: String, name: String, until: Instant) -> Result<Times, Failure> {
    let mut client = BareClient::connect(address).await?;
    let mut times = Times::default();
    for n in 0.. {
        if Instant::now() >= until {
            break;
        }
        let session = format!("{name}-{n}");
        let cycle = async {
            let pause = half(&mut client, &session, 0).await?;
            Ok::<_, Failure>((pause, half(&mut client, &session, 1).await?))
        };
        match cycle.await {
            Ok((pause, end)) => {
                times.pause.push(pause);
                times.end.push(end);
            }
            Err(error) => {
                if times.errors == 0 {
                    eprintln!("bare: {error}");
                }
                times.errors += 1;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    Ok(times)
}

async fn load(address: &str, clients: usize, lasting: Duration) -> Result<Times, Failure> {
    let until = Instant::now() + lasting;
    let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..clients {
        tasks.spawn(one(address.to_owned(), format!("{run}-{n}"), until));
    }
    let mut all = Times::default();
    while let Some(times) = tasks.join_next().await {
        let times = times??;
        all.pause.extend(times.pause);
        all.end.extend(times.end);
        all.errors += times.errors;
    }
    Ok(all)
}

async fn ready(address: &str) -> Result<(), Failure> {
    let since = Instant::now();
    while let Err(error) = BareClient::connect(address.to_owned()).await {
        if since.elapsed() > READY {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The same quantiles as those of `countersign bench`, in milliseconds.
fn quantiles(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |q: f64| {
        let at = (times.len() as f64 * q) as usize;
        let time = times.get(at.min(times.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    format!(r#"{{"p50":{:.2},"p99":{:.2}}}"#, at(0.5), at(0.99))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, clients, seconds] = arguments.as_slice() else {
        return Err("usage: client ADDRESS CLIENTS SECONDS".into());
    };
    let (address, clients) = (format!("http://{address}"), clients.parse::<usize>()?);
    ready(&address).await?;
    load(&address, clients, WARM_UP).await?;
    let since = Instant::now();
    let mut times = load(&address, clients, Duration::from_secs(seconds.parse()?)).await?;
    let cycles = times.end.len() as f64 / since.elapsed().as_secs_f64();
    let (end, pause) = (quantiles(&mut times.end), quantiles(&mut times.pause));
    println!(
        concat!(
            r#"{{"peer":"bare","clients":{},"cycles_per_second":{:.1},"#,
            r#""decision_to_final_ms":{},"message_to_pause_ms":{},"errors":{}}}"#
        ),
        clients, cycles, end, pause, times.errors
    );
    Ok(())
}
