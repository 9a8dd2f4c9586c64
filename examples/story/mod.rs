//! Tells what is said and done, a line each; the examples share it.

use std::error::Error;
use std::io::Write;

use countersign::client::Client;
use countersign::proto::v1::{Content, EndMark, RunAsyncRequest, event::Mark, part::Data};
use countersign::proto::{to_json, wkt::Struct};

/// Runs, tells everything up to the end of the stream, and gives that end.
pub async fn run(
    out: &mut dyn Write,
    client: &Client,
    request: RunAsyncRequest,
) -> Result<EndMark, Box<dyn Error>> {
    if let Some(message) = &request.new_message {
        tell(out, &message.role, message)?;
    }
    let mut events = client.run(request);
    while let Some(event) = events.next().await? {
        if let Some(Mark::End(end)) = event.mark {
            writeln!(out, "({})", end.state().as_str_name())?;
            return Ok(end);
        }
        if let Some(content) = &event.content {
            tell(out, &event.author, content)?;
        }
    }
    Err("the stream had no end".into())
}

/// Tells what somebody said or did.
pub fn tell(out: &mut dyn Write, who: &str, content: &Content) -> Result<(), Box<dyn Error>> {
    for part in &content.parts {
        match &part.data {
            Some(Data::Text(text)) => writeln!(out, "{who}: {text}")?,
            Some(Data::FunctionCall(call)) => {
                writeln!(out, "{who} → {}({})", call.name, json(call.args.as_ref())?)?;
            }
            Some(Data::FunctionResponse(given)) => {
                writeln!(out, "{who} ← {} {}", given.name, json(given.response.as_ref())?)?;
            }
            _ => writeln!(out, "{who} shows something")?,
        }
    }
    Ok(())
}

fn json(object: Option<&Struct>) -> Result<String, Box<dyn Error>> {
    Ok(object.map_or(Ok("null".to_owned()), to_json)?)
}
