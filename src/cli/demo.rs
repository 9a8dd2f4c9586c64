//! `countersign demo`: the main job end to end, told as it happens.
//!
//! It plays against any server that has the sample agent, through the same RPCs and with the same
//! words as the commands that it shows, and holds the server to every promise on the way: where
//! anything is not as told, it says what and fails.

use std::process::ExitCode;

use super::follow::{How, show, submit_command};
use super::story::Story;
use super::text::{clean_line, quote};
use super::{Console, Failure, console, exit, submit};
use crate::client::{Client, Events, continuation, message, refusal};
use crate::proto::v1;
use crate::proto::v1::event::Mark;
use crate::proto::v1::part::Data;
use crate::proto::v1::submit_function_response_response::Outcome;
use crate::proto::wkt::{Kind, Struct, Value};

/// The sample agent: ADK's sample for a human in the loop.
pub const APP: &str = "reimbursement_agent";

const USER: &str = console::DEFAULT_USER;
const ASK: &str = "ask_for_approval";
const PAY: &str = "reimburse";

/// Plays the demo against the server at this address, on the process's own streams.
pub async fn demo(address: &str) -> ExitCode {
    let mut streams = console::Streams::standard();
    let mut console = streams.console(address);
    let client = match Client::new(address) {
        Ok(client) => client,
        Err(error) => return console.finish(Err(error.into())),
    };
    let done = play(&mut console, &client).await;
    console.finish(done)
}

/// Plays the demo on a console. Fails where anything is not as told.
pub async fn play(console: &mut Console<'_>, client: &Client) -> Result<u8, Failure> {
    // The commands are shown as they are typed against a server of one's own.
    console.usual_server = console.server.clone();
    let mut play = Play { console, client };
    play.say("An agent reimburses employees. From $100 on it has to ask a manager first.")?;
    play.small_amount().await?;
    let (first, held) = play.large_amount().await?;
    play.approve(&first, &held).await?;
    play.reject().await?;
    play.say("\nThat is all there is to it. To have it at hand: countersign serve")?;
    Ok(exit::DONE)
}

struct Play<'a, 'b> {
    console: &'a mut Console<'b>,
    client: &'a Client,
}

/// What was seen of a run, up to where its stream ended.
#[derive(Default)]
struct Seen {
    begin: v1::BeginMark,
    entries: Vec<v1::Event>,
    end: v1::EndMark,
}

impl Play<'_, '_> {
    async fn small_amount(&mut self) -> Result<(), Failure> {
        self.chapter(1, "A small amount is paid at once")?;
        let seen = self.run("Please reimburse $50 for meals").await?;
        expect(seen.calls() == [(PAY, Some(&request(50.0, "meals")))], "it pays $50 for meals")?;
        expect(seen.status_of(PAY) == Some("ok"), "the payment is made")?;
        expect(seen.last_words().contains("50"), "it says so")?;
        expect(seen.end.state() == v1::end_mark::State::Completed, "the run is complete")
    }

    async fn large_amount(&mut self) -> Result<(Seen, v1::Call), Failure> {
        self.chapter(2, "A large amount waits for a manager")?;
        let seen = self.run("Please reimburse $200 for conference travel").await?;
        let asked = request(200.0, "conference travel");
        let held = self.held(&seen, &asked)?;
        self.say(
            "\nNothing is paid, and nothing runs: the pause is a few rows in a store, for minutes or \
             for months.",
        )?;
        Ok((seen, held))
    }

