//! Shows what comes of a run or a session until it ends, and says how it ended.

use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::story::{Story, show_call};
use super::text::{clean, clean_line, quote};
use super::{Console, Failure, common, exit};
use crate::client::{Client, Events};
use crate::proto::v1;
use crate::proto::v1::event::Mark;

/// How long nothing happens until waiting is shown, and how often it is shown anew.
const WAITING_STEP: Duration = Duration::from_secs(1);

/// Up to where to follow, and how to show it.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// Proto3 JSON, one event a line.
    pub json: bool,
    /// Each entry begins with its sequence.
    pub numbered: bool,
    /// The session's id is shown when the run begins.
    pub session: bool,
    /// A mark `pause` that comes after an entry ends it.
    pub leave_at_pause: bool,
}

/// Follows to the end, and gives the exit code.
pub async fn follow(
    console: &mut Console<'_>,
    client: &Client,
    mut events: Events,
    how: How,
) -> Result<u8, Failure> {
    let mut story = Story::new(how.numbered);
    let mut entries = 0_u64;
    let mut waiting: Option<Vec<String>> = None;
    let mut formed: Option<Vec<String>> = None;
    while let Some(event) = next(console, &mut events, &story).await? {
        let leave = how.leave_at_pause && entries > 0;
        if how.json {
            console.json(&event)?;
        } else {
            if let Some(held) = held(&event) {
                // A stream that was taken up again tells the same pause again.
                let ids = Some(held.iter().map(id_of).collect());
                if waiting == ids && !leave && !matches!(event.mark, Some(Mark::End(_))) {
                    continue;
                }
                waiting = ids;
                if formed.is_none() {
                    formed = Some(formed_tools(client, held).await);
                }
            }
            show(console, &mut story, how, &event, formed.as_deref().unwrap_or_default())?;
        }
        match &event.mark {
            Some(Mark::End(end)) => return Ok(exit_code(end.state())),
            Some(Mark::Pause(_)) if leave => return Ok(exit::PAUSED),
            Some(_) => {}
            None => entries += u64::from(!event.partial),
        }
    }
    // Not reached: events are over only behind an end.
    Ok(exit::FAILED)
}

/// The calls that are waited for, if the event tells of a pause.
fn held(event: &v1::Event) -> Option<&[v1::Call]> {
    match event.mark.as_ref()? {
        Mark::Pause(pause) => Some(&pause.held_calls),
        Mark::End(end) if end.state() == v1::end_mark::State::Paused => Some(&end.held_calls),
        _ => None,
    }
}

fn id_of(call: &v1::Call) -> String {
    call.function_call.as_ref().map(|call| call.id.clone()).unwrap_or_default()
}

/// The tools of the app whose answers have a form of their own. They are for a hint only: where the
/// server does not tell, there are none.
async fn formed_tools(client: &Client, held: &[v1::Call]) -> Vec<String> {
    let Some(call) = held.first() else { return Vec::new() };
    let request = v1::GetAgentRequest { name: call.app_name.clone() };
    let agent = client.agents().get_agent(request).await.map(tonic::Response::into_inner);
    let tools = agent.map(|agent| agent.tools).unwrap_or_default().into_iter();
    tools.filter(|tool| tool.answer_schema.is_some()).map(|tool| tool.name).collect()
}

fn exit_code(state: v1::end_mark::State) -> u8 {
    use v1::end_mark::State;
    match state {
        State::Completed => exit::DONE,
        State::Paused => exit::PAUSED,
        State::Unspecified | State::Failed | State::Cancelled | State::Reconnect => exit::FAILED,
    }
}

/// The next event; where a person watches, a line tells how long nothing has come.
async fn next(
    console: &mut Console<'_>,
    events: &mut Events,
    story: &Story,
) -> Result<Option<v1::Event>, Failure> {
    if !console.live || story.is_speaking() {
        return Ok(events.next().await?);
    }
    let began = Instant::now();
    let mut shown = false;
    let mut next = pin!(events.next());
    let event = loop {
        tokio::select! {
            event = &mut next => break event,
            () = sleep(WAITING_STEP) => {
                let text = console.paint_err.dim(format!("waiting {} s", began.elapsed().as_secs()));
                write!(console.err, "\r\x1b[K{text}")?;
                console.err.flush()?;
                shown = true;
            }
        }
    };
    if shown {
        write!(console.err, "\r\x1b[K")?;
        console.err.flush()?;
    }
    Ok(event?)
}

