//! The built-in model, which follows the rules of `agent::script`: the same request always gets the
//! same reply. It needs no network, and shows every promise of the server without a language model.
//!
//! What was said last: if responses are new (`Request::news`), each of them, in order, then a
//! user's text if that stands last; otherwise what the last content says, responses or a user's
//! text. Each thing said last is spoken to by the first rule that matches it. Texts of several are
//! parted by a blank line, their calls follow each other.

use std::sync::Arc;

use async_trait::async_trait;
use regex::Regex;
use serde_json::Value;

use super::{Error, Model, Pieces, Reply, Request, Said};
use crate::agent::script::{Condition, Holds, Rule, Script, When};
use crate::agent::template::{self, Place};
use crate::session::content::{
    Content, Data, FunctionCall, FunctionResponse, Object, Part, Role, Usage,
};
use crate::session::json;

mod number;
#[cfg(test)]
mod tests;

/// Code of the error when nothing in the script matches.
pub const NO_RULE: &str = "SCRIPT_NO_RULE";

/// A model that follows a script.
#[derive(Debug, Clone)]
pub struct Scripted {
    script: Arc<Script>,
}

impl Scripted {
    /// The model of this script.
    pub fn new(script: Arc<Script>) -> Self {
        Self { script }
    }

    fn speak(&self, request: &Request) -> Result<Reply, Error> {
        let mut texts: Vec<String> = Vec::new();
        let mut calls = Vec::new();
        for heard in said_last(request) {
            let found = self.script.rules.iter().find_map(|rule| {
                let captured = matched(rule, &heard)?;
                rule.conditions.iter().all(|one| holds(one, &captured)).then_some((rule, captured))
            });
            let Some((rule, captured)) = found else { return Err(no_rule(&heard)) };
            let text = template::text(&rule.reply.text, &mut |name| captured.text(name));
            if !text.is_empty() {
                texts.push(text);
            }
            calls.extend(rule.reply.calls.iter().map(|call| Said::Call {
                model_id: None,
                name: call.name.clone(),
                args: captured.fill(&call.args),
                thought_signature: Vec::new(),
            }));
        }
        let mut parts = Vec::with_capacity(calls.len() + 1);
        if !texts.is_empty() {
            parts.push(Said::Part(Part::text(texts.join("\n\n"))));
        }
        parts.extend(calls);
        let usage = Some(usage(request, &parts));
        Ok(Reply { parts, finish_reason: "STOP".to_owned(), usage })
    }
}

#[async_trait]
impl Model for Scripted {
    async fn reply(&self, request: Request, pieces: &mut dyn Pieces) -> Result<Reply, Error> {
        let reply = self.speak(&request)?;
        if request.stream {
            for text in reply.parts.iter().filter_map(text_of) {
                for word in text.split_inclusive(char::is_whitespace) {
                    pieces.text(word);
                    // Whoever listens has his turn, as with a model that takes time.
                    tokio::task::yield_now().await;
                }
            }
        }
        Ok(reply)
    }
}

/// One thing that was said last.
#[derive(Debug)]
enum Heard<'a> {
    /// By a user.
    Text(String),
    /// By a tool, or by somebody outside; with the call that it answers.
    Response(&'a FunctionResponse, Option<&'a FunctionCall>),
    /// The model itself spoke last, or nobody did.
    Nothing,
}

fn said_last(request: &Request) -> Vec<Heard<'_>> {
    let contents = &request.contents;
    let new = contents.iter().flat_map(Content::responses);
    let mut responses: Vec<_> = new.filter(|one| request.news.contains(&one.id)).collect();
    let last = contents.last().filter(|content| content.role == Role::User);
    if responses.is_empty() {
        responses.extend(last.into_iter().flat_map(Content::responses));
    }
    let called = |response: &&FunctionResponse| {
        let id = &response.id;
        contents.iter().rev().flat_map(Content::calls).find(|call| call.id == *id)
    };
    let responses = responses.into_iter().map(|one| Heard::Response(one, called(&one)));
    let text = last.map(Content::plain_text).filter(|text| !text.is_empty());
    let mut heard: Vec<_> = responses.chain(text.map(Heard::Text)).collect();
    if heard.is_empty() {
        heard.push(Heard::Nothing);
    }
    heard
}

/// What a rule captured of what was said.
struct Captured<'a> {
    heard: &'a Heard<'a>,
    groups: Vec<(&'a str, String)>,
}

