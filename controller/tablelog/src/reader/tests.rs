// SPDX-License-Identifier: Apache-2.0

mod agent;
mod sizes;
mod versions;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{Destination, NodeKey, NodeOverlay, Record};
use portolan_proto::v1;
use portolan_select::TableDelta;
use proptest::collection::vec;
use proptest::prelude::*;

use agent::{Agent, all};

use super::*;
use crate::feed::Delivery;
use crate::testing::{Oracle, TestChange, change, decode, delta, node};
use crate::{ClusterOrigin, Origin, Publisher, Retention, Update};

const RETENTION: Retention = Retention {
    record_tombstones: 2,
    list_tombstones: 1,
    idle_nodes: 1,
};

/// The clusters of the tests.
const CLUSTERS: [&str; 2] = ["c0", "c1"];

fn synced(retention: Retention) -> (Publisher, TableReader) {
    let (mut publisher, tables) = Publisher::new(retention);
    for cluster in CLUSTERS {
        publisher.set_synced(&cluster.into());
    }
    (publisher, tables)
}

/// The behaviour of an agent at a transition.
#[derive(Debug, Clone, Copy)]
enum Doing {
    /// Nothing: the agent is slow.
    Nothing,
    Follow,
    Reconnect,
    /// Connects to the other replica, and sends the hashes of 2^n buckets.
    Move(u32),
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        4 => Just(Doing::Nothing),
        4 => Just(Doing::Follow),
        1 => Just(Doing::Reconnect),
        1 => (0..10_u32).prop_map(Doing::Move),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// An agent that comes from any replica and revision has the table of the oracle afterwards;
    /// each record occurs at most once in a transition.
    #[test]
    fn agents_of_any_age_get_the_same_table(
        steps in vec((vec(change(), 1..6), vec(doing(), 8)), 1..25),
        small in any::<bool>(),
    ) {
        let retention = if small { RETENTION } else { Retention::default() };
        let mut replicas = [synced(retention), synced(retention)];
        // The replicas have different revisions.
        replicas[1].0.publish(&delta(&[TestChange::Record(0, 9, Some(1))]));
        replicas[1].0.publish(&delta(&[TestChange::Record(0, 9, None)]));
        let mut oracle = Oracle::default();
        let nodes: Vec<NodeKey> = (0..8).map(|i| node(i / 4, i % 4)).collect();
        let mut agents: Vec<_> = nodes.iter().map(|_| (0, Agent::default())).collect();
        for ((at, agent), node) in agents.iter_mut().zip(&nodes) {
            agent.connect(&replicas[*at].1, node, None);
        }
        for (changes, doings) in steps {
            let delta = delta(&changes);
            oracle.apply(&delta);
            for (publisher, _) in &mut replicas {
                publisher.publish(&delta);
            }
            for (((at, agent), node), doing) in agents.iter_mut().zip(&nodes).zip(doings) {
                match doing {
                    Doing::Nothing => continue,
                    Doing::Follow => drop(agent.follow(&replicas[*at].1, node)),
                    Doing::Reconnect => agent.connect(&replicas[*at].1, node, None),
                    Doing::Move(buckets) => {
                        *at = 1 - *at;
                        agent.connect(&replicas[*at].1, node, Some(1 << buckets));
                    }
                }
                prop_assert_eq!(&agent.table, &oracle.table(node));
                prop_assert_eq!(&agent.table, &replicas[*at].1.table(node));
            }
        }
        for ((at, agent), node) in agents.iter_mut().zip(&nodes) {
            agent.follow(&replicas[*at].1, node);
            prop_assert_eq!(&agent.table, &oracle.table(node));
            prop_assert_eq!(agent.follow(&replicas[*at].1, node), 0);
        }
    }
}

fn put(services: impl IntoIterator<Item = usize>, value: u16) -> Vec<TestChange> {
    let services = services.into_iter();
    services
        .map(|service| TestChange::Record(0, service, Some(value)))
        .collect()
}

#[test]
fn idle_nodes_are_sent_the_very_same_bytes() {
    let (mut publisher, tables) = synced(Retention::default());
    publisher.publish(&delta(&put(0..20, 0)));
    let feed = tables.feed(&node(0, 0).cluster);
    let at = tables.head("c0");
    let mut changes = put([3], 3);
    changes.push(TestChange::Lists(0, 2, 3, Some(1)));
    publisher.publish(&delta(&changes));
    let next = |of: usize, cursor: u64| match tables.next(&feed, &Scope::from(&node(0, of)), cursor)
    {
        Next::Deliver(delivery) => all(delivery),
        other => panic!("{other:?}"),
    };
    let (a, b, own) = (next(0, at), next(1, at), next(2, at));
    // The whole transition is one write.
    assert_eq!((a.len(), b.len(), own.len()), (1, 1, 1));
    assert_eq!(a[0].as_ptr(), b[0].as_ptr());
    assert_ne!(a[0].as_ptr(), own[0].as_ptr());
    // The same for agents that missed a transition.
    publisher.publish(&delta(&put([4], 3)));
    let (a, b) = (next(0, at), next(1, at));
    assert_eq!(a[0].as_ptr(), b[0].as_ptr());
    let [one, other] = [0, 1].map(|of| tables.snapshot(&feed, &Scope::from(&node(0, of))));
    assert!(one.shares(&other));
}

