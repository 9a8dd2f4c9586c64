//! Every field of every request, wrong in every way: what is refused says why, and wrote nothing.
//!
//! A request is the JSON of a valid one with a patch; a patch that JSON cannot say is bytes behind
//! it. A field of the contract that no case names fails `every_field_has_a_case`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::{Server, USER, answer, fields, json as plain, reason, say, submit};
use crate::wire::{Content, Contract, encode};

mod accepted;
mod approvals;
mod cursors;
mod histories;
mod large;
mod nested;
mod random;
mod submissions;
mod table;

const APP: &str = "reimbursement_agent";

/// A server with a session that has a held call, and what names these.
struct World {
    contract: Contract,
    server: Server,
    channel: Channel,
    names: Vec<(&'static str, String)>,
}

/// A request: a valid one of the method, with other top-level fields; null takes one away.
#[derive(Clone)]
struct Case {
    method: &'static str,
    patch: Value,
    /// Path and bytes of fields that are appended.
    more: Vec<(&'static str, Vec<u8>)>,
}

fn case(method: &'static str, patch: Value) -> Case {
    Case { method, patch, more: Vec::new() }
}

impl Case {
    fn with(mut self, path: &'static str, content: Content<'_>) -> Self {
        let bytes = Contract::read().field(self.method, path, &content);
        self.more.push((path, bytes));
        self
    }

    fn but(mut self, patch: Value) -> Self {
        self.patch.as_object_mut().unwrap().extend(patch.as_object().unwrap().clone());
        self
    }

    /// The paths of the fields that the case is about.
    fn paths(&self) -> BTreeSet<String> {
        let mut paths = BTreeSet::new();
        flatten("", &self.patch, &mut paths);
        paths.extend(self.more.iter().map(|(path, _)| (*path).to_owned()));
        paths
    }

    fn shown(&self) -> String {
        let mut patch = self.patch.to_string();
        patch.truncate(patch.char_indices().nth(200).map_or(patch.len(), |(at, _)| at));
        let more: Vec<_> = self.more.iter().map(|(path, bytes)| (*path, bytes.len())).collect();
        format!("{} {patch} {more:?}", self.method)
    }
}

fn flatten(prefix: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = format!("{prefix}{key}");
                flatten(&format!("{path}."), value, into);
                into.insert(path);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| flatten(prefix, value, into)),
        _ => {}
    }
}

/// A valid request of a method.
fn valid(method: &str) -> Value {
    let key = json!({"app_name": APP, "user_id": USER, "session_id": "s1"});
    let with = |more: Value| {
        let mut all = key.as_object().unwrap().clone();
        all.extend(more.as_object().unwrap().clone());
        Value::Object(all)
    };
    match method {
        "RunAsync" => with(json!({"new_message": {"parts": [{"text": "hello"}]}})),
        "SubmitFunctionResponse" => json!({"function_response": {
            "id": "$call", "name": "ask_for_approval", "response": {"status": "approved"}}}),
        "GetInvocation" | "CancelInvocation" => json!({"invocation_id": "$invocation"}),
        "GetAgent" => json!({"name": APP}),
        "CreateSession" => json!({"app_name": APP, "user_id": USER}),
        "ImportSession" => json!({"app_name": APP, "user_id": USER, "events": [
            {"author": "user", "content": {"parts": [{"text": "hello"}]}}]}),
        "GetSession" | "DeleteSession" | "ListEvents" | "WatchSession" => key,
        "GetApproval" => json!({"call_id": "$call"}),
        "DecideApproval" => json!({"call_id": "$call", "verdict": "DENY"}),
        "AssignApproval" => json!({"call_id": "$call", "assignee": "user:local"}),
        "ExtendApproval" => json!({"call_id": "$call", "expire_time": "9000-01-01T00:00:00Z"}),
        "RevokeStandingApproval" => json!({"id": "standing-1"}),
        "ListApprovals" | "WatchApprovals" | "SummarizeApprovals" | "ListStandingApprovals" => {
            json!({})
        }
        "UpdateSessionState" => with(json!({"state_delta": {"a": 1}})),
        "ListInvocations" | "WatchInvocations" | "ListAgents" | "ListSessions" => json!({}),
        _ => panic!("no such method: {method}"),
    }
}

