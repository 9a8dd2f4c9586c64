//! The house rules that a machine can hold, file by file. ARCHITECTURE.md says why they are so.

use std::path::{Path, PathBuf};

/// Longest file of the program, in lines.
const MAX_LINES: usize = 500;

/// Longest file of tests, in lines.
const MAX_TEST_LINES: usize = 600;

/// Longest line, in characters.
const MAX_WIDTH: usize = 100;

/// A source file, its tests cut off.
struct Source {
    /// Its path, from the package's directory on, such as `src/session/state.rs`.
    path: String,
    text: String,
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn sources(directory: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    files(&root.join(directory), &mut found);
    found.sort();
    let source = |path: &PathBuf| Source {
        path: path.strip_prefix(root).unwrap().to_str().unwrap().replace('\\', "/"),
        text: std::fs::read_to_string(path).unwrap(),
    };
    let sources: Vec<Source> = found.iter().map(source).collect();
    assert!(!sources.is_empty());
    sources
}

impl Source {
    /// It is compiled for tests only.
    fn is_test(&self) -> bool {
        let parts: Vec<&str> = self.path.trim_end_matches(".rs").split('/').collect();
        let test = |part: &&str| *part == "tests" || part.ends_with("_tests");
        parts.iter().any(test) || self.path.starts_with("src/store/contract")
    }

    /// The code that is compiled without tests, line by line with its number: a module of tests
    /// stands at the end of its file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = if self.is_test() { "" } else { self.text.as_str() };
        let lines = (1..).zip(all.lines());
        let in_tests = |line: &str| line.trim() == "#[cfg(test)]";
        let next_is_inline = {
            let lines: Vec<&str> = all.lines().collect();
            move |number: usize| lines.get(number).is_some_and(|line| line.trim().ends_with('{'))
        };
        lines.take_while(move |(n, line)| !(in_tests(line) && next_is_inline(*n)))
    }

    /// The same without comments and documentation.
    fn statements(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code().filter(|(_, line)| !line.trim_start().starts_with("//"))
    }

    /// The room that it belongs to: the first name below `src`.
    fn room(&self) -> &str {
        let path = self.path.trim_start_matches("src/").trim_end_matches(".rs");
        path.split('/').next().unwrap()
    }

    /// The rooms of this crate that it names, with the line.
    fn names(&self) -> Vec<(usize, String)> {
        let mut named = Vec::new();
        for (number, line) in self.statements() {
            let own = ["crate::", "countersign::"];
            for (at, prefix) in own.iter().flat_map(|prefix| line.match_indices(prefix)) {
                if line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let rest = &line[at + prefix.len()..];
                let list = rest.strip_prefix('{').map(|list| list.split('}').next().unwrap());
                for name in list.unwrap_or(rest).split(',') {
                    let name = name.trim();
                    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
                    let name = &name[..end.unwrap_or(name.len())];
                    if !name.is_empty() {
                        named.push((number, name.to_owned()));
                    }
                    if list.is_none() {
                        break;
                    }
                }
            }
        }
        named
    }
}

