use std::collections::BTreeSet;

use serde_json::{Number, json};

use super::*;
use crate::agent::script::{Call, Reply as Words};
use crate::session::id::CallId;

#[derive(Default)]
struct Heap(Vec<String>);

impl Pieces for Heap {
    fn text(&mut self, piece: &str) {
        self.0.push(piece.to_owned());
    }
}

fn object(value: Value) -> Object {
    value.as_object().unwrap().clone()
}

fn number(text: &str) -> Number {
    serde_json::from_str(text).unwrap()
}

fn user(pattern: &str) -> When {
    When::User(vec![Regex::new("never$^").unwrap(), Regex::new(pattern).unwrap()])
}

fn response(matches: Value) -> When {
    let matches = object(matches).into_iter().collect();
    When::Response { tool: "ask".into(), matches }
}

fn rule(when: When, conditions: &[(&str, Holds)], text: &str, args: Option<Value>) -> Rule {
    let condition = |(capture, holds): &(&str, Holds)| Condition {
        capture: (*capture).into(),
        holds: holds.clone(),
    };
    let call = |args| Call { name: "ask".into(), args: object(args) };
    Rule {
        when,
        conditions: conditions.iter().map(condition).collect(),
        reply: Words { text: text.into(), calls: args.map(call).into_iter().collect() },
    }
}

fn script() -> Scripted {
    let amount = r"(?i)dinner for (?<amount>[\d.,]+)(?: (?<currency>[A-Z]{3}))?";
    let below = |bound: &str| ("amount", Holds::Below(number(bound)));
    let ask = json!({
        "amount": "${amount}", "note": "at ${amount} $${x}", "currency": "${currency}", "n": 1.50,
    });
    let rules = vec![
        rule(user(amount), &[below("100")], "Small: ${amount}.", None),
        rule(user(amount), &[], "Asking.", Some(ask)),
        rule(response(json!({"status": "pending"})), &[], "Waiting on ${response.t.id}.", None),
        rule(
            response(json!({"status": "approved"})),
            &[("args.amount", Holds::AtLeast(number("1e3")))],
            "Paid ${args.amount}.",
            Some(json!({"paid": "${args.amount}", "by": "${response.by}"})),
        ),
        rule(response(json!({})), &[("response.n", Holds::Equals(json!(2)))], "Two.", None),
        rule(response(json!({})), &[("response.n", Holds::Below(number("5")))], "Few.", None),
    ];
    Scripted::new(Arc::new(Script { rules }))
}

fn call(id: &str, args: Value) -> Content {
    let id = CallId::parse(id).unwrap();
    let call = FunctionCall { id, name: "ask".into(), args: object(args) };
    Content { role: Role::Model, parts: vec![Part::new(Data::FunctionCall(call))] }
}

fn answers(all: &[(&str, Value)]) -> Content {
    let part = |(id, value): &(&str, Value)| {
        let (id, name) = (CallId::parse(*id).unwrap(), "ask".into());
        let response = value.as_object().cloned();
        let response = FunctionResponse { id, name, response, will_continue: None };
        Part::new(Data::FunctionResponse(response))
    };
    Content { role: Role::User, parts: all.iter().map(part).collect() }
}

fn request(contents: Vec<Content>, news: &[&str]) -> Request {
    Request {
        agent: "root".into(),
        instruction: "Be kind.".into(),
        contents: Arc::new(contents),
        news: news.iter().map(|id| CallId::parse(*id).unwrap()).collect::<BTreeSet<_>>(),
        tools: Arc::default(),
        stream: false,
    }
}

fn reply(contents: Vec<Content>, news: &[&str]) -> (String, Vec<Value>) {
    let reply = script().speak(&request(contents, news)).unwrap();
    assert_eq!(reply.finish_reason, "STOP");
    let args = |said: &Said| match said {
        Said::Call { args, .. } => Some(Value::Object(args.clone())),
        Said::Part(_) => None,
    };
    let text = reply.parts.iter().find_map(text_of).unwrap_or_default();
    (text.to_owned(), reply.parts.iter().filter_map(args).collect())
}

