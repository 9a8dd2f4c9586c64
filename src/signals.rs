//! When to stop: SIGTERM and Ctrl-C. The only file that knows unix.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Ends at the first SIGTERM or SIGINT from now on. A second one ends the process at once.
pub fn stop() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            std::process::exit(1);
        });
    })
}