#[test]
fn only_changed_segments_are_made_again() {
    let (mut publisher, tables) = synced(Retention::default());
    publisher.publish(&delta(&put(100..200, 2)));
    let node = node(0, 0);
    let feed = tables.feed(&node.cluster);
    let chunks = |_| all(tables.snapshot(&feed, &Scope::from(&node)));
    let before = chunks(());
    assert_eq!(before, chunks(()));
    let mut agent = Agent::default();
    agent.connect(&tables, &node, None);
    publisher.publish(&delta(&put([150], 5)));
    let work = {
        let log = tables.read();
        let of = log.of("c0");
        feed.segments().work(of.head(), of.records()).unwrap()
    };
    let (kept, made) = work.counts();
    assert!(kept > 3 && made == 1, "{kept} kept, {made} made");
    let mut fresh = Agent::default();
    fresh.connect(&tables, &node, None);
    agent.follow(&tables, &node);
    assert_eq!(fresh.table, agent.table);
}

#[test]
fn a_change_of_nearly_everything_is_a_snapshot() {
    let (mut publisher, tables) = synced(Retention::default());
    publisher.publish(&delta(&put(0..100, 1)));
    let mut agent = Agent::default();
    let node = node(0, 0);
    agent.connect(&tables, &node, None);
    let feed = tables.feed(&node.cluster);
    publisher.publish(&delta(&put(0..60, 4)));
    publisher.publish(&delta(&put(0..60, 7)));
    let (some, cursor) = (agent.clone(), agent.at.unwrap().1);
    assert!(matches!(
        tables.next(&feed, &Scope::from(&node), cursor),
        Next::Deliver(_)
    ));
    publisher.publish(&delta(&put(0..90, 10)));
    assert!(matches!(
        tables.next(&feed, &Scope::from(&node), cursor),
        Next::Snapshot
    ));
    // Too many buckets differ as well. An agent of this epoch is not asked for them.
    assert!(matches!(
        tables.first(&feed, &Scope::from(&node), &some.have()),
        First::Snapshot
    ));
    let elsewhere = Have {
        epoch: tables.epoch() + 1,
        ..some.have()
    };
    assert!(matches!(
        tables.first(&feed, &Scope::from(&node), &elsewhere),
        First::Ask(128)
    ));
    let hashes = some.have().hashes.unwrap();
    let told = || tables.buckets(&feed, &node, hashes, &some.buckets(16));
    assert!(told().is_none());
    // Other agents with the same records are not asked any more.
    assert!(matches!(
        tables.first(&feed, &Scope::from(&node), &elsewhere),
        First::Snapshot
    ));
}

#[test]
fn an_agent_from_elsewhere_gets_the_buckets_that_differ() {
    let (mut publisher, tables) = synced(Retention::default());
    publisher.publish(&delta(&put(0..400, 1)));
    let (mut elsewhere, other) = synced(Retention::default());
    elsewhere.publish(&delta(&put(2..402, 1)));
    let node = node(0, 0);
    let mut agent = Agent::default();
    agent.connect(&other, &node, None);
    let feed = tables.feed(&node.cluster);
    let First::Ask(count) = tables.first(&feed, &Scope::from(&node), &agent.have()) else {
        panic!("no question");
    };
    assert_eq!(count, 512);
    let theirs = agent.have().hashes.unwrap();
    let told = |hashes: &[_]| tables.buckets(&feed, &node, theirs, hashes);
    // Others with the same records wait for this agent's hashes. Hashes that do not add up are not
    // used for the others.
    let first = || tables.first(&feed, &Scope::from(&node), &agent.have());
    assert!(matches!(first(), First::Wait(512)));
    let mut wrong = agent.buckets(count);
    wrong[0][7] ^= 1;
    assert!(told(&wrong).is_some());
    assert!(matches!(first(), First::Wait(512)));
    let delivery = told(&agent.buckets(count)).unwrap();
    assert!(delivery.items() < 60, "{} of 400", delivery.items());
    let again = told(&agent.buckets(count)).unwrap();
    assert!(delivery.shares(&again));
    let First::Deliver(same, How::Buckets) = first() else {
        panic!("not known");
    };
    assert!(delivery.shares(&same));
    agent.take_delivery(&tables, &node, delivery);
    assert_eq!(agent.table, tables.table(&node));
    // Equal buckets of tables that differ: the hashes are useless.
    let (ours, theirs) = (agent.buckets(count), agent.have().hashes.unwrap());
    assert!(tables.buckets(&feed, &node, theirs, &ours).is_none());
}

