//! What must hold of every log with approvals, told from its records alone: no fold, no decision
//! and no move of the server's is used here. Whatever does not hold is a line in `wrong`.

use std::collections::{BTreeMap, BTreeSet};

use countersign::session::approval::{Code, Judged, Standing, ToolIdentity, Verdict};
use countersign::session::call::{Effect, End, Spec, later};
use countersign::session::content::Event;
use countersign::session::id::{CallId, EventId, FrameId, InvocationId, Principal};
use countersign::session::record::{Answer, Body, Noted, Outcome, Question, Record};

/// What lets the next execution of a body start.
#[derive(Debug, Clone, PartialEq)]
enum Leave {
    /// Nobody needs to agree, or somebody wants it run again.
    Free,
    /// A standing approval that is there when it starts.
    Standing(String),
    /// An approved question about its arguments.
    Question,
    /// It never starts.
    Never,
}

#[derive(Debug, Clone)]
struct Line {
    invocation: InvocationId,
    turn: (FrameId, u64),
    spec: Spec,
    digest: String,
    leave: Leave,
    /// The digest that was approved and has not been used up by a start.
    granted: Option<String>,
    /// Somebody or a deadline has refused it.
    refused: bool,
    execution: u32,
    attempt: u32,
    at_work: bool,
    lost: bool,
    /// It was started, and did not ask again since.
    begun: bool,
    /// Its body asked from inside.
    raised: bool,
    question: Option<CallId>,
    over: bool,
    /// Responses at or behind its end.
    finals: u32,
}

#[derive(Debug, Clone)]
struct Open {
    about: CallId,
    invocation: InvocationId,
    digest: String,
    /// When it ends by itself.
    deadline: Option<u64>,
    lease: Option<(Principal, u64)>,
    /// A standing approval was there when it was asked: nobody waits for it.
    spared: bool,
    verdict: Option<Verdict>,
    over: bool,
    finals: u32,
}

/// The calls and questions of one log.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    lines: BTreeMap<CallId, Line>,
    questions: BTreeMap<CallId, Open>,
    standing: BTreeMap<String, Standing>,
    /// Turns in a row that rules approved; a lower bound.
    rounds: BTreeMap<InvocationId, u32>,
    position: u64,
    /// What was told of progress and has no place yet.
    progress: BTreeSet<(EventId, CallId)>,
    /// The digest of the arguments with which each execution began, by `call id/execution`.
    pub begun: BTreeMap<String, String>,
    /// What does not hold.
    pub wrong: Vec<String>,
}

