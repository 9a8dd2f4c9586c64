//! Approvals as a resource: found, watched, counted, decided and remembered over a real connection.

use countersign::app::Builder;
use countersign::proto::v1 as pb;
use countersign::proto::v1::approval::{State, Verdict};
use countersign::proto::v1::approval_service_client::ApprovalServiceClient;
use countersign::proto::v1::call::Kind;
use countersign::proto::v1::end_mark::State as End;
use countersign::proto::v1::watch_approvals_response::Update;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_types::StatusExt;

use crate::support::{
    Client, Server, Told, USER, agents, fields, json as plain, reason, say, story,
};

const CLERK: &str = "
name: clerk
model: scripted
tools:
  - name: pay
    description: Pays an amount.
    parameters:
      type: object
      properties: {amount: {type: number}}
      required: [amount]
    approval:
      need: always
      hint: May it pay?
      deadlines: [{after: 1h, do: remind}, {after: 2h, do: escalate, to: managers}]
      expires_after: 3h
    returns: {status: paid}
  - name: ask
    description: Asks a manager.
    parameters: {type: object, properties: {}}
    long_running: true
    inbox: true
    answer_schema: {type: object, required: [status]}
    returns: {status: pending}
script:
  - when: {user: pay}
    call: {pay: {amount: 200}}
  - when: {user: ask}
    call: {ask: {}}
  - when: {response: ask, matching: {status: pending}}
    say: I have asked.
  - when: {response: ask}
    say: 'They said: ${response.status}'
  - when: {response: pay, matching: {status: paid}}
    say: It is paid.
  - when: {response: pay}
    say: It is not paid.
";

type Approvals = ApprovalServiceClient<Channel>;

struct World {
    server: Server,
    client: Client,
    approvals: Approvals,
}

impl World {
    async fn new(builder: Builder) -> Self {
        Self::on(Server::start(builder).await).await
    }

    async fn on(server: Server) -> Self {
        let client = server.client().await;
        let approvals = ApprovalServiceClient::new(server.channel().await);
        Self { server, client, approvals }
    }

    /// Says something, in a new session if none is named, and waits for the pause.
    async fn pauses(&mut self, session: &str, text: &str) -> Told {
        let told = self.client.run(say("clerk", session, text)).await;
        assert_eq!(told.end.state(), End::Paused);
        told
    }

    async fn list(&mut self, request: pb::ListApprovalsRequest) -> Vec<pb::Approval> {
        let page = self.approvals.list_approvals(request).await.unwrap().into_inner();
        assert_eq!(page.next_page_token, "");
        page.approvals
    }

    /// What a decision on it set going, to its end.
    async fn follow(&mut self, done: &pb::DecideApprovalResponse) -> Told {
        let approval = done.approval.clone().unwrap();
        let request = pb::RunAsyncRequest {
            app_name: approval.app_name,
            user_id: approval.user_id,
            session_id: approval.session_id,
            invocation_id: approval.invocation_id,
            after_sequence: done.after_sequence,
            ..Default::default()
        };
        self.client.run(request).await
    }
}

fn decide(approval: &pb::Approval, verdict: Verdict) -> pb::DecideApprovalRequest {
    pb::DecideApprovalRequest {
        call_id: approval.call_id.clone(),
        verdict: verdict.into(),
        args_digest: approval.call.as_ref().unwrap().args_digest.clone(),
        ..Default::default()
    }
}

