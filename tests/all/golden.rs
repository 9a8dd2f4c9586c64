//! Everything ever stored can be read: one form at least of every kind of record, a log with its
//! snapshot, and a database file. The files in `tests/golden` only grow; one that is there is never
//! written again. With `COUNTERSIGN_GOLDEN=write` those that are missing are made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use countersign::app::Builder;
use countersign::proto::v1::{self as pb, end_mark::State};
use countersign::session::approval::{CONFIRMATION, Code, Standing, ToolIdentity, Why};
use countersign::session::call::{Answers, Behaviour, Decisions, Effect, End, Kind, Spec};
use countersign::session::codec;
use countersign::session::content::*;
use countersign::session::id::*;
use countersign::session::record::{
    Answer, Body, Ending, Noted, Outcome, Question, Record, RunConfig,
};
use countersign::session::state::Touched;
use countersign::session::{Session, codec::VERSION};
use serde_json::json;
use tempfile::TempDir;

use crate::core::{self, by, call_id, id, invocation, object, root};
use crate::kill::in_time;
use crate::support::{json as plain, say, story, submit};

mod approvals;
mod random;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The lines of a file. If it is missing it is made of these, where that is asked for.
fn lines(name: &str, made: impl FnOnce() -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let path = golden(name);
    if !path.exists() && std::env::var("COUNTERSIGN_GOLDEN").is_ok_and(|how| how == "write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut text = made().join(&b'\n');
        text.push(b'\n');
        std::fs::write(&path, text).unwrap();
    }
    let text = std::fs::read(&path).unwrap_or_else(|_| panic!("{} is missing", path.display()));
    text.split(|byte| *byte == b'\n').filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect()
}

fn event(parts: Vec<Part>) -> Event {
    let facts = CallFacts {
        kind: Some(Kind::LongRunning),
        args_digest: "sha256:0".to_owned(),
        exact_json: r#"{"n":9007199254740993}"#.to_owned(),
        comment: "looks fine".to_owned(),
    };
    Event {
        id: id(EventId::parse("event-1")),
        sequence: 7,
        invocation_id: invocation(1),
        author: "root".to_owned(),
        time: 1_700_000_000_000_001,
        frame: Some(root()),
        content: Some(Content { role: Role::Model, parts }),
        long_running_tool_ids: Some(BTreeSet::from([call_id("ask")])),
        actions: Actions {
            state_delta: object(json!({"a": 1, "user:b": null})),
            skip_summarization: true,
            escalate: true,
            ..Actions::default()
        },
        finish_reason: "STOP".to_owned(),
        usage: Some(Usage {
            prompt_token_count: 1,
            candidates_token_count: 2,
            total_token_count: 3,
            cached_content_token_count: 4,
            thoughts_token_count: 5,
        }),
        error_code: "CODE".to_owned(),
        error_message: "words".to_owned(),
        custom_metadata: object(json!({"trace": "x"})),
        calls: BTreeMap::from([(call_id("ask"), facts)]),
        imported: None,
    }
}

/// An event with as little as one can have.
fn bare() -> Event {
    Event {
        frame: None,
        content: None,
        long_running_tool_ids: None,
        actions: Actions::default(),
        finish_reason: String::new(),
        usage: None,
        error_code: String::new(),
        error_message: String::new(),
        custom_metadata: Object::new(),
        calls: BTreeMap::new(),
        imported: None,
        ..event(vec![])
    }
}

/// An event of another server, with all that it can say.
fn imported() -> Event {
    let imported = Imported {
        node_path: "root@1/helper@2".to_owned(),
        branch: "root.helper".to_owned(),
        isolation_scope: "fc-1".to_owned(),
        output: Some(json!({"n": 1})),
        transfer_to_agent: "helper".to_owned(),
        artifact_delta: BTreeMap::from([("a.txt".to_owned(), 2)]),
        turn_complete: true,
        interrupted: true,
    };
    Event { frame: None, imported: Some(Box::new(imported)), ..event(parts()) }
}

/// Every kind of part.
fn parts() -> Vec<Part> {
    let (text, name) = (|text: &str| text.to_owned(), "ask".to_owned());
    let number: serde_json::Value = serde_json::from_str("12345678901234567890.10").unwrap();
    let args = Object::from_iter([("amount".to_owned(), number)]);
    let data = [
        Data::Text(text("words")),
        Data::FunctionCall(FunctionCall { id: call_id("ask"), name: name.clone(), args }),
        Data::FunctionResponse(FunctionResponse {
            id: call_id("ask"),
            name,
            response: Some(object(json!({"status": "pending"}))),
            will_continue: Some(true),
        }),
        Data::InlineData(Blob {
            mime_type: text("image/png"),
            data: vec![0, 1, 255],
            display_name: text("a"),
        }),
        Data::FileData(FileData {
            mime_type: text("text/plain"),
            file_uri: text("file:///a"),
            display_name: text("b"),
        }),
        Data::ExecutableCode(ExecutableCode { language: text("PYTHON"), code: text("1") }),
        Data::CodeExecutionResult(CodeExecutionResult {
            outcome: text("OUTCOME_OK"),
            output: text("1"),
        }),
    ];
    let mut parts: Vec<Part> = data.into_iter().map(Part::new).collect();
    parts.push(Part { data: None, thought: true, thought_signature: vec![1, 2, 3] });
    parts
}

