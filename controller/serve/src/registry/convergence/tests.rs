// SPDX-License-Identifier: Apache-2.0

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