fn assert_none(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

/// What each room may name of this crate, beside itself.
const MAY_NAME: &[(&str, &[&str])] = &[
    ("session", &[]),
    ("limits", &[]),
    ("signals", &[]),
    ("proto", &[]),
    ("agent", &["session"]),
    ("store", &["session"]),
    ("model", &["agent", "session"]),
    ("tool", &["agent", "session"]),
    ("runner", &["agent", "limits", "model", "session", "store", "tool"]),
    ("grpc", &["agent", "limits", "proto", "runner", "session", "store"]),
    ("client", &["proto"]),
    ("cli", &["agent", "bench", "client", "config", "proto"]),
    ("config", &["agent", "limits"]),
    (
        "app",
        &[
            "agent", "config", "grpc", "limits", "model", "proto", "runner", "session", "store",
            "tool",
        ],
    ),
    // It measures every room, and stands on all of them.
    ("bench", &["agent", "app", "client", "config", "proto", "session", "store"]),
    ("main", &["app", "agent", "bench", "cli", "client", "config"]),
    ("lib", &[]),
];

#[test]
fn imports_point_one_way() {
    let mut broken = Vec::new();
    for source in sources("src") {
        let Some((_, may)) = MAY_NAME.iter().find(|(room, _)| *room == source.room()) else {
            broken.push(format!("{}: no rule says what it may name", source.path));
            continue;
        };
        for (number, name) in source.names() {
            let known = MAY_NAME.iter().any(|(room, _)| *room == name);
            if known && name != source.room() && !may.contains(&name.as_str()) {
                broken.push(format!("{}:{number}: names `{name}`", source.path));
            }
        }
    }
    assert_none("a room names only what lies below it", broken);
}

#[test]
fn a_trade_has_one_home() {
    // `bench` measures bare SQLite and bare tonic beside ours.
    let wire = ["src/grpc/", "src/proto/", "src/client", "src/cli/", "src/app.rs", "src/bench/"];
    let homes: [(&[&str], &[&str]); 4] = [
        (&["rusqlite"], &["src/store/", "src/bench/"]),
        (&["tonic", "prost"], &wire),
        (&["clap"], &["src/cli/", "src/config/", "src/main.rs", "src/bench/"]),
        (&["memory::Memory", "sqlite::Sqlite"], &["src/store/", "src/app.rs", "src/bench/"]),
    ];
    let mut broken = Vec::new();
    for source in sources("src") {
        for (words, at_home) in homes {
            if at_home.iter().any(|home| source.path.starts_with(home)) {
                continue;
            }
            for (number, line) in source.statements() {
                for word in words {
                    let uses = [format!("{word}::"), format!("use {word}"), format!("<{word}>")];
                    if uses.iter().any(|one| names(line, one)) {
                        broken.push(format!("{}:{number}: {word}", source.path));
                    }
                }
            }
        }
    }
    assert_none("a library is named in its own room only", broken);
}

/// Whether a line has these words, not as the end of a longer name.
fn names(line: &str, words: &str) -> bool {
    line.match_indices(words)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':'))
}

#[test]
fn the_domain_is_pure() {
    let impure =
        ["async ", ".await", "tokio", "tonic", "SystemTime", "Instant", "std::fs", "std::net"];
    let mut broken = Vec::new();
    for source in sources("src").iter().filter(|source| source.room() == "session") {
        for (number, line) in source.statements() {
            for word in impure.iter().filter(|word| line.contains(**word)) {
                broken.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    assert_none("the domain knows no task, no clock and no I/O", broken);
}

#[test]
fn no_code_gives_up() {
    let mut broken = Vec::new();
    for source in sources("src") {
        for (number, line) in source.statements() {
            for word in [".unwrap()", "todo!(", "unimplemented!(", "dbg!("] {
                if line.contains(word) {
                    broken.push(format!("{}:{number}: {word}", source.path));
                }
            }
        }
    }
    assert_none("an error is handled, or `expect` states why there is none", broken);
}

#[test]
fn no_test_sleeps() {
    let mut broken = Vec::new();
    let words = ["thread::sleep(", "time::sleep(", "sleep_until(", " sleep("];
    for source in sources("tests").iter().chain(&sources("src")) {
        let is_test = source.is_test() || source.path.starts_with("tests/");
        // The simulation's time is virtual.
        let exempt = ["tests/all/tidy.rs", "tests/all/sim/world.rs"];
        if exempt.contains(&source.path.as_str()) || !is_test {
            continue;
        }
        for (number, line) in (1..).zip(source.text.lines()) {
            if words.iter().any(|word| line.contains(word)) {
                broken.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    assert_none("a test waits for what happens, not for time", broken);
}

#[test]
fn files_are_short_and_say_what_they_are() {
    let mut broken = Vec::new();
    for source in sources("src").iter().chain(&sources("tests")) {
        let lines = source.text.lines().count();
        let most = if source.path.starts_with("src/") { MAX_LINES } else { MAX_TEST_LINES };
        if lines > most {
            broken.push(format!("{}: {lines} lines, more than {most}", source.path));
        }
        if !source.text.starts_with("//!") && !source.is_test() {
            broken.push(format!("{}: does not open with `//!`", source.path));
        }
        for (number, line) in (1..).zip(source.text.lines()) {
            // A formatter breaks no text, and no attribute.
            let comment = line.trim_start().starts_with("//") && !line.contains("://");
            let code = !line.contains('"') && !line.trim_start().starts_with("#[");
            if line.chars().count() > MAX_WIDTH && (comment || code) {
                broken.push(format!("{}:{number}: wider than {MAX_WIDTH}", source.path));
            }
        }
    }
    assert_none("files are short, narrow, and open with what they hold", broken);
}
