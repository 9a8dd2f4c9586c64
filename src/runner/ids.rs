//! Where new ids come from: nobody can guess them, and nobody makes one twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// A source of ids; a clone is the same source.
#[derive(Debug, Clone, Default)]
pub struct Ids(Option<Arc<AtomicU64>>);

impl Ids {
    /// Random ids, as they are to be.
    pub fn random() -> Self {
        Self(None)
    }

    /// Ids that follow from a seed and from how many were made before: for tests that repeat a run
    /// exactly. Anybody can guess them.
    pub fn seeded(seed: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(mixed(seed)))))
    }

    /// An id that tells nothing.
    pub(super) fn uuid(&self) -> Uuid {
        match self.next() {
            Some(next) => Uuid::from_u64_pair(mixed(next), next),
            None => Uuid::new_v4(),
        }
    }

    /// An id that sorts behind those that were made before.
    pub(super) fn text(&self) -> String {
        let id = self.next().map_or_else(Uuid::now_v7, |next| Uuid::from_u64_pair(next, 0));
        id.to_string()
    }

    /// Makes a draft's ids.
    pub(super) fn mint(&self) -> impl FnMut() -> String + Send + use<'_> {
        || self.text()
    }

    fn next(&self) -> Option<u64> {
        self.0.as_ref().map(|last| last.fetch_add(1, Ordering::Relaxed))
    }
}

/// One number for another, with nothing to see of their order (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_ids_and_each_once() {
        let make = |ids: &Ids| [ids.uuid().to_string(), ids.text(), ids.clone().text()];
        let (one, same) = (Ids::seeded(7), Ids::seeded(7));
        let made = make(&one);
        assert_eq!(made, make(&same));
        assert!(made[1] < made[2] && make(&one).iter().all(|id| !made.contains(id)));
        assert_ne!(make(&Ids::seeded(8)), made);
        assert_ne!(make(&Ids::random()), make(&Ids::random()));
    }
}
