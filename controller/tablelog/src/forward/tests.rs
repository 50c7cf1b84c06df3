// SPDX-License-Identifier: Apache-2.0

use portolan_model::NodeTable;
use portolan_proto::encoded::{EncodedFrame, Frame, encode};
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;
use prost::bytes::{Buf, Bytes};

use super::*;
use crate::feed::Delivery;
use crate::reader::{First, Have, Next};
use crate::testing::{Oracle, TestChange, change, delta, node};
use crate::{Retention, Scope};

mod directors;

const SMALL: Retention = Retention {
    record_tombstones: 2,
    list_tombstones: 1,
    idle_nodes: 1,
};

const CLUSTER: &str = "c0";

fn all_nodes() -> Scope {
    Scope::AllNodes(CLUSTER.into())
}

fn synced(retention: Retention) -> (Publisher, TableReader) {
    let (mut publisher, tables) = Publisher::new(retention);
    publisher.set_synced(&CLUSTER.into());
    (publisher, tables)
}

/// The messages of a delivery, as a relay receives them.
fn messages(mut delivery: Delivery) -> Vec<Frame> {
    let mut messages = Vec::new();
    for mut chunk in std::iter::from_fn(|| delivery.next_chunk()) {
        while chunk.has_remaining() {
            assert_eq!(chunk.get_u8(), 0);
            let length = chunk.get_u32() as usize;
            let frame = EncodedFrame::decode(chunk.split_to(length)).unwrap();
            messages.push(match frame.frame.unwrap() {
                Frame::Compressed(compressed) => {
                    let raw = zstd::bulk::decompress(&compressed, 1 << 24).unwrap();
                    Frame::Records(EncodedRecords::decode(Bytes::from(raw)).unwrap())
                }
                other => other,
            });
        }
    }
    messages
}

/// A relay without its connection.
struct Relay {
    forwarder: Forwarder,
    tables: TableReader,
    /// The epoch and revision of the last Commit on this stream.
    at: Option<(u64, u64)>,
}

impl Relay {
    fn new(retention: Retention) -> Self {
        let (publisher, tables) = Publisher::new(retention);
        Self {
            forwarder: Forwarder::new(CLUSTER, publisher, tables.clone()),
            tables,
            at: None,
        }
    }

    fn have(&mut self) -> Have {
        let hello = self.forwarder.begin(v1::Hello::default());
        let hash = SetHash::from_bytes;
        let hashes = hash(&hello.records_hash).zip(hash(&hello.own_hash));
        Have {
            epoch: hello.epoch,
            revision: hello.revision,
            hashes: hashes.map(|(records, own)| TableHashes { records, own }),
            source_versions: hello.source_versions,
            since: None,
        }
    }

    /// Begins a stream; returns whether a snapshot was needed.
    fn connect(&mut self, upstream: &TableReader) -> bool {
        let feed = upstream.feed(&CLUSTER.into());
        let have = self.have();
        match upstream.first(&feed, &all_nodes(), &have) {
            First::Deliver(delivery, _) => {
                self.take_delivery(upstream, delivery).unwrap();
                false
            }
            First::Snapshot => {
                let delivery = upstream.snapshot(&feed, &all_nodes());
                self.take_delivery(upstream, delivery).unwrap();
                true
            }
            other => panic!("{other:?}"),
        }
    }

    fn follow(&mut self, upstream: &TableReader) {
        let feed = upstream.feed(&CLUSTER.into());
        loop {
            let (_, cursor) = self.at.unwrap();
            let delivery = match upstream.next(&feed, &all_nodes(), cursor) {
                Next::Nothing => return,
                Next::Deliver(delivery) => delivery,
                Next::Snapshot => upstream.snapshot(&feed, &all_nodes()),
            };
            self.take_delivery(upstream, delivery).unwrap();
        }
    }

    fn take_delivery(
        &mut self,
        upstream: &TableReader,
        delivery: Delivery,
    ) -> Result<(), ForwardError> {
        self.take_messages(upstream, messages(delivery))
    }