impl World {
    async fn new() -> Self {
        Self::on(Server::sample().await).await
    }

    async fn on(server: Server) -> Self {
        let mut client = server.client().await;
        let mut names = Vec::new();
        for (session, call, invocation) in
            [("s1", "$call", "$invocation"), ("s2", "$other_call", "$other_invocation")]
        {
            let create = countersign::proto::v1::CreateSessionRequest {
                app_name: APP.into(),
                user_id: USER.into(),
                session_id: session.into(),
                ..Default::default()
            };
            client.sessions.create_session(create).await.unwrap();
            let told = client.run(say(APP, session, "Please reimburse $200 for a trip")).await;
            let held = &told.end.held_calls[0];
            names.push((call, held.function_call.as_ref().unwrap().id.clone()));
            names.push((invocation, told.begin.invocation_id.clone()));
        }
        at_rest(&server).await;
        let channel = server.channel().await;
        Self { contract: Contract::read(), server, channel, names }
    }

    /// The request with ids in the place of their names.
    fn named(&self, request: &Value) -> Value {
        let mut text = request.to_string();
        for (name, id) in &self.names {
            text = text.replace(&format!("\"{name}\""), &format!("\"{id}\""));
        }
        serde_json::from_str(&text).unwrap()
    }

    async fn ask(&self, case: &Case) -> Result<Vec<prost::bytes::Bytes>, Status> {
        let mut request = valid(case.method);
        for (key, value) in case.patch.as_object().unwrap() {
            if value.is_null() {
                request.as_object_mut().unwrap().remove(key);
            } else {
                request[key] = value.clone();
            }
        }
        let mut bytes = encode(case.method, &self.named(&request));
        case.more.iter().for_each(|(_, more)| bytes.extend_from_slice(more));
        self.contract.ask(&self.channel, case.method, bytes).await
    }

    /// Everything that a refused request must leave as it is.
    async fn print(&self) -> (u64, Vec<String>) {
        let mut seen = Vec::new();
        for case in [
            case("ListSessions", json!({"page_size": 1000})),
            case("ListInvocations", json!({"page_size": 1000})),
            case("ListEvents", json!({"page_size": 1000})),
            case("ListApprovals", json!({"page_size": 1000})),
        ] {
            seen.push(format!("{:?}", self.ask(&case).await.unwrap()));
        }
        (self.server.store.commits(), seen)
    }

    /// What the request is refused with, having written nothing.
    async fn refusal(&self, case: &Case) -> Status {
        let before = self.server.store.commits();
        let status = match self.ask(case).await {
            Err(status) => status,
            Ok(_) => panic!("not refused: {}", case.shown()),
        };
        assert_eq!(self.server.store.commits(), before, "{} wrote", case.shown());
        status
    }

    /// The request is refused for these fields, and no others.
    async fn refuses(&self, case: &Case, why: &str, wrong: &[&str]) {
        let status = self.refusal(case).await;
        let (code, told) = reason(&status);
        assert_eq!(told, why, "{}: {status:?}", case.shown());
        assert_eq!(code, code_of(why), "{}", case.shown());
        let told: BTreeSet<_> = fields(&status).into_iter().collect();
        assert_eq!(told, wrong.iter().map(|&f| f.to_owned()).collect(), "{}", case.shown());
    }

    /// The server does its main job still.
    async fn works(&self) {
        let mut client = self.server.client().await;
        let told = client.run(say(APP, "s1", "Please reimburse $50 for meals")).await;
        assert_eq!(told.end.state(), countersign::proto::v1::end_mark::State::Completed);
        let told = client.say(APP, "Please reimburse $300 for a trip").await;
        let held = &told.end.held_calls[0];
        let placeholder = plain(held.last_response.as_ref().unwrap().response.as_ref().unwrap());
        assert_eq!(placeholder["status"], "pending");
        assert_eq!(answer(held, json!({})).name, "ask_for_approval");
        let done = client.submit(submit(held, json!({"status": "approved"}))).await.unwrap();
        let rest = client.follow(&done).await;
        assert_eq!(rest.end.state(), countersign::proto::v1::end_mark::State::Completed);
        at_rest(&self.server).await;
    }
}

