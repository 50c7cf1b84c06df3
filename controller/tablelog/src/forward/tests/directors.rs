// SPDX-License-Identifier: Apache-2.0

//! Directors that a relay withholds the loss of.

use portolan_model::NodeInfo;
use portolan_select::TableDelta;

use super::*;

/// These changes, with a Director of the first node.
fn directed(changes: &[TestChange], director: Option<&str>) -> TableDelta {
    let mut changed = delta(changes);
    let info = NodeInfo {
        zone: Some("a".into()),
        director: director.map(Into::into),
        ..NodeInfo::default()
    };
    changed.nodes.insert(node(0, 0), info);
    changed
}

fn directed_root(changes: &[TestChange], director: Option<&str>) -> (Publisher, TableReader) {
    let (mut publisher, tables) = synced(Retention::default());
    publisher.publish(&directed(changes, director));
    (publisher, tables)
}

fn director(relay: &Relay) -> Option<Arc<str>> {
    relay.tables.table(&node(0, 0)).node.director
}

/// With a Director, connected to a controller of the same or other records without it.
fn doubting(changes: &[TestChange]) -> (Relay, Publisher, TableReader) {
    let (_publisher, tables) = directed_root(&some(), Some("one"));
    let mut relay = Relay::new(Retention::default());
    relay.connect(&tables);
    relay.publish();
    assert_eq!(director(&relay), Some("one".into()));
    let (publisher, without) = directed_root(changes, None);
    assert!(relay.connect(&without));
    (relay, publisher, without)
}

#[test]
fn a_director_that_a_controller_lacks_stays_until_its_loss_is_released() {
    let (mut relay, mut publisher, without) = doubting(&some());
    assert!(relay.forwarder.lost(true).0.is_empty());
    let (lost, loss) = relay.forwarder.lost(false);
    assert!(lost.records.is_empty());
    let names: Vec<&str> = lost.directors.iter().map(|name| &**name).collect();
    assert_eq!(names, ["n0"]);
    assert_eq!((loss.lost.records, loss.of.records), (1, 3));
    relay.forwarder.withhold(lost.clone());
    relay.publish();
    assert_eq!(director(&relay), Some("one".into()));
    // Later transitions of the stream are checked and published beside it.
    publisher.publish(&delta(&[TestChange::Record(0, 3, Some(1))]));
    relay.follow(&without);
    assert_eq!(relay.forwarder.lost(true).0, lost);
    relay.publish();
    assert_eq!(bytes_of(&relay.tables), bytes_of(&without));
    assert_eq!(director(&relay), Some("one".into()));
    relay.forwarder.withhold(Lost::default());
    relay.publish();
    assert_eq!(director(&relay), None);
    assert_eq!(tables_of(&relay.tables), tables_of(&without));
    assert!(!relay.connect(&without), "it is equal");
}

#[test]
fn a_stream_that_follows_a_withheld_director_begins_with_a_snapshot() {
    let (mut relay, _publisher, without) = doubting(&some());
    let (lost, _) = relay.forwarder.lost(false);
    relay.forwarder.withhold(lost.clone());
    relay.publish();
    let hello = relay.forwarder.begin(v1::Hello::default());
    assert_eq!((hello.epoch, hello.revision), (0, 0));
    assert!(relay.connect(&without));
    assert_eq!(relay.forwarder.lost(true).0, lost);
    // A controller that has Directors ends it.
    let (_publisher, with) = directed_root(&some(), Some("two"));
    assert!(relay.connect(&with));
    assert!(relay.forwarder.lost(false).0.is_empty());
    relay.forwarder.withhold(Lost::default());
    relay.publish();
    assert_eq!(director(&relay), Some("two".into()));
    assert_eq!(tables_of(&relay.tables), tables_of(&with));
}

#[test]
fn a_director_is_withheld_beside_a_record() {
    let (mut relay, _publisher, without) = doubting(&some()[1..]);
    let (lost, loss) = relay.forwarder.lost(false);
    assert_eq!((lost.records.len(), lost.directors.len()), (1, 1));
    assert_eq!((loss.lost.records, loss.of.records), (2, 3));
    let before = bytes_of(&relay.tables);
    relay.forwarder.withhold(lost);
    relay.publish();
    assert_eq!(director(&relay), Some("one".into()));
    assert_eq!(bytes_of(&relay.tables), before);
    relay.forwarder.withhold(Lost::default());
    relay.publish();
    assert_eq!(director(&relay), None);
    assert_eq!(tables_of(&relay.tables), tables_of(&without));
    assert_eq!(bytes_of(&relay.tables), bytes_of(&without));
}

#[test]
fn a_record_goes_at_once_beside_a_withheld_director() {
    let (mut relay, _publisher, without) = doubting(&some()[1..]);
    let (lost, loss) = relay.forwarder.lost(false);
    let of_records = lost.of_records(loss);
    assert_eq!((of_records.lost.records, of_records.of.records), (1, 2));
    let (directors, loss) = lost.without_records(loss);
    assert_eq!((loss.lost.records, loss.of.records), (1, 3));
    assert_eq!(loss.lost.endpoints, 0);
    relay.forwarder.withhold(directors);
    assert!(!relay.forwarder.withholds_records());
    relay.publish();
    assert_eq!(director(&relay), Some("one".into()));
    assert_eq!(bytes_of(&relay.tables), bytes_of(&without));
}

/// The first `NodeInfo` has two networks of one family, and states its hash: the agent decides
/// whether it can take it.
#[test]
fn facts_that_cannot_be_read_lose_no_director() {
    let (relay, _publisher, _without) = doubting(&some());
    let network = v1::Network {
        network: Some(v1::network::Network::V4(0)),
        prefix_length: 8,
    };
    let odd = v1::NodeInfo {
        pod_cidrs: vec![network.clone(), network],
        hash: ContentHash(77).to_bytes().into(),
        ..v1::NodeInfo::default()
    };
    let log = relay.tables.read();
    for (info, lost) in [(odd, 0), (v1::NodeInfo::default(), 1)] {
        let mut staged = Staged::default();
        let own = EncodedOwn {
            node: Some(encode(&info)),
            of_node: "n0".to_owned(),
            ..EncodedOwn::default()
        };
        staged.take_own(own, &CLUSTER.into()).unwrap();
        assert_eq!(staged.lost_directors(log.of(CLUSTER)).len(), lost);
    }
}
