//! Events as a person reads them.

use std::io::{self, Write};

use super::console::Paint;
use super::text::{clean, clean_line, json};
use crate::proto::v1;
use crate::proto::v1::part::Data;

/// Shows the entries of a conversation one after the other, and words while they are spoken.
#[derive(Debug, Default)]
pub struct Story {
    /// Each entry begins with its sequence.
    numbered: bool,
    /// What was shown of an entry to come: its id, and its words so far.
    speaking: Option<(String, String)>,
}

/// What is said or done, in one of the ways to show it.
struct Line {
    sign: char,
    text: String,
    tone: Tone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tone {
    Plain,
    Dim,
    Red,
}

impl Story {
    /// A story, with the sequence before each entry if `numbered`.
    pub fn new(numbered: bool) -> Self {
        Self { numbered, speaking: None }
    }

    /// Whether the cursor stands behind words that are not complete.
    pub fn is_speaking(&self) -> bool {
        self.speaking.is_some()
    }

    /// Ends a line of words that will not be completed.
    pub fn interrupt(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.speaking.take().is_some() {
            writeln!(out)?;
        }
        Ok(())
    }

    /// Shows a piece of an entry to come.
    pub fn partial(
        &mut self,
        out: &mut dyn Write,
        paint: Paint,
        event: &v1::Event,
    ) -> io::Result<()> {
        let piece = spoken(event);
        if piece.is_empty() {
            return Ok(());
        }
        if self.speaking.as_ref().is_none_or(|(id, _)| *id != event.id) {
            self.interrupt(out)?;
            write!(out, "{}   ", paint.cyan(self.head(event)))?;
            self.speaking = Some((event.id.clone(), String::new()));
        }
        let shown = clean(&piece).replace('\n', &self.next_line(event));
        write!(out, "{shown}")?;
        if let Some((_, said)) = &mut self.speaking {
            said.push_str(&piece);
        }
        out.flush()
    }

    /// Shows an entry; of one whose words were shown already only what is missing.
    pub fn entry(
        &mut self,
        out: &mut dyn Write,
        paint: Paint,
        event: &v1::Event,
    ) -> io::Result<()> {
        let mut lines = lines(event);
        if let Some((id, said)) = self.speaking.take() {
            let whole = spoken(event);
            match whole.strip_prefix(&said) {
                Some(rest) if id == event.id => {
                    writeln!(out, "{}", clean(rest).replace('\n', &self.next_line(event)))?;
                    lines.retain(|line| line.sign != ' ' || line.tone != Tone::Plain);
                }
                _ => writeln!(out)?,
            }
        }
        let head = self.head(event);
        for Line { sign, text, tone } in lines {
            let text = text.replace('\n', &self.next_line(event));
            let text = match tone {
                Tone::Plain => text,
                Tone::Dim => paint.dim(text),
                Tone::Red => paint.red(text),
            };
            writeln!(out, "{} {sign} {text}", paint.cyan(&head))?;
        }
        out.flush()
    }

    /// What stands before everything of an event: its number, and who speaks.
    fn head(&self, event: &v1::Event) -> String {
        let author = clean_line(&event.author);
        match event.sequence {
            _ if !self.numbered => author,
            0 => format!("{:>5}  {author}", ""),
            sequence => format!("{sequence:>5}  {author}"),
        }
    }

