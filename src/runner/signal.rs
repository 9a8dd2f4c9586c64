//! A number that changes, and whoever waits for that. It is as tokio's `watch`, except that those
//! who wait are woken in the order in which they began to: `watch` draws lots, and a run that does
//! so cannot be repeated exactly.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::lock;

/// Changes the number.
#[derive(Default)]
pub struct Sender(Arc<Shared>);

/// Waits for a change; it has seen the number as it was when it was made.
pub struct Receiver {
    shared: Arc<Shared>,
    /// The change that was seen last.
    seen: u64,
}

#[derive(Default)]
struct Shared {
    number: Mutex<Number>,
    changed: Notify,
}

#[derive(Default, Clone, Copy)]
struct Number {
    value: u64,
    changes: u64,
}

impl Sender {
    /// The number.
    pub fn get(&self) -> u64 {
        lock(&self.0.number).value
    }

    /// Changes the number, if only to wake whoever waits.
    pub fn send_modify(&self, change: impl FnOnce(&mut u64)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Changes the number; false: nobody need be woken.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut u64) -> bool) {
        let mut number = lock(&self.0.number);
        let changed = change(&mut number.value);
        number.changes += u64::from(changed);
        drop(number);
        if changed {
            self.0.changed.notify_waiters();
        }
    }

    /// Waits for what changes from now on.
    pub fn subscribe(&self) -> Receiver {
        let shared = self.0.clone();
        let seen = lock(&shared.number).changes;
        Receiver { shared, seen }
    }
}

impl Receiver {
    /// What has changed so far need not be told.
    pub fn mark_unchanged(&mut self) {
        self.seen = lock(&self.shared.number).changes;
    }

    /// Whether it changed since it was seen.
    #[cfg(test)]
    pub fn has_changed(&self) -> bool {
        self.seen != lock(&self.shared.number).changes
    }

    /// Until it changed since it was seen. It can be dropped at any await.
    pub async fn changed(&mut self) {
        loop {
            // It is woken by what changes from here on, asked or not.
            let woken = self.shared.changed.notified();
            let changes = lock(&self.shared.number).changes;
            if self.seen != changes {
                self.seen = changes;
                return;
            }
            woken.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn whoever_waits_is_woken_in_order_and_misses_nothing() {
        let sender = Sender::default();
        sender.send_modify(|number| *number = 5);
        let mut late = sender.subscribe();
        assert!(!late.has_changed() && late.changed().now_or_never().is_none());
        sender.send_if_modified(|_| false);
        assert!(!late.has_changed());
        sender.send_modify(|_| ());
        assert!(late.has_changed() && late.changed().now_or_never().is_some());
        assert!(late.changed().now_or_never().is_none());
        let woken = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..20)
            .map(|n| {
                let (mut receiver, woken) = (sender.subscribe(), woken.clone());
                tokio::spawn(async move {
                    receiver.changed().await;
                    lock(&woken).push(n);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        sender.send_modify(|number| *number += 1);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*lock(&woken), (0..20).collect::<Vec<_>>());
        assert_eq!(sender.get(), 6);
    }
}
