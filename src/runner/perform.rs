//! Performing what was decided: running bodies and asking models. What comes back goes to the
//! driver as `Done`; nothing is stored from here.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cast::{self, Role};
use super::history::History;
use super::live::{Live, Speaker};
use super::step::{Done, Gave, ModelKey};
use super::{Inner, index, prompt, refuse_store};
use crate::agent::approvals::Approvals;
use crate::agent::{self, cel};
use crate::model::{self, Pieces, Request, Said};
use crate::session::Session;
use crate::session::approval::{Gate, Raised};
use crate::session::call::{Behaviour, Call, Effect, Kind, Spec};
use crate::session::content::{Actions, CallFacts, Data, Event, FunctionCall, Object, Part};
use crate::session::decide::Reply;
use crate::session::id::{CallId, EventId, SessionKey};
use crate::session::json as exact;
use crate::session::record::Outcome;
use crate::session::refusal::Refusal;
use crate::tool::{self, Context, Facts, arguments};

/// What an event has beside its content, at most, in bytes.
const EVENT_MARGIN: usize = 16 * 1024;

/// A body, ready to run.
pub(super) struct Body {
    pub call: Call,
    /// Before its start went to the store.
    pub since: Instant,
    /// How many calls share the event that will tell what it gave.
    pub siblings: usize,
}

