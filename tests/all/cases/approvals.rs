//! Calls that wait for a person, through a real connection: the cases of ADK (`adk_69_...`: numbers
//! of its list of cases), of Microsoft's Agent Framework (`maf_01_...`, and its worked sequences),
//! and of what went wrong elsewhere (`peers_...`). Where the contract differs, its words are
//! tested.
//!
//! Cases that wait for a mechanism are listed in `docs/approvals.md`.

use countersign::agent::approvals::Need;
use countersign::agent::cel::Expression;
use countersign::proto::v1 as pb;
use countersign::proto::v1::approval::Verdict;
use countersign::proto::v1::approval_service_client::ApprovalServiceClient;
use countersign::session::approval::{CONFIRMATION, DECLINED, PLACEHOLDER, REJECTED};
use countersign::tool::Outcome;
use serde_json::{Value, json};
use tonic::Status;
use tonic::transport::Channel;

use super::stage::{Closure, Stage, soon};
use crate::support::{Told, story};

mod adk;
mod later;
mod leaks;
mod maf;
mod rules;

/// A tool whose calls always wait.
fn asks(name: &str) -> Closure {
    runs(name).gated()
}

/// A tool that nobody is asked about.
fn runs(name: &str) -> Closure {
    Closure::gives(name, Outcome::Value(json!({"did": name})))
}

/// A tool whose calls wait if a condition says so.
fn asks_when(name: &str, when: &str) -> Closure {
    let when = Expression::parse(when).unwrap();
    runs(name).approval(|approval| approval.need = Some(Need::When(when)))
}

/// What happened, in short: `clerk ? pay({...})` asks about a call, `waits` is what such a call
/// says until somebody decides, and `rejected: declined` what it says if somebody refuses.
fn brief(events: &[pb::Event]) -> Vec<String> {
    let waits = json!({"error": PLACEHOLDER}).to_string();
    let line = |event: &pb::Event| {
        let questions: Vec<String> = questions_in(std::slice::from_ref(event))
            .iter()
            .map(|call| format!("{} ? {}", event.author, about(call)))
            .collect();
        if !questions.is_empty() {
            return questions.join(" + ");
        }
        let line = story(std::slice::from_ref(event)).remove(0);
        let line = line.replace(&waits, "waits").replace(CONFIRMATION, "?");
        let no = json!({"error": REJECTED, "reason": DECLINED}).to_string();
        line.replace(&no, "rejected: declined")
    };
    events.iter().map(line).collect()
}

/// The questions in events.
fn questions_in(events: &[pb::Event]) -> Vec<pb::FunctionCall> {
    let calls = super::stage::calls(events);
    calls.into_iter().filter(|call| call.name == CONFIRMATION).collect()
}

/// Which call a question is about, as `pay({"n":1})`.
fn about(question: &pb::FunctionCall) -> String {
    let args = crate::support::json(question.args.as_ref().unwrap());
    let original = &args["originalFunctionCall"];
    format!("{}({})", original["name"].as_str().unwrap(), original["args"])
}

/// What is asked now, in the order of the calls.
fn open(told: &Told) -> Vec<String> {
    told.end.held_calls.iter().map(|call| about(call.function_call.as_ref().unwrap())).collect()
}

impl Stage {
    async fn desk(&self) -> ApprovalServiceClient<Channel> {
        ApprovalServiceClient::new(self.server.channel().await)
    }

    /// Agrees to a question, or not, as ADK's clients do.
    async fn confirm(&mut self, question: &pb::Call, confirmed: bool) -> Told {
        self.answer(question, json!({"confirmed": confirmed})).await
    }

    /// Decides on a question, and follows what comes of it.
    async fn decide(
        &mut self,
        question: &pb::Call,
        verdict: Verdict,
        change: impl FnOnce(&mut pb::DecideApprovalRequest),
    ) -> Result<Told, Status> {
        let mut request = decision(question, verdict);
        change(&mut request);
        let done = self.desk().await.decide_approval(request).await?.into_inner();
        let approval = done.approval.unwrap();
        let follow = pb::RunAsyncRequest {
            app_name: approval.app_name,
            user_id: approval.user_id,
            session_id: approval.session_id,
            invocation_id: approval.invocation_id,
            after_sequence: done.after_sequence,
            ..Default::default()
        };
        Ok(soon(self.client.run(follow)).await)
    }

    /// What is in the inbox.
    async fn inbox(&self) -> Vec<pb::Approval> {
        let request = pb::ListApprovalsRequest::default();
        self.desk().await.list_approvals(request).await.unwrap().into_inner().approvals
    }
}

/// A decision on what was seen.
fn decision(question: &pb::Call, verdict: Verdict) -> pb::DecideApprovalRequest {
    pb::DecideApprovalRequest {
        call_id: question.function_call.as_ref().unwrap().id.clone(),
        verdict: verdict.into(),
        args_digest: question.args_digest.clone(),
        ..Default::default()
    }
}

/// The id of a call.
fn id(call: &pb::Call) -> &str {
    &call.function_call.as_ref().unwrap().id
}

/// The reason of a refusal.
fn why(refused: Result<impl std::fmt::Debug, Status>) -> String {
    crate::support::reason(&refused.unwrap_err()).1
}

/// What the model heard of its calls last, as `pay {...}`, in the order of the calls.
fn heard(stage: &Stage) -> Vec<String> {
    let prompt = stage.prompt();
    let at = prompt.iter().rposition(|line| line.starts_with("user < ")).expect("it heard");
    let told = prompt[at].trim_start_matches("user < ").split(" + user < ");
    let mut told: Vec<String> = told.map(str::to_owned).collect();
    // A call whose sibling had a placeholder stands behind it, as ADK merges them.
    let place = |told: &String| {
        let name = told.split(' ').next().unwrap_or_default();
        prompt[at - 1].find(&format!("model > {name}("))
    };
    told.sort_by_key(place);
    told
}

/// What a tool of these tests did.
fn did(name: &str) -> String {
    format!("{name} {}", json!({"did": name}))
}

/// What a call says that somebody refused.
fn rejected(name: &str, reason: &str) -> String {
    format!("{name} {}", json!({"error": REJECTED, "reason": reason}))
}

/// What a placeholder says.
fn waits(name: &str) -> String {
    format!("{name} {}", json!({"error": PLACEHOLDER}))
}

/// An answer by its call's id, with any name.
fn answer_of(id: &str, name: &str, response: Value) -> pb::SubmitFunctionResponseRequest {
    pb::SubmitFunctionResponseRequest {
        function_response: Some(pb::FunctionResponse {
            id: id.into(),
            name: name.into(),
            response: Some(crate::support::object(response)),
            will_continue: None,
        }),
        ..Default::default()
    }
}
