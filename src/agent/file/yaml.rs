//! YAML as a tree in which everything has its place.
//!
//! Taken is what an agent file needs: one document, scalars of the YAML 1.2 core schema, lists and
//! maps with scalar keys. Anchors, aliases and tags are refused, so that a small file stays a small
//! tree.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Number, Value};

use super::Faults;
use crate::session::json::{self, Place};

#[cfg(test)]
mod tests;

/// Deepest nesting of a file, in levels.
pub(super) const MAX_DEPTH: usize = 64;

/// Largest file, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// A part of the tree.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: Place,
    pub(super) kind: Kind,
}

/// What a node is.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key of a map.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) at: Place,
    pub(super) text: String,
}

impl Node {
    /// What it is, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "true or false",
            Kind::Number(_) => "a number",
            Kind::Text(_) => "a text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }

    /// The entries of a map.
    pub(super) fn entries(&self) -> &[(Key, Node)] {
        match &self.kind {
            Kind::Map(entries) => entries,
            _ => &[],
        }
    }

    /// The value of a key of a map.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|(k, _)| k.text == key).map(|(_, node)| node)
    }

    /// The same as JSON.
    pub(super) fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Number(number) => Value::Number(number.clone()),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(items) => items.iter().map(Node::to_json).collect(),
            Kind::Map(entries) => {
                entries.iter().map(|(key, node)| (key.text.clone(), node.to_json())).collect()
            }
        }
    }

    /// The node that a JSON pointer leads to, or the last one on the way.
    pub(super) fn follow(&self, pointer: &str) -> &Node {
        let mut node = self;
        for step in pointer.split('/').skip(1) {
            let step = step.replace("~1", "/").replace("~0", "~");
            let next = match &node.kind {
                Kind::List(items) => step.parse().ok().and_then(|i: usize| items.get(i)),
                _ => node.get(&step),
            };
            let Some(next) = next else { break };
            node = next;
        }
        node
    }
}

/// Reads a text. Faults are noted; there is no tree if the text cannot be read to its end.
pub(super) fn read(text: &str, faults: &mut Faults) -> Option<Node> {
    let start = Place { line: 1, column: 1 };
    if text.len() > MAX_BYTES {
        faults.add(start, format!("the file must not be larger than {MAX_BYTES} bytes"));
        return None;
    }
    let mut builder = Builder { faults, open: Vec::new(), root: None, documents: 0 };
    let mut parser = Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    while let Some(next) = parser.next_event() {
        match next {
            Ok((event, span)) => builder.event(event, span)?,
            Err(error) => {
                let marker = error.marker();
                let at = Place { line: marker.line().max(1), column: marker.col() + 1 };
                let bare = text.lines().nth(at.line - 1).is_some_and(bare_place);
                let hint = if bare { ": put a place in quotes inside { }" } else { "" };
                builder.faults.add(at, format!("this is no YAML: {}{hint}", error.info()));
                return None;
            }
        }
    }
    let root = builder.root;
    if root.is_none() {
        faults.add(start, "the file is empty".to_owned());
    }
    root
}

/// Whether a line has a place `${` without quotes inside a map or list in braces.
fn bare_place(line: &str) -> bool {
    let (mut quote, mut depth, mut last) = (None, 0_usize, ' ');
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '#') if last.is_whitespace() => return false,
            // Elsewhere a quote is a letter like others.
            (None, '\'' | '"') if matches!(last, ' ' | '{' | '[' | ',' | ':') => quote = Some(c),
            (None, '{') if last == '$' && depth > 0 => return true,
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => depth = depth.saturating_sub(1),
            _ => {}
        }
        last = c;
    }
    false
}

/// A list or a map whose end has not come yet.
struct Open {
    node: Node,
    /// In a map: the key whose value comes next.
    key: Option<Key>,
    /// In a map: the lines of its keys.
    lines: HashMap<String, usize>,
}

struct Builder<'a> {
    faults: &'a mut Faults,
    open: Vec<Open>,
    root: Option<Node>,
    documents: usize,
}

