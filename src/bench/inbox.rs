//! What approvals cost: decisions, pages and updates of a large inbox, and a gated call beside one
//! that asks nobody.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::cycles::to_end;
use super::server::Own;
use super::{Failure, Measured, Report, quantile};
use crate::client::Client;
use crate::proto::v1::{self as pb, approval::Verdict, end_mark::State};

const APP: &str = "payer";

/// How many decide at once.
const DECIDERS: u32 = 64;

/// How many users share the inbox.
const USERS: u32 = 1_000;

/// How many pending approvals the small inbox has, which the large one is compared with.
const SMALL: u32 = 1_000;

/// How often single requests are timed.
const ROUNDS: usize = 500;

pub(super) async fn measure(report: &Report, pending: u32, time: Duration) -> Result<(), Failure> {
    let own = Own::start().await?;
    gated(report, own.address(), time).await?;
    let small = Own::start().await?;
    fill(small.address(), SMALL).await?;
    fill(own.address(), pending).await?;
    let (few, many) = (pages(small.address()).await?, pages(own.address()).await?);
    for ((name, few), (_, many)) in few.into_iter().zip(many) {
        report.tell(
            &Measured::new(name, quantile(&many, 0.99), "ms")
                .with("pending", pending)
                .beside("p50", quantile(&many, 0.5))
                .beside("p99_of_1000_pending", quantile(&few, 0.99)),
        )?;
    }
    let seen = updates(own.address()).await?;
    report.tell(
        &Measured::new("decision_to_watcher", quantile(&seen.watcher, 0.99), "ms")
            .with("pending", pending)
            .beside("p50", quantile(&seen.watcher, 0.5))
            .beside("decision_to_reply_p99", quantile(&seen.reply, 0.99)),
    )?;
    let few = decisions(small.address(), Duration::from_secs(1)).await?;
    let many = decisions(own.address(), time).await?;
    report.tell(
        &Measured::new("decisions_per_second", many, "1/s")
            .with("deciders", DECIDERS)
            .with("pending", pending)
            .beside("with_1000_pending", few),
    )
}

/// One whole run of a call that asks, and of one that does not.
async fn gated(report: &Report, address: &str, time: Duration) -> Result<(), Failure> {
    let client = Client::new(address)?;
    let (mut agents, mut approvals) = (client.agents(), client.approvals());
    let (mut asked, mut unasked) = (Vec::new(), Vec::new());
    let until = Instant::now() + time;
    while Instant::now() < until {
        let since = Instant::now();
        to_end(&mut agents, say("bench", "pay 5"), State::Completed).await?;
        unasked.push(since.elapsed());
        let since = Instant::now();
        let (_, end) = to_end(&mut agents, say("bench", "pay much 5"), State::Paused).await?;
        let held = end.held_calls.first().ok_or("nothing is held")?;
        let call_id = held.function_call.as_ref().map(|call| call.id.clone()).unwrap_or_default();
        let decided = approvals.decide_approval(approve(call_id, held.args_digest.clone())).await?;
        let follow = pb::RunAsyncRequest {
            app_name: APP.to_owned(),
            user_id: "bench".to_owned(),
            session_id: held.session_id.clone(),
            invocation_id: held.invocation_id.clone(),
            after_sequence: decided.into_inner().after_sequence,
            ..Default::default()
        };
        to_end(&mut agents, follow, State::Completed).await?;
        asked.push(since.elapsed());
    }
    asked.sort_unstable();
    unasked.sort_unstable();
    let (asked, unasked) = (quantile(&asked, 0.5), quantile(&unasked, 0.5));
    report.tell(&Measured::new("gated_run", asked, "ms").beside("ungated_run", unasked))
}

fn say(user: &str, text: &str) -> pb::RunAsyncRequest {
    let part = pb::Part { data: Some(pb::part::Data::Text(text.to_owned())), ..Default::default() };
    pb::RunAsyncRequest {
        app_name: APP.to_owned(),
        user_id: user.to_owned(),
        new_message: Some(pb::Content { role: "user".to_owned(), parts: vec![part] }),
        ..Default::default()
    }
}

fn approve(call_id: String, args_digest: String) -> pb::DecideApprovalRequest {
    pb::DecideApprovalRequest {
        call_id,
        args_digest,
        verdict: Verdict::Approve.into(),
        ..Default::default()
    }
}

