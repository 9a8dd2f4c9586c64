//! `countersign approvals` as a process, against a server that plays a script.

use countersign::proto::{from_json, v1};
use serde_json::{Value, json};
use tonic::Status;

use super::fake::Fake;
use super::{code, err, out};

fn approval(more: Value) -> v1::Approval {
    let mut all = json!({
        "callId": "adk-2",
        "call": {
            "functionCall": {"id": "adk-1", "name": "pay", "args": {"amount": 200}},
            "state": "HELD", "kind": "CONFIRMATION", "argsDigest": "sha256:12",
            "exactArgsJson": "{\"amount\":200}",
        },
        "state": "PENDING",
        "allowedVerdicts": ["APPROVE", "DENY", "REQUEST_CHANGES"],
        "hint": "May it pay?\u{1b}[2J",
        "reason": {"code": "CONDITION", "rule": "args.amount > 100.0"},
        "requiresConfirmation": true,
        "siblings": [{"callId": "adk-3", "toolName": "look"}],
        "story": [
            {"time": "2026-01-31T12:00:00Z", "by": "server:core", "what": "ASKED"},
            {"time": "2026-01-31T12:05:00Z", "by": "user:bob", "what": "ASSIGNED",
                "assignee": "user:bob", "until": "2026-01-31T12:20:00Z"},
        ],
        "assignee": "user:bob",
        "leaseExpireTime": "2026-01-31T12:20:00Z",
        "createTime": "2026-01-31T12:00:00Z",
        "expireTime": "2026-02-03T12:00:00Z",
        "nextDeadline": {"time": "2026-02-01T12:00:00Z", "action": "ESCALATE",
            "escalateTo": "managers"},
        "etag": "7",
        "appName": "app", "userId": "ann", "sessionId": "s-1", "invocationId": "e-1",
        "agentPath": "root",
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    from_json(&all.to_string()).unwrap()
}

fn decided(more: Value) -> v1::DecideApprovalResponse {
    let approved = approval(json!({"state": "APPROVED", "allowedVerdicts": []}));
    let mut all = json!({"outcome": "APPLIED", "invocationState": "RUNNING", "afterSequence": "5"});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let reply: v1::DecideApprovalResponse = from_json(&all.to_string()).unwrap();
    v1::DecideApprovalResponse { approval: Some(approved), ..reply }
}

const SHOWN: &str = "\
adk-2  PENDING  CONFIRMATION
  call      pay({\"amount\":200})
  digest    sha256:12
  asks      May it pay?␛[2J
  why       CONDITION: args.amount > 100.0
  agent     root
  session   app/ann/s-1
  asked     2026-01-31T12:00:00Z
  expires   2026-02-03T12:00:00Z
  next      ESCALATE to managers at 2026-02-01T12:00:00Z
  assignee  user:bob until 2026-01-31T12:20:00Z
  siblings  look adk-3
  2026-01-31T12:00:00Z server:core ASKED
  2026-01-31T12:05:00Z user:bob ASSIGNED  to user:bob until 2026-01-31T12:20:00Z
";

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_is_a_table() {
    let fake = Fake::default();
    fake.script().approvals = vec![approval(json!({})), approval(json!({"assignee": ""}))];
    let args =
        ["approvals", "list", "--tool", "pay", "--kind", "confirmation", "--older-than", "2h"];
    let output = fake.command(&args).await;
    let lines = "\
ID     STATE    KIND          APP  USER  ASKED                 EXPIRES               ASSIGNEE  CALL
adk-2  PENDING  CONFIRMATION  app  ann   2026-01-31T12:00:00Z  2026-02-03T12:00:00Z  user:bob  \
pay({\"amount\":200})
adk-2  PENDING  CONFIRMATION  app  ann   2026-01-31T12:00:00Z  2026-02-03T12:00:00Z  -         \
pay({\"amount\":200})
";
    assert_eq!((out(&output), err(&output), code(&output)), (lines, "", 0));
    let asked = fake.script().listed[0].clone();
    assert_eq!((&*asked.tool_name, asked.kinds, asked.page_size), ("pay", vec![2], 100));
    assert!(asked.create_before.is_some() && asked.create_after.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_shown_with_what_can_be_decided() {
    let fake = Fake::default();
    fake.script().approvals = vec![approval(json!({}))];
    let output = fake.command(&["approvals", "show", "adk-2"]).await;
    let rest = "to decide:\n  countersign approvals approve adk-2\n  countersign approvals deny \
                adk-2\n  countersign approvals request-changes adk-2 'WHAT TO CHANGE'\n";
    assert_eq!(out(&output), format!("{SHOWN}{rest}"));
    let output = fake.command(&["approvals", "show", "adk-2", "--json"]).await;
    assert_eq!(from_json::<v1::Approval>(out(&output)).unwrap(), approval(json!({})));
    assert!(!out(&output).contains('\x1b'));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_approved_is_what_was_shown() {
    let fake = Fake::default();
    fake.script().approvals = vec![approval(json!({}))];
    let standing = json!({"standingApproval": {"id": "s-9", "toolName": "pay"}});
    fake.script().decisions = [Ok(decided(standing))].into();
    let args = [
        "approvals",
        "approve",
        "adk-2",
        "--always",
        "tool",
        "--until",
        "2030-01-01T00:00:00Z",
        "--edit",
        "{\"amount\": 100}",
        "--payload",
        "1",
        "--reason",
        "fine",
        "--comment",
        "checked",
    ];
    let output = fake.command(&args).await;
    let rest = "\
APPLIED: adk-2 is APPROVED, its run is RUNNING
from here on pay runs without a question; to change that:
  countersign approvals revoke s-9
to see what comes of it:
  countersign watch s-1 --app app --user ann --after 5
";
    assert_eq!(out(&output), format!("{SHOWN}{rest}"));
    assert_eq!((err(&output), code(&output)), ("", 0));
    let asked = fake.script().decided[0].clone();
    assert_eq!(asked.verdict(), v1::approval::Verdict::Approve);
    assert_eq!((&*asked.call_id, &*asked.args_digest), ("adk-2", "sha256:12"));
    assert_eq!((&*asked.reason, &*asked.comment), ("fine", "checked"));
    assert_eq!((&*asked.edited_args_json, &*asked.payload_json), ("{\"amount\": 100}", "1"));
    let remember = asked.remember.unwrap();
    assert_eq!(remember.scope(), v1::decide_approval_request::remember::Scope::Tool);
    assert_eq!(remember.until.unwrap().seconds, 1_893_456_000);
    assert_eq!(asked.request_id.len(), 36);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verdict_is_a_word() {
    let words: [(&[&str], _); 4] = [
        (&["deny", "adk-2", "--reason", "no"], v1::approval::Verdict::Deny),
        (&["request-changes", "adk-2", "no"], v1::approval::Verdict::RequestChanges),
        (&["answer", "adk-2", "{\"a\": 1.50}"], v1::approval::Verdict::SupplyResult),
        (&["run-again", "adk-2", "--force"], v1::approval::Verdict::RunAgain),
    ];
    for (word, verdict) in words {
        let fake = Fake::default();
        fake.script().approvals = vec![approval(json!({}))];
        fake.script().decisions = [Ok(decided(json!({})))].into();
        let args: Vec<_> = ["approvals"].iter().chain(word).chain(&["--json"]).copied().collect();
        let output = fake.command(&args).await;
        assert_eq!((err(&output), code(&output)), ("", 0));
        let reply: v1::DecideApprovalResponse = from_json(out(&output)).unwrap();
        assert_eq!(reply, decided(json!({})));
        let asked = fake.script().decided[0].clone();
        assert_eq!((asked.verdict(), &*asked.args_digest), (verdict, "sha256:12"));
        let said = (&*asked.reason, &*asked.result_json, asked.force);
        let expected = match verdict {
            v1::approval::Verdict::SupplyResult => ("", "{\"a\": 1.50}", false),
            v1::approval::Verdict::RunAgain => ("", "", true),
            _ => ("no", "", false),
        };
        assert_eq!(said, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_decision_is_exit_code_1() {
    let fake = Fake::default();
    fake.script().approvals = vec![approval(json!({}))];
    fake.script().decisions = [Err(Status::failed_precondition("somebody was faster"))].into();
    let output = fake.command(&["approvals", "deny", "adk-2"]).await;
    assert_eq!(err(&output), "FAILED_PRECONDITION: somebody was faster\n");
    assert_eq!((out(&output), code(&output)), (SHOWN, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_taken_given_back_and_extended() {
    let fake = Fake::default();
    fake.script().approvals = vec![approval(json!({}))];
    let output = fake.command(&["approvals", "assign", "adk-2", "user:bob", "--for", "15m"]).await;
    assert_eq!(out(&output), "user:bob has adk-2 until 2026-01-31T12:20:00Z\n");
    let output = fake.command(&["approvals", "extend", "adk-2", "2026-02-03T12:00:00Z"]).await;
    assert_eq!(out(&output), "adk-2 waits until 2026-02-03T12:00:00Z\n");
    fake.script().approvals = vec![approval(json!({"assignee": "", "leaseExpireTime": null}))];
    let output = fake.command(&["approvals", "assign", "adk-2", "--release"]).await;
    assert_eq!(out(&output), "nobody has adk-2\n");
    let script = fake.script();
    let seconds = script.assigned[0].lease.map(|lease| lease.seconds);
    assert_eq!((&*script.assigned[0].assignee, seconds), ("user:bob", Some(900)));
    assert_eq!((&*script.assigned[1].assignee, script.assigned[1].lease), ("", None));
    assert_eq!(script.extended[0].expire_time.unwrap().seconds, 1_770_120_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inbox_is_watched_and_counted() {
    let fake = Fake::default();
    let update = |json: &str| from_json::<v1::WatchApprovalsResponse>(json).unwrap();
    fake.script().inbox = [vec![
        v1::WatchApprovalsResponse {
            update: Some(v1::watch_approvals_response::Update::Approval(approval(json!({})))),
            cursor: "1".to_owned(),
        },
        update(r#"{"cursor": "1", "caughtUp": {}}"#),
        update(r#"{"cursor": "1", "heartbeat": {}}"#),
        update(r#"{"cursor": "2", "removed": {"callId": "adk-2"}}"#),
    ]]
    .into();
    let output = fake.command(&["approvals", "watch"]).await;
    assert_eq!(
        out(&output),
        "PENDING    adk-2  CONFIRMATION  app/ann  2026-01-31T12:00:00Z  user:bob has it  \
         pay({\"amount\":200})\ncaught up, what follows is live\ngone       adk-2\n"
    );
    assert_eq!((err(&output), code(&output)), ("ABORTED: the script is over\n", 1));

    fake.script().approvals = vec![approval(json!({}))];
    let output = fake.command(&["approvals", "summary"]).await;
    assert_eq!(
        out(&output),
        "STATE    KIND          COUNT\nPENDING  LONG_RUNNING  12\nPENDING  CONFIRMATION  3\n\
         waits longest, since 2026-01-31T12:00:00Z:  adk-2\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn standing_approvals_are_listed_and_taken_back() {
    let fake = Fake::default();
    let standing = r#"{"id": "s-9", "appName": "app", "userId": "ann", "sessionId": "s-1",
        "toolName": "pay", "createdBy": "user:bob", "createTime": "2026-01-31T12:00:00Z",
        "exactArgsJson": "{\"amount\":5}"}"#;
    fake.script().standing = vec![from_json(standing).unwrap()];
    let output = fake.command(&["approvals", "standing"]).await;
    assert_eq!(
        out(&output),
        "ID   APP  USER  SESSION  MADE                  BY        UNTIL  RUNS\ns-9  app  ann   s-1  \
         \u{20}   2026-01-31T12:00:00Z  user:bob  -      pay({\"amount\":5})\n"
    );
    let output = fake.command(&["approvals", "revoke", "s-9"]).await;
    assert_eq!(out(&output), "s-9 is revoked: calls of pay are asked again\n");
    assert_eq!((err(&output), code(&output)), ("", 0));
}
