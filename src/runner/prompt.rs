//! Prompts: what a model is told of a session's history, by ADK's rules. Pure; knows no store.
//!
//! Invariant of every prompt, whatever the history: a call has exactly one response, in the content
//! directly behind the call's, and a response has its call there. So a history may be cut at its
//! front anywhere: responses whose call is gone are dropped.
//!
//! The rules, in the order in which they apply:
//! * **Order.** A model reply stands where its prompt was built (`seen`), not where it was stored:
//!   what the model had not been told stands behind its words. All else stands where it is stored.
//! * **Sight.** The frame of a root agent sees what users wrote and the frames of that agent in all
//!   invocations; any other frame sees itself only. Events that say nothing, or only thoughts, and
//!   responses without a call before them are dropped, and so are ADK's own questions to people for
//!   a confirmation or a credential, with their answers. An id that was used twice means the newest
//!   call before the response (ADK).
//! * **Pairs.** Behind a content with calls stands one content with the last response of each, in
//!   the order in which first responses arrived: a later one takes its predecessor's place. A call
//!   without any response is told as pending if it is held, and dropped otherwise.
//! * **Stale words.** A model's text between two consecutive responses to one call, by the same
//!   author in the same invocation, speaks of what is no longer so, and is dropped.
//! * **The cut.** If the newest event of the invocation is a response event, this request ends
//!   with the newest call that it answers: what was said behind that call is hidden, so that the
//!   model reacts to the answer and not to the chat since. ADK hides all of it; here what nobody
//!   has reacted to is never hidden: a call stays if a response to it is untold (no reply of the
//!   call's frame has seen it), and so does a user's text that no reply has seen. Pairs before the
//!   cut show the last response too, wherever it was stored. Hence no answer and no message is ever
//!   lost to a race, while several answers that arrived together are all in the prompt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::session::approval::{CONFIRMATION, CREDENTIAL};
use crate::session::content::{
    Content, Data, Event, FunctionCall, FunctionResponse, Object, Part, Role,
};
use crate::session::id::{CallId, FrameId, InvocationId};

#[cfg(test)]
mod tests;

/// An event with what its log knows of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    /// The event.
    pub event: Arc<Event>,
    /// Where it stands in the log.
    pub position: u64,
    /// Of a model's reply: the position that its prompt was built from, before its own. None for
    /// all other events, and for a failed model call, which has seen nothing.
    pub seen: Option<u64>,
}

/// Whom a prompt is for.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The invocation that goes on.
    pub invocation: &'a InvocationId,
    /// The frame in it whose model is asked.
    pub frame: &'a FrameId,
}

/// The conversation for a model request. `held` are the calls to be told as pending if they have no
/// response yet.
pub fn build(history: &[Told], to: Frame<'_>, held: &BTreeSet<CallId>) -> Vec<Content> {
    let lines = lines(history, to);
    let stale = stale(&lines);
    let cut = cut(&lines, to);
    let heard = Heard::of(history, to);
    let mut contents = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let hidden = cut.is_some_and(|cut| at > cut) && !heard.is_untold(line);
        if !hidden && !stale.contains(&at) {
            line.say(held, &mut contents);
        }
    }
    contents
}

/// The calls of this very frame that have a response which no reply of the frame has seen: what the
/// next reply reacts to. All of them stand in the prompt.
pub fn news(history: &[Told], to: Frame<'_>) -> BTreeSet<CallId> {
    let heard = Heard::of(history, to);
    let lines = lines(history, to);
    let own = |event: &Event| {
        event.invocation_id == *to.invocation && event.frame.as_ref() == Some(to.frame)
    };
    let untold = lines.iter().filter(|line| own(&line.told.event)).flat_map(|line| {
        let last = heard.by_frame(line.told);
        line.answers.iter().filter(move |answer| answer.told.position > last)
    });
    untold.map(|answer| answer.response.id.clone()).collect()
}

/// One event, sorted into the conversation.
struct Line<'a> {
    told: &'a Told,
    role: Role,
    /// What it says itself: all parts but its responses.
    parts: Vec<&'a Part>,
    /// The newest line whose call it answers.
    answered: Option<usize>,
    /// The responses to its own calls, as they came.
    answers: Vec<Answer<'a>>,
}

