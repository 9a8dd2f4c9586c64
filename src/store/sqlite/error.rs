//! What SQLite says, in the port's words.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;

use crate::store::Error;

/// Why a file could not be opened as a store. Each says which file, and what is in the way.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another server has it open.
    #[error("{} is in use by {}", path.display(), holder(*.by))]
    Held {
        /// The file.
        path: PathBuf,
        /// The process that holds it, if it left its number.
        by: Option<u32>,
    },
    /// The file, its lock or the directory must not be written.
    #[error("{} is read-only", path.display())]
    ReadOnly {
        /// What is read-only.
        path: PathBuf,
    },
    /// The file is no SQLite database.
    #[error("{} is not a database", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// The file is a database of another program.
    #[error("{} is a database of another program", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// A newer program wrote it.
    #[error("{} is of a newer version (schema {found}, known: {known})", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its schema.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// SQLite cannot keep a write-ahead log there.
    #[error("{} cannot have a write-ahead log; it must be on a local disk", path.display())]
    NoLog {
        /// The file.
        path: PathBuf,
    },
    /// A directory, or the lock file, cannot be made or read.
    #[error("cannot open {}", path.display())]
    Path {
        /// The directory or lock file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// SQLite cannot open the file.
    #[error("cannot open {}", path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: rusqlite::Error,
    },
    /// The writer's thread cannot be started.
    #[error("cannot start the store's writer")]
    Thread {
        /// Why not.
        source: io::Error,
    },
}

fn holder(by: Option<u32>) -> String {
    match by {
        Some(pid) => format!("another server, process {pid}"),
        None => "another server".into(),
    }
}

/// What stands in the way of one piece of work on a connection.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Said in the port's words already.
    Port(Error),
    /// SQLite's own.
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Port(error)
    }
}

impl Trouble {
    /// Whether the disk did not do what it was told.
    pub(super) fn is_io(&self) -> bool {
        matches!(self, Self::Sql(e) if e.sqlite_error_code() == Some(ErrorCode::SystemIoFailure))
    }
}

impl From<Trouble> for Error {
    /// For work that changed nothing or was rolled back.
    fn from(trouble: Trouble) -> Self {
        let error = match trouble {
            Trouble::Port(error) => return error,
            Trouble::Sql(error) => error,
        };
        let corrupt = match error.sqlite_error_code() {
            Some(code) => matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase),
            None => matches!(
                error,
                rusqlite::Error::FromSqlConversionFailure(..)
                    | rusqlite::Error::IntegralValueOutOfRange(..)
                    | rusqlite::Error::InvalidColumnType(..)
                    | rusqlite::Error::Utf8Error(..)
            ),
        };
        let what = error.to_string();
        if corrupt { Self::Corrupt(what) } else { Self::Unavailable(what) }
    }
}