fn specs() -> Vec<Spec> {
    let behaviour = Behaviour {
        long_running: true,
        answers: Answers::Many,
        final_when: BTreeMap::from([("status".to_owned(), vec![json!("approved")])]),
        answer_schema: Some(json!({"type": "object"})),
        expires_after: Some(std::time::Duration::from_secs(3_600)),
        decisions: Some(Decisions {
            approve: object(json!({"status": "approved"})),
            deny: object(json!({"status": "rejected"})),
        }),
        effect: Effect::Idempotent,
        timeout: std::time::Duration::from_millis(1_500),
        ..Behaviour::default()
    };
    let whole = Spec {
        model_id: Some("toolu_1".to_owned()),
        args: object(json!({"amount": 200})),
        ..core::spec("ask", behaviour)
    };
    let failed = Spec {
        failed: Some(object(json!({"error": "no"}))),
        ..core::spec("bad", Behaviour { effect: Effect::Read, ..Behaviour::default() })
    };
    vec![whole, failed, core::spec("pay", Behaviour::default())]
}

fn answered(end: Option<End>, queued: bool) -> Body {
    let answer = Answer {
        call: call_id("ask"),
        response: end.map(|_| object(json!({"status": "approved"}))),
        end,
        skip_summarization: queued,
        comment: if queued { "fine".to_owned() } else { String::new() },
        digest: if queued { "sha256:1".to_owned() } else { String::new() },
        verdict: None,
        reason: String::new(),
        edited: None,
    };
    let event = Event { sequence: if queued { 0 } else { 7 }, ..event(parts()) };
    Body::Answered { invocation: invocation(1), answers: vec![answer], queued, event }
}

fn asked(code: Code) -> Body {
    let call = FunctionCall {
        id: call_id("question"),
        name: CONFIRMATION.to_owned(),
        args: object(json!({"toolConfirmation": {"hint": "really?", "confirmed": false}})),
    };
    let why = Why {
        rule: "args.amount > 100.0".to_owned(),
        revision: "sha256:0123456789abcdef".to_owned(),
        detail: "so it is".to_owned(),
        ..Why::new(code)
    };
    Body::Asked {
        invocation: invocation(1),
        frame: root(),
        questions: vec![Question { id: call_id("question"), call: call_id("pay"), why }],
        event: event(vec![Part::new(Data::FunctionCall(call))]),
    }
}

fn noted(what: Noted) -> Body {
    let comment = if what == Noted::Unassigned { String::new() } else { "well".to_owned() };
    Body::Noted { call: call_id("question"), what, comment }
}

fn standing(exact: bool) -> Standing {
    Standing {
        id: "standing-1".to_owned(),
        tool: ToolIdentity {
            name: "pay".to_owned(),
            source: "function".to_owned(),
            schema_digest: "sha256:1".to_owned(),
        },
        args_digest: exact.then(|| "sha256:0".to_owned()),
        args: exact.then(|| object(json!({"amount": 5}))),
        until: exact.then_some(1_700_000_000_000_009),
        call: call_id("question"),
        by: by("user:ann"),
        time: 1_700_000_000_000_000,
    }
}

