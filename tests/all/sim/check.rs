//! What must hold of every history when it has come to a rest: the logs, against themselves,
//! against the store's entries, and against what bodies, models, clients and followers saw.

use std::collections::{BTreeMap, BTreeSet};

use countersign::runner::index::{self, InvocationView, State};
use countersign::session::Session;
use countersign::session::approval::{CONFIRMATION, Code, Judged, Verdict};
use countersign::session::call::{Call, Effect, End as CallEnd, Kind, Phase};
use countersign::session::id::{CallId, FrameId, InvocationId, SessionUid};
use countersign::session::record::{Body, Ending, Noted, Record};
use countersign::session::refusal::Reason;
use countersign::session::state::Touched;
use countersign::store::Store;
use serde_json::Value;

use super::clients::{Fate, What, answered, changed, said};
use super::followers::{End, From, Seen, Stint};
use super::process::Process;
use super::world::{Journal, Log, World};
use crate::core::ledger::Ledger;

/// A response that was told.
struct Telling {
    call: CallId,
    at: (InvocationId, FrameId),
    position: u64,
    value: Value,
    /// Somebody outside gave it.
    answer: bool,
    /// The model need not be asked for it: so it was said, or the invocation ends with it.
    skip: bool,
}

/// What one log says.
#[derive(Default)]
struct Story {
    tellings: Vec<Telling>,
    /// How far each frame's replies have seen.
    seen: BTreeMap<(InvocationId, FrameId), u64>,
    /// Starts by call and execution: the appends that they were in.
    starts: BTreeMap<String, Vec<u64>>,
    once: BTreeSet<CallId>,
    finals: BTreeMap<CallId, u64>,
    ended: BTreeMap<InvocationId, Ending>,
    invoked: BTreeMap<InvocationId, String>,
    calls: BTreeSet<CallId>,
    /// Calls at work when a driver that was not done lost its claim.
    taken: BTreeSet<CallId>,
    ledger: Ledger,
    wrong: Vec<String>,
}

