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
mod tests {
    use super::*;
    use Share::{All, Half, NinetyNine};

    const MS: Duration = Duration::from_millis(1);

    struct World {
        start: Instant,
        convergence: Convergence,
        nodes: Vec<Option<Member>>,
    }

    impl World {
        /// A cluster of `nodes` nodes that have programmed revision 1.
        fn new(nodes: usize) -> Self {
            let mut this = Self {
                start: Instant::now(),
                convergence: Convergence::default(),
                nodes: vec![None; nodes],
            };
            assert_eq!(this.publish(1, 0), []);
            for node in 0..nodes {
                assert_eq!(this.ack(node, 1, 1), []);
            }
            this
        }

        fn publish(&mut self, revision: u64, ms: u32) -> Vec<Reached> {
            let now = self.start + MS * ms;
            self.convergence.published(revision, now, now)
        }

        fn ack(&mut self, node: usize, revision: u64, ms: u32) -> Vec<Reached> {
            let now = self.start + MS * ms;
            self.convergence
                .programmed(&mut self.nodes[node], revision, now)
        }

        fn leave(&mut self, node: usize) {
            let member = self.nodes[node].take().unwrap();
            self.convergence.left(member);
        }
    }

    #[test]
    fn shares_are_reached_one_after_the_other() {
        let mut world = World::new(200);
        assert_eq!(world.publish(2, 100), []);
        let mut reached = Vec::new();
        for node in 0..200 {
            let ms = 101 + u32::try_from(node).unwrap();
            reached.extend(world.ack(node, 2, ms));
        }
        let expected = [(Half, MS * 100), (NinetyNine, MS * 198), (All, MS * 200)];
        assert_eq!(reached, expected);
        assert!(world.convergence.rounds.is_empty());
        let recent = world.convergence.recent();
        let change = recent.changes("", world.start + MS * 400).next().unwrap();
        assert_eq!((change.revision, change.age), (2, MS * 300));
        assert_eq!(change.reached, expected.map(|(_, took)| Some(took)));
    }

    #[test]
    fn one_ack_may_pass_several_rounds() {
        let mut world = World::new(1);
        world.publish(2, 10);
        world.publish(5, 20);
        world.publish(6, 30);
        let reached = world.ack(0, 5, 50);
        let all = |ms: u32| [Half, NinetyNine, All].map(|share| (share, MS * ms));
        assert_eq!(reached, [all(40), all(30)].concat());
        assert_eq!(world.ack(0, 5, 51), []);
        assert_eq!(world.ack(0, 4, 52), []);
        assert_eq!(world.ack(0, 6, 60), all(30));
    }

    #[test]
    fn later_agents_do_not_count_for_earlier_revisions() {
        let mut world = World::new(1);
        world.nodes.push(None);
        world.publish(2, 10);
        // The first acknowledgement on a connection reports the table that the agent came with, or
        // its snapshot.
        assert_eq!(world.ack(1, 2, 500), []);
        assert_eq!(world.ack(0, 2, 20).len(), 3);
        world.publish(3, 600);
        assert_eq!(world.ack(1, 3, 601), [(Half, MS)]);
        let reached = world.ack(0, 3, 610);
        assert_eq!(reached, [(NinetyNine, MS * 10), (All, MS * 10)]);
    }

    #[test]
    fn agents_that_leave_are_neither_awaited_nor_measured() {
        let mut world = World::new(3);
        world.publish(2, 10);
        world.ack(0, 2, 11);
        world.ack(1, 2, 12);
        world.leave(2);
        assert!(world.convergence.rounds.is_empty());
        world.publish(3, 100);
        assert_eq!(world.ack(0, 3, 101), [(Half, MS)]);
        // A member that had programmed the revision no longer counts after it left.
        world.leave(0);
        assert_eq!(world.ack(1, 3, 110).len(), 2);
        world.leave(1);
        assert_eq!(world.convergence.members, 0);
        world.publish(4, 130);
        assert!(world.convergence.rounds.is_empty());
    }

    #[test]
    fn a_share_that_others_reach_later_is_told_after_someone_left() {
        let mut world = World::new(4);
        world.publish(2, 10);
        world.ack(0, 2, 11);
        world.leave(3);
        let reached = [world.ack(1, 2, 20), world.ack(2, 2, 30)].concat();
        let all = [(Half, MS * 10), (NinetyNine, MS * 20), (All, MS * 20)];
        assert_eq!(reached, all);
    }

    #[test]
    fn an_ack_may_overtake_the_news_that_there_is_something() {
        let mut world = World::new(2);
        assert_eq!(world.ack(0, 3, 5), []);
        assert_eq!(world.publish(2, 10), [(Half, Duration::ZERO)]);
        assert_eq!(world.publish(3, 10), [(Half, Duration::ZERO)]);
        assert_eq!(world.ack(1, 3, 12).len(), 4);
        assert!(world.convergence.ahead.is_empty());
        world.ack(0, 9, 13);
        world.leave(0);
        assert!(world.convergence.ahead.is_empty());
    }

    #[test]
    fn a_node_is_behind_since_the_first_thing_that_it_lacks() {
        let mut world = World::new(1);
        world.publish(4, 10);
        world.publish(6, 20);
        let since = |programmed| world.convergence.behind_since(programmed);
        assert_eq!(since(Some(6)), None);
        assert_eq!(since(Some(4)), Some(world.start + MS * 20));
        assert_eq!(since(Some(1)), Some(world.start + MS * 10));
        assert_eq!(since(None), Some(world.start));
    }

    #[test]
    fn nodes_that_are_stuck_do_not_fill_memory() {
        let mut world = World::new(2);
        for revision in 2..10_000 {
            world.publish(revision, 10);
            world.ack(0, revision, 10);
        }
        assert_eq!(world.convergence.rounds.len(), MAX_ROUNDS);
        assert_eq!(world.convergence.history.len(), MAX_HISTORY);
        assert_eq!(world.ack(1, 9_999, 10).len(), 2 * MAX_ROUNDS);
    }
}
