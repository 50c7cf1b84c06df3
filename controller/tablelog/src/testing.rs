// SPDX-License-Identifier: Apache-2.0

//! Generated changes for tests, and a model of the resulting tables.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use portolan_model::{
    Destination, NodeInfo, NodeKey, NodeOverlay, NodeTable, Protocol, Record, RecordKey,
};
use portolan_proto::limits::MAX_FRAME_BYTES;
use portolan_proto::v1;
use portolan_select::TableDelta;
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;
use prost::bytes::{Buf as _, Bytes};

pub fn key(cluster: usize, service: usize) -> RecordKey {
    RecordKey {
        cluster: format!("c{cluster}").into(),
        namespace: "ns".into(),
        service: format!("s{service}").into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

pub fn node(cluster: usize, name: usize) -> NodeKey {
    NodeKey {
        cluster: format!("c{cluster}").into(),
        name: format!("n{name}").into(),
    }
}

fn record(key: RecordKey, value: u16) -> Record {
    // Some records are large, so that a table has several segments.
    let count = [1, 40, 1_000][usize::from(value % 3)] + u32::from(value / 3);
    let address = |i: u32| std::net::Ipv4Addr::from_bits((10 << 24) + i);
    let destination = |i| Destination::new((address(i), value % 3 + 1).into());
    Record {
        destinations: (0..count).map(destination).collect(),
        ..Record::new(key)
    }
}

fn lists(value: u16) -> NodeOverlay {
    NodeOverlay {
        own: vec![([10, 0, 0, 1], value + 1).into()],
        ..NodeOverlay::default()
    }
}

/// One change of a test: the numbers of the cluster, of the node and of the service, where present,
/// then the new value; `None` for a deletion.
#[derive(Debug, Clone)]
pub enum TestChange {
    Record(usize, usize, Option<u16>),
    Lists(usize, usize, usize, Option<u16>),
    Zone(usize, usize, Option<&'static str>),
}

pub fn change() -> impl Strategy<Value = TestChange> {
    let zone = prop_oneof![Just(None), Just(Some("a")), Just(Some("b"))];
    prop_oneof![
        (0..2_usize, 0..6_usize, option::of(0..6_u16))
            .prop_map(|(c, s, v)| TestChange::Record(c, s, v)),
        (0..2_usize, 0..5_usize, 0..4_usize, option::of(0..3_u16))
            .prop_map(|(c, n, s, v)| TestChange::Lists(c, n, s, v)),
        (0..2_usize, 0..5_usize, zone).prop_map(|(c, n, z)| TestChange::Zone(c, n, z)),
    ]
}

pub fn delta(changes: &[TestChange]) -> TableDelta {
    let mut delta = TableDelta::default();
    for change in changes {
        match *change {
            TestChange::Record(cluster, service, value) => {
                let key = key(cluster, service);
                let value = value.map(|value| Arc::new(record(key.clone(), value)));
                delta.records.insert(key, value);
            }
            TestChange::Lists(cluster, name, service, value) => {
                let lists = value.map(|value| Arc::new(lists(value)));
                let node = delta.lists.entry(node(cluster, name)).or_default();
                node.insert(key(cluster, service), lists);
            }
            TestChange::Zone(cluster, name, zone) => {
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

/// A naive implementation of the tables.
#[derive(Default)]
pub struct Oracle(
    BTreeMap<RecordKey, Arc<Record>>,
    BTreeMap<NodeKey, NodeTable>,
);

impl Oracle {
    pub fn apply(&mut self, delta: &TableDelta) {
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

    pub fn table(&self, node: &NodeKey) -> NodeTable {
        let of_cluster = self.0.iter().filter(|(key, _)| key.cluster == node.cluster);
        NodeTable {
            records: of_cluster
                .map(|(key, record)| (key.clone(), Arc::clone(record)))
                .collect(),
            ..self.1.get(node).cloned().unwrap_or_default()
        }
    }
}

/// The messages in the chunks, inflated, as an agent sees them.
pub fn decode(chunks: impl IntoIterator<Item = Bytes>) -> VecDeque<v1::Frame> {
    let mut frames = VecDeque::new();
    for mut chunk in chunks {
        while chunk.has_remaining() {
            assert_eq!(chunk.get_u8(), 0);
            let length = chunk.get_u32() as usize;
            let frame = v1::Frame::decode(chunk.split_to(length)).unwrap();
            frames.push_back(inflate(frame));
        }
    }
    frames
}

pub fn inflate(frame: v1::Frame) -> v1::Frame {
    let Some(v1::frame::Frame::Compressed(compressed)) = &frame.frame else {
        return frame;
    };
    let size = zstd::zstd_safe::get_frame_content_size(compressed).unwrap();
    assert!(size.is_some_and(|size| size <= MAX_FRAME_BYTES as u64));
    let raw = zstd::bulk::decompress(compressed, MAX_FRAME_BYTES).unwrap();
    v1::Frame {
        frame: Some(v1::frame::Frame::Records(
            v1::Records::decode(&raw[..]).unwrap(),
        )),
    }
}