#[tokio::test]
async fn what_waits_is_found_with_everything_a_decision_needs() {
    let mut world = World::new(agents(CLERK)).await;
    let told = world.pauses("", "pay").await;
    let [approval] = &world.list(Default::default()).await[..] else { panic!("one waits") };
    let call = approval.call.clone().unwrap();
    let gated = call.function_call.clone().unwrap();
    assert_eq!((&*gated.name, &*call.exact_args_json), ("pay", r#"{"amount":200}"#));
    assert_eq!((call.kind(), approval.state()), (Kind::Confirmation, State::Pending));
    assert!(call.args_digest.starts_with("sha256:"));
    let held = told.end.held_calls[0].function_call.clone().unwrap();
    assert_eq!((&approval.call_id, &*held.name), (&held.id, "adk_request_confirmation"));
    assert_ne!(gated.id, held.id);
    let verdicts: Vec<_> = approval.allowed_verdicts().collect();
    assert_eq!(verdicts, [Verdict::Approve, Verdict::Deny, Verdict::RequestChanges]);
    assert_eq!((&*approval.hint, approval.requires_confirmation), ("May it pay?", true));
    let why = approval.reason.clone().unwrap().code();
    assert_eq!(why, pb::approval::reason::Code::Tool);
    let next = approval.next_deadline.clone().unwrap();
    assert_eq!(next.action(), pb::approval::deadline::Action::Remind);
    let created = approval.create_time.unwrap();
    assert_eq!(next.time.unwrap().seconds, created.seconds + 3600);
    assert_eq!(approval.expire_time.unwrap().seconds, created.seconds + 3 * 3600);
    let names = (&*approval.app_name, &*approval.user_id, &*approval.agent_path);
    assert_eq!(names, ("clerk", USER, "clerk"));
    assert_eq!(approval.invocation_id, told.begin.invocation_id);
    assert_eq!(approval.story[0].what(), pb::approval::note::What::Asked);

    let get = |call_id: &str| pb::GetApprovalRequest { call_id: call_id.to_owned() };
    let found = world.approvals.get_approval(get(&held.id)).await.unwrap().into_inner();
    assert_eq!(&found, approval);
    // Of the call that waits the question about it is told.
    let status = world.approvals.get_approval(get(&gated.id)).await.unwrap_err();
    assert_eq!(reason(&status), (Code::NotFound, "APPROVAL_NOT_FOUND".to_owned()));
    let metadata = status.get_details_error_info().unwrap().metadata;
    assert_eq!(metadata["question_id"], held.id);
    // What is asked is told in ADK's words too.
    let asked = told.events.iter().filter_map(|event| event.actions.as_ref());
    let asked: Vec<_> = asked.flat_map(|actions| &actions.requested_tool_confirmations).collect();
    let [(id, asked)] = asked[..] else { panic!("{asked:?}") };
    assert_eq!((id, &*asked.hint, asked.confirmed), (&gated.id, "May it pay?", false));
}

#[tokio::test]
async fn filters_find_what_they_name() {
    let directory = TempDir::new().unwrap();
    let builder = || agents(CLERK);
    for server in [
        Server::start(builder()).await,
        Server::stored(builder().sqlite(directory.path().join("x.db"))).await,
    ] {
        let mut world = World::on(server).await;
        world.pauses("", "pay").await;
        world.pauses("", "ask").await;
        let wanted = pb::ListApprovalsRequest::default;
        let all = world.list(wanted()).await;
        let kinds: Vec<_> = all.iter().map(|one| one.call.as_ref().unwrap().kind()).collect();
        assert_eq!(kinds, [Kind::Confirmation, Kind::LongRunning], "the oldest first");
        let before = all[1].create_time;
        let assign = pb::AssignApprovalRequest {
            call_id: all[1].call_id.clone(),
            assignee: "user:bob".into(),
            ..Default::default()
        };
        world.approvals.assign_approval(assign).await.unwrap();
        let pay = ("pay".to_owned(), vec![0]);
        let ask = ("ask".to_owned(), vec![1]);
        for (request, found) in [
            (pb::ListApprovalsRequest { tool_name: pay.0, ..wanted() }, pay.1.clone()),
            (pb::ListApprovalsRequest { tool_name: ask.0, ..wanted() }, ask.1.clone()),
            (pb::ListApprovalsRequest { app_name: "clerk".into(), ..wanted() }, vec![0, 1]),
            (pb::ListApprovalsRequest { app_name: "other".into(), ..wanted() }, vec![]),
            (pb::ListApprovalsRequest { user_id: USER.into(), ..wanted() }, vec![0, 1]),
            (pb::ListApprovalsRequest { assignee: "user:bob".into(), ..wanted() }, vec![1]),
            (pb::ListApprovalsRequest { kinds: vec![Kind::Input.into()], ..wanted() }, vec![]),
            (pb::ListApprovalsRequest { kinds: vec![Kind::LongRunning.into()], ..wanted() }, ask.1),
            (pb::ListApprovalsRequest { newest_first: true, ..wanted() }, vec![1, 0]),
            (pb::ListApprovalsRequest { create_before: before, ..wanted() }, vec![0]),
            (pb::ListApprovalsRequest { create_after: before, ..wanted() }, vec![1]),
            (
                pb::ListApprovalsRequest {
                    create_before: before,
                    newest_first: true,
                    user_id: USER.into(),
                    kinds: vec![Kind::Confirmation.into(), Kind::Input.into()],
                    ..wanted()
                },
                vec![0],
            ),
            (pb::ListApprovalsRequest { states: vec![State::Denied.into()], ..wanted() }, vec![]),
        ] {
            let shown = format!("{request:?}");
            let listed = world.list(request).await;
            let ids: Vec<_> = listed.iter().map(|one| &one.call_id).collect();
            let expected: Vec<_> = found.iter().map(|at| &all[*at as usize].call_id).collect();
            assert_eq!(ids, expected, "{shown}");
        }
        let deny = decide(&all[0], Verdict::Deny);
        let done = world.approvals.decide_approval(deny).await.unwrap().into_inner();
        assert_eq!(done.approval.clone().unwrap().state(), State::Denied);
        assert_eq!(
            story(&world.follow(&done).await.events).last().unwrap(),
            "clerk: It is not paid."
        );
        let denied = pb::ListApprovalsRequest {
            states: vec![State::Denied.into(), State::Pending.into()],
            ..wanted()
        };
        let ids: Vec<_> = world.list(denied).await.into_iter().map(|one| one.call_id).collect();
        assert_eq!(ids, [&*all[0].call_id, &*all[1].call_id]);
        // One a state and kind.
        for app in ["", "clerk"] {
            let request = pb::SummarizeApprovalsRequest { app_name: app.into() };
            let figures = world.approvals.summarize_approvals(request).await.unwrap().into_inner();
            let counts: Vec<_> =
                figures.counts.iter().map(|one| (one.state(), one.kind(), one.count)).collect();
            let expected =
                [(State::Pending, Kind::LongRunning, 1), (State::Denied, Kind::Confirmation, 1)];
            assert_eq!(counts, expected);
            assert_eq!(figures.oldest_pending.unwrap().call_id, all[1].call_id);
        }
    }
}

#[tokio::test]
async fn pages_of_an_inbox_hold_each_approval_once_and_in_order() {
    let directory = TempDir::new().unwrap();
    for server in [
        Server::start(agents(CLERK)).await,
        Server::stored(agents(CLERK).sqlite(directory.path().join("x.db"))).await,
    ] {
        let mut world = World::on(server).await;
        let mut made = Vec::new();
        for n in 0..7 {
            let told = world.pauses("", if n % 3 == 0 { "ask" } else { "pay" }).await;
            made.push(told.end.held_calls[0].function_call.clone().unwrap().id);
        }
        let deny = pb::GetApprovalRequest { call_id: made[1].clone() };
        let denied = world.approvals.get_approval(deny).await.unwrap().into_inner();
        world.approvals.decide_approval(decide(&denied, Verdict::Deny)).await.unwrap();
        for (newest_first, user) in [(false, ""), (false, USER), (true, ""), (true, USER)] {
            let mut request = pb::ListApprovalsRequest {
                states: vec![State::Pending.into(), State::Denied.into()],
                user_id: user.into(),
                newest_first,
                page_size: 2,
                ..Default::default()
            };
            let mut seen = Vec::new();
            loop {
                let page = world.approvals.list_approvals(request.clone()).await.unwrap();
                let page = page.into_inner();
                assert!(page.approvals.len() <= 2);
                seen.extend(page.approvals.into_iter().map(|one| one.call_id));
                request.page_token = page.next_page_token;
                if request.page_token.is_empty() {
                    break;
                }
            }
            if newest_first {
                seen.reverse();
            }
            assert_eq!(seen, made);
        }
    }
}

async fn next(stream: &mut Streaming<pb::WatchApprovalsResponse>) -> (String, String) {
    loop {
        let message = stream.message().await.unwrap().expect("a watch does not end");
        let told = match message.update.unwrap() {
            Update::Approval(approval) => {
                format!("{} {}", approval.call_id, approval.state().as_str_name())
            }
            Update::Removed(removed) => format!("{} gone", removed.call_id),
            Update::CaughtUp(_) => "caught up".to_owned(),
            Update::Heartbeat(_) => continue,
            Update::End(_) => "end".to_owned(),
        };
        return (told, message.cursor);
    }
}

#[tokio::test]
async fn a_watch_tells_what_comes_changes_and_goes() {
    let mut world = World::new(agents(CLERK)).await;
    world.pauses("", "pay").await;
    let [first] = &world.list(Default::default()).await[..] else { panic!("one waits") };
    let watch = pb::WatchApprovalsRequest { tool_name: "pay".into(), ..Default::default() };
    let mut stream = world.approvals.watch_approvals(watch.clone()).await.unwrap().into_inner();
    assert_eq!(next(&mut stream).await.0, format!("{} PENDING", first.call_id));
    let (caught_up, cursor) = next(&mut stream).await;
    assert_eq!(caught_up, "caught up");
    // Calls that are no approvals, and approvals of others, are not told.
    world.pauses("", "ask").await;
    let told = world.pauses("", "pay").await;
    let second = told.end.held_calls[0].function_call.clone().unwrap().id;
    assert_eq!(next(&mut stream).await.0, format!("{second} PENDING"));
    let assign = pb::AssignApprovalRequest {
        call_id: second.clone(),
        assignee: "user:local".into(),
        ..Default::default()
    };
    world.approvals.assign_approval(assign).await.unwrap();
    assert_eq!(next(&mut stream).await.0, format!("{second} PENDING"));
    let done = world.approvals.decide_approval(decide(first, Verdict::Deny)).await.unwrap();
    world.follow(&done.into_inner()).await;
    assert_eq!(next(&mut stream).await.0, format!("{} gone", first.call_id));
    // From the cursor on it is told again, once each as it is now.
    let again = pb::WatchApprovalsRequest { cursor, ..watch.clone() };
    let mut again = world.approvals.watch_approvals(again).await.unwrap().into_inner();
    let mut told = [next(&mut again).await.0, next(&mut again).await.0];
    told.sort();
    let mut expected = [format!("{second} PENDING"), format!("{} gone", first.call_id)];
    expected.sort();
    assert_eq!(told, expected);
    // What a session held leaves with it.
    let session = told_session(&mut world, &second).await;
    let delete = pb::DeleteSessionRequest {
        app_name: "clerk".into(),
        user_id: USER.into(),
        session_id: session,
        ..Default::default()
    };
    world.client.sessions.delete_session(delete).await.unwrap();
    assert_eq!(next(&mut stream).await.0, format!("{second} gone"));
    let other = pb::WatchApprovalsRequest { cursor: "x".into(), ..watch };
    let status = world.approvals.watch_approvals(other).await.unwrap_err();
    assert_eq!(reason(&status).1, "CURSOR_INVALID");
    drop((stream, again));
    world.server.stop().await;
}

async fn told_session(world: &mut World, call: &str) -> String {
    let request = pb::GetApprovalRequest { call_id: call.to_owned() };
    world.approvals.get_approval(request).await.unwrap().into_inner().session_id
}

#[tokio::test]
async fn an_approval_is_for_what_was_seen_and_can_be_for_good() {
    let mut world = World::new(agents(CLERK)).await;
    let told = world.pauses("", "pay").await;
    let session = told.begin.session_id.clone();
    let [approval] = &world.list(Default::default()).await[..] else { panic!("one waits") };
    let assign = |who: &str| pb::AssignApprovalRequest {
        call_id: approval.call_id.clone(),
        assignee: who.into(),
        ..Default::default()
    };
    let refused = async |approvals: &mut Approvals, request: pb::DecideApprovalRequest| {
        reason(&approvals.decide_approval(request).await.unwrap_err()).1
    };
    let right = decide(approval, Verdict::Approve);
    // Somebody else has it.
    let taken = world.approvals.assign_approval(assign("user:bob")).await.unwrap().into_inner();
    assert_eq!(taken.assignee, "user:bob");
    assert!(taken.etag != approval.etag && taken.lease_expire_time.is_some());
    assert_eq!(refused(&mut world.approvals, right.clone()).await, "APPROVAL_CLAIMED");
    let free = world.approvals.assign_approval(assign("")).await;
    let free = free.map(tonic::Response::into_inner);
    let free = free.unwrap_or_else(|status| panic!("{status:?}"));
    assert_eq!((&*free.assignee, free.lease_expire_time), ("", None));
    // What was seen is not what is there.
    let stale = pb::DecideApprovalRequest { etag: approval.etag.clone(), ..right.clone() };
    assert_eq!(refused(&mut world.approvals, stale).await, "ETAG_MISMATCH");
    let blind = pb::DecideApprovalRequest { args_digest: String::new(), ..right.clone() };
    assert_eq!(refused(&mut world.approvals, blind).await, "ARGS_DIGEST_REQUIRED");
    let wrong = pb::DecideApprovalRequest {
        args_digest: format!("sha256:{}", "0".repeat(64)),
        ..right.clone()
    };
    assert_eq!(refused(&mut world.approvals, wrong).await, "ARGS_DIGEST_MISMATCH");
    let later = pb::ExtendApprovalRequest {
        call_id: approval.call_id.clone(),
        expire_time: Some(countersign::proto::wkt::Timestamp { seconds: 4_000_000_000, nanos: 0 }),
        ..Default::default()
    };
    let extended = world.approvals.extend_approval(later).await.unwrap().into_inner();
    assert_eq!(extended.expire_time.unwrap().seconds, 4_000_000_000);

    let remember = pb::decide_approval_request::Remember {
        scope: pb::decide_approval_request::remember::Scope::Tool.into(),
        until: None,
    };
    let request = pb::DecideApprovalRequest {
        remember: Some(remember),
        etag: extended.etag,
        request_id: "once".into(),
        comment: "checked".into(),
        ..right
    };
    let done = world.approvals.decide_approval(request.clone()).await.unwrap().into_inner();
    let decided = done.approval.clone().unwrap();
    assert_eq!((decided.state(), decided.verdict()), (State::Approved, Verdict::Approve));
    assert_eq!((&*decided.decided_by, &*decided.comment), ("user:local", "checked"));
    assert_eq!(story(&world.follow(&done).await.events).last().unwrap(), "clerk: It is paid.");
    let again = world.approvals.decide_approval(request).await.unwrap().into_inner();
    assert_eq!(again.after_sequence, done.after_sequence);
    let standing = done.standing_approval.unwrap();
    assert_eq!((&*standing.tool_name, &*standing.session_id), ("pay", &*session));

    // From here on nobody is asked in this session, and in others people are.
    let paid = world.client.run(say("clerk", &session, "pay")).await;
    assert_eq!(paid.end.state(), End::Completed);
    let other = world.pauses("", "pay").await;
    assert_ne!(other.begin.session_id, session);
    let list = pb::ListStandingApprovalsRequest::default;
    let listed = world.approvals.list_standing_approvals(list()).await.unwrap().into_inner();
    assert_eq!(listed.standing_approvals, std::slice::from_ref(&standing));
    let revoke =
        pb::RevokeStandingApprovalRequest { id: standing.id.clone(), ..Default::default() };
    let revoked = world.approvals.revoke_standing_approval(revoke.clone()).await.unwrap();
    assert!(revoked.into_inner().revoked);
    assert!(world.approvals.revoke_standing_approval(revoke).await.is_ok(), "twice is fine");
    let listed = world.approvals.list_standing_approvals(list()).await.unwrap().into_inner();
    assert_eq!(listed.standing_approvals, []);
    let all = pb::ListStandingApprovalsRequest { show_revoked: true, ..list() };
    let listed = world.approvals.list_standing_approvals(all).await.unwrap().into_inner();
    assert!(listed.standing_approvals[0].revoked);
    world.pauses(&session, "pay").await;
}

#[tokio::test]
async fn a_result_is_supplied_and_the_settings_are_told() {
    let mut world = World::new(agents(CLERK)).await;
    world.pauses("", "ask").await;
    let [approval] = &world.list(Default::default()).await[..] else { panic!("one waits") };
    let verdicts: Vec<_> = approval.allowed_verdicts().collect();
    assert_eq!(verdicts, [Verdict::SupplyResult]);
    let status = world.approvals.decide_approval(decide(approval, Verdict::Approve)).await;
    assert_eq!(reason(&status.unwrap_err()).1, "VERDICT_NOT_ALLOWED");
    let wrong = pb::DecideApprovalRequest {
        result_json: "{}".into(),
        ..decide(approval, Verdict::SupplyResult)
    };
    let status = world.approvals.decide_approval(wrong).await.unwrap_err();
    assert_eq!(reason(&status).1, "RESPONSE_SCHEMA_VIOLATION");
    assert_eq!(fields(&status), ["result"]);
    assert!(status.message().starts_with("result: "), "{}", status.message());
    let request = pb::DecideApprovalRequest {
        result_json: r#"{"status": "yes", "n": 12345678901234567890}"#.into(),
        ..decide(approval, Verdict::SupplyResult)
    };
    let done = world.approvals.decide_approval(request).await.unwrap().into_inner();
    assert_eq!(done.approval.clone().unwrap().state(), State::Answered);
    assert_eq!(story(&world.follow(&done).await.events).last().unwrap(), "clerk: They said: yes");

    let request = pb::GetAgentRequest { name: "clerk".into() };
    let agent = world.client.agents.get_agent(request).await.unwrap().into_inner();
    let settings = agent.approvals.unwrap();
    assert_eq!(settings.batches(), pb::approval_settings::Batches::Barrier);
    assert!(!settings.needed_by_default && settings.max_auto_approval_iterations == 40);
    let pay = &agent.tools[0];
    assert_eq!(pay.needs_approval(), pb::tool_declaration::NeedsApproval::Always);
    assert_eq!(pay.approval_hint, "May it pay?");
    assert_eq!(plain(pay.parameters.as_ref().unwrap())["required"][0], "amount");
}