impl Story {
    /// Walks the log, record by record.
    fn of(
        uid: &SessionUid,
        log: &Log,
        journal: &Journal,
        saw: &mut BTreeSet<&'static str>,
    ) -> Self {
        let mut story = Self::default();
        let Some(mut session) = log.records.first().and_then(Session::begin) else {
            story.wrong.push(format!("{uid} does not begin"));
            return story;
        };
        let mut sequence = 0;
        for (record, commit) in log.records.iter().zip(&log.commits).skip(1) {
            if let Some(event) = record.body.event() {
                sequence += 1;
                let right = event.sequence == sequence;
                story.check(right, || format!("{uid}: {sequence} is {}", event.sequence));
                let over = story.ended.contains_key(&event.invocation_id);
                story.check(!over, || format!("{uid}: an event after the end: {record:?}"));
            }
            story.record(&session, record, *commit, journal, saw);
            story.ledger.add(record);
            approvals(record, saw);
            session.apply(record, &mut Touched::default());
        }
        story.wrong.append(&mut story.ledger.wrong);
        story
    }

    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(what());
        }
    }

    fn record(
        &mut self,
        before: &Session,
        record: &Record,
        commit: u64,
        journal: &Journal,
        saw: &mut BTreeSet<&'static str>,
    ) {
        let position = before.head + 1;
        match &record.body {
            Body::Invoked { invocation, .. } => {
                let text = said(record).unwrap_or_default().to_owned();
                self.invoked.insert(invocation.clone(), text);
                self.check(before.running.is_none(), || "two invocations run".to_owned());
            }
            Body::Claimed { epoch, .. } => {
                self.check(*epoch == before.epoch + 1, || "an epoch is left out".to_owned());
                if before.claim.is_some() {
                    let at_work = before.calls.values().filter(|call| call.body.is_some());
                    self.taken.extend(at_work.map(|call| call.spec.id.clone()));
                }
            }
            Body::Replied { invocation, frame, seen, event, calls } => {
                let last = self.seen.entry((invocation.clone(), frame.clone())).or_default();
                let later = *seen > *last;
                *last = *seen;
                self.check(later, || format!("a prompt was answered twice: {record:?}"));
                if event.error_code == "GIVEN_UP" {
                    saw.insert("an invocation given up");
                }
                if event.error_code == "LIMIT_EXCEEDED" {
                    saw.insert("a limit of model calls");
                }
                self.calls.extend(calls.iter().map(|spec| spec.id.clone()));
                let once = calls.iter().filter(|spec| spec.behaviour.effect == Effect::Once);
                self.once.extend(once.map(|spec| spec.id.clone()));
            }
            Body::Started { call, execution, attempt } => {
                let key = format!("{call}/{execution}");
                self.starts.entry(key).or_default().push(commit);
                if *attempt > 1 {
                    saw.insert("a body started again");
                }
            }
            Body::Returned { call, .. } => {
                let held = before.calls.get(call).and_then(Call::held);
                if held == Some(Kind::UnknownOutcome) {
                    saw.insert("an unknown outcome settled late");
                }
            }
            Body::Lost { call, .. } => {
                saw.insert("an unknown outcome");
                let key = |n| format!("{call}/{n}");
                let execution = before.calls.get(call).map_or(1, |call| call.execution);
                let mut starts = journal.starts.iter();
                let fault = starts.any(|start| start.key == key(execution) && start.unknown);
                let fault = fault || self.taken.contains(call);
                self.check(fault, || format!("{call} is unknown without a fault"));
            }
            Body::Responded { invocation, frame, event } => {
                // With a placeholder among them they are told with what was decided.
                let due = |id: &CallId| before.calls.get(id).is_some_and(Call::placeholder_due);
                let placeholders = event.function_responses().any(|part| due(&part.id));
                for part in event.function_responses() {
                    let closed = before.calls.get(&part.id).and_then(Call::closed).is_some();
                    let value = part.response.clone().map_or(Value::Null, Value::Object);
                    let skip = event.actions.skip_summarization || placeholders;
                    let at = (invocation.clone(), frame.clone());
                    let call = part.id.clone();
                    self.tell(Telling { call, at, position, value, answer: false, skip }, closed);
                }
            }
            Body::Answered { answers, queued, .. } => {
                for answer in answers {
                    let there = before.calls.get(&answer.call);
                    let open = there.is_some_and(|call| call.closed().is_none());
                    self.check(open, || format!("an answer to a closed call: {record:?}"));
                    match answer.end {
                        Some(CallEnd::Expired) => saw.insert("a call expired"),
                        Some(CallEnd::Cancelled) => saw.insert("a call cancelled"),
                        Some(CallEnd::Done | CallEnd::Denied) | None => false,
                    };
                    if there.is_some_and(|c| matches!(c.phase, Phase::Running)) {
                        saw.insert("an answer that overtakes its body");
                    }
                }
                if !queued {
                    self.answers(before, answers, position);
                }
            }
            Body::Placed { event, .. } => {
                saw.insert("a queued answer placed");
                let queued = before.queued.iter().find(|queued| queued.event.id == event.id);
                self.check(queued.is_some(), || format!("placed and not queued: {record:?}"));
                if let Some(queued) = queued {
                    self.answers(before, &queued.answers, position);
                }
            }
            Body::Paused { held, .. } => {
                saw.insert("a pause");
                self.check(!held.is_empty(), || "a pause that waits for nobody".to_owned());
            }
            Body::Ended { invocation, how } => self.end(before, invocation, how, saw),
            _ => {}
        }
    }

    fn answers(
        &mut self,
        before: &Session,
        answers: &[countersign::session::record::Answer],
        position: u64,
    ) {
        for answer in answers {
            let Some(call) = before.calls.get(&answer.call) else { continue };
            let value = answer.response.clone().map_or(Value::Null, Value::Object);
            let at = (call.invocation.clone(), call.frame.clone());
            let skip = answer.skip_summarization || answer.end == Some(CallEnd::Cancelled);
            // What was said to a question is told by the call that it is about.
            let skip = skip || call.asks().is_some();
            let (call, outside) = (answer.call.clone(), value.get("number").is_some());
            let telling = Telling { call, at, position, value, answer: outside, skip };
            self.tell(telling, answer.end.is_some());
        }
    }

    /// Each call has one final response, and nothing behind it.
    fn tell(&mut self, telling: Telling, last: bool) {
        let finals = self.finals.entry(telling.call.clone()).or_default();
        let first = *finals == 0;
        *finals += u64::from(last);
        self.check(first, || format!("{} was told more than its last", telling.call));
        self.tellings.push(telling);
    }

    fn end(
        &mut self,
        before: &Session,
        invocation: &InvocationId,
        how: &Ending,
        saw: &mut BTreeSet<&'static str>,
    ) {
        saw.insert(match how {
            Ending::Completed => "an invocation completed",
            Ending::Cancelled => "an invocation cancelled",
            Ending::Failed { .. } => "an invocation failed",
        });
        let calls = before.calls.values().filter(|call| &call.invocation == invocation);
        for call in calls {
            let id = &call.spec.id;
            let whole = call.closed().is_some() && self.finals.get(id) == Some(&1);
            self.check(whole, || format!("{id} has no last response at the end"));
        }
        self.ended.insert(invocation.clone(), how.clone());
    }

    /// Nothing that was told to a frame stays unseen by its model.
    fn untold(&mut self, fold: Option<&Session>, journal: &Journal) {
        for telling in std::mem::take(&mut self.tellings).iter().filter(|t| !t.skip) {
            let (invocation, frame) = &telling.at;
            let due = match self.ended.get(invocation) {
                Some(Ending::Completed) => true,
                Some(Ending::Failed { code, .. }) => {
                    code != "GIVEN_UP" && (telling.answer || code != "LIMIT_EXCEEDED")
                }
                Some(Ending::Cancelled) => false,
                None => fold.is_some_and(|fold| {
                    !fold.frame_calls(invocation, frame).iter().any(|call| call.blocks())
                }),
            };
            if !due {
                continue;
            }
            let seen = self.seen.get(&telling.at).copied().unwrap_or(0) >= telling.position;
            self.check(seen, || format!("{} is untold: {}", telling.call, telling.value));
            if telling.answer {
                let later = self.said_of(&telling.call, &telling.value, journal);
                self.check(later, || format!("in no prompt: {} {}", telling.call, telling.value));
            }
        }
    }

    /// Whether a prompt had this as new, or what was told of the call later.
    fn said_of(&self, call: &CallId, value: &Value, journal: &Journal) -> bool {
        let number = |value: &Value| value.get("number").and_then(Value::as_u64);
        journal.prompts.iter().filter(|prompt| prompt.news.contains(call)).any(|prompt| {
            let told = &prompt.responses[call];
            told == value || number(told).is_none_or(|told| Some(told) != number(value))
        })
    }
}

