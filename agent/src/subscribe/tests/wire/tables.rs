// SPDX-License-Identifier: Apache-2.0

//! The tables of the recorded streams. Never changed: recordings are compared with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::ipvs::Flags;
use portolan_model::{
    Affinity, Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeInfo,
    NodeKey, NodeOverlay, NodeTable, Record, RecordKey, Scheduling, ZoneMask,
};
use portolan_select::TableDelta;

use crate::subscribe::tests::support::record;

/// Number of small records: enough for compressed segments and for buckets.
const SMALL: u16 = 500;

/// The complete data of a controller.
#[derive(Debug, Clone, Default)]
pub(super) struct World {
    pub(super) records: BTreeMap<RecordKey, Record>,
    lists: BTreeMap<(NodeKey, RecordKey), NodeOverlay>,
    nodes: BTreeMap<NodeKey, NodeInfo>,
}

impl World {
    fn put(&mut self, record: Record) {
        self.records.insert(record.key.clone(), record);
    }

    /// The changes from this world to another.
    pub(super) fn delta(&self, to: &Self) -> TableDelta {
        let mut delta = TableDelta::default();
        for key in self.records.keys().chain(to.records.keys()) {
            if self.records.get(key) != to.records.get(key) {
                let record = to.records.get(key).cloned().map(Arc::new);
                delta.records.insert(key.clone(), record);
            }
        }
        for place in self.lists.keys().chain(to.lists.keys()) {
            if self.lists.get(place) != to.lists.get(place) {
                let lists = to.lists.get(place).cloned().map(Arc::new);
                let (node, key) = place.clone();
                delta.lists.entry(node).or_default().insert(key, lists);
            }
        }
        for (node, info) in &to.nodes {
            if self.nodes.get(node) != Some(info) {
                delta.nodes.insert(node.clone(), info.clone());
            }
        }
        delta
    }

    /// The table of a node, with the record that agents refuse.
    pub(super) fn table(&self, name: &str) -> NodeTable {
        let node = node(name);
        let records = self.records.iter();
        let lists = self.lists.iter().filter(|((of, _), _)| *of == node);
        NodeTable {
            node: self.nodes.get(&node).cloned().unwrap_or_default(),
            records: records
                .map(|(key, record)| (key.clone(), Arc::new(record.clone())))
                .collect(),
            lists: lists
                .map(|((_, key), lists)| (key.clone(), Arc::new(lists.clone())))
                .collect(),
            ..NodeTable::default()
        }
    }

    /// The table of a node as its agent takes it, without the refused record.
    pub(super) fn taken(&self, name: &str) -> NodeTable {
        let mut table = self.table(name);
        table.records.remove(&refused().key);
        table
    }
}

/// The worlds of the first controller, each sent as one Commit.
pub(super) fn first() -> [World; 4] {
    let mut one = World::default();
    for i in 0..SMALL {
        one.put(small(i, 80));
    }
    one.put(full());
    one.put(refused());
    one.put(wide(1..100));
    one.nodes.insert(node("a"), info("zone-a"));
    one.nodes.insert(node("b"), info("zone-b"));
    let key = full().key;
    one.lists.insert((node("a"), key.clone()), lists(1));
    one.lists.insert((node("b"), key.clone()), lists(2));
    let mut two = one.clone();
    two.put(record("new"));
    two.records.remove(&small(1, 80).key);
    let mut three = two.clone();
    // Sent as a patch.
    three.put(wide(2..101));
    let mut four = three.clone();
    four.nodes.insert(node("a"), info("zone-c"));
    four.lists.insert((node("a"), key.clone()), lists(3));
    four.lists.remove(&(node("b"), key));
    [one, two, three, four]
}

/// The world of the second controller: some buckets differ.
pub(super) fn second() -> World {
    let [.., mut world] = first();
    for i in 2..9 {
        world.put(small(i, 81));
    }
    world
}

/// The worlds of the third controller: first the same, then one more record.
pub(super) fn third() -> [World; 2] {
    let mut more = second();
    more.put(record("newer"));
    [second(), more]
}

/// The world of the fourth controller: so few records that agents hold the deletions.
pub(super) fn fourth() -> World {
    let mut world = World::default();
    world.put(full());
    world
}

pub(super) fn node(name: &str) -> NodeKey {
    NodeKey {
        cluster: "".into(),
        name: name.into(),
    }
}

fn info(zone: &str) -> NodeInfo {
    NodeInfo {
        zone: Some(zone.into()),
        pod_cidrs: vec![
            "10.244.1.0/24".parse().unwrap(),
            "fd00:10:244:1::/64".parse().unwrap(),
        ],
        eligible: true,
        groups: Vec::new(),
        director: None,
    }
}

fn lists(last: u8) -> NodeOverlay {
    NodeOverlay {
        cluster: vec![Destination::new(([10, 0, 1, last], 80).into())],
        local: vec![Destination::new(([10, 0, 2, last], 80).into())],
        terminating: [Family::V4].into_iter().collect(),
        own: vec![([10, 0, 3, last], 80).into()],
    }
}

fn small(number: u16, port: u16) -> Record {
    Record {
        destinations: vec![Destination::new(([10, 0, 0, 1], port).into())],
        ..record(&format!("s{number:03}"))
    }
}

fn wide(ports: std::ops::Range<u16>) -> Record {
    let addresses = ports.map(|port| ([10, 0, 0, 1], port).into());
    Record {
        destinations: addresses.map(Destination::new).collect(),
        ..record("wide")
    }
}

/// A record that agents refuse: its scheduler's name is too long.
pub(super) fn refused() -> Record {
    Record {
        scheduling: Scheduling {
            scheduler: Some("longer-than-a-scheduler-is".into()),
            flags: None,
        },
        ..record("refused")
    }
}

/// A record with all fields.
fn full() -> Record {
    let vip = |ip: &str| FrontendAddress::Vip(ip.parse().unwrap());
    let frontends = vec![
        Frontend::new(FrontendKind::ClusterIp, vip("10.96.0.1"), 80),
        Frontend::new(FrontendKind::ClusterIp, vip("fd00:96::1"), 80),
        Frontend {
            bind: false,
            ..Frontend::new(FrontendKind::ExternalIp, vip("192.0.2.1"), 80)
        },
        Frontend {
            lists: Lists::Local,
            source_ranges: vec!["198.51.100.0/24".parse().unwrap()],
            ..Frontend::new(FrontendKind::LoadBalancer, vip("192.0.2.2"), 80)
        },
        Frontend {
            masquerade: true,
            ..Frontend::new(
                FrontendKind::NodePort,
                FrontendAddress::NodeAddresses(Family::V4),
                30080,
            )
        },
    ];
    Record {
        frontends,
        destinations: vec![
            Destination::new(([10, 0, 0, 1], 80).into()),
            Destination {
                address: ([10, 0, 0, 2], 8080).into(),
                weight: 7,
            },
            Destination::new("[fd00::1]:80".parse().unwrap()),
        ],
        zone_mask: Some(ZoneMask {
            zones: vec!["zone-a".into(), "zone-b".into()],
            masks: vec![1, 2, 3],
        }),
        affinity: Some(Affinity {
            timeout_seconds: 10_800,
        }),
        available: Family::ALL.into_iter().collect(),
        scheduling: Scheduling {
            scheduler: Some("mh".into()),
            flags: Some(Flags(8)),
        },
        drain_seconds: Some(30),
        health_check_port: Some(32_000),
        ..record("full")
    }
}
