//! The agents of ADK's confirmation samples (`examples/adk/agents`) through a real connection: what
//! their files say of approval is what waits, and what is answered.

use countersign::proto::v1::{self as pb, end_mark::State};
use serde_json::{Value, json};

use crate::support::{Client, Server, Told, agents, story, submit};

const ACCOUNTS: &str = include_str!("../../examples/adk/agents/account_agent.yaml");
const CHOICE: &str = include_str!("../../examples/adk/agents/choice_agent.yaml");
const LEAVE: &str = include_str!("../../examples/adk/agents/tool_confirmation_agent.yaml");
const SUPPORT: &str = include_str!("../../examples/adk/agents/support_agent.yaml");

/// The only call that is held.
fn held(told: &Told) -> &pb::Call {
    assert_eq!(told.end.state(), State::Paused);
    assert_eq!(told.end.held_calls.len(), 1, "{:?}", story(&told.events));
    &told.end.held_calls[0]
}

/// The arguments of a call.
fn args(call: &pb::Call) -> Value {
    crate::support::json(call.function_call.as_ref().unwrap().args.as_ref().unwrap())
}

/// Answers a call, and tells what comes of it.
async fn answered(client: &mut Client, call: &pb::Call, response: Value) -> Told {
    let done = client.submit(submit(call, response)).await.unwrap();
    client.follow(&done).await
}

/// The last text.
fn last(told: &Told) -> String {
    story(&told.events).pop().unwrap()
}

#[tokio::test]
async fn an_account_is_closed_when_somebody_agrees() {
    let server = Server::start(agents(ACCOUNTS)).await;
    let mut client = server.client().await;
    for (confirmed, text) in [
        (true, "account_agent: Account ACC123 is closed."),
        (false, "account_agent: Account ACC123 stays open: This tool call is rejected."),
    ] {
        let told = client.say("account_agent", "Close account ACC123").await;
        let question = held(&told).clone();
        assert_eq!(question.kind(), pb::call::Kind::Confirmation);
        let original = args(&question)["originalFunctionCall"].clone();
        assert_eq!(original["name"], "close_account");
        assert_eq!(original["args"], json!({"account_id": "ACC123"}));
        let rest = answered(&mut client, &question, json!({"confirmed": confirmed})).await;
        assert_eq!(rest.end.state(), State::Completed);
        assert_eq!(last(&rest), text);
    }
}

#[tokio::test]
async fn a_transfer_asks_from_inside_above_an_amount() {
    let server = Server::start(agents(ACCOUNTS)).await;
    let mut client = server.client().await;
    let told = client.say("account_agent", "Transfer $50 to BOB").await;
    assert_eq!(last(&told), "account_agent: $50 went to BOB.");
    assert_eq!(told.end.state(), State::Completed);
    for (confirmed, text) in [
        (true, "account_agent: $200 went to BOB."),
        (false, "account_agent: The transfer of 200 to BOB was declined."),
    ] {
        let told = client.say("account_agent", "Transfer $200 to BOB").await;
        let question = held(&told).clone();
        assert_eq!(last(&told), "account_agent: Somebody has to confirm the transfer of $200.");
        assert_eq!(args(&question)["toolConfirmation"]["hint"], "Transfer 200 to BOB?");
        let rest = answered(&mut client, &question, json!({"confirmed": confirmed})).await;
        assert_eq!(last(&rest), text);
        assert_eq!(rest.end.state(), State::Completed);
    }
}

#[tokio::test]
async fn an_amount_below_the_threshold_is_paid_and_one_above_waits() {
    let server = Server::start(agents(LEAVE)).await;
    let mut client = server.client().await;
    let told = client.say("tool_confirmation_agent", "Reimburse $1000").await;
    assert_eq!(last(&told), "tool_confirmation_agent: $1000 is on its way.");
    let told = client.say("tool_confirmation_agent", "Reimburse $1000.01").await;
    let question = held(&told).clone();
    let rest = answered(&mut client, &question, json!({"confirmed": true})).await;
    assert_eq!(last(&rest), "tool_confirmation_agent: $1000.01 is on its way.");
    // A double would write it as 1000: nobody decides by what it is not.
    let told = client.say("tool_confirmation_agent", "Reimburse $1000.00000000000000000001").await;
    held(&told);
}

