//! A server that drains between an append and what follows from it.

use async_trait::async_trait;
use countersign::model::{self, Model, Pieces, Reply, Request, Said};
use countersign::session::content::Part;
use countersign::store::memory::Fault;
use tokio::sync::Notify;

use super::*;

/// Calls the tool when it is told to, and then says that it is done.
struct Gated(Arc<Notify>);

#[async_trait]
impl Model for Gated {
    async fn reply(&self, request: Request, _: &mut dyn Pieces) -> Result<Reply, model::Error> {
        let said = if request.news.is_empty() {
            self.0.notified().await;
            let (name, args) = ("work".to_owned(), Object::new());
            Said::Call { model_id: None, name, args, thought_signature: Vec::new() }
        } else {
            Said::Part(Part::text("done"))
        };
        Ok(Reply { parts: vec![said], ..Reply::default() })
    }
}

fn gated(gate: &Arc<Notify>, ran: &Ran) -> Builder {
    Builder::new()
        .model("gated", Gated(gate.clone()))
        .tool(tool("work", Effect::Once, r#"{"result": "done"}"#, ran))
        .agent_file("clerk.yaml", "{name: clerk, model: gated, tools: [{name: work}]}")
}

/// The start is durable when the drain begins, and nobody else may run that body: so it is run.
/// The store says late that it has written, so that the drain comes in between.
#[tokio::test]
async fn a_body_whose_start_is_durable_runs() {
    let (gate, ran) = (Arc::new(Notify::new()), Ran::default());
    let store = Arc::new(Memory::new(Clock::system()));
    let server = Server::start_on(gated(&gate, &ran), store.clone()).await;
    let mut client = server.client().await;
    let mut stream = client.agents.run_async(say(APP, "", "go")).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    let Some(pb::event::Mark::Begin(begun)) = first.mark else { panic!("{first:?}") };
    let before = store.commits();
    store.fail_next(1, Fault::UnknownWritten);
    gate.notify_one();
    while store.commits() == before {
        tokio::task::yield_now().await;
    }
    server.stop().await;
    assert_eq!(ran.lock().unwrap().len(), 1);

    let server = Server::start_on(gated(&gate, &ran), store).await;
    let mut client = server.client().await;
    let request = pb::RunAsyncRequest {
        new_message: None,
        invocation_id: begun.invocation_id,
        ..say(APP, &begun.session_id, "")
    };
    let told = client.run(request).await;
    assert_eq!(told.end.state(), State::Completed, "{:?}", told.events);
    assert_eq!(ran.lock().unwrap().len(), 1);
}
