// SPDX-License-Identifier: Apache-2.0

use portolan_model::{NodeTable, SetHash};

use super::*;
use crate::ClusterOrigin;
use crate::testing::{TestChange, delta};

const RETENTION: Retention = Retention {
    record_tombstones: 2,
    list_tombstones: 1,
    idle_nodes: 1,
};

fn apply(log: &mut TableLog, changes: &[TestChange]) -> u64 {
    log.apply(Prepared::from(&delta(changes)), &Origin::default())
        .revision
}

#[test]
fn a_delta_that_says_nothing_new_makes_no_revision() {
    let mut log = TableLog::default();
    let first = [
        TestChange::Record(0, 0, Some(0)),
        TestChange::Zone(0, 0, Some("a")),
    ];
    assert_eq!(apply(&mut log, &first), 1);
    assert_eq!(apply(&mut log, &first), 1);
    assert_eq!(apply(&mut log, &[]), 1);
    let gone = [
        TestChange::Record(0, 7, None),
        TestChange::Lists(0, 7, 7, None),
    ];
    assert_eq!(apply(&mut log, &gone), 1);
}

#[test]
fn a_cluster_is_not_disturbed_by_another() {
    let mut log = TableLog::default();
    apply(&mut log, &[TestChange::Record(0, 0, Some(0))]);
    apply(&mut log, &[TestChange::Record(1, 0, Some(0))]);
    let heads = ["c0", "c1", "c2"].map(|cluster| log.of(cluster).head());
    assert_eq!(heads, [1, 2, 0]);
    let unknown = log.of("c2").hashes("n0");
    assert_eq!(unknown.records, SetHash::default());
    assert_eq!(unknown.own, NodeTable::default().own_hash());
    // An agent can resume from revision 0, before the first revision of its cluster.
    let since = log.of("c1").records().since(0).unwrap();
    assert_eq!(since.put.len(), 1);
    assert!(log.of("c1").own_since("n0", 0).is_some());
    assert!(log.of("c1").own_since("n0", 3).is_none());
}

#[test]
fn tombstones_are_kept_up_to_a_bound() {
    let mut log = TableLog::new(RETENTION);
    for service in 0..50 {
        apply(&mut log, &[TestChange::Record(0, service, Some(0))]);
        apply(&mut log, &[TestChange::Record(0, service, None)]);
        apply(&mut log, &[TestChange::Zone(0, service, Some("a"))]);
        apply(&mut log, &[TestChange::Zone(0, service, None)]);
    }
    let of = log.of("c0");
    assert_eq!(of.remembered(), (2, 1));
    assert!(of.records().since(100).is_none());
    assert!(of.own_since("n0", 100).is_none());
    let recent = of.own_since("n49", of.head() - 1).unwrap();
    assert_eq!(recent.info, Some(NodeItem::default().encoded));
}

#[test]
fn a_node_that_was_forgotten_is_sent_all_again() {
    let mut log = TableLog::new(RETENTION);
    apply(&mut log, &[TestChange::Zone(0, 0, Some("a"))]);
    for idle in 0..3 {
        apply(&mut log, &[TestChange::Zone(0, idle, Some("b"))]);
        apply(&mut log, &[TestChange::Zone(0, idle, None)]);
    }
    assert!(log.of("c0").own_since("n0", 1).is_none());
    // The same if the node has lists again by then.
    apply(&mut log, &[TestChange::Lists(0, 0, 0, Some(1))]);
    assert!(log.of("c0").own_since("n0", 1).is_none());
}

#[test]
fn sums_of_buckets_follow_the_records() {
    let mut log = TableLog::default();
    for service in 0..60 {
        apply(&mut log, &[TestChange::Record(0, service, Some(1))]);
    }
    for service in 0..30 {
        apply(&mut log, &[TestChange::Record(0, service, Some(2))]);
        apply(&mut log, &[TestChange::Record(0, service + 20, None)]);
    }
    let mut again = TableLog::default();
    let kept: Vec<TestChange> = (0..60)
        .filter(|service| !(30..50).contains(service))
        .map(|service| TestChange::Record(0, service, Some(if service < 30 { 2 } else { 1 })))
        .collect();
    apply(&mut again, &kept);
    for count in [1_usize, 64, 1_024, 4_096] {
        let none = vec![[0; 8]; count];
        let (of, other) = (log.of("c0"), again.of("c0"));
        assert_eq!(
            of.buckets().differing(&none),
            other.buckets().differing(&none)
        );
        assert_eq!(of.buckets().differing(&none).1, of.records().bytes());
    }
}

#[test]
fn source_versions_only_grow() {
    let mut log = TableLog::default();
    let mut from = |versions: &[u64]| {
        let origin = Origin::versions(&"c0".into(), versions.to_vec());
        log.apply(Prepared::from(&delta(&[])), &origin);
        assert_eq!(log.of("c1").source_versions(), [0; 0]);
        log.of("c0").source_versions().to_vec()
    };
    assert_eq!(from(&[1, 5, 3]), [1, 5, 3]);
    assert_eq!(from(&[2, 4, 3]), [2, 5, 3]);
    assert_eq!(from(&[]), [2, 5, 3]);
    assert_eq!(from(&[7]), [7]);
}

#[test]
fn the_versions_of_a_source_that_is_gone_are_forgotten() {
    let mut log = TableLog::default();
    for versions in [[10, 10, 10], [3, 3, 3]] {
        let origin = Origin::versions(&"c0".into(), versions.to_vec());
        log.apply(Prepared::from(&delta(&[])), &origin);
        assert_eq!(log.of("c0").source_versions(), versions);
        log.forget_versions("c0");
        log.forget_versions("c1");
        assert_eq!(log.of("c0").source_versions(), [0; 0]);
    }
}

#[test]
fn triggers_are_known_of_recent_revisions() {
    let mut log = TableLog::default();
    for revision in 1..100 {
        let of_cluster = ClusterOrigin {
            trigger_times_ms: vec![revision],
            ..ClusterOrigin::default()
        };
        let origin = Origin::of(&"c0".into(), of_cluster);
        let value = u16::try_from(revision).unwrap();
        log.apply(
            Prepared::from(&delta(&[TestChange::Record(0, 0, Some(value))])),
            &origin,
        );
    }
    let of = log.of("c0");
    assert_eq!(of.triggers_since(97), [98, 99]);
    assert_eq!(of.triggers_since(99), [0; 0]);
    assert_eq!(of.triggers_since(0).len(), 64);
}
