//! The fold of what people are asked: questions, decisions, notes, and what stands in the inbox.

use std::sync::Arc;

use serde_json::Value;

use super::Session;
use crate::session::approval::{
    Approval, CONFIRMATION, Code, Confirmation, Lease, Note, PLACEHOLDER, Raised, Sibling, Verdict,
    What, Why,
};
use crate::session::approving::confirmation_of;
use crate::session::call::{Behaviour, Call, Closing, Effect, End, Kind, Phase, Spec};
use crate::session::content::{Event, Object};
use crate::session::id::{CallId, FrameId, InvocationId};
use crate::session::record::{Answer, Edited, Noted, Outcome, Question, Record};

impl Session {
    /// A person is asked: each question is a call, held from the beginning.
    pub(super) fn asked(
        &mut self,
        record: &Record,
        invocation: &InvocationId,
        frame: &FrameId,
        questions: &[Question],
        event: &Event,
    ) {
        for (index, (question, part)) in questions.iter().zip(event.function_calls()).enumerate() {
            let Some(about) = self.calls.get(&question.call) else { continue };
            let asked = part.args.get("toolConfirmation");
            let hint = asked.and_then(|asked| asked.get("hint")).and_then(Value::as_str);
            let gate = about.spec.gate.as_ref();
            let siblings =
                self.turn(about).into_iter().filter(|call| call.spec.id != question.call);
            let approval = Approval {
                about: Some(about.spec.clone()),
                hint: hint.unwrap_or_default().to_owned(),
                payload: asked.and_then(|asked| asked.get("payload")).cloned(),
                requires_confirmation: question.why.code != Code::Sibling,
                siblings: siblings.map(sibling).collect(),
                ..approval(question.why.clone(), self.first_note(record, What::Asked))
            };
            let spec = Spec {
                id: question.id.clone(),
                model_id: None,
                name: CONFIRMATION.to_owned(),
                args: part.args.clone(),
                args_digest: about.spec.args_digest.clone(),
                behaviour: Behaviour {
                    deadlines: gate.map(|gate| gate.deadlines.clone()).unwrap_or_default(),
                    inbox: true,
                    effect: Effect::Read,
                    ..Behaviour::default()
                },
                gate: None,
                failed: None,
            };
            let mut call = self.requested(record, invocation, frame, event, Arc::new(spec));
            call.index = u32::try_from(index).unwrap_or(u32::MAX);
            call.phase = Phase::Held(Kind::Confirmation);
            call.approval = Some(Box::new(approval));
            self.calls.insert(question.id.clone(), call);
            if let Some(about) = self.calls.get_mut(&question.call) {
                about.phase = Phase::Gated;
                let gated = about.gated.get_or_insert_default();
                gated.declined = gated.raised.take().and_then(|raised| raised.declined);
                gated.question = Some(question.id.clone());
                gated.confirmation = None;
                gated.reason.clear();
            }
        }
    }

    /// A body asks from inside: what it gave is told, and it runs again when somebody agrees.
    pub(super) fn raised(&mut self, id: &CallId, outcome: &Outcome, raised: &Raised) {
        let Some(call) = self.calls.get_mut(id) else { return };
        let over = matches!(outcome, Outcome::Error(_));
        let answered = call.closed().is_some_and(|closing| closing.position != self.head);
        if over || answered || call.spec.behaviour.input {
            return;
        }
        call.phase = Phase::Gated;
        call.approval = None;
        call.execution += 1;
        call.attempt = 0;
        call.gated.get_or_insert_default().raised = Some(raised.clone());
        // A body that says nothing meanwhile: what was told before is not how it stands.
        if call.untold.is_none() && call.last.is_some() {
            let text = ("error".to_owned(), Value::from(PLACEHOLDER));
            call.untold = Some(Object::from_iter([text]));
        }
    }

    /// A gated call is not run.
    pub(super) fn refused(&mut self, record: &Record, id: &CallId, end: End, response: &Object) {
        let position = self.head;
        let Some(call) = self.calls.get_mut(id) else { return };
        call.phase = Phase::Closed(Closing {
            end,
            kind: None,
            by: record.by.clone(),
            time: record.time,
            digest: String::new(),
            position,
        });
        call.untold = Some(response.clone());
    }

