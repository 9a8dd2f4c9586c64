//! Followers who read as they like, many who wait for one event, and streams that nobody reads
//! beside a decision on the same connection.

use tonic::transport::Endpoint;

use super::followers::{LOUD, noise};
use super::*;
use crate::support::agents;

/// How often it gets loud: four entries each time, one of them of 300 KB.
const TIMES: usize = 12;

/// Watchers that have nothing to do.
const WATCHERS: usize = 2_000;
const PER_CONNECTION: usize = 500;

/// The agent with something to be decided too.
const DESK: &str = "
name: desk
model: scripted
tools:
  - {name: ask, long_running: true, returns: {status: pending}}
script:
  - when: {user: '^ask$'}
    call: {ask: {}}
  - when: always
    say: That is all.
";

async fn client_of(endpoint: Endpoint) -> Client {
    use countersign::proto::v1::agent_service_client::AgentServiceClient;
    use countersign::proto::v1::session_service_client::SessionServiceClient;
    let channel = endpoint.connect().await.unwrap();
    let agents = AgentServiceClient::new(channel.clone());
    Client { agents, sessions: SessionServiceClient::new(channel) }
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(Duration::from_secs(60), future).await;
    outcome.unwrap_or_else(|_| panic!("{what} took too long"))
}

/// A server whose session `s1` is large.
async fn large() -> (Server, Client) {
    let builder = agents(LOUD).tool(noise()).agent_file("desk.yaml", DESK);
    let server = Server::start(builder).await;
    let mut client = server.client().await;
    create(&mut client, "loud", "s1").await;
    for _ in 0..TIMES {
        client.run(say("loud", "s1", "noise")).await;
    }
    at_rest(&server).await;
    (server, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn followers_read_as_they_like() {
    let server = Server::start(agents(LOUD).tool(noise())).await;
    let mut client = server.client().await;
    create(&mut client, "loud", "s1").await;
    let (twice, own, other) = (server.client().await, server.client().await, server.client().await);
    let mut streams = vec![
        watch_session(&twice, "loud", "s1", 0).await,
        watch_session(&twice, "loud", "s1", 0).await,
        // One that is never read before the end.
        watch_session(&own, "loud", "s1", 0).await,
    ];
    let mut slow = watch_session(&other, "loud", "s1", 0).await;
    let mut slowly = Vec::new();
    for time in 0..TIMES {
        let told = in_time("a run", client.run(say("loud", "s1", "noise"))).await;
        assert_eq!(told.end.state(), State::Completed, "nobody kept it waiting");
        // One message each time, while four are made.
        slowly.extend(Some(next(&mut slow).await).filter(|event| event.mark.is_none()));
        // Somebody comes, reads a little and leaves; and somebody comes late and stays.
        let mut leaves = watch_session(&twice, "loud", "s1", 0).await;
        assert_eq!(entries(&mut leaves, 1).await[0].sequence, 1);
        if time % 4 == 3 {
            streams.push(watch_session(&other, "loud", "s1", 0).await);
        }
    }
    // One that comes when all is said is the measure of the others.
    let mut last = watch_session(&client, "loud", "s1", 0).await;
    let all = entries(&mut last, TIMES * 4).await;
    let sequences: Vec<i64> = all.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..).take(TIMES * 4).collect::<Vec<_>>());
    // All at once: some share a connection, and its window.
    let reads = streams.into_iter().map(|mut stream| async move {
        let seen = entries(&mut stream, TIMES * 4).await;
        seen.into_iter().map(|event| event.sequence).collect::<Vec<_>>()
    });
    let reads = futures_util::future::join_all(reads);
    let rest = entries(&mut slow, TIMES * 4 - slowly.len());
    let (seen, rest) = in_time("the rest", async { tokio::join!(reads, rest) }).await;
    for seen in seen {
        assert_eq!(seen, sequences);
    }
    slowly.extend(rest);
    assert!(slowly == all, "whoever reads slowly reads the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_who_wait_get_the_next_event() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    create(&mut client, APP, "s1").await;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS / PER_CONNECTION {
        let own = server.client().await;
        let opened = (0..PER_CONNECTION).map(|_| async {
            let mut stream = watch_session(&own, APP, "s1", 0).await;
            assert!(matches!(next(&mut stream).await.mark, Some(Mark::CaughtUp(_))));
            stream
        });
        watchers.extend(in_time("the opening", futures_util::future::join_all(opened)).await);
    }
    let request = pb::UpdateSessionStateRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: "s1".into(),
        state_delta: Some(crate::support::object(json!({"news": 1}))),
        ..Default::default()
    };
    client.sessions.update_session_state(request).await.unwrap();
    let all = client.events(APP, "s1").await;
    let told = watchers.iter_mut().map(next);
    for event in in_time("the news", futures_util::future::join_all(told)).await {
        assert_eq!(event, all[0]);
    }
}

/// Makes a decision on this connection, beside streams that nobody reads.
async fn decided(server: &Server, mut client: Client, unread: usize, replies: bool) {
    let mut other = server.client().await;
    let told = other.say("desk", "ask").await;
    let call = &told.end.held_calls[0];
    let mut streams = Vec::new();
    for _ in 0..unread {
        streams.push(watch_session(&client, "loud", "s1", 0).await);
    }
    let decision = submit(call, json!({"status": "approved"}));
    let deciding = tokio::spawn(async move { client.submit(decision).await });
    if replies {
        in_time("the reply", deciding).await.unwrap().unwrap();
        return;
    }
    // It counts, and everybody else is told, whether its own reply gets through or not.
    let request = pb::RunAsyncRequest {
        new_message: None,
        invocation_id: told.begin.invocation_id,
        after_sequence: told.end.after_sequence,
        run_config: Some(pb::RunConfig {
            on_pause: pb::run_config::OnPause::Follow.into(),
            ..Default::default()
        }),
        ..say("desk", &told.begin.session_id, "")
    };
    let rest = in_time("what follows", other.run(request)).await;
    assert_eq!(rest.end.state(), State::Completed);
    // The reply is behind what is not read.
    let reads = streams.iter_mut().map(|stream| entries(stream, TIMES * 4));
    in_time("the streams", futures_util::future::join_all(reads)).await;
    in_time("the reply", deciding).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_decision_counts_beside_streams_that_nobody_reads() {
    let (server, client) = large().await;
    // Three times 2 MiB are more than the 5 MiB that the connection has as it comes.
    decided(&server, client, 3, false).await;
    // Other connections do not feel it.
    let mut stalled = Vec::new();
    let own = server.client().await;
    for _ in 0..4 {
        stalled.push(watch_session(&own, "loud", "s1", 0).await);
    }
    decided(&server, server.client().await, 0, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_decision_is_replied_to_where_windows_are_set() {
    let (server, _) = large().await;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    // What 16 streams may hold back is less than what the connection may.
    let endpoint =
        endpoint.initial_stream_window_size(128 << 10).initial_connection_window_size(4 << 20);
    decided(&server, client_of(endpoint).await, 16, true).await;
    let own = countersign::client::Client::new(&server.address.to_string()).unwrap();
    let own = Client { agents: own.agents(), sessions: own.sessions() };
    decided(&server, own, 16, true).await;
}
