//! Histories, and what a model is told of them.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::session::id::EventId;

mod random;

/// A log of one session, grown event by event.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(pub Vec<Told>);

fn id(call: &str) -> CallId {
    CallId::parse(call).unwrap()
}

fn root() -> FrameId {
    FrameId::parse("root@1").unwrap()
}

fn invocation(number: u32) -> InvocationId {
    InvocationId::parse(format!("e-{number}")).unwrap()
}

fn said(role: Role, text: &str) -> Content {
    Content { role, parts: vec![Part::text(text)] }
}

fn calls(ids: &[&str]) -> Content {
    let call = |call: &&str| FunctionCall { id: id(call), name: "tool".into(), args: Map::new() };
    let parts = ids.iter().map(|c| Part::new(Data::FunctionCall(call(c)))).collect();
    Content { role: Role::Model, parts }
}

fn responses(values: &[(&str, &str)]) -> Content {
    let part = |&(call, value): &(&str, &str)| {
        let response = json!({"status": value}).as_object().cloned();
        let name = "tool".into();
        let response = FunctionResponse { id: id(call), name, response, will_continue: None };
        Part::new(Data::FunctionResponse(response))
    };
    Content { role: Role::User, parts: values.iter().map(part).collect() }
}

impl Log {
    fn add(
        &mut self,
        invocation_number: u32,
        author: &str,
        frame: Option<&str>,
        content: Option<Content>,
        behind: Option<u64>,
    ) -> &mut Self {
        let position = self.0.len() as u64 + 1;
        let event = Event {
            id: EventId::parse(format!("event-{position}")).unwrap(),
            sequence: position,
            invocation_id: invocation(invocation_number),
            author: author.into(),
            time: 0,
            frame: frame.map(|frame| FrameId::parse(frame).unwrap()),
            content,
            long_running_tool_ids: None,
            actions: Default::default(),
            finish_reason: String::new(),
            usage: None,
            error_code: String::new(),
            error_message: String::new(),
            custom_metadata: Map::new(),
            calls: BTreeMap::new(),
            imported: None,
        };
        let seen = behind.map(|behind| (position - 1).saturating_sub(behind));
        self.0.push(Told { event: event.into(), position, seen });
        self
    }

    fn user(&mut self, invocation: u32, text: &str) -> &mut Self {
        self.add(invocation, "user", None, Some(said(Role::User, text)), None)
    }

    fn reply(&mut self, invocation: u32, text: &str) -> &mut Self {
        self.late_reply(invocation, text, 0)
    }

    /// A reply whose prompt was built before the newest `behind` events.
    fn late_reply(&mut self, invocation: u32, text: &str, behind: u64) -> &mut Self {
        let content = Some(said(Role::Model, text));
        self.add(invocation, "root", Some("root@1"), content, Some(behind))
    }

    fn calls(&mut self, invocation: u32, ids: &[&str]) -> &mut Self {
        self.add(invocation, "root", Some("root@1"), Some(calls(ids)), Some(0))
    }

    /// The server asks people, in the agent's name.
    fn question(&mut self, invocation: u32, id: &str) -> &mut Self {
        let mut content = calls(&[id]);
        if let Some(Data::FunctionCall(call)) = &mut content.parts[0].data {
            call.name = "adk_request_confirmation".into();
        }
        self.add(invocation, "root", Some("root@1"), Some(content), None)
    }

    /// Responses of tools.
    fn tools(&mut self, invocation: u32, values: &[(&str, &str)]) -> &mut Self {
        self.add(invocation, "root", Some("root@1"), Some(responses(values)), None)
    }

    /// An answer from outside.
    fn answer(&mut self, invocation: u32, call: &str, value: &str) -> &mut Self {
        let content = Some(responses(&[(call, value)]));
        self.add(invocation, "user", Some("root@1"), content, None)
    }

    fn contents(&self, number: u32, held: &[&str]) -> Vec<Content> {
        let (invocation, frame) = (invocation(number), root());
        let held = held.iter().map(|call| id(call)).collect();
        build(&self.0, Frame { invocation: &invocation, frame: &frame }, &held)
    }

