//! Tools that are Rust closures: the schema of their arguments comes from a type.
//!
//! ```
//! # use countersign::tool::{Context, Function};
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Reimbursement {
//!     /// What it was for.
//!     purpose: String,
//!     amount: serde_json::Number,
//! }
//!
//! let ask = Function::new(
//!     "ask_for_approval",
//!     "Asks the manager to approve a reimbursement.",
//!     |args: Reimbursement, context: Context| async move {
//!         let ticket = format!("T-{}", context.call_id());
//!         let placeholder = serde_json::json!({"status": "pending", "ticketId": ticket});
//!         Ok::<_, String>((args.purpose != "nothing").then_some(placeholder))
//!     },
//! )
//! .long_running()
//! .final_when("status", ["approved", "rejected"]);
//! ```

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Context, Outcome, Tool};
use crate::agent::approvals::{Need, ToolApproval};
use crate::agent::cel::Expression;
use crate::agent::{Answers, Behaviour, Body, Decisions, Declaration, Effect};
use crate::session::approval::{Action, Deadline};
use crate::session::content::Object;

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Run = dyn Fn(Object, Context) -> Running + Send + Sync;

/// A closure, or an async function, as a tool. A clone is the same function.
#[derive(Clone)]
pub struct Function {
    declaration: Declaration,
    run: Arc<Run>,
}

impl Function {
    /// A tool of this name that runs `body`. What the body returns is serialized; null, so also
    /// `()` and `None`, is nothing. Its error is told to the model as text. Arguments that the type
    /// refuses become such an error too, and the body does not run.
    ///
    /// # Panics
    /// If the arguments' type is no struct or map, whose schema is an object's.
    pub fn new<Args, Fut, T, E>(
        name: impl Into<String>,
        description: impl Into<String>,
        body: impl Fn(Args, Context) -> Fut + Send + Sync + 'static,
    ) -> Self
    where
        Args: DeserializeOwned + JsonSchema + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        T: Serialize,
        E: fmt::Display,
    {
        let name = name.into();
        let parameters = schema::<Args>();
        assert!(
            parameters.get("type").and_then(|kind| kind.as_str()) == Some("object"),
            "the arguments of the tool `{name}` must be a struct or a map"
        );
        let run = move |args: Object, context: Context| -> Running {
            match parse::<Args>(&args).map(|args| body(args, context)) {
                Ok(running) => Box::pin(async move { outcome(running.await) }),
                Err(error) => Box::pin(std::future::ready(failed(error))),
            }
        };
        let description = description.into();
        let (behaviour, body) = (Behaviour::default(), Body::Function);
        let approval = ToolApproval::default();
        let declaration = Declaration { name, description, parameters, behaviour, approval, body };
        Self { declaration, run: Arc::new(run) }
    }

    /// The outcome comes from outside; what the body returns is a placeholder, or nothing.
    pub fn long_running(self) -> Self {
        self.with(|behaviour| behaviour.long_running = true)
    }

    /// Answers are told and the call stays held, until one is final (ADK); otherwise the first is.
    pub fn answers_many(self) -> Self {
        self.with(|behaviour| behaviour.answers = Answers::Many)
    }

    /// An answer is final if this key, and each other key so named, holds one of these values;
    /// others are progress.
    pub fn final_when<V: Into<Value>>(
        self,
        key: impl Into<String>,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        let values = values.into_iter().map(Into::into).collect();
        self.with(|behaviour| {
            behaviour.final_when.insert(key.into(), values);
            behaviour.answers = Answers::Many;
        })
    }

    /// A call that nobody answered for so long ends as expired.
    pub fn expires_after(self, time: Duration) -> Self {
        self.with(|behaviour| behaviour.expires_after = Some(time))
    }

    /// What may be done when it is not known whether the body ran; `Effect::Once` if not said.
    pub fn effect(self, effect: Effect) -> Self {
        self.with(|behaviour| behaviour.effect = effect)
    }

    /// How long the body may run.
    pub fn timeout(self, time: Duration) -> Self {
        self.with(|behaviour| behaviour.timeout = time)
    }

    /// JSON schema that final answers must match.
    pub fn answer_schema(self, schema: Value) -> Self {
        self.with(|behaviour| behaviour.answer_schema = Some(schema))
    }

    /// The call stands in the inbox as an approval; these objects are what its decisions send.
    ///
    /// # Panics
    /// If one of them is no JSON object.
    pub fn decisions(self, approve: impl Into<Value>, deny: impl Into<Value>) -> Self {
        let object = |value: Value| match value {
            Value::Object(object) => object,
            other => panic!("a decision must be an object, not {other}"),
        };
        let decisions = Decisions { approve: object(approve.into()), deny: object(deny.into()) };
        self.with(|behaviour| {
            behaviour.decisions = Some(decisions);
            behaviour.inbox = true;
        })
    }

