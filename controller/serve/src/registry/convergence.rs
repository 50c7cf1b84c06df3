//! How long it takes until the nodes of a cluster have programmed what was published.
//!
//! Pure: no clock. A change is one [`Round`] while nodes are still at it. A node belongs to the
//! rounds that began while it was connected and had programmed something on that connection, so
//! that restarts, of a controller or of agents, are not taken for slow programming. An ack costs
//! as much as the rounds that it passes, which is one as a rule.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// How many rounds may be open. When there are more, the oldest is given up: it waits for a node
/// that is stuck.
const MAX_ROUNDS: usize = 1_024;

/// Of how many revisions it is known when they were published.
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

    /// As a metric's label.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Half => "0.5",
            Self::NinetyNine => "0.99",
            Self::All => "1",
        }
    }

    /// How many of so many nodes that is, rounded up.
    fn of(self, nodes: usize) -> usize {
        match self {
            Self::Half => nodes.div_ceil(2),
            Self::NinetyNine => nodes - nodes / 100,
            Self::All => nodes,
        }
    }
}

/// A share of the nodes that has programmed a change, and how long that took.
pub(super) type Reached = (Share, Duration);

/// One cluster's changes that are not programmed everywhere.
#[derive(Debug, Default)]
pub(super) struct Convergence {
    /// The last revision that was published.
    head: u64,
    /// When revisions were published, the latest.
    history: VecDeque<(u64, Instant)>,
    /// By revision.
    rounds: VecDeque<Round>,
    /// How many nodes take part from now on.
    members: usize,
    /// Nodes that have programmed what we do not know yet to be published, by revision.
    ahead: BTreeMap<u64, usize>,
}

#[derive(Debug)]
struct Round {
    revision: u64,
    observed: Instant,
    members: usize,
    done: usize,
    /// How many of [`Share::IN_ORDER`] are reached.
    reached: usize,
}

/// A node that takes part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    /// The last revision that was published before it did.
    joined: u64,
    programmed: u64,
}

impl Convergence {
    /// A change was published at `now`, whose first event was seen at `observed`.
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

    /// A node has programmed a revision. `member` is what was kept of it on its connection.
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

    /// A node takes part no longer.
    pub(super) fn left(&mut self, member: Member, now: Instant) -> Vec<Reached> {
        self.members -= 1;
        self.not_ahead(member.programmed);
        let first = self.after(member.joined);
        for round in self.rounds.range_mut(first..) {
            round.members -= 1;
            if round.revision <= member.programmed {
                round.done -= 1;
            }
        }
        self.look(first, now)
    }

    /// Since when there is something that a node has not, which has programmed a revision, or
    /// nothing.
    pub(super) fn behind_since(&self, programmed: Option<u64>) -> Option<Instant> {
        let programmed = programmed.unwrap_or(0);
        let next = self.history.partition_point(|(r, _)| *r <= programmed);
        self.history.get(next).map(|(_, at)| *at)
    }

    /// The last revision that was published.
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

    /// The index of the first round after a revision.
    fn after(&self, revision: u64) -> usize {
        self.rounds
            .partition_point(|round| round.revision <= revision)
    }

    /// What the rounds from an index on have reached by now that they had not before.
    fn look(&mut self, first: usize, now: Instant) -> Vec<Reached> {
        let mut reached = Vec::new();
        for round in self.rounds.range_mut(first..) {
            while let Some(share) = Share::IN_ORDER.get(round.reached)
                && round.done >= share.of(round.members)
                && round.members > 0
            {
                round.reached += 1;
                reached.push((*share, now.saturating_duration_since(round.observed)));
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
        /// So many nodes that have programmed revision 1.
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

        fn leave(&mut self, node: usize, ms: u32) -> Vec<Reached> {
            let member = self.nodes[node].take().unwrap();
            self.convergence.left(member, self.start + MS * ms)
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
    fn who_comes_later_has_no_part_in_what_is_under_way() {
        let mut world = World::new(1);
        world.nodes.push(None);
        world.publish(2, 10);
        // Its first ack on this connection says what it came with, or its snapshot.
        assert_eq!(world.ack(1, 2, 500), []);
        assert_eq!(world.ack(0, 2, 20).len(), 3);
        world.publish(3, 600);
        assert_eq!(world.ack(1, 3, 601), [(Half, MS)]);
        let reached = world.ack(0, 3, 610);
        assert_eq!(reached, [(NinetyNine, MS * 10), (All, MS * 10)]);
    }

    #[test]
    fn who_leaves_is_not_waited_for() {
        let mut world = World::new(3);
        world.publish(2, 10);
        world.ack(0, 2, 11);
        world.ack(1, 2, 12);
        assert_eq!(world.leave(2, 90), [(NinetyNine, MS * 80), (All, MS * 80)]);
        world.publish(3, 100);
        assert_eq!(world.ack(0, 3, 101), [(Half, MS)]);
        // One that was done counts no longer.
        assert_eq!(world.leave(0, 102), []);
        assert_eq!(world.ack(1, 3, 110).len(), 2);
        world.leave(1, 120);
        assert_eq!(world.convergence.members, 0);
        world.publish(4, 130);
        assert!(world.convergence.rounds.is_empty());
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
        world.leave(0, 14);
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
