// SPDX-License-Identifier: Apache-2.0

//! Tables made of frames.

mod newer;
/// Compressed frames, buckets, patches, replacements, and tables kept.
mod resume;
mod support;

use std::collections::BTreeMap;
use std::slice::from_ref;

use portolan_model::NodeInfo;
use portolan_proto::convert::{encode_key, encode_lists};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::*;
use support::{Agent, broken, encoded, frame, key, services, snapshot, sums};

#[test]
fn a_table_is_what_its_snapshot_and_changes_say() {
    let mut agent = Agent::new();
    let (x, y, z) = (encoded("x", 1), encoded("y", 2), encoded("z", 3));
    agent.put(from_ref(&x));
    agent.put(from_ref(&y));
    let first = agent
        .commit(snapshot(sums(&[x, y.clone()], &[], None)))
        .unwrap();
    assert_eq!(services(&first), [("x".into(), 1), ("y".into(), 2)]);
    assert_eq!((first.epoch, first.revision), (9, 1));
    agent.delete("x");
    agent.put(from_ref(&z));
    let second = agent.commit(sums(&[y, z.clone()], &[], None)).unwrap();
    assert_eq!(services(&second), [("y".into(), 2), ("z".into(), 3)]);
    // The first table is unchanged, as it may still be in use.
    assert_eq!(services(&first).len(), 2);
    agent.put(from_ref(&z));
    let third = agent.commit(snapshot(sums(&[z], &[], None))).unwrap();
    assert_eq!(services(&third), [("z".into(), 3)]);
}

#[test]
fn a_nodes_own_lists_and_zone_are_its_table_too() {
    let mut agent = Agent::new();
    let lists = NodeOverlay {
        own: vec![([10, 0, 0, 1], 80).into()],
        ..NodeOverlay::default()
    };
    let encoded = encode_lists(&key("x"), &lists, lists.content_hash(&key("x")));
    let own = v1::Own {
        put: vec![encoded.clone()],
        delete: vec![],
        node: Some(v1::NodeInfo {
            zone: "a".to_owned(),
            ..v1::NodeInfo::default()
        }),
        ..v1::Own::default()
    };
    agent.0.take_frame(frame(Frame::Own(own.clone()))).unwrap();
    let commit = sums(&[], &[encoded], Some("a"));
    let committed = agent.commit(snapshot(commit.clone())).unwrap();
    assert_eq!(committed.table.node.zone.as_deref(), Some("a"));
    assert_eq!(committed.table.lists[&key("x")].as_ref(), &lists);
    assert_eq!(committed.table.own_hash().to_bytes(), *commit.own_hash);
    let gone = v1::Own {
        put: vec![],
        delete: vec![encode_key(&key("x"))],
        node: Some(v1::NodeInfo::default()),
        ..v1::Own::default()
    };
    agent.0.take_frame(frame(Frame::Own(gone))).unwrap();
    let committed = agent.commit(sums(&[], &[], None)).unwrap();
    assert_eq!(*committed.table, NodeTable::default());
    // A snapshot that does not name the zone has none.
    agent.0.take_frame(frame(Frame::Own(own))).unwrap();
    agent.0.begin(v1::Hello::default());
    let committed = agent.commit(snapshot(sums(&[], &[], None))).unwrap();
    assert_eq!(committed.table.node, NodeInfo::default());
}

#[test]
fn a_commit_of_nothing_leaves_the_table_as_it_is() {
    let mut agent = Agent::new();
    let x = encoded("x", 1);
    agent.put(from_ref(&x));
    let first = agent
        .commit(snapshot(sums(from_ref(&x), &[], None)))
        .unwrap();
    let second = agent.commit(sums(&[x], &[], None)).unwrap();
    assert!(Arc::ptr_eq(&first.table, &second.table));
}

#[test]
fn hello_says_what_there_is() {
    let mut agent = Agent::new();
    assert_eq!(agent.hello(), v1::Hello::default());
    let x = encoded("x", 1);
    agent.put(from_ref(&x));
    let commit = snapshot(sums(&[x], &[], None));
    agent.commit(commit.clone()).unwrap();
    let hello = agent.hello();
    assert_eq!((hello.epoch, hello.revision), (9, 1));
    assert_eq!(
        (hello.records_hash, hello.own_hash),
        (commit.records_hash, commit.own_hash)
    );
}

#[test]
fn a_refused_record_keeps_its_last_good_version_and_others_apply() {
    let mut agent = Agent::new();
    let (x, y, bad) = (encoded("x", 1), encoded("y", 2), broken("x", 77));
    agent.put(&[x, y]);
    let both = sums(&[encoded("x", 1), encoded("y", 2)], &[], None);
    agent.commit(snapshot(both)).unwrap();
    let y = encoded("y", 3);
    let with_bad = sums(&[bad.clone(), y.clone()], &[], None);
    // In a change, and in a snapshot after it.
    for commit in [with_bad.clone(), snapshot(with_bad)] {
        agent.put(&[bad.clone(), y.clone()]);
        let committed = agent.commit(commit).unwrap();
        assert_eq!(services(&committed), [("x".into(), 1), ("y".into(), 3)]);
        assert_eq!(committed.refused.len(), 1);
        assert_eq!(committed.refused[0].key, bad.key);
        assert!(committed.refused[0].reason.contains("affinity_seconds"));
    }
    // Its hash is the one that was sent, so a later version takes its place in the sum.
    agent.put(&[encoded("x", 4)]);
    let committed = agent
        .commit(sums(&[encoded("x", 4), y.clone()], &[], None))
        .unwrap();
    assert_eq!(services(&committed), [("x".into(), 4), ("y".into(), 3)]);
    assert!(committed.refused.is_empty());
    agent.put(&[bad]);
    agent
        .commit(sums(&[broken("x", 77), y.clone()], &[], None))
        .unwrap();
    agent.delete("x");
    let committed = agent.commit(sums(&[y], &[], None)).unwrap();
    assert_eq!(services(&committed), [("y".into(), 3)]);
    assert!(committed.refused.is_empty());
}

