//! The port of tools: what a body gets, and what it may give back. Whoever runs bodies checks
//! arguments before (`arguments`), catches panics, keeps time, and records what came back.
//!
//! A body knows its call and the state it may read and write. What it writes leaves it only through
//! `Context::finish`, which the runner calls when the body is back; nothing is stored from here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde_json::Value;

use crate::agent::Declaration;
use crate::session::approval::{Confirmation, Raised};
use crate::session::content::{Actions, Object};
use crate::session::id::{CallId, InvocationId, Principal, SessionKey, UserId};

pub mod arguments;
pub mod declared;
pub mod function;

pub use declared::Declared;
pub use function::Function;

/// Something that an agent can call.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// What is known of it without running it.
    fn declaration(&self) -> &Declaration;

    /// Runs the body once, with the effective arguments. It may be dropped at any await, when its
    /// time is over; and it may be run again for the same call if its effect allows that, then with
    /// the same idempotency key.
    async fn run(&self, args: Object, context: Context) -> Outcome;
}

/// What a body gave.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A value: of an ordinary tool its result, of a long-running one its placeholder.
    Value(Value),
    /// Nothing: of an ordinary tool `{"result": null}`, of a long-running one no placeholder.
    Nothing,
    /// It failed for sure: a text, or an object. The model is told, and the call is done.
    Error(Value),
    /// The body cannot say whether its effect happened, and this is why: somebody has to find out.
    Unknown(String),
}

impl Outcome {
    /// The response that tells it; none if a long-running tool gave nothing, in ADK's eyes
    /// (`arguments::is_nothing`). What is unknown has no response, but a reason.
    pub fn response(self, long_running: bool) -> Result<Option<Object>, String> {
        let value = match self {
            Self::Value(value) => value,
            Self::Nothing => Value::Null,
            Self::Error(what) => return Ok(Some(arguments::error(what))),
            Self::Unknown(why) => return Err(why),
        };
        let none = long_running && arguments::is_nothing(&value);
        Ok((!none).then(|| arguments::wrap(value)))
    }
}

/// Which call a body runs for.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The call.
    pub call_id: CallId,
    /// `call id/execution`: all attempts of one execution share it, so that whoever is asked to do
    /// something can see that he has done it already.
    pub idempotency_key: String,
    /// The invocation.
    pub invocation_id: InvocationId,
    /// The session.
    pub session: SessionKey,
    /// Which agent called, such as `root/helper`.
    pub agent_path: String,
    /// Who set the invocation going.
    pub principal: Principal,
    /// What somebody said to the question that the body raised before, or that its tool asks.
    pub confirmation: Option<Confirmation>,
}

/// What a body sees of the world; a clone is the same context.
#[derive(Debug, Clone)]
pub struct Context {
    facts: Arc<Facts>,
    state: Arc<Object>,
    did: Arc<Mutex<Did>>,
}

/// What a body did beside its outcome.
#[derive(Debug, Default)]
struct Did {
    actions: Actions,
    raised: Option<Raised>,
}

impl Context {
    /// A context with the state as it is before the body: keys have their prefix, `app:`, `user:`,
    /// `temp:`, or none for the session's own.
    pub fn new(facts: Facts, state: Arc<Object>) -> Self {
        Self { facts: Arc::new(facts), state, did: Arc::default() }
    }

    /// The call.
    pub fn call_id(&self) -> &CallId {
        &self.facts.call_id
    }

    /// The key that makes an effect happen once, `call id/execution`.
    pub fn idempotency_key(&self) -> &str {
        &self.facts.idempotency_key
    }

    /// The invocation.
    pub fn invocation_id(&self) -> &InvocationId {
        &self.facts.invocation_id
    }

    /// The session's names.
    pub fn session(&self) -> &SessionKey {
        &self.facts.session
    }

    /// The session's user.
    pub fn user(&self) -> &UserId {
        &self.facts.session.user
    }

    /// The agent that called, such as `root/helper`.
    pub fn agent_path(&self) -> &str {
        &self.facts.agent_path
    }

    /// Who set the invocation going.
    pub fn principal(&self) -> &Principal {
        &self.facts.principal
    }

    /// The state at this key, with what this body wrote. Null is never kept: it is no value.
    pub fn get(&self, key: &str) -> Option<Value> {
        let did = self.did();
        let value = did.actions.state_delta.get(key).or_else(|| self.state.get(key));
        value.filter(|value| !value.is_null()).cloned()
    }

    /// Writes state, to be seen by all once the response is recorded. The key's prefix says whose
    /// it is: `app:` all users', `user:` all sessions' of the user, `temp:` the invocation's until
    /// it ends, none the session's. Null removes the key.
    pub fn set(&self, key: impl Into<String>, value: impl Into<Value>) {
        self.did().actions.state_delta.insert(key.into(), value.into());
    }