/// Checks everything. The process has just been started and knows nothing but the store.
pub async fn all(world: &World, fresh: &Process, told: &BTreeMap<InvocationId, Option<State>>) {
    let mut wrong = Vec::new();
    let mut saw = BTreeSet::new();
    let logs = world.journal().logs.clone();
    let mut ends = BTreeMap::new();
    for (uid, log) in &logs {
        let fold = log.fold().filter(|_| !log.deleted);
        {
            let journal = world.journal();
            let mut story = Story::of(uid, log, &journal, &mut saw);
            story.untold(fold.as_ref(), &journal);
            bodies(&story, &journal, world, &mut wrong);
            heard(&story, &journal, &mut wrong);
            wrong.append(&mut story.wrong);
            let gone = |id: &InvocationId| log.deleted || story.ended.contains_key(id);
            ends.extend(story.invoked.keys().map(|id| (id.clone(), gone(id))));
        }
        entries(world, uid, log, fold.as_ref(), told, &mut wrong).await;
        if let Some(fold) = fold {
            let rest = fold.claim.is_none() && !fold.can_move();
            if !rest {
                wrong.push(format!("{uid} is not at rest"));
            }
            for open in fold.invocations.values() {
                if fold.held_calls(&open.id).is_empty() {
                    wrong.push(format!("{} is open and waits for nobody", open.id));
                }
            }
            match fresh.runner.get_session(&fold.key).await {
                Ok(view) if *view.session == fold => {}
                Ok(view) => wrong.push(format!("{uid} is\n{fold:?}, and shown\n{view:?}")),
                Err(refusal) => wrong.push(format!("{uid} is not shown: {refusal}")),
            }
        }
    }
    let journal = world.journal();
    deeds(&journal, &ends, &mut wrong);
    for (at, stint) in journal.stints.iter().enumerate() {
        if let Some(what) = stint_is_wrong(stint, &logs) {
            wrong.push(format!("follower {at}: {what}"));
        }
    }
    drop(journal);
    wrong.into_iter().for_each(|wrong| world.wrong(wrong));
    world.journal().saw.extend(saw);
}