/// Nothing moves any more.
pub async fn at_rest(server: &Server) {
    let rest = async {
        while server.runner.driven() > 0 {
            tokio::task::yield_now().await;
        }
    };
    let rested = tokio::time::timeout(std::time::Duration::from_secs(10), rest).await;
    rested.expect("the server comes to a rest");
}

/// The code of contract, section 6.
pub fn code_of(reason: &str) -> Code {
    match reason {
        "FIELD_INVALID"
        | "CALL_NAME_MISMATCH"
        | "INVOCATION_MISMATCH"
        | "MIXED_MESSAGE"
        | "RESPONSE_SCHEMA_VIOLATION"
        | "REQUEST_ID_REUSED"
        | "ARGS_SCHEMA_VIOLATION"
        | "ARGS_DIGEST_REQUIRED"
        | "CURSOR_INVALID" => Code::InvalidArgument,
        "CALL_ALREADY_ANSWERED"
        | "CALL_NOT_HELD"
        | "CALL_EXPIRED"
        | "CALL_CANCELLED"
        | "ARGS_DIGEST_MISMATCH"
        | "CONFIRMATION_REQUIRED"
        | "VERDICT_NOT_ALLOWED"
        | "APPROVAL_CLAIMED"
        | "TOOL_CHANGED"
        | "INVOCATION_ENDED"
        | "SESSION_QUARANTINED" => Code::FailedPrecondition,
        "SESSION_EXISTS" => Code::AlreadyExists,
        "INVOCATION_RUNNING" | "ETAG_MISMATCH" => Code::Aborted,
        "CURSOR_EXPIRED" => Code::OutOfRange,
        "NOT_PERMITTED" | "POLICY_DENIED" => Code::PermissionDenied,
        "LIMIT_EXCEEDED" | "OVERLOADED" => Code::ResourceExhausted,
        "DRAINING" | "STORE_UNAVAILABLE" => Code::Unavailable,
        "WRITE_OUTCOME_UNKNOWN" => Code::Unknown,
        _ if reason.ends_with("_NOT_FOUND") => Code::NotFound,
        _ => panic!("the contract has no {reason}"),
    }
}

#[tokio::test]
async fn wrong_requests_are_refused_and_write_nothing() {
    let world = World::new().await;
    let before = world.print().await;
    for (case, why, wrong) in table::refused() {
        world.refuses(&case, why, &wrong).await;
    }
    assert_eq!(world.print().await, before);
    world.works().await;
}

#[tokio::test]
async fn all_faults_of_a_request_are_told_at_once() {
    let world = World::new().await;
    for method in world.contract.methods().map(str::to_owned).collect::<Vec<_>>() {
        let mut all: Option<Case> = None;
        let mut wrong = BTreeSet::new();
        for (one, why, names) in table::refused() {
            let [name] = names[..] else { continue };
            // One fault a top-level field, and no message that takes its siblings away.
            if why != "FIELD_INVALID"
                || one.method != method
                || !one.more.is_empty()
                || one.patch.as_object().unwrap().len() != 1
                || !one.patch.as_object().unwrap().contains_key(name)
                || table::LATER.contains(&(one.method, name))
                || !wrong.insert(name)
            {
                continue;
            }
            let all = all.get_or_insert_with(|| case(one.method, json!({})));
            let patch = all.patch.as_object_mut().unwrap();
            patch.extend(one.patch.as_object().unwrap().clone());
        }
        let Some(all) = all else { panic!("{method} has no field that can be wrong") };
        let wrong: Vec<_> = wrong.into_iter().collect();
        world.refuses(&all, "FIELD_INVALID", &wrong).await;
    }
}

#[test]
fn every_field_has_a_case() {
    let contract = Contract::read();
    let cases: Vec<Case> =
        table::refused().into_iter().map(|(case, ..)| case).chain(accepted::cases()).collect();
    for method in contract.methods() {
        let of_method = cases.iter().filter(|case| case.method == method);
        let named: BTreeSet<String> = of_method.flat_map(Case::paths).collect();
        let missing: Vec<_> = contract.fields(method).difference(&named).cloned().collect();
        assert!(missing.is_empty(), "no case is about {missing:?} of {method}");
    }
}
