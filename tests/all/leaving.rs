//! Clients that leave: at every poll of a call, at every message of a stream, at every byte of a
//! connection. What was begun goes on to its end, or nothing was begun at all.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use countersign::proto::v1::agent_service_client::AgentServiceClient;
use countersign::proto::v1::{self as pb, end_mark::State, invocation};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::transport::Channel;

use crate::requests::at_rest;
use crate::support::{Client, Server, USER, say, submit};

mod runner;

const APP: &str = "reimbursement_agent";

/// Polls a future so many times at most, then drops it. None: it was not ready.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(Duration::from_secs(20), future).await;
    outcome.unwrap_or_else(|_| panic!("{what} took too long"))
}

async fn create(client: &mut Client, session: &str) {
    let request = pb::CreateSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
        ..Default::default()
    };
    client.sessions.create_session(request).await.unwrap();
}

async fn session(client: &mut Client, session: &str) -> pb::Session {
    let request = pb::GetSessionRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
    };
    client.sessions.get_session(request).await.unwrap().into_inner()
}

/// The states of the session's invocations, once none runs. It is watched until then.
async fn settled(client: &mut Client, session: &str) -> Vec<invocation::State> {
    let request = pb::WatchInvocationsRequest {
        app_name: APP.into(),
        user_id: USER.into(),
        session_id: session.into(),
        states: vec![invocation::State::Running.into()],
        ..Default::default()
    };
    let mut watch = client.agents.watch_invocations(request).await.unwrap().into_inner();
    let (mut running, mut caught_up) = (BTreeSet::new(), false);
    while !caught_up || !running.is_empty() {
        use pb::watch_invocations_response::Update;
        let update = in_time(session, watch.message()).await.unwrap().unwrap().update.unwrap();
        match update {
            Update::Invocation(invocation) => {
                running.insert(invocation.id);
            }
            Update::Removed(removed) => {
                running.remove(&removed.invocation_id);
            }
            Update::CaughtUp(_) => caught_up = true,
            Update::Heartbeat(_) | Update::End(_) => {}
        }
    }
    let request = pb::ListInvocationsRequest { session_id: session.into(), ..Default::default() };
    let listed = client.agents.list_invocations(request).await.unwrap().into_inner();
    listed.invocations.iter().map(|invocation| invocation.state()).collect()
}

/// Everything of the session is at its end, and the message is there once or not at all. How many
/// invocations there are.
async fn came_to_an_end(client: &mut Client, name: &str) -> usize {
    let states = settled(client, name).await;
    let view = session(client, name).await;
    assert_eq!(view.running_invocation_id, "", "{name} runs without anybody");
    for state in &states {
        use invocation::State;
        assert!(matches!(state, State::Paused | State::Completed), "{name}: {state:?}");
    }
    let events = client.events(APP, name).await;
    let texts = |event: &&pb::Event| {
        let mut parts = event.content.iter().flat_map(|content| &content.parts);
        event.author == "user" && parts.any(|p| matches!(p.data, Some(pb::part::Data::Text(_))))
    };
    assert_eq!(events.iter().filter(texts).count(), states.len(), "{name}");
    if states.is_empty() {
        assert_eq!(view.last_sequence, 0, "{name} has half a message");
    }
    states.len()
}

fn run(session: &str) -> pb::RunAsyncRequest {
    pb::RunAsyncRequest {
        run_config: Some(pb::RunConfig {
            streaming_mode: pb::run_config::StreamingMode::Sse.into(),
            ..Default::default()
        }),
        ..say(APP, session, "Please reimburse $200 for a trip")
    }
}

#[tokio::test]
async fn a_run_goes_on_when_its_client_leaves_at_any_poll() {
    let server = Server::sample().await;
    let mut watcher = server.client().await;
    let mut begun = 0;
    for polls in 0.. {
        let name = format!("s{polls}");
        create(&mut watcher, &name).await;
        // A connection of its own: the reset is the last that it sends.
        let mut leaver = AgentServiceClient::new(server.channel().await);
        let call = async {
            let mut stream = leaver.run_async(run(&name)).await.unwrap().into_inner();
            while stream.message().await.unwrap().is_some() {}
        };
        let ended = polled(polls, call).await.is_some();
        begun += came_to_an_end(&mut watcher, &name).await;
        if ended {
            assert!(polls > 1 && begun > 0, "{polls} {begun}");
            break;
        }
    }
    in_time("the server", at_rest(&server)).await;
}

#[tokio::test]
async fn a_run_goes_on_when_its_client_leaves_at_any_message() {
    let server = Server::sample().await;
    let mut watcher = server.client().await;
    for messages in 0.. {
        let name = format!("s{messages}");
        create(&mut watcher, &name).await;
        let mut leaver = AgentServiceClient::new(server.channel().await);
        let mut stream = leaver.run_async(run(&name)).await.unwrap().into_inner();
        let mut ended = false;
        for _ in 0..messages {
            ended |= stream.message().await.unwrap().is_none();
        }
        drop((stream, leaver));
        // The run was acknowledged: it is there.
        assert_eq!(came_to_an_end(&mut watcher, &name).await, 1);
        if ended {
            assert!(messages > 5, "{messages}");
            break;
        }
    }
    in_time("the server", at_rest(&server)).await;
}