    async fn approve(&mut self, first: &Seen, held: &v1::Call) -> Result<(), Failure> {
        self.chapter(3, "The manager approves, and the same run goes on")?;
        let answer = decision(held, "approved", "Have a good trip!");
        let reply = self.submit(held, answer).await?;
        let seen = self.go_on(&reply).await?;
        let paid = request(200.0, "conference travel");
        expect(seen.begin.invocation_id == first.begin.invocation_id, "it is the same run")?;
        expect(seen.calls() == [(PAY, Some(&paid))], "it pays $200 for conference travel, once")?;
        expect(seen.status_of(PAY) == Some("ok"), "the payment is made")?;
        expect(seen.last_words().contains("200"), "it says so")?;
        expect(seen.end.state() == v1::end_mark::State::Completed, "the run is complete")?;

        self.say("\nA second manager who decides otherwise comes too late:")?;
        let late = submission(held, decision(held, "rejected", "No."));
        let name = quote(ASK);
        self.command(&format!("{} --name {name}", typed(&late)))?;
        let Err(status) = self.client.submit(late).await else {
            return Err(wrong("the first decision stands"));
        };
        let reason = refusal(&status).map(|refusal| refusal.reason).unwrap_or_default();
        writeln!(self.console.out, "{}: {}", clean_line(&reason), clean_line(status.message()))?;
        expect(reason == "CALL_ALREADY_ANSWERED", "the first decision stands")
    }

    async fn reject(&mut self) -> Result<(), Failure> {
        self.chapter(4, "Another one is rejected, and nothing is paid")?;
        let seen = self.run("Please reimburse $150 for a client dinner").await?;
        let held = self.held(&seen, &request(150.0, "client dinner"))?;
        let answer = decision(&held, "rejected", "Please ask before you invite somebody.");
        writeln!(self.console.out)?;
        let reply = self.submit(&held, answer).await?;
        let seen = self.go_on(&reply).await?;
        expect(seen.calls().is_empty(), "nothing is paid")?;
        expect(!seen.last_words().is_empty(), "it says so")?;
        expect(seen.end.state() == v1::end_mark::State::Completed, "the run is complete")
    }

    /// The one call that waits, with a placeholder that the agent told the user of.
    fn held(&self, seen: &Seen, asked: &Struct) -> Result<v1::Call, Failure> {
        use v1::call;
        expect(seen.calls() == [(ASK, Some(asked))], "it asks for approval, and does not pay")?;
        expect(seen.status_of(ASK) == Some("pending"), "the call gets a placeholder")?;
        expect(!seen.last_words().is_empty(), "the agent tells that it waits")?;
        expect(seen.end.state() == v1::end_mark::State::Paused, "the run is paused")?;
        let [held] = &seen.end.held_calls[..] else {
            return Err(wrong("exactly one call waits"));
        };
        let long_running = held.kind() == call::Kind::LongRunning;
        expect(held.state() == call::State::Held && long_running, "it waits for a manager")?;
        let named = seen.entries.iter().any(|event| event.long_running_tool_ids == [id_of(held)]);
        expect(named, "the event names the call as long-running")?;
        let ticket =
            held.last_response.as_ref().and_then(|r| text(r.response.as_ref(), "ticketId"));
        expect(ticket.is_some_and(|ticket| !ticket.is_empty()), "it has a ticket")?;
        Ok(held.clone())
    }

    async fn run(&mut self, words: &str) -> Result<Seen, Failure> {
        self.command(&format!("countersign run {APP} {}", quote(words)))?;
        let request = v1::RunAsyncRequest {
            app_name: APP.to_owned(),
            user_id: USER.to_owned(),
            new_message: Some(message(words)),
            ..Default::default()
        };
        self.see(self.client.run(request), true).await
    }

    async fn submit(
        &mut self,
        held: &v1::Call,
        answer: Struct,
    ) -> Result<v1::SubmitFunctionResponseResponse, Failure> {
        let request = submission(held, answer);
        self.command(&(typed(&request) + " --follow"))?;
        let reply = self.client.submit(request).await?;
        submit::show(self.console, &reply, false)?;
        expect(reply.outcome() == Outcome::Applied, "the decision is taken")?;
        let state = reply.call.as_ref().map(v1::Call::state);
        expect(state == Some(v1::call::State::Done), "the call is closed")?;
        Ok(reply)
    }

    async fn go_on(&mut self, reply: &v1::SubmitFunctionResponseResponse) -> Result<Seen, Failure> {
        self.see(self.client.run(continuation(reply)), false).await
    }

