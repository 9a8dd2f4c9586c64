//! The stored form of records and snapshots: JSON with a version, readable with any tool.
//!
//! Every form that was ever written can be read for ever (`tests/golden` holds one of each). A form
//! of a later version is not guessed at: the session is refused here.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::record::Record;
use super::state::Session;

/// The version of records that is written.
pub const VERSION: u32 = 1;

/// The version of snapshots. What a fold holds changes with what decisions need, so only the same
/// version is read: a snapshot is never needed for truth.
pub const SNAPSHOT_VERSION: u32 = 2;

/// Why stored bytes are no record.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A later release wrote it.
    #[error("written by a later release: version {0}, this one reads up to {VERSION}")]
    Future(u32),
    /// An earlier release folded it, by other rules.
    #[error("folded by an earlier release: version {0}, this one folds to {SNAPSHOT_VERSION}")]
    Past(u32),
    /// It is not what anyone wrote.
    #[error("unreadable: {0}")]
    Unreadable(#[from] serde_json::Error),
}

#[derive(Serialize)]
struct Stored<'a, T> {
    v: u32,
    #[serde(rename = "r")]
    value: &'a T,
}

#[derive(Deserialize)]
struct Version {
    v: u32,
}

#[derive(Deserialize)]
struct Read<T> {
    #[serde(rename = "r")]
    value: T,
}

fn encode<T: Serialize>(v: u32, value: &T) -> Vec<u8> {
    serde_json::to_vec(&Stored { v, value }).expect("records have text keys only")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match serde_json::from_slice::<Read<T>>(bytes) {
        Ok(read) if bytes.starts_with(b"{\"v\":1,") => Ok(read.value),
        parsed => {
            let Version { v } = serde_json::from_slice(bytes)?;
            if v > VERSION {
                return Err(Error::Future(v));
            }
            Ok(parsed?.value)
        }
    }
}

/// The stored form of a record.
pub fn encode_record(record: &Record) -> Vec<u8> {
    encode(VERSION, record)
}

/// The record in its stored form.
pub fn decode_record(bytes: &[u8]) -> Result<Record, Error> {
    decode(bytes)
}

/// The stored form of a session's fold.
pub fn encode_snapshot(session: &Session) -> Vec<u8> {
    encode(SNAPSHOT_VERSION, session)
}

/// The fold in its stored form.
pub fn decode_snapshot(bytes: &[u8]) -> Result<Session, Error> {
    let Version { v } = serde_json::from_slice(bytes)?;
    match v {
        SNAPSHOT_VERSION => Ok(serde_json::from_slice::<Read<Session>>(bytes)?.value),
        v if v > SNAPSHOT_VERSION => Err(Error::Future(v)),
        v => Err(Error::Past(v)),
    }
}
