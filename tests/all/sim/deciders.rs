//! Deciders: clients that look for approvals and decide, with edits and for good, take them, give
//! them back, extend them and revoke what stands; also wrongly, late and twice.

use std::time::Duration;

use countersign::runner::Decide;
use countersign::session::approval::{Scope, Verdict};
use countersign::session::call::{Call, Kind};
use countersign::session::id::Principal;
use countersign::session::refusal::Reason;
use serde_json::json;

use super::clients::{Client, Reply, What, object};

impl Client {
    /// Looks at a session, and does something with an approval or a standing one of it.
    pub async fn approve(&self) {
        let world = &self.world;
        let (caller, key) = (self.caller(), self.key());
        let looked = self.ask(&caller, "GetSession", |r| {
            let key = key.clone();
            async move { r.get_session(&key).await }
        });
        let Reply::Done(view) = looked.await else { return };
        let standing: Vec<String> = view.session.standing.keys().cloned().collect();
        let held = |call: &&Call| call.approval.is_some() && call.held().is_some();
        let held: Vec<Call> = view.session.calls.values().filter(held).cloned().collect();
        if let Some(id) = world.pick(&standing).filter(|_| world.percent(60)).cloned() {
            let revoked = self.ask(&caller, "RevokeStandingApproval", |r| {
                let (caller, id) = (caller.clone(), id.clone());
                async move { r.revoke_standing(caller, id).await }
            });
            if let Reply::Refused(refusal) = revoked.await {
                let known = [Reason::StandingApprovalNotFound, Reason::SessionNotFound];
                let right = known.contains(&refusal.reason);
                world.check(right, || format!("{id} is not revoked: {refusal}"));
            }
            return;
        }
        let Some(call) = world.pick(&held).cloned() else { return };
        // Others may be faster.
        world.pause(400).await;
        match world.below(100) {
            0..15 => self.assign(&call).await,
            15..30 => self.extend(&call).await,
            _ => self.decide(&call).await,
        }
    }

    async fn assign(&self, call: &Call) {
        let (world, caller, id) = (&self.world, self.caller(), call.spec.id.clone());
        let to = Principal::parse(format!("user:p{}", world.below(3))).unwrap();
        let to = world.percent(80).then_some(to);
        let lease = Duration::from_secs(1 + world.below(4));
        let reply = self.ask(&caller, "AssignApproval", |r| {
            let (caller, id, to) = (caller.clone(), id.clone(), to.clone());
            async move { r.assign_approval(caller, id, to, lease, None).await }
        });
        if let Reply::Refused(refusal) = reply.await {
            self.declined(refusal.reason);
        }
    }

    async fn extend(&self, call: &Call) {
        let (world, caller, id) = (&self.world, self.caller(), call.spec.id.clone());
        let etag = world.percent(50).then_some(call.revision);
        let until = world.now() + world.below(10) * 1_000_000;
        let reply = self.ask(&caller, "ExtendApproval", |r| {
            let (caller, id) = (caller.clone(), id.clone());
            async move { r.extend_approval(caller, id, until, etag, String::new()).await }
        });
        if let Reply::Refused(refusal) = reply.await {
            self.declined(refusal.reason);
        }
    }

    async fn decide(&self, call: &Call) {
        let (world, number) = (&self.world, self.world.count());
        let allowed = call.allowed_verdicts();
        let verdict = match call.held() {
            _ if world.percent(5) => *world.pick(&Verdict::ALL).unwrap(),
            Some(Kind::Confirmation) if world.percent(65) => Verdict::Approve,
            _ => *world.pick(allowed).unwrap(),
        };
        let question = call.held() == Some(Kind::Confirmation) && verdict == Verdict::Approve;
        let raised = call.spec.args_digest.clone();
        let scopes = [Scope::Tool, Scope::ToolWithArguments];
        let scope = *world.pick(&scopes).unwrap();
        let until = world.percent(20).then(|| world.now() + 3_000_000);
        let edited = question && world.percent(20);
        let supplies = verdict == Verdict::SupplyResult;
        let decide = Decide {
            call: call.spec.id.clone(),
            verdict,
            args_digest: match world.below(20) {
                0 => None,
                1 => Some("sha256:other".to_owned()),
                _ => Some(raised),
            },
            etag: world.percent(20).then_some(call.revision),
            reason: if world.percent(80) { "since I say so".to_owned() } else { String::new() },
            comment: format!("number {number}"),
            result: supplies.then(|| object(json!({"status": "approved", "number": number}))),
            edited: edited.then(|| object(json!({"amount": 5 + world.below(3)}))),
            payload: (question && world.percent(30)).then(|| json!({"number": number})),
            remember: (question && world.percent(60)).then_some((scope, until)),
            force: verdict == Verdict::RunAgain && world.percent(60),
        };
        let caller = self.caller();
        let reply = self.ask(&caller, "DecideApproval", |r| {
            let (caller, decide) = (caller.clone(), decide.clone());
            async move { r.decide_approval(caller, decide).await }
        });
        let reply = reply.await;
        self.note(What::Answer { calls: vec![decide.call.clone()], number }, reply.fate());
        match reply {
            Reply::Done(done) => {
                world.check(done.call.spec.id == decide.call, || "another call".to_owned());
                self.durable(&format!("decision {number}"), |record| {
                    super::clients::answered(record) == Some(number)
                });
            }
            Reply::Refused(refusal) => self.declined(refusal.reason),
            Reply::Unknown => {}
        }
    }

    fn declined(&self, reason: Reason) {
        let world = &self.world;
        world.saw("a decision refused");
        match reason {
            Reason::ApprovalClaimed => world.saw("a lease that holds somebody off"),
            Reason::CallExpired => world.saw("a decision too late"),
            Reason::CallAlreadyAnswered
            | Reason::CallCancelled
            | Reason::CallNotHeld
            | Reason::ApprovalNotFound
            | Reason::VerdictNotAllowed
            | Reason::ArgsDigestRequired
            | Reason::ArgsDigestMismatch
            | Reason::EtagMismatch
            | Reason::FieldInvalid => {}
            // The question is over, and the call that it was about with its invocation.
            Reason::ToolChanged => world.saw("a decision on what is gone"),
            other => world.wrong(format!("a decision was refused: {other:?}")),
        }
    }
}