impl Inner {
    /// Runs a body to its end, its deadline or its panic.
    pub(super) async fn run_body(self: Arc<Self>, session: Arc<Session>, body: Body) -> Done {
        let Body { call, since, siblings } = body;
        let key = (call.spec.id.clone(), call.execution, call.attempt);
        let done = |gave, actions: Actions, raised| Done::Body {
            key: key.clone(),
            gave,
            state_delta: actions.state_delta,
            skip_summarization: actions.skip_summarization,
            raised,
        };
        if let Some(text) = self.stopped_by(&session, &call) {
            let error = Outcome::Error(arguments::error(text));
            return done(Gave::Outcome(error), Actions::default(), None);
        }
        let part = self.part_of(&session, &call).expect("nothing stops it, so it is there");
        let body = part.body.clone();
        // A declared body sees its call only.
        let state = if self.is_declared(&session, &call) {
            Object::new()
        } else {
            match self.state_of(&session, &call).await {
                Ok(state) => state,
                Err(_) => return done(Gave::NotRun, Actions::default(), None),
            }
        };
        let context = Context::new(facts(&session, &call), Arc::new(state));
        if since.elapsed() > self.limits.start_window {
            tracing::warn!(call_id = %call.spec.id, "a body was not run: its start took too long");
            return done(Gave::NotRun, Actions::default(), None);
        }
        tracing::debug!(call_id = %call.spec.id, tool = call.spec.name, "body starts");
        let (args, given) = (call.spec.args.clone(), context.clone());
        let guarded = AssertUnwindSafe(async move { body.run(args, given).await }).catch_unwind();
        let outcome = match tokio::time::timeout(call.spec.behaviour.timeout, guarded).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => tool::Outcome::Error("the tool failed unexpectedly".into()),
            Err(_) => tool::Outcome::Unknown("the tool did not come back in time".to_owned()),
        };
        let raised = context.raised();
        let mut actions = context.finish();
        let room = self.limits.event_bytes.saturating_sub(EVENT_MARGIN) / siblings.max(1) / 2;
        let outcome = match check_delta(&mut actions, room) {
            Ok(()) => outcome,
            Err(wrong) => tool::Outcome::Error(wrong.into()),
        };
        let mut gave = gave(&call, outcome, room);
        if let Some(wrong) = raised.as_ref().and_then(|raised| check_raised(raised, room).err()) {
            gave = Gave::Outcome(Outcome::Error(arguments::error(wrong)));
        }
        tracing::debug!(call_id = %call.spec.id, tool = call.spec.name, "body is back");
        done(gave, actions, raised)
    }

    /// The body is declared in an agent file: it only builds an object.
    pub(super) fn is_declared(&self, session: &Session, call: &Call) -> bool {
        let open = session.invocations.get(&call.invocation);
        let frame = open.and_then(|open| open.frames.get(&call.frame));
        let role = frame.and_then(|frame| self.cast.agent(&session.key.app, &frame.agent));
        let part = role.and_then(|role| role.tools.get(&call.spec.name));
        part.is_some_and(|part| part.declaration.body != agent::Body::Function)
    }

    /// The tool of a call, as it is now.
    pub(super) fn part_of(&self, session: &Session, call: &Call) -> Option<&cast::Part> {
        self.role_of(session, call)?.tools.get(&call.spec.name)
    }

    /// The agent of a call, as it is now.
    pub(super) fn role_of(&self, session: &Session, call: &Call) -> Option<&Role> {
        let open = session.invocations.get(&call.invocation)?;
        let agent = &open.frames.get(&call.frame)?.agent;
        self.cast.agent(&session.key.app, agent)
    }

    /// How a call is judged before anything of it runs, by what its agent says now.
    pub(super) fn judged(
        &self,
        role: &Role,
        key: &SessionKey,
        part: &cast::Part,
        args: &Object,
    ) -> Option<Gate> {
        role.agent.approvals.judge(&part.declaration, &input(role, key, part, args))
    }

    /// Why the body of a call may not start, whoever agreed to it: its tool is another one than was
    /// judged, or a policy forbids it by now. A rule that cannot be evaluated forbids what no
    /// person has looked at.
    fn stopped_by(&self, session: &Session, call: &Call) -> Option<String> {
        let changed = "TOOL_CHANGED: the tool is not there any more; it was not run.";
        let (role, part) = match (self.role_of(session, call), self.part_of(session, call)) {
            (Some(role), Some(part)) => (role, part),
            _ => return Some(changed.to_owned()),
        };
        let gate = call.spec.gate.as_ref();
        if gate.is_some_and(|gate| gate.tool != Approvals::identity(&part.declaration)) {
            let text = "TOOL_CHANGED: the tool is another one than was judged; it was not run.";
            return Some(text.to_owned());
        }
        let asked = call.gated.as_ref().and_then(|gated| gated.confirmation.as_ref());
        let agreed = asked.is_some_and(|said| said.confirmed);
        let input = input(role, &session.key, part, &call.spec.args);
        let rule = match role.agent.approvals.denied(&input)? {
            Ok(why) => why.rule,
            Err(why) if !agreed => why.rule,
            Err(_) => return None,
        };
        let text = "POLICY_DENIED: the agent's policy forbids this call";
        Some(format!("{text} ({rule}). It was not run."))
    }

    /// The state that a body sees: all of it, with prefixes.
    async fn state_of(&self, session: &Session, call: &Call) -> Result<Object, Refusal> {
        let mut state = self.merged_state(session).await?;
        if let Some(open) = session.invocations.get(&call.invocation) {
            state.extend(open.temp.clone());
        }
        Ok(state)
    }

    /// The session's state with what it shares with others.
    pub(super) async fn merged_state(&self, session: &Session) -> Result<Object, Refusal> {
        let key = &session.key;
        let scopes = [index::app_scope(&key.app), index::user_scope(&key.app, &key.user)];
        let shared = self.store.shared(&scopes).await.map_err(refuse_store)?;
        let mut state = session.state.clone();
        for (name, bytes) in shared.into_values().flatten() {
            let value = serde_json::from_slice(&bytes)
                .map_err(|wrong| super::quarantine(&session.uid, &wrong))?;
            state.insert(name, value);
        }
        Ok(state)
    }

    /// What a model is asked.
    pub(super) async fn request(
        &self,
        session: &Session,
        history: &mut History,
        live: &Live,
        (invocation, frame): &ModelKey,
        role: &Role,
    ) -> Result<Request, Refusal> {
        let told = history.upto(self, session, live, role.agent.max_prompt_events).await?;
        let to = prompt::Frame { invocation, frame };
        Ok(Request {
            agent: role.agent.name.to_string(),
            instruction: role.agent.instruction.clone(),
            contents: Arc::new(prompt::build(&told, to, &session.pending_calls())),
            tools: role.specs.clone(),
            news: prompt::news(&told, to),
            stream: session.invocations.get(invocation).is_some_and(|open| open.config.streaming),
        })
    }

    /// Asks a model once.
    pub(super) async fn ask_model(
        self: Arc<Self>,
        session: Arc<Session>,
        key: ModelKey,
        seen: u64,
        request: Request,
        live: Arc<Live>,
    ) -> Done {
        let (invocation, frame) = &key;
        let open = session.invocations.get(invocation);
        let agent = open.and_then(|open| open.frames.get(frame)).map(|frame| frame.agent.clone());
        let role = agent.as_ref().and_then(|name| self.cast.agent(&session.key.app, name));
        let Some(role) = role else {
            let reply = Err(gone());
            return Done::Model { key, seen, reply };
        };
        let event_id = EventId::parse(self.ids.text()).expect("a UUID is an id");
        let mut pieces = Speaking {
            live,
            speaker: None,
            event: Event {
                id: event_id.clone(),
                sequence: 0,
                invocation_id: invocation.clone(),
                author: role.agent.name.to_string(),
                time: self.store.now(),
                frame: Some(frame.clone()),
                content: None,
                long_running_tool_ids: None,
                actions: Actions::default(),
                finish_reason: String::new(),
                usage: None,
                error_code: String::new(),
                error_message: String::new(),
                custom_metadata: open.map(|o| o.config.custom_metadata.clone()).unwrap_or_default(),
                calls: Default::default(),
                imported: None,
            },
        };
        let asked = async { role.model.reply(request, &mut pieces).await };
        let asked = AssertUnwindSafe(asked).catch_unwind().await;
        let reply = match asked {
            Ok(Ok(reply)) => self.judge(role, &session.key, reply, event_id),
            Ok(Err(model::Error { code, message })) => Err((code, message)),
            Err(_) => {
                Err(("MODEL_PANICKED".to_owned(), "the model failed unexpectedly".to_owned()))
            }
        };
        Done::Model { key, seen, reply }
    }

    /// Judges what a model said: ids for its calls, effective arguments, what cannot be run.
    fn judge(
        &self,
        role: &Role,
        key: &SessionKey,
        said: model::Reply,
        event_id: EventId,
    ) -> Result<Reply, (String, String)> {
        let mut reply = Reply {
            parts: Vec::new(),
            calls: Vec::new(),
            facts: Vec::new(),
            finish_reason: said.finish_reason,
            usage: said.usage,
            event_id: Some(event_id),
        };
        for part in said.parts {
            match part {
                Said::Part(part) if part.call().is_some() || part.response().is_some() => {
                    let message = "the model gave a call or a response as plain data".to_owned();
                    return Err(("MODEL_REPLY_INVALID".to_owned(), message));
                }
                Said::Part(part) => reply.parts.push(part),
                Said::Call { model_id, name, args, thought_signature } => {
                    let (spec, facts) = self.judge_call(role, key, model_id, name, &args);
                    let (id, name) = (spec.id.clone(), spec.name.clone());
                    let kept = exact::check(&json!(args), exact::MAX_ARGS_DEPTH).is_ok();
                    let args = if kept { args } else { Object::new() };
                    let data = Data::FunctionCall(FunctionCall { id: id.clone(), name, args });
                    let data = Some(data);
                    reply.parts.push(Part { data, thought: false, thought_signature });
                    reply.facts.push((id, facts));
                    reply.calls.push(spec);
                }
            }
        }
        if reply.parts.is_empty() {
            let message = "the model's reply was empty".to_owned();
            return Err(("MODEL_RETURNED_NO_CONTENT".to_owned(), message));
        }
        let size = json_bytes(&(&reply.parts, &reply.calls));
        let most = self.limits.event_bytes.saturating_sub(EVENT_MARGIN);
        if size > most {
            let message = format!("the model's reply is larger than an event may be: {most} bytes");
            return Err(("LIMIT_EXCEEDED".to_owned(), message));
        }
        Ok(reply)
    }
    fn judge_call(
        &self,
        role: &Role,
        key: &SessionKey,
        model_id: Option<String>,
        name: String,
        args: &Object,
    ) -> (Spec, CallFacts) {
        let (mut behaviour, judged) = match role.tools.get(&name) {
            Some(part) => (part.declaration.behaviour.clone(), part.parameters.effective(args)),
            None => {
                let known = role.agent.tools.iter().map(|tool| tool.name.as_str());
                let behaviour = Behaviour { effect: Effect::Read, ..Behaviour::default() };
                (behaviour, Err(arguments::unknown_tool(&name, known)))
            }
        };
        let mut judged = judged;
        if let (Some(part), Ok(effective)) = (role.tools.get(&name), &judged) {
            match arguments::answer_schema_of(&part.declaration, effective) {
                Ok(None) => {}
                Ok(schema) => behaviour.answer_schema = schema,
                Err(wrong) => judged = Err(arguments::error(wrong)),
            }
        }
        let (effective, failed) = match judged {
            Ok(effective) => (effective, None),
            Err(response) => (args.clone(), Some(response)),
        };
        // Arguments that cannot be told to clients are not kept: the call fails without them.
        let (effective, args_digest, failed) = match exact::args_digest(&name, &effective) {
            Ok(digest) => (effective, digest, failed),
            Err(wrong) => {
                let wrong = arguments::error(format!("the arguments cannot be used: {wrong}"));
                (Object::new(), String::new(), Some(wrong))
            }
        };
        let kind = if behaviour.input { Kind::Input } else { Kind::LongRunning };
        let id = CallId::parse(format!("adk-{}", self.ids.text())).expect("a UUID makes an id");
        let changed = !exact::same(&Value::Object(effective.clone()), &Value::Object(args.clone()));
        let facts = CallFacts {
            kind: behaviour.long_running.then_some(kind),
            args_digest: args_digest.clone(),
            exact_json: if changed { json!(effective).to_string() } else { String::new() },
            comment: String::new(),
        };
        let part = role.tools.get(&name).filter(|_| failed.is_none());
        let gate = part.and_then(|part| self.judged(role, key, part, &effective)).map(Box::new);
        (Spec { id, model_id, name, args: effective, args_digest, behaviour, gate, failed }, facts)
    }
}

