//! Texts with `${name}` places, in scripts and in objects that an agent file declares.
//!
//! `$$` stands for one `$`, so `$${id}` is the text `${id}`, and `$$${amount}` is a dollar sign
//! before an amount. A `$` before anything else stands for itself. What fills a place is never
//! looked through for places again.

use serde_json::{Number, Value};

use crate::session::content::Object;
use crate::session::json;

/// Why a text with places cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `${` without `}`.
    #[error("`${{` is not closed by `}}`; write `$${{` for the text itself")]
    Open,
    /// The name in a place is empty or holds something else than letters, digits, `_`, `-`, `.`.
    #[error("a place is written `${{name}}`; write `$${{` for the text itself")]
    Name,
}

/// A piece of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text as it is.
    Text(&'a str),
    /// A place with this name.
    Place(&'a str),
}

/// Takes a text apart.
pub fn pieces(text: &str) -> Result<Vec<Piece<'_>>, Error> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(found) = text[at..].find('$').map(|i| at + i) {
        let rest = &text[found + 1..];
        let (end, piece) = if rest.starts_with('$') {
            (found + 2, Piece::Text(&text[found..=found]))
        } else if let Some(inside) = rest.strip_prefix('{') {
            let name = &inside[..inside.find('}').ok_or(Error::Open)?];
            let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
            if name.is_empty() || !name.chars().all(plain) {
                return Err(Error::Name);
            }
            (found + 2 + name.len() + 1, Piece::Place(name))
        } else {
            at = found + 1;
            continue;
        };
        if start < found {
            pieces.push(Piece::Text(&text[start..found]));
        }
        pieces.push(piece);
        (start, at) = (end, end);
    }
    if start < text.len() {
        pieces.push(Piece::Text(&text[start..]));
    }
    Ok(pieces)
}

/// Fills the places of a text. A text that is one place and nothing else becomes the value with
/// its JSON type; otherwise values are written into the text. `get` gives the value of a name; null
/// stands where there is none. A text that cannot be read stays as it is.
pub fn fill(text: &str, get: &mut dyn FnMut(&str) -> Option<Value>) -> Value {
    match pieces(text).as_deref() {
        Ok([Piece::Place(name)]) => get(name).unwrap_or_default(),
        Ok(pieces) => Value::String(join(pieces, get)),
        Err(_) => Value::String(text.to_owned()),
    }
}

/// Fills the places of a text with texts; what is absent or null leaves nothing.
pub fn fill_text(text: &str, get: &mut dyn FnMut(&str) -> Option<Value>) -> String {
    match pieces(text) {
        Ok(pieces) => join(&pieces, get),
        Err(_) => text.to_owned(),
    }
}

/// Fills the places of all texts in an object, at every level; keys stay as they are.
pub fn fill_object(template: &Object, get: &mut dyn FnMut(&str) -> Option<Value>) -> Object {
    template.iter().map(|(key, value)| (key.clone(), fill_value(value, get))).collect()
}

/// The object that a tool declared in a file returns: `${args.NAME}` is the call's argument (null
/// if it is absent), `${id}` a fresh id, the same at every place of this object.
pub fn render(template: &Object, args: &Object, mut fresh_id: impl FnMut() -> String) -> Object {
    let mut id = None;
    fill_object(template, &mut |name| match name.strip_prefix("args.") {
        Some(arg) => args.get(arg).cloned(),
        None if name == "id" => Some(Value::String(id.get_or_insert_with(&mut fresh_id).clone())),
        None => None,
    })
}

/// What a text that a script captured is worth: a number if it reads as a JSON number, thousands
/// commas aside (`1,200.50`), or else the text.
pub fn captured(text: &str) -> Value {
    let plain = without_commas(text);
    match json::parse(plain.as_deref().unwrap_or(text), 0) {
        Ok(Value::Number(number)) if !text.contains(char::is_whitespace) => number.into(),
        _ => Value::String(text.to_owned()),
    }
}