#[tokio::test]
async fn whoever_decides_fills_in_how_many_days_are_granted() {
    let server = Server::start(agents(LEAVE)).await;
    let mut client = server.client().await;
    let told = client.say("tool_confirmation_agent", "I want 5 days off").await;
    let question = held(&told).clone();
    assert_eq!(args(&question)["toolConfirmation"]["payload"], json!({"approved_days": 0}));
    let said = json!({"confirmed": true, "payload": {"approved_days": 3}});
    let rest = answered(&mut client, &question, said).await;
    assert_eq!(last(&rest), "tool_confirmation_agent: 3 of 5 days are granted.");

    let told = client.say("tool_confirmation_agent", "I want 5 days off").await;
    let question = held(&told).clone();
    let rest = answered(&mut client, &question, json!({"confirmed": false})).await;
    let text = "tool_confirmation_agent: The time off request was rejected.";
    assert_eq!(last(&rest), text);
}

#[tokio::test]
async fn an_answer_must_be_what_the_call_asks_for() {
    let server = Server::start(agents(SUPPORT)).await;
    let mut client = server.client().await;
    let told = client.say("support_agent", "I need a ticket").await;
    let question = held(&told).clone();
    assert_eq!(question.kind(), pb::call::Kind::Input);
    for wrong in [json!({"description": "It is broken."}), json!({"result": "high"})] {
        let refused = client.submit(submit(&question, wrong)).await.unwrap_err();
        assert_eq!(crate::support::reason(&refused).1, "RESPONSE_SCHEMA_VIOLATION");
    }
    let said = json!({"description": "It is broken.", "priority": "high"});
    let rest = answered(&mut client, &question, said).await;
    assert!(last(&rest).ends_with("with priority high."), "{:?}", story(&rest.events));

    let server = Server::start(agents(CHOICE)).await;
    let mut client = server.client().await;
    let told = client.say("choice_agent", "I am hungry").await;
    let question = held(&told).clone();
    let refused = client.submit(submit(&question, json!({"result": "cake"}))).await.unwrap_err();
    assert_eq!(crate::support::reason(&refused).1, "RESPONSE_SCHEMA_VIOLATION");
    let rest = answered(&mut client, &question, json!({"result": "soup"})).await;
    assert_eq!(last(&rest), "choice_agent: Your soup is on its way.");
}

/// One rule approves, one forbids, and what is left asks.
#[tokio::test]
async fn rules_approve_and_forbid() {
    let file = "
name: cashier
model: scripted
tools:
  - name: pay
    parameters: {type: object, properties: {amount: {type: number}}, required: [amount]}
    approval: {need: always, hint: Shall it be paid?}
    returns: {status: paid}
approvals:
  auto_approve: [{name: small, when: args.amount < 10}]
  deny: [{name: huge, when: args.amount >= 1000}]
script:
  - when: {user: '(?P<amount>\\d+)'}
    call: {pay: {amount: '${amount}'}}
  - when: {response: pay, matching: {status: paid}}
    say: Paid.
  - when: {response: pay}
    say: Not paid.
";
    let server = Server::start(agents(file)).await;
    let mut client = server.client().await;
    let told = client.say("cashier", "pay 9").await;
    assert_eq!((last(&told).as_str(), told.end.state()), ("cashier: Paid.", State::Completed));
    let told = client.say("cashier", "pay 10").await;
    assert_eq!(args(held(&told))["toolConfirmation"]["hint"], "Shall it be paid?");
    let told = client.say("cashier", "pay 1000").await;
    assert_eq!((last(&told).as_str(), told.end.state()), ("cashier: Not paid.", State::Completed));
}
