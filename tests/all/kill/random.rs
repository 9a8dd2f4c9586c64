//! Kills at random instants, while clients run one cycle after the other. An instant is a number of
//! messages that the clients have received since the last start, taken from a seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prost::Message;
use tokio::sync::watch;
use tonic_types::StatusExt;

use super::*;

const CLIENTS: usize = 4;
const KILLS: u64 = 10;
const SEED: u64 = 0x5eed;

/// What one client has been told for sure.
#[derive(Default)]
struct Ledger {
    /// Events by session and sequence, as they came.
    events: BTreeMap<String, BTreeMap<i64, pb::Event>>,
    cycles: usize,
}

/// A client that outlives servers.
struct Patient {
    number: usize,
    address: watch::Receiver<String>,
    received: Arc<watch::Sender<u64>>,
    stop: Arc<AtomicBool>,
    ledger: Ledger,
}

impl Patient {
    async fn cycles(mut self) -> Ledger {
        while !self.stop.load(Ordering::SeqCst) {
            self.cycle().await;
            self.ledger.cycles += 1;
        }
        self.ledger
    }

    async fn cycle(&mut self) {
        let (number, cycle) = (self.number, self.ledger.cycles);
        let message = pb::RunAsyncRequest {
            request_id: format!("message-{number}-{cycle}"),
            ..say(APP, "", "Please reimburse $200 for conference travel")
        };
        let (begun, end) = self.follow(message).await;
        assert_eq!(end.state(), State::Paused, "{end:?}");
        let decision = pb::SubmitFunctionResponseRequest {
            request_id: format!("decision-{number}-{cycle}"),
            ..submit(&end.held_calls[0], json!({"status": "approved"}))
        };
        let done = loop {
            let mut client = self.connect().await;
            match client.submit(decision.clone()).await {
                Ok(done) => break done,
                Err(status) => self.lost(&status).await,
            }
        };
        assert_eq!(done.sequence, 5);
        self.tell();
        let rest = pb::RunAsyncRequest {
            new_message: None,
            invocation_id: begun.invocation_id,
            after_sequence: done.after_sequence,
            ..say(APP, &begun.session_id, "")
        };
        let (_, end) = self.follow(rest).await;
        assert_eq!(end.state(), State::Completed, "{end:?}");
    }

    /// Follows to an end, on as many servers as it takes.
    async fn follow(&mut self, request: pb::RunAsyncRequest) -> (pb::BeginMark, pb::EndMark) {
        loop {
            let mut client = self.connect().await;
            match self.read(&mut client, request.clone()).await {
                Ok(told) => return told,
                Err(status) => self.lost(&status).await,
            }
        }
    }

    async fn read(
        &mut self,
        client: &mut Client,
        request: pb::RunAsyncRequest,
    ) -> Result<(pb::BeginMark, pb::EndMark), Status> {
        let mut stream = client.agents.run_async(request).await?.into_inner();
        let mut begun: Option<pb::BeginMark> = None;
        while let Some(event) = stream.message().await? {
            self.tell();
            match event.mark {
                Some(pb::event::Mark::Begin(begin)) => begun = Some(begin),
                Some(pb::event::Mark::End(end)) => return Ok((begun.unwrap(), end)),
                Some(_) => {}
                None => {
                    let session = begun.as_ref().unwrap().session_id.clone();
                    let events = self.ledger.events.entry(session).or_default();
                    if let Some(before) = events.insert(event.sequence, event.clone()) {
                        assert_eq!(before.encode_to_vec(), event.encode_to_vec());
                    }
                }
            }
        }
        Err(Status::unavailable("the stream broke off"))
    }

    fn tell(&self) {
        self.received.send_modify(|count| *count += 1);
    }

    async fn connect(&mut self) -> Client {
        loop {
            let address = self.address.borrow_and_update().clone();
            if let Ok(client) = connect(&address).await {
                return client;
            }
            self.address.changed().await.unwrap();
        }
    }

    /// The server is gone; the next one is waited for.
    async fn lost(&mut self, status: &Status) {
        assert!(status.get_details_error_info().is_none(), "a refusal: {status:?}");
        self.address.changed().await.unwrap();
    }
}

/// The next number of a sequence, up to a bound.
fn random(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_instant_loses_nothing_acknowledged() {
    let directory = TempDir::new().unwrap();
    let mut server = Process::start(serve(directory.path(), &[])).await;
    let (addresses, address) = watch::channel(server.address.clone());
    let received = Arc::new(watch::Sender::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let clients = (0..CLIENTS).map(|number| {
        tokio::spawn(
            Patient {
                number,
                address: address.clone(),
                received: received.clone(),
                stop: stop.clone(),
                ledger: Ledger::default(),
            }
            .cycles(),
        )
    });
    let clients: Vec<_> = clients.collect();
    let mut seed = SEED;
    for _ in 0..KILLS {
        let until = *received.borrow() + 1 + random(&mut seed, 60);
        let mut count = received.subscribe();
        in_time("progress", count.wait_for(|count| *count >= until)).await.unwrap();
        server.kill().await;
        server = Process::start(serve(directory.path(), &[])).await;
        addresses.send_replace(server.address.clone());
    }
    stop.store(true, Ordering::SeqCst);
    let mut ledgers = Vec::new();
    for client in clients {
        ledgers.push(in_time("the last cycles", client).await.unwrap());
    }
    server.kill().await;

    let server = Process::start(serve(directory.path(), &[])).await;
    let mut client = server.client().await;
    let mut cycles = 0;
    for ledger in ledgers {
        cycles += ledger.cycles;
        assert_eq!(ledger.events.len(), ledger.cycles, "a message was carried out twice");
        for (session, told) in ledger.events {
            let events = client.events(APP, &session).await;
            let sequences: Vec<i64> = events.iter().map(|event| event.sequence).collect();
            assert_eq!(sequences, [1, 2, 3, 4, 5, 6, 7, 8], "{:#?}", story(&events));
            for event in events {
                if let Some(told) = told.get(&event.sequence) {
                    assert_eq!(told.encode_to_vec(), event.encode_to_vec());
                }
            }
            assert!(told.contains_key(&8), "the last word was told");
        }
    }
    assert!(cycles > CLIENTS, "{cycles} cycles only");
    let request = pb::ListInvocationsRequest { page_size: 1_000, ..Default::default() };
    let listed = client.agents.list_invocations(request).await.unwrap().into_inner();
    assert_eq!(listed.invocations.len(), cycles);
    for invocation in listed.invocations {
        assert_eq!(invocation.state(), pb::invocation::State::Completed);
    }
}