/// How a value stands in a text: a text as it is, null as nothing, all else as JSON.
pub fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The number that a captured text reads as.
pub fn number_of(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(number.clone()),
        Value::String(text) => match captured(text) {
            Value::Number(number) => Some(number),
            _ => None,
        },
        _ => None,
    }
}

fn join(pieces: &[Piece<'_>], get: &mut dyn FnMut(&str) -> Option<Value>) -> String {
    let text = |piece: &Piece<'_>| match piece {
        Piece::Text(text) => (*text).to_owned(),
        Piece::Place(name) => get(name).as_ref().map(text_of).unwrap_or_default(),
    };
    pieces.iter().map(text).collect()
}

fn fill_value(value: &Value, get: &mut dyn FnMut(&str) -> Option<Value>) -> Value {
    match value {
        Value::String(text) => fill(text, get),
        Value::Array(items) => items.iter().map(|item| fill_value(item, get)).collect(),
        Value::Object(object) => Value::Object(fill_object(object, get)),
        other => other.clone(),
    }
}

/// `1,200.50` as `1200.50`: a group of one to three digits, then groups of three.
fn without_commas(text: &str) -> Option<String> {
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut groups = whole.split(',');
    let first = groups.next().filter(|first| (1..=3).contains(&first.len()))?;
    let digits = |group: &str| group.bytes().all(|b| b.is_ascii_digit());
    let threes = groups.clone().all(|group| group.len() == 3 && digits(group));
    let commas = groups.next().is_some() && digits(first) && threes;
    commas.then(|| whole.replace(',', "") + rest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(text: &str) -> Value {
        fill(text, &mut |name| match name {
            "n" => Some("15.50".parse::<Number>().unwrap().into()),
            "t" => Some(json!("${n}")),
            "o" => Some(json!({"a": 1})),
            _ => None,
        })
    }

    #[test]
    fn a_place_alone_keeps_its_type_and_others_become_text() {
        assert_eq!(filled("${n}").to_string(), "15.50");
        assert_eq!(filled("${o}"), json!({"a": 1}));
        assert_eq!(filled("${none}"), json!(null));
        assert_eq!(filled("$$${n} for ${t}: ${o}${none}"), json!("$15.50 for ${n}: {\"a\":1}"));
        assert_eq!(filled("$${n} costs $5, 3$"), json!("${n} costs $5, 3$"));
        assert_eq!(filled("ä${n}ü$$"), json!("ä15.50ü$"));
        assert_eq!(pieces("${n"), Err(Error::Open));
        assert_eq!(pieces("${}"), Err(Error::Name));
        assert_eq!(pieces("${a b}"), Err(Error::Name));
    }

    #[test]
    fn a_rendered_object_has_one_fresh_id() {
        let template = json!({"a": ["${args.x}", {"b": "t-${id}"}], "id": "${id}", "c": 1});
        let Value::Object(template) = template else { unreachable!() };
        let Value::Object(args) = json!({"x": {"y": 1}}) else { unreachable!() };
        let mut count = 0;
        let mut fresh = || {
            count += 1;
            count.to_string()
        };
        let made = Value::Object(render(&template, &args, &mut fresh));
        assert_eq!(made, json!({"a": [{"y": 1}, {"b": "t-1"}], "id": "1", "c": 1}));
        let made = Value::Object(render(&template, &Object::new(), &mut fresh));
        assert_eq!(made, json!({"a": [null, {"b": "t-2"}], "id": "2", "c": 1}));
    }

    #[test]
    fn captured_texts_read_as_numbers() {
        let read = |text| captured(text).to_string();
        assert_eq!(read("15.50"), "15.50");
        assert_eq!(read("1,200.50"), "1200.50");
        assert_eq!(read("12,345,678"), "12345678");
        assert_eq!(captured("1e2"), json::parse("1e2", 0).unwrap());
        for text in ["", " 1", "007", "1,20", "1200,500", "1,2000", ",100", "1e999999", "1.", "a,b"]
        {
            assert_eq!(captured(text), json!(text));
        }
    }
}
