// SPDX-License-Identifier: Apache-2.0

//! The last changes of a cluster, and how fast its nodes had them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::convergence::Share;

/// Number of changes that are kept.
const MOST: usize = 20;

/// The last changes, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Entry>);

#[derive(Debug)]
struct Entry {
    revision: u64,
    published: Instant,
    reached: [Option<Duration>; 3],
}

/// A change of the tables of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecentChange {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The revision.
    pub revision: u64,
    /// Time since its publication.
    pub age: Duration,
    /// Time from its first event until half, 99 % and all of the nodes that were connected had programmed
    /// it; `None` while they have not, and for nodes that left before.
    pub reached: [Option<Duration>; 3],
}

impl Recent {
    pub(super) fn published(&mut self, revision: u64, now: Instant) {
        if self.0.len() == MOST {
            self.0.pop_front();
        }
        self.0.push_back(Entry {
            revision,
            published: now,
            reached: [None; 3],
        });
    }

    pub(super) fn reached(&mut self, revision: u64, share: Share, took: Duration) {
        let at = self.0.partition_point(|entry| entry.revision < revision);
        let entry = self.0.get_mut(at);
        if let Some(entry) = entry.filter(|entry| entry.revision == revision) {
            entry.reached[share.index()] = Some(took);
        }
    }

    /// All changes, the newest first.
    pub(super) fn changes<'r>(
        &'r self,
        cluster: &'r str,
        now: Instant,
    ) -> impl Iterator<Item = RecentChange> + 'r {
        self.0.iter().rev().map(move |entry| RecentChange {
            cluster: cluster.to_owned(),
            revision: entry.revision,
            age: now.saturating_duration_since(entry.published),
            reached: entry.reached,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_last_changes_are_kept_with_their_times() {
        let start = Instant::now();
        let mut recent = Recent::default();
        for revision in 1..=30 {
            recent.published(revision * 2, start);
        }
        recent.reached(60, Share::Half, MS);
        recent.reached(60, Share::All, MS * 3);
        // Forgotten, and never published.
        recent.reached(2, Share::Half, MS);
        recent.reached(59, Share::Half, MS);
        let all: Vec<_> = recent.changes("eu", start + MS * 9).collect();
        assert_eq!(all.len(), MOST);
        let newest = RecentChange {
            cluster: "eu".to_owned(),
            revision: 60,
            age: MS * 9,
            reached: [Some(MS), None, Some(MS * 3)],
        };
        assert_eq!(all[0], newest);
        assert!(all[1..].iter().all(|change| change.reached == [None; 3]));
    }
}
