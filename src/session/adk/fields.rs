//! Fields of JSON objects by name, in both spellings, with the paths of what is wrong with them.

use std::borrow::Cow;

use serde_json::Value;

use crate::session::content::Object;
use crate::session::json::{self, MAX_DEPTH};
use crate::session::keys::MAX_KEY_BYTES;
use crate::session::refusal::Violation;

/// How many faults are collected; more are not looked at.
const MAX_FAULTS: usize = 1000;

/// An object with its path.
pub(super) struct Fields<'a> {
    object: &'a Object,
    path: String,
}

impl<'a> Fields<'a> {
    pub fn new(object: &'a Object, path: String) -> Self {
        Self { object, path }
    }

    /// The value of a field, which is named in camelCase here, and its path as it is spelled there.
    /// Null is nothing.
    pub fn get(&self, name: &str) -> Option<(&'a Value, String)> {
        let name = self.spelling(name);
        let value = self.object.get(&*name).filter(|value| !value.is_null())?;
        Some((value, self.path(&name)))
    }

    /// A name as it is spelled in the object.
    fn spelling<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let said = |name: &str| self.object.get(name).is_some_and(|value| !value.is_null());
        let other = Some(name).filter(|name| !said(name)).map(snake).filter(|name| said(name));
        other.map_or(Cow::Borrowed(name), Cow::Owned)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter()
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        format!("{}.{}", self.path, self.spelling(name))
    }
}

pub(super) fn snake(camel: &str) -> String {
    let mut snake = String::with_capacity(camel.len() + 4);
    for c in camel.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Reads values, and collects what is wrong with them. What gives nothing has said why, or there
/// was nothing.
#[derive(Default)]
pub(super) struct Reader {
    pub faults: Vec<Violation>,
}

impl Reader {
    /// Notes a fault.
    pub fn fault(&mut self, path: impl Into<String>, rule: impl Into<String>) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Violation { field: path.into(), rule: rule.into() });
        }
    }

    /// An object whose JSON nests so deep at most.
    pub fn object(&mut self, value: &Value, path: &str, depth: usize) -> Option<Object> {
        let Value::Object(object) = value else {
            self.fault(path, "must be an object");
            return None;
        };
        self.json(value, path, depth)?;
        Some(object.clone())
    }

    /// State, or changes of it.
    pub fn state(&mut self, value: &Value, path: &str) -> Option<Object> {
        let state = self.object(value, path, MAX_DEPTH)?;
        if state.keys().any(|key| key.is_empty() || key.len() > MAX_KEY_BYTES) {
            self.fault(path, format!("must have keys of 1 to {MAX_KEY_BYTES} bytes"));
        }
        Some(state)
    }

    /// Any JSON that nests so deep at most.
    pub fn json(&mut self, value: &Value, path: &str, depth: usize) -> Option<Value> {
        match json::check(value, depth) {
            Ok(()) => Some(value.clone()),
            Err(wrong) => {
                self.fault(path, wrong.to_string());
                None
            }
        }
    }

    /// The object under a name, as fields.
    pub fn fields<'a>(&mut self, of: &Fields<'a>, name: &str) -> Option<Fields<'a>> {
        let (value, path) = of.get(name)?;
        match value {
            Value::Object(object) => Some(Fields::new(object, path)),
            _ => {
                self.fault(path, "must be an object");
                None
            }
        }
    }

    /// The list under a name, with its path.
    pub fn list<'a>(&mut self, of: &Fields<'a>, name: &str) -> Option<(&'a Vec<Value>, String)> {
        let (value, path) = of.get(name)?;
        match value {
            Value::Array(list) => Some((list, path)),
            _ => {
                self.fault(path, "must be a list");
                None
            }
        }
    }

    /// The text under a name; empty if there is none.
    pub fn text(&mut self, of: &Fields<'_>, name: &str) -> String {
        let Some((value, path)) = of.get(name) else { return String::new() };
        match value {
            Value::String(text) => text.clone(),
            _ => {
                self.fault(path, "must be a text");
                String::new()
            }
        }
    }

    /// What is said under a name to be so or not; no if nothing is.
    pub fn flag(&mut self, of: &Fields<'_>, name: &str) -> bool {
        self.choice(of, name) == Some(true)
    }

    /// The same, told from nothing.
    pub fn choice(&mut self, of: &Fields<'_>, name: &str) -> Option<bool> {
        let (value, path) = of.get(name)?;
        if value.as_bool().is_none() {
            self.fault(path, "must be true or false");
        }
        value.as_bool()
    }

    /// The count under a name; 0 if there is none. One that is too large is the largest.
    pub fn count(&mut self, of: &Fields<'_>, name: &str) -> u32 {
        let Some((value, path)) = of.get(name) else { return 0 };
        match value.as_f64() {
            // A cast of a double saturates.
            Some(count) if count >= 0.0 => count as u32,
            _ => {
                self.fault(path, "must be a number from 0 on");
                0
            }
        }
    }
}