/// Code and message of an event that says that an agent is gone.
pub(super) fn gone() -> (String, String) {
    ("AGENT_CHANGED".to_owned(), "the agent is not there any more".to_owned())
}

/// What rules are told of a call.
fn input<'a>(
    role: &'a Role,
    key: &'a SessionKey,
    part: &'a cast::Part,
    args: &'a Object,
) -> cel::Input<'a> {
    cel::Input::new(cel::Call {
        args,
        tool: &part.declaration.name,
        agent: role.agent.name.as_str(),
        app: key.app.as_str(),
        user: key.user.as_str(),
        session: key.id.as_str(),
    })
}

/// A question that is too large or nests too deep is not asked: the body has failed.
fn check_raised(raised: &Raised, room: usize) -> Result<(), String> {
    let value = serde_json::to_value(raised).map_err(|wrong| wrong.to_string())?;
    if exact::check(&value, exact::MAX_ARGS_DEPTH).is_ok() && json_bytes(&value) <= room {
        return Ok(());
    }
    Err("what the tool asks is too large, or nests too deep".to_owned())
}

fn facts(session: &Session, call: &Call) -> Facts {
    Facts {
        call_id: call.spec.id.clone(),
        idempotency_key: call.idempotency_key(),
        invocation_id: call.invocation.clone(),
        session: session.key.clone(),
        agent_path: call.frame.agent_path(),
        principal: session
            .invocations
            .get(&call.invocation)
            .map(|open| open.principal.clone())
            .expect("a call's invocation is open while its body runs"),
        confirmation: call.gated.as_ref().and_then(|gated| gated.confirmation.clone()),
    }
}

