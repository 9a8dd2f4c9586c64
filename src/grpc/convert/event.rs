//! Events, on their way out. Marks are made where streams are.

use std::collections::BTreeMap;

use super::content::content_to_pb;
use super::json::{object_to_pb, value_to_pb};
use crate::proto::{v1 as pb, wkt};
use crate::session::call::Kind;
use crate::session::content::{Actions, CallFacts, Event, Imported, Object, Usage};
use crate::session::id::CallId;
use crate::session::json::exact_if_lossy;

/// What an event that was made here says beside all that it says.
static NOTHING_ELSE: Imported = Imported {
    node_path: String::new(),
    branch: String::new(),
    isolation_scope: String::new(),
    output: None,
    transfer_to_agent: String::new(),
    artifact_delta: BTreeMap::new(),
    turn_complete: false,
    interrupted: false,
};

/// An entry of the conversation for the wire.
pub(crate) fn event_to_pb(event: &Event) -> pb::Event {
    let Event {
        id,
        sequence,
        invocation_id,
        author,
        time,
        frame,
        content,
        long_running_tool_ids,
        actions,
        finish_reason,
        usage,
        error_code,
        error_message,
        custom_metadata,
        calls,
        imported,
    } = event;
    let Imported {
        node_path,
        branch,
        isolation_scope,
        output,
        transfer_to_agent,
        artifact_delta,
        turn_complete,
        interrupted,
    } = imported.as_deref().unwrap_or(&NOTHING_ELSE);
    // What users write here belongs to no node, in ADK's eyes too.
    let path = match frame {
        Some(_) if author == "user" => "",
        Some(frame) => frame.as_str(),
        None => node_path,
    };
    pb::Event {
        id: id.to_string(),
        sequence: i64::try_from(*sequence).unwrap_or(i64::MAX),
        invocation_id: invocation_id.to_string(),
        author: author.clone(),
        branch: branch.clone(),
        timestamp: seconds(*time),
        content: content.as_ref().map(content_to_pb),
        long_running_tool_ids: long_running_tool_ids
            .iter()
            .flatten()
            .map(CallId::to_string)
            .collect(),
        actions: Some(pb::EventActions {
            artifact_delta: artifact_delta.clone(),
            transfer_to_agent: transfer_to_agent.clone(),
            ..actions_to_pb(actions)
        }),
        partial: false,
        turn_complete: *turn_complete,
        finish_reason: finish_reason.clone(),
        usage_metadata: usage.map(usage_to_pb),
        error_code: error_code.clone(),
        error_message: error_message.clone(),
        custom_metadata: filled(custom_metadata),
        node_info: (!path.is_empty()).then(|| pb::NodeInfo { path: path.to_owned() }),
        isolation_scope: isolation_scope.clone(),
        output: output.as_ref().map(value_to_pb),
        interrupted: *interrupted,
        final_response: event.is_final_response(),
        calls: facts(event, calls),
        mark: None,
    }
}

/// Microseconds since 1970 as seconds. A double holds them exactly to the microsecond until 2255.
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

/// Unset where there is nothing, as in ADK's JSON.
fn filled(object: &Object) -> Option<wkt::Struct> {
    (!object.is_empty()).then(|| object_to_pb(object))
}

fn actions_to_pb(actions: &Actions) -> pb::EventActions {
    let Actions { state_delta, skip_summarization, escalate, requested_tool_confirmations: _ } =
        actions;
    pb::EventActions {
        skip_summarization: *skip_summarization,
        state_delta: filled(state_delta),
        artifact_delta: BTreeMap::new(),
        transfer_to_agent: String::new(),
        escalate: *escalate,
    }
}

/// Costs for the wire; a count beyond 2^31 - 1 is told as that.
pub(crate) fn usage_to_pb(usage: Usage) -> pb::UsageMetadata {
    let Usage {
        prompt_token_count,
        candidates_token_count,
        total_token_count,
        cached_content_token_count,
        thoughts_token_count,
    } = usage;
    let count = |tokens: u32| i32::try_from(tokens).unwrap_or(i32::MAX);
    pb::UsageMetadata {
        prompt_token_count: count(prompt_token_count),
        candidates_token_count: count(candidates_token_count),
        total_token_count: count(total_token_count),
        cached_content_token_count: count(cached_content_token_count),
        thoughts_token_count: count(thoughts_token_count),
    }
}

/// Why a call is held, for the wire.
pub(crate) fn kind_to_pb(kind: Kind) -> pb::call::Kind {
    match kind {
        Kind::LongRunning => pb::call::Kind::LongRunning,
        Kind::Confirmation => pb::call::Kind::Confirmation,
        Kind::Input => pb::call::Kind::Input,
        Kind::UnknownOutcome => pb::call::Kind::UnknownOutcome,
    }
}

/// The facts of the event, and the exact JSON of whatever a `Struct` in it does not show exactly.
fn facts(event: &Event, calls: &BTreeMap<CallId, CallFacts>) -> BTreeMap<String, pb::CallFacts> {
    let known = calls.iter().map(|(id, facts)| (id.to_string(), facts_to_pb(facts)));
    let mut all: BTreeMap<_, _> = known.collect();
    let calls = event.function_calls().map(|call| (&call.id, Some(&call.args)));
    let answers = event.function_responses().map(|answer| (&answer.id, answer.response.as_ref()));
    for (id, object) in calls.chain(answers) {
        let exact = object.map(exact_if_lossy).unwrap_or_default();
        let facts = all.get(id.as_str()).is_none_or(|facts| facts.exact_json.is_empty());
        if !exact.is_empty() && facts {
            all.entry(id.to_string()).or_default().exact_json = exact;
        }
    }
    all
}

