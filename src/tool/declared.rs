//! Tools whose body is declared in an agent file: an object with places, or nothing. Such a body
//! only builds its result, so it reads no more than its call and may run again at any time; it
//! gives the same result each time.

use async_trait::async_trait;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Context, Outcome, Tool};
use crate::agent::cel::{Call, Input};
use crate::agent::{Asking, Body, Declaration, template};
use crate::session::approval::Raised;
use crate::session::content::Object;

/// A tool that is whole in its declaration.
#[derive(Debug, Clone)]
pub struct Declared {
    declaration: Declaration,
}

impl Declared {
    /// The tool; none if the declaration's body is a function.
    pub fn new(declaration: Declaration) -> Option<Self> {
        (declaration.body != Body::Function).then_some(Self { declaration })
    }
}

/// Whether a body may have this place: `args.KEY` (an argument, `args.a.b` inside one) or one of
/// `call_id`, `id`, `invocation_id`, `session_id`, `user_id`. One that asks may also have
/// `confirmation.payload.KEY`, which is null if nobody was asked.
pub fn is_place(name: &str) -> bool {
    let fixed = ["call_id", "id", "invocation_id", "session_id", "user_id"];
    let key = |prefix: &str| name.strip_prefix(prefix).is_some_and(|key| !key.is_empty());
    fixed.contains(&name) || key("args.") || key("confirmation.payload.")
}

#[async_trait]
impl Tool for Declared {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    async fn run(&self, args: Object, context: Context) -> Outcome {
        let filled = |template: &Object| template::render(template, &mut place(&args, &context));
        match &self.declaration.body {
            Body::Object(returns) => Outcome::Value(filled(returns).into()),
            Body::Asking(asking) if self.asks(asking, &args, &context) => {
                let payload = asking.payload.clone().map(|payload| {
                    let mut whole = filled(&Object::from_iter([("payload".to_owned(), payload)]));
                    whole.remove("payload").unwrap_or_default()
                });
                context.request_confirmation(Raised {
                    hint: template::text(&asking.hint, &mut place(&args, &context)),
                    payload,
                    declined: asking.declined.as_ref().map(filled),
                });
                Outcome::Value(filled(&asking.interim).into())
            }
            Body::Asking(asking) => Outcome::Value(filled(&asking.returns).into()),
            Body::Nothing | Body::Function => Outcome::Nothing,
        }
    }
}

impl Declared {
    /// Whether somebody is to be asked now. If that cannot be told, somebody is.
    fn asks(&self, asking: &Asking, args: &Object, context: &Context) -> bool {
        if context.confirmation().is_some_and(|said| said.confirmed) {
            return false;
        }
        let Some(when) = &asking.when else { return true };
        let session = context.session();
        let agent = context.agent_path().rsplit('/').next().unwrap_or_default();
        let input = Input::new(Call {
            args,
            tool: &self.declaration.name,
            agent,
            app: session.app.as_str(),
            user: session.user.as_str(),
            session: session.id.as_str(),
        });
        when.eval(&input).unwrap_or_else(|wrong| {
            let tool = &self.declaration.name;
            tracing::warn!(tool, wrong, "a condition could not be evaluated: a person is asked");
            true
        })
    }
}

/// The value of a place.
fn place(args: &Object, context: &Context) -> impl FnMut(&str) -> Option<Value> {
    |name| match name {
        "call_id" => Some(context.call_id().as_str().into()),
        "id" => Some(id(context.idempotency_key()).into()),
        "invocation_id" => Some(context.invocation_id().as_str().into()),
        "session_id" => Some(context.session().id.as_str().into()),
        "user_id" => Some(context.user().as_str().into()),
        // What was not given is null.
        _ => {
            let value = match name.strip_prefix("confirmation.payload.") {
                Some(key) => {
                    let payload = context.confirmation().and_then(|said| said.payload.as_ref());
                    payload.and_then(Value::as_object).and_then(|given| template::at(given, key))
                }
                None => template::at(args, name.strip_prefix("args.")?),
            };
            Some(value.unwrap_or(Value::Null))
        }
    }
}