fn json_bytes(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |bytes| bytes.len())
}

/// Changes of state that are too large or nest too deep are dropped, and the body has failed.
fn check_delta(actions: &mut Actions, room: usize) -> Result<(), String> {
    let delta = Value::Object(actions.state_delta.clone());
    if exact::check(&delta, exact::MAX_DEPTH).is_ok() && json_bytes(&delta) <= room {
        return Ok(());
    }
    actions.state_delta.clear();
    Err("the changes of state that the tool made are too large, or nest too deep".to_owned())
}

/// What a body's outcome means for its call. What clients could not decode becomes an error.
fn gave(call: &Call, outcome: tool::Outcome, room: usize) -> Gave {
    let failed = matches!(outcome, tool::Outcome::Error(_));
    let response = match outcome.response(call.spec.behaviour.long_running) {
        Ok(response) => response,
        Err(why) => {
            tracing::warn!(call_id = %call.spec.id, reason = why, "outcome of a body is unknown");
            return Gave::Unknown;
        }
    };
    let Some(response) = response else { return Gave::Outcome(Outcome::Nothing) };
    let value = Value::Object(response);
    let wrong = match exact::check(&value, exact::MAX_DEPTH) {
        Err(wrong) => Some(format!("the tool's result cannot be used: {wrong}")),
        Ok(()) if json_bytes(&value) > room => {
            Some(format!("the tool's result is larger than the {room} bytes that it may have"))
        }
        Ok(()) => None,
    };
    Gave::Outcome(match (wrong, value) {
        (Some(wrong), _) => Outcome::Error(arguments::error(wrong)),
        (None, Value::Object(response)) if failed => Outcome::Error(response),
        (None, Value::Object(response)) => Outcome::Value(response),
        (None, _) => unreachable!("it was made an object"),
    })
}

/// Shows a text to whoever follows the session while it is spoken.
struct Speaking {
    live: Arc<Live>,
    event: Event,
    speaker: Option<Speaker>,
}

impl Pieces for Speaking {
    fn text(&mut self, piece: &str) {
        let speaker = self.speaker.get_or_insert_with(|| self.live.speak(self.event.clone()));
        speaker.say(piece);
    }
}

/// How long a driver waits before it asks the store again that failed it.
pub(super) const STORE_RETRY: Duration = Duration::from_millis(200);
