use crate::client::DEFAULT_ADDRESS;
use std::io::{self, Write};

use clap::{CommandFactory, Parser};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::console::Paint;
use super::*;

/// What a command wrote: standard output and standard error.
#[derive(Default)]
struct Written {
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Written {
    fn console(&mut self) -> Console<'_> {
        Console {
            out: &mut self.out,
            err: &mut self.err,
            paint: Paint(false),
            paint_err: Paint(false),
            live: false,
            server: DEFAULT_ADDRESS.to_owned(),
            usual_server: DEFAULT_ADDRESS.to_owned(),
            usual_user: "local".to_owned(),
        }
    }

    fn out(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    fn err(&self) -> &str {
        std::str::from_utf8(&self.err).unwrap()
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
    for line in [
        "countersign demo",
        "countersign schema",
        "countersign run app text --user u --session s --follow --stream --json --request-id r",
        "countersign --server a:1 submit c {} --name n --final --comment x --follow --json",
        "countersign submit c {} --progress --server a:1",
        "countersign watch s --app a --user u --after 3 --json",
        "countersign invocations --state paused,RUNNING --watch",
        "countersign events s --last 3",
        "countersign sessions --limit 0",
        "countersign agents --json",
        "countersign approvals list --tool pay --kind input,long-running --state denied --limit 0",
        "countersign approvals list --older-than 2h --newer-than 3d --newest-first --json",
        "countersign approvals show c --json --server a:1",
        "countersign approvals approve c --always tool --until 8h --reason r --comment c --follow",
        "countersign approvals approve c --edit {} --payload 1 --digest sha256:0 --json",
        "countersign approvals deny c --reason r --request-id r",
        "countersign approvals request-changes c less",
        "countersign approvals answer c {}",
        "countersign approvals run-again c --force",
        "countersign approvals assign c user:ann --for 2h",
        "countersign approvals assign c --release",
        "countersign approvals extend c 2030-01-01T00:00:00Z --comment later",
        "countersign approvals watch --assignee user:ann",
        "countersign approvals summary --app a",
        "countersign approvals standing --session s --revoked",
        "countersign approvals revoke s-1",
    ] {
        Cli::try_parse_from(line.split(' ')).unwrap();
    }
    for line in [
        "countersign",
        "countersign submit c {} --progress --final",
        "countersign watch s --after -1",
        "countersign invocations --state sleeping",
        "countersign approvals",
        "countersign approvals approve c --until 8h",
        "countersign approvals assign c",
        "countersign approvals assign c user:ann --release",
        "countersign approvals extend c later",
        "countersign approvals request-changes c",
    ] {
        assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn a_refusal_is_told_with_its_reason_and_fields() {
    let mut details = ErrorDetails::with_error_info("FIELD_INVALID", "countersign", []);
    details.add_bad_request_violation("user_id", "must not be\x1b[2J empty");
    details.add_bad_request_violation("app_name", "must be a name");
    details.set_retry_info(Some(std::time::Duration::from_millis(1500)));
    let status = Status::with_error_details(Code::InvalidArgument, "two fields are wrong", details);
    let mut written = Written::default();
    assert_eq!(written.console().settle(Err(status.into())), exit::FAILED);
    assert_eq!(
        written.err(),
        "FIELD_INVALID: two fields are wrong\n  user_id: must not be␛[2J empty\n  app_name: must be \
         a name\n  try again in 2 s\n"
    );

    let mut written = Written::default();
    let status = Status::deadline_exceeded("too slow");
    assert_eq!(written.console().settle(Err(status.into())), exit::FAILED);
    assert_eq!(written.err(), "DEADLINE_EXCEEDED: too slow\n");
}

#[test]
fn a_reader_who_leaves_is_no_fault() {
    let mut written = Written::default();
    let failure = Failure::Output(io::ErrorKind::BrokenPipe.into());
    assert_eq!(written.console().settle(Err(failure)), exit::DONE);
    assert_eq!(written.err(), "");
    let failure = Failure::Output(io::ErrorKind::StorageFull.into());
    assert_eq!(written.console().settle(Err(failure)), exit::FAILED);
    assert!(written.err().starts_with("cannot write the output: "));
}

#[test]
fn a_pause_tells_what_to_type() {
    use crate::proto::v1;
    let call = |name: &str, id: &str, kind: v1::call::Kind| v1::Call {
        function_call: Some(v1::FunctionCall { id: id.into(), name: name.into(), args: None }),
        kind: kind.into(),
        ..Default::default()
    };
    let mut slow = call("ask_for_approval", "adk-1", v1::call::Kind::LongRunning);
    slow.exact_args_json = r#"{"amount":200.10,"purpose":"it's\ntravel"}"#.to_owned();
    let mut gated = call("transfer", "adk-2", v1::call::Kind::Confirmation);
    gated.agent_path = "root/helper".to_owned();
    gated.expire_time = Some(crate::proto::wkt::Timestamp::from_micros(1_500_000));
    let odd = call("bad\nname", "$(reboot)", v1::call::Kind::UnknownOutcome);

    let mut written = Written::default();
    let mut console = written.console();
    console.server = "a.example:1".to_owned();
    let many = v1::call::Answers::Many.into();
    let many = v1::Call { answers: many, ..call("poll", "adk-3", v1::call::Kind::LongRunning) };
    let formed = call("form", "adk-4", v1::call::Kind::LongRunning);
    let calls = [slow, gated, odd, many, formed];
    follow::paused(&mut console, &calls, &["form".to_owned()]).unwrap();
    let told = r#"paused, waiting for an answer to:
  ask_for_approval({"amount":200.10,"purpose":"it's\ntravel"})  LONG_RUNNING
    countersign submit adk-1 '{"status":"approved"}' --server a.example:1
  transfer({})  CONFIRMATION, asked by root/helper, until 1970-01-01T00:00:01Z
    countersign submit adk-2 '{"confirmed":true}' --server a.example:1
  bad␊name({})  UNKNOWN_OUTCOME
    countersign submit '$(reboot)' '{"result":"..."}' --server a.example:1
  poll({})  LONG_RUNNING
    countersign submit adk-3 '{...}' --server a.example:1
  form({})  LONG_RUNNING
    countersign submit adk-4 '{...}' --server a.example:1
"#;
    assert_eq!(written.out(), told);
}

#[test]
fn results_are_complete_before_a_command_ends() {
    /// Takes nothing.
    struct Full;
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }
    let (mut written, mut full) = (Written::default(), Full);
    let mut console = Console { out: &mut full, ..written.console() };
    assert_eq!(console.settle(Ok(exit::DONE)), exit::FAILED);
}