/// What the rule captures if it matches, its conditions apart.
fn matched<'a>(rule: &'a Rule, heard: &'a Heard<'a>) -> Option<Captured<'a>> {
    let groups = match (&rule.when, heard) {
        (When::Always, _) => Vec::new(),
        (When::User(patterns), Heard::Text(text)) => {
            patterns.iter().find_map(|pattern| groups(pattern, text))?
        }
        (When::Response { tool, matches }, Heard::Response(response, _)) => {
            let value = |key| response.response.as_ref()?.get(key);
            let same = |(key, wanted)| value(key).is_some_and(|v| json::same(v, wanted));
            (response.name == *tool && matches.iter().all(same)).then(Vec::new)?
        }
        _ => return None,
    };
    Some(Captured { heard, groups })
}

/// The named groups of the pattern's first match.
fn groups<'a>(pattern: &'a Regex, text: &str) -> Option<Vec<(&'a str, String)>> {
    let found = pattern.captures(text)?;
    let names = pattern.capture_names().flatten();
    Some(names.filter_map(|name| Some((name, found.name(name)?.as_str().to_owned()))).collect())
}

impl Captured<'_> {
    /// The value of a capture, a group's as the text that it is.
    fn text(&self, name: &str) -> Option<Value> {
        if let Some((_, text)) = self.groups.iter().find(|(group, _)| *group == name) {
            return Some(Value::from(text.as_str()));
        }
        let Heard::Response(response, call) = self.heard else { return None };
        if let Some(path) = name.strip_prefix("response.") {
            return template::at(response.response.as_ref()?, path);
        }
        template::at(&call.as_ref()?.args, name.strip_prefix("args.")?)
    }

    /// The value of a capture; a group's is a number if it reads as one.
    fn value(&self, name: &str) -> Option<Value> {
        let value = self.text(name)?;
        let group = self.groups.iter().any(|(group, _)| *group == name);
        let number = value.as_str().filter(|_| group).and_then(number::read);
        Some(number.map_or(value, Value::Number))
    }

    fn fill(&self, args: &Object) -> Object {
        template::render_by_place(args, &mut |name, place| match place {
            Place::Alone => self.value(name),
            Place::Within => self.text(name),
        })
    }
}

fn holds(condition: &Condition, captured: &Captured<'_>) -> bool {
    let value = captured.value(&condition.capture);
    let number = value.as_ref().and_then(Value::as_number);
    match &condition.holds {
        Holds::Below(bound) => number.is_some_and(|n| json::compare(n, bound).is_lt()),
        Holds::AtLeast(bound) => number.is_some_and(|n| json::compare(n, bound).is_ge()),
        Holds::Equals(wanted) => {
            let text = captured.text(&condition.capture);
            value.is_some_and(|value| json::same(&value, wanted)) || text.as_ref() == Some(wanted)
        }
        Holds::Present(wanted) => *wanted == value.is_some_and(|value| !value.is_null()),
    }
}

/// Says what kind of thing was not understood, and nothing of what it was.
fn no_rule(heard: &Heard<'_>) -> Error {
    let what = match heard {
        Heard::Text(_) => "what the user wrote",
        Heard::Response(..) => "a tool's response",
        Heard::Nothing => "a conversation in which nobody spoke to it",
    };
    let message = format!("no rule of the script matches {what}");
    Error { code: NO_RULE.to_owned(), message }
}

fn text_of(said: &Said) -> Option<&str> {
    match said {
        Said::Part(Part { data: Some(Data::Text(text)), .. }) => Some(text),
        _ => None,
    }
}

/// Words instead of tokens; a call or a response counts as one.
fn usage(request: &Request, said: &[Said]) -> Usage {
    let words = |text: &str| u32::try_from(text.split_whitespace().count()).unwrap_or(u32::MAX);
    let parts = request.contents.iter().flat_map(|content| &content.parts);
    let heard = parts.map(|part| match &part.data {
        Some(Data::Text(text)) => words(text),
        Some(_) => 1,
        None => 0,
    });
    let prompt = heard.fold(words(&request.instruction), u32::saturating_add);
    let replied = said.iter().map(|said| text_of(said).map_or(1, words));
    let replied = replied.fold(0, u32::saturating_add);
    Usage {
        prompt_token_count: prompt,
        candidates_token_count: replied,
        total_token_count: prompt.saturating_add(replied),
        ..Usage::default()
    }
}