/// A response, kept with the line whose call it answers.
struct Answer<'a> {
    /// The line that brought it.
    line: usize,
    told: &'a Told,
    response: &'a FunctionResponse,
    part: &'a Part,
    /// What was said beside it.
    beside: Vec<&'a Part>,
}

fn visible(event: &Event, to: Frame<'_>, root: Option<&str>) -> bool {
    match (root, &event.frame) {
        (Some(_), None) => true,
        (Some(root), Some(frame)) => frame.agent_path() == root,
        (None, None) => false,
        (None, Some(frame)) => frame == to.frame && event.invocation_id == *to.invocation,
    }
}

/// What the frame sees, in its order.
fn seen_by<'a>(history: &'a [Told], to: Frame<'_>) -> Vec<&'a Told> {
    let path = to.frame.agent_path();
    let root = (!path.contains('/')).then_some(path.as_str());
    let mut seen: Vec<&Told> =
        history.iter().filter(|told| visible(&told.event, to, root)).collect();
    seen.sort_by_key(|told| (told.seen.unwrap_or(told.position), told.position));
    seen
}

fn lines<'a>(history: &'a [Told], to: Frame<'_>) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    let mut callers: BTreeMap<&CallId, usize> = BTreeMap::new();
    for told in seen_by(history, to) {
        let Some(content) = &told.event.content else { continue };
        let at = lines.len();
        let (mut parts, mut answered) = (Vec::new(), None);
        // A call of this name that a model made itself is a call like any other: it has failed, and
        // the model must hear so.
        let hidden = |part: &Part| told.seen.is_none() && asks_people(part);
        for part in content.parts.iter().filter(|part| !hidden(part)) {
            let Some(response) = part.response() else {
                parts.push(part);
                continue;
            };
            if let Some(&caller) = callers.get(&response.id) {
                let answer = Answer { line: at, told, response, part, beside: Vec::new() };
                lines[caller].answers.push(answer);
                answered = answered.max(Some(caller));
            }
        }
        let calls = content.calls().next().is_some();
        if let (Some(caller), false) = (answered, calls) {
            // Nothing may stand between a call and its response, so this goes with the response.
            let last = lines[caller].answers.last_mut().expect("it was just answered");
            last.beside = std::mem::take(&mut parts);
        }
        let visible = parts.iter().filter_map(|part| part.call());
        callers.extend(visible.map(|call| (&call.id, at)));
        lines.push(Line { told, role: content.role, parts, answered, answers: Vec::new() });
    }
    lines
}

