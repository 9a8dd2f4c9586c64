//! The agent of every history: its model calls by lot, and its bodies do what the lot says. Both
//! belong to a process and die with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign::agent::approvals::{Approvals, Need, ToolApproval};
use countersign::agent::{Agent, Agents, Answers, Behaviour, Body, Declaration, Effect};
use countersign::model::{Error, Model, Pieces, Reply, Request, Said};
use countersign::runner::{Cast, Registry};
use countersign::session::approval::{Action, Deadline, Raised};
use countersign::session::content::{Content, Object, Part};
use countersign::session::id::AgentName;
use countersign::session::json::args_digest;
use countersign::tool::{Context, Outcome, Tool};
use serde_json::{Value, json};

use super::process::Life;
use super::world::{Prompt, Start, World};

/// The app of every history.
pub const APP: &str = "clerk";

/// How long a body may run.
const TIMEOUT: Duration = Duration::from_secs(3);

/// What happens if nobody decides on a call of these tools.
fn approval(tool: &str) -> ToolApproval {
    let after = |seconds, action| Deadline { after: Duration::from_secs(seconds), action };
    let remind = after(1, Action::Remind);
    let escalate = after(2, Action::Escalate { to: "boss".to_owned() });
    let deadlines = match tool {
        "send" => vec![remind, escalate],
        "fix" => vec![remind, after(4, Action::Deny)],
        "hold" => vec![escalate, after(6, Action::Expire)],
        _ => return ToolApproval::default(),
    };
    ToolApproval { need: Some(Need::Always), deadlines, ..ToolApproval::default() }
}

/// The tools, and what they are.
fn declarations() -> Vec<Declaration> {
    let ordinary = |effect| Behaviour { effect, timeout: TIMEOUT, ..Behaviour::default() };
    let long = || Behaviour { long_running: true, ..ordinary(Effect::Once) };
    let approved = BTreeMap::from([("status".to_owned(), vec![json!("approved")])]);
    let tools = [
        ("look", ordinary(Effect::Read)),
        ("put", ordinary(Effect::Idempotent)),
        ("pay", ordinary(Effect::Once)),
        ("ask", Behaviour { inbox: true, ..long() }),
        ("wait", long()),
        ("order", Behaviour { effect: Effect::Read, ..long() }),
        ("job", Behaviour { answers: Answers::Many, final_when: approved, ..long() }),
        ("send", ordinary(Effect::Once)),
        ("fix", ordinary(Effect::Idempotent)),
        ("hold", Behaviour { inbox: true, ..long() }),
        ("raise", ordinary(Effect::Once)),
        ("soon", Behaviour { expires_after: Some(Duration::from_secs(2)), ..long() }),
    ];
    let declaration = |(name, behaviour): (&str, Behaviour)| Declaration {
        name: name.to_owned(),
        description: String::new(),
        parameters: json!({"type": "object", "additionalProperties": true}),
        behaviour,
        approval: approval(name),
        body: Body::Function,
    };
    tools.into_iter().map(declaration).collect()
}

/// The agent with all that it needs to run in one process.
pub fn cast(world: &Arc<World>, life: &Life) -> Cast {
    let mut registry = Registry::default();
    let tools = declarations();
    for declaration in &tools {
        let (world, life, declaration) = (world.clone(), life.clone(), declaration.clone());
        registry.tool(Hand { world, life, declaration });
    }
    registry.model("mind", Mind { world: world.clone(), life: life.clone() });
    let profile = &world.profile;
    let approvals = Approvals {
        barrier: profile.barrier,
        one_at_a_time: profile.one_at_a_time,
        disable_not_required_bypass: profile.siblings,
        ..Approvals::default()
    };
    let approvals = approvals.seal(&tools);
    let mut agents = Agents::default();
    agents.insert(Agent {
        name: AgentName::parse(APP).unwrap(),
        description: String::new(),
        instruction: String::new(),
        model: countersign::agent::Model::Named("mind".to_owned()),
        tools,
        approvals,
        max_prompt_events: None,
    });
    Cast::new(&agents, &registry).unwrap()
}

struct Hand {
    world: Arc<World>,
    life: Life,
    declaration: Declaration,
}

#[async_trait]
impl Tool for Hand {
    fn declaration(&self) -> &Declaration {
        &self.declaration
    }

