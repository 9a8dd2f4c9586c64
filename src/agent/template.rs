//! Filling `${name}` places in JSON. The scripted model and tools declared in a file share it.
//!
//! A text that is one place alone becomes its value, with its JSON type; other texts have their
//! places filled as text. Right before a `{`, `$$` writes one `$`: `$${` is the text `${`, and
//! `$$${amount}` a dollar sign before an amount. What was filled in is never looked at again, so
//! values cannot smuggle places in. Keys are left alone.

use serde_json::Value;

use crate::session::content::Object;

/// Where a place stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the whole text: the value keeps its type.
    Alone,
    /// There is other text beside it.
    Within,
}

/// The object with all places filled. A place without value becomes an empty text.
pub fn render(template: &Object, lookup: &mut dyn FnMut(&str) -> Option<Value>) -> Object {
    render_by_place(template, &mut |name, _| lookup(name))
}

/// The same for values that differ by where they are filled in.
pub fn render_by_place(
    template: &Object,
    lookup: &mut dyn FnMut(&str, Place) -> Option<Value>,
) -> Object {
    template.iter().map(|(key, value)| (key.clone(), fill(value, lookup))).collect()
}

/// The text with all places filled as text: texts as they are, null and what is missing as nothing,
/// all else as JSON.
pub fn text(template: &str, lookup: &mut dyn FnMut(&str) -> Option<Value>) -> String {
    let mut filled = String::with_capacity(template.len());
    for piece in pieces(template) {
        match piece {
            Piece::Text(text) => filled.push_str(text),
            Piece::Place(name) => match lookup(name) {
                None | Some(Value::Null) => {}
                Some(Value::String(text)) => filled.push_str(&text),
                Some(other) => filled.push_str(&other.to_string()),
            },
        }
    }
    filled
}

/// The names of all places in the value, each once, in order.
pub fn places(value: &Value) -> Vec<String> {
    let mut names = Vec::new();
    gather(value, &mut names);
    names
}

/// The names of all places in a text; strictly: what begins like a place and is none is an error.
/// Texts that people write in files are checked so, while filling takes it as text.
pub fn check(text: &str) -> Result<Vec<&str>, Error> {
    let (mut names, mut rest) = (Vec::new(), text);
    while let Some((piece, after)) = next(rest) {
        match piece {
            Piece::Place(name) => names.push(name),
            Piece::Text("$") if rest.starts_with("${") => return Err(Error),
            Piece::Text(_) => {}
        }
        rest = after;
    }
    Ok(names)
}

/// What begins like a place and is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a place is written `${{name}}`; for the text `${{` itself write `$${{`")]
pub struct Error;

/// The value at `a.b.c` in an object; a key that has dots itself is found first.
pub fn at(object: &Object, path: &str) -> Option<Value> {
    if let Some(value) = object.get(path) {
        return Some(value.clone());
    }
    path.match_indices('.').find_map(|(dot, _)| {
        let inner = object.get(&path[..dot])?.as_object()?;
        at(inner, &path[dot + 1..])
    })
}

