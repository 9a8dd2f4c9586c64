//! The TOML file with settings.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{KEYS, LIMITS, Partial, near};

/// Largest file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a file; faults are noted with its name, line and column.
pub(super) fn read(path: &Path, faults: &mut Vec<String>) -> Partial {
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text));
    let message = match read {
        Err(error) => format!("cannot be read: {error}"),
        Ok(bytes) if bytes as u64 > MAX_BYTES => format!("is larger than {MAX_BYTES} bytes"),
        Ok(_) => return read_text(path, &text, faults),
    };
    faults.push(format!("{}: {message}", path.display()));
    Partial::default()
}

/// Reads the text of a file.
pub(super) fn read_text(path: &Path, text: &str, faults: &mut Vec<String>) -> Partial {
    let mut noted = Vec::new();
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        noted.push((error.span().unwrap_or(0..0), error.message().to_owned()));
    }
    let mut partial = Partial::default();
    let base = path.parent().unwrap_or(Path::new(""));
    // What could be saved of a broken file would only make up faults.
    let table = if noted.is_empty() { Some(table.into_inner()) } else { None };
    for (key, value) in table.iter().flatten() {
        let name = key.get_ref().as_ref();
        if name == "limits" {
            read_limits(value, &mut partial, &mut noted);
        } else if !KEYS.contains(&name) {
            let hint = near::hint(name, KEYS.iter().copied().chain(["limits"]));
            noted.push((key.span(), format!("there is no setting `{name}`{hint}")));
        } else if let DeValue::String(text) = value.get_ref() {
            if let Err(message) = partial.set(name, text, base) {
                noted.push((value.span(), format!("`{name}` {message}")));
            }
        } else {
            noted.push((value.span(), format!("`{name}` must be a text in quotes")));
        }
    }
    noted.sort_by_key(|(span, _)| span.start);
    for (span, message) in noted {
        let (line, column) = place(text, span);
        faults.push(format!("{}:{line}:{column}: {message}", path.display()));
    }
    partial
}

fn read_limits(
    value: &Spanned<DeValue<'_>>,
    partial: &mut Partial,
    noted: &mut Vec<(Range<usize>, String)>,
) {
    let DeValue::Table(table) = value.get_ref() else {
        noted.push((value.span(), "`limits` must be a table".to_owned()));
        return;
    };
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let text = match value.get_ref() {
            DeValue::String(text) => text.as_ref(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
            _ => {
                let message = format!("`{name}` must be a whole number, or a text such as \"15s\"");
                noted.push((value.span(), message));
                continue;
            }
        };
        if let Err(message) = partial.set_limit(name, text) {
            let known = LIMITS.iter().any(|limit| limit.name == name);
            noted.push((if known { value.span() } else { key.span() }, message));
        }
    }
}

/// Line and column, from 1, of the beginning of a span.
fn place(text: &str, span: Range<usize>) -> (usize, usize) {
    let before = text.get(..span.start).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
