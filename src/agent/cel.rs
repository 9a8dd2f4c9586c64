//! Conditions over calls, in CEL: read and bounded once, evaluated often.
//!
//! What an expression may say is a small part of CEL: known variables, known functions, no
//! comprehension inside another. With the bounds on its text and on what it sees of the arguments
//! this bounds the time and the memory of one evaluation. Whatever goes wrong is an error and never
//! a verdict; no error repeats a value of the arguments.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use ::cel::{Context, Env, ExecutionError, Program, Value, extensions};

mod check;
mod input;
#[cfg(test)]
mod tests;

pub use check::{FUNCTIONS, VARIABLES};
pub use input::{Call, Input};

/// Longest expression, in bytes.
pub const MAX_BYTES: usize = 1024;

/// Most nodes of an expression's tree, once its macros are expanded.
pub const MAX_NODES: usize = 200;

/// Deepest nesting of that tree, in levels.
pub const MAX_DEPTH: usize = 24;

/// Most that one evaluation sees of the arguments, in bytes: of each text its bytes, and
/// [`VALUE_BYTES`] for each value.
pub const MAX_SEEN: usize = 64 << 10;

/// The same for an expression that goes over the elements of a list or a map.
pub const MAX_SEEN_EACH: usize = 8 << 10;

/// What a value counts beside its text, in bytes.
pub const VALUE_BYTES: usize = 64;

/// Room for reading an expression of [`MAX_BYTES`], however it nests, in bytes.
const STACK: usize = 32 << 20;

/// What all expressions are read and evaluated with.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings).expect("our names are not taken");
    Arc::new(env)
});

/// A condition over a call. A clone is the same expression; two of the same text are equal.
#[derive(Clone)]
pub struct Expression {
    source: Arc<str>,
    compiled: Arc<Compiled>,
}

struct Compiled {
    program: Program,
    facts: check::Facts,
}

impl Expression {
    /// Reads an expression; the text tells what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let source = text.trim();
        if source.is_empty() {
            return Err("an expression must not be empty".to_owned());
        }
        if source.len() > MAX_BYTES {
            return Err(format!("an expression must not be longer than {MAX_BYTES} bytes"));
        }
        check::nesting(source)?;
        // Trees are walked by recursion, also to be dropped: what nests too deep is told where
        // there is room for it.
        let builder = std::thread::Builder::new().stack_size(STACK);
        let compiled = std::thread::scope(|scope| {
            let thread = builder.spawn_scoped(scope, || compile(source));
            let thread = thread.map_err(|error| format!("it cannot be read now: {error}"))?;
            thread.join().unwrap_or_else(|_| Err("this is no expression".to_owned()))
        })?;
        Ok(Self { source: source.into(), compiled: Arc::new(compiled) })
    }

    /// The text that it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The arguments that it names, each once; none if it may see any of them.
    pub fn arguments(&self) -> Option<impl Iterator<Item = &str>> {
        self.compiled.facts.arguments.as_ref().map(|keys| keys.iter().map(String::as_str))
    }

    /// Whether it is so of the call. Anything but true or false is an error.
    pub fn eval(&self, input: &Input<'_>) -> Result<bool, String> {
        let Compiled { program, facts } = &*self.compiled;
        input.allow(facts)?;
        let evaluate = || {
            let mut context = Context::with_env(ENV.clone());
            context.set_variable_resolver(input);
            program.execute(&context)
        };
        match catch_unwind(AssertUnwindSafe(evaluate)) {
            Ok(Ok(Value::Bool(verdict))) => Ok(verdict),
            Ok(Ok(other)) => Err(format!("it gives {}, not true or false", kind(&other))),
            Ok(Err(error)) => Err(self.tell(&error)),
            Err(_) => Err("it failed unexpectedly".to_owned()),
        }
    }

    /// What went wrong, without values: a key is repeated only if the expression itself has it.
    fn tell(&self, error: &ExecutionError) -> String {
        let said = |name: &str| self.source.contains(name);
        match error {
            ExecutionError::NoSuchKey(key) if said(key) => format!("there is no `{key}`"),
            ExecutionError::NoSuchKey(_) => "there is no such key".to_owned(),
            ExecutionError::UndeclaredReference(name) if said(name) => {
                format!("`{name}` is not known for these types")
            }
            ExecutionError::NoSuchOverload(wrong) => {
                let types = wrong.argument_types().join(", ");
                format!("{} is not for these types: {types}", check::spelled(wrong.function()))
            }
            ExecutionError::FunctionError { function, .. } => format!("`{function}` fails"),
            ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => {
                "a division by zero".to_owned()
            }
            ExecutionError::Overflow(..) => "a number is too large".to_owned(),
            ExecutionError::IndexOutOfBounds(_) => "a list is too short".to_owned(),
            _ => "its values are not of the right types".to_owned(),
        }
    }
}

fn compile(source: &str) -> Result<Compiled, String> {
    let program = ENV.compile(source).map_err(|errors| {
        let Some(first) = errors.errors.first() else { return "this is no expression".to_owned() };
        if first.msg.contains("Recursion limit") {
            return check::too_deep();
        }
        // All that could stand there is a long list.
        let line = first.msg.lines().next().unwrap_or_default();
        let line = line.split(" expecting ").next().unwrap_or_default();
        let told: String = line.chars().take(200).collect();
        format!("this is no CEL expression (column {}): {told}", first.pos.1.max(1))
    })?;
    let facts = check::check(program.expression())?;
    Ok(Compiled { program, facts })
}

/// The type of a value, in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::List(_) => "a list",
        Value::Map(_) => "a map",
        Value::Int(_) | Value::UInt(_) | Value::Float(_) => "a number",
        Value::String(_) => "a text",
        Value::Null => "null",
        _ => "something else",
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}