    fn take_messages(
        &mut self,
        upstream: &TableReader,
        messages: Vec<Frame>,
    ) -> Result<(), ForwardError> {
        for message in messages {
            match message {
                Frame::Records(records) => self.forwarder.take_records(records)?,
                Frame::Own(own) => self.forwarder.take_own(own)?,
                Frame::Commit(commit) => {
                    let epoch = upstream.epoch();
                    let committed = self.forwarder.commit(commit, epoch)?;
                    self.at = Some((epoch, committed.revision));
                }
                other => panic!("{other:?}"),
            }
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.forwarder.publish(Instant::now());
    }
}

/// All nodes of generated changes, and one with an empty own part.
fn nodes() -> impl Iterator<Item = NodeKey> {
    (0..6).map(|name| node(0, name))
}

fn tables_of(tables: &TableReader) -> Vec<NodeTable> {
    nodes().map(|node| tables.table(&node)).collect()
}

/// The encoded bytes of all records.
fn bytes_of(tables: &TableReader) -> Vec<Bytes> {
    tables.read().of(CLUSTER).records().all().put
}

#[derive(Debug, Clone, Copy)]
enum Doing {
    /// Nothing: the relay is slow.
    Nothing,
    /// Takes all transitions without publishing them.
    Follow,
    Publish,
    Reconnect,
    /// Connects to the other of two controllers.
    Move,
    Restart,
}

fn doing() -> impl Strategy<Value = Doing> {
    prop_oneof![
        3 => Just(Doing::Nothing),
        3 => Just(Doing::Follow),
        4 => Just(Doing::Publish),
        2 => Just(Doing::Reconnect),
        1 => Just(Doing::Move),
        1 => Just(Doing::Restart),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each relay of two tiers has the tables of the controller behind it, byte by byte, from any
    /// controller and revision.
    #[test]
    fn relays_have_the_tables_of_the_controller_behind_them(
        steps in vec((vec(change(), 1..6), doing(), doing()), 1..25),
        small in any::<bool>(),
    ) {
        let retention = if small { SMALL } else { Retention::default() };
        let mut roots = [synced(retention), synced(retention)];
        // The two controllers have different revisions.
        roots[1].0.publish(&delta(&[TestChange::Record(0, 9, Some(1))]));
        roots[1].0.publish(&delta(&[TestChange::Record(0, 9, None)]));
        let mut oracle = Oracle::default();
        let mut at = 0;
        let (mut first, mut second) = (Relay::new(retention), Relay::new(retention));
        first.connect(&roots[at].1);
        first.publish();
        second.connect(&first.tables);
        for (changes, of_first, of_second) in steps {
            let delta = delta(&changes);
            oracle.apply(&delta);
            for (publisher, _) in &mut roots {
                publisher.publish(&delta);
            }
            match of_first {
                Doing::Nothing => {}
                Doing::Follow => first.follow(&roots[at].1),
                Doing::Publish => {
                    first.follow(&roots[at].1);
                    first.publish();
                }
                Doing::Reconnect => drop(first.connect(&roots[at].1)),
                Doing::Move => {
                    at = 1 - at;
                    first.connect(&roots[at].1);
                }
                // The restarted relay has another epoch.
                Doing::Restart => {
                    first = Relay::new(retention);
                    first.connect(&roots[at].1);
                    first.publish();
                    second.connect(&first.tables);
                }
            }
            if matches!(of_first, Doing::Publish | Doing::Restart) {
                for node in nodes() {
                    prop_assert_eq!(first.tables.table(&node), oracle.table(&node));
                }
                prop_assert_eq!(bytes_of(&first.tables), bytes_of(&roots[at].1));
            }
            match of_second {
                Doing::Nothing => {}
                Doing::Follow => second.follow(&first.tables),
                Doing::Publish => {
                    second.follow(&first.tables);
                    second.publish();
                    prop_assert_eq!(tables_of(&second.tables), tables_of(&first.tables));
                }
                Doing::Reconnect | Doing::Move => drop(second.connect(&first.tables)),
                Doing::Restart => {
                    second = Relay::new(retention);
                    second.connect(&first.tables);
                }
            }
        }
        first.follow(&roots[at].1);
        first.publish();
        second.follow(&first.tables);
        second.publish();
        for tables in [&first.tables, &second.tables] {
            for node in nodes() {
                prop_assert_eq!(tables.table(&node), oracle.table(&node));
            }
            let (ours, roots) = (tables.read(), roots[at].1.read());
            let (ours, roots) = (ours.of(CLUSTER), roots.of(CLUSTER));
            prop_assert_eq!(ours.hashes_of_all(), roots.hashes_of_all());
        }
    }
}

fn root(changes: &[TestChange]) -> (Publisher, TableReader) {
    let (mut publisher, tables) = synced(Retention::default());
    publisher.publish(&delta(changes));
    (publisher, tables)
}

fn some() -> Vec<TestChange> {
    vec![
        TestChange::Record(0, 0, Some(1)),
        TestChange::Record(0, 1, Some(2)),
        TestChange::Lists(0, 1, 0, Some(1)),
        TestChange::Zone(0, 2, Some("a")),
    ]
}

#[test]
fn a_relay_resumes_and_needs_no_snapshot_for_what_it_has() {
    let (mut publisher, tables) = root(&some());
    let mut relay = Relay::new(Retention::default());
    assert!(relay.connect(&tables));
    relay.publish();
    assert!(!relay.connect(&tables), "it is equal");
    relay.publish();
    publisher.publish(&delta(&[TestChange::Lists(0, 1, 0, None)]));
    assert!(!relay.connect(&tables), "it is told what it missed");
    relay.publish();
    assert_eq!(tables_of(&relay.tables), tables_of(&tables));
    // A restarted controller has the same tables and other revisions.
    let mut same = some();
    same.remove(2);
    let (_publisher, other) = root(&same);
    assert!(!relay.connect(&other), "it is equal there too");
}

#[test]
fn transitions_that_do_not_fit_their_hashes_are_not_published() {
    let (mut publisher, tables) = root(&some());
    let feed = tables.feed(&CLUSTER.into());
    let mut relay = Relay::new(Retention::default());
    relay.connect(&tables);
    relay.publish();
    let before = tables_of(&relay.tables);
    publisher.publish(&delta(&[
        TestChange::Record(0, 2, Some(1)),
        TestChange::Lists(0, 3, 2, Some(1)),
    ]));
    let whole = || messages(tables.snapshot(&feed, &all_nodes()));
    for (lost, part) in [("Records", "records"), ("Own", "the nodes' own")] {
        let mut without = whole();
        let is_lost = |frame: &Frame| format!("{frame:?}").starts_with(lost);
        let index = without.iter().position(is_lost).unwrap();
        without.remove(index);
        let error = relay.take_messages(&tables, without).unwrap_err();
        assert!(error.to_string().starts_with(part), "{error}");
        relay.publish();
        assert_eq!(tables_of(&relay.tables), before);
        let hello = relay.forwarder.begin(v1::Hello::default());
        assert_eq!(hello, v1::Hello::default(), "it wants everything");
    }
    relay.take_messages(&tables, whole()).unwrap();
    relay.publish();
    assert_eq!(tables_of(&relay.tables), tables_of(&tables));
}

#[test]
fn lost_records_are_known_before_they_are_published() {
    let (_publisher, tables) = root(&some());
    let mut relay = Relay::new(Retention::default());
    relay.connect(&tables);
    relay.publish();
    let (_publisher, empty) = root(&[TestChange::Record(0, 1, Some(2))]);
    relay.connect(&empty);
    let (lost, loss) = relay.forwarder.lost(false);
    assert_eq!((lost.records.len(), loss.of.records), (1, 2));
    assert_eq!(loss.lost.records, 1);
    assert!(relay.forwarder.lost(true).0.is_empty());
    // The next stream does not begin at the pending transition.
    let hello = relay.forwarder.begin(v1::Hello::default());
    assert_eq!((hello.epoch, hello.revision), (tables.epoch(), 1));
    relay.publish();
    assert_eq!(tables_of(&relay.tables), tables_of(&tables));
}

/// A record of a newer controller, with a field that this version does not know.
fn newer(service: &str, protocol: i32, hash: u8) -> Bytes {
    let record = v1::Record {
        key: Some(v1::RecordKey {
            namespace: "ns".to_owned(),
            service: service.to_owned(),
            port: String::new(),
            protocol,
        }),
        hash: vec![hash; 16],
        ..v1::Record::default()
    };
    let mut bytes = record.encode_to_vec();
    // Field 1,000, a varint.
    bytes.extend([0xc0, 0x3e, 7]);
    bytes.into()
}

fn commit_of(hashes: &[u8], revision: u64) -> v1::Commit {
    let hash = |byte: &u8| ContentHash::from_bytes(&[*byte; 16]).unwrap();
    let records: SetHash = hashes.iter().map(hash).collect();
    v1::Commit {
        revision,
        records_hash: records.to_bytes().into(),
        own_hash: SetHash::default().to_bytes().into(),
        ..v1::Commit::default()
    }
}

#[test]
fn unknown_fields_are_passed_on_and_records_without_a_key_are_left_out() {
    let mut relay = Relay::new(Retention::default());
    let put = vec![newer("a", 1, 1), newer("b", 9, 2)];
    let known = put[0].clone();
    let records = EncodedRecords {
        put,
        ..EncodedRecords::default()
    };
    relay.forwarder.take_records(records).unwrap();
    relay.forwarder.commit(commit_of(&[1, 2], 1), 7).unwrap();
    relay.publish();
    assert_eq!(bytes_of(&relay.tables), [known]);
    assert_eq!(relay.forwarder.left_out(), 1);
    let hello = relay.forwarder.begin(v1::Hello::default());
    assert_eq!(hello.records_hash, commit_of(&[1, 2], 1).records_hash);
    // A foreign record is deleted like any other.
    let key = v1::RecordKey {
        namespace: "ns".to_owned(),
        service: "b".to_owned(),
        port: String::new(),
        protocol: 9,
    };
    let records = EncodedRecords {
        delete: vec![encode(&key)],
        ..EncodedRecords::default()
    };
    relay.forwarder.take_records(records).unwrap();
    relay.forwarder.commit(commit_of(&[1], 2), 7).unwrap();
    relay.publish();
    assert_eq!(relay.forwarder.left_out(), 0);
}

/// The `NodeInfo` of a newer controller has a field that this version does not know, and an
/// invalid one.
#[test]
fn facts_about_nodes_are_passed_on_byte_by_byte() {
    let network = v1::Network {
        network: Some(v1::network::Network::V4(0)),
        prefix_length: 8,
    };
    let info = |pod_cidrs| v1::NodeInfo {
        zone: "a".to_owned(),
        pod_cidrs,
        eligible: true,
        groups: Vec::new(),
        director: Vec::new(),
        hash: ContentHash(77).to_bytes().into(),
    };
    for pod_cidrs in [vec![], vec![network.clone(), network]] {
        let mut bytes = info(pod_cidrs).encode_to_vec();
        bytes.extend([0xa0, 0x1f, 1]);
        let (bytes, mut relay) = (Bytes::from(bytes), Relay::new(Retention::default()));
        relay.forwarder.begin(v1::Hello::default());
        let own = EncodedOwn {
            node: Some(bytes.clone()),
            of_node: "n".to_owned(),
            ..EncodedOwn::default()
        };
        relay.forwarder.take_own(own).unwrap();
        let own: SetHash = [ContentHash(77)].into_iter().collect();
        let all: SetHash = [node_hash("n", own)].into_iter().collect();
        let commit = v1::Commit {
            revision: 1,
            snapshot: true,
            records_hash: SetHash::default().to_bytes().into(),
            own_hash: all.to_bytes().into(),
            ..v1::Commit::default()
        };
        relay.forwarder.commit(commit, 1).unwrap();
        relay.publish();
        let feed = relay.tables.feed(&CLUSTER.into());
        let node = NodeKey {
            cluster: CLUSTER.into(),
            name: "n".into(),
        };
        let sent = messages(relay.tables.snapshot(&feed, &Scope::from(&node)));
        let sent_bytes = sent.iter().find_map(|message| match message {
            Frame::Own(own) => own.node.clone(),
            _ => None,
        });
        assert_eq!(sent_bytes, Some(bytes));
        let Some(Frame::Commit(commit)) = sent.last() else {
            panic!("{sent:?}");
        };
        assert_eq!(commit.own_hash, own.to_bytes());
    }
}