#[test]
fn a_group_that_reads_as_a_number_becomes_one_where_it_stands_alone() {
    let (text, calls) = reply(vec![Content::user("Dinner for 1,200.50 EUR")], &[]);
    assert_eq!(text, "Asking.");
    let args = r#"{"amount":1200.50,"currency":"EUR","n":1.5,"note":"at 1,200.50 ${x}"}"#;
    assert_eq!(calls[0].to_string(), args);
    let (_, calls) = reply(vec![Content::user("dinner for 0100")], &[]);
    assert_eq!((&calls[0]["amount"], &calls[0]["currency"]), (&json!("0100"), &json!("")));
}

#[test]
fn the_first_rule_whose_conditions_hold_speaks() {
    assert_eq!(reply(vec![Content::user("dinner for 99.99")], &[]).0, "Small: 99.99.");
    assert_eq!(reply(vec![Content::user("dinner for 100.00")], &[]).0, "Asking.");
    // What is no number fails a numeric condition.
    assert_eq!(reply(vec![Content::user("dinner for 1,2")], &[]).0, "Asking.");
    let n = |n: Value| reply(vec![call("a", json!({})), answers(&[("a", json!({"n": n}))])], &[]).0;
    assert_eq!((n(json!(2.0)), n(json!(3))), ("Two.".into(), "Few.".into()));
}

#[test]
fn a_response_and_the_arguments_of_its_call_can_be_told() {
    let exact: Value = serde_json::from_str(r#"{"amount": 12345678901234567890.10}"#).unwrap();
    let approved = json!({"status": "approved", "by": {"name": "ann"}});
    let (text, calls) = reply(vec![call("a", exact), answers(&[("a", approved)])], &[]);
    assert_eq!(text, "Paid 12345678901234567890.10.");
    let args = r#"{"by":{"name":"ann"},"paid":12345678901234567890.10}"#;
    assert_eq!(calls[0].to_string(), args);
}

#[test]
fn only_new_responses_are_spoken_to_wherever_they_stand() {
    let pending = |id: &str| json!({"status": "pending", "t": {"id": id}});
    let approved = json!({"status": "approved"});
    let amount = json!({"amount": 1000});
    let contents = vec![
        call("a", amount.clone()),
        answers(&[("a", approved.clone())]),
        call("b", amount),
        answers(&[("b", approved), ("c", pending("T-1"))]),
        Content::model("hm"),
    ];
    let (text, calls) = reply(contents.clone(), &["a", "b"]);
    assert_eq!((text.as_str(), calls.len()), ("Paid 1000.\n\nPaid 1000.", 2));
    assert_eq!(reply(contents[..4].to_vec(), &["c"]).0, "Waiting on T-1.");
    assert_eq!(reply(contents[..4].to_vec(), &[]).0, "Paid 1000.\n\nWaiting on T-1.");
    let mut asked = contents[..4].to_vec();
    asked.push(Content::user("dinner for 5"));
    assert_eq!(reply(asked.clone(), &["c"]).0, "Waiting on T-1.\n\nSmall: 5.");
    assert_eq!(reply(asked, &[]).0, "Small: 5.");
}

#[test]
fn what_no_rule_matches_is_an_error_that_repeats_nothing() {
    for contents in [
        vec![Content::user("secret")],
        vec![call("a", json!({})), answers(&[("a", json!({"secret": 1}))])],
        vec![call("a", json!({})), answers(&[("a", Value::Null)])],
        vec![Content::model("secret")],
        vec![],
    ] {
        let error = script().speak(&request(contents, &[])).unwrap_err();
        assert_eq!(error.code, NO_RULE);
        assert!(!error.message.contains("secret"), "{}", error.message);
    }
    let always = rule(When::Always, &[], "", None);
    let script = Scripted::new(Arc::new(Script { rules: vec![always] }));
    let reply = script.speak(&request(vec![], &[])).unwrap();
    assert_eq!((reply.parts.len(), reply.usage.unwrap().prompt_token_count), (0, 2));
}

#[tokio::test]
async fn pieces_are_the_whole_text_in_words() {
    let mut request = request(vec![Content::user("dinner for 99.99")], &[]);
    let mut pieces = Heap::default();
    let quiet = script().reply(request.clone(), &mut pieces).await.unwrap();
    assert!(pieces.0.is_empty());
    request.stream = true;
    let streamed = script().reply(request, &mut pieces).await.unwrap();
    assert_eq!(pieces.0, ["Small: ", "99.99."]);
    assert_eq!(quiet, streamed);
    let usage = streamed.usage.unwrap();
    let counts = (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count);
    assert_eq!(counts, (5, 2, 7));
}
