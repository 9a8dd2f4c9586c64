//! Tools whose body is declared in an agent file: an object with places, or nothing. Such a body
//! only builds its result, so it reads no more than its call and may run again at any time; it
//! gives the same result each time.

use async_trait::async_trait;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Context, Outcome, Tool};
use crate::agent::{Body, Declaration, template};
use crate::session::content::Object;

/// A tool that is whole in its declaration.
#[derive(Debug, Clone)]
pub struct Declared {
    declaration: Declaration,
    /// None: it returns nothing.
    template: Option<Object>,
}

impl Declared {
    /// The tool; none if the declaration's body is a function.
    pub fn new(declaration: Declaration) -> Option<Self> {
        let template = match &declaration.body {
            Body::Function => return None,
            Body::Object(template) => Some(template.clone()),
            Body::Nothing => None,
        };
        Some(Self { declaration, template })
    }
}

/// Whether a body may have this place: `args.KEY` (an argument, `args.a.b` inside one) or one of
/// `call_id`, `id`, `invocation_id`, `session_id`, `user_id`.
pub fn is_place(name: &str) -> bool {
    let fixed = ["call_id", "id", "invocation_id", "session_id", "user_id"];
    fixed.contains(&name) || name.strip_prefix("args.").is_some_and(|key| !key.is_empty())
}

#[async_trait]
impl Tool for Declared {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    async fn run(&self, args: Object, context: Context) -> Outcome {
        let Some(template) = &self.template else { return Outcome::Nothing };
        let filled = template::render(template, &mut |name| match name {
            "call_id" => Some(context.call_id().as_str().into()),
            "id" => Some(id(context.idempotency_key()).into()),
            "invocation_id" => Some(context.invocation_id().as_str().into()),
            "session_id" => Some(context.session().id.as_str().into()),
            "user_id" => Some(context.user().as_str().into()),
            // An argument that was not given is null.
            _ => Some(template::at(&args, name.strip_prefix("args.")?).unwrap_or(Value::Null)),
        });
        Outcome::Value(filled.into())
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

    use super::super::tests::context;
    use super::*;
    use crate::agent::Behaviour;

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

    #[test]
    fn places_are_known() {
        assert!(is_place("args.a.b") && is_place("call_id"));
        assert!(!is_place("args.") && !is_place("args") && !is_place("secret"));
    }
}
