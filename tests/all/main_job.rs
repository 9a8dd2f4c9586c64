//! The main job, end to end: the sample agent through a real connection.

use countersign::proto::v1::{self as pb, end_mark::State};
use serde_json::json;

use crate::support::{Server, answer, say, say_answers, story, submit};

const APP: &str = "reimbursement_agent";

#[tokio::test]
async fn a_small_amount_is_paid_at_once() {
    let server = Server::sample().await;
    let told = server.client().await.say(APP, "Please reimburse $50 for meals").await;
    assert_eq!(
        story(&told.events),
        [
            r#"reimbursement_agent > reimburse({"amount":50,"purpose":"meals"})"#,
            r#"reimbursement_agent < reimburse({"status":"ok"})"#,
            "reimbursement_agent: You got it! I have reimbursed you $50 for meals.",
        ]
    );
    assert_eq!(told.end.state(), State::Completed);
    assert_eq!(told.end.after_sequence, 4);
}

#[tokio::test]
async fn a_large_amount_waits_and_goes_on_after_the_decision() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    let told = client.say(APP, "Please reimburse $200 for conference travel").await;
    assert_eq!(told.end.state(), State::Paused);
    let held = &told.end.held_calls[0];
    let placeholder =
        crate::support::json(held.last_response.as_ref().unwrap().response.as_ref().unwrap());
    assert_eq!(placeholder["status"], "pending");
    assert_eq!(placeholder["amount"], 200);

    let mut decision = placeholder.clone();
    decision["status"] = json!("approved");
    decision["approver_feedback"] = json!("fine");
    let done = client.submit(submit(held, decision)).await.unwrap();
    assert_eq!(done.outcome(), pb::submit_function_response_response::Outcome::Applied);
    let rest = client.follow(&done).await;
    assert_eq!(rest.begin.invocation_id, told.begin.invocation_id);
    assert_eq!(
        story(&rest.events),
        [
            r#"reimbursement_agent > reimburse({"amount":200,"purpose":"conference travel"})"#,
            r#"reimbursement_agent < reimburse({"status":"ok"})"#,
            "reimbursement_agent: You got it! I have reimbursed you $200 for conference travel.",
        ]
    );
    assert_eq!(rest.end.state(), State::Completed);
}

#[tokio::test]
async fn the_decision_can_come_by_run_async_as_adk_clients_send_it() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    let told = client.say(APP, "Please reimburse $150 for a client dinner").await;
    let held = &told.end.held_calls[0];
    let answers = vec![answer(held, json!({"status": "rejected", "approver_feedback": "no"}))];
    let rest = client.run(say_answers(APP, &told.begin.session_id, answers)).await;
    assert_eq!(rest.begin.invocation_id, told.begin.invocation_id);
    assert_eq!(rest.events.len(), 1);
    assert!(story(&rest.events)[0].contains("rejected"));
    assert_eq!(rest.end.state(), State::Completed);
    let next = client.run(say(APP, &told.begin.session_id, "Please reimburse $5 for tea")).await;
    assert_eq!(next.end.state(), State::Completed);
}

#[tokio::test]
async fn a_cycle_is_six_commits() {
    let server = Server::sample().await;
    let mut client = server.client().await;
    let before = server.store.commits();
    let told = client.say(APP, "Please reimburse $200 for conference travel").await;
    let done = client.submit(submit(&told.end.held_calls[0], json!({"status": "approved"}))).await;
    let rest = client.follow(&done.unwrap()).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(server.store.commits() - before, 6);
}

/// Whoever has seen the end of one message can send the next: nobody is shown what memory does not
/// know yet.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_message_is_the_time_for_the_next() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::stored(crate::support::sample().sqlite(home.path().join("a.db"))).await;
    let mut client = server.client().await;
    let mut told = client.say(APP, "Please reimburse $5 for tea").await;
    for _ in 0..150 {
        let session = told.begin.session_id.clone();
        told = client.run(say(APP, &session, "Please reimburse $5 for tea")).await;
        assert_eq!(told.end.state(), State::Completed);
    }
}

/// Takes its time before it calls, longer than a start may take to become durable.
struct Slow;

#[async_trait::async_trait]
impl countersign::model::Model for Slow {
    async fn reply(
        &self,
        request: countersign::model::Request,
        _: &mut dyn countersign::model::Pieces,
    ) -> Result<countersign::model::Reply, countersign::model::Error> {
        use countersign::model::{Reply, Said};
        tokio::task::yield_now().await;
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_secs(3)).await;
        tokio::time::resume();
        let said = if request.contents.len() > 1 {
            Said::Part(countersign::session::content::Part::text("asked"))
        } else {
            let (model_id, name, args) = (None, "ask".to_owned(), Default::default());
            Said::Call { model_id, name, args, thought_signature: Vec::new() }
        };
        Ok(Reply { parts: vec![said], finish_reason: "STOP".into(), usage: None })
    }
}

#[tokio::test]
async fn a_declared_body_is_run_however_long_the_model_spoke() {
    let agent = "{name: slow, model: slow, instruction: Ask., tools: [{name: ask, \
                 description: Ask., long_running: true, returns: {status: pending}}]}";
    let server = Server::start(crate::support::agents(agent).model("slow", Slow)).await;
    let told = server.client().await.say("slow", "go").await;
    assert_eq!(
        story(&told.events),
        ["slow > ask({})", r#"slow < ask({"status":"pending"})"#, "slow: asked"]
    );
    assert_eq!(told.end.state(), State::Paused);
}
