//! The server under test: this program again, as a process of its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Failure;

/// The agents of the bench beside the sample: one whose prompts are bounded, one that pays, one
/// that tells all.
const AGENTS: &[(&str, &str)] = &[
    ("bounded.yaml", include_str!("bounded.yaml")),
    ("payer.yaml", include_str!("payer.yaml")),
    ("whole.yaml", include_str!("whole.yaml")),
];

/// How many words the agent `talker` says.
pub(super) const TALK_WORDS: usize = 20_000;

/// A server in a temporary directory; both go when it is dropped.
pub(super) struct Own {
    child: Child,
    address: String,
    directory: PathBuf,
}

/// Starts this program with these arguments and reads the address from its first line.
fn spawn(arguments: &[&str]) -> Result<(Child, String), Failure> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .env("COUNTERSIGN_LOG_FILTER", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut line = String::new();
    let out = child.stdout.take().ok_or("the server has no output")?;
    BufReader::new(out).read_line(&mut line)?;
    match line.trim().strip_prefix("countersign listening on ") {
        Some(address) => Ok((child, address.to_owned())),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            Err("the server did not start".into())
        }
    }
}

impl Own {
    /// A server on a new file.
    pub async fn start() -> Result<Self, Failure> {
        let name = format!("countersign-bench-{}", uuid::Uuid::new_v4());
        let directory = std::env::temp_dir().join(name);
        let agents = directory.join("agents");
        std::fs::create_dir_all(&agents)?;
        for (name, text) in AGENTS {
            std::fs::write(agents.join(name), text)?;
        }
        let words = "word ".repeat(TALK_WORDS);
        let talker = format!(
            "name: talker\nmodel: scripted\nscript:\n  - when: always\n    say: '{}'\n",
            words.trim_end()
        );
        std::fs::write(agents.join("talker.yaml"), talker)?;
        for (name, text) in crate::agent::file::samples() {
            std::fs::write(agents.join(name), text)?;
        }
        let (child, address) = Self::serve(&directory)?;
        Ok(Self { child, address, directory })
    }

    fn serve(directory: &Path) -> Result<(Child, String), Failure> {
        let store = format!("sqlite:{}", directory.join("store.db").display());
        let agents = directory.join("agents").display().to_string();
        spawn(&["serve", "--listen", "127.0.0.1:0", "--store", &store, "--agents", &agents])
    }

    /// Kills the server and starts another one on the same file. Gives the time to serving.
    pub fn restart(&mut self) -> Result<Duration, Failure> {
        self.child.kill()?;
        self.child.wait()?;
        let since = Instant::now();
        (self.child, self.address) = Self::serve(&self.directory)?;
        Ok(since.elapsed())
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A server of bare streams; it goes when it is dropped.
pub(super) struct Bare {
    child: Child,
    address: String,
}

impl Bare {
    pub fn start() -> Result<Self, Failure> {
        let (child, address) = spawn(&["bench", "--bare-server"])?;
        Ok(Self { child, address })
    }

    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
