//! That a store has failed for good, told to everyone who waits for it.

use tokio::sync::watch;

/// A failure that may come once; the first one stays.
#[derive(Debug)]
pub(super) struct Failure(watch::Sender<Option<String>>);

impl Failure {
    pub(super) fn new() -> Self {
        Self(watch::Sender::new(None))
    }

    /// What happened, if it has.
    pub(super) fn get(&self) -> Option<String> {
        self.0.borrow().clone()
    }

    pub(super) fn set(&self, what: String) {
        self.0.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(what);
            first
        });
    }

    /// Ends with what happened, when it happens.
    pub(super) async fn wait(&self) -> String {
        let mut failed = self.0.subscribe();
        let what = failed.wait_for(Option::is_some).await.ok().and_then(|what| what.clone());
        match what {
            Some(what) => what,
            None => std::future::pending().await,
        }
    }
}
