// SPDX-License-Identifier: Apache-2.0

//! Time until the nodes of a cluster have programmed a published change.
//!
//! Pure: no clock. A change is one [`Round`] until its nodes have programmed it. A node belongs to
//! the rounds that began while it was connected and had programmed a revision on that connection,
//! so restarts of a controller or of agents do not count as slow programming. An acknowledgement
//! costs O(rounds that it passes), normally one.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::recent::Recent;

/// Maximum number of open rounds. Beyond it the oldest is dropped: it waits for a stuck node.
const MAX_ROUNDS: usize = 1_024;

/// Number of revisions whose publication time is kept.
const MAX_HISTORY: usize = 4_096;

/// A share of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Share {
    Half,
    NinetyNine,
    All,
}

impl Share {
    const IN_ORDER: [Self; 3] = [Self::Half, Self::NinetyNine, Self::All];

    /// Its place in [`Share::IN_ORDER`].
    pub(super) fn index(self) -> usize {
        match self {
            Self::Half => 0,
            Self::NinetyNine => 1,
            Self::All => 2,
        }
    }

    /// The metric's label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Half => "0.5",
            Self::NinetyNine => "0.99",
            Self::All => "1",
        }
    }

    /// This share of `nodes`, rounded up.
    fn of(self, nodes: usize) -> usize {
        match self {
            Self::Half => nodes.div_ceil(2),
            Self::NinetyNine => nodes - nodes / 100,
            Self::All => nodes,
        }
    }
}

/// A share of the nodes that has programmed a change, and the time from the change's first event
/// until then.
pub(super) type Reached = (Share, Duration);

/// One cluster's changes that are not programmed everywhere.
#[derive(Debug, Default)]
pub(super) struct Convergence {
    /// The last published revision.
    head: u64,
    /// Publication times of the latest revisions.
    history: VecDeque<(u64, Instant)>,
    /// In the order of revisions.
    rounds: VecDeque<Round>,
    /// Number of nodes that take part in new rounds.
    members: usize,
    /// Number of nodes at each revision after `head`: an acknowledgement may arrive before the news
    /// of the publication.
    ahead: BTreeMap<u64, usize>,
    /// The last changes, for people.
    recent: Recent,
}

#[derive(Debug)]
struct Round {
    revision: u64,
    observed: Instant,
    members: usize,
    done: usize,
    /// Number of [`Share::IN_ORDER`] shares reached.
    reached: usize,
}

/// A node that takes part in rounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// The last revision published before the node joined.
    joined: u64,
    programmed: u64,
}

impl Convergence {
    /// Records a change published at `now`, whose first event was observed at `observed`.
    pub(super) fn published(
        &mut self,
        revision: u64,
        observed: Instant,
        now: Instant,
    ) -> Vec<Reached> {
        if revision <= self.head {
            return Vec::new();
        }
        self.head = revision;
        self.history.push_back((revision, now));
        if self.history.len() > MAX_HISTORY {
            self.history.pop_front();
        }
        self.recent.published(revision, now);
        let later = self.ahead.split_off(&(revision + 1));
        let exactly = self.ahead.remove(&revision).unwrap_or(0);
        let done = exactly + later.values().sum::<usize>();
        self.ahead = later;
        self.rounds.push_back(Round {
            revision,
            observed,
            members: self.members,
            done,
            reached: 0,
        });
        if self.rounds.len() > MAX_ROUNDS {
            self.rounds.pop_front();
        }
        let last = self.rounds.len() - 1;
        self.look(last, now)
    }

    /// Records that a node has programmed a revision. `member` is the node's state on its
    /// connection.
    pub(super) fn programmed(
        &mut self,
        member: &mut Option<Member>,
        revision: u64,
        now: Instant,
    ) -> Vec<Reached> {
        let Some(member) = member else {
            self.members += 1;
            self.ahead_of(revision);
            *member = Some(Member {
                joined: self.head,
                programmed: revision,
            });
            return Vec::new();
        };
        if revision <= member.programmed {
            return Vec::new();
        }
        self.not_ahead(member.programmed);
        self.ahead_of(revision);
        let first = self.after(member.programmed.max(member.joined));
        member.programmed = revision;
        let end = self.after(revision);
        for round in self.rounds.range_mut(first..end.max(first)) {
            round.done += 1;
        }
        self.look(first, now)
    }

    /// Removes a node. Shares that are reached only by the removal are not reported: the time at
    /// which a dead node is given up says nothing about the speed of the others.
    pub(super) fn left(&mut self, member: Member) {
        self.members -= 1;
        self.not_ahead(member.programmed);
        let first = self.after(member.joined);
        for round in self.rounds.range_mut(first..) {
            round.members -= 1;
            if round.revision <= member.programmed {
                round.done -= 1;
            }
        }
        self.advance(first);
    }

    /// Publication time of the first known revision after `programmed` (after 0 for `None`); `None`
    /// if there is no such revision.
    pub(super) fn behind_since(&self, programmed: Option<u64>) -> Option<Instant> {
        let programmed = programmed.unwrap_or(0);
        let next = self.history.partition_point(|(r, _)| *r <= programmed);
        self.history.get(next).map(|(_, at)| *at)
    }

    /// The last changes.
    pub(super) fn recent(&self) -> &Recent {
        &self.recent
    }

    /// The last published revision.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    fn ahead_of(&mut self, revision: u64) {
        if revision > self.head {
            *self.ahead.entry(revision).or_default() += 1;
        }
    }

    fn not_ahead(&mut self, revision: u64) {
        if let Some(count) = self.ahead.get_mut(&revision) {
            *count -= 1;
            if *count == 0 {
                self.ahead.remove(&revision);
            }
        }
    }

    /// Index of the first round after a revision.
    fn after(&self, revision: u64) -> usize {
        self.rounds
            .partition_point(|round| round.revision <= revision)
    }

    /// Shares newly reached by the rounds from an index on, with their durations.
    fn look(&mut self, first: usize, now: Instant) -> Vec<Reached> {
        let mut reached = Vec::new();
        for (revision, share, observed) in self.advance(first) {
            let took = now.saturating_duration_since(observed);
            self.recent.reached(revision, share, took);
            reached.push((share, took));
        }
        reached
    }

    /// Shares newly reached by the rounds from an index on, with the revision and the start of each
    /// round. Drops completed rounds at the front.
    fn advance(&mut self, first: usize) -> Vec<(u64, Share, Instant)> {
        let mut reached = Vec::new();
        for round in self.rounds.range_mut(first..) {
            while let Some(share) = Share::IN_ORDER.get(round.reached)
                && round.done >= share.of(round.members)
                && round.members > 0
            {
                round.reached += 1;
                reached.push((round.revision, *share, round.observed));
            }
        }
        let over = |round: &Round| round.members == 0 || round.reached == Share::IN_ORDER.len();
        while self.rounds.front().is_some_and(over) {
            self.rounds.pop_front();
        }
        reached
    }
}

#[cfg(test)]
mod tests;
