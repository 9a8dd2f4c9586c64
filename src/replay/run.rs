//! Playing a script: the turns of its user, one after the other, each to a pause or an end.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::model::{NAME, Recorded};
use super::{Played, Script, Unreadable, is_turn};
use crate::agent::{Agent, Agents, Model};
use crate::app::Builder;
use crate::runner::{Caller, Item, Run, Runner};
use crate::session::content::{Content, Data, Event, Object};
use crate::session::id::{AppName, CallId, Principal, SessionId, SessionKey, UserId};
use crate::session::refusal::Refusal;
use crate::store::Events;

/// How many events are read at once.
const READ_EVENTS: usize = 256;

/// Whoever says the user's turns.
const USER: &str = "replay";

pub(super) async fn run(
    script: &Script,
    agents: &Agents,
    app: &AppName,
) -> Result<Played, Unreadable> {
    let agent = agents.get(app).ok_or_else(|| format!("there is no agent {app}"))?;
    let model = Recorded::of(&script.events, agent.name.as_str());
    let mut only = Agents::default();
    only.insert(Agent { model: Model::Named(NAME.to_owned()), ..Agent::clone(agent) });
    let server = Builder::new().agents(&only).model(NAME, model).memory().build().await;
    let server = server.map_err(|wrong| wrong.to_string())?;
    let key = SessionKey {
        app: app.clone(),
        user: UserId::parse(USER).expect("it is an id"),
        id: SessionId::parse(USER).expect("it is an id"),
    };
    let mut stage = Stage { runner: server.runner().clone(), key, refused: Vec::new() };
    let events = stage.play(&script.events).await.map_err(|wrong| wrong.to_string())?;
    Ok(Played { events, refused: stage.refused })
}

struct Stage {
    runner: Runner,
    key: SessionKey,
    refused: Vec<(usize, Value)>,
}

impl Stage {
    async fn play(&mut self, recorded: &[Event]) -> Result<Vec<Event>, Refusal> {
        let new = crate::runner::NewSession {
            app: self.key.app.clone(),
            user: self.key.user.clone(),
            id: Some(self.key.id.clone()),
            state: Object::new(),
        };
        self.runner.create_session(self.caller(), new).await?;
        let mut made = Vec::new();
        let turns = recorded.iter().enumerate().filter(|(_, event)| is_turn(event));
        for (at, event) in turns {
            let Some(content) = &event.content else { continue };
            let names = names(recorded, &made);
            let mut delta = event.actions.state_delta.clone();
            // A user has no right to these; where a script changes them, it was the app.
            delta.retain(|key, _| !key.starts_with("app:"));
            match self.turn(translated(content, &names), delta).await {
                Ok(()) => made = self.events().await?,
                Err(refusal) => {
                    let why =
                        json!({"refused": refusal.reason.as_str(), "message": refusal.message});
                    self.refused.push((at, why));
                }
            }
        }
        Ok(made)
    }

    /// Says something, and waits for what comes of it.
    async fn turn(&self, message: Content, state_delta: Object) -> Result<(), Refusal> {
        let run = Run {
            app: self.key.app.clone(),
            user: self.key.user.clone(),
            session: Some(self.key.id.clone()),
            message: Some(message),
            state_delta,
            streaming: false,
            max_llm_calls: None,
            custom_metadata: Object::new(),
            invocation: None,
            after_sequence: 0,
        };
        let started = self.runner.run(self.caller(), run).await?;
        let mut follow = self.runner.follow(&started);
        while !matches!(follow.next().await?, Item::Paused(_) | Item::Ended(_)) {}
        Ok(())
    }

    async fn events(&self) -> Result<Vec<Event>, Refusal> {
        let mut events: Vec<Event> = Vec::new();
        loop {
            let after = events.last().map_or(0, |event| event.sequence);
            let which = Events::After(after);
            let page = self.runner.list_events(&self.key, which, READ_EVENTS).await?;
            if page.is_empty() {
                return Ok(events);
            }
            events.extend(page);
        }
    }

    fn caller(&self) -> Caller {
        let principal = Principal::parse(format!("user:{USER}")).expect("it is an id");
        Caller { principal, mark: None }
    }
}

/// The calls that stand for the recorded ones: the first for the first, and so on (ADK).
fn names(recorded: &[Event], made: &[Event]) -> BTreeMap<CallId, CallId> {
    let calls = |events: &[Event]| -> Vec<CallId> {
        events.iter().flat_map(Event::function_calls).map(|call| call.id.clone()).collect()
    };
    calls(recorded).into_iter().zip(calls(made)).collect()
}

/// A message with the calls of this run in the place of the recorded ones.
fn translated(content: &Content, names: &BTreeMap<CallId, CallId>) -> Content {
    let mut content = content.clone();
    for part in &mut content.parts {
        if let Some(Data::FunctionResponse(response)) = &mut part.data
            && let Some(name) = names.get(&response.id)
        {
            response.id = name.clone();
        }
    }
    content
}