/// What happened to approvals, for the coverage.
fn approvals(record: &Record, saw: &mut BTreeSet<&'static str>) {
    match &record.body {
        Body::Asked { .. } => drop(saw.insert("a question asked")),
        Body::Refused { .. } => drop(saw.insert("a call refused")),
        Body::RunAgain { .. } => drop(saw.insert("an unknown outcome run again")),
        Body::StandingMade { .. } => drop(saw.insert("a standing approval made")),
        Body::StandingRevoked { .. } => drop(saw.insert("a standing approval revoked")),
        Body::Noted { what, .. } => drop(saw.insert(match what {
            Noted::Assigned { .. } => "a lease",
            Noted::Unassigned => "a lease given back",
            Noted::Extended { .. } => "an extension",
            Noted::Reminded => "a reminder",
            Noted::Escalated { .. } => "an escalation",
        })),
        Body::Replied { calls, .. } => {
            let gates = || calls.iter().filter_map(|spec| spec.gate.as_ref());
            let used = |code| gates().any(|g| g.judged == Judged::Run && g.why.code == code);
            if used(Code::StandingApproval) {
                saw.insert("a standing approval used");
            }
        }
        Body::Answered { answers, event, .. } => {
            let names = event.function_responses().map(|part| part.name == CONFIRMATION);
            for (answer, question) in answers.iter().zip(names) {
                let said = match (answer.end, answer.verdict) {
                    (Some(CallEnd::Expired), _) if question => "a question expired",
                    (Some(CallEnd::Done), Some(Verdict::Approve)) => "a question approved",
                    (Some(CallEnd::Done), Some(Verdict::Deny)) => "a question denied",
                    (Some(CallEnd::Denied), _) => "a question denied by its deadline",
                    _ => continue,
                };
                saw.insert(said);
                if answer.edited.is_some() {
                    saw.insert("a decision that changes arguments");
                }
            }
        }
        _ => {}
    }
}

/// A body for each start and no other, and those that may run once did.
fn bodies(story: &Story, journal: &Journal, world: &World, wrong: &mut Vec<String>) {
    for (key, starts) in &story.starts {
        let bodies: Vec<_> = journal.starts.iter().filter(|body| &body.key == key).collect();
        let each = bodies.iter().zip(starts).all(|(body, start)| *start <= body.commits);
        if bodies.len() > starts.len() || !each {
            wrong.push(format!("{key}: {} starts, and {} bodies", starts.len(), bodies.len()));
        }
        if world.profile.is_calm() && bodies.len() < starts.len() {
            wrong.push(format!("{key} was started and not run"));
        }
    }
    for body in &journal.starts {
        let known = story.starts.contains_key(&body.key);
        if story.calls.contains(&body.call) && !known {
            wrong.push(format!("{} was run and not started", body.key));
        }
    }
    for (key, digest) in &story.ledger.begun {
        let mut bodies = journal.starts.iter().filter(|body| &body.key == key);
        if let Some(body) = bodies.find(|body| &body.digest != digest) {
            wrong.push(format!("{key} ran with {}, and agreed to was {digest}", body.digest));
        }
    }
    for body in journal.starts.iter().filter(|body| story.once.contains(&body.call)) {
        let bodies = journal.starts.iter().filter(|other| other.key == body.key).count();
        if bodies > 1 {
            wrong.push(format!("{} may run once and ran {bodies} times", body.key));
        }
    }
}