    /// Held calls stand in the inbox, where people find and answer them.
    pub fn inbox(self) -> Self {
        self.with(|behaviour| behaviour.inbox = true)
    }

    /// What happens if nobody has answered a held call for so long, besides that it may expire; in
    /// the order of their times.
    pub fn deadline(self, after: Duration, action: Action) -> Self {
        self.with(|behaviour| behaviour.deadlines.push(Deadline { after, action }))
    }

    /// No call runs before a person has agreed to it.
    pub fn require_confirmation(self) -> Self {
        self.asking(|approval| approval.need = Some(Need::Always))
    }

    /// Every call runs without a question, whatever the agent's default is.
    pub fn never_confirm(self) -> Self {
        self.asking(|approval| approval.need = Some(Need::Never))
    }

    /// Calls for which this is true, in CEL, run only after a person has agreed; so do those for
    /// which it cannot be told.
    ///
    /// # Panics
    /// If it is no condition that [`Expression::parse`] takes.
    pub fn confirm_when(self, condition: &str) -> Self {
        let when = match Expression::parse(condition) {
            Ok(when) => when,
            Err(fault) => panic!("`{condition}`: {fault}"),
        };
        self.asking(|approval| approval.need = Some(Need::When(when)))
    }

    /// What is asked before a call runs; ADK's words if not said.
    pub fn hint(self, text: impl Into<String>) -> Self {
        self.asking(|approval| approval.hint = text.into())
    }

    /// What the model is told if somebody refuses and says no reason.
    pub fn rejection(self, text: impl Into<String>) -> Self {
        self.asking(|approval| approval.rejection = text.into())
    }

    /// What happens if nobody has decided for so long whether a call may run; in the order of their
    /// times.
    pub fn confirm_deadline(self, after: Duration, action: Action) -> Self {
        self.asking(|approval| approval.deadlines.push(Deadline { after, action }))
    }

    /// All that it says of approval.
    pub fn approval(self, approval: ToolApproval) -> Self {
        self.asking(|said| *said = approval)
    }

    fn asking(mut self, change: impl FnOnce(&mut ToolApproval)) -> Self {
        change(&mut self.declaration.approval);
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Behaviour)) -> Self {
        change(&mut self.declaration.behaviour);
        self
    }
}

#[async_trait]
impl Tool for Function {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    async fn run(&self, args: Object, context: Context) -> Outcome {
        (self.run)(args, context).await
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("declaration", &self.declaration).finish_non_exhaustive()
    }
}

/// The schema of what a type is read from; subschemas stand in place, as most models want them.
fn schema<Args: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<Args>();
    schema.remove("title");
    schema.into()
}

/// By way of text: only there do numbers keep their digits on the way into a type.
fn parse<Args: DeserializeOwned>(args: &Object) -> Result<Args, serde_json::Error> {
    serde_json::from_str(&serde_json::to_string(args)?)
}

fn outcome<T: Serialize, E: fmt::Display>(result: Result<T, E>) -> Outcome {
    match result.map(serde_json::to_value) {
        Ok(Ok(Value::Null)) => Outcome::Nothing,
        Ok(Ok(value)) => Outcome::Value(value),
        // The body ran, and what it gave cannot be told: that is an error, and a definite one.
        Ok(Err(error)) => failed(error),
        Err(error) => failed(error),
    }
}

