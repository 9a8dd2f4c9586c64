//! The two loops of Microsoft's tutorial on tools that need approval: ask, show the requests,
//! approve or deny each, and go on until none is left; without streaming, and with it.
//!
//! `cargo run --example approval_loop` plays both against itself, and ends. There a client sends
//! the conversation again with its decisions; here the session has it, so that only the decisions
//! are sent, from this process or any other.

use std::error::Error;
use std::io::Write;

use countersign::app::{self, Builder};
use countersign::client::{Client, answer, answers, message};
use countersign::proto::v1::part::Data;
use countersign::proto::v1::run_config::StreamingMode;
use countersign::proto::v1::{Call, Content, EndMark, RunAsyncRequest, RunConfig, event::Mark};
use countersign::proto::{to_json, wkt::Struct};
use serde_json::{Value, json};
use tokio::sync::oneshot;

mod story;

const AGENT: &str = include_str!("approvals/weather_agent.yaml");

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    play(&mut std::io::stdout()).await
}

/// Plays both loops against a server of the agent.
pub async fn play(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let server = Builder::new().agent_file("weather_agent.yaml", AGENT).memory().build().await?;
    let listener = app::bind(([127, 0, 0, 1], 0).into()).await?;
    let client = Client::new(&listener.local_addr()?.to_string())?;
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve_on(listener, async { stopped.await.unwrap_or(()) }));

    let both = "How is the weather in Amsterdam and Oslo?";
    without_streaming(out, &client, both, |place| place == "Amsterdam").await?;
    streaming(out, &client, "How is the weather in Lima?", |_| true).await?;

    drop(stop);
    Ok(serving.await??)
}

/// The first loop: what waits is told at the end of each run.
async fn without_streaming(
    out: &mut dyn Write,
    client: &Client,
    question: &str,
    agree: impl Fn(&str) -> bool,
) -> Result<(), Box<dyn Error>> {
    let mut request = say("", message(question));
    loop {
        let end = story::run(out, client, request).await?;
        let Some(first) = end.held_calls.first() else { return Ok(()) };
        request = say(&first.session_id, decide(out, &end, &agree)?);
    }
}

/// The second: the text comes in pieces, and the requests are collected until the stream has ended.
async fn streaming(
    out: &mut dyn Write,
    client: &Client,
    question: &str,
    agree: impl Fn(&str) -> bool,
) -> Result<(), Box<dyn Error>> {
    let mut request = say("", message(question));
    writeln!(out, "user: {question}")?;
    loop {
        let mode = StreamingMode::Sse.into();
        request.run_config = Some(RunConfig { streaming_mode: mode, ..Default::default() });
        let mut events = client.run(request);
        let mut begun = String::new();
        let end = loop {
            let event = events.next().await?.ok_or("the stream had no end")?;
            if let Some(Mark::End(end)) = event.mark {
                break end;
            }
            for part in event.content.iter().flat_map(|content| &content.parts) {
                let Some(Data::Text(text)) = &part.data else { continue };
                // The whole text follows its pieces; who came late for them has it there.
                let new = text.strip_prefix(&*begun).filter(|_| !event.partial).unwrap_or(text);
                if begun.is_empty() {
                    write!(out, "{}: ", event.author)?;
                }
                write!(out, "{new}")?;
                begun += new;
                if !event.partial {
                    writeln!(out)?;
                    begun.clear();
                }
            }
        };
        let Some(first) = end.held_calls.first() else { return Ok(()) };
        request = say(&first.session_id, decide(out, &end, &agree)?);
    }
}

/// Shows each request and decides on it: one answer for each, all of them in one message.
fn decide(
    out: &mut dyn Write,
    end: &EndMark,
    agree: &impl Fn(&str) -> bool,
) -> Result<Content, Box<dyn Error>> {
    let mut decisions = Vec::new();
    for call in &end.held_calls {
        let about = original(call)?;
        let (name, args) = (&about["name"], &about["args"]);
        let agreed = agree(args["place"].as_str().unwrap_or_default());
        let word = if agreed { "yes" } else { "no" };
        writeln!(out, "  may it call {} with {args}? {word}", name.as_str().unwrap_or_default())?;
        decisions.push(answer(call, &json!({ "confirmed": agreed }))?);
    }
    Ok(answers(decisions))
}

/// The call that a request is about.
fn original(call: &Call) -> Result<Value, Box<dyn Error>> {
    let args: Option<&Struct> = call.function_call.as_ref().and_then(|call| call.args.as_ref());
    let args: Value = serde_json::from_str(&to_json(args.ok_or("a request has arguments")?)?)?;
    Ok(args["originalFunctionCall"].clone())
}

/// RunAsync in a session, a new one if it is empty.
fn say(session: &str, content: Content) -> RunAsyncRequest {
    RunAsyncRequest {
        app_name: "weather_agent".into(),
        user_id: "ann".into(),
        session_id: session.into(),
        new_message: Some(content),
        ..Default::default()
    }
}
