//! What an expression may say. Names are checked when it is read, not when a call needs them.

use std::collections::BTreeSet;

use ::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};

use super::{MAX_DEPTH, MAX_NODES};
use crate::agent::file::near;

/// What an expression may name.
pub const VARIABLES: &[&str] = &["args", "tool", "agent", "app", "user", "session"];

/// The functions that it may call, macros among them.
#[rustfmt::skip]
pub const FUNCTIONS: &[&str] = &[
    "has", "size", "contains", "startsWith", "endsWith", "lowerAscii", "int", "double", "string",
    "all", "exists", "exists_one", "filter", "map",
];

/// Operators as the tree names them, and as one writes them.
#[rustfmt::skip]
const OPERATORS: &[(&str, &str)] = &[
    ("_?_:_", "? :"), ("_&&_", "&&"), ("_||_", "||"), ("!_", "!"), ("_-_", "-"), ("_+_", "+"),
    ("_*_", "*"), ("_/_", "/"), ("_%_", "%"), ("_==_", "=="), ("_!=_", "!="), ("_>=_", ">="),
    ("_<=_", "<="), ("_>_", ">"), ("_<_", "<"), ("-_", "-"), ("_[_]", "[ ]"), ("@in", "in"),
];

/// Operators and functions that never give true or false.
#[rustfmt::skip]
const NO_CONDITION: &[&str] =
    &["_-_", "_+_", "_*_", "_/_", "_%_", "-_", "size", "lowerAscii", "int", "double", "string"];

/// Only macros use it, to go on after an error.
const NOT_STRICTLY_FALSE: &str = "@not_strictly_false";

/// What is known of an expression.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// The arguments that it names; none if it may see any of them.
    pub arguments: Option<BTreeSet<String>>,
    /// It goes over the elements of something.
    pub each: bool,
}

/// Refuses what nests so deep that already reading it may take long. Brackets in texts count too.
pub(super) fn nesting(source: &str) -> Result<(), String> {
    let mut depth = 0_usize;
    for c in source.chars() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
    }
    Ok(())
}

pub(super) fn too_deep() -> String {
    format!("an expression must not nest deeper than {MAX_DEPTH} levels")
}

fn optional() -> String {
    "there are no optional elements here".to_owned()
}

/// Checks a whole expression.
pub(super) fn check(root: &IdedExpr) -> Result<Facts, String> {
    let facts = Facts { arguments: Some(BTreeSet::new()), each: false };
    let mut walk = Walk { facts, nodes: 0, within: false, scope: Vec::new() };
    walk.expr(root, 1)?;
    let plain = match &root.expr {
        Expr::Literal(literal) => !matches!(literal, LiteralValue::Boolean(_)),
        Expr::List(_) | Expr::Map(_) | Expr::Ident(_) => true,
        Expr::Call(call) => NO_CONDITION.contains(&call.func_name.as_str()),
        _ => false,
    };
    if plain {
        return Err("this is no condition: it is neither true nor false".to_owned());
    }
    Ok(walk.facts)
}

/// A function or an operator as one writes it.
pub(super) fn spelled(name: &str) -> String {
    // A key of something is taken by an operator that nobody writes.
    let operators = OPERATORS.iter().chain(&[("_._", ".")]);
    let written = operators.into_iter().find(|(known, _)| *known == name);
    format!("`{}`", written.map_or(name, |(_, written)| written))
}

struct Walk<'e> {
    facts: Facts,
    nodes: usize,
    /// A comprehension is around.
    within: bool,
    /// Its variables.
    scope: Vec<&'e str>,
}