    fn news(&self, number: u32) -> Vec<String> {
        let (invocation, frame) = (invocation(number), root());
        let news = news(&self.0, Frame { invocation: &invocation, frame: &frame });
        news.into_iter().map(String::from).collect()
    }

    /// The prompt in short: `text`, `call(a b)`, `answers(a=done)`.
    fn prompt(&self, invocation: u32, held: &[&str]) -> Vec<String> {
        let contents = self.contents(invocation, held);
        random::check(&contents).unwrap();
        contents.iter().map(short).collect()
    }
}

fn short(content: &Content) -> String {
    let calls: Vec<&str> = content.calls().map(|call| call.id.as_str()).collect();
    let response = |response: &FunctionResponse| {
        let value = response.response.as_ref().map_or("null".into(), |r| r["status"].clone());
        format!("{}={}", response.id, value.as_str().unwrap_or_default())
    };
    let responses: Vec<String> = content.responses().map(response).collect();
    let mut all = Vec::from_iter(Some(content.plain_text()).filter(|text| !text.is_empty()));
    if !calls.is_empty() {
        all.push(format!("call({})", calls.join(" ")));
    }
    if !responses.is_empty() {
        all.push(format!("answers({})", responses.join(" ")));
    }
    all.join(" ")
}

/// `u1, FC(a), FR(a,pending), "ack", u2, "chat", FR(a,approved)`.
fn worked_example() -> Log {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "pending")]).reply(1, "ack");
    log.user(2, "u2").reply(2, "chat").answer(1, "a", "approved");
    log
}

#[test]
fn adks_worked_example() {
    let mut log = worked_example();
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a)", "answers(a=approved)"]);
    assert_eq!(log.news(1), ["a"]);
    log.reply(1, "paid").user(3, "u3");
    let later = ["u1", "call(a)", "answers(a=approved)", "ack", "u2", "chat", "paid", "u3"];
    assert_eq!(log.prompt(3, &[]), later);
    assert!(log.news(1).is_empty() && log.news(3).is_empty());
}

#[test]
fn case_3_only_the_newest_response_is_told() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "pending")]).reply(1, "ack");
    log.answer(1, "a", "still waiting").reply(1, "wait").answer(1, "a", "done");
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a)", "answers(a=done)"]);
}

#[test]
fn case_6_a_call_without_placeholder_is_paired_with_its_answer() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).answer(1, "a", "done");
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a)", "answers(a=done)"]);
}

#[test]
fn case_17_the_siblings_placeholder_stays_beside_the_answer() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a", "b"]);
    log.tools(1, &[("a", "pending"), ("b", "pending")]).reply(1, "ack").answer(1, "b", "done");
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a b)", "answers(a=pending b=done)"]);
    assert_eq!(log.news(1), ["b"]);
}

#[test]
fn case_22_an_answer_and_its_ordinary_sibling_are_one_content_in_call_order() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a", "b"]).tools(1, &[("a", "result")]).answer(1, "b", "done");
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a b)", "answers(a=result b=done)"]);

    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a", "b"]).tools(1, &[("a", "pending"), ("b", "result")]);
    log.reply(1, "ack").answer(1, "a", "done");
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a b)", "answers(a=done b=result)"]);
}

#[test]
fn case_23_answers_out_of_call_order_keep_the_places_of_their_arrival() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a", "b"]).answer(1, "b", "first").answer(1, "a", "second");
    let pairs = ["u1", "call(a b)", "answers(b=first a=second)"];
    assert_eq!(log.prompt(1, &[]), pairs);
    log.reply(1, "ok").user(2, "u2");
    assert_eq!(log.prompt(2, &[])[..3], pairs);
}