/// Messages were in a prompt.
fn heard(story: &Story, journal: &Journal, wrong: &mut Vec<String>) {
    for (invocation, text) in &story.invoked {
        let due = story.ended.get(invocation) == Some(&Ending::Completed);
        if due && !journal.prompts.iter().any(|prompt| prompt.texts.contains(text)) {
            wrong.push(format!("no model was told {text}"));
        }
    }
}

/// What the store says of the session's invocations and calls.
async fn entries(
    world: &World,
    uid: &SessionUid,
    log: &Log,
    fold: Option<&Session>,
    told: &BTreeMap<InvocationId, Option<State>>,
    wrong: &mut Vec<String>,
) {
    let mut ended = BTreeMap::new();
    for record in &log.records {
        if let Body::Ended { invocation, how } = &record.body {
            ended.insert(
                invocation.clone(),
                match how {
                    Ending::Completed => State::Completed,
                    Ending::Cancelled => State::Cancelled,
                    Ending::Failed { .. } => State::Failed,
                },
            );
        }
    }
    for record in &log.records {
        if let Body::Invoked { invocation, .. } = &record.body {
            let entry = world.memory.entry(index::INVOCATION, invocation.as_str()).await.unwrap();
            let view = entry.map(|e| index::read::<InvocationView>(&e.entry.bytes).unwrap());
            let open = fold.and_then(|fold| Some((fold, fold.invocations.get(invocation)?)));
            let right = match (&view, open) {
                (None, _) => log.deleted,
                (Some(_), _) if log.deleted => false,
                (Some(view), Some((fold, open))) => *view == index::view(fold, open),
                (Some(view), None) => Some(&view.state) == ended.get(invocation),
            };
            if !right {
                wrong.push(format!("{uid}: the entry of {invocation} is wrong: {view:?}"));
            }
            let told = told.get(invocation).copied();
            let right = match &view {
                Some(view) => told == Some(Some(view.state)),
                None => told.is_none() || told == Some(None),
            };
            if !right {
                wrong.push(format!("{invocation} was watched as {told:?}, and is {view:?}"));
            }
        }
        let calls: Vec<&CallId> = match &record.body {
            Body::Replied { calls, .. } => calls.iter().map(|spec| &spec.id).collect(),
            Body::Asked { questions, .. } => questions.iter().map(|asked| &asked.id).collect(),
            _ => continue,
        };
        for id in calls {
            let entry = world.memory.entry(index::CALL, id.as_str()).await.unwrap();
            let due = entry.as_ref().and_then(|entry| entry.entry.due);
            let call = entry.map(|e| index::read::<Call>(&e.entry.bytes).unwrap());
            let open = fold.and_then(|fold| fold.calls.get(id));
            let right = match (&call, open) {
                (None, _) => log.deleted,
                (Some(_), _) if log.deleted => false,
                // What is over waits for no body, whether one is still at work or not.
                (Some(call), Some(open)) => {
                    let over = call.closed().is_some();
                    let body = if over { open.body } else { call.body };
                    Call { body, ..call.clone() } == *open
                }
                (Some(call), None) => call.closed().is_some(),
            };
            let late = due.is_some_and(|due| due <= world.now());
            if !right || late {
                wrong.push(format!("{uid}: an entry is wrong:\n{call:?}, not\n{open:?}"));
            }
        }
    }
}