#[test]
fn first_sends_as_little_as_it_can() {
    let (mut publisher, tables) = synced(Retention::default());
    let node = node(0, 0);
    let feed = tables.feed(&node.cluster);
    publisher.publish(&delta(&[TestChange::Zone(0, 0, Some("a"))]));
    let mut agent = Agent::default();
    let first = |have: &Have| tables.first(&feed, &Scope::from(&node), have);
    assert!(matches!(first(&agent.have()), First::Snapshot));
    agent.connect(&tables, &node, None);
    let old = agent.have();
    assert!(matches!(first(&old), First::Deliver(_, How::Equal)));
    publisher.publish(&delta(&put([1], 0)));
    assert!(matches!(first(&old), First::Deliver(_, How::Resume)));
    let elsewhere = Have {
        epoch: 1,
        ..old.clone()
    };
    assert!(matches!(first(&elsewhere), First::Snapshot));
    let future = Have { revision: 9, ..old };
    assert!(matches!(first(&future), First::Snapshot));
    // Back to the agent's table, from whichever controller: no changes are sent.
    publisher.publish(&delta(&[TestChange::Record(0, 1, None)]));
    assert!(matches!(first(&elsewhere), First::Deliver(_, How::Equal)));
    // Only the node's own part differs.
    publisher.publish(&delta(&[TestChange::Zone(0, 0, Some("b"))]));
    assert!(matches!(first(&elsewhere), First::Deliver(_, How::Resume)));
    agent.at = Some((1, 1));
    agent.connect(&tables, &node, None);
    assert_eq!(agent.table, tables.table(&node));
}

#[test]
fn destinations_of_a_service_are_found_in_all_lists() {
    let (mut publisher, tables) = synced(RETENTION);
    publisher.publish(&delta(&put([1], 0)));
    let node = node(0, 0);
    let key = tables.table(&node).records.keys().next().cloned().unwrap();
    let destination = Destination::new(([10, 9, 9, 9], 80).into());
    let mut record = Record::new(key.clone());
    record.destinations = vec![destination];
    let lists = NodeOverlay {
        local: vec![Destination::new(([10, 8, 8, 8], 80).into())],
        ..NodeOverlay::default()
    };
    publisher.publish(&TableDelta {
        records: BTreeMap::from([(key.clone(), Some(Arc::new(record)))]),
        lists: BTreeMap::from([(
            node.clone(),
            BTreeMap::from([(key.clone(), Some(Arc::new(lists)))]),
        )]),
        ..TableDelta::default()
    });
    let has = |scope: &Scope, service: &str, last: u8| {
        let address: IpAddr = [10, last, last, last].into();
        let is = |one: &Destination| one.address.ip() == address;
        tables.has_destination(scope, (&key.namespace, service), is)
    };
    let (own, all) = (
        Scope::from(&node),
        Scope::AllNodes(Arc::clone(&key.cluster)),
    );
    let other = Scope::Node(NodeKey {
        name: "b".into(),
        ..node.clone()
    });
    assert!(has(&own, &key.service, 9) && has(&other, &key.service, 9));
    assert!(has(&own, &key.service, 8) && !has(&other, &key.service, 8));
    assert!(has(&all, &key.service, 8) && !has(&all, &key.service, 7));
    assert!(!has(&all, "another", 9));
}

#[test]
fn triggers_are_told_to_live_streams_only() {
    let (mut publisher, tables) = synced(Retention::default());
    let node = node(0, 0);
    let feed = tables.feed(&node.cluster);
    let mut publish = |value: u16| {
        let of_cluster = ClusterOrigin {
            trigger_times_ms: vec![u64::from(value)],
            ..ClusterOrigin::default()
        };
        let origin = Origin::of(&"c0".into(), of_cluster);
        publisher.publish(Update::from(&delta(&put([1], value))).from_origin(origin));
    };
    let triggers = |delivery: Delivery| {
        let last = decode(all(delivery)).pop_back().unwrap();
        match last.frame {
            Some(v1::frame::Frame::Commit(commit)) => commit.trigger_times_ms,
            other => panic!("{other:?}"),
        }
    };
    let live = |cursor| match tables.next(&feed, &Scope::from(&node), cursor) {
        Next::Deliver(delivery) => triggers(delivery),
        other => panic!("{other:?}"),
    };
    publish(0);
    let mut agent = Agent::default();
    agent.connect(&tables, &node, None);
    for value in [3, 6, 9] {
        publish(value);
    }
    assert_eq!(live(3), [9]);
    assert_eq!(live(1), [3, 6, 9]);
    let First::Deliver(delivery, How::Resume) =
        tables.first(&feed, &Scope::from(&node), &agent.have())
    else {
        panic!("no resumption");
    };
    assert_eq!(triggers(delivery), [0; 0]);
    assert_eq!(
        triggers(tables.snapshot(&feed, &Scope::from(&node))),
        [0; 0]
    );
}