    /// Removes a key of the state.
    pub fn remove(&self, key: impl Into<String>) {
        self.set(key, Value::Null);
    }

    /// The response needs no words of the model: it is not asked again for it.
    pub fn skip_summarization(&self) {
        self.did().actions.skip_summarization = true;
    }

    /// What a person said, if somebody was asked about this call: the body runs because it was
    /// agreed to. None if nobody was asked.
    pub fn confirmation(&self) -> Option<&Confirmation> {
        self.facts.confirmation.as_ref()
    }

    /// Asks a person before the body does its work (ADK: `tool_context.request_confirmation`).
    /// What the body then returns is told to the model as the call's result so far. Once somebody
    /// has agreed the body runs again, as a new execution, and sees what was said
    /// ([`confirmation`](Self::confirmation)); if they refuse it does not run again. Of several
    /// raised in one run the last is asked.
    pub fn request_confirmation(&self, question: Raised) {
        self.did().raised = Some(question);
    }

    /// What the body asks, if it does; whoever runs bodies takes it before `finish`.
    pub fn raised(&self) -> Option<Raised> {
        self.did().raised.take()
    }

    /// What the body did beside its outcome. Clones that live on can write no more into it.
    pub fn finish(self) -> Actions {
        std::mem::take(&mut self.did().actions)
    }

    /// A panic of a body between two writes leaves whole writes.
    fn did(&self) -> MutexGuard<'_, Did> {
        self.did.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::session::id::{AppName, SessionId};

    pub fn context() -> Context {
        confirmed(None)
    }

    /// A context in which somebody said this.
    pub fn confirmed(confirmation: Option<Confirmation>) -> Context {
        let session = SessionKey {
            app: AppName::parse("root").unwrap(),
            user: UserId::parse("ann").unwrap(),
            id: SessionId::parse("s1").unwrap(),
        };
        let facts = Facts {
            call_id: CallId::parse("adk-1").unwrap(),
            idempotency_key: "adk-1/1".into(),
            invocation_id: InvocationId::parse("e-1").unwrap(),
            session,
            agent_path: "root".into(),
            principal: Principal::parse("local:ann").unwrap(),
            confirmation,
        };
        let state = json!({"app:limit": 100, "user:name": "Ann", "count": 1});
        Context::new(facts, Arc::new(state.as_object().unwrap().clone()))
    }

    #[test]
    fn a_body_sees_its_own_writes_and_the_runner_takes_them() {
        let context = context();
        let clone = context.clone();
        clone.set("count", 2);
        clone.set("temp:note", "x");
        clone.remove("user:name");
        clone.skip_summarization();
        assert_eq!(context.get("count"), Some(json!(2)));
        assert_eq!(context.get("app:limit"), Some(json!(100)));
        assert_eq!((context.get("user:name"), context.get("missing")), (None, None));
        assert_eq!((context.user().as_str(), context.agent_path()), ("ann", "root"));
        let actions = context.finish();
        let delta = json!({"count": 2, "temp:note": "x", "user:name": null});
        assert_eq!(Value::Object(actions.state_delta), delta);
        assert!(actions.skip_summarization);
        clone.set("late", 1);
        assert_eq!(clone.get("count"), Some(json!(1)));
    }

    #[test]
    fn a_body_asks_and_sees_what_was_said() {
        let context = context();
        assert_eq!((context.confirmation(), context.raised()), (None, None));
        let question = |hint: &str| Raised { hint: hint.to_owned(), ..Raised::default() };
        context.request_confirmation(question("first"));
        context.clone().request_confirmation(question("last"));
        assert_eq!(context.raised(), Some(question("last")));
        assert_eq!(context.raised(), None);
        let said = Confirmation { confirmed: true, payload: Some(json!({"days": 2})) };
        assert_eq!(confirmed(Some(said.clone())).confirmation(), Some(&said));
    }

    #[test]
    fn outcomes_are_told_as_adk_does() {
        let told = |outcome: Outcome, long| outcome.response(long).unwrap().map(Value::Object);
        assert_eq!(told(Outcome::Nothing, false), Some(json!({"result": null})));
        assert_eq!(told(Outcome::Nothing, true), None);
        assert_eq!(told(Outcome::Value(json!({})), true), None);
        assert_eq!(told(Outcome::Value(json!({})), false), Some(json!({})));
        assert_eq!(told(Outcome::Value(json!(5)), true), Some(json!({"result": 5})));
        assert_eq!(told(Outcome::Error("no".into()), true), Some(json!({"error": "no"})));
        assert_eq!(Outcome::Unknown("cut off".into()).response(true), Err("cut off".into()));
    }
}