fn failed(error: impl fmt::Display) -> Outcome {
    Outcome::Error(error.to_string().into())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde::Deserialize;
    use serde_json::{Number, json};

    use super::super::arguments::Parameters;
    use super::super::tests::context;
    use super::*;

    #[derive(Deserialize, JsonSchema)]
    struct Args {
        /// What for.
        purpose: String,
        amount: Number,
        #[serde(default = "euro")]
        currency: Currency,
        note: Option<String>,
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    enum Currency {
        #[serde(rename = "EUR")]
        Euro,
    }

    fn euro() -> Currency {
        Currency::Euro
    }

    fn args(json: &str) -> Object {
        serde_json::from_str(json).unwrap()
    }

    fn pay() -> Function {
        Function::new("pay", "Pays.", |args: Args, context: Context| async move {
            context.set("paid", args.amount.clone());
            match args.note {
                Some(note) => Err(note),
                None => Ok(json!({"paid": args.amount, "for": args.purpose, "in": args.currency})),
            }
        })
    }

    #[tokio::test]
    async fn a_body_gets_exact_arguments_and_writes_state() {
        let (tool, context) = (pay(), context());
        let given = args(r#"{"purpose": "x", "amount": 12345678901234567890.10}"#);
        let outcome = tool.run(given, context.clone()).await;
        let Outcome::Value(value) = outcome else { panic!("{outcome:?}") };
        let text = r#"{"for":"x","in":"EUR","paid":12345678901234567890.10}"#;
        assert_eq!(value.to_string(), text);
        let delta = Value::Object(context.finish().state_delta);
        assert_eq!(delta.to_string(), r#"{"paid":12345678901234567890.10}"#);
    }

    #[tokio::test]
    async fn errors_are_told_and_nothing_is_nothing() {
        let given = args(r#"{"purpose": "x", "amount": 1, "note": "no money"}"#);
        assert_eq!(pay().run(given, context()).await, Outcome::Error("no money".into()));
        let refused = pay().run(args(r#"{"purpose": "x"}"#), context()).await;
        assert!(matches!(refused, Outcome::Error(Value::String(text)) if text.contains("amount")));

        let any = Function::new("any", "", |_: Object, _| async { Ok::<_, Infallible>(()) });
        assert_eq!(any.run(args(r#"{"a": 1}"#), context()).await, Outcome::Nothing);
        let none = Function::new("none", "", |_: Object, _| async { Ok::<_, String>(None::<u8>) });
        assert_eq!(none.run(Object::new(), context()).await, Outcome::Nothing);
    }

    #[test]
    fn the_schema_is_the_types() {
        let tool = pay();
        let expected = json!({
            "type": "object",
            "properties": {
                "purpose": {"type": "string", "description": "What for."},
                "amount": {"type": "number"},
                "currency": {"type": "string", "enum": ["EUR"], "default": "EUR"},
                "note": {"type": ["string", "null"]},
            },
            "required": ["purpose", "amount"],
        });
        assert_eq!(tool.declaration().parameters, expected);
        let parameters = Parameters::new(&expected).unwrap();
        let effective = parameters.effective(&args(r#"{"purpose": "x", "amount": 1}"#)).unwrap();
        assert_eq!(effective["currency"], "EUR");
    }

    #[test]
    fn the_words_are_kept() {
        let (approve, deny) =
            (args(r#"{"status": "approved"}"#), args(r#"{"status": "rejected"}"#));
        let tool = pay()
            .long_running()
            .final_when("status", ["approved", "rejected"])
            .expires_after(Duration::from_secs(60))
            .effect(Effect::Idempotent)
            .timeout(Duration::from_secs(5))
            .answer_schema(json!({"type": "object"}))
            .decisions(approve.clone(), deny.clone());
        let expected = Behaviour {
            long_running: true,
            answers: Answers::Many,
            final_when: [("status".into(), vec![json!("approved"), json!("rejected")])].into(),
            answer_schema: Some(json!({"type": "object"})),
            expires_after: Some(Duration::from_secs(60)),
            decisions: Some(Decisions { approve, deny }),
            effect: Effect::Idempotent,
            timeout: Duration::from_secs(5),
            deadlines: Vec::new(),
            input: false,
            inbox: true,
        };
        assert_eq!(tool.declaration().behaviour, expected);
        let day = Duration::from_secs(86_400);
        let approval = ToolApproval {
            need: Some(Need::When(Expression::parse("args.amount > 100.0").unwrap())),
            hint: "Pay?".into(),
            rejection: "Not now.".into(),
            deadlines: vec![Deadline { after: day, action: Action::Expire }],
        };
        let asking = pay().confirm_when("args.amount > 100.0").hint("Pay?").rejection("Not now.");
        let asking = asking.confirm_deadline(day, Action::Expire);
        assert_eq!(asking.declaration().approval, approval);
        assert_eq!(pay().approval(approval.clone()).declaration().approval, approval);
        let need = |tool: Function| tool.declaration().approval.need.clone();
        assert_eq!(need(pay().require_confirmation()), Some(Need::Always));
        assert_eq!(need(pay().never_confirm()), Some(Need::Never));
        let held = pay().long_running().inbox().deadline(day, Action::Remind);
        assert_eq!(held.declaration().behaviour.deadlines.len(), 1);
        assert!(held.declaration().behaviour.inbox && held.declaration().faults().is_empty());
        assert_eq!(pay().inbox().deadline(day, Action::Deny).declaration().faults().len(), 2);
        assert_eq!(pay().answers_many().declaration().behaviour.answers, Answers::Many);
        assert_eq!(tool.declaration().body, Body::Function);
    }

    #[test]
    #[should_panic = "there is no variable `amount`"]
    fn a_condition_is_checked_at_once() {
        let _ = pay().confirm_when("amount > 100.0");
    }

    #[test]
    #[should_panic = "must be a struct or a map"]
    fn arguments_are_an_object() {
        let _ = Function::new("bad", "", |_: u32, _| async { Ok::<_, String>(()) });
    }
}