/// Every kind of record in every form that it has.
fn bodies() -> Vec<Body> {
    let key = SessionKey {
        app: id(AppName::parse("root")),
        user: id(UserId::parse("ann")),
        id: id(SessionId::parse("s")),
    };
    let state = object(json!({"a": 1}));
    let (invocation, frame) = (invocation(1), root());
    let config = |custom_metadata| RunConfig { streaming: true, max_llm_calls: 5, custom_metadata };
    let returned = |outcome, state_delta: Object| Body::Returned {
        call: call_id("ask"),
        execution: 1,
        outcome,
        skip_summarization: !state_delta.is_empty(),
        state_delta,
        raised: None,
    };
    let replied = |event, calls| Body::Replied {
        invocation: invocation.clone(),
        frame: frame.clone(),
        seen: 3,
        event,
        calls,
    };
    let invoked = |config, event| Body::Invoked {
        invocation: invocation.clone(),
        agent: core::agent("root"),
        config,
        event,
    };
    let ended = |how| Body::Ended { invocation: invocation.clone(), how };
    let (code, message) = ("LIMIT_EXCEEDED".to_owned(), "too many".to_owned());
    vec![
        Body::Created { uid: id(SessionUid::parse("uid")), key, state: state.clone() },
        invoked(config(object(json!({"trace": "x"}))), event(parts())),
        invoked(config(Object::new()), bare()),
        Body::Claimed { owner: id(Owner::parse("process-1")), epoch: 2 },
        Body::Released,
        Body::Opened {
            invocation: invocation.clone(),
            frame: frame.child(&core::agent("helper"), 1),
            agent: core::agent("helper"),
            call: call_id("pay"),
            event: event(parts()),
        },
        replied(event(parts()), specs()),
        replied(bare(), Vec::new()),
        Body::Started { call: call_id("ask"), execution: 1, attempt: 2 },
        returned(Outcome::Value(object(json!({"status": "pending"}))), state.clone()),
        returned(Outcome::Nothing, Object::new()),
        returned(Outcome::Error(object(json!({"error": "no"}))), Object::new()),
        Body::Responded {
            invocation: invocation.clone(),
            frame: frame.clone(),
            event: event(parts()),
        },
        Body::Lost { call: call_id("ask"), event: bare() },
        answered(None, false),
        answered(Some(End::Done), true),
        answered(Some(End::Expired), false),
        answered(Some(End::Cancelled), false),
        Body::Placed { invocation: invocation.clone(), event: event(parts()) },
        Body::CancelRequested { invocation: invocation.clone() },
        Body::Paused { invocation: invocation.clone(), held: vec![call_id("ask")] },
        ended(Ending::Completed),
        ended(Ending::Cancelled),
        ended(Ending::Failed { code, message }),
        asked(Code::Tool),
        Body::Refused {
            call: call_id("pay"),
            end: End::Denied,
            response: object(json!({"error": "no"})),
        },
        Body::RunAgain { call: call_id("pay"), forced: true, comment: "sure".to_owned() },
        noted(Noted::Assigned { to: by("user:bo"), until: 1_700_000_000_000_002 }),
        noted(Noted::Unassigned),
        noted(Noted::Extended { expire_time: 1_700_000_000_000_003 }),
        noted(Noted::Reminded),
        noted(Noted::Escalated { to: "finance".to_owned() }),
        Body::StandingMade { standing: standing(true) },
        Body::StandingMade { standing: standing(false) },
        Body::StandingRevoked { id: "standing-1".to_owned() },
        Body::StateChanged { event: bare() },
        Body::Imported { event: imported() },
        Body::Imported { event: bare() },
    ]
}

/// The kinds that there are, as they are stored. A new one has to be added here and in `bodies`:
/// `core::kind` does not compile without it.
const KINDS: [&str; 23] = [
    "answered",
    "asked",
    "cancel_requested",
    "claimed",
    "created",
    "ended",
    "imported",
    "invoked",
    "lost",
    "noted",
    "opened",
    "paused",
    "placed",
    "refused",
    "released",
    "replied",
    "responded",
    "returned",
    "run_again",
    "standing_made",
    "standing_revoked",
    "started",
    "state_changed",
];

#[test]
fn every_kind_of_record_is_read_as_it_was_written() {
    let mut kinds: BTreeMap<&str, Vec<Record>> = BTreeMap::new();
    for body in bodies() {
        let record = Record { time: 1_700_000_000_000_000, by: by("user:ann"), body };
        kinds.entry(core::kind(&record.body)).or_default().push(record);
    }
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), KINDS);
    for (kind, records) in kinds {
        let stored = lines(&format!("v1/records/{kind}.jsonl"), || {
            records.iter().map(codec::encode_record).collect()
        });
        let read: Vec<Record> = stored.iter().map(|l| codec::decode_record(l).unwrap()).collect();
        assert_eq!(read, records, "{kind}");
        for (record, stored) in records.iter().zip(&stored) {
            let value: serde_json::Value = serde_json::from_slice(stored).unwrap();
            let body = &value["r"]["body"];
            assert!(body == kind || body.get(kind).is_some(), "the kind's name is stored: {body}");
            let again = codec::encode_record(record);
            assert_eq!(codec::decode_record(&again).unwrap(), *record);
        }
    }
}

#[test]
fn a_log_folds_to_the_snapshot_that_was_made_of_it() {
    let log = || core::tree::log().iter().map(codec::encode_record).collect();
    let records = lines("v1/log.jsonl", log);
    let fold = || {
        let mut fold: Option<Session> = None;
        for record in &records {
            let record = codec::decode_record(record).unwrap();
            match &mut fold {
                None => fold = Session::begin(&record),
                Some(fold) => fold.apply(&record, &mut Touched::default()),
            }
        }
        fold.unwrap()
    };
    let snapshot = lines("v2/snapshot.json", || vec![codec::encode_snapshot(&fold())]);
    assert_eq!(codec::decode_snapshot(&snapshot[0]).unwrap(), fold());
    // One of other rules is passed over: the log is folded anew.
    let before = lines("v1/snapshot.json", Vec::new);
    let passed = codec::decode_snapshot(&before[0]);
    assert!(matches!(passed, Err(codec::Error::Past(1))), "{passed:?}");
}

