//! Where a command writes, and how it fails.

use std::fmt::{self, Write as _};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use tonic::{Code, Status};

use super::exit;
use super::text::{clean, clean_line, quote};
use crate::client::{self, AddressInvalid, DEFAULT_ADDRESS};

/// The user where no other is given.
pub const DEFAULT_USER: &str = "local";

/// Why a command did not do its work.
#[derive(Debug)]
pub enum Failure {
    /// The server refused, or was not reached.
    Status(Box<Status>),
    /// The command does not say what to do.
    Usage(String),
    /// Anything else.
    Other(String),
    /// Standard output took no more.
    Output(io::Error),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Other(format!("the server sent what has no JSON: {error}"))
    }
}

impl From<AddressInvalid> for Failure {
    fn from(error: AddressInvalid) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Colours, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint(pub bool);

impl Paint {
    /// What matters less.
    pub fn dim(self, text: impl fmt::Display) -> String {
        self.paint("2", text)
    }

    /// What matters more.
    pub fn bold(self, text: impl fmt::Display) -> String {
        self.paint("1", text)
    }

    /// What waits for the reader.
    pub fn yellow(self, text: impl fmt::Display) -> String {
        self.paint("33", text)
    }

    /// What went wrong.
    pub fn red(self, text: impl fmt::Display) -> String {
        self.paint("31", text)
    }

    /// Who speaks.
    pub fn cyan(self, text: impl fmt::Display) -> String {
        self.paint("36", text)
    }

    fn paint(self, code: &str, text: impl fmt::Display) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// The process's own streams.
pub struct Streams {
    out: io::Stdout,
    err: io::Stderr,
}

impl Streams {
    /// Standard output and standard error.
    pub fn standard() -> Self {
        Self { out: io::stdout(), err: io::stderr() }
    }

    /// A console over them, as the terminal and the environment want it.
    pub fn console(&mut self, server: &str) -> Console<'_> {
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let (out, err) = (self.out.is_terminal(), self.err.is_terminal());
        let env = |name: &str| std::env::var(name).ok();
        let usual_server = env("COUNTERSIGN_SERVER").unwrap_or(DEFAULT_ADDRESS.to_owned());
        Console {
            out: &mut self.out,
            err: &mut self.err,
            paint: Paint(colour && out),
            paint_err: Paint(colour && err),
            live: out && err,
            server: server.to_owned(),
            usual_server,
            usual_user: env("COUNTERSIGN_USER").unwrap_or(DEFAULT_USER.to_owned()),
        }
    }
}

/// Where a command writes, and what it needs to know to tell the next command to type.
pub struct Console<'a> {
    /// For results.
    pub out: &'a mut dyn Write,
    /// For faults, notes and progress.
    pub err: &'a mut dyn Write,
    /// Colours on `out`.
    pub paint: Paint,
    /// Colours on `err`.
    pub paint_err: Paint,
    /// A person watches: words may come one by one, and waiting may be shown.
    pub live: bool,
    /// The server that this command speaks with.
    pub server: String,
    /// The server that a command without `--server` would speak with.
    pub usual_server: String,
    /// The user that a command without `--user` would be for.
    pub usual_user: String,
}

impl Console<'_> {
    /// ` --server ADDR` where a command to type needs it.
    pub fn server_flag(&self) -> String {
        if self.server == self.usual_server {
            return String::new();
        }
        format!(" --server {}", quote(&self.server))
    }

    /// ` --user USER` where a command to type needs it.
    pub fn user_flag(&self, user: &str) -> String {
        if user == self.usual_user {
            return String::new();
        }
        format!(" --user {}", quote(user))
    }

    /// A message as JSON, on a line of its own, at once.
    pub fn json(&mut self, message: &impl serde::Serialize) -> Result<(), Failure> {
        let json = crate::proto::to_json(message)?;
        writeln!(self.out, "{json}")?;
        self.out.flush()?;
        Ok(())
    }

    /// A dim remark that is no result.
    pub fn note(&mut self, text: &str) {
        // Nothing is left to tell it to.
        let _ = writeln!(self.err, "{}", self.paint_err.dim(text));
    }

    /// Says what went wrong and gives the exit code.
    pub fn finish(&mut self, done: Result<u8, Failure>) -> ExitCode {
        ExitCode::from(self.settle(done))
    }

    /// Says what went wrong, if anything, and gives the exit code as a number.
    pub fn settle(&mut self, done: Result<u8, Failure>) -> u8 {
        let done = done.and_then(|code| {
            self.out.flush()?;
            Ok(code)
        });
        let failure = match done {
            Ok(code) => return code,
            Err(failure) => failure,
        };
        let (text, code) = match failure {
            // Whoever read along has seen enough.
            Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return exit::DONE;
            }
            Failure::Output(error) => (format!("cannot write the output: {error}"), exit::FAILED),
            Failure::Usage(text) => (text, exit::USAGE),
            Failure::Other(text) => (text, exit::FAILED),
            Failure::Status(status) => (self.explain(&status), exit::FAILED),
        };
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        // Nothing is left to tell it to.
        let _ = writeln!(self.err, "{}", self.paint_err.red(first));
        if !rest.is_empty() {
            let _ = writeln!(self.err, "{rest}");
        }
        code
    }

    /// An error of an RPC, for people.
    fn explain(&self, status: &Status) -> String {
        if client::is_unreachable(status) {
            return format!(
                "no server answers at {}\nStart one with `countersign serve`, or name another with \
                 `--server ADDR`.",
                clean_line(&self.server)
            );
        }
        let Some(refusal) = client::refusal(status) else {
            let message = match status.message() {
                "" => "the server gave no reason",
                message => message,
            };
            return format!("{}: {}", code_name(status.code()), clean(message));
        };
        let mut text = format!("{}: {}", clean_line(&refusal.reason), clean(&refusal.message));
        if let Some(by) = refusal.metadata.get("answered_by") {
            write!(text, "\n  answered by: {}", clean_line(by)).expect("a String takes everything");
        }
        for violation in &refusal.violations {
            let (field, rule) = (clean_line(&violation.field), clean_line(&violation.rule));
            write!(text, "\n  {field}: {rule}").expect("a String takes everything");
        }
        if let Some(after) = refusal.retry_after {
            write!(text, "\n  try again in {} s", after.as_secs_f64().ceil())
                .expect("a String takes everything");
        }
        text
    }
}

/// The code's name in the documentation of gRPC.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for c in format!("{code:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_uppercase());
    }
    name
}