/// Sessions of many users that each wait for somebody.
async fn fill(address: &str, pending: u32) -> Result<(), Failure> {
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..DECIDERS {
        let mine = pending / DECIDERS + u32::from(client < pending % DECIDERS);
        let mut agents = Client::new(address)?.agents();
        tasks.spawn(async move {
            for n in 0..mine {
                let user = format!("user-{}", (n * DECIDERS + client) % USERS);
                to_end(&mut agents, say(&user, "pay much 5"), State::Paused).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

type Times = Vec<Duration>;

/// Pages of what waits, by different filters.
async fn pages(address: &str) -> Result<Vec<(&'static str, Times)>, Failure> {
    let mut approvals = Client::new(address)?.approvals();
    let request = |user: String, tool: &str| pb::ListApprovalsRequest {
        app_name: APP.to_owned(),
        user_id: user,
        tool_name: tool.to_owned(),
        page_size: 50,
        ..Default::default()
    };
    let mut all = Vec::new();
    for name in ["page_of_a_user", "page_of_a_tool", "page_of_nobody"] {
        let mut times = Vec::with_capacity(ROUNDS);
        for n in 0..ROUNDS {
            let wanted = match name {
                "page_of_a_user" => request(format!("user-{}", n % USERS as usize), ""),
                "page_of_a_tool" => request(String::new(), "pay_much"),
                _ => request("user-1".to_owned(), "pay"),
            };
            let since = Instant::now();
            approvals.list_approvals(wanted).await?;
            times.push(since.elapsed());
        }
        times.sort_unstable();
        all.push((name, times));
    }
    Ok(all)
}

/// How long a decision takes to be seen.
struct Seen {
    watcher: Times,
    reply: Times,
}

/// One decides, and another one sees that it is gone from the list that he watches.
async fn updates(address: &str) -> Result<Seen, Failure> {
    let client = Client::new(address)?;
    let watch = pb::WatchApprovalsRequest { app_name: APP.to_owned(), ..Default::default() };
    let mut stream = Client::new(address)?.approvals().watch_approvals(watch).await?.into_inner();
    let mut pending = Vec::new();
    while let Some(told) = stream.message().await? {
        match told.update {
            Some(pb::watch_approvals_response::Update::Approval(approval)) => {
                let digest = approval.call.map(|call| call.args_digest).unwrap_or_default();
                pending.push((approval.call_id, digest));
            }
            Some(pb::watch_approvals_response::Update::CaughtUp(_)) => break,
            _ => {}
        }
    }
    let (tell, mut told) = mpsc::unbounded_channel();
    let watcher = tokio::spawn(async move {
        while let Ok(Some(message)) = stream.message().await {
            use pb::watch_approvals_response::Update;
            let gone = match message.update {
                Some(Update::Removed(gone)) => gone.call_id,
                Some(Update::Approval(approval)) => approval.call_id,
                _ => continue,
            };
            if tell.send((gone, Instant::now())).is_err() {
                return;
            }
        }
    });
    let mut seen = Seen { watcher: Vec::new(), reply: Vec::new() };
    let mut approvals = client.approvals();
    for (call, digest) in pending.into_iter().rev().take(ROUNDS) {
        let since = Instant::now();
        approvals.decide_approval(approve(call.clone(), digest)).await?;
        seen.reply.push(since.elapsed());
        loop {
            let (gone, at) = told.recv().await.ok_or("the watcher was cut")?;
            if gone == call {
                seen.watcher.push(at - since);
                break;
            }
        }
    }
    watcher.abort();
    seen.watcher.sort_unstable();
    seen.reply.sort_unstable();
    Ok(seen)
}

/// Everybody decides on approvals of his own.
async fn decisions(address: &str, time: Duration) -> Result<f64, Failure> {
    let mut approvals = Client::new(address)?.approvals();
    let mut pending = Vec::new();
    let mut token = String::new();
    loop {
        let request = pb::ListApprovalsRequest {
            app_name: APP.to_owned(),
            page_size: 1_000,
            page_token: token,
            ..Default::default()
        };
        let page = approvals.list_approvals(request).await?.into_inner();
        pending.extend(page.approvals.into_iter().map(|approval| {
            (approval.call_id, approval.call.map(|call| call.args_digest).unwrap_or_default())
        }));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    let until = Instant::now() + time;
    let since = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    let each = pending.len().div_ceil(DECIDERS as usize).max(1);
    for mine in pending.chunks(each).map(<[_]>::to_vec) {
        let mut approvals = Client::new(address)?.approvals();
        tasks.spawn(async move {
            let mut decided = 0_u32;
            for (call, digest) in mine {
                if Instant::now() >= until {
                    break;
                }
                approvals.decide_approval(approve(call, digest)).await?;
                decided += 1;
            }
            Ok::<_, Failure>(decided)
        });
    }
    let mut decided = 0;
    while let Some(done) = tasks.join_next().await {
        decided += done??;
    }
    Ok(f64::from(decided) / since.elapsed().as_secs_f64())
}