#[test]
fn what_a_later_release_wrote_is_not_guessed_at() {
    assert_eq!(VERSION, 1, "a new version has its own golden files");
    let later = br#"{"v":2,"r":{"time":1,"by":"user:ann","body":"released"}}"#;
    assert!(matches!(codec::decode_record(later), Err(codec::Error::Future(2))));
    let torn = br#"{"v":1,"r":{"time":1,"by":"user:ann","bo"#;
    assert!(matches!(codec::decode_record(torn), Err(codec::Error::Unreadable(_))));
}

const AGENT: &str = "
name: clerk
model: scripted
tools:
  - name: ask
    long_running: true
    returns: {status: pending}
script:
  - when: {user: '.'}
    call: {ask: {}}
  - when: {response: ask, matching: {status: pending}}
    say: I have asked.
  - when: {response: ask}
    say: 'They said: ${response.status}'
";

/// A server on a file.
async fn serve(file: &Path) -> (crate::support::Client, impl Future<Output = ()>) {
    let server = Builder::new().agent_file("clerk.yaml", AGENT).sqlite(file).build();
    let server = server.await.unwrap();
    let listener = countersign::app::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(server.serve_on(listener, async {
        let _ = stopped.await;
    }));
    let stop = async move {
        drop(stop);
        in_time("a stop", serving).await.unwrap().unwrap();
    };
    (crate::kill::connect(&address).await.unwrap(), stop)
}

fn message() -> pb::RunAsyncRequest {
    pb::RunAsyncRequest {
        state_delta: Some(crate::support::object(json!({"user:name": "Ann", "topic": "golden"}))),
        request_id: "message".into(),
        ..say("clerk", "", "go")
    }
}

/// A file with a session that is paused, and one that has ended.
async fn make(file: &Path) {
    let (mut client, stop) = serve(file).await;
    client.run(message()).await;
    let told = client.say("clerk", "go").await;
    let done = client.submit(submit(&told.end.held_calls[0], json!({"status": "no"}))).await;
    client.follow(&done.unwrap()).await;
    drop(client);
    stop.await;
}

#[tokio::test]
async fn a_database_of_schema_1_goes_on() {
    goes_on("sqlite/schema1.db").await;
}

#[tokio::test]
async fn a_database_of_schema_2_goes_on() {
    goes_on("sqlite/schema2.db").await;
}

#[tokio::test]
async fn a_database_of_schema_3_goes_on() {
    goes_on("sqlite/schema3.db").await;
}

async fn goes_on(made: &str) {
    let directory = TempDir::new().unwrap();
    let path = golden(made);
    if !path.exists() && std::env::var("COUNTERSIGN_GOLDEN").is_ok_and(|how| how == "write") {
        let made = directory.path().join("made.db");
        make(&made).await;
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::copy(&made, &path).unwrap();
    }
    let file = directory.path().join("store.db");
    std::fs::copy(&path, &file).unwrap();
    let (mut client, stop) = serve(&file).await;
    // The message that was carried out then is known again.
    let again = client.run(message()).await;
    assert_eq!((again.end.state(), again.begin.replayed), (State::Paused, true));
    let session = &again.begin.session_id;
    let told = [
        "user: go",
        "clerk > ask({})",
        r#"clerk < ask({"status":"pending"})"#,
        "clerk: I have asked.",
    ];
    assert_eq!(story(&client.events("clerk", session).await), told);
    let answer = submit(&again.end.held_calls[0], json!({"status": "yes"}));
    let done = client.submit(answer).await.unwrap();
    let rest = client.follow(&done).await;
    assert_eq!(story(&rest.events), ["clerk: They said: yes"]);
    let request = pb::ListSessionsRequest {
        app_name: "clerk".into(),
        user_id: crate::support::USER.into(),
        ..Default::default()
    };
    let listed = client.sessions.list_sessions(request).await.unwrap().into_inner().sessions;
    assert_eq!(listed.len(), 2);
    let request = pb::GetSessionRequest {
        app_name: "clerk".into(),
        user_id: crate::support::USER.into(),
        session_id: session.clone(),
    };
    let found = client.sessions.get_session(request).await.unwrap().into_inner();
    let state = plain(found.state.as_ref().unwrap());
    assert_eq!(state, json!({"topic": "golden", "user:name": "Ann"}));
    drop(client);
    stop.await;
}
