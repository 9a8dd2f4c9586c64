//! Files and directories for the server's own user: what is said in sessions is nobody else's. What
//! is there already keeps the modes that it has.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::path::Path;

/// Makes the directories that are missing.
pub(super) fn directories(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// How a file is opened for reading and writing, and made if that is asked for too.
pub(super) fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