fn facts_to_pb(facts: &CallFacts) -> pb::CallFacts {
    let CallFacts { kind, args_digest, exact_json, comment } = facts;
    pb::CallFacts {
        kind: kind.map_or(pb::call::Kind::Unspecified, kind_to_pb).into(),
        args_digest: args_digest.clone(),
        exact_json: exact_json.clone(),
        comment: comment.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::to_json;
    use crate::session::content::{Content, Data, FunctionCall, FunctionResponse, Part, Role};
    use crate::session::id::{AgentName, EventId, FrameId, InvocationId};

    fn call_id() -> CallId {
        CallId::parse("adk-1").unwrap()
    }

    fn object(text: &str) -> Object {
        serde_json::from_str(text).unwrap()
    }

    fn event(data: Data) -> Event {
        Event {
            id: EventId::parse("ev-1").unwrap(),
            sequence: 2,
            invocation_id: InvocationId::parse("e-1").unwrap(),
            author: "root".into(),
            time: 1_769_860_800_250_000,
            frame: Some(FrameId::root(&AgentName::parse("root").unwrap())),
            content: Some(Content { role: Role::Model, parts: vec![Part::new(data)] }),
            long_running_tool_ids: None,
            actions: Actions::default(),
            finish_reason: String::new(),
            usage: None,
            error_code: String::new(),
            error_message: String::new(),
            custom_metadata: Object::new(),
            calls: BTreeMap::new(),
            imported: None,
        }
    }

    fn call(args: &str) -> Data {
        Data::FunctionCall(FunctionCall { id: call_id(), name: "pay".into(), args: object(args) })
    }

    #[test]
    fn an_entry_reads_as_an_adk_event() {
        let mut event = event(call(r#"{"sum": 5, "to": "Ann"}"#));
        event.long_running_tool_ids = Some([call_id()].into());
        event.finish_reason = "STOP".into();
        event.usage =
            Some(Usage { prompt_token_count: 7, total_token_count: u32::MAX, ..Usage::default() });
        event.actions.state_delta = object(r#"{"user:limit": null, "n": 1}"#);
        event.custom_metadata = object(r#"{"trace": "t"}"#);
        let facts = CallFacts {
            kind: Some(Kind::LongRunning),
            args_digest: "sha256:00".into(),
            ..CallFacts::default()
        };
        event.calls.insert(call_id(), facts);
        let expected = concat!(
            r#"{"id":"ev-1","sequence":"2","invocationId":"e-1","author":"root","#,
            r#""timestamp":1769860800.25,"content":{"role":"model","parts":[{"functionCall":"#,
            r#"{"id":"adk-1","name":"pay","args":{"sum":5,"to":"Ann"}}}]},"#,
            r#""longRunningToolIds":["adk-1"],"actions":{"stateDelta":{"n":1,"user:limit":null}},"#,
            r#""finishReason":"STOP","usageMetadata":{"promptTokenCount":7,"#,
            r#""totalTokenCount":2147483647},"customMetadata":{"trace":"t"},"#,
            r#""nodeInfo":{"path":"root@1"},"finalResponse":true,"#,
            r#""calls":{"adk-1":{"kind":"LONG_RUNNING","argsDigest":"sha256:00"}}}"#,
        );
        assert_eq!(to_json(&event_to_pb(&event)).unwrap(), expected);
    }

    #[test]
    fn an_entry_that_only_acts_still_has_its_actions() {
        let mut event = event(Data::Text(String::new()));
        event.content = None;
        event.frame = None;
        event.actions = Actions { skip_summarization: true, escalate: true, ..Actions::default() };
        let sent = event_to_pb(&event);
        assert_eq!((sent.content.as_ref(), sent.node_info.as_ref()), (None, None));
        assert_eq!(
            to_json(&sent.actions).unwrap(),
            r#"{"skipSummarization":true,"escalate":true}"#
        );
    }

    #[test]
    fn digits_that_a_struct_loses_stand_in_the_facts() {
        let sent = event_to_pb(&event(call(r#"{"account":9007199254740993,"sum":0.10}"#)));
        assert_eq!(sent.calls["adk-1"].exact_json, r#"{"account":9007199254740993,"sum":0.10}"#);
        assert!(event_to_pb(&event(call(r#"{"sum":0.10}"#))).calls.is_empty());

        // What the domain says is kept: effective arguments differ from the model's own.
        let mut judged = event(call(r#"{"account":9007199254740993}"#));
        let facts = CallFacts { exact_json: "{}".into(), ..CallFacts::default() };
        judged.calls.insert(call_id(), facts);
        assert_eq!(event_to_pb(&judged).calls["adk-1"].exact_json, "{}");

        let answer = event(Data::FunctionResponse(FunctionResponse {
            id: call_id(),
            name: "pay".into(),
            response: Some(object(r#"{"receipt":12345678901234567890}"#)),
            will_continue: None,
        }));
        assert_eq!(
            event_to_pb(&answer).calls["adk-1"].exact_json,
            r#"{"receipt":12345678901234567890}"#
        );
    }
}