impl Builder<'_> {
    /// Takes one event; none: reading on makes no sense.
    fn event(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        let at = Place { line: span.start.line().max(1), column: span.start.col() + 1 };
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return self.refuse(at, "a file must hold one document only".to_owned());
                }
            }
            Event::Alias(_) => {
                return self.refuse(at, "aliases are not supported: write it out".to_owned());
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.plain(at, anchor, tag.is_some());
                if self.expects_key() {
                    self.key(Key { at, text: text.into_owned() });
                } else {
                    let kind = self.scalar(at, &text, style);
                    self.put(Node { at, kind });
                }
            }
            Event::SequenceStart(anchor, tag) => {
                self.plain(at, anchor, tag.is_some());
                self.begin(at, Kind::List(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                self.plain(at, anchor, tag.is_some());
                self.begin(at, Kind::Map(Vec::new()))?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let open = self.open.pop()?;
                self.put(open.node);
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Some(())
    }

    fn refuse(&mut self, at: Place, message: String) -> Option<()> {
        self.faults.add(at, message);
        None
    }

    fn plain(&mut self, at: Place, anchor: usize, tagged: bool) {
        if anchor > 0 {
            self.faults.add(at, "anchors are not supported".to_owned());
        }
        if tagged {
            self.faults.add(at, "tags are not supported: quote what is meant as text".to_owned());
        }
    }

    fn expects_key(&self) -> bool {
        let map = |open: &Open| matches!(open.node.kind, Kind::Map(_)) && open.key.is_none();
        self.open.last().is_some_and(map)
    }

    fn begin(&mut self, at: Place, kind: Kind) -> Option<()> {
        if self.expects_key() {
            return self.refuse(at, "a key must be a text".to_owned());
        }
        if self.open.len() == MAX_DEPTH {
            return self.refuse(at, format!("the file nests deeper than {MAX_DEPTH} levels"));
        }
        self.open.push(Open { node: Node { at, kind }, key: None, lines: HashMap::new() });
        Some(())
    }

    fn key(&mut self, key: Key) {
        let Some(open) = self.open.last_mut() else {
            return;
        };
        if let Some(line) = open.lines.insert(key.text.clone(), key.at.line) {
            let text = &key.text;
            self.faults.add(key.at, format!("`{text}` stands here already, in line {line}"));
        }
        open.key = Some(key);
    }

    fn put(&mut self, node: Node) {
        let Some(open) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match (&mut open.node.kind, open.key.take()) {
            (Kind::List(items), _) => items.push(node),
            (Kind::Map(entries), Some(key)) => entries.push((key, node)),
            _ => {}
        }
    }

    fn scalar(&mut self, at: Place, text: &str, style: ScalarStyle) -> Kind {
        if style != ScalarStyle::Plain {
            return Kind::Text(text.to_owned());
        }
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Kind::Null,
            "true" | "True" | "TRUE" => return Kind::Bool(true),
            "false" | "False" | "FALSE" => return Kind::Bool(false),
            _ => {}
        }
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        if matches!(unsigned, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN")
        {
            self.faults.add(at, "there is no such number in JSON: quote it".to_owned());
            return Kind::Null;
        }
        let Some(number) = json_number(text) else {
            return Kind::Text(text.to_owned());
        };
        match json::parse(&number, 0) {
            Ok(Value::Number(number)) => Kind::Number(number),
            _ => {
                let most = json::MAX_DIGITS;
                self.faults.add(at, format!("a number must not have more than {most} digits"));
                Kind::Null
            }
        }
    }
}

/// A number of YAML's core schema in JSON's spelling; none if the text is no number.
fn json_number(text: &str) -> Option<String> {
    for (prefix, radix) in [("0o", 8), ("0x", 16)] {
        if let Some(digits) = text.strip_prefix(prefix) {
            let plain = digits.chars().all(|c| c.is_digit(radix));
            return plain.then(|| u128::from_str_radix(digits, radix).ok())?.map(|n| n.to_string());
        }
    }
    let (sign, rest) = match text.as_bytes().first()? {
        b'-' => ("-", &text[1..]),
        b'+' => ("", &text[1..]),
        _ => ("", text),
    };
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], &rest[at..]),
        None => (rest, ""),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let power = exponent.get(1..).unwrap_or("0");
    let power = power.strip_prefix(['-', '+']).unwrap_or(power);
    let number = digits(whole) && digits(fraction) && digits(power) && !power.is_empty();
    if !number || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let whole = match whole.trim_start_matches('0') {
        "" => "0",
        whole => whole,
    };
    let point = if fraction.is_empty() { "" } else { "." };
    Some(format!("{sign}{whole}{point}{fraction}{exponent}"))
}
