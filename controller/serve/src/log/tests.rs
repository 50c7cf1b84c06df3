use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{
    Destination, NodeInfo, NodeKey, NodeLists, NodeTable, Protocol, Record, RecordKey, SetHash,
};
use portolan_proto::convert::{decode_key, decode_lists, decode_node, decode_record};
use portolan_proto::v1;
use portolan_select::TableDelta;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use prost::Message;
use prost::bytes::Bytes;

use super::*;

const RETENTION: Retention = Retention {
    record_tombstones: 2,
    list_tombstones: 1,
    idle_nodes: 1,
};

fn key(cluster: usize, service: usize) -> RecordKey {
    RecordKey {
        cluster: format!("c{cluster}").into(),
        namespace: "ns".into(),
        service: format!("s{service}").into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

fn node(cluster: usize, name: usize) -> NodeKey {
    NodeKey {
        cluster: format!("c{cluster}").into(),
        name: format!("n{name}").into(),
    }
}

fn record(key: RecordKey, value: u16) -> Record {
    Record {
        destinations: vec![Destination::new(([10, 0, 0, 1], value + 1).into())],
        ..Record::new(key)
    }
}

fn lists(value: u16) -> NodeLists {
    NodeLists {
        own: vec![([10, 0, 0, 1], value + 1).into()],
        ..NodeLists::default()
    }
}

/// What one step of a test changes.
#[derive(Debug, Clone)]
enum Change {
    Record(usize, usize, Option<u16>),
    Lists(usize, usize, usize, Option<u16>),
    Zone(usize, usize, Option<&'static str>),
}

fn change() -> impl Strategy<Value = Change> {
    let zone = prop_oneof![Just(None), Just(Some("a")), Just(Some("b"))];
    prop_oneof![
        (0..2_usize, 0..6_usize, option::of(0..3_u16))
            .prop_map(|(c, s, v)| Change::Record(c, s, v)),
        (0..2_usize, 0..5_usize, 0..4_usize, option::of(0..3_u16))
            .prop_map(|(c, n, s, v)| Change::Lists(c, n, s, v)),
        (0..2_usize, 0..5_usize, zone).prop_map(|(c, n, z)| Change::Zone(c, n, z)),
    ]
}

fn delta(changes: &[Change]) -> TableDelta {
    let mut delta = TableDelta::default();
    for change in changes {
        match *change {
            Change::Record(cluster, service, value) => {
                let key = key(cluster, service);
                let value = value.map(|value| Arc::new(record(key.clone(), value)));
                delta.records.insert(key, value);
            }
            Change::Lists(cluster, name, service, value) => {
                let lists = value.map(|value| Arc::new(lists(value)));
                let node = delta.lists.entry(node(cluster, name)).or_default();
                node.insert(key(cluster, service), lists);
            }
            Change::Zone(cluster, name, zone) => {
                let info = NodeInfo {
                    zone: zone.map(Into::into),
                    ..NodeInfo::default()
                };
                delta.nodes.insert(node(cluster, name), info);
            }
        }
    }
    delta
}

/// What the tables are if one keeps them in the plainest way.
#[derive(Default)]
struct Oracle(
    BTreeMap<RecordKey, Arc<Record>>,
    BTreeMap<NodeKey, NodeTable>,
);

impl Oracle {
    fn apply(&mut self, delta: &TableDelta) {
        for (key, record) in &delta.records {
            match record {
                Some(record) => self.0.insert(key.clone(), Arc::clone(record)),
                None => self.0.remove(key),
            };
        }
        for (node, changes) in &delta.lists {
            let table = self.1.entry(node.clone()).or_default();
            for (key, lists) in changes {
                match lists {
                    Some(lists) => table.lists.insert(key.clone(), Arc::clone(lists)),
                    None => table.lists.remove(key),
                };
            }
        }
        for (node, info) in &delta.nodes {
            self.1
                .entry(node.clone())
                .or_default()
                .node
                .clone_from(info);
        }
    }

    fn table(&self, node: &NodeKey) -> NodeTable {
        let of_cluster = self.0.iter().filter(|(key, _)| key.cluster == node.cluster);
        NodeTable {
            records: of_cluster
                .map(|(key, record)| (key.clone(), Arc::clone(record)))
                .collect(),
            ..self.1.get(node).cloned().unwrap_or_default()
        }
    }
}

/// An agent that applies batches as they come over the wire.
#[derive(Debug, Clone, Default)]
struct Agent {
    revision: Option<u64>,
    table: NodeTable,
}

impl Agent {
    /// Catches up; returns how many records and lists it was sent.
    fn sync(&mut self, log: &TableLog, node: &NodeKey) -> usize {
        let since = self.revision.and_then(|cursor| log.since(node, cursor));
        let batch = since.unwrap_or_else(|| log.snapshot(node));
        if batch.snapshot {
            self.table = NodeTable::default();
        }
        let cluster = &node.cluster;
        let mut seen = BTreeSet::new();
        for bytes in &batch.records.put {
            let message = v1::Record::decode(bytes.clone()).unwrap();
            let record = decode_record(&message, cluster).unwrap().record;
            assert!(seen.insert(record.key.clone()));
            self.table.records.insert(record.key.clone(), record.into());
        }
        for key in decoded_keys(&batch.records.delete, cluster) {
            assert!(seen.insert(key.clone()));
            self.table.records.remove(&key);
        }
        for bytes in &batch.own.put {
            let message = v1::NodeLists::decode(bytes.clone()).unwrap();
            let decoded = decode_lists(&message, cluster).unwrap();
            self.table.lists.insert(decoded.key, decoded.lists.into());
        }
        for key in decoded_keys(&batch.own.delete, cluster) {
            self.table.lists.remove(&key);
        }
        if let Some(node) = &batch.node {
            self.table.node = decode_node(node).unwrap();
        }
        assert_eq!(self.table.records_hash(), batch.records_hash);
        assert_eq!(self.table.own_hash(), batch.own_hash);
        self.revision = Some(batch.revision);
        batch.records.len() + batch.own.len()
    }
}

fn decoded_keys(keys: &[Bytes], cluster: &Arc<str>) -> Vec<RecordKey> {
    keys.iter()
        .map(|bytes| v1::RecordKey::decode(bytes.clone()).unwrap())
        .map(|key| decode_key(&key, cluster).unwrap())
        .collect()
}

proptest! {
    /// Whatever an agent missed, it ends up with the table as if made from scratch.
    #[test]
    fn agents_of_any_age_get_the_same_table(
        steps in vec((vec(change(), 1..6), any::<u16>()), 1..40),
    ) {
        let mut log = TableLog::new(RETENTION);
        let mut oracle = Oracle::default();
        let nodes: Vec<NodeKey> = (0..12).map(|i| node(i / 6, i % 6)).collect();
        let mut agents = vec![Agent::default(); nodes.len()];
        for (changes, who) in steps {
            let delta = delta(&changes);
            log.apply(&delta);
            oracle.apply(&delta);
            for (index, agent) in agents.iter_mut().enumerate() {
                if who & (1 << index) != 0 {
                    agent.sync(&log, &nodes[index]);
                    prop_assert_eq!(&agent.table, &oracle.table(&nodes[index]));
                    prop_assert_eq!(&agent.table, &log.table(&nodes[index]));
                }
            }
        }
        for (node, agent) in nodes.iter().zip(&mut agents) {
            agent.sync(&log, node);
            prop_assert_eq!(&agent.table, &oracle.table(node));
            prop_assert_eq!(agent.sync(&log, node), 0);
            prop_assert_eq!(agent.revision, Some(log.head(&node.cluster)));
        }
    }
}

#[test]
fn a_slow_agent_gets_each_record_once_at_its_newest_value() {
    let mut log = TableLog::default();
    log.apply(&delta(&[
        Change::Record(0, 0, Some(0)),
        Change::Record(0, 1, Some(0)),
    ]));
    let mut agent = Agent::default();
    assert_eq!(agent.sync(&log, &node(0, 0)), 2);
    for value in 1..100 {
        log.apply(&delta(&[Change::Record(0, 0, Some(value))]));
    }
    assert_eq!(agent.sync(&log, &node(0, 0)), 1);
    assert_eq!(log.revision(), 100);
}

#[test]
fn a_delta_that_says_nothing_new_makes_no_revision() {
    let mut log = TableLog::default();
    let first = delta(&[Change::Record(0, 0, Some(0)), Change::Zone(0, 0, Some("a"))]);
    assert_eq!(log.apply(&first), 1);
    assert_eq!(log.apply(&first), 1);
    assert_eq!(log.apply(&TableDelta::default()), 1);
    let gone = delta(&[Change::Record(0, 7, None), Change::Lists(0, 7, 7, None)]);
    assert_eq!(log.apply(&gone), 1);
}

#[test]
fn a_cluster_is_not_disturbed_by_another() {
    let mut log = TableLog::default();
    log.apply(&delta(&[Change::Record(0, 0, Some(0))]));
    log.apply(&delta(&[Change::Record(1, 0, Some(0))]));
    assert_eq!((log.head("c0"), log.head("c1"), log.head("c2")), (1, 2, 0));
    let unknown = log.snapshot(&node(2, 0));
    assert_eq!((unknown.revision, unknown.snapshot), (0, true));
    assert_eq!(unknown.records_hash, SetHash::default());
    assert_eq!(unknown.own_hash, NodeTable::default().own_hash());
    // What it had before its cluster was known, it can go on from.
    assert_eq!(log.since(&node(1, 0), 0).unwrap().records.put.len(), 1);
    assert!(log.since(&node(1, 0), 3).is_none());
}

#[test]
fn what_is_gone_is_remembered_up_to_a_bound() {
    let mut log = TableLog::new(RETENTION);
    for service in 0..50 {
        log.apply(&delta(&[Change::Record(0, service, Some(0))]));
        log.apply(&delta(&[Change::Record(0, service, None)]));
        log.apply(&delta(&[Change::Zone(0, service, Some("a"))]));
        log.apply(&delta(&[Change::Zone(0, service, None)]));
    }
    assert_eq!(log.clusters["c0"].remembered(), (2, 1));
    assert!(log.since(&node(0, 0), 100).is_none());
    let recent = log.since(&node(0, 49), log.revision() - 1).unwrap();
    assert_eq!(recent.node, Some(v1::NodeInfo::default()));
}

#[test]
fn a_node_that_was_forgotten_is_sent_all_again() {
    let mut log = TableLog::new(RETENTION);
    let mut agent = Agent::default();
    log.apply(&delta(&[Change::Zone(0, 0, Some("a"))]));
    agent.sync(&log, &node(0, 0));
    for idle in 0..3 {
        log.apply(&delta(&[Change::Zone(0, idle, Some("b"))]));
        log.apply(&delta(&[Change::Zone(0, idle, None)]));
    }
    assert!(log.since(&node(0, 0), 1).is_none());
    let mut other = agent.clone();
    other.sync(&log, &node(0, 0));
    assert_eq!(other.table, NodeTable::default());
    // Also when it has something again by then.
    log.apply(&delta(&[Change::Lists(0, 0, 0, Some(1))]));
    assert!(log.since(&node(0, 0), 1).is_none());
    agent.sync(&log, &node(0, 0));
    assert_eq!(agent.table, log.table(&node(0, 0)));
}