/// Twelve letters and digits that no other execution gets, and this one gets each time it is run.
fn id(idempotency_key: &str) -> String {
    let digest = Sha256::digest(idempotency_key.as_bytes());
    digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{confirmed, context};
    use super::*;
    use crate::agent::Behaviour;
    use crate::session::approval::Confirmation;

    fn declaration(body: Body) -> Declaration {
        Declaration {
            name: "ask".into(),
            description: String::new(),
            parameters: super::super::arguments::none(),
            behaviour: Behaviour::default(),
            approval: Default::default(),
            body,
        }
    }

    #[tokio::test]
    async fn an_object_is_filled_from_the_call() {
        let template = json!({
            "status": "pending", "ticketId": "T-${id}", "amount": "${args.amount}",
            "to": "${args.who.name}", "call": "${call_id} ${user_id} ${args.none}",
        });
        let template = template.as_object().unwrap().clone();
        assert!(template::places(&template.clone().into()).iter().all(|name| is_place(name)));
        let tool = Declared::new(declaration(Body::Object(template))).unwrap();
        let args: Object =
            serde_json::from_str(r#"{"amount": 1.50, "who": {"name": "Bo"}}"#).unwrap();
        let first = tool.run(args.clone(), context()).await;
        assert_eq!(first, tool.run(args, context()).await, "it may run again");
        let Outcome::Value(value) = first else { panic!("{first:?}") };
        let fresh = id("adk-1/1");
        assert_eq!(value["ticketId"], format!("T-{fresh}"));
        assert_ne!(fresh, id("adk-1/2"));
        assert_eq!((fresh.len(), value["amount"].to_string().as_str()), (12, "1.50"));
        assert_eq!((&value["to"], &value["call"]), (&json!("Bo"), &json!("adk-1 ann ")));
    }

    #[tokio::test]
    async fn a_body_that_returns_nothing_only_asks() {
        let tool = Declared::new(declaration(Body::Nothing)).unwrap();
        assert_eq!(tool.run(Object::new(), context()).await, Outcome::Nothing);
        assert!(Declared::new(declaration(Body::Function)).is_none());
    }

    #[tokio::test]
    async fn a_body_asks_and_goes_on_with_what_was_said() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let asking = |when: Option<&str>| {
            let when = when.map(|text| crate::agent::cel::Expression::parse(text).unwrap());
            let asking = Asking {
                when,
                hint: "Days for ${user_id}?".into(),
                payload: Some(json!({"days": "${args.days}"})),
                interim: object(json!({"status": "pending"})),
                declined: Some(object(json!({"status": "no ${args.days} days"}))),
                returns: object(json!({"days": "${confirmation.payload.days}"})),
            };
            Declared::new(declaration(Body::Asking(Box::new(asking)))).unwrap()
        };
        let args = object(json!({"days": 5}));
        for when in [None, Some("args.days > 1"), Some("args.none > 1")] {
            let context = context();
            let outcome = asking(when).run(args.clone(), context.clone()).await;
            assert_eq!(outcome, Outcome::Value(json!({"status": "pending"})), "{when:?}");
            let raised = context.raised().unwrap();
            assert_eq!(raised.hint, "Days for ann?");
            assert_eq!(raised.payload, Some(json!({"days": 5})));
            assert_eq!(raised.declined, Some(object(json!({"status": "no 5 days"}))));
        }
        let small = context();
        let outcome = asking(Some("args.days > 9")).run(args.clone(), small.clone()).await;
        assert_eq!((outcome, small.raised()), (Outcome::Value(json!({"days": null})), None));

        let said = |confirmed| {
            Some(Confirmation { confirmed, payload: Some(json!({"days": 2, "more": "${id}"})) })
        };
        let again = confirmed(said(true));
        let outcome = asking(None).run(args.clone(), again.clone()).await;
        assert_eq!((outcome, again.raised()), (Outcome::Value(json!({"days": 2})), None));
        // Nobody starts a body that was refused; if somebody did, it would only ask again.
        let refused = confirmed(said(false));
        asking(None).run(args, refused.clone()).await;
        assert!(refused.raised().is_some());
    }

    #[test]
    fn places_are_known() {
        assert!(is_place("confirmation.payload.days") && !is_place("confirmation.payload."));
        assert!(is_place("args.a.b") && is_place("call_id"));
        assert!(!is_place("args.") && !is_place("args") && !is_place("secret"));
    }
}