/// What was acknowledged is there once, and what was refused is not.
fn deeds(journal: &Journal, ends: &BTreeMap<InvocationId, bool>, wrong: &mut Vec<String>) {
    let count = |is: &dyn Fn(&Record) -> bool| {
        let logs = journal.logs.values();
        let found = |log: &&Log| log.records.iter().any(is);
        // What was done and then deleted may be told as not found.
        let there = logs.clone().filter(found).map(|log| log.deleted).collect::<Vec<_>>();
        let times = logs.flat_map(|log| &log.records).filter(|record| is(record)).count();
        (times, there == [true])
    };
    for deed in &journal.deeds {
        let (what, (found, gone)) = match &deed.what {
            What::Say(text) => (text.clone(), count(&|r| said(r) == Some(text.as_str()))),
            What::Answer { calls, number } => {
                (format!("answer {number} to {calls:?}"), count(&|r| answered(r) == Some(*number)))
            }
            What::Change(number) => {
                (format!("change {number}"), count(&|r| changed(r) == Some(*number)))
            }
            What::Cancel(invocation) => {
                if deed.fate == Fate::Done && ends.get(invocation) != Some(&true) {
                    wrong.push(format!("{invocation} was cancelled and did not end"));
                }
                continue;
            }
        };
        let right = match deed.fate {
            Fate::Done => found == 1,
            Fate::Refused(reason) => {
                use Reason::{ApprovalNotFound, CallNotFound, SessionNotFound};
                let not_found = matches!(reason, SessionNotFound | CallNotFound | ApprovalNotFound);
                found == 0 || (found == 1 && gone && not_found)
            }
            Fate::Unknown => found <= 1,
        };
        if !right {
            wrong.push(format!("{what} is there {found} times, and was {:?}", deed.fate));
        }
    }
}

/// What a follower of a log had to see.
fn expected(log: &Log, stint: &Stint) -> Vec<Seen> {
    let mut expected = Vec::new();
    for (position, record) in (1_u64..).zip(&log.records) {
        if let Some(event) = record.body.event() {
            let behind = match &stint.from {
                From::After(after) => event.sequence > *after,
                From::Started(s) => {
                    let own = s.own.as_ref() == Some(&event.id);
                    position > s.after && event.sequence > s.seen && !own
                }
            };
            let wanted = stint.invocation.as_ref().is_none_or(|id| id == &event.invocation_id);
            if behind && wanted {
                expected.push(Seen::Event(event.id.clone()));
            }
        }
        match (&record.body, &stint.from) {
            (Body::Paused { invocation, .. }, From::Started(started)) => {
                let behind = position > started.after.max(started.pauses_after);
                if behind && stint.invocation.as_ref() == Some(invocation) {
                    expected.push(Seen::Paused);
                }
            }
            (Body::Ended { invocation, .. }, _)
                if stint.invocation.as_ref() == Some(invocation) =>
            {
                expected.push(Seen::Ended);
            }
            _ => {}
        }
    }
    expected
}

fn stint_is_wrong(stint: &Stint, logs: &BTreeMap<SessionUid, Log>) -> Option<String> {
    let of_key = |log: &Log| log.fold().is_some_and(|fold| fold.key == stint.key);
    let has =
        |log: &Log, id| log.records.iter().any(|r| r.body.event().is_some_and(|e| &e.id == id));
    let log = match (&stint.from, stint.seen.first()) {
        (From::Started(started), _) => logs.get(&started.uid),
        (_, Some(Seen::Event(id))) => logs.values().find(|log| has(log, id)),
        _ => {
            let mut there = logs.values().filter(|log| of_key(log));
            there.next().filter(|_| there.next().is_none())
        }
    }?;
    let expected = expected(log, stint);
    let whole = matches!(stint.end, End::Whole | End::Ended);
    let right = match whole {
        true => stint.seen == expected,
        false => expected.starts_with(&stint.seen),
    };
    let lost = || format!("{:?}, {:?} saw {:?}\nof {expected:?}", stint.key, stint.end, stint.seen);
    let open = stint.end == End::Open;
    (!right || open).then(lost)
}
