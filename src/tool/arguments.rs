//! ADK's rules for arguments and results of tools. Pure: nothing runs here.
//!
//! Effective arguments are what is approved, digested and run: unknown ones are dropped, defaults
//! of the schema filled in. Then all mandatory ones must be there, and all must match the schema;
//! types are checked, which ADK leaves to an option. What fails becomes an error response to the
//! model, and the body does not run.

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value, json};

use crate::agent::{Declaration, builtin};
use crate::session::content::Object;

/// How many violations one error response lists.
pub const MAX_VIOLATIONS: usize = 10;

/// How much of an unknown tool's name is repeated, in characters: a tool's name is not longer.
const MAX_NAME: usize = 64;

/// The schema of a declaration's parameters, compiled; made once for each declaration.
#[derive(Debug)]
pub struct Parameters {
    properties: Object,
    required: Vec<String>,
    open: bool,
    validator: Validator,
}

impl Parameters {
    /// Compiles a schema.
    pub fn new(schema: &Value) -> Result<Self, SchemaError> {
        let validator = compile(schema)?;
        let properties = schema.get("properties").and_then(Value::as_object).cloned();
        let required = schema.get("required").and_then(Value::as_array);
        let required = required.into_iter().flatten().filter_map(Value::as_str);
        // An object is a schema for the other arguments, so they are declared too.
        let open = schema.get("additionalProperties");
        Ok(Self {
            properties: properties.unwrap_or_default(),
            required: required.map(str::to_owned).collect(),
            open: matches!(open, Some(Value::Bool(true) | Value::Object(_))),
            validator,
        })
    }

    /// The effective arguments, or the response that says what is wrong with these.
    pub fn effective(&self, args: &Object) -> Result<Object, Object> {
        let known = |key: &String| self.open || self.properties.contains_key(key);
        let given = args.iter().filter(|(key, _)| known(key));
        let mut effective: Object =
            given.map(|(key, value)| (key.clone(), value.clone())).collect();
        for (key, property) in &self.properties {
            if let Some(default) = property.get("default")
                && !effective.contains_key(key)
            {
                effective.insert(key.clone(), default.clone());
            }
        }
        let missing = |key: &&String| !effective.contains_key(*key);
        let missing: Vec<&str> = self.required.iter().filter(missing).map(String::as_str).collect();
        if !missing.is_empty() {
            let names = missing.join("\n");
            return Err(error(format!(
                "The tool was not run, because mandatory arguments are missing. Call it again \
                 with all of these:\n{names}"
            )));
        }
        let value = Value::Object(effective);
        let violations = violations(&self.validator, &value);
        if !violations.is_empty() {
            let violations = violations.join("\n");
            return Err(error(format!(
                "The tool was not run, because its arguments do not match its schema. Correct \
                 these and call it again:\n{violations}"
            )));
        }
        match value {
            Value::Object(effective) => Ok(effective),
            _ => unreachable!("it was made as an object"),
        }
    }
}

/// A schema that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the schema cannot be used: {0}")]
pub struct SchemaError(String);

/// Compiles a schema. Patterns are matched in linear time, so those that look around are refused;
/// references lead nowhere outside the schema.
fn compile(schema: &Value) -> Result<Validator, SchemaError> {
    jsonschema::options()
        .with_pattern_options(PatternOptions::regex())
        .offline()
        .build(schema)
        .map_err(|error| SchemaError(error.to_string()))
}

fn violations(validator: &Validator, value: &Value) -> Vec<String> {
    validator.iter_errors(value).take(MAX_VIOLATIONS).map(violation).collect()
}

/// Checks an answer against the schema that its tool declares; the text tells what is wrong. An
/// answer that ADK's clients wrapped is what is inside: an object whose only key is `result` may
/// also match by that key's value, and by the JSON that a text there is.
pub fn check_answer(schema: &Value, answer: &Value) -> Result<(), String> {
    let validator = compile(schema).map_err(|fault| fault.to_string())?;
    let violations = violations(&validator, answer);
    if violations.is_empty() || wrapped(answer).is_some_and(|inner| fits(&validator, inner)) {
        return Ok(());
    }
    Err(violations.join("; "))
}

/// What stands in an answer of which `result` is the only key.
fn wrapped(answer: &Value) -> Option<&Value> {
    answer.as_object().filter(|object| object.len() == 1)?.get("result")
}

fn fits(validator: &Validator, inner: &Value) -> bool {
    let parsed = || inner.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    validator.is_valid(inner) || parsed().is_some_and(|value| validator.is_valid(&value))
}

