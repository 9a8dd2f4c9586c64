//! One server on a file.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::error::OpenError;
use super::private;

/// The lock on `<path>.lock`, held for as long as this lives, even if the process is killed.
///
/// It is not on the database itself: closing any handle of a file releases all POSIX locks that the
/// process has on it, and with them SQLite's own.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock and leaves the process's number in the file, for who is refused to name.
    pub(super) fn take(database: &Path) -> Result<Self, OpenError> {
        let mut path = database.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                OpenError::ReadOnly { path: path.clone() }
            }
            _ => OpenError::Path { path: path.clone(), source },
        };
        let made = private::options().create(true).truncate(false).open(&path);
        let mut file = made.map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::Held { path: database.into(), by: holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        sign(&mut file).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// The number is a hint for people and trusted by nothing.
fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}
