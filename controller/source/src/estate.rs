// SPDX-License-Identifier: Apache-2.0

//! State that parts of a source leave to those of the next source of the same cluster, within one process.
//!
//! A source starts again with another kubeconfig, and after a panic. Whoever reads its objects has them all the while.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_catalog::Kind;

/// A part of the source of a cluster: the guard of a kind, or `None` for what no guard knows.
type Part = (Arc<str>, Option<Kind>);

/// State of parts that have ended. It has nothing of a part that runs.
#[derive(Debug, Default)]
pub(crate) struct Estate(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of the last seat.
    last: u64,
    parts: BTreeMap<Part, Slot>,
}

#[derive(Debug)]
struct Slot {
    /// The number of the seat that counts.
    owner: u64,
    /// The part's state; `None` while the part runs.
    left: Option<Box<dyn Any + Send>>,
}

/// The right of a part that runs to leave something, until another one takes its place.
#[derive(Debug)]
pub(crate) struct Seat {
    part: Part,
    owner: u64,
}

impl Estate {
    /// Takes the place of a part, and what the one before has left.
    pub(crate) fn take<T: Any>(&self, cluster: &Arc<str>, kind: Option<Kind>) -> (Seat, Option<T>) {
        let part = (Arc::clone(cluster), kind);
        let mut state = self.lock();
        state.last += 1;
        let owner = state.last;
        let slot = Slot { owner, left: None };
        let before = state.parts.insert(part.clone(), slot);
        drop(state);
        let left = before.and_then(|slot| slot.left);
        let left = left.and_then(|left| left.downcast::<T>().ok());
        (Seat { part, owner }, left.map(|left| *left))
    }

    /// Leaves something to the next part. Returns whether it counts: not if another part has begun, or the cluster was
    /// forgotten.
    pub(crate) fn leave(&self, seat: &Seat, left: impl Any + Send) -> bool {
        let mut state = self.lock();
        let slot = state.parts.get_mut(&seat.part);
        let Some(slot) = slot.filter(|slot| slot.owner == seat.owner) else {
            return false;
        };
        slot.left = Some(Box::new(left));
        true
    }

    /// Forgets a cluster. Its parts that run leave nothing.
    pub(crate) fn forget(&self, cluster: &str) {
        self.lock().parts.retain(|(of, _), _| **of != *cluster);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_part_of_a_cluster_that_is_known_leaves_something() {
        let (estate, eu) = (Estate::default(), Arc::<str>::from("eu"));
        let take = || estate.take::<u32>(&eu, Some(Kind::Node));
        let (first, left) = take();
        assert_eq!(left, None);
        assert!(estate.leave(&first, 1_u32));
        let (second, left) = take();
        assert_eq!(left, Some(1));
        assert!(!estate.leave(&first, 2_u32), "late");
        assert_eq!(estate.take::<u32>(&eu, None).1, None, "another part");
        estate.forget("us");
        assert!(estate.leave(&second, 3_u32));
        let (_, left) = estate.take::<u64>(&eu, Some(Kind::Node));
        assert_eq!(left, None, "another type");
        let (third, _) = take();
        estate.forget("eu");
        assert!(!estate.leave(&third, 4_u32));
        assert_eq!(take().1, None);
    }
}