/// The schema that the answer to a call must match, where the call itself says so: a tool of the
/// server that asks a person. The text tells why the call cannot be asked.
pub fn answer_schema_of(declaration: &Declaration, args: &Object) -> Result<Option<Value>, String> {
    let schema = builtin::answer_schema(declaration, args)?;
    if let Some(schema) = &schema {
        let unusable = |fault: SchemaError| format!("`response_schema`: {fault}");
        compile(schema).map_err(unusable)?;
    }
    Ok(schema)
}

/// Path, rule and what it demands, without the value: it may be anything, and long.
fn violation(error: ValidationError<'_>) -> String {
    let path = error.instance_path().to_string();
    let path = if path.is_empty() { "(all)" } else { &path };
    format!("{path}: {} ({})", error.masked(), error.kind().keyword())
}

/// The effective arguments by a schema that was not compiled before.
pub fn effective(schema: &Value, args: &Object) -> Result<Object, Object> {
    Parameters::new(schema).map_err(|fault| error(fault.to_string()))?.effective(args)
}

/// The response to a call of a tool that does not exist.
pub fn unknown_tool<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Object {
    let name: String = name.chars().take(MAX_NAME).collect();
    let known = known.into_iter().collect::<Vec<_>>().join(", ");
    error(format!(
        "There is no tool `{name}`. Call one of these instead: {}.",
        if known.is_empty() { "(none)" } else { &known }
    ))
}

/// A response that tells an error: a text, or an object that has the key already, as it is.
pub fn error(what: impl Into<Value>) -> Object {
    match what.into() {
        Value::Object(object) if object.contains_key("error") => object,
        what => Map::from_iter([("error".to_owned(), what)]),
    }
}

/// A result as a response: an object as it is, all else as `{"result": ...}`.
pub fn wrap(result: Value) -> Object {
    match result {
        Value::Object(object) => object,
        other => Map::from_iter([("result".to_owned(), other)]),
    }
}

/// Whether a long-running tool's result is none in ADK's eyes, so that there is no placeholder:
/// null, false, zero, or an empty text, list or object.
pub fn is_nothing(result: &Value) -> bool {
    match result {
        Value::Null => true,
        Value::Bool(yes) => !yes,
        Value::Number(number) => {
            let mantissa = number.as_str().split(['e', 'E']).next().unwrap_or_default();
            !mantissa.bytes().any(|b| (b'1'..=b'9').contains(&b))
        }
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(object) => object.is_empty(),
    }
}