    /// A line feed and as many blanks as to stand below the words, so that no line of a text can
    /// pretend to be more than that.
    fn next_line(&self, event: &v1::Event) -> String {
        format!("\n{:width$}", "", width = self.head(event).chars().count() + 3)
    }
}

/// The words of an event that are meant for the user.
fn spoken(event: &v1::Event) -> String {
    let parts = event.content.iter().flat_map(|content| &content.parts);
    let words = parts.filter(|part| !part.thought).filter_map(|part| match &part.data {
        Some(Data::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    words.collect()
}

fn lines(event: &v1::Event) -> Vec<Line> {
    let mut lines = Vec::new();
    let words = spoken(event);
    let mut told = false;
    for part in event.content.iter().flat_map(|content| &content.parts) {
        match &part.data {
            // Pieces of one speech, shown where the first of them stands.
            Some(Data::Text(_)) if !part.thought => {
                if !told && !words.is_empty() {
                    lines.push(Line { sign: ' ', text: clean(&words), tone: Tone::Plain });
                }
                told = true;
            }
            _ => lines.extend(line_of(event, part)),
        }
    }
    lines.extend(deeds(event));
    if !event.error_code.is_empty() || !event.error_message.is_empty() {
        let text = format!("{}: {}", clean_line(&event.error_code), clean(&event.error_message));
        lines.push(Line { sign: '!', text, tone: Tone::Red });
    }
    lines
}

fn line_of(event: &v1::Event, part: &v1::Part) -> Option<Line> {
    let plain = |sign, text| Some(Line { sign, text, tone: Tone::Plain });
    let dim = |text| Some(Line { sign: ' ', text, tone: Tone::Dim });
    match part.data.as_ref()? {
        Data::Text(text) => dim(format!("(thinks) {}", clean(text))),
        Data::FunctionCall(call) => plain('→', show_call(call, exact(event, &call.id))),
        Data::FunctionResponse(response) => {
            let given = match (exact(event, &response.id), &response.response) {
                ("", None) => "null".to_owned(),
                ("", Some(object)) => json(object),
                (exact, _) => clean_line(exact),
            };
            plain('←', format!("{} {given}", clean_line(&response.name)))
        }
        Data::InlineData(blob) => dim(format!(
            "[{} {}, {} bytes]",
            clean_line(&blob.mime_type),
            clean_line(&blob.display_name),
            blob.data.len()
        )),
        Data::FileData(file) => dim(format!("[file {}]", clean_line(&file.file_uri))),
        Data::ExecutableCode(code) => {
            dim(format!("[code {}]\n{}", clean_line(&code.language), clean(&code.code)))
        }
        Data::CodeExecutionResult(result) => {
            dim(format!("[{}]\n{}", clean_line(&result.outcome), clean(&result.output)))
        }
    }
}

/// What an event does beside being said.
fn deeds(event: &v1::Event) -> Vec<Line> {
    let mut deeds = Vec::new();
    if let Some(actions) = &event.actions {
        if let Some(delta) = actions.state_delta.as_ref().filter(|delta| !delta.fields.is_empty()) {
            deeds.push(format!("sets state {}", json(delta)));
        }
        for (file, version) in &actions.artifact_delta {
            deeds.push(format!("saves {}, version {version}", clean_line(file)));
        }
        if !actions.transfer_to_agent.is_empty() {
            deeds.push(format!("hands over to {}", clean_line(&actions.transfer_to_agent)));
        }
        if actions.escalate {
            deeds.push("leaves the loop".to_owned());
        }
    }
    for (id, facts) in &event.calls {
        if event.content.is_none() && facts.kind() != v1::call::Kind::Unspecified {
            deeds.push(format!("call {} waits: {}", clean_line(id), facts.kind().as_str_name()));
        }
        if !facts.comment.is_empty() {
            deeds.push(format!("comment: {}", clean_line(&facts.comment)));
        }
    }
    let line = |text| Line { sign: '·', text, tone: Tone::Dim };
    deeds.into_iter().map(line).collect()
}

/// The exact JSON that an event carries for a call; empty if its Struct is exact.
fn exact<'a>(event: &'a v1::Event, call_id: &str) -> &'a str {
    event.calls.get(call_id).map_or("", |facts| &facts.exact_json)
}

/// A call as it would be written in code, with its exact arguments if they are given.
pub fn show_call(call: &v1::FunctionCall, exact: &str) -> String {
    let args = match (exact, &call.args) {
        ("", None) => "{}".to_owned(),
        ("", Some(args)) => json(args),
        (exact, _) => clean_line(exact),
    };
    format!("{}({args})", clean_line(&call.name))
}

#[cfg(test)]
#[path = "story_tests.rs"]
mod tests;