#[tokio::test]
async fn an_answer_counts_when_its_client_leaves_at_any_poll() {
    let server = Server::sample().await;
    let mut watcher = server.client().await;
    for polls in 0.. {
        let name = format!("s{polls}");
        create(&mut watcher, &name).await;
        let told = watcher.run(say(APP, &name, "Please reimburse $200 for a trip")).await;
        let held = &told.end.held_calls[0];
        let mut leaver = AgentServiceClient::new(server.channel().await);
        let request = submit(held, json!({"status": "approved"}));
        let answered = polled(polls, leaver.submit_function_response(request)).await;
        drop(leaver);
        let states = settled(&mut watcher, &name).await;
        assert_eq!(states.len(), 1);
        match states[0] {
            invocation::State::Paused => {
                assert!(answered.is_none(), "an acknowledged answer is lost");
                assert_eq!(session(&mut watcher, &name).await.held_call_ids.len(), 1);
            }
            state => assert_eq!(state, invocation::State::Completed),
        }
        if let Some(answered) = answered {
            answered.unwrap();
            break;
        }
    }
    in_time("the server", at_rest(&server)).await;
}

/// A wire that carries so many bytes each way, and is then cut at both ends.
async fn wire(to: SocketAddr, there: usize, back: usize) -> Channel {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut far = TcpStream::connect(to).await.unwrap();
        let (mut near_in, mut near_out) = near.split();
        let (mut far_in, mut far_out) = far.split();
        tokio::select! {
            () = carry(&mut near_in, &mut far_out, there) => {}
            () = carry(&mut far_in, &mut near_out, back) => {}
        }
    });
    Channel::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

async fn carry(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut most: usize,
) {
    let mut bytes = [0; 4096];
    while most > 0 {
        let room = most.min(bytes.len());
        let Ok(count @ 1..) = from.read(&mut bytes[..room]).await else { return };
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
        most -= count;
    }
}

/// Runs over a wire that is cut. True: it came through whole.
async fn run_over(channel: Channel, request: pb::RunAsyncRequest) -> bool {
    let mut client = AgentServiceClient::new(channel);
    let Ok(stream) = client.run_async(request).await else { return false };
    let mut stream = stream.into_inner();
    loop {
        match stream.message().await {
            Ok(Some(pb::Event { mark: Some(pb::event::Mark::End(end)), .. })) => {
                return end.state() == State::Paused;
            }
            Ok(Some(_)) => {}
            // A cut connection never looks like an end.
            Ok(None) => panic!("the stream ended without an end"),
            Err(_) => return false,
        }
    }
}

const ALL: usize = usize::MAX;

#[tokio::test]
async fn a_run_goes_on_when_its_connection_is_cut_at_any_byte() {
    let server = Server::sample().await;
    let mut watcher = server.client().await;
    let mut begun = 0;
    let cuts = (0..700).step_by(7).map(|there| (there, ALL));
    let cuts = cuts.chain((0..8000).step_by(61).map(|back| (ALL, back)));
    for (there, back) in cuts {
        let name = format!("s{there}-{back}");
        create(&mut watcher, &name).await;
        // Half of them try again, by the rule: with the same request_id.
        let mut request = run(&name);
        request.request_id = name.clone();
        let whole = run_over(wire(server.address, there, back).await, request.clone()).await;
        if there.wrapping_add(back) % 2 == 0 {
            let again = watcher.run(request).await;
            assert_eq!(again.end.state(), State::Paused, "{name}");
            assert_eq!(came_to_an_end(&mut watcher, &name).await, 1, "{name}");
        } else {
            let there = came_to_an_end(&mut watcher, &name).await;
            assert!(there == 1 || !whole, "{name}: an acknowledged run is lost");
            begun += there;
        }
    }
    assert!(begun > 10, "{begun}");
    in_time("the server", at_rest(&server)).await;
}

#[tokio::test]
async fn an_answer_counts_once_when_its_connection_is_cut_at_any_byte() {
    let server = Server::sample().await;
    let mut watcher = server.client().await;
    let cuts = (0..500).step_by(17).map(|there| (there, ALL));
    let cuts = cuts.chain((0..1500).step_by(31).map(|back| (ALL, back)));
    for (there, back) in cuts {
        let name = format!("s{there}-{back}");
        create(&mut watcher, &name).await;
        let told = watcher.run(say(APP, &name, "Please reimburse $200 for a trip")).await;
        let mut request = submit(&told.end.held_calls[0], json!({"status": "approved"}));
        request.request_id = name.clone();
        let channel = wire(server.address, there, back).await;
        let mut leaver = AgentServiceClient::new(channel);
        let first = leaver.submit_function_response(request.clone()).await;
        drop(leaver);
        let again = watcher.submit(request).await.unwrap();
        if let Ok(first) = first {
            let first = first.into_inner();
            assert_eq!((first.outcome, first.sequence), (again.outcome, again.sequence), "{name}");
        }
        let rest = watcher.follow(&again).await;
        assert_eq!(rest.end.state(), State::Completed, "{name}");
        assert_eq!(client_answers(&mut watcher, &name).await, 1, "{name}");
    }
    in_time("the server", at_rest(&server)).await;
}

/// How many answers from outside stand in the conversation.
async fn client_answers(client: &mut Client, name: &str) -> usize {
    let events = client.events(APP, name).await;
    let answers = |event: &&pb::Event| {
        let mut parts = event.content.iter().flat_map(|content| &content.parts);
        event.author == "user"
            && parts.any(|p| matches!(p.data, Some(pb::part::Data::FunctionResponse(_))))
    };
    events.iter().filter(answers).count()
}
