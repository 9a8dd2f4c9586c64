//! The examples of `examples/`, played and compared with what they tell; and agents written in
//! Rust: what is wrong with them, and whose their functions are.

use countersign::app::{Agent, Builder, Error};
use countersign::tool::{Context, Function};
use serde_json::{Map, Value, json};

use crate::support::{Server, story};

#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../../examples/approval_loop.rs"]
mod approval_loop;
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../../examples/reimbursement_agent.rs"]
mod reimbursement_agent;
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../../examples/ticket_agent.rs"]
mod ticket_agent;

const TICKET: &str = "\
user: Create a high urgency ticket for me.
ticket_agent → create_ticket_long_running({\"urgency\":\"high\"})
(PAUSED)
user ← create_ticket_long_running {\"ticket_id\":\"TICKET-1234\"}
ticket_agent: Your high urgency ticket TICKET-1234 waits for approval.
(PAUSED)
user ← create_ticket_long_running {\"status\":\"approved\",\"ticket_id\":\"TICKET-1234\"}
ticket_agent: Your ticket TICKET-1234 is approved.
(COMPLETED)
";

#[tokio::test]
async fn the_reimbursement_agent_in_rust() {
    let mut out = Vec::new();
    reimbursement_agent::play(&mut out).await.unwrap();
    let travel = r#"{"amount":200,"purpose":"conference travel"}"#;
    let told = format!(
        "\
user: Please reimburse $200 for conference travel
reimbursement_agent → ask_for_approval({travel})
reimbursement_agent ← ask_for_approval {{\"amount\":200,\"status\":\"pending\",\
\"ticketId\":\"reimbursement-ticket-001\"}}
reimbursement_agent: A manager decides on your $200, see reimbursement-ticket-001.
(PAUSED)
manager ← ask_for_approval {{\"status\":\"approved\"}}
reimbursement_agent → reimburse({travel})
reimbursement_agent ← reimburse {{\"status\":\"ok\"}}
reimbursement_agent: I have reimbursed you $200 for conference travel.
(COMPLETED)
"
    );
    assert_eq!(String::from_utf8(out).unwrap(), told);
}

#[tokio::test]
async fn the_ticket_agent_in_rust() {
    let mut out = Vec::new();
    ticket_agent::play(ticket_agent::builder(), &mut out).await.unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), TICKET);
}

#[tokio::test]
async fn the_ticket_agent_in_a_file() {
    let file = include_str!("../../examples/ticket_agent.yaml");
    let builder = Builder::new().agent_file("ticket_agent.yaml", file).memory();
    let mut out = Vec::new();
    ticket_agent::play(builder, &mut out).await.unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), TICKET);
}

#[tokio::test]
async fn the_loops_of_approval() {
    let mut out = Vec::new();
    approval_loop::play(&mut out).await.unwrap();
    let told = String::from_utf8(out).unwrap();
    // Ids differ from run to run.
    let shown: Vec<&str> =
        told.lines().filter(|line| !line.contains("adk_request_confirmation")).collect();
    let declined = countersign::session::approval::DECLINED;
    let waits = format!(r#"{{"error":"{}"}}"#, countersign::session::approval::PLACEHOLDER);
    let refused = format!(
        r#"{{"error":"{}","reason":"{declined}"}}"#,
        countersign::session::approval::REJECTED
    );
    let expected = format!(
        r#"user: How is the weather in Amsterdam and Oslo?
weather_agent → get_weather({{"place":"Amsterdam"}})
weather_agent → get_weather({{"place":"Oslo"}})
weather_agent ← get_weather {waits}
weather_agent ← get_weather {waits}
(PAUSED)
  may it call get_weather with {{"place":"Amsterdam"}}? yes
  may it call get_weather with {{"place":"Oslo"}}? no
weather_agent ← get_weather {{"high":15,"place":"Amsterdam","weather":"cloudy"}}
weather_agent ← get_weather {refused}
weather_agent: It is cloudy in Amsterdam, with up to 15 degrees.

I may not look up Oslo: {declined}
(COMPLETED)
user: How is the weather in Lima?
  may it call get_weather with {{"place":"Lima"}}? yes
weather_agent: It is cloudy in Lima, with up to 15 degrees.
"#
    );
    assert_eq!(shown.join("\n") + "\n", expected);
}

/// A function that gives this.
fn gives(name: &str, value: Value) -> Function {
    Function::new(name, "", move |_: Map<String, Value>, _: Context| {
        let value = value.clone();
        async { Ok::<_, String>(value) }
    })
}

const ASK: &str = "- {when: {response: ask}, say: 'It is ${response.result}.'}\n\
                   - {when: always, call: {ask: {}}}";

#[tokio::test]
async fn an_agents_functions_are_its_own() {
    let shared = gives("ask", json!(3));
    let file = format!(
        "{{name: c, model: scripted, tools: [{{name: ask}}], script: [{}]}}",
        ASK.replace("- ", "").replace('\n', ", ")
    );
    let agents = [
        Agent::new("a").tool(gives("ask", json!(1))).script(ASK),
        Agent::new("b").tool(gives("ask", json!(2))).script(ASK),
        Agent::new("d").tool(shared.clone()).script(ASK),
    ];
    let builder = Builder::new().tool(shared).agent_file("c.yaml", &file);
    let server = Server::start(agents.into_iter().fold(builder, Builder::agent)).await;
    let mut client = server.client().await;
    for (app, result) in [("a", 1), ("b", 2), ("c", 3), ("d", 3)] {
        let told = story(&client.say(app, "x").await.events);
        assert_eq!(told.last().unwrap(), &format!("{app}: It is {result}."));
    }
}

#[tokio::test]
async fn everything_wrong_is_told_when_the_server_is_built() {
    let ask = || gives("ask", json!(1));
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store.db");
    let builder = Builder::new()
        .sqlite(&store)
        .tool(ask())
        .tool(ask())
        .tool(gives("adk_ask", json!(1)))
        .agent(Agent::new("twice").script(ASK).tool(ask()))
        .agent(Agent::new("twice").script(ASK).tool(ask()))
        .agent(Agent::new("user").model("none").max_prompt_events(0))
        .agent(Agent::new("mute").tool(ask()).tool(ask()))
        .agent(Agent::new("lost").model("none").tool(ask().final_when("status", ["done"])))
        .agent(Agent::new("bad").script("- when: {response: tell}\n  say: hm").tool(ask()))
        .agent(Agent::new("far").model("none"));
    let Err(Error::Settings(faults)) = builder.build().await else { panic!("it was built") };
    assert_eq!(
        faults,
        [
            "function ask: there are two of this name",
            "function adk_ask: names that begin with `adk_` are the server's own",
            "agent twice: there are two of this name",
            "agent user: `max_prompt_events` must be above 0",
            "agent user: `name` must not be `user`, which is reserved for what people write",
            "agent mute: it needs a `model` or a `script`",
            "agent mute: tool ask: there are two of this name",
            "agent lost: tool ask: `final_when` is only for tools that are long-running",
            "agent bad: script:1:20: the agent has no tool `tell`",
            "agent far: no model is registered as `none`",
        ]
    );
    assert!(!store.exists(), "a store is made only when all else is right");
}
