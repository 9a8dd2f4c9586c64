//! The sample agent: what it declares, and what its rules say to what people write.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::agent::{Agent, Decisions, Model, template};
use crate::model::scripted::Scripted;
use crate::model::{Model as _, Pieces, Request, Said};
use crate::session::content::{Content, Data, FunctionCall, FunctionResponse, Part, Role};
use crate::session::id::{AppName, CallId};
use crate::session::json;

/// The sample agent.
fn sample() -> Arc<Agent> {
    let files: Vec<_> = samples().iter().map(|(n, t)| (n.into(), (*t).to_owned())).collect();
    let agents = load(&files, &[]).unwrap_or_else(|faults| panic!("{}", lines(&faults)));
    agents.get(&AppName::parse("reimbursement_agent").unwrap()).unwrap().clone()
}

/// What was said last: by a user, or by a tool, with the arguments that it was called with.
enum Last<'a> {
    Text(&'a str),
    Response(&'a str, Value, Value),
}

/// What the scripted model replies: its text, then its calls as `name{args}`.
fn reply(last: &Last<'_>) -> String {
    let agent = sample();
    let Model::Scripted(script) = &agent.model else { panic!("no script") };
    let contents = match last {
        Last::Text(text) => vec![Content::user(*text)],
        Last::Response(name, args, response) => {
            let (id, name) = (CallId::parse("adk-1").unwrap(), (*name).to_owned());
            let args = object(args.clone());
            let call = FunctionCall { id: id.clone(), name: name.clone(), args };
            let response = response.as_object().cloned();
            let response = FunctionResponse { id, name, response, will_continue: None };
            let part = |data| vec![Part::new(data)];
            vec![
                Content { role: Role::Model, parts: part(Data::FunctionCall(call)) },
                Content { role: Role::User, parts: part(Data::FunctionResponse(response)) },
            ]
        }
    };
    let request = Request {
        agent: agent.name.to_string(),
        instruction: agent.instruction.clone(),
        contents: Arc::new(contents),
        news: BTreeSet::new(),
        tools: Arc::default(),
        stream: false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let model = Scripted::new(Arc::clone(script));
    let reply = runtime.block_on(model.reply(request, &mut Nowhere)).unwrap();
    let said = reply.parts.iter().map(|said| match said {
        Said::Part(Part { data: Some(Data::Text(text)), .. }) => text.clone(),
        Said::Call { name, args, .. } => {
            name.clone() + &json::canonical(&Value::Object(args.clone())).unwrap()
        }
        other => panic!("neither text nor call: {other:?}"),
    });
    said.collect()
}

struct Nowhere;

impl Pieces for Nowhere {
    fn text(&mut self, _: &str) {}
}

#[test]
fn the_sample_declares_adks_tools() {
    let agent = sample();
    let reimburse = agent.tool("reimburse").unwrap();
    let parameters = json!({
        "type": "object",
        "properties": {
            "purpose": {"type": "string", "description": "What the money was spent on."},
            "amount": {"type": "number", "description": "How much, in dollars."},
        },
        "required": ["purpose", "amount"],
    });
    assert_eq!(reimburse.parameters, parameters);
    assert_eq!(agent.tool("ask_for_approval").unwrap().parameters, parameters);
    assert_eq!(reimburse.behaviour.effect, Effect::Idempotent);
    assert_eq!(reimburse.body, Body::Object(object(json!({"status": "ok"}))));
    let ask = agent.tool("ask_for_approval").unwrap();
    assert!(ask.behaviour.long_running);
    assert_eq!(ask.behaviour.answers, Answers::Once);
    let approve = object(json!({"status": "approved"}));
    let deny = object(json!({"status": "rejected"}));
    assert_eq!(ask.behaviour.decisions, Some(Decisions { approve, deny }));
    let Body::Object(body) = &ask.body else { panic!("no object") };
    let args = object(json!({"amount": 200, "purpose": "x"}));
    let placeholder = template::render(body, &mut |name| match name {
        "id" => Some("001".into()),
        _ => template::at(&args, name.strip_prefix("args.")?),
    });
    let expected =
        json!({"status": "pending", "amount": 200, "ticketId": "reimbursement-ticket-001"});
    assert_eq!(Value::Object(placeholder), expected);
}

#[test]
fn the_sample_understands_who_asks_for_money() {
    let cases = [
        ("Please reimburse $50 for meals", "50 meals"),
        ("Please reimburse $200 for conference travel", "200 conference travel"),
        (
            "I would like to request a reimbursement of $150 for a client dinner.",
            "150 client dinner",
        ),
        ("Can I get a reimbursement of $15.50 for some coffee?", "15.5 coffee"),
        ("50$ for lunch", "50 lunch"),
        ("reimburse 75 dollars for taxi", "75 taxi"),
        ("reimburse 75 for taxi", "75 taxi"),
        ("$1,200.50 for a new laptop", "1200.5 new laptop"),
        ("1,200.50 dollars for a new laptop", "1200.5 new laptop"),
        ("I spent $30 on books", "30 books"),
        ("$20: parking", "20 parking"),
        ("Hi! I paid $ 99.99 for the Node.js course, please. Thanks!", "99.99 Node.js course"),
        ("Please reimburse me $40 for gas thanks", "40 gas"),
        ("I want $150 back for a client dinner", "150 client dinner"),
        ("Please reimburse my taxi ride: $40", "40 taxi ride"),
        ("I need a reimbursement for the team lunch of $85.", "85 team lunch"),
        ("$100 for a chair", "100 chair"),
        ("$99.999999999999999999999 for a chair", "99.999999999999999999999 chair"),
        ("USD 60 for a cable", "60 cable"),
        ("PLEASE REIMBURSE $12 FOR TEA", "12 TEA"),
        ("$30 for books\nand regards", "30 books"),
        ("$50 for ${response.status}", "50 ${response.status}"),
        ("Please reimburse the $200 I spent on conference travel", "200 conference travel"),
        ("Please reimburse a $60 dinner", "60 dinner"),
        ("a $60 dinner", "60 dinner"),
        ("Please reimburse my $200 hotel bill", "200 hotel bill"),
        ("Reimburse me for meals: 50$", "50 meals"),
        ("My taxi cost $45", "45 taxi"),
        ("50 dollars spent on meals", "50 meals"),
        ("$200 (conference travel)", "200 conference travel"),
        ("For the client dinner please reimburse $200", "200 client dinner"),
        ("$50 for lunch at St. John's cafe. Thanks!", "50 lunch at St. John's cafe"),
        ("$50 for a dinner at 5 p.m. with Dr. Who", "50 dinner at 5 p.m. with Dr. Who"),
        ("$50 dollars for lunch at 5 p.m.", "50 lunch at 5 p.m."),
        ("$1,200 for a laptop", "1200 laptop"),
    ];
    for (text, expected) in cases {
        let (amount, purpose) = expected.split_once(' ').unwrap();
        let large = amount.split('.').next().unwrap().len() > 2;
        let tool = if large { "ask_for_approval" } else { "reimburse" };
        let call = format!("{tool}{{\"amount\":{amount},\"purpose\":\"{purpose}\"}}");
        assert_eq!(reply(&Last::Text(text)), call, "{text}");
    }
}

#[test]
fn the_sample_asks_for_what_is_missing() {
    let cases = [
        ("Please reimburse $200", "What did you spend the $200 on?"),
        ("I spent 50 dollars yesterday", "What did you spend the $50 on?"),
        ("Please reimburse my taxi", "How much was it, and what was it for?"),
        ("I want to file an expense", "How much was it, and what was it for?"),
        ("$0 for lunch", "There is nothing to reimburse. How much did you spend on lunch?"),
        ("Reimburse $99.99 for books and $120 for taxi", "One at a time, please"),
        ("Reimburse $99 for dinner. And $500 for wine", "One at a time, please"),
        ("$99 for dinner\nand 500 dollars for wine", "One at a time, please"),
        ("99$ for dinner, 500$ for wine", "One at a time, please"),
        ("reimburse 75 for taxi and 30 for lunch", "One at a time, please"),
        ("$50-$150 for meals", "One at a time, please"),
        ("$50-150 for meals", "One at a time, please"),
        ("50 to 150 dollars for meals", "One at a time, please"),
        ("Do not reimburse $50 for meals", "I have reimbursed nothing."),
        ("Don't reimburse $50 for meals", "I have reimbursed nothing."),
        ("Never mind the $50 for meals", "I have reimbursed nothing."),
        ("$50 for meals? No, cancel that", "I have reimbursed nothing."),
        ("I want my $200 back", "What did you spend the $200 on?"),
        ("Reimburse the $200 I spent yesterday", "What did you spend the $200 on?"),
        ("Reimburse my laptop: $2k", "Please write the amount in digits"),
        ("my $2 thousand laptop", "Please write the amount in digits"),
        ("Reimburse my laptop: $1,2345", "What did you spend the $1 on?"),
        ("12,34$ for lunch", "I reimburse what you spent"),
        ("-$50 for lunch", "I reimburse what you spent"),
        ("hello", "I reimburse what you spent"),
        ("", "I reimburse what you spent"),
    ];
    for (text, expected) in cases {
        let said = reply(&Last::Text(text));
        assert!(said.starts_with(expected), "{text}: {said}");
    }
}

#[test]
fn the_sample_follows_the_approval() {
    let args = json!({"amount": 200, "purpose": "conference travel"});
    let after = |tool, response: Value| reply(&Last::Response(tool, args.clone(), response));
    let asked = |response| after("ask_for_approval", response);
    assert_eq!(
        asked(json!({"status": "pending", "amount": 200, "ticketId": "reimbursement-ticket-1"})),
        "Your reimbursement request for $200 (conference travel) has been sent for approval. Your \
         ticket ID is reimbursement-ticket-1. I will let you know once I have an update."
    );
    assert_eq!(
        asked(json!({"status": "approved", "amount": 5})),
        "reimburse{\"amount\":200,\"purpose\":\"conference travel\"}"
    );
    let request = "our request for $200 (conference travel)";
    let cases = [
        (json!({"status": "pending"}), " still waits for approval."),
        (json!({"status": "rejected"}), " was rejected."),
        (
            json!({"status": "rejected", "approver_feedback": "no"}),
            " was rejected. The approver says: no",
        ),
        (json!({"status": "rejected", "reason": "no"}), " was rejected. The approver says: no"),
        (json!({"status": "cancelled", "error": "e"}), " was cancelled."),
        (json!({"error": "boom"}), " could not be decided: boom"),
        (json!({"status": "in review"}), ": in review"),
        (json!({}), " was answered without a decision."),
        (json!(null), " was answered without a decision."),
    ];
    for (response, expected) in cases {
        let said = asked(response);
        assert!(said.contains(&format!("{request}{expected}")), "{said}");
    }
    assert!(asked(json!({"status": "expired", "error": "e"})).contains("it has expired"));
    let done = "You got it! I have reimbursed you $200 for conference travel.";
    assert_eq!(after("reimburse", json!({"status": "ok"})), done);
    let failed = "I could not reimburse you $200 for conference travel: boom";
    assert_eq!(after("reimburse", json!({"error": "boom"})), failed);
}

#[test]
fn a_damaged_sample_is_refused_or_read_and_never_a_panic() {
    let (_, text) = samples()[0];
    let lines: Vec<&'static str> = text.lines().collect();
    let cut = |line: &'static str| line.get(..line.len() / 3 * 2).unwrap_or("é");
    let read = |text: String| {
        let mut faults = Faults::new("s.yaml".into());
        yaml::read(&text, &mut faults);
    };
    for (i, line) in lines.iter().enumerate() {
        for damaged in ["", "- [", "  x: {", "\t'", "&a *a", cut(line)] {
            let mut lines = lines.clone();
            lines[i] = damaged;
            read(lines.join("\n"));
        }
    }
    for end in (0..text.len()).step_by(97).filter(|end| text.is_char_boundary(*end)) {
        let _ = load(&[("s.yaml".into(), text[..end].to_owned())], &[]);
    }
}
