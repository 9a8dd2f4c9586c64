//! ADK's ticket agent for Java, in Rust: a tool that returns nothing, a client that tells more and
//! more of the ticket, and a call that waits until it is approved or rejected.
//!
//! `cargo run --example ticket_agent` plays it against itself, and ends. The same agent stands in
//! `ticket_agent.yaml`: put it into a directory and `countersign serve --agents DIR`.

use std::error::Error;
use std::io::Write;

use countersign::app::{self, Agent, Builder};
use countersign::client::{Client, answer, answers, message};
use countersign::proto::v1::{Call, Content, RunAsyncRequest, end_mark::State};
use countersign::tool::{Context, Function};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::oneshot;

mod story;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    play(builder(), &mut std::io::stdout()).await
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Urgency {
    Low,
    Medium,
    High,
}

#[derive(Deserialize, JsonSchema)]
struct CreateTicket {
    /// How urgent it is.
    urgency: Urgency,
}

/// Asks whoever creates tickets, and has nothing to return yet: there is no placeholder, and the
/// model hears nothing before the first answer.
async fn create_ticket(ticket: CreateTicket, context: Context) -> Result<(), String> {
    let urgent = matches!(ticket.urgency, Urgency::High);
    context.set("urgent", urgent);
    Ok(())
}

pub fn builder() -> Builder {
    let create_ticket = Function::new(
        "create_ticket_long_running",
        "Creates a new support ticket with an urgency.",
        create_ticket,
    )
    .long_running()
    // ADK's clients never say that more is to come, so the answer itself has to tell.
    .final_when("status", ["approved", "rejected"]);
    let agent = Agent::new("ticket_agent")
        .description("Creates tickets, which takes a while.")
        .instruction("Create a ticket when the user asks for one, and tell what becomes of it.")
        .tool(create_ticket)
        .script(
            r#"
            - when: {user: '(?i)\bcreate an? (?P<urgency>low|medium|high) urgency ticket\b'}
              call: {create_ticket_long_running: {urgency: '${urgency}'}}
            - when: {response: create_ticket_long_running, matching: {status: approved}}
              say: Your ticket ${response.ticket_id} is approved.
            - when: {response: create_ticket_long_running, matching: {status: rejected}}
              say: Your ticket ${response.ticket_id} is rejected.
            - when: {response: create_ticket_long_running}
              say: Your ${args.urgency} urgency ticket ${response.ticket_id} waits for approval.
            - when: always
              say: Tell me how urgent it is, such as "Create a high urgency ticket for me."
            "#,
        );
    Builder::new().agent(agent).memory()
}

/// Plays the three turns of ADK's example against a server of this agent.
pub async fn play(builder: Builder, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let server = builder.build().await?;
    let listener = app::bind(([127, 0, 0, 1], 0).into()).await?;
    let client = Client::new(&listener.local_addr()?.to_string())?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve_on(listener, async { stopped.await.unwrap_or(()) }));

    // Turn 1: the call is held. Nobody has answered it, not even the tool.
    let asked = say("", message("Create a high urgency ticket for me."));
    let first = story::run(out, &client, asked).await?;
    assert_eq!(first.state(), State::Paused);
    let [held] = &first.held_calls[..] else { return Err("exactly one call waits".into()) };
    assert_eq!(held.last_response, None, "there is no placeholder");

    // Turn 2: there is a ticket. The model is told, and the call stays held.
    let ticket = "TICKET-1234";
    let created = answers([answer(held, &json!({"ticket_id": ticket}))?]);
    let second = story::run(out, &client, say(&held.session_id, created)).await?;
    assert_eq!(second.state(), State::Paused);
    assert_eq!(ids(&second.held_calls), ids(&first.held_calls), "the same call waits");

    // Turn 3: the ticket is approved, which is the last answer.
    let approved = answers([answer(held, &json!({"status": "approved", "ticket_id": ticket}))?]);
    let third = story::run(out, &client, say(&held.session_id, approved)).await?;
    assert_eq!(third.state(), State::Completed);
    assert!(third.held_calls.is_empty());

    drop(stop);
    Ok(serving.await??)
}

/// RunAsync in a session, a new one if it is empty.
fn say(session: &str, content: Content) -> RunAsyncRequest {
    RunAsyncRequest {
        app_name: "ticket_agent".into(),
        user_id: "ann".into(),
        session_id: session.into(),
        new_message: Some(content),
        ..Default::default()
    }
}

fn ids(calls: &[Call]) -> Vec<&str> {
    calls.iter().filter_map(|call| Some(call.function_call.as_ref()?.id.as_str())).collect()
}