impl<'e> Walk<'e> {
    fn expr(&mut self, node: &'e IdedExpr, depth: usize) -> Result<(), String> {
        self.nodes += 1;
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        if self.nodes > MAX_NODES {
            return Err(format!("an expression must not have more than {MAX_NODES} parts"));
        }
        let below = depth + 1;
        match &node.expr {
            Expr::Literal(_) => Ok(()),
            Expr::Ident(name) => self.variable(name),
            Expr::Select(select) if self.is_args(&select.operand) => {
                self.argument(&select.field);
                Ok(())
            }
            Expr::Select(select) => self.expr(&select.operand, below),
            Expr::Call(call) => self.call(call, below),
            Expr::List(list) if !list.optional_indices.is_empty() => Err(optional()),
            Expr::List(list) => list.elements.iter().try_for_each(|node| self.expr(node, below)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) if entry.optional => Err(optional()),
                EntryExpr::MapEntry(entry) => {
                    self.expr(&entry.key, below)?;
                    self.expr(&entry.value, below)
                }
                EntryExpr::StructField(field) => self.expr(&field.value, below),
            }),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, below),
            Expr::Struct(made) => Err(format!("there is no type `{}`", made.type_name)),
            Expr::Unspecified => Err("this is no expression".to_owned()),
        }
    }

    fn variable(&mut self, name: &'e str) -> Result<(), String> {
        if self.scope.contains(&name) {
            return Ok(());
        }
        if !VARIABLES.contains(&name) {
            let known = VARIABLES.iter().copied().chain(self.scope.iter().copied());
            let hint = near::hint(name, known);
            let known = VARIABLES.join(", ");
            return Err(format!("there is no variable `{name}`{hint}; known: {known}"));
        }
        if name == "args" {
            self.facts.arguments = None;
        }
        Ok(())
    }

    fn is_args(&self, node: &IdedExpr) -> bool {
        matches!(&node.expr, Expr::Ident(name) if name == "args")
    }

    fn argument(&mut self, key: &str) {
        if let Some(arguments) = &mut self.facts.arguments {
            arguments.insert(key.to_owned());
        }
    }

    fn call(&mut self, call: &'e CallExpr, depth: usize) -> Result<(), String> {
        let name = call.func_name.as_str();
        let operator = OPERATORS.iter().any(|(known, _)| *known == name);
        let inner = self.within && name == NOT_STRICTLY_FALSE;
        if !operator && !inner && !FUNCTIONS.contains(&name) {
            let hint = near::hint(name, FUNCTIONS.iter().copied());
            let known = FUNCTIONS.join(", ");
            return Err(format!("there is no function `{name}`{hint}; known: {known}"));
        }
        // What a macro did not take is one of its names in a wrong place.
        if matches!(name, "has" | "all" | "exists" | "exists_one" | "filter" | "map") {
            let form = if name == "has" { "has(args.x)" } else { "args.list.NAME(x, ...)" };
            return Err(format!("`{name}` is written {}", form.replace("NAME", name)));
        }
        if name == "_[_]"
            && let [of, key] = call.args.as_slice()
            && self.is_args(of)
            && let Expr::Literal(LiteralValue::String(key)) = &key.expr
        {
            self.argument(key.inner());
            return Ok(());
        }
        if let Some(target) = &call.target {
            self.expr(target, depth)?;
        }
        call.args.iter().try_for_each(|node| self.expr(node, depth))
    }

    fn comprehension(&mut self, of: &'e ComprehensionExpr, depth: usize) -> Result<(), String> {
        if self.within {
            let words = "`all`, `exists`, `exists_one`, `filter` and `map`";
            return Err(format!("{words} must not stand inside one another"));
        }
        let variables = [Some(&of.iter_var), of.iter_var2.as_ref(), Some(&of.accu_var)];
        let variables: Vec<&'e str> = variables.into_iter().flatten().map(String::as_str).collect();
        if let Some(taken) = variables.iter().find(|name| VARIABLES.contains(name)) {
            return Err(format!("`{taken}` is a name of its own, and no element can have it"));
        }
        self.facts.each = true;
        // Its range is within it too: what one gives is not gone over by the next.
        self.within = true;
        self.expr(&of.iter_range, depth)?;
        self.scope = variables;
        let parts = [&of.accu_init, &of.loop_cond, &of.loop_step, &of.result];
        parts.into_iter().try_for_each(|node| self.expr(node, depth))?;
        self.scope.clear();
        self.within = false;
        Ok(())
    }
}
