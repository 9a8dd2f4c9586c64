//! Connections that are really cut, on the way to a server that is fine.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use countersign::client::Client;
use countersign::proto::v1;

use super::fake::Fake;
use super::{begin, end, says};

/// A wire to a server: it can be cut, and its first connections may be lost at the first byte.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Vec<TcpStream>>>);

impl Wire {
    /// Lays the wire, and gives its near end. So many connections are lost as soon as they are
    /// used.
    fn lay(&self, server: String, lost: usize) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let wire = self.clone();
        thread::spawn(move || {
            for (number, near) in listener.incoming().enumerate() {
                let mut near = near.unwrap();
                if number < lost {
                    near.read_exact(&mut [0]).unwrap();
                    continue;
                }
                let far = TcpStream::connect(&server).unwrap();
                wire.0.lock().unwrap().push(far.try_clone().unwrap());
                wire.0.lock().unwrap().push(near.try_clone().unwrap());
                carry(near.try_clone().unwrap(), far.try_clone().unwrap());
                carry(far, near);
            }
        });
        address
    }

    fn cut(&self) {
        for end in self.0.lock().unwrap().drain(..) {
            end.shutdown(Shutdown::Both).unwrap();
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if to.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
    });
}

fn message() -> v1::RunAsyncRequest {
    v1::RunAsyncRequest {
        app_name: "app".to_owned(),
        new_message: Some(v1::Content::default()),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_outlives_its_connection() {
    let (fake, wire) = (Fake::default(), Wire::default());
    fake.script().hold = true;
    fake.stream(vec![begin(), says(2, "two")]);
    fake.stream(vec![begin(), says(3, "three"), end("COMPLETED")]);
    let client = Client::new(&wire.lay(fake.serve().await, 0)).unwrap();
    let mut events = client.run(message());
    assert_eq!(events.next().await.unwrap(), Some(begin()));
    assert_eq!(events.next().await.unwrap(), Some(says(2, "two")));
    wire.cut();
    assert_eq!(events.next().await.unwrap(), Some(says(3, "three")));
    assert_eq!(events.after_sequence(), 3);
    assert_eq!(events.next().await.unwrap(), Some(end("COMPLETED")));
    assert_eq!(events.next().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_given_again_where_its_connection_is_lost() {
    let (fake, wire) = (Fake::default(), Wire::default());
    fake.stream(vec![begin(), end("COMPLETED")]);
    let client = Client::new(&wire.lay(fake.serve().await, 2)).unwrap();
    let mut events = client.run(message());
    assert_eq!(events.next().await.unwrap(), Some(begin()));
    assert_eq!(events.next().await.unwrap(), Some(end("COMPLETED")));
    assert_eq!(fake.script().runs.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_given_again_where_its_connection_is_lost() {
    let (fake, wire) = (Fake::default(), Wire::default());
    fake.script().submits = [Ok(v1::SubmitFunctionResponseResponse::default())].into();
    let client = Client::new(&wire.lay(fake.serve().await, 1)).unwrap();
    client.submit(v1::SubmitFunctionResponseRequest::default()).await.unwrap();
}
