// SPDX-License-Identifier: Apache-2.0

//! Keys in order of change.

use std::collections::VecDeque;

use portolan_model::RecordKey;

/// The position of a change: its revision, and its number in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct At {
    pub(super) revision: u64,
    number: u64,
}

/// Keys in order of their last change, the oldest first.
///
/// A queue and not a tree: each node has several of these, most of them short, and one node of a
/// tree takes more memory than all entries of a short queue.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The entries; a removed key leaves a gap (`None`).
    entries: VecDeque<(At, Option<RecordKey>)>,
    gaps: usize,
}

impl At {
    /// The position before the first change.
    pub(super) const START: Self = Self {
        revision: 0,
        number: 0,
    };

    /// The position of the next change.
    pub(super) fn next(self, revision: u64) -> Self {
        Self {
            revision,
            number: self.number + 1,
        }
    }
}

impl Order {
    /// Appends a key; `at` is later than all positions in the queue.
    pub(super) fn push(&mut self, at: At, key: RecordKey) {
        let entries = &mut self.entries;
        if entries.len() == entries.capacity() && 4 * self.gaps > entries.len() {
            entries.retain(|(_, key)| key.is_some());
            self.gaps = 0;
        }
        entries.push_back((at, Some(key)));
    }

    /// Removes the key at a position, if there is one.
    pub(super) fn remove(&mut self, at: At) {
        let found = self.entries.binary_search_by_key(&at, |(at, _)| *at);
        if let Ok(index) = found
            && self.entries[index].1.take().is_some()
        {
            self.gaps += 1;
        }
    }

    /// Removes and returns the key with the oldest change.
    pub(super) fn pop_first(&mut self) -> Option<(At, RecordKey)> {
        loop {
            match self.entries.pop_front()? {
                (at, Some(key)) => return Some((at, key)),
                (_, None) => self.gaps -= 1,
            }
        }
    }

    /// The keys that changed after a revision.
    pub(super) fn after(&self, revision: u64) -> impl Iterator<Item = &RecordKey> {
        let first = self
            .entries
            .partition_point(|(at, _)| at.revision <= revision);
        let after = self.entries.range(first..);
        after.filter_map(|(_, key)| key.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_is_a_map_by_time(steps in prop::collection::vec((0..6_usize, 0..4_u8), 0..200)) {
            let (mut order, mut model) = (Order::default(), BTreeMap::new());
            let mut last = At::START;
            for (service, what) in steps {
                let found = model.iter().find(|(_, known)| **known == key(0, service));
                match (what, found.map(|(at, _)| *at)) {
                    (0, _) => assert_eq!(order.pop_first(), model.pop_first()),
                    (_, Some(at)) => {
                        order.remove(at);
                        // A second removal is a no-op.
                        order.remove(at);
                        model.remove(&at);
                    }
                    (_, None) => {
                        last = last.next(last.revision + u64::from(what / 3));
                        order.push(last, key(0, service));
                        model.insert(last, key(0, service));
                    }
                }
                for cursor in 0..=last.revision {
                    let after = model.iter().filter(|(at, _)| at.revision > cursor);
                    let expected: Vec<_> = after.map(|(_, key)| key).collect();
                    assert_eq!(order.after(cursor).collect::<Vec<_>>(), expected);
                }
            }
        }
    }

    #[test]
    fn a_key_that_changes_for_ever_takes_no_room() {
        let mut order = Order::default();
        let mut last = At::START;
        for revision in 1..10_000 {
            order.remove(last);
            last = last.next(revision);
            order.push(last, key(0, 0));
        }
        assert!(order.entries.capacity() <= 8);
    }
}