    /// What an answer says of the approval, and of the call that it is about. Before it closes it.
    pub(super) fn decided_by(&mut self, record: &Record, answer: &Answer) {
        let Some(call) = self.calls.get_mut(&answer.call) else { return };
        let args_digest = call.spec.args_digest.clone();
        let question = call.asks().cloned();
        let Some(approval) = &mut call.approval else { return };
        if answer.end.is_some() {
            approval.verdict = answer.verdict;
        }
        let what = match answer.end {
            None => What::Progress,
            Some(End::Expired) => What::Expired,
            Some(End::Cancelled) => What::Cancelled,
            Some(End::Done | End::Denied) => What::Decided {
                verdict: answer.verdict,
                reason: answer.reason.clone(),
                args_digest,
            },
        };
        if let Some(edited) = &answer.edited {
            self.edited(record, &answer.call, edited);
        }
        self.note(record, &answer.call, what, &answer.comment);
        let Some(about) = question.and_then(|id| self.calls.get_mut(&id)) else { return };
        let Some(gated) = about.gated.as_mut().filter(|_| answer.end.is_some()) else { return };
        let said = answer.response.as_ref().and_then(|said| confirmation_of(said).ok());
        gated.confirmation = Some(Confirmation {
            confirmed: answer.verdict == Some(Verdict::Approve),
            payload: said.and_then(|(_, payload)| payload),
        });
        gated.reason.clone_from(&answer.reason);
    }

    /// A gated call has other arguments from here on.
    fn edited(&mut self, record: &Record, question: &CallId, edited: &Edited) {
        let Some(about) = self.calls.get_mut(&edited.call) else { return };
        let from = about.spec.args_digest.clone();
        let spec = Arc::make_mut(&mut about.spec);
        spec.args.clone_from(&edited.args);
        spec.args_digest.clone_from(&edited.args_digest);
        if let Some(gate) = &mut spec.gate {
            gate.why = edited.why.clone();
        }
        about.gated.get_or_insert_default().edited = true;
        let spec = about.spec.clone();
        if let Some(approval) = self.calls.get_mut(question).and_then(|q| q.approval.as_mut()) {
            approval.about = Some(spec);
        }
        let what = What::Edited { from, to: edited.args_digest.clone() };
        self.note(record, question, what, "");
    }

    /// Something that closes no call happened to an approval.
    pub(super) fn noted(&mut self, record: &Record, id: &CallId, noted: &Noted, comment: &str) {
        let Some(call) = self.calls.get_mut(id) else { return };
        // A deadline has done its work, whether there is an approval yet or not.
        call.deadlines_done +=
            usize::from(matches!(noted, Noted::Reminded | Noted::Escalated { .. }));
        let Some(approval) = &mut call.approval else { return };
        let what = match noted {
            Noted::Assigned { to, until } => {
                approval.lease = Some(Lease { assignee: to.clone(), until: *until });
                What::Assigned { to: to.clone(), until: *until }
            }
            Noted::Unassigned => {
                approval.lease = None;
                What::Unassigned
            }
            Noted::Extended { expire_time } => {
                call.expire_time = Some(*expire_time);
                What::Extended { expire_time: *expire_time }
            }
            Noted::Reminded => What::Reminded,
            Noted::Escalated { to } => {
                approval.lease = None;
                approval.escalated_to.clone_from(to);
                What::Escalated { to: to.clone() }
            }
        };
        self.note(record, id, what, comment);
    }

    /// A held call comes into the inbox.
    pub(super) fn enter_inbox(&mut self, record: &Record, id: &CallId, code: Code) {
        let Some(call) = self.calls.get(id) else { return };
        let turn = self.turn(call).into_iter().filter(|other| &other.spec.id != id);
        let siblings = turn.map(sibling).collect();
        let before = call.approval.as_ref().map(|before| before.story.clone());
        let mut entry = approval(Why::new(code), before.unwrap_or_default());
        entry.siblings = siblings;
        entry.story.extend(self.first_note(record, What::Asked));
        if let Some(call) = self.calls.get_mut(id) {
            call.approval = Some(Box::new(entry));
        }
    }

    pub(super) fn note(&mut self, record: &Record, id: &CallId, what: What, comment: &str) {
        let call = self.calls.get_mut(id);
        let Some(approval) = call.and_then(|call| call.approval.as_mut()) else { return };
        let (time, by, comment) = (record.time, record.by.clone(), comment.to_owned());
        approval.note(Note { time, by, what, comment });
    }

    fn first_note(&self, record: &Record, what: What) -> Vec<Note> {
        let (time, by) = (record.time, record.by.clone());
        vec![Note { time, by, what, comment: String::new() }]
    }
}

fn approval(why: Why, story: Vec<Note>) -> Approval {
    Approval {
        about: None,
        why,
        hint: String::new(),
        payload: None,
        requires_confirmation: true,
        siblings: Vec::new(),
        story,
        lease: None,
        escalated_to: String::new(),
        verdict: None,
    }
}

fn sibling(call: &Call) -> Sibling {
    Sibling {
        call: call.spec.id.clone(),
        name: call.spec.name.clone(),
        asks: matches!(call.phase, Phase::Gated),
    }
}
