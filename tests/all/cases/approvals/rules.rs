//! Standing approvals and rules that approve (Microsoft's Agent Framework, its harness).

use countersign::proto::v1::decide_approval_request::{Remember, remember::Scope};
use countersign::proto::v1::{self as pb, end_mark::State};
use countersign::session::content::FunctionResponse;

use super::super::stage::{Setting, Stage, call_of, stage};
use super::{Verdict, asks, open, questions_in};

fn always(scope: Scope) -> impl FnOnce(&mut pb::DecideApprovalRequest) {
    move |request| request.remember = Some(Remember { scope: scope.into(), until: None })
}

async fn standing(stage: &Stage) -> Vec<pb::StandingApproval> {
    let request = pb::ListStandingApprovalsRequest::default();
    let listed = stage.desk().await.list_standing_approvals(request).await.unwrap();
    listed.into_inner().standing_approvals
}

#[tokio::test]
async fn maf_67_always_for_a_tool_approves_what_else_waits_for_it() {
    let mut stage = stage([asks("pay"), asks("ship")]).await;
    let told = stage.say(r#"call pay {"n": 1} & pay {"n": 2} & ship"#).await;
    let next =
        stage.decide(&told.end.held_calls[0], Verdict::Approve, always(Scope::Tool)).await.unwrap();
    assert_eq!(open(&next), ["ship({})"]);
    let rest = stage.confirm(&next.end.held_calls[0], true).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(standing(&stage).await.len(), 1);
}

#[tokio::test]
async fn maf_h_69_70_always_with_these_arguments() {
    let mut stage = stage([asks("pay")]).await;
    let told = stage.say(r#"call pay {"x": 1}"#).await;
    let session = told.begin.session_id.clone();
    let exact = always(Scope::ToolWithArguments);
    stage.decide(&told.end.held_calls[0], Verdict::Approve, exact).await.unwrap();
    let asks_in = async |stage: &mut Stage, session: &str, text: &str| {
        let told = stage.say_in(session, text).await;
        for question in told.end.held_calls.clone() {
            stage.confirm(&question, false).await;
        }
        !told.end.held_calls.is_empty()
    };
    assert!(!asks_in(&mut stage, &session, r#"call pay {"x": 1}"#).await, "silent");
    // 1.0 is the same argument.
    assert!(!asks_in(&mut stage, &session, r#"call pay {"x": 1.0}"#).await);
    assert!(asks_in(&mut stage, &session, r#"call pay {"x": 2}"#).await);
    assert!(asks_in(&mut stage, &session, "call pay").await);
    assert!(asks_in(&mut stage, "", r#"call pay {"x": 1}"#).await, "another session");

    // One that was made for a call without arguments is for those alone.
    let told = stage.say_in(&session, "call pay").await;
    let exact = always(Scope::ToolWithArguments);
    stage.decide(&told.end.held_calls[0], Verdict::Approve, exact).await.unwrap();
    assert!(!asks_in(&mut stage, &session, "call pay").await);
    assert!(asks_in(&mut stage, &session, r#"call pay {"x": 3}"#).await);
    assert_eq!(standing(&stage).await.len(), 2);
}

#[tokio::test]
async fn peers_14_a_standing_approval_is_for_its_session_until_it_is_revoked() {
    let mut stage = stage([asks("pay")]).await;
    let told = stage.say("call pay").await;
    let session = told.begin.session_id.clone();
    let rest = stage.decide(&told.end.held_calls[0], Verdict::Approve, always(Scope::Tool)).await;
    assert_eq!(rest.unwrap().end.state(), State::Completed);
    let id = standing(&stage).await[0].id.clone();
    assert_eq!(stage.say_in(&session, "call pay").await.end.state(), State::Completed);
    let revoke = pb::RevokeStandingApprovalRequest { id, ..Default::default() };
    stage.desk().await.revoke_standing_approval(revoke).await.unwrap();
    assert_eq!(open(&stage.say_in(&session, "call pay").await), ["pay({})"]);
}

#[tokio::test]
async fn maf_73_74_rules_approve_in_their_order_and_what_no_rule_is_for_asks() {
    let rules = "approvals: {auto_approve: [{name: small, when: args.n < 10}, \
                 {name: pay, when: tool == 'pay'}]}";
    let setting = Setting::new().line(rules).tool(asks("pay")).tool(asks("ship"));
    let mut stage = setting.set().await;
    let told = stage.say(r#"call pay {"n": 1} & ship {"n": 2} & pay {"n": 50}"#).await;
    assert_eq!(told.end.state(), State::Completed);
    assert!(questions_in(&told.events).is_empty());
    let told = stage.say(r#"call pay {"n": 1} & ship {"n": 50}"#).await;
    assert_eq!(open(&told), [r#"ship({"n":50})"#]);
    // A rule that cannot be told approves nothing.
    let told = stage.say("call ship").await;
    assert_eq!(open(&told), ["ship({})"]);
    let why = stage.inbox().await[1].reason.clone().unwrap();
    assert_eq!(why.code(), pb::approval::reason::Code::RuleFailed);
}

#[tokio::test]
async fn maf_75_a_tool_that_is_wanted_for_ever_asks_at_the_cap() {
    let more = |response: &FunctionResponse| {
        (response.name == "pay").then(|| call_of("pay", Default::default()))
    };
    let rules = "approvals: {max_auto_approval_iterations: 3, \
                 auto_approve: [{name: all, when: 'true'}]}";
    let pay = asks("pay");
    let ran = pay.runs();
    let mut stage = Setting::new().line(rules).tool(pay).cue(more).set().await;
    let told = stage.say("call pay").await;
    assert_eq!((told.end.state(), ran.get()), (State::Paused, 3));
    let why = stage.inbox().await[0].reason.clone().unwrap();
    assert_eq!(why.code(), pb::approval::reason::Code::AutoApprovalCap);
    // A person's word begins a new count.
    let next = stage.confirm(&told.end.held_calls[0], true).await;
    assert_eq!((next.end.state(), ran.get()), (State::Paused, 7));
    let none = "{name: c, model: scripted, approvals: {max_auto_approval_iterations: 0}}";
    assert!(crate::support::agents(none).memory().build().await.is_err());
}

#[tokio::test]
async fn maf_e_without_auto_approval_no_rule_is_asked() {
    let off = "approvals: {disable_tool_auto_approval: true, one_at_a_time: true, \
               auto_approve: [{name: all, when: 'true'}]}";
    let setting = Setting::new().line(off).tool(asks("pay")).tool(asks("ship"));
    let mut stage = setting.set().await;
    let told = stage.say("call pay & ship").await;
    assert_eq!(open(&told), ["pay({})", "ship({})"]);
    let exact = always(Scope::Tool);
    let refused = stage.decide(&told.end.held_calls[0], Verdict::Approve, exact).await;
    // It would approve nothing as long as this is off.
    let refused = refused.unwrap_err();
    assert!(refused.message().starts_with("remember: "), "{refused:?}");
    stage.confirm(&told.end.held_calls[0], true).await;
    stage.confirm(&told.end.held_calls[1], true).await;
    let session = told.begin.session_id.clone();
    assert_eq!(open(&stage.say_in(&session, "call pay").await), ["pay({})"]);
}
