//! ADK's reimbursement agent in Rust: small amounts are paid at once, a manager decides on others.
//!
//! ```text
//! cargo run --example reimbursement_agent              plays one cycle against itself, and ends
//! cargo run --example reimbursement_agent -- --serve   serves until Ctrl-C; then, for instance:
//! countersign run reimbursement_agent 'Please reimburse $200 for conference travel'
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use countersign::agent::Effect;
use countersign::app::{self, Agent, Builder};
use countersign::client::{Client, DEFAULT_ADDRESS, answer, answers, continuation, message};
use countersign::proto::v1::submit_function_response_response::Outcome;
use countersign::proto::v1::{RunAsyncRequest, SubmitFunctionResponseRequest, end_mark::State};
use countersign::tool::{Context, Function};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Number, json};
use tokio::sync::oneshot;

mod story;

const APP: &str = "reimbursement_agent";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if std::env::args().any(|flag| flag == "--serve") {
        let server = builder(&Ledger::default()).build().await?;
        let listener = app::bind(DEFAULT_ADDRESS.parse()?).await?;
        println!("listening on {}", listener.local_addr()?);
        let stop = async { tokio::signal::ctrl_c().await.unwrap_or_default() };
        return Ok(server.serve_on(listener, stop).await?);
    }
    play(&mut std::io::stdout()).await
}

/// What both tools want to know. The schema that a model sees is made of it.
#[derive(Deserialize, JsonSchema)]
struct Reimbursement {
    /// What the money was spent on.
    purpose: String,
    /// How much, in dollars. A `Number` keeps every digit.
    amount: Number,
}

/// What was paid, by key: who is asked to pay again with a key that he knows has done it already.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<BTreeMap<String, String>>>);

impl Ledger {
    fn pay(&self, key: &str, asked: Reimbursement) {
        let mut payments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let payment = format!("${} for {}", asked.amount, asked.purpose);
        payments.entry(key.to_owned()).or_insert(payment);
    }

    fn payments(&self) -> Vec<String> {
        let payments = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        payments.values().cloned().collect()
    }
}

/// Pays. After a crash it may run again, with the same key.
fn reimburse(ledger: Ledger) -> Function {
    let pay = move |asked: Reimbursement, context: Context| {
        let ledger = ledger.clone();
        async move {
            ledger.pay(context.idempotency_key(), asked);
            Ok::<_, String>(json!({"status": "ok"}))
        }
    };
    Function::new("reimburse", "Reimburse the amount of money to the employee.", pay)
        .effect(Effect::Idempotent)
}

/// Asks the manager. What it returns is only a placeholder; the call then waits for an answer.
async fn ask_for_approval(
    asked: Reimbursement,
    _: Context,
) -> Result<serde_json::Value, std::convert::Infallible> {
    let ticket = "reimbursement-ticket-001";
    Ok(json!({"status": "pending", "amount": asked.amount, "ticketId": ticket}))
}

/// The agent. By these rules it needs no language model; with `.model(NAME)` instead it would speak
/// with one.
fn builder(ledger: &Ledger) -> Builder {
    let ask = Function::new("ask_for_approval", "Ask a manager to approve it.", ask_for_approval)
        .long_running()
        .decisions(json!({"status": "approved"}), json!({"status": "rejected"}));
    let agent = Agent::new(APP)
        .description("Reimburses employees, and asks a manager for 100 dollars and above.")
        .instruction("Below $100 call reimburse. From $100 on call ask_for_approval first.")
        .tool(reimburse(ledger.clone()))
        .tool(ask)
        .script(
            r"
            - when: {user: '\$(?P<amount>\d+(?:\.\d+)?) for (?P<purpose>[^.!?]+)'}
              cases:
                - if: {amount: {below: 100}}
                  call: {reimburse: {purpose: '${purpose}', amount: '${amount}'}}
                - call: {ask_for_approval: {purpose: '${purpose}', amount: '${amount}'}}
            - when: {response: reimburse, matching: {status: ok}}
              say: I have reimbursed you $$${args.amount} for ${args.purpose}.
            - when: {response: ask_for_approval, matching: {status: pending}}
              say: A manager decides on your $$${args.amount}, see ${response.ticketId}.
            - when: {response: ask_for_approval, matching: {status: approved}}
              call: {reimburse: {purpose: '${args.purpose}', amount: '${args.amount}'}}
            - when: {response: ask_for_approval}
              say: You do not get the $$${args.amount} back, sorry.
            - when: always
              say: Tell me the amount and the purpose, such as $5 for tea.
            ",
        );
    Builder::new().agent(agent).memory()
}

/// Plays one cycle: somebody wants 200 dollars, the run pauses, the manager approves, it is paid.
pub async fn play(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let ledger = Ledger::default();
    let server = builder(&ledger).build().await?;
    let listener = app::bind(([127, 0, 0, 1], 0).into()).await?;
    let client = Client::new(&listener.local_addr()?.to_string())?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve_on(listener, async { stopped.await.unwrap_or(()) }));

    let asked = RunAsyncRequest {
        app_name: APP.into(),
        user_id: "ann".into(),
        new_message: Some(message("Please reimburse $200 for conference travel")),
        ..Default::default()
    };
    let paused = story::run(out, &client, asked).await?;
    assert_eq!(paused.state(), State::Paused);
    assert!(ledger.payments().is_empty(), "nothing is paid yet");

    // Days may pass here, and the server may restart: with `.sqlite(PATH)` nothing would be lost.
    // The manager needs no more than the call that waits.
    let approved = answer(&paused.held_calls[0], &json!({"status": "approved"}))?;
    story::tell(out, "manager", &answers([approved.clone()]))?;
    let request =
        SubmitFunctionResponseRequest { function_response: Some(approved), ..Default::default() };
    let reply = client.submit(request).await?;
    assert_eq!(reply.outcome(), Outcome::Applied);

    let done = story::run(out, &client, continuation(&reply)).await?;
    assert_eq!(done.state(), State::Completed);
    assert_eq!(ledger.payments(), ["$200 for conference travel"], "it is paid once");

    drop(stop);
    Ok(serving.await??)
}