/// Shows an event as `run` does. Answers of the tools in `formed` have a form of their own.
pub fn show(
    console: &mut Console<'_>,
    story: &mut Story,
    how: How,
    event: &v1::Event,
    formed: &[String],
) -> Result<(), Failure> {
    let paint = console.paint;
    let Some(mark) = &event.mark else {
        match event.partial {
            false => story.entry(console.out, paint, event)?,
            true if console.live => story.partial(console.out, paint, event)?,
            true => {}
        }
        return Ok(());
    };
    story.interrupt(console.out)?;
    match mark {
        Mark::Begin(begin) if how.session => {
            let session = format!("session {}", clean_line(&begin.session_id));
            writeln!(console.out, "{}", paint.dim(session))?;
        }
        Mark::Pause(pause) => paused(console, &pause.held_calls, formed)?,
        Mark::CaughtUp(mark) if how.numbered => {
            let text = format!("{:>5}  caught up, what follows is live", mark.last_sequence);
            writeln!(console.out, "{}", paint.dim(text))?;
        }
        Mark::End(end) => ended(console, end, formed)?,
        Mark::Begin(_) | Mark::CaughtUp(_) | Mark::Heartbeat(_) => {}
    }
    console.out.flush()?;
    Ok(())
}

fn ended(console: &mut Console<'_>, end: &v1::EndMark, formed: &[String]) -> io::Result<()> {
    use v1::end_mark::State;
    let paint = console.paint_err;
    match end.state() {
        State::Completed | State::Reconnect => Ok(()),
        State::Paused => paused(console, &end.held_calls, formed),
        State::Failed => {
            let (code, message) = (clean_line(&end.error_code), clean(&end.error_message));
            writeln!(console.err, "{}", paint.red(format!("{code}: {message}")))
        }
        State::Cancelled => writeln!(console.err, "{}", paint.red("cancelled")),
        State::Unspecified => writeln!(console.err, "{}", paint.red("ended without a reason")),
    }
}

/// Tells who is waited for, with the command that answers each call.
pub fn paused(console: &mut Console<'_>, calls: &[v1::Call], formed: &[String]) -> io::Result<()> {
    let paint = console.paint;
    writeln!(console.out, "{}", paint.yellow("paused, waiting for an answer to:"))?;
    for call in calls {
        let function_call = call.function_call.clone().unwrap_or_default();
        let mut about = vec![call.kind().as_str_name().to_owned()];
        if call.agent_path.contains('/') {
            about.push(format!("asked by {}", clean_line(&call.agent_path)));
        }
        if call.expire_time.is_some() {
            about.push(format!("until {}", common::show_time(call.expire_time.as_ref())));
        }
        let shown = show_call(&function_call, &call.exact_args_json);
        writeln!(console.out, "  {shown}  {}", paint.dim(about.join(", ")))?;
        let command = submit_command(&function_call.id, answer_to(call, formed));
        writeln!(console.out, "    {}", paint.bold(command + &console.server_flag()))?;
    }
    Ok(())
}

/// The command that gives an answer.
pub fn submit_command(call_id: &str, answer: &str) -> String {
    format!("countersign submit {} {}", quote(call_id), quote(answer))
}

/// What an answer to such a call looks like.
fn answer_to(call: &v1::Call, formed: &[String]) -> &'static str {
    use v1::call::{Answers, Kind};
    let name = call.function_call.as_ref().map_or("", |call| &call.name);
    match call.kind() {
        Kind::Confirmation => r#"{"confirmed":true}"#,
        Kind::Input | Kind::UnknownOutcome => r#"{"result":"..."}"#,
        // Nobody but its tool knows what that looks like.
        _ if call.answers() == Answers::Many || formed.iter().any(|tool| tool == name) => "{...}",
        Kind::Unspecified | Kind::LongRunning => r#"{"status":"approved"}"#,
    }
}