    async fn see(&mut self, mut events: Events, session: bool) -> Result<Seen, Failure> {
        let (mut seen, mut story) = (Seen::default(), Story::default());
        let how = How { session, ..How::default() };
        while let Some(event) = events.next().await? {
            show(self.console, &mut story, how, &event, &[])?;
            match event.mark {
                Some(Mark::Begin(begin)) => seen.begin = begin,
                Some(Mark::End(end)) => seen.end = end,
                Some(_) => {}
                None if event.partial => {}
                None => seen.entries.push(event),
            }
        }
        Ok(seen)
    }

    fn chapter(&mut self, number: u32, title: &str) -> Result<(), Failure> {
        let title = self.console.paint.bold(format!("{number}. {title}"));
        writeln!(self.console.out, "\n{title}\n")?;
        Ok(())
    }

    fn say(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.console.out, "{text}")?;
        Ok(())
    }

    fn command(&mut self, command: &str) -> Result<(), Failure> {
        writeln!(self.console.out, "{}", self.console.paint.dim(format!("$ {command}")))?;
        self.console.out.flush()?;
        Ok(())
    }
}

impl Seen {
    fn parts(&self) -> impl Iterator<Item = &Data> {
        let contents = self.entries.iter().filter_map(|event| event.content.as_ref());
        contents.flat_map(|content| &content.parts).filter_map(|part| part.data.as_ref())
    }

    /// Names and arguments of all calls.
    fn calls(&self) -> Vec<(&str, Option<&Struct>)> {
        let calls = self.parts().filter_map(|data| match data {
            Data::FunctionCall(call) => Some((call.name.as_str(), call.args.as_ref())),
            _ => None,
        });
        calls.collect()
    }

    /// The `status` in the only response of a tool.
    fn status_of(&self, tool: &str) -> Option<&str> {
        let mut responses = self.parts().filter_map(|data| match data {
            Data::FunctionResponse(response) if response.name == tool => Some(response),
            _ => None,
        });
        let response = responses.next()?;
        if responses.next().is_some() { None } else { text(response.response.as_ref(), "status") }
    }

    /// The agent's last text; empty if something else came last.
    fn last_words(&self) -> &str {
        match self.parts().last() {
            Some(Data::Text(text)) => text,
            _ => "",
        }
    }
}

fn request(amount: f64, purpose: &str) -> Struct {
    [("amount".to_owned(), amount.into()), ("purpose".to_owned(), purpose.into())]
        .into_iter()
        .collect()
}

fn text<'a>(object: Option<&'a Struct>, key: &str) -> Option<&'a str> {
    match object?.fields.get(key)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

fn id_of(call: &v1::Call) -> &str {
    call.function_call.as_ref().map_or("", |call| &call.id)
}

/// A decision: the placeholder with another status, and a word of whoever decides.
fn decision(held: &v1::Call, status: &str, feedback: &str) -> Struct {
    let placeholder = held.last_response.as_ref().and_then(|response| response.response.clone());
    let mut answer = placeholder.unwrap_or_default();
    answer.fields.insert("status".to_owned(), Value::from(status));
    answer.fields.insert("approver_feedback".to_owned(), Value::from(feedback));
    answer
}

fn submission(held: &v1::Call, answer: Struct) -> v1::SubmitFunctionResponseRequest {
    let name = held.function_call.as_ref().map_or("", |call| &call.name);
    v1::SubmitFunctionResponseRequest {
        function_response: Some(v1::FunctionResponse {
            id: id_of(held).to_owned(),
            name: name.to_owned(),
            response: Some(answer),
            will_continue: None,
        }),
        ..Default::default()
    }
}

/// The command that submits the same.
fn typed(request: &v1::SubmitFunctionResponseRequest) -> String {
    let response = request.function_response.clone().unwrap_or_default();
    let answer = super::text::json(&response.response.unwrap_or_default());
    submit_command(&response.id, &answer)
}

fn expect(holds: bool, promise: &str) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(wrong(promise)) }
}

fn wrong(promise: &str) -> Failure {
    Failure::Other(format!("the demo failed: expected that {promise}"))
}
