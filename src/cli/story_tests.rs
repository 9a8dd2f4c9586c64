use super::*;
use crate::proto::v1::{
    CallFacts, Content, Event, EventActions, FunctionCall, FunctionResponse, Part,
};
use crate::proto::wkt::Struct;

const PLAIN: Paint = Paint(false);

fn part(data: Data) -> Part {
    Part { data: Some(data), ..Default::default() }
}

fn text(text: &str) -> Part {
    part(Data::Text(text.to_owned()))
}

fn event(author: &str, parts: Vec<Part>) -> Event {
    Event {
        id: "1".to_owned(),
        sequence: 7,
        author: author.to_owned(),
        content: Some(Content { role: String::new(), parts }),
        ..Default::default()
    }
}

fn object(json: &str) -> Struct {
    crate::proto::from_json(json).unwrap()
}

fn told(numbered: bool, event: &Event) -> String {
    let mut out = Vec::new();
    Story::new(numbered).entry(&mut out, PLAIN, event).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn calls_and_responses_stand_below_each_other() {
    let call = FunctionCall {
        id: "adk-1".to_owned(),
        name: "ask_for_approval".to_owned(),
        args: Some(object(r#"{"purpose": "travel", "amount": 200}"#)),
    };
    let asks = event("agent", vec![text("I ask."), part(Data::FunctionCall(call))]);
    let response = FunctionResponse {
        id: "adk-1".to_owned(),
        name: "ask_for_approval".to_owned(),
        response: Some(object(r#"{"status": "pending"}"#)),
        will_continue: None,
    };
    let pending = event("agent", vec![part(Data::FunctionResponse(response.clone()))]);
    assert_eq!(
        told(false, &asks) + &told(false, &pending),
        "agent   I ask.\n\
         agent → ask_for_approval({\"amount\":200,\"purpose\":\"travel\"})\n\
         agent ← ask_for_approval {\"status\":\"pending\"}\n"
    );
    let nothing = FunctionResponse { response: None, ..response };
    let null = event("user", vec![part(Data::FunctionResponse(nothing))]);
    assert_eq!(told(true, &null), "    7  user ← ask_for_approval null\n");
}

#[test]
fn digits_that_a_double_loses_are_shown() {
    let call = FunctionCall {
        id: "adk-1".to_owned(),
        name: "pay".to_owned(),
        args: Some(object(r#"{"account": 1e16}"#)),
    };
    let mut event = event("agent", vec![part(Data::FunctionCall(call))]);
    let exact_json = r#"{"account":10000000000000001}"#.to_owned();
    event.calls.insert("adk-1".to_owned(), CallFacts { exact_json, ..Default::default() });
    assert_eq!(told(false, &event), "agent → pay({\"account\":10000000000000001})\n");
}

#[test]
fn no_text_pretends_to_be_more() {
    let event = event("ag\nent", vec![text("done\nuser ← pay {\"status\":\"ok\"}\x1b[1A\r")]);
    assert_eq!(
        told(true, &event),
        "    7  ag␊ent   done\n                user ← pay {\"status\":\"ok\"}␛[1A␍\n"
    );
}

#[test]
fn thoughts_deeds_and_errors_are_told_apart() {
    let mut event = event("agent", vec![text("yes")]);
    let thought = Part { thought: true, ..text("hm") };
    event.content.as_mut().unwrap().parts.insert(0, thought);
    event.actions = Some(EventActions {
        state_delta: Some(object(r#"{"user:name": "Ada"}"#)),
        transfer_to_agent: "helper".to_owned(),
        escalate: true,
        ..Default::default()
    });
    event.error_code = "MODEL_FAILED".to_owned();
    event.error_message = "no quota".to_owned();
    assert_eq!(
        told(false, &event),
        "agent   (thinks) hm\n\
         agent   yes\n\
         agent · sets state {\"user:name\":\"Ada\"}\n\
         agent · hands over to helper\n\
         agent · leaves the loop\n\
         agent ! MODEL_FAILED: no quota\n"
    );
}

#[test]
fn an_entry_without_content_tells_that_a_call_waits() {
    let kind = v1::call::Kind::UnknownOutcome.into();
    let facts = CallFacts { kind, ..Default::default() };
    let event = Event { content: None, ..event("agent", vec![]) };
    let event = Event { calls: [("adk-1".to_owned(), facts)].into(), ..event };
    assert_eq!(told(false, &event), "agent · call adk-1 waits: UNKNOWN_OUTCOME\n");
}

fn live(events: &[Event]) -> String {
    let mut out = Vec::new();
    let mut story = Story::new(false);
    for event in events {
        match event.partial {
            true => story.partial(&mut out, PLAIN, event).unwrap(),
            false => story.entry(&mut out, PLAIN, event).unwrap(),
        }
    }
    assert!(!story.is_speaking());
    String::from_utf8(out).unwrap()
}

#[test]
fn words_that_were_shown_while_spoken_are_not_repeated() {
    let piece = |words| Event { partial: true, sequence: 0, ..event("agent", vec![text(words)]) };
    let whole = event("agent", vec![text("Hello\nworld!")]);
    assert_eq!(
        live(&[piece("Hel"), piece("lo\n"), whole.clone()]),
        "agent   Hello\n        world!\n"
    );
    assert_eq!(
        live(&[piece("Bye"), whole.clone()]),
        "agent   Bye\nagent   Hello\n        world!\n"
    );

    let other = Event { id: "2".to_owned(), ..event("other", vec![text("Hi")]) };
    assert_eq!(
        live(&[piece("Hel"), other, whole]),
        "agent   Hel\nother   Hi\nagent   Hello\n        world!\n"
    );
}

#[test]
fn colours_are_ours_only() {
    let mut out = Vec::new();
    let event = event("a", vec![text("\x1b[31mred")]);
    Story::new(false).entry(&mut out, Paint(true), &event).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "\x1b[36ma\x1b[0m   ␛[31mred\n");
}