#[test]
fn a_record_of_an_unknown_protocol_is_refused_and_can_be_deleted() {
    let mut agent = Agent::new();
    let (x, mut odd) = (encoded("x", 1), encoded("odd", 1));
    odd.key.as_mut().unwrap().protocol = 99;
    agent.put(&[odd.clone(), x.clone()]);
    let commit = snapshot(sums(&[odd.clone(), x.clone()], &[], None));
    let committed = agent.commit(commit).unwrap();
    assert_eq!(services(&committed), [("x".into(), 1)]);
    assert_eq!(committed.refused[0].key, odd.key);
    let delete = v1::Records {
        put: vec![],
        delete: vec![odd.key.unwrap()],
        ..v1::Records::default()
    };
    agent.0.take_frame(frame(Frame::Records(delete))).unwrap();
    let committed = agent.commit(sums(&[x], &[], None)).unwrap();
    assert!(committed.refused.is_empty());
}

#[test]
fn a_frontend_that_is_left_out_is_reported() {
    let mut agent = Agent::new();
    let mut x = encoded("x", 1);
    x.frontends.push(v1::Frontend {
        kind: 99,
        ..v1::Frontend::default()
    });
    agent.put(from_ref(&x));
    let committed = agent.commit(snapshot(sums(&[x], &[], None))).unwrap();
    assert_eq!(services(&committed).len(), 1);
    assert!(committed.refused[0].reason.contains("left out"));
}

#[test]
fn a_commit_that_does_not_fit_changes_nothing_and_asks_for_all() {
    let (x, y) = (encoded("x", 1), encoded("y", 2));
    let good = snapshot(sums(from_ref(&x), &[], None));
    let wrong_own = sums(&[x.clone(), y.clone()], &[], Some("a"));
    let wrong_records = sums(from_ref(&x), &[], None);
    let no_hash = v1::Commit {
        own_hash: vec![1],
        ..wrong_records.clone()
    };
    for wrong in [wrong_own, wrong_records, no_hash] {
        let mut agent = Agent::new();
        agent.put(from_ref(&x));
        let before = agent.commit(good.clone()).unwrap();
        agent.put(from_ref(&y));
        agent.commit(wrong).unwrap_err();
        assert_eq!(agent.hello(), v1::Hello::default());
        assert_eq!(agent.0.table, before.table);
        agent.put(from_ref(&y));
        let after = agent
            .commit(snapshot(sums(from_ref(&y), &[], None)))
            .unwrap();
        assert_eq!(services(&after), [("y".into(), 2)]);
    }
}

#[test]
fn frames_of_a_broken_stream_are_dropped() {
    let mut agent = Agent::new();
    agent.put(&[encoded("x", 1)]);
    agent.hello();
    agent.put(&[encoded("y", 2)]);
    let committed = agent
        .commit(snapshot(sums(&[encoded("y", 2)], &[], None)))
        .unwrap();
    assert_eq!(services(&committed), [("y".into(), 2)]);
}

#[test]
fn unknown_frames_are_ignored() {
    let mut agent = Agent::new();
    let taken = agent.0.take_frame(v1::Frame { frame: None });
    assert!(matches!(taken, Ok(Taken::Unknown)));
}

proptest! {
    /// Any changes, good and broken: the table is the last good value of each record there is.
    #[test]
    fn tables_follow_what_is_sent(
        commits in vec((any::<bool>(), btree_map("[a-e]", 0..4_u16, 0..6)), 1..12),
    ) {
        let mut agent = Agent::new();
        let mut sent: BTreeMap<String, v1::Record> = BTreeMap::new();
        let mut good: BTreeMap<String, u16> = BTreeMap::new();
        for (whole, changes) in commits {
            let last_good = good.clone();
            if whole {
                sent.clear();
                good.clear();
            }
            for (name, port) in changes {
                if port == 0 {
                    agent.delete(&name);
                    sent.remove(&name);
                    good.remove(&name);
                    continue;
                }
                let breaks = port == 1;
                let record = if breaks { broken(&name, 1 << 90) } else { encoded(&name, port) };
                agent.put(from_ref(&record));
                sent.insert(name.clone(), record);
                let in_force = if breaks { last_good.get(&name).copied() } else { Some(port) };
                good.extend(in_force.map(|port| (name, port)));
            }
            let all: Vec<v1::Record> = sent.values().cloned().collect();
            let commit = v1::Commit { snapshot: whole, ..sums(&all, &[], None) };
            let committed = agent.commit(commit).unwrap();
            let refused = all.iter().filter(|r| r.affinity_seconds == u32::MAX).count();
            prop_assert_eq!(committed.refused.len(), refused);
            let got: BTreeMap<String, u16> = services(&committed).into_iter().collect();
            prop_assert_eq!(&got, &good);
        }
    }
}
