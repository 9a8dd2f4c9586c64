//! Pages of lists and cursors of watches: opaque texts, bound to the filter that they were made
//! for.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use prost::Message;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::convert::Faults;
use crate::runner::Runner;
use crate::session::refusal::{Reason, Refusal};

/// Entries of a page unless the caller says otherwise.
const DEFAULT_ENTRIES: usize = 100;

/// Longest token that is looked at, in bytes.
const MAX_TOKEN_BYTES: usize = 4096;

#[derive(Serialize, Deserialize)]
struct Token<T> {
    /// Tells the filter that it was made for.
    f: String,
    /// Where to go on.
    at: T,
}

/// What tells one filter from another.
pub(crate) fn fingerprint(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    URL_SAFE_NO_PAD.encode(&hash.finalize()[..9])
}

/// A token for where to go on.
pub(crate) fn token(filter: &str, at: impl Serialize) -> String {
    let token = Token { f: filter.to_owned(), at };
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).expect("tokens have text keys only"))
}

/// Where to go on; none for an empty token.
pub(crate) fn read_token<T: DeserializeOwned>(
    field: &str,
    text: &str,
    filter: &str,
) -> Result<Option<T>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let bytes = (text.len() <= MAX_TOKEN_BYTES).then(|| URL_SAFE_NO_PAD.decode(text).ok());
    let token = bytes.flatten().and_then(|bytes| serde_json::from_slice::<Token<T>>(&bytes).ok());
    match token {
        Some(token) if token.f == filter => Ok(Some(token.at)),
        Some(_) => Err(invalid(field, "was made for another filter")),
        None => Err(invalid(field, "is none that this service made")),
    }
}

/// The feed number that a watch goes on behind. None is the beginning, and so is a cursor of the
/// first list: nothing of it may be missing.
pub(crate) fn read_cursor(
    runner: &Runner,
    text: &str,
    filter: &str,
) -> Result<Option<u64>, Refusal> {
    let after: Option<(u64, u64)> = read_token("cursor", text, filter)?;
    // What was removed is known for so long.
    let keep = u64::try_from(runner.limits().remember_requests.as_micros());
    let oldest = runner.now().saturating_sub(keep.unwrap_or(u64::MAX));
    match after {
        Some((feed, time)) if feed > 0 && time < oldest => Err(crate::runner::expired()),
        after => Ok(after.map(|(feed, _)| feed).filter(|feed| *feed > 0)),
    }
}

/// Writes the feed numbers of a watch for its caller.
pub(crate) fn cursor(runner: &Runner, filter: String) -> impl Fn(u64) -> String + use<> {
    let runner = runner.clone();
    move |feed| token(&filter, (feed, runner.now()))
}

fn invalid(field: &str, rule: &str) -> Refusal {
    Refusal::new(Reason::CursorInvalid, format!("{field} {rule}")).with("field", field)
}

/// How many entries a page is to have (AIP-158: more than the most is the most).
pub(crate) fn size(page_size: i32, most: usize, faults: &mut Faults) -> usize {
    match usize::try_from(page_size) {
        Ok(0) => DEFAULT_ENTRIES.min(most),
        Ok(size) => size.min(most),
        Err(_) => {
            faults.add("page_size", "must not be negative");
            0
        }
    }
}

/// How many of these messages fit into a page of so many bytes: one at least.
pub(crate) fn fitting<M: Message>(messages: &[M], most_bytes: usize) -> usize {
    let mut bytes = 0;
    let fits = |message: &&M| {
        bytes += message.encoded_len() + 8;
        bytes <= most_bytes
    };
    messages.iter().take_while(fits).count().max(1).min(messages.len())
}