impl Ledger {
    /// The next record.
    pub fn add(&mut self, record: &Record) {
        self.position += 1;
        match &record.body {
            Body::Replied { invocation, frame, event, calls, .. } => {
                self.replied(record, invocation, (frame, event.sequence), calls);
            }
            Body::Asked { questions, event, .. } => self.asked(record, questions, event),
            Body::Answered { invocation, answers, queued, event } => {
                answers.iter().for_each(|answer| self.answered(record, answer));
                if *queued {
                    let progress = answers.iter().filter(|answer| answer.end.is_none());
                    let progress = progress.map(|a| (event.id.clone(), a.call.clone()));
                    self.progress.extend(progress);
                } else {
                    self.rounds.remove(invocation);
                    self.told(event);
                }
            }
            Body::Placed { invocation, event } => {
                self.rounds.remove(invocation);
                self.told(event);
            }
            Body::Responded { event, .. } => self.told(event),
            Body::Started { call, execution, attempt } => {
                self.started(record, call, *execution, *attempt);
            }
            Body::Returned { call, execution, outcome, raised, .. } => {
                self.returned(call, *execution, outcome, raised.is_some());
            }
            Body::Refused { call, .. } => self.refused(call),
            Body::Lost { call, .. } => {
                let known = self.lines.get_mut(call).filter(|line| line.at_work && !line.over);
                let right = known.map(|line| (line.at_work, line.lost) = (false, true)).is_some();
                self.check(right, || format!("{call} is lost and was not at work"));
            }
            Body::RunAgain { call, .. } => {
                let known = self.lines.get_mut(call).filter(|line| line.lost && !line.over);
                let right = known.map(|line| {
                    (line.lost, line.begun, line.leave) = (false, false, Leave::Free);
                    (line.execution, line.attempt) = (line.execution + 1, 0);
                });
                self.check(right.is_some(), || format!("{call} is run again and was not lost"));
                let person = is_person(&record.by);
                self.check(person, || format!("{call} is run again by {}", record.by));
            }
            Body::Noted { call, what, .. } => self.noted(record, call, what),
            Body::StandingMade { standing } => {
                let with = self.questions.get(&standing.call);
                let right = with.is_some_and(|asked| asked.verdict == Some(Verdict::Approve));
                self.check(right, || format!("{standing:?} goes with no approval"));
                self.standing.insert(standing.id.clone(), standing.clone());
            }
            Body::StandingRevoked { id } => {
                let known = self.standing.remove(id).is_some();
                self.check(known, || format!("{id} is revoked and was not there"));
            }
            Body::Paused { invocation, held } => {
                self.rounds.remove(invocation);
                let busy = |line: &Line| line.at_work && !line.over;
                let busy: Vec<&CallId> =
                    self.of(invocation).filter(|l| busy(l)).map(id_of).collect();
                let wrong = format!("a pause while {busy:?} are at work");
                self.check(busy.is_empty(), || wrong);
                for (id, asked) in &self.questions {
                    let open = &asked.invocation == invocation && !asked.over;
                    if open && (!held.contains(id) || asked.spared) {
                        self.wrong.push(format!("a pause is not for {id}: {asked:?}"));
                    }
                }
            }
            Body::Ended { invocation, .. } => self.ended(invocation),
            _ => {}
        }
    }

    fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(format!("{}: {}", self.position, what()));
        }
    }

    fn of<'a>(&'a self, invocation: &'a InvocationId) -> impl Iterator<Item = &'a Line> {
        self.lines.values().filter(move |line| &line.invocation == invocation)
    }

    /// Whether a standing approval is there for a call.
    fn covered(&self, id: Option<&str>, tool: &ToolIdentity, digest: &str, now: u64) -> bool {
        self.standing.values().any(|standing| {
            id.is_none_or(|id| id == standing.id)
                && &standing.tool == tool
                && standing.args_digest.as_deref().is_none_or(|exact| exact == digest)
                && standing.until.is_none_or(|until| now < until)
        })
    }

    fn replied(
        &mut self,
        record: &Record,
        invocation: &InvocationId,
        (frame, sequence): (&FrameId, u64),
        specs: &[Spec],
    ) {
        let mut any_auto = false;
        let rounds = self.rounds.get(invocation).copied().unwrap_or(0);
        for spec in specs {
            let id = &spec.id;
            let mut leave = Leave::Free;
            if let Some(gate) = &spec.gate {
                let (why, digest) = (&gate.why, &spec.args_digest);
                self.check(gate.auto.is_none(), || format!("{id} has an offer in its record"));
                let auto = matches!(why.code, Code::StandingApproval | Code::AutoApprovalRule);
                match gate.judged {
                    Judged::Ask => leave = Leave::Question,
                    Judged::Deny => leave = Leave::Never,
                    Judged::Run if why.code == Code::StandingApproval => {
                        let there = self.covered(Some(&why.rule), &gate.tool, digest, record.time);
                        self.check(there, || format!("{id} runs by {why:?}, which is not there"));
                        leave = Leave::Standing(why.rule.clone());
                    }
                    Judged::Run => {}
                }
                if auto && gate.judged == Judged::Run {
                    let room = rounds < gate.max_auto;
                    self.check(room, || format!("{id} runs by a rule, {rounds} turns in a row"));
                    any_auto = true;
                }
            }
            let line = Line {
                invocation: invocation.clone(),
                turn: (frame.clone(), sequence),
                digest: spec.args_digest.clone(),
                spec: spec.clone(),
                leave,
                granted: None,
                refused: false,
                execution: 1,
                attempt: 0,
                at_work: false,
                lost: false,
                begun: false,
                raised: false,
                question: None,
                over: false,
                finals: 0,
            };
            let new = self.lines.insert(id.clone(), line).is_none();
            self.check(new, || format!("{id} was asked for before"));
        }
        *self.rounds.entry(invocation.clone()).or_default() += u32::from(any_auto);
    }

    fn asked(&mut self, record: &Record, questions: &[Question], event: &Event) {
        let told: Vec<&CallId> = event.function_calls().map(|call| &call.id).collect();
        let asked: Vec<&CallId> = questions.iter().map(|question| &question.id).collect();
        let long = event.long_running_tool_ids.iter().flatten().count();
        let whole = told == asked && long == asked.len();
        self.check(whole, || format!("{asked:?} are asked, and told are {told:?}"));
        for Question { id, call, why } in questions {
            let Some(line) = self.lines.get(call).cloned() else {
                self.wrong.push(format!("{id} asks about {call}, which nobody asked for"));
                continue;
            };
            let gate = line.spec.gate.as_ref();
            let now = record.time;
            let needed = match &line.leave {
                Leave::Question => line.granted.is_none(),
                Leave::Standing(by) => {
                    gate.is_some_and(|g| !self.covered(Some(by), &g.tool, &line.digest, now))
                }
                Leave::Free | Leave::Never => false,
            };
            let idle = !line.over && !line.at_work && !line.lost && !line.refused;
            let open = line.question.as_ref().and_then(|id| self.questions.get(id));
            let again = open.is_some_and(|open| !open.over);
            self.check(needed && idle && !again, || format!("{id} needs not be asked: {line:?}"));
            let one = gate.is_some_and(|gate| gate.one_at_a_time);
            let other = one && self.open_in(&line.turn).next().is_some();
            self.check(!other, || format!("{id} is asked beside another one"));
            let plain = matches!(why.code, Code::Tool | Code::AgentDefault | Code::Condition);
            let covered = gate.is_some_and(|gate| {
                gate.max_auto > 0 && self.covered(None, &gate.tool, &line.digest, now)
            });
            let spared = plain && !line.raised && covered;
            let end = gate.and_then(|gate| gate.deadlines.iter().find(|d| d.action.ends()));
            let open = Open {
                about: call.clone(),
                invocation: line.invocation.clone(),
                digest: line.digest.clone(),
                deadline: end.map(|end| later(now, end.after)),
                spared,
                lease: None,
                verdict: None,
                over: false,
                finals: 0,
            };
            let new = self.questions.insert(id.clone(), open).is_none();
            self.check(new, || format!("{id} was asked before"));
            let line = self.lines.get_mut(call).expect("it was there");
            line.question = Some(id.clone());
            (line.leave, line.granted, line.begun) = (Leave::Question, None, false);
        }
    }

    /// The open questions of a turn.
    fn open_in<'a>(&'a self, turn: &'a (FrameId, u64)) -> impl Iterator<Item = &'a CallId> {
        let open = self.questions.iter().filter(|(_, asked)| !asked.over);
        let here =
            move |asked: &Open| self.lines.get(&asked.about).is_some_and(|l| &l.turn == turn);
        open.filter(move |(_, asked)| here(asked)).map(|(id, _)| id)
    }

    fn answered(&mut self, record: &Record, answer: &Answer) {
        let (id, now) = (&answer.call, record.time);
        if let Some(asked) = self.questions.get(id).cloned() {
            return self.decided(record, answer, asked);
        }
        let Some(line) = self.lines.get_mut(id) else {
            return self.wrong.push(format!("{id} is answered, and nobody asked for it"));
        };
        let over = line.over;
        line.over |= answer.end.is_some();
        line.lost &= !line.over;
        let waits = !line.begun && answer.end != Some(End::Cancelled);
        self.check(!over, || format!("{id} is answered after its end, at {now}"));
        self.check(!waits, || format!("{id} is answered and has not begun"));
    }

    fn decided(&mut self, record: &Record, answer: &Answer, asked: Open) {
        let (id, now) = (&answer.call, record.time);
        self.check(!asked.over, || format!("{id} is decided twice"));
        let Some(end) = answer.end else {
            return self.wrong.push(format!("{id} is told of progress"));
        };
        let late = asked.deadline.is_some_and(|deadline| now >= deadline);
        let in_time = match end {
            End::Done => !late,
            End::Expired | End::Denied => late,
            End::Cancelled => true,
        };
        self.check(in_time, || format!("{id} is {end:?} at {now}: {asked:?}"));
        if end == End::Done {
            let taken = asked.lease.as_ref();
            let taken = taken.is_some_and(|(to, until)| now < *until && to != &record.by);
            self.check(!taken, || format!("{id} is decided by {}: {asked:?}", record.by));
            let person = is_person(&record.by) && answer.verdict.is_some();
            self.check(person, || format!("{id} is decided by {}: {answer:?}", record.by));
        }
        let agreed = end == End::Done && answer.verdict == Some(Verdict::Approve);
        let question = self.questions.get_mut(id).expect("it was there");
        (question.over, question.verdict) = (true, answer.verdict.filter(|_| end == End::Done));
        let Some(line) = self.lines.get_mut(&asked.about) else { return };
        let newest = line.question.as_ref() == Some(id);
        let same = line.digest == asked.digest;
        if agreed {
            if let Some(edited) = &answer.edited {
                line.digest.clone_from(&edited.args_digest);
            }
            line.granted = Some(line.digest.clone());
        } else {
            line.refused = true;
        }
        self.check(newest && same, || format!("{id} is about other arguments by now: {asked:?}"));
    }

    /// Each call has one response at its end, and nothing behind it.
    fn told(&mut self, event: &Event) {
        for part in event.function_responses() {
            let id = &part.id;
            let over = if let Some(asked) = self.questions.get_mut(id) {
                asked.finals += 1;
                asked.over && asked.finals == 1
            } else if let Some(line) = self.lines.get_mut(id) {
                let last = line.over && !self.progress.remove(&(event.id.clone(), id.clone()));
                line.finals += u32::from(last);
                line.finals <= 1
            } else {
                false
            };
            self.check(over, || format!("{id} is told more than its last, or not known"));
        }
    }

    fn started(&mut self, record: &Record, id: &CallId, execution: u32, attempt: u32) {
        let Some(line) = self.lines.get(id).cloned() else {
            return self.wrong.push(format!("{id} starts, and nobody asked for it"));
        };
        let told = || format!("{id} starts as {execution}/{attempt}: {line:?}");
        let wanted = (line.execution, line.attempt + 1);
        let next = (execution, attempt) == wanted && attempt <= 3;
        self.check(next && !line.over && !line.refused, told);
        if attempt == 1 {
            let gate = line.spec.gate.as_ref();
            let leave = match &line.leave {
                Leave::Free => true,
                Leave::Never => false,
                Leave::Question => line.granted.as_ref() == Some(&line.digest),
                Leave::Standing(by) => {
                    gate.is_some_and(|g| self.covered(Some(by), &g.tool, &line.digest, record.time))
                }
            };
            self.check(leave && !line.begun, told);
            let in_turn = || self.lines.values().filter(|other| other.turn == line.turn);
            let asks = |line: &Line| {
                line.spec.gate.as_ref().is_some_and(|gate| gate.asks() && gate.barrier)
            };
            let undecided = |other: &Line| {
                let asked = other.question.as_ref().and_then(|id| self.questions.get(id));
                let asks = other.leave == Leave::Question;
                !other.over && asks && !other.begun && asked.is_none_or(|asked| !asked.over)
            };
            // Whom somebody has run again waits for nobody.
            let waits = in_turn().any(asks) && in_turn().any(undecided);
            let again = line.leave == Leave::Free && line.execution > 1;
            self.check(again || !waits, || format!("{id} starts while its turn is asked about"));
        } else {
            self.check(line.at_work, told);
        }
        self.begun.insert(format!("{id}/{execution}"), line.digest.clone());
        let line = self.lines.get_mut(id).expect("it was there");
        (line.attempt, line.at_work, line.begun, line.granted) = (attempt, true, true, None);
    }

    fn returned(&mut self, id: &CallId, execution: u32, outcome: &Outcome, raised: bool) {
        let Some(line) = self.lines.get_mut(id) else {
            return self.wrong.push(format!("{id} is back, and nobody asked for it"));
        };
        let failed = matches!(outcome, Outcome::Error(_));
        let right = line.execution == execution && (line.begun || line.spec.failed.is_some());
        line.at_work = false;
        if !line.over && raised && !failed && !line.spec.behaviour.input {
            (line.raised, line.begun, line.lost) = (true, false, false);
            (line.execution, line.attempt) = (line.execution + 1, 0);
            (line.leave, line.granted, line.question) = (Leave::Question, None, None);
        } else if !line.over {
            line.over = failed || !line.spec.behaviour.long_running;
            line.lost = false;
        }
        self.check(right, || format!("{id} is back from {execution}, which did not begin"));
    }

    fn refused(&mut self, id: &CallId) {
        let Some(line) = self.lines.get_mut(id) else {
            return self.wrong.push(format!("{id} is refused, and nobody asked for it"));
        };
        let right = !line.over && !line.begun && (line.refused || line.leave == Leave::Never);
        (line.over, line.refused) = (true, true);
        self.check(right, || format!("{id} is refused and nobody said so"));
    }

    fn noted(&mut self, record: &Record, id: &CallId, what: &Noted) {
        let (mut right, now) = (true, record.time);
        if let Some(asked) = self.questions.get_mut(id) {
            right = !asked.over;
            match what {
                Noted::Assigned { to, until } => {
                    let taken = asked.lease.as_ref();
                    right &= taken.is_none_or(|(who, till)| now >= *till || who == to);
                    asked.lease = Some((to.clone(), *until));
                }
                Noted::Unassigned | Noted::Escalated { .. } => asked.lease = None,
                Noted::Extended { expire_time } => {
                    right &= asked.deadline.is_some_and(|had| now < had && had < *expire_time);
                    asked.deadline = Some(*expire_time);
                }
                Noted::Reminded => {}
            }
        }
        self.check(right, || format!("{id} is noted: {what:?}"));
    }

    fn ended(&mut self, invocation: &InvocationId) {
        let whole = |line: &&Line| line.over && line.finals == 1;
        let torn = self.of(invocation).find(|line| !whole(line)).cloned();
        self.check(torn.is_none(), || format!("not one last response at the end: {torn:?}"));
        let of = |asked: &&Open| &asked.invocation == invocation;
        let open = self.questions.values().filter(of).find(|a| !a.over || a.finals != 1).cloned();
        self.check(open.is_none(), || format!("a question is open at the end: {open:?}"));
        // Whatever comes of them later is of calls that nobody asked for.
        self.lines.retain(|_, line| &line.invocation != invocation);
        self.questions.retain(|_, asked| &asked.invocation != invocation);
    }

    /// How often a body of these may have done its work: once an execution, unless it is harmless.
    pub fn may_run(spec: &Spec) -> u32 {
        if spec.behaviour.effect == Effect::Once { 1 } else { 3 }
    }

    /// The questions that are open.
    pub fn open(&self) -> impl Iterator<Item = &CallId> {
        self.questions.iter().filter(|(_, asked)| !asked.over).map(|(id, _)| id)
    }
}

fn id_of(line: &Line) -> &CallId {
    &line.spec.id
}

fn is_person(by: &Principal) -> bool {
    !by.as_str().starts_with("server:") && !by.as_str().starts_with("tool:")
}