#[test]
fn case_41_chat_between_call_and_answer_is_hidden_once() {
    let mut log = worked_example();
    assert!(!log.prompt(1, &[]).contains(&"chat".to_owned()));
    log.calls(1, &["b"]).tools(1, &[("b", "paid")]);
    let prompt = log.prompt(1, &[]);
    assert!(prompt.contains(&"chat".to_owned()));
    assert_eq!(prompt[prompt.len() - 2..], ["call(b)", "answers(b=paid)"]);
}

#[test]
fn case_42_of_several_progress_updates_only_the_last_is_told() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "0%")]);
    log.answer(1, "a", "50%").answer(1, "a", "90%");
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a)", "answers(a=90%)"]);
    log.reply(1, "soon").user(2, "u2");
    assert_eq!(log.prompt(2, &[]), ["u1", "call(a)", "answers(a=90%)", "soon", "u2"]);
}

#[test]
fn case_43_the_stale_ack_between_two_updates_is_dropped_later() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).answer(1, "a", "half").reply(1, "half done");
    log.answer(1, "a", "done").reply(1, "all done").user(2, "u2");
    assert_eq!(log.prompt(2, &[]), ["u1", "call(a)", "answers(a=done)", "all done", "u2"]);

    // Another invocation's chat in between is not stale.
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).answer(1, "a", "half").reply(1, "half done");
    log.user(2, "u2").reply(2, "chat").answer(1, "a", "done").reply(1, "all done").user(3, "u3");
    let kept = ["u1", "call(a)", "answers(a=done)", "u2", "chat", "all done", "u3"];
    assert_eq!(log.prompt(3, &[]), kept);
}

#[test]
fn case_45_ordinary_and_long_running_calls_have_one_content_of_responses_each() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["x"]).tools(1, &[("x", "result")]);
    log.calls(1, &["a", "y"]).tools(1, &[("a", "pending"), ("y", "result")]).reply(1, "ack");
    log.answer(1, "a", "done").reply(1, "ok").user(2, "u2");
    let pairs = [
        "u1",
        "call(x)",
        "answers(x=result)",
        "call(a y)",
        "answers(a=done y=result)",
        "ack",
        "ok",
    ];
    assert_eq!(log.prompt(2, &[])[..7], pairs);
}

#[test]
fn case_46_text_between_a_call_and_its_answer_stands_behind_the_pair_later() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).user(2, "u2").reply(2, "chat");
    assert_eq!(log.prompt(2, &["a"])[1..3], ["call(a)", "answers(a=pending)"]);
    log.answer(1, "a", "done").reply(1, "ok").user(3, "u3");
    let later = ["u1", "call(a)", "answers(a=done)", "u2", "chat", "ok", "u3"];
    assert_eq!(log.prompt(3, &[]), later);
}

#[test]
fn case_47_a_response_without_a_call_is_dropped() {
    let mut log = Log::default();
    log.user(1, "u1").answer(1, "z", "done");
    assert_eq!(log.prompt(1, &[]), ["u1"]);
    log.calls(1, &["z"]);
    assert_eq!(log.prompt(1, &[]), ["u1"], "a response before its call answers nothing");
}

#[test]
fn case_50_a_reused_id_means_the_newest_call_before_the_response() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "one")]).reply(1, "ok");
    log.user(2, "u2").calls(2, &["a"]).tools(2, &[("a", "two")]);
    let both = ["u1", "call(a)", "answers(a=one)", "ok", "u2", "call(a)", "answers(a=two)"];
    assert_eq!(log.prompt(2, &[]), both);
}

#[test]
fn a_call_without_a_response_is_pending_if_held_and_dropped_if_not() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a", "b"]).user(2, "u2");
    assert_eq!(log.prompt(2, &["a"]), ["u1", "call(a)", "answers(a=pending)", "u2"]);
    assert_eq!(log.prompt(2, &[]), ["u1", "u2"]);
}

#[test]
fn a_reply_stands_where_its_prompt_was_built() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "pending")]);
    log.answer(1, "a", "done").late_reply(1, "it is pending", 1);
    assert_eq!(log.news(1), ["a"]);
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a)", "answers(a=done)"]);
    log.reply(1, "it is done");
    assert!(log.news(1).is_empty());
}

