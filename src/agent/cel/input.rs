//! What an expression sees: a call, converted once, and not before the first expression asks.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use ::cel::common::types::CelString;
use ::cel::common::value::{CowVal, Val};
use ::cel::context::VariableResolver;
use ::cel::objects::{Key, Map};
use serde_json::Number;

use super::check::Facts;
use super::{MAX_SEEN, MAX_SEEN_EACH, VALUE_BYTES};
use crate::session::content::Object;
use crate::session::json;

/// The call that is judged.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// Its effective arguments.
    pub args: &'a Object,
    /// Its tool's name.
    pub tool: &'a str,
    /// The agent that calls.
    pub agent: &'a str,
    /// The session's app.
    pub app: &'a str,
    /// The session's user.
    pub user: &'a str,
    /// The session's id.
    pub session: &'a str,
}

/// A call as expressions see it. Make one for all that judge the same call.
#[derive(Debug)]
pub struct Input<'a> {
    call: Call<'a>,
    seen: OnceLock<Seen>,
}

/// The arguments as values.
#[derive(Debug)]
struct Seen {
    args: Box<dyn Val>,
    /// What each argument counts.
    sizes: BTreeMap<String, usize>,
    /// The arguments that no expression can see.
    unseen: Vec<String>,
}

impl<'a> Input<'a> {
    /// The call, not converted yet.
    pub fn new(call: Call<'a>) -> Self {
        Self { call, seen: OnceLock::new() }
    }

    /// Whether an expression can see all that it asks for.
    pub(super) fn allow(&self, facts: &Facts) -> Result<(), String> {
        let named = facts.arguments.as_ref();
        if named.is_some_and(|named| named.is_empty()) {
            return Ok(());
        }
        let seen = self.seen();
        let asked = |key: &String| named.is_none_or(|named| named.contains(key));
        if let Some(key) = seen.unseen.iter().find(|key| asked(key)) {
            // The names of arguments are the model's words where a schema is open.
            let which = if named.is_some() { format!("`{key}`") } else { "an argument".to_owned() };
            return Err(format!("{which} has a number that is not exact as a double"));
        }
        let size: usize = seen.sizes.iter().filter(|(key, _)| asked(key)).map(|(_, n)| n).sum();
        let most = if facts.each { MAX_SEEN_EACH } else { MAX_SEEN };
        if size > most {
            return Err(format!("the arguments that it names are larger than {most} bytes"));
        }
        Ok(())
    }

    fn seen(&self) -> &Seen {
        self.seen.get_or_init(|| {
            let (mut map, mut sizes) = (HashMap::new(), BTreeMap::new());
            let mut unseen = Vec::new();
            for (key, value) in self.call.args {
                let mut size = VALUE_BYTES + key.len();
                match convert(value, &mut size) {
                    Converted::Value(value) => {
                        map.insert(Key::String(Arc::new(key.clone())), value);
                    }
                    // Too much for any expression: there is nothing to look at.
                    Converted::Large => {}
                    Converted::Inexact => unseen.push(key.clone()),
                }
                sizes.insert(key.clone(), size);
            }
            let map = ::cel::Value::Map(Map { map: Arc::new(map) });
            let args = map.try_into().expect("a map is a value");
            Seen { args, sizes, unseen }
        })
    }
}

impl VariableResolver for Input<'_> {
    fn resolve<'b>(&'b self, variable: &str) -> Option<CowVal<'b, 'b>> {
        let text = |text: &'b str| Some(CowVal::owned(CelString::from(text)));
        match variable {
            "args" => Some(CowVal::Borrowed(&*self.seen().args)),
            "tool" => text(self.call.tool),
            "agent" => text(self.call.agent),
            "app" => text(self.call.app),
            "user" => text(self.call.user),
            "session" => text(self.call.session),
            _ => None,
        }
    }
}

enum Converted {
    Value(::cel::Value),
    Large,
    Inexact,
}

/// A value of JSON as one of CEL. What it counts is added; the walk ends where that is too much.
fn convert(value: &serde_json::Value, size: &mut usize) -> Converted {
    use serde_json::Value as Json;
    *size += VALUE_BYTES;
    if *size > MAX_SEEN {
        return Converted::Large;
    }
    Converted::Value(match value {
        Json::Null => ::cel::Value::Null,
        Json::Bool(yes) => ::cel::Value::Bool(*yes),
        Json::Number(number) => match exactly(number) {
            Some(number) => number,
            None => return Converted::Inexact,
        },
        Json::String(text) => {
            *size += text.len();
            if *size > MAX_SEEN {
                return Converted::Large;
            }
            ::cel::Value::String(Arc::new(text.clone()))
        }
        Json::Array(items) => {
            let mut list = Vec::new();
            for item in items {
                match convert(item, size) {
                    Converted::Value(item) => list.push(item),
                    other => return other,
                }
            }
            ::cel::Value::List(Arc::new(list))
        }
        Json::Object(object) => {
            let mut map = HashMap::new();
            for (key, value) in object {
                *size += key.len();
                match convert(value, size) {
                    Converted::Value(value) => {
                        map.insert(Key::String(Arc::new(key.clone())), value);
                    }
                    other => return other,
                }
            }
            ::cel::Value::Map(Map { map: Arc::new(map) })
        }
    })
}

/// A number that says the same as this one. A double does if it is written with the same digits:
/// then no two numbers become one, and their order stays.
fn exactly(number: &Number) -> Option<::cel::Value> {
    if let Some(integer) = number.as_i64() {
        return Some(::cel::Value::Int(integer));
    }
    let double = number.as_f64().filter(|double| double.is_finite())?;
    let written = Number::from_f64(double)?;
    json::compare(number, &written).is_eq().then_some(::cel::Value::Float(double))
}