    async fn run(&self, args: Object, context: Context) -> Outcome {
        let (world, life) = (&self.world, &self.life);
        life.go_on().await;
        let name = self.declaration.name.as_str();
        let key = context.idempotency_key().to_owned();
        let bad = !world.is_calm() && world.percent(world.profile.bodies);
        let fate = if bad { world.below(4) } else { 4 + world.below(8) };
        let start = {
            let mut journal = world.journal();
            let (call, commits) = (context.call_id().clone(), journal.commits);
            let (digest, key) = (args_digest(name, &args).unwrap(), key.clone());
            journal.starts.push(Start { call, key, digest, commits, unknown: fate < 2 });
            journal.starts.len()
        };
        let number = life.number;
        world.tell(|| format!("process {number} runs {name} {key} ({start}), fate {fate}"));
        if fate > 8 && world.percent(50) {
            context.set(["user:who", "temp:note", "last"][(start) % 3], start);
        }
        if fate == 9 {
            context.skip_summarization();
            world.saw("a body that needs no summary");
        }
        let agreed = context.confirmation().is_some_and(|said| said.confirmed);
        if agreed {
            world.saw("a body of an approved call");
        }
        if fate > 2 && name == "raise" && (!agreed || world.percent(20)) {
            let declined = world.percent(50).then(|| Object::from_iter([("no".into(), 1.into())]));
            let hint = "really?".to_owned();
            context.request_confirmation(Raised { hint, payload: None, declined });
            world.saw("a body that asks");
        }
        world.pause(120).await;
        life.go_on().await;
        let gives = json!({"body": start});
        match fate {
            0 => {
                world.saw("a body out of time");
                World::wait(2 * TIMEOUT).await;
                std::future::pending().await
            }
            1 => {
                world.saw("a body that does not know");
                Outcome::Unknown("a fault".to_owned())
            }
            2 => {
                world.saw("a body that panics");
                // Not `panic!`, which would be printed.
                std::panic::resume_unwind(Box::new("a fault"))
            }
            3 | 4 => {
                world.saw("a body that fails");
                Outcome::Error(gives)
            }
            5 if self.declaration.behaviour.long_running => Outcome::Nothing,
            _ if name == "wait" => Outcome::Nothing,
            _ => Outcome::Value(gives),
        }
    }
}

struct Mind {
    world: Arc<World>,
    life: Life,
}

#[async_trait]
impl Model for Mind {
    async fn reply(&self, request: Request, pieces: &mut dyn Pieces) -> Result<Reply, Error> {
        let (world, life) = (&self.world, &self.life);
        life.go_on().await;
        world.tell(|| {
            let contents = json!(*request.contents);
            format!("process {} asks the model of {:?}: {contents}", life.number, request.news)
        });
        self.remember(&request);
        world.pause(100).await;
        life.go_on().await;
        let bad = !world.is_calm() && world.percent(world.profile.models);
        let fate = if bad { world.below(3) } else { 3 };
        let mut parts = Vec::new();
        match fate {
            0 => {
                world.saw("a model that fails");
                let (code, message) = ("MODEL_UNWILLING".to_owned(), "a fault".to_owned());
                return Err(Error { code, message });
            }
            1 => {
                world.saw("a model that panics");
                std::panic::resume_unwind(Box::new("a fault"));
            }
            2 => world.saw("a model that says nothing"),
            _ => {
                let calls = if world.percent(55) { 1 + world.below(3) } else { 0 };
                for _ in 0..calls {
                    parts.extend(world.take_call().then(|| self.call()));
                }
                if parts.is_empty() {
                    let text = format!("so it is {}", world.count());
                    if request.stream {
                        text.split_inclusive(' ').for_each(|piece| pieces.text(piece));
                    }
                    parts.push(Said::Part(Part::text(text)));
                }
            }
        }
        Ok(Reply { parts, finish_reason: "STOP".to_owned(), usage: None })
    }
}

impl Mind {
    fn call(&self) -> Said {
        let names = [
            "look", "put", "pay", "ask", "wait", "order", "job", "soon", "gone", "send", "fix",
            "hold", "raise", "send", "send", "soon",
        ];
        let name = self.world.pick(&names).unwrap().to_string();
        let args = Object::from_iter([("amount".to_owned(), self.world.below(2).into())]);
        Said::Call { model_id: None, name, args, thought_signature: Vec::new() }
    }

    /// Notes what it was told, in which each call must have exactly one response, behind it.
    fn remember(&self, request: &Request) {
        let contents = &request.contents;
        let (mut responses, mut texts) = (BTreeMap::new(), BTreeSet::new());
        for (at, content) in contents.iter().enumerate() {
            texts.extend(content.parts.iter().filter_map(|part| match &part.data {
                Some(countersign::session::content::Data::Text(text)) => Some(text.clone()),
                _ => None,
            }));
            let calls: BTreeSet<_> = content.calls().map(|call| call.id.clone()).collect();
            let next: Vec<_> =
                contents.get(at + 1).into_iter().flat_map(Content::responses).collect();
            let ids: BTreeSet<_> = next.iter().map(|response| response.id.clone()).collect();
            let paired = calls.is_empty() || (ids == calls && next.len() == calls.len());
            self.world.check(paired, || format!("calls without their responses: {contents:?}"));
            for response in next.iter().filter(|response| calls.contains(&response.id)) {
                let value = response.response.clone().map_or(Value::Null, Value::Object);
                let first = responses.insert(response.id.clone(), value).is_none();
                self.world.check(first, || format!("a call stands twice in {contents:?}"));
            }
        }
        let news = request.news.clone();
        self.world.journal().prompts.push(Prompt { responses, news, texts });
    }
}
