use super::*;
use crate::agent::approvals::{Approvals, Need};
use crate::agent::builtin;
use crate::session::approval::{Action, Deadline};

fn hours(after: u64, action: Action) -> Deadline {
    Deadline { after: std::time::Duration::from_secs(after * 3600), action }
}

#[test]
fn an_agent_says_how_its_calls_are_approved() {
    let text = "
name: a
model: m
tools:
  - name: pay
    parameters: {properties: {amount: {type: number}, to: {type: string}}}
    returns: {}
approvals:
  default: Always
  batches: eager
  one_at_a_time: true
  disable_tool_auto_approval: false
  disable_not_required_bypass: true
  max_auto_approval_iterations: 3
  auto_approve:
    - {name: small amounts, when: tool == 'pay' && args.amount < 10}
    - {name: hers, when: user == 'ann'}
  deny: [{name: abroad, when: \"args.to.startsWith('XX')\"}]
";
    let said = agent(text, &[]).approvals.clone();
    assert!(said.by_default && !said.barrier && said.one_at_a_time);
    assert!(!said.disable_tool_auto_approval && said.disable_not_required_bypass);
    assert_eq!(said.max_auto_approval_iterations, 3);
    let names = |rules: &[crate::agent::approvals::Rule]| -> Vec<String> {
        rules.iter().map(|rule| format!("{}: {}", rule.name, rule.when.source())).collect()
    };
    let auto = ["small amounts: tool == 'pay' && args.amount < 10", "hers: user == 'ann'"];
    assert_eq!(names(&said.auto_approve), auto);
    assert_eq!(names(&said.deny), ["abroad: args.to.startsWith('XX')"]);
    assert!(said.revision.starts_with("sha256:"));

    let plain = agent("name: a\nmodel: m\n", &[]).approvals.clone();
    assert_eq!(Approvals { revision: String::new(), ..plain }, Approvals::default());
}

#[test]
fn a_tool_says_which_of_its_calls_wait_and_how_long() {
    let text = "
name: a
model: m
tools:
  - {name: one, returns: {}, approval: always}
  - {name: two, returns: {}, approval: NEVER}
  - {name: three, returns: {}}
  - name: four
    parameters: {properties: {amount: {type: number}}}
    returns: {}
    approval:
      when: args.amount > 100.0
      hint: Shall it be paid?
      rejection: Nobody pays that.
      deadlines:
        - {after: 1h, do: remind}
        - {after: 2h, do: escalate, to: the board}
      expires_after: 3h
  - {name: five, returns: {}, approval: {need: never, deadlines: [{after: 1h, do: deny}]}}
  - name: six
    long_running: true
    returns: nothing
    decisions: {approve: {ok: true}, deny: {ok: false}}
    deadlines: [{after: 1h, do: remind}, {after: 4h, do: expire}]
  - {name: seven, long_running: true, returns: nothing, inbox: true, expires_after: 2h}
  - name: eight
    long_running: true
    returns: nothing
    inbox: false
    decisions: {approve: {ok: true}, deny: {ok: false}}
  - name: send_mail
    approval: {hint: Send it?}
";
    let mut registered = function("send_mail");
    registered.approval.need = Some(Need::Always);
    let agent = agent(text, &[registered]);
    let tool = |name: &str| agent.tool(name).unwrap();
    let need = |name: &str| tool(name).approval.need.clone();
    let said = (need("one"), need("two"), need("three"));
    assert_eq!(said, (Some(Need::Always), Some(Need::Never), None));
    let four = &tool("four").approval;
    let Some(Need::When(when)) = &four.need else { panic!("{four:?}") };
    assert_eq!(when.source(), "args.amount > 100.0");
    assert_eq!(four.hint, "Shall it be paid?");
    assert_eq!(four.rejection, "Nobody pays that.");
    let board = Action::Escalate { to: "the board".into() };
    let expected = [hours(1, Action::Remind), hours(2, board), hours(3, Action::Expire)];
    assert_eq!(four.deadlines, expected);
    assert_eq!(tool("five").approval.need, Some(Need::Never));
    assert_eq!(tool("five").approval.deadlines, [hours(1, Action::Deny)]);
    let six = &tool("six").behaviour;
    assert_eq!(six.deadlines, [hours(1, Action::Remind)]);
    assert_eq!(six.expires_after.unwrap().as_secs(), 4 * 3600);
    let inbox = |name: &str| tool(name).behaviour.inbox;
    assert!(six.inbox && inbox("seven") && !inbox("eight") && !inbox("one"));
    assert_eq!(tool("seven").behaviour.expires_after.unwrap().as_secs(), 2 * 3600);
    // What a function says of itself stays where the file is silent.
    assert_eq!(need("send_mail"), Some(Need::Always));
    assert_eq!(tool("send_mail").approval.hint, "Send it?");
    assert!(agent.tools.iter().all(|tool| tool.faults().is_empty()));
}

#[test]
fn the_servers_own_tools_stand_there_by_name() {
    let text = "
name: a
model: m
tools:
  - {name: adk_request_input, expires_after: 2h, deadlines: [{after: 1h, do: remind}]}
  - {name: get_user_choice, description: Asks which.}
";
    let agent = agent(text, &[]);
    let input = agent.tool(builtin::REQUEST_INPUT).unwrap();
    let known = builtin::named(builtin::REQUEST_INPUT).unwrap();
    assert_eq!((&input.parameters, &input.body), (&known.parameters, &Body::Nothing));
    assert!(input.behaviour.input && input.behaviour.inbox && input.behaviour.long_running);
    assert_eq!(input.behaviour.effect, Effect::Read);
    assert_eq!(input.behaviour.deadlines, [hours(1, Action::Remind)]);
    assert_eq!(input.behaviour.expires_after.unwrap().as_secs(), 2 * 3600);
    let choice = agent.tool(builtin::USER_CHOICE).unwrap();
    assert_eq!(choice.description, "Asks which.");
    assert!(agent.tools.iter().all(|tool| tool.faults().is_empty() && builtin::is(tool)));

    // Where a name is not reserved, somebody may have a tool of his own by it.
    let own = "name: a\nmodel: m\ntools: [{name: get_user_choice, returns: {result: a}}]\n";
    let own = super::agent(own, &[]);
    assert!(!builtin::is(&own.tools[0]) && own.tools[0].faults().is_empty());
    let wrong = "
name: a
model: m
tools:
  - {name: adk_request_input, returns: {}, effect: once}
  - name: adk_request_credential
    returns: {}
  - {name: adk_request_confirmation, returns: {}}
  - {name: adk_request_inptu, returns: {}}
";
    let expected = "\
a.yaml:5:31: `adk_request_input` is the server's own: it has no `returns`
a.yaml:5:44: `adk_request_input` is the server's own: it has no `effect`
a.yaml:6:11: `adk_request_credential` is reserved: this server does not ask for credentials yet
a.yaml:8:12: names that begin with `adk_` are the server's own
a.yaml:9:12: names that begin with `adk_` are the server's own (did you mean `adk_request_input`?)
";
    assert_eq!(lines(&load_text(wrong, &[]).unwrap_err()), expected);
}

#[test]
fn a_declared_body_asks_by_itself() {
    let text = "
name: a
model: m
tools:
  - name: time_off
    parameters: {properties: {days: {type: integer}}}
    asks:
      when: args.days > 2
      hint: Approve ${args.days} days?
      payload: {approved_days: '${args.days}', note: ''}
      returns: {status: pending}
      declined: {status: rejected}
    returns: {status: ok, days: '${confirmation.payload.approved_days}'}
";
    let agent = agent(text, &[]);
    let Body::Asking(asking) = &agent.tools[0].body else { panic!("{:?}", agent.tools[0].body) };
    assert_eq!(asking.when.as_ref().unwrap().source(), "args.days > 2");
    assert_eq!(asking.hint, "Approve ${args.days} days?");
    assert_eq!(asking.payload.as_ref().unwrap()["note"], "");
    assert_eq!(asking.interim["status"], "pending");
    assert_eq!(asking.declined.as_ref().unwrap()["status"], "rejected");
    assert_eq!(asking.returns["status"], "ok");

    let wrong = "
name: a
model: m
tools:
  - name: one
    parameters: {properties: {days: {type: integer}}}
    asks: {hint: '${args.dys} ${confirmation.payload.days}', payload: {days: 1}, retruns: {}}
    returns: {days: '${confirmation.payload.dyas}', more: '${confirmation.none}'}
  - {name: two, asks: {returns: {}}, returns: {x: '${confirmation.payload.x}'}}
  - {name: three, asks: {returns: {}}, long_running: true, returns: nothing}
  - {name: send_mail, asks: {returns: {}}}
";
    let expected = "\
a.yaml:7:11: `asks` must have `returns`
a.yaml:7:18: `${confirmation.payload.days}` is only for `returns` beside `asks`
a.yaml:7:18: `one` has no parameter `dys` (did you mean `days`?)
a.yaml:7:82: `asks` has no key `retruns` (did you mean `returns`?)
a.yaml:8:21: the `payload` of `asks` has no key `dyas` (did you mean `days`?)
a.yaml:8:59: `${confirmation.none}` is no place; known: args.NAME, call_id, id, \
invocation_id, session_id, user_id
a.yaml:9:51: `asks` has no `payload` with keys to be filled in
a.yaml:10:25: `asks` needs a map in `returns`
a.yaml:11:23: `asks` needs `returns`: a function asks by itself
";
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let told = lines(&load_text(wrong, &[function("send_mail")]).unwrap_err());
    assert_eq!(sorted(&told), sorted(expected));
}

/// The agents of ADK's samples are read, and editors take them too.
#[test]
fn the_agents_of_adks_samples_are_read() {
    let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/adk/agents"));
    let agents = load_dir(dir, &[]).unwrap_or_else(|faults| panic!("{}", lines(&faults)));
    assert!(agents.iter().count() >= 6);
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let mut faults = Faults::new(path.clone());
        let text = std::fs::read_to_string(&path).unwrap();
        let value = yaml::read(&text, &mut faults).unwrap().to_json();
        let wrong: Vec<_> = validator.iter_errors(&value).map(|e| e.to_string()).collect();
        assert!(wrong.is_empty(), "{}: {wrong:?}", path.display());
    }
}