fn gather(value: &Value, names: &mut Vec<String>) {
    match value {
        Value::String(text) => {
            for piece in pieces(text) {
                if let Piece::Place(name) = piece
                    && !names.iter().any(|known| known == name)
                {
                    names.push(name.to_owned());
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, names)),
        Value::Object(object) => object.values().for_each(|value| gather(value, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn fill(value: &Value, lookup: &mut dyn FnMut(&str, Place) -> Option<Value>) -> Value {
    match value {
        Value::String(template) => match lone(template) {
            Some(name) => lookup(name, Place::Alone).unwrap_or_else(|| Value::from("")),
            None => text(template, &mut |name| lookup(name, Place::Within)).into(),
        },
        Value::Array(items) => items.iter().map(|item| fill(item, lookup)).collect(),
        Value::Object(object) => render_by_place(object, lookup).into(),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// The name of the place that is the whole text.
fn lone(template: &str) -> Option<&str> {
    let mut pieces = pieces(template);
    match (pieces.next(), pieces.next()) {
        (Some(Piece::Place(name)), None) => Some(name),
        _ => None,
    }
}

enum Piece<'a> {
    Text(&'a str),
    Place(&'a str),
}

/// The template, taken apart. What looks like a place and has no name in it is text.
fn pieces(template: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = template;
    std::iter::from_fn(move || {
        let (piece, after) = next(rest)?;
        rest = after;
        Some(piece)
    })
}

/// The first piece, and what stands behind it.
fn next(text: &str) -> Option<(Piece<'_>, &str)> {
    let dollars = text.bytes().take_while(|b| *b == b'$').count();
    if dollars == 0 {
        let (plain, after) = text.split_at(text.find('$').unwrap_or(text.len()));
        return (!plain.is_empty()).then_some((Piece::Text(plain), after));
    }
    let (run, after) = text.split_at(dollars);
    if !after.starts_with('{') {
        return Some((Piece::Text(run), after));
    }
    match dollars {
        1 => {
            let place = after[1..].split_once('}').filter(|(name, _)| is_name(name));
            Some(
                place
                    .map_or((Piece::Text(run), after), |(name, after)| (Piece::Place(name), after)),
            )
        }
        // The brace goes with its escaped dollar, so that what follows is no place.
        2 => Some((Piece::Text(&text[1..3]), &text[3..])),
        _ => Some((Piece::Text("$"), &text[2..])),
    }
}

/// Letters, digits, `_`, `-`, and `.` between keys.
fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    !name.is_empty() && name.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lookup(name: &str) -> Option<Value> {
        let exact = serde_json::from_str("12345678901234567890.10").ok();
        match name {
            "n" => exact,
            "s" => Some("té${n}xt".into()),
            "o" => Some(json!({"a": [1, null]})),
            "null" => Some(Value::Null),
            _ => None,
        }
    }

    fn filled(template: Value) -> Value {
        let template = json!({"x": template});
        render(template.as_object().unwrap(), &mut lookup)["x"].take()
    }

    #[test]
    fn a_lone_place_keeps_its_type() {
        assert_eq!(filled(json!("${n}")).to_string(), "12345678901234567890.10");
        assert_eq!(
            filled(json!(["${o}", {"k": "${s}"}])),
            json!([{"a": [1, null]}, {"k": "té${n}xt"}])
        );
        assert_eq!(filled(json!("${null}")), Value::Null);
        assert_eq!(filled(json!("${missing}")), json!(""));
        assert_eq!(filled(json!([1, true, null])), json!([1, true, null]));
    }

    #[test]
    fn other_texts_are_filled_as_text() {
        let of = |template: &str| text(template, &mut lookup);
        assert_eq!(of("é ${n}, ${s}!"), "é 12345678901234567890.10, té${n}xt!");
        assert_eq!(of("${o}${null}${missing}"), r#"{"a":[1,null]}"#);
        assert_eq!(of("$${n} $$5 $ ${} ${a b} ${ü${n"), "${n} $$5 $ ${} ${a b} ${ü${n");
        assert_eq!(filled(json!("$${n}")), json!("${n}"));
        assert_eq!(of("$$${s}, $$$${n}, $$$$${s}"), "$té${n}xt, $${n}, $$té${n}xt");
        assert_eq!(filled(json!("${n} EUR")), json!("12345678901234567890.10 EUR"));
    }

    #[test]
    fn places_are_listed_once_in_order() {
        let value = json!(["${b} ${a.c}", {"k": "${b}", "l": "$${no} ${d}"}, 5]);
        assert_eq!(places(&value), ["b", "a.c", "d"]);
    }

    #[test]
    fn what_begins_like_a_place_is_checked_strictly() {
        assert_eq!(check("$${no} $5 $$ ${a.b}$$${c}$"), Ok(vec!["a.b", "c"]));
        for wrong in ["${", "x ${a", "${}", "${a b}", "$$${a"] {
            assert_eq!(check(wrong), Err(Error), "{wrong}");
        }
    }

    #[test]
    fn values_are_found_by_path() {
        let object = json!({"a.b": 1, "a": {"c.d": 2, "e": {"f": 3}}});
        let found = |path| at(object.as_object().unwrap(), path);
        let all = (found("a.b"), found("a.c.d"), found("a.e.f"), found("a.x"), found("x"));
        assert_eq!(all, (Some(json!(1)), Some(json!(2)), Some(json!(3)), None, None));
    }
}