#[test]
fn answers_that_arrive_together_are_all_told() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "pending")]).calls(1, &["b"]);
    log.user(2, "u2").reply(2, "chat").answer(1, "b", "yes").answer(1, "a", "no");
    let told = ["u1", "call(a)", "answers(a=no)", "call(b)", "answers(b=yes)"];
    assert_eq!(log.prompt(1, &[]), told);
    assert_eq!(log.news(1), ["a", "b"]);
}

#[test]
fn an_answer_that_only_another_invocation_saw_is_still_told() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "pending")]);
    log.calls(1, &["b"]).tools(1, &[("b", "pending")]).calls(1, &["c"]).answer(1, "b", "yes");
    log.user(2, "u2").reply(2, "chat").answer(1, "c", "yes").answer(1, "a", "yes");
    let all = log.prompt(1, &[]).join(" ");
    assert!(all.contains("a=yes") && all.contains("b=yes") && all.contains("c=yes"), "{all}");
    assert!(!all.contains("chat"));
}

#[test]
fn a_message_that_nobody_replied_to_is_not_hidden() {
    let mut log = Log::default();
    log.user(1, "u1").calls(1, &["a"]).tools(1, &[("a", "pending")]).reply(1, "ack");
    log.user(2, "u2").answer(1, "a", "done");
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a)", "answers(a=done)", "u2"]);
}

#[test]
fn frames_see_their_own_and_roots_see_users() {
    let mut log = Log::default();
    let child = "root@1/helper@1";
    log.user(1, "u1").calls(1, &["a"]);
    log.add(1, "user", Some(child), Some(said(Role::User, "help")), None);
    log.add(1, "helper", Some(child), Some(calls(&["h"])), Some(0));
    log.add(1, "user", Some(child), Some(responses(&[("h", "done")])), None);
    log.add(1, "helper", Some("root@1/helper@2"), Some(said(Role::Model, "other")), Some(0));
    log.add(2, "helper", Some(child), Some(said(Role::Model, "other")), Some(0));
    assert_eq!(log.prompt(1, &[]), ["u1"]);
    let (invocation, frame) = (invocation(1), FrameId::parse(child).unwrap());
    let to = Frame { invocation: &invocation, frame: &frame };
    let told: Vec<String> = build(&log.0, to, &BTreeSet::new()).iter().map(short).collect();
    assert_eq!(told, ["help", "call(h)", "answers(h=done)"]);
    assert_eq!(news(&log.0, to), BTreeSet::from([id("h")]));
}

#[test]
fn silent_events_and_will_continue_are_not_told() {
    let mut log = Log::default();
    let thought = Part { thought: true, ..Part::text("hm") };
    log.user(1, "u1").add(1, "user", None, None, None).user(1, "");
    let thoughts = Content { role: Role::Model, parts: vec![thought] };
    log.add(1, "root", Some("root@1"), Some(thoughts), Some(0)).calls(1, &["a"]);
    let mut progress = responses(&[("a", "half")]);
    if let Some(Data::FunctionResponse(response)) = &mut progress.parts[0].data {
        (response.will_continue, response.response) = (Some(true), None);
    }
    log.add(1, "user", Some("root@1"), Some(progress), None);
    assert_eq!(log.prompt(1, &[]), ["u1", "call(a)", "answers(a=null)"]);
    let last = log.contents(1, &[]).pop().unwrap();
    let response = last.responses().next().unwrap();
    assert_eq!((response.will_continue, &response.response), (None, &None));
}

#[test]
fn a_question_to_people_is_in_no_prompt_and_has_heard_nothing() {
    let mut log = Log::default();
    log.user(1, "pay").calls(1, &["a", "b"]).tools(1, &[("a", "done"), ("b", "asking")]);
    log.question(1, "q").user(2, "and?");
    assert_eq!(log.news(1), ["a", "b"]);
    assert_eq!(log.prompt(2, &[]), ["pay", "call(a b)", "answers(a=done b=asking)", "and?"]);
}