/// The schema of a tool without arguments.
pub fn none() -> Value {
    json!({"type": "object", "properties": {}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(json: &str) -> Object {
        serde_json::from_str(json).unwrap()
    }

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "amount": {"type": "number", "exclusiveMinimum": 0},
                "purpose": {"type": "string", "maxLength": 5, "pattern": "^[a-z]*$"},
                "currency": {"type": "string", "default": "EUR"},
                "urgent": {"type": ["boolean", "null"]},
            },
            "required": ["amount", "purpose", "currency"],
        })
    }

    fn text(result: Result<Object, Object>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.len(), 1);
        error["error"].as_str().unwrap().to_owned()
    }

    #[test]
    fn unknown_arguments_are_dropped_and_defaults_filled_in() {
        let parameters = Parameters::new(&schema()).unwrap();
        let args = object(r#"{"amount": 12345678901234567890.10, "purpose": "a", "x": 1}"#);
        let effective = parameters.effective(&args).unwrap();
        let expected = r#"{"amount":12345678901234567890.10,"currency":"EUR","purpose":"a"}"#;
        assert_eq!(Value::Object(effective.clone()).to_string(), expected);
        assert_eq!(parameters.effective(&effective).unwrap(), effective);
        let given = object(r#"{"amount": 1, "purpose": "", "currency": "USD", "urgent": null}"#);
        assert_eq!(parameters.effective(&given).unwrap(), given);
    }

    #[test]
    fn other_arguments_stay_where_the_schema_is_open() {
        let args = object(r#"{"x": 1}"#);
        let with = |more: Value| {
            effective(&json!({"type": "object", "additionalProperties": more}), &args)
        };
        assert_eq!(with(json!(true)).unwrap(), args);
        assert_eq!(with(json!(false)).unwrap(), Object::new());
        assert_eq!(with(json!({"type": "integer"})).unwrap(), args);
        assert!(text(with(json!({"type": "string"}))).contains("/x"));
        assert_eq!(effective(&none(), &args).unwrap(), Object::new());
    }

    #[test]
    fn missing_arguments_are_named_one_a_line() {
        let text = text(effective(&schema(), &object(r#"{"urgent": true}"#)));
        assert!(text.ends_with(":\namount\npurpose"), "{text}");
    }

    #[test]
    fn violations_name_path_and_rule_and_no_value() {
        let args = object(r#"{"amount": "secret", "purpose": "SECRETS", "currency": "EUR"}"#);
        let text = text(effective(&schema(), &args));
        for part in ["/amount: ", "(type)", "/purpose: ", "(maxLength)", "(pattern)"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.to_lowercase().contains("secret"), "{text}");
        let tiny = object(r#"{"amount": -1e-400, "purpose": ""}"#);
        assert!(effective(&schema(), &tiny).is_err());
    }

    #[test]
    fn schemas_that_cannot_be_used_are_refused() {
        for schema in [
            json!({"type": "nonsense"}),
            json!({"properties": {"a": {"pattern": "(?=a)"}}}),
            json!({"$ref": "https://example.com/schema.json"}),
        ] {
            assert!(Parameters::new(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn answers_may_be_wrapped_as_adk_does() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}},
            "required": ["n"]});
        let passes = |answer: Value| check_answer(&schema, &answer).is_ok();
        assert!(passes(json!({"n": 1})) && passes(json!({"result": {"n": 1}})));
        assert!(passes(json!({"result": "{\"n\": 1}"})));
        for wrong in [json!({"result": {"n": "1"}}), json!({"result": "n"}), json!({}), json!(1)] {
            assert!(!passes(wrong.clone()), "{wrong}");
        }
        assert!(!passes(json!({"result": {"n": 1}, "more": 1})), "it is no wrapping");
        assert!(check_answer(&json!({"type": "integer"}), &json!({"result": "5"})).is_ok());
        let told = check_answer(&schema, &json!({"result": {"n": "secret"}})).unwrap_err();
        assert!(told.contains("(required)") && !told.contains("secret"), "{told}");
    }

    #[test]
    fn a_call_that_asks_a_person_says_what_an_answer_must_be() {
        let of = |name: &str, args: Value| {
            let declaration = builtin::named(name).unwrap();
            answer_schema_of(&declaration, args.as_object().unwrap())
        };
        let input = |schema: Value| {
            of(builtin::REQUEST_INPUT, json!({"message": "?", "response_schema": schema}))
        };
        assert_eq!(input(json!({"type": "integer"})), Ok(Some(json!({"type": "integer"}))));
        assert_eq!(input(Value::Null), Ok(None));
        assert!(input(json!({"type": "nonsense"})).unwrap_err().contains("`response_schema`"));
        assert!(input(json!({"$ref": "https://example.com/s.json"})).is_err());
        let choice = of(builtin::USER_CHOICE, json!({"options": ["a", "b", "a"]}));
        let schema = choice.unwrap().unwrap();
        assert_eq!(schema["properties"]["result"]["enum"], json!(["a", "b"]));
        assert!(check_answer(&schema, &json!({"result": "b"})).is_ok());
        for wrong in [json!({"result": "c"}), json!({"result": "a", "x": 1}), json!({})] {
            assert!(check_answer(&schema, &wrong).is_err(), "{wrong}");
        }
        assert!(of(builtin::USER_CHOICE, json!({"options": []})).is_err());
        // A tool of that name that is somebody's own says itself what its answers are.
        let mut own = builtin::named(builtin::USER_CHOICE).unwrap();
        own.body = crate::agent::Body::Function;
        assert_eq!(answer_schema_of(&own, &object("{}")), Ok(None));
    }

    #[test]
    fn an_unknown_tool_lists_the_others() {
        let text = |known: &[&str]| text(Err(unknown_tool("pay", known.iter().copied())));
        assert!(text(&["ask", "tell"]).contains("`pay`"));
        assert!(text(&["ask", "tell"]).contains("ask, tell"));
        assert!(text(&[]).contains("(none)"));
        assert!(unknown_tool(&"x".repeat(9999), [])["error"].as_str().unwrap().len() < 200);
    }

    #[test]
    fn results_become_objects_and_errors_are_told_under_one_key() {
        assert_eq!(Value::Object(wrap(json!([1]))), json!({"result": [1]}));
        assert_eq!(Value::Object(wrap(json!({"a": 1}))), json!({"a": 1}));
        assert_eq!(Value::Object(wrap(Value::Null)), json!({"result": null}));
        assert_eq!(Value::Object(error("no")), json!({"error": "no"}));
        assert_eq!(Value::Object(error(json!({"code": 1}))), json!({"error": {"code": 1}}));
        let whole = json!({"error": "no", "code": 1});
        assert_eq!(Value::Object(error(whole.clone())), whole);
    }

    #[test]
    fn falsy_results_are_nothing() {
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        for text in ["null", "{}", "[]", "\"\"", "0", "-0.00", "0e5", "false"] {
            assert!(is_nothing(&parse(text)), "{text}");
        }
        for text in ["{\"a\":null}", "[0]", "\" \"", "1e-400", "true", "0.01"] {
            assert!(!is_nothing(&parse(text)), "{text}");
        }
    }
}
