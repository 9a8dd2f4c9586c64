//! The time that deadlines and timestamps are measured by.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A store's clock: the system's, or one that stands until it is set. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that shows this time, in microseconds since 1970, until it is set or advanced.
    pub fn manual(micros: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(micros))))
    }

    /// Microseconds since 1970.
    pub fn now(&self) -> u64 {
        match &self.0 {
            Some(time) => time.load(Ordering::SeqCst),
            None => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                micros(since)
            }
        }
    }

    /// Sets a manual clock, in microseconds since 1970; leaves the system's alone.
    pub fn set(&self, micros: u64) {
        if let Some(time) = &self.0 {
            time.store(micros, Ordering::SeqCst);
        }
    }

    /// Advances a manual clock; leaves the system's alone.
    pub fn advance(&self, by: Duration) {
        if let Some(time) = &self.0 {
            time.fetch_add(micros(by), Ordering::SeqCst);
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_stands_until_it_is_moved() {
        let clock = Clock::manual(5);
        let same = clock.clone();
        clock.advance(Duration::from_secs(1));
        assert_eq!(same.now(), 1_000_005);
        same.set(7);
        assert_eq!(clock.now(), 7);
        assert!(Clock::system().now() > 1_000_000_000_000_000);
    }
}
