//! The model of a replay: it gives the recorded replies, in order.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::model::{Error, Model, Pieces, Reply, Request, Said};
use crate::session::approval::{CONFIRMATION, CREDENTIAL};
use crate::session::content::{Data, Event, Part, Role};

/// The name that it is registered under.
pub(super) const NAME: &str = "replay";

/// Calls that are made in a model's name. Requests for input are the model's own.
const FRAMEWORK: [&str; 2] = [CONFIRMATION, CREDENTIAL];

/// Recorded replies that were not given yet.
pub(super) struct Recorded(Mutex<VecDeque<Result<Reply, Error>>>);

impl Recorded {
    /// The replies of an agent's model in these events.
    pub fn of(events: &[Event], agent: &str) -> Self {
        let own = events.iter().filter(|event| event.author == agent);
        Self(Mutex::new(own.filter_map(reply).collect()))
    }
}

fn reply(event: &Event) -> Option<Result<Reply, Error>> {
    let Some(content) = &event.content else {
        let (code, message) = (event.error_code.clone(), event.error_message.clone());
        return (!code.is_empty()).then_some(Err(Error { code, message }));
    };
    let framework = content.calls().next().is_some()
        && content.calls().all(|call| FRAMEWORK.contains(&call.name.as_str()));
    if content.role != Role::Model || framework {
        return None;
    }
    let parts = content.parts.iter().map(said).collect();
    Some(Ok(Reply { parts, finish_reason: event.finish_reason.clone(), usage: event.usage }))
}

fn said(part: &Part) -> Said {
    match &part.data {
        Some(Data::FunctionCall(call)) => Said::Call {
            model_id: None,
            name: call.name.clone(),
            args: call.args.clone(),
            thought_signature: part.thought_signature.clone(),
        },
        _ => Said::Part(part.clone()),
    }
}

#[async_trait]
impl Model for Recorded {
    async fn reply(&self, _: Request, _: &mut dyn Pieces) -> Result<Reply, Error> {
        let next = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        next.unwrap_or_else(|| {
            Err(Error {
                code: "SCRIPT_ENDED".to_owned(),
                message: "the model is asked once more than the script has replies".to_owned(),
            })
        })
    }
}
