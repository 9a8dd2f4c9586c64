//! Text from a server, made fit for a terminal.

use std::fmt::Write as _;

use serde::Serialize;

use crate::proto;

/// The text with everything a terminal might obey made visible; line feeds and tabs stay.
///
/// That is: control characters (escape sequences begin with one), marks that turn the direction of
/// writing, and characters that cannot be seen at all.
pub fn clean(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut clean, c| {
        match c {
            '\n' | '\t' => clean.push(c),
            _ => push(&mut clean, c),
        }
        clean
    })
}

/// The same for one line: line feeds and tabs are made visible too.
pub fn clean_line(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut clean, c| {
        push(&mut clean, c);
        clean
    })
}

fn push(clean: &mut String, c: char) {
    match c {
        // Unicode has a picture of each.
        '\0'..='\x1f' => clean.push(char::from_u32(0x2400 + u32::from(c)).unwrap_or('?')),
        '\x7f' => clean.push('\u{2421}'),
        '\u{80}'..='\u{9f}'
        | '\u{ad}'
        | '\u{61c}'
        | '\u{180e}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => {
            write!(clean, "<U+{:04X}>", u32::from(c)).expect("a String takes everything");
        }
        _ => clean.push(c),
    }
}

/// The proto3 JSON of something from the server as one clean line.
pub fn json(message: &impl Serialize) -> String {
    match proto::to_json(message) {
        Ok(json) => clean_line(&json),
        Err(error) => format!("<no JSON: {}>", clean_line(&error.to_string())),
    }
}

/// A word as it is typed into a shell.
pub fn quote(word: &str) -> String {
    let word = clean_line(word);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_for_the_terminal_is_left() {
        let text = "a\x1b[31mred\x1b]0;title\x07\r\u{9b}2J\u{202e}b\x7f\0";
        assert_eq!(clean(text), "a␛[31mred␛]0;title␇␍<U+009B>2J<U+202E>b␡␀");
        assert_eq!(clean("a\n\tb"), "a\n\tb");
        assert_eq!(clean_line("a\n\tb"), "a␊␉b");
        assert_eq!(clean("Größe 5 € 承認 👍"), "Größe 5 € 承認 👍");
    }

    #[test]
    fn a_word_survives_the_shell() {
        assert_eq!(quote("adk-1"), "adk-1");
        assert_eq!(quote(""), "''");
        assert_eq!(quote(r#"{"a":"it's"}"#), r#"'{"a":"it'\''s"}'"#);
        assert_eq!(quote("$(reboot)"), "'$(reboot)'");
    }
}
