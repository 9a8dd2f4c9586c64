//! The agent file: YAML that declares an agent, its tools and, for the scripted model, its rules.
//!
//! A file is read into a tree that knows the place of everything, and the tree is walked once. The
//! walk goes on after a fault, so that one attempt tells all faults of all files; agents come out
//! only if there are none. What the files of a directory say is the only input: nothing is
//! included, fetched or taken from the environment.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::script::Script;
use super::{Agents, Declaration};
use crate::session::json::Place;

mod approvals;
mod body;
mod keywords;
pub(crate) mod near;
pub(crate) mod read;
mod root;
mod rules;
#[cfg(test)]
mod tests;
mod tool;
mod yaml;

/// A fault of an agent file, with its place. A fault of a whole file or directory has line 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The file, as it was named to us.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.display();
        match self.line {
            0 => write!(f, "{file}: {}", self.message),
            line => write!(f, "{file}:{line}:{}: {}", self.column, self.message),
        }
    }
}

/// Reads agent files, each given as its name and its text. A tool without `returns` runs the
/// function of its name among `registered`.
pub fn load(files: &[(PathBuf, String)], registered: &[Declaration]) -> Result<Agents, Vec<Fault>> {
    let mut agents = Agents::default();
    let mut all = Vec::new();
    let mut names: HashMap<String, (&Path, usize)> = HashMap::new();
    for (file, text) in files {
        let mut faults = Faults::new(file.clone());
        let node = yaml::read(text, &mut faults);
        if let Some((agent, at)) = node.and_then(|node| root::read(&node, registered, &mut faults))
        {
            let name = agent.name.to_string();
            if let Some((file, line)) = names.get(&name) {
                let file = file.display();
                faults.add(at, format!("there is an agent `{name}` already, in {file}:{line}"));
            } else {
                names.insert(name, (file, at.line));
                agents.insert(agent);
            }
        }
        all.append(&mut faults.into_list());
    }
    if all.is_empty() { Ok(agents) } else { Err(all) }
}

/// Reads the rules of an agent that has these tools: the list that stands under `script` in an
/// agent file. `name` is what faults call the text.
pub fn script(
    name: impl Into<PathBuf>,
    text: &str,
    tools: &[Declaration],
) -> Result<Script, Vec<Fault>> {
    let mut faults = Faults::new(name.into());
    let script = yaml::read(text, &mut faults).map(|node| rules::read(&node, tools, &mut faults));
    let faults = faults.into_list();
    script.filter(|_| faults.is_empty()).ok_or(faults)
}

/// Reads all `*.yaml` and `*.yml` files of a directory, by name; those in directories below are
/// not looked at. A directory without such a file is a fault.
pub fn load_dir(dir: &Path, registered: &[Declaration]) -> Result<Agents, Vec<Fault>> {
    let whole =
        |file: &Path, message: String| Fault { file: file.to_owned(), line: 0, column: 0, message };
    let unreadable = |e: std::io::Error| vec![whole(dir, format!("cannot be read: {e}"))];
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|ext| ext == "yaml" || ext == "yml") && !path.is_dir() {
            paths.push(path);
        }
    }
    if paths.is_empty() {
        return Err(vec![whole(dir, "there is no agent file (*.yaml) in it".to_owned())]);
    }
    paths.sort();
    let (mut files, mut faults) = (Vec::new(), Vec::new());
    for path in paths {
        match read_bounded(&path) {
            Ok(text) => files.push((path, text)),
            Err(error) => faults.push(whole(&path, format!("cannot be read: {error}"))),
        }
    }
    match load(&files, registered) {
        Ok(agents) if faults.is_empty() => Ok(agents),
        Ok(_) => Err(faults),
        Err(mut more) => {
            faults.append(&mut more);
            Err(faults)
        }
    }
}

/// The sample agent files, by file name: what `countersign demo` runs, and what a new user copies.
pub fn samples() -> &'static [(&'static str, &'static str)] {
    &[("reimbursement_agent.yaml", include_str!("samples/reimbursement_agent.yaml"))]
}

/// The JSON schema of an agent file, for editors. It says less than [`load`] checks.
pub fn schema() -> Value {
    serde_json::from_str(include_str!("file/schema.json")).expect("our schema is JSON")
}

/// One byte more than a file may have is enough to refuse it.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let most = yaml::MAX_BYTES as u64 + 1;
    std::fs::File::open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// The faults of one file, as they are found.
#[derive(Debug)]
struct Faults {
    file: PathBuf,
    list: Vec<Fault>,
}

impl Faults {
    fn new(file: PathBuf) -> Self {
        Self { file, list: Vec::new() }
    }

    fn add(&mut self, at: Place, message: impl Into<String>) {
        let file = self.file.clone();
        self.list.push(Fault { file, line: at.line, column: at.column, message: message.into() });
    }

    /// The faults by place.
    fn into_list(mut self) -> Vec<Fault> {
        self.list.sort_by_key(|fault| (fault.line, fault.column));
        self.list
    }
}
