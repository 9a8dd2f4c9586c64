//! What happens between a question and its decision: days, restarts, other rules.

use std::sync::Arc;
use std::time::Duration;

use countersign::proto::v1::approval::note::What;
use countersign::proto::v1::{self as pb, end_mark::State};
use countersign::session::approval::{Action, Deadline};
use countersign::store::Clock;
use countersign::store::memory::Memory;
use serde_json::json;

use super::super::stage::{Closure, Setting, Stage};
use super::{Verdict, asks, brief, heard, id, open, runs, why};

const DAY: u64 = 24 * 3600;

/// A tool whose questions have deadlines, in days.
fn within(name: &str, deadlines: &[(u64, Action)]) -> Closure {
    let of = |(days, action): &(u64, Action)| Deadline {
        after: Duration::from_secs(days * DAY),
        action: action.clone(),
    };
    let deadlines = deadlines.iter().map(of).collect();
    asks(name).approval(|approval| approval.deadlines = deadlines)
}

async fn approval(stage: &Stage, call: &str) -> pb::Approval {
    let request = pb::GetApprovalRequest { call_id: call.into() };
    stage.desk().await.get_approval(request).await.unwrap().into_inner()
}

/// A question's year, with a look every twelve hours.
#[tokio::test]
async fn a_year_with_a_question_that_nobody_decides() {
    let clock = Clock::manual(1_769_860_800_000_000);
    let escalate = |to: &str| Action::Escalate { to: to.into() };
    for (last, state, told_as) in [
        (Action::Expire, pb::approval::State::Expired, r#""status":"expired""#),
        (Action::Deny, pb::approval::State::Denied, "Nobody decided before the deadline."),
    ] {
        let deadlines = [
            (1, Action::Remind),
            (7, escalate("managers")),
            (30, escalate("the board")),
            (300, Action::Remind),
            (365, last),
        ];
        let pay = within("pay", &deadlines);
        let ran = pay.runs();
        let mut stage = Setting::new().clock(&clock).tool(pay).set().await;
        let told = stage.say("call pay").await;
        let question = id(&told.end.held_calls[0]).to_owned();
        let mut seen = Vec::new();
        for half in 1..=2 * 365 {
            clock.advance(Duration::from_secs(DAY / 2));
            while stage.server.runner.tick_deadlines().await.unwrap() {}
            let now = approval(&stage, &question).await;
            let story = now.story.iter().map(pb::approval::Note::what).collect::<Vec<_>>();
            if seen.last().is_none_or(|(_, len): &(u64, usize)| *len != story.len()) {
                seen.push((half, story.len()));
            }
            if half == 2 * 100 {
                assert_eq!(
                    (now.escalated_to.as_str(), now.state()),
                    ("the board", pb::approval::State::Pending)
                );
                assert!(now.next_deadline.is_some());
            }
        }
        let days: Vec<u64> = seen.iter().map(|(half, _)| half / 2).collect();
        assert_eq!(days, [0, 1, 7, 30, 300, 365]);
        let end = approval(&stage, &question).await;
        assert_eq!((end.state(), ran.get()), (state, 0));
        use What::{Asked, Escalated, Reminded};
        let story: Vec<What> = end.story.iter().map(pb::approval::Note::what).collect();
        assert_eq!(story[..5], [Asked, Reminded, Escalated, Escalated, Reminded]);
        let request = pb::RunAsyncRequest {
            app_name: end.app_name,
            user_id: end.user_id,
            session_id: end.session_id,
            invocation_id: end.invocation_id,
            ..Default::default()
        };
        let rest = super::soon(stage.client.run(request)).await;
        assert_eq!(rest.end.state(), State::Completed);
        assert!(heard(&stage)[0].contains(told_as), "{:?}", heard(&stage));
    }
}

#[tokio::test]
async fn a_decision_after_the_deadline_is_refused_swept_or_not() {
    let clock = Clock::manual(1_769_860_800_000_000);
    let pay = within("pay", &[(1, Action::Expire)]);
    let ran = pay.runs();
    let mut stage = Setting::new().clock(&clock).tool(pay).set().await;
    let told = stage.say("call pay").await;
    let question = &told.end.held_calls[0];
    clock.advance(Duration::from_secs(DAY));
    assert_eq!(why(stage.decide(question, Verdict::Approve, |_| {}).await), "CALL_EXPIRED");
    while stage.server.runner.tick_deadlines().await.unwrap() {}
    assert_eq!(why(stage.decide(question, Verdict::Approve, |_| {}).await), "CALL_EXPIRED");
    assert_eq!(ran.get(), 0);
}

/// Another server on the same store.
async fn restarted(stage: Stage, store: &Arc<Memory>, setting: Setting) -> Stage {
    stage.server.stop().await;
    setting.store(store).set().await
}

#[tokio::test]
async fn maf_41_a_rule_that_came_meanwhile_stops_an_approved_call_when_it_is_dispatched() {
    let mut first = Setting::new().tool(asks("pay")).tool(runs("ship")).set().await;
    let told = first.say(r#"call pay {"n": 5000} & ship"#).await;
    let store = first.server.store.clone();
    let (pay, ship) = (asks("pay"), runs("ship"));
    let (paid, shipped) = (pay.runs(), ship.runs());
    let deny = "approvals: {deny: [{name: too much, when: 'tool == \"pay\" && args.n > 1000'}, \
                {name: no ships, when: 'tool == \"ship\"'}]}";
    let mut second = restarted(first, &store, Setting::new().line(deny).tool(pay).tool(ship)).await;
    let question = &told.end.held_calls[0];
    let rest = second.decide(question, Verdict::Approve, |_| {}).await.unwrap();
    assert_eq!(rest.end.state(), State::Completed);
    let told = brief(&rest.events);
    assert_eq!(told[0].matches("POLICY_DENIED").count(), 2, "{told:?}");
    assert_eq!((paid.get(), shipped.get()), (0, 0));
    assert_eq!(approval(&second, id(question)).await.verdict(), Verdict::Approve);
}

#[tokio::test]
async fn maf_47_a_mixed_turn_is_the_same_behind_a_restart() {
    let tools = || [runs("s1"), asks("r1"), asks("r2")];
    let setting = || tools().into_iter().fold(Setting::new(), Setting::tool);
    let mut first = setting().set().await;
    let told = first.say("call s1 & r1 & r2").await;
    let part = first.confirm(&told.end.held_calls[0], true).await;
    assert_eq!(open(&part), ["r2({})"]);
    let store = first.server.store.clone();
    let mut second = restarted(first, &store, setting()).await;
    let rest = second.confirm(&told.end.held_calls[1], true).await;
    assert_eq!(rest.end.state(), State::Completed);
    assert_eq!(heard(&second), ["s1", "r1", "r2"].map(super::did));
}

#[tokio::test]
async fn edited_arguments_run_and_the_model_hears_which() {
    let pay = Closure::new("pay", |args, _| async move {
        countersign::tool::Outcome::Value(json!({ "paid": args["n"] }))
    });
    let deny = "approvals: {deny: [{name: too much, when: args.n > 1000}]}";
    let mut stage = Setting::new().line(deny).tool(pay.gated()).set().await;
    let told = stage.say(r#"call pay {"n": 500}"#).await;
    let question = &told.end.held_calls[0];
    let to = |text: &str| {
        let text = text.to_owned();
        move |request: &mut pb::DecideApprovalRequest| request.edited_args_json = text
    };
    let much = stage.decide(question, Verdict::Approve, to(r#"{"n": 1001}"#)).await;
    assert_eq!(why(much), "POLICY_DENIED");
    stage.decide(question, Verdict::Approve, to(r#"{"n": 100}"#)).await.unwrap();
    assert_eq!(heard(&stage), [r#"pay {"approved_arguments":{"n":100},"paid":100}"#]);
    let end = approval(&stage, id(question)).await;
    assert!(end.story.iter().any(|note| note.what() == What::Edited));
}

/// An approval for good can have an end, and nothing runs by it from then on.
#[tokio::test]
async fn peers_14_maf_h_a_standing_approval_until_a_time() {
    use pb::decide_approval_request::{Remember, remember::Scope};
    let clock = Clock::manual(1_769_860_800_000_000);
    let mut stage = Setting::new().clock(&clock).tool(asks("pay")).set().await;
    let told = stage.say("call pay").await;
    let session = told.begin.session_id.clone();
    let until = |seconds: i64| {
        let until = Some(countersign::proto::wkt::Timestamp { seconds, nanos: 0 });
        move |request: &mut pb::DecideApprovalRequest| {
            request.remember = Some(Remember { scope: Scope::Tool.into(), until });
        }
    };
    let question = &told.end.held_calls[0];
    let past = stage.decide(question, Verdict::Approve, until(1_769_860_800)).await.unwrap_err();
    assert_eq!(crate::support::fields(&past), ["remember.until"]);
    stage.decide(question, Verdict::Approve, until(1_769_860_860)).await.unwrap();
    clock.advance(Duration::from_secs(59));
    assert_eq!(stage.say_in(&session, "call pay").await.end.state(), State::Completed);
    clock.advance(Duration::from_secs(1));
    assert_eq!(open(&stage.say_in(&session, "call pay").await), ["pay({})"]);
}

/// A long-running tool that asks before it starts: the agreement starts it, and its outcome still
/// comes from outside.
#[tokio::test]
async fn adk_4_3_a_long_running_tool_asks_before_it_starts() {
    for tool in [Closure::asks("ask"), Closure::waits("ask")] {
        let tool = tool.gated();
        let ran = tool.runs();
        let mut stage = Setting::new().tool(tool).set().await;
        let told = stage.say("call ask").await;
        assert_eq!((open(&told), ran.get()), (vec!["ask({})".to_owned()], 0));
        let next = stage.confirm(&told.end.held_calls[0], true).await;
        assert_eq!((next.end.state(), ran.get()), (State::Paused, 1));
        let [held] = &next.end.held_calls[..] else { panic!("{next:?}") };
        assert_eq!(held.kind(), pb::call::Kind::LongRunning);
        let rest = stage.answer(held, json!({"status": "approved"})).await;
        assert_eq!(rest.end.state(), State::Completed);
        assert_eq!(heard(&stage), [r#"ask {"status":"approved"}"#]);
        assert_eq!(ran.get(), 1);
    }
}

/// What nobody knows the outcome of runs again by a person's word only, and not while the first
/// body may be at work.
#[tokio::test]
async fn an_unknown_outcome_is_run_again_when_it_is_allowed() {
    use countersign::tool::Outcome;
    let clock = Clock::manual(1_769_860_800_000_000);
    let pay = Closure::new("pay", |_, context: countersign::tool::Context| async move {
        match context.idempotency_key().ends_with("/1") {
            true => Outcome::Unknown("the line was cut".into()),
            false => Outcome::Value(json!({"did": "pay"})),
        }
    });
    let ran = pay.runs();
    let mut stage = Setting::new().clock(&clock).tool(pay).set().await;
    let told = stage.say("call pay").await;
    let held = &told.end.held_calls[0];
    assert_eq!(held.kind(), pb::call::Kind::UnknownOutcome);
    let early = stage.decide(held, Verdict::RunAgain, |_| {}).await;
    assert_eq!(why(early), "VERDICT_NOT_ALLOWED");
    assert_eq!(ran.get(), 1);
    clock.advance(Duration::from_secs(600));
    let rest = stage.decide(held, Verdict::RunAgain, |_| {}).await.unwrap();
    assert_eq!((rest.end.state(), ran.get()), (State::Completed, 2));
    assert_eq!(heard(&stage), [super::did("pay")]);
    let again = stage.decide(held, Verdict::RunAgain, |request| request.force = true).await;
    assert_eq!(why(again), "CALL_ALREADY_ANSWERED");
}
