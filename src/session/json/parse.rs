//! Reading JSON text strictly. Written directly: `serde_json` takes repeated keys, and shows exact
//! numbers to a visitor as objects with a private key, which a text can have as well.

use serde_json::{Map, Number, Value};

use super::decimal::{self, Decimal};
use super::{DEEPEST, Error, Fault, Place, RESERVED};

/// Reads one JSON value that nests at most `max_depth` levels (never more than 128). Refused are:
/// repeated keys at any level, numbers of more than 400 digits, lone surrogates, and anything
/// behind the value. Numbers keep the digits that they are written with.
pub fn parse(text: &str, max_depth: usize) -> Result<Value, Error> {
    let limit = max_depth.min(DEEPEST);
    let mut parser = Parser { text, bytes: text.as_bytes(), at: 0, limit };
    let value = parser.document();
    value.map_err(|fault| Error { fault, place: Some(place(text, parser.at)) })
}

/// Line and column of a byte of a text.
fn place(text: &str, at: usize) -> Place {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    // Bytes that continue a character are no columns of their own.
    let column = before[line_start..].iter().filter(|b| (**b & 0xc0) != 0x80).count() + 1;
    Place { line: before.iter().filter(|b| **b == b'\n').count() + 1, column }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    /// The next byte to read; after a fault, where it is.
    at: usize,
    limit: usize,
}

type Read<T> = Result<T, Fault>;

impl Parser<'_> {
    fn document(&mut self) -> Read<Value> {
        self.space();
        let value = self.value(0)?;
        self.space();
        if self.at < self.bytes.len() {
            return Err(Fault::Syntax("nothing may stand behind the JSON value"));
        }
        Ok(value)
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    fn value(&mut self, depth: usize) -> Read<Value> {
        match self.peek() {
            Some(b'{' | b'[') if depth == self.limit => Err(Fault::TooDeep(self.limit)),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(b'"') => self.string().map(Value::String),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Value::Bool(true)),
            Some(b'f') => self.word("false", Value::Bool(false)),
            Some(b'n') => self.word("null", Value::Null),
            Some(_) => Err(Fault::Syntax("a JSON value must stand here")),
            None => Err(Fault::Syntax("the JSON ends too early")),
        }
    }

    fn word(&mut self, word: &str, value: Value) -> Read<Value> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(Fault::Syntax("a JSON value must stand here"));
        }
        self.at += word.len();
        Ok(value)
    }

    fn number(&mut self) -> Read<Value> {
        let wrong = Fault::Syntax("this is no JSON number");
        let end = decimal::end(self.bytes, self.at).ok_or(wrong)?;
        let text = &self.text[self.at..end];
        if Decimal::read(text).ok_or(wrong)?.too_long() {
            return Err(Fault::NumberTooLong);
        }
        let number: Number = text.parse().map_err(|_| wrong)?;
        self.at = end;
        Ok(Value::Number(number))
    }

    fn array(&mut self, depth: usize) -> Read<Value> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.take(b']') {
            return Ok(Value::Array(items));
        }
        loop {
            self.space();
            items.push(self.value(depth)?);
            self.space();
            if self.take(b']') {
                return Ok(Value::Array(items));
            }
            self.comma("`,` or `]` must stand here")?;
        }
    }

    fn object(&mut self, depth: usize) -> Read<Value> {
        self.at += 1;
        let mut object = Map::new();
        self.space();
        if self.take(b'}') {
            return Ok(Value::Object(object));
        }
        loop {
            self.space();
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(Fault::Syntax("a key in double quotes must stand here"));
            }
            let key = self.string()?;
            let fault = match () {
                () if key == RESERVED => Some(Fault::ReservedKey),
                () if object.contains_key(&key) => Some(Fault::RepeatedKey),
                () => None,
            };
            if let Some(fault) = fault {
                self.at = start;
                return Err(fault);
            }
            self.space();
            if !self.take(b':') {
                return Err(Fault::Syntax("`:` must stand here"));
            }
            self.space();
            let value = self.value(depth)?;
            object.insert(key, value);
            self.space();
            if self.take(b'}') {
                return Ok(Value::Object(object));
            }
            self.comma("`,` or `}` must stand here")?;
        }
    }

    fn comma(&mut self, otherwise: &'static str) -> Read<()> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(Fault::Syntax(otherwise)),
            None => Err(Fault::Syntax("the JSON ends too early")),
        }
    }

    fn string(&mut self) -> Read<String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.bytes[self.at..];
            let plain = rest.iter().take_while(|b| **b >= 0x20 && !matches!(b, b'"' | b'\\'));
            let end = self.at + plain.count();
            // Both ends stand beside ASCII bytes, so they are ends of characters.
            out.push_str(&self.text[self.at..end]);
            self.at = end;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                Some(_) => return Err(Fault::Syntax("control characters must be escaped")),
                None => return Err(Fault::Syntax("a string is not closed")),
            }
        }
    }

    fn escape(&mut self) -> Read<char> {
        let plain = match self.bytes.get(self.at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\x08',
            Some(b'f') => '\x0c',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return Err(Fault::Syntax("there is no such escape in JSON")),
        };
        self.at += 2;
        Ok(plain)
    }

    fn unicode(&mut self) -> Read<char> {
        const LONE: Fault = Fault::Syntax("half a surrogate pair stands alone");
        let first = self.hex(self.at)?;
        let (code, length) = match first {
            0xd800..=0xdbff => {
                let second = self.hex(self.at + 6).map_err(|_| LONE)?;
                if !(0xdc00..=0xdfff).contains(&second) {
                    return Err(LONE);
                }
                (0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00), 12)
            }
            _ => (first, 6),
        };
        let char = char::from_u32(code).ok_or(LONE)?;
        self.at += length;
        Ok(char)
    }

    /// The code unit of the `\uXXXX` that begins at `at`.
    fn hex(&self, at: usize) -> Read<u32> {
        let wrong = Fault::Syntax("four hex digits must follow `\\u`");
        let escape = self.bytes.get(at..at + 6).ok_or(wrong)?;
        if !escape.starts_with(b"\\u") {
            return Err(wrong);
        }
        escape[2..].iter().try_fold(0, |code, digit| {
            let digit = char::from(*digit).to_digit(16).ok_or(wrong)?;
            Ok(code * 16 + digit)
        })
    }
}