/// The lines with words that later responses made untrue (ADK drops them from the history).
fn stale(lines: &[Line<'_>]) -> BTreeSet<usize> {
    let mut stale = BTreeSet::new();
    for line in lines {
        let mut last: BTreeMap<&CallId, &Answer<'_>> = BTreeMap::new();
        for answer in &line.answers {
            let Some(before) = last.insert(&answer.response.id, answer) else { continue };
            let (a, b) = (&before.told.event, &answer.told.event);
            if a.author != b.author || a.invocation_id != b.invocation_id {
                continue;
            }
            let between = before.line + 1..answer.line.max(before.line + 1);
            stale.extend(between.filter(|&at| {
                let line = &lines[at];
                line.role == Role::Model
                    && line.answered.is_none()
                    && line.told.event.invocation_id == a.invocation_id
                    && !line.parts.iter().any(|part| part.call().is_some())
            }));
        }
    }
    stale
}

/// The line behind which this request hides what is told: none if the invocation's newest event is
/// no response event.
fn cut(lines: &[Line<'_>], to: Frame<'_>) -> Option<usize> {
    let own = lines.iter().filter(|line| line.told.event.invocation_id == *to.invocation);
    let mut telling = own.filter(|line| line.answered.is_some() || !silent(&line.parts));
    telling.next_back()?.answered
}

/// How far replies have seen the log.
struct Heard<'a> {
    /// The last reply of each frame.
    frames: BTreeMap<(&'a InvocationId, Option<&'a FrameId>), u64>,
    /// The last reply of any.
    any: u64,
}

impl<'a> Heard<'a> {
    fn of(history: &'a [Told], to: Frame<'_>) -> Self {
        let mut heard = Self { frames: BTreeMap::new(), any: 0 };
        for told in seen_by(history, to) {
            // An imported reply does not say what it has seen: all before it. A question to people
            // is in a model's name, and none of its words.
            let words = |c: &Content| {
                c.role == Role::Model && c.parts.iter().any(|part| !asks_people(part))
            };
            let model = told.event.content.as_ref().is_some_and(words);
            let Some(seen) = told.seen.or(model.then_some(told.position)) else { continue };
            let key = (&told.event.invocation_id, told.event.frame.as_ref());
            let last = heard.frames.entry(key).or_default();
            *last = seen.max(*last);
            heard.any = seen.max(heard.any);
        }
        heard
    }

    /// What the frame of this event has seen.
    fn by_frame(&self, told: &Told) -> u64 {
        let key = (&told.event.invocation_id, told.event.frame.as_ref());
        self.frames.get(&key).copied().unwrap_or(0)
    }

    /// Nobody has reacted to this line, or to a response to its calls.
    fn is_untold(&self, line: &Line<'_>) -> bool {
        let told = self.by_frame(line.told);
        let message = line.role == Role::User && line.told.position > self.any;
        message || line.answers.iter().any(|answer| answer.told.position > told)
    }
}

impl Line<'_> {
    /// The last response to each call, at the place of its first.
    fn latest(&self) -> Vec<&Answer<'_>> {
        let mut places: BTreeMap<&CallId, usize> = BTreeMap::new();
        let mut latest: Vec<&Answer<'_>> = Vec::new();
        for answer in &self.answers {
            let place = *places.entry(&answer.response.id).or_insert(latest.len());
            match latest.get_mut(place) {
                Some(before) => *before = answer,
                None => latest.push(answer),
            }
        }
        latest
    }

    /// Says the line, and the responses to its calls directly behind it.
    fn say(&self, held: &BTreeSet<CallId>, contents: &mut Vec<Content>) {
        let latest = self.latest();
        let answered: BTreeSet<&CallId> = latest.iter().map(|answer| &answer.response.id).collect();
        let mut said: BTreeSet<&CallId> = BTreeSet::new();
        let mut pending = Vec::new();
        let mut parts = Vec::new();
        for part in &self.parts {
            if let Some(call) = part.call() {
                let is_answered = answered.contains(&call.id);
                if !(is_answered || held.contains(&call.id)) || !said.insert(&call.id) {
                    continue;
                }
                if !is_answered {
                    pending.push(made_up(call));
                }
            }
            parts.push(*part);
        }
        if silent(&parts) {
            return;
        }
        let parts = parts.into_iter().cloned().collect();
        contents.push(Content { role: self.role, parts });
        let beside = latest.iter().flat_map(|answer| &answer.beside).map(|part| (*part).clone());
        let responses = latest.iter().map(|answer| answer.told_part());
        let responses: Vec<Part> = responses.chain(pending).chain(beside).collect();
        if !responses.is_empty() {
            contents.push(Content { role: Role::User, parts: responses });
        }
    }
}

impl Answer<'_> {
    /// The part as a model is told it: whether more is to come is between us and who answers.
    fn told_part(&self) -> Part {
        let response = FunctionResponse { will_continue: None, ..self.response.clone() };
        Part { data: Some(Data::FunctionResponse(response)), ..self.part.clone() }
    }
}

/// What stands beside a held call that has no response yet; never stored.
fn made_up(call: &FunctionCall) -> Part {
    let response: Object = Map::from_iter([("status".to_owned(), Value::from("pending"))]);
    let (id, name) = (call.id.clone(), call.name.clone());
    let response = FunctionResponse { id, name, response: Some(response), will_continue: None };
    Part::new(Data::FunctionResponse(response))
}

/// Whether a part belongs to a question that ADK asks people in a model's name, not to the model's
/// own words.
fn asks_people(part: &Part) -> bool {
    part.call().is_some_and(|call| [CONFIRMATION, CREDENTIAL].contains(&call.name.as_str()))
}

/// Whether the parts tell a model nothing: there are none, or only thoughts and empty texts.
fn silent(parts: &[&Part]) -> bool {
    parts.iter().all(|part| match &part.data {
        None => true,
        Some(Data::FunctionCall(_) | Data::FunctionResponse(_)) => false,
        Some(Data::Text(text)) => part.thought || text.is_empty(),
        Some(_) => part.thought,
    })
}
