// SPDX-License-Identifier: Apache-2.0

use portolan_model::{ContentHash, Destination, Record};
use portolan_proto::buckets::{bucket_hashes, bucket_of};
use portolan_proto::convert::{encode_record, make_patch};
use portolan_proto::limits::MAX_FRAME_BYTES;

use super::support::record;
use super::*;

/// A record with so many destinations, or none.
fn wide(service: &str, ports: &[u16]) -> Record {
    let addresses = ports.iter().map(|port| ([10, 0, 0, 1], *port).into());
    Record {
        destinations: addresses.map(Destination::new).collect(),
        ..record(service, 1)
    }
}

fn wire(record: &Record) -> v1::Record {
    encode_record(record, record.content_hash())
}

fn patch(old: &Record, new: &Record) -> v1::RecordPatch {
    make_patch(old, old.content_hash(), new, new.content_hash()).unwrap()
}

fn patches(patch: Vec<v1::RecordPatch>) -> Frame {
    Frame::Records(v1::Records {
        patch,
        ..v1::Records::default()
    })
}

fn buckets(replace_buckets: Vec<u32>, bucket_count: u32) -> Frame {
    Frame::Records(v1::Records {
        replace_buckets,
        bucket_count,
        ..v1::Records::default()
    })
}

fn compressed(records: &v1::Records) -> Vec<u8> {
    zstd::bulk::compress(&records.encode_to_vec(), 3).unwrap()
}

/// An agent that has these records.
fn agent_with(records: &[v1::Record]) -> Agent {
    let mut agent = Agent::new();
    agent.put(records);
    agent.commit(snapshot(sums(records, &[], None))).unwrap();
    agent
}

fn assert_refused(agent: &mut Agent, given: Frame) -> String {
    let before = Arc::clone(&agent.0.table);
    let error = agent.0.take_frame(frame(given)).unwrap_err();
    assert_eq!(agent.0.table, before);
    assert_eq!(agent.hello(), v1::Hello::default());
    error.to_string()
}

#[test]
fn compressed_records_are_records() {
    let (x, y) = (encoded("x", 1), encoded("y", 2));
    let mut agent = agent_with(from_ref(&x));
    let records = v1::Records {
        put: vec![y.clone()],
        delete: vec![x.key.unwrap()],
        ..v1::Records::default()
    };
    let given = Frame::Compressed(compressed(&records));
    agent.0.take_frame(frame(given)).unwrap();
    let committed = agent.commit(sums(&[y], &[], None)).unwrap();
    assert_eq!(services(&committed), [("y".into(), 2)]);
}

#[test]
fn malformed_or_oversized_compressed_frames_end_the_stream() {
    let records = v1::Records {
        put: vec![encoded("x", 1)],
        ..v1::Records::default()
    };
    let good = compressed(&records);
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 0x55;
    let sizeless = zstd::stream::encode_all(records.encode_to_vec().as_slice(), 3).unwrap();
    let bomb = zstd::bulk::compress(&vec![0; MAX_FRAME_BYTES + 1], 3).unwrap();
    assert!(bomb.len() < 10_000);
    let garbage = zstd::bulk::compress(&[0xff; 100], 3).unwrap();
    for (given, reason) in [
        (vec![], "not a zstd frame"),
        (b"garbage".to_vec(), "not a zstd frame"),
        (good[..good.len() - 3].to_vec(), "cannot be decompressed"),
        (sizeless, "does not state its size"),
        (bomb, "more than"),
        (garbage, ""),
    ] {
        let mut agent = agent_with(&[encoded("y", 1)]);
        let error = assert_refused(&mut agent, Frame::Compressed(given));
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn replaced_buckets_keep_only_what_is_put_whatever_the_order() {
    let names: Vec<String> = (0..20).map(|i| format!("s{i}")).collect();
    let all: Vec<_> = names.iter().map(|name| encoded(name, 1)).collect();
    let of = |r: &v1::Record| bucket_of(r.key.as_ref().unwrap(), 4);
    let bucket = of(&all[0]);
    let stays: Vec<_> = all.iter().filter(|r| of(r) != bucket).cloned().collect();
    assert!(stays.len() < 19);
    let put = encoded(&names[0], 2);
    let mut after = stays.clone();
    after.push(put.clone());
    for put_first in [true, false] {
        let mut agent = agent_with(&all);
        if put_first {
            agent.put(from_ref(&put));
        }
        agent.0.take_frame(frame(buckets(vec![bucket], 4))).unwrap();
        if !put_first {
            agent.put(from_ref(&put));
        }
        let committed = agent.commit(sums(&after, &[], None)).unwrap();
        assert_eq!(services(&committed).len(), after.len());
        assert!(services(&committed).contains(&(names[0].clone(), 2)));
        // And nothing of it is left for the next transition.
        agent.commit(sums(&after, &[], None)).unwrap();
    }
}

#[test]
fn buckets_that_cannot_be_end_the_stream() {
    for given in [
        buckets(vec![0], 0),
        buckets(vec![0], 3),
        buckets(vec![4], 4),
        buckets(vec![0], 8192),
    ] {
        assert_refused(&mut agent_with(&[]), given);
    }
    let mut agent = agent_with(&[]);
    agent.0.take_frame(frame(buckets(vec![1], 4))).unwrap();
    assert_refused(&mut agent, buckets(vec![1], 8));
}

#[test]
fn an_agent_says_the_hashes_of_its_buckets() {
    let all = [encoded("x", 1), encoded("y", 2)];
    let mut agent = agent_with(&all);
    // Staged changes do not count yet.
    agent.put(&[encoded("z", 3)]);
    let ask = |count| frame(Frame::AskBuckets(v1::AskBuckets { count }));
    let Taken::Asked(answer) = agent.0.take_frame(ask(64)).unwrap() else {
        panic!("no answer");
    };
    let hash = |r: &v1::Record| ContentHash::from_bytes(&r.hash).unwrap();
    let expected = all.iter().map(|r| (r.key.as_ref().unwrap(), hash(r)));
    assert_eq!(answer.hashes, bucket_hashes(expected, 64));
    assert!(agent.0.take_frame(ask(63)).is_err());
}

#[test]
fn a_patch_changes_what_it_names_and_follows_another() {
    let [one, two, three] = [&[1, 2][..], &[2, 3], &[3]].map(|ports| wide("x", ports));
    let mut agent = agent_with(&[wire(&one)]);
    agent
        .0
        .take_frame(frame(patches(vec![patch(&one, &two)])))
        .unwrap();
    let committed = agent.commit(sums(&[wire(&two)], &[], None)).unwrap();
    assert_eq!(*committed.table.records[&key("x")], two);
    // Two in one transition, and one of a record that is put there.
    let (y, z) = (wide("y", &[7]), wide("y", &[7, 8]));
    agent.put(&[wire(&y)]);
    let more = vec![patch(&two, &one), patch(&one, &three), patch(&y, &z)];
    agent.0.take_frame(frame(patches(more))).unwrap();
    let commit = sums(&[wire(&three), wire(&z)], &[], None);
    let committed = agent.commit(commit).unwrap();
    assert_eq!(*committed.table.records[&key("x")], three);
    assert_eq!(*committed.table.records[&key("y")], z);
}

#[test]
fn a_patch_of_what_we_have_not_ends_the_stream() {
    let (one, two, other) = (wide("x", &[1]), wide("x", &[2]), wide("x", &[3]));
    // Another version, none, deleted in this transition, and no key.
    let change = patch(&one, &two);
    assert_refused(
        &mut agent_with(&[wire(&other)]),
        patches(vec![change.clone()]),
    );
    assert_refused(&mut agent_with(&[]), patches(vec![change.clone()]));
    let mut agent = agent_with(&[wire(&one)]);
    agent.delete("x");
    assert_refused(&mut agent, patches(vec![change.clone()]));
    let keyless = v1::RecordPatch {
        key: None,
        ..change.clone()
    };
    assert_refused(&mut agent_with(&[wire(&one)]), patches(vec![keyless]));
    // A rule of the protocol is broken.
    let mut twice = change.clone();
    twice.remove.clone_from(&twice.put);
    let error = assert_refused(&mut agent_with(&[wire(&one)]), patches(vec![twice]));
    assert!(error.contains("ns/x"), "{error}");
}

#[test]
fn a_patch_of_a_refused_record_is_refused_and_the_rest_applies() {
    let (one, two, other) = (wide("x", &[1]), wide("x", &[2]), wide("x", &[3]));
    let change = patch(&one, &two);
    let mut bad = broken("x", 5);
    bad.hash.clone_from(&change.base);
    // Refused in this transition, and in an earlier one.
    for is_earlier in [false, true] {
        let mut agent = agent_with(&[wire(&other)]);
        agent.put(from_ref(&bad));
        let mut why = None;
        if is_earlier {
            let committed = agent.commit(sums(from_ref(&bad), &[], None)).unwrap();
            why = Some(committed.refused);
        }
        agent.put(&[wire(&wide("y", &[7]))]);
        agent
            .0
            .take_frame(frame(patches(vec![change.clone()])))
            .unwrap();
        let sent = [wire(&two), wire(&wide("y", &[7]))];
        let committed = agent.commit(sums(&sent, &[], None)).unwrap();
        assert_eq!(committed.refused.len(), 1);
        assert!(why.is_none_or(|why| why == committed.refused));
        assert_eq!(
            *committed.table.records[&key("x")],
            other,
            "the last good one"
        );
        assert!(committed.table.records.contains_key(&key("y")));
    }
}

#[test]
fn a_patch_of_a_record_taken_in_part_leaves_it_so() {
    let (one, two) = (wide("x", &[1]), wide("x", &[2]));
    let (mut before, mut after) = (wire(&one), wire(&two));
    for record in [&mut before, &mut after] {
        record.frontends.push(v1::Frontend {
            kind: 99,
            ..v1::Frontend::default()
        });
    }
    let mut agent = agent_with(&[before]);
    agent
        .0
        .take_frame(frame(patches(vec![patch(&one, &two)])))
        .unwrap();
    let committed = agent.commit(sums(&[after], &[], None)).unwrap();
    assert_eq!(services(&committed), [("x".into(), 2)]);
    assert!(committed.refused[0].reason.contains("left out"));
}

#[test]
fn replaced_lists_and_node_are_gone_unless_put() {
    let encoded = |name: &str| {
        let lists = NodeOverlay {
            own: vec![([10, 0, 0, 1], 80).into()],
            ..NodeOverlay::default()
        };
        encode_lists(&key(name), &lists, lists.content_hash(&key(name)))
    };
    let own = |name: &str, zone: Option<&str>, replace| v1::Own {
        put: vec![encoded(name)],
        node: zone.map(|zone| v1::NodeInfo {
            zone: zone.to_owned(),
            ..v1::NodeInfo::default()
        }),
        replace,
        ..v1::Own::default()
    };
    let mut agent = Agent::new();
    agent
        .0
        .take_frame(frame(Frame::Own(own("x", Some("a"), false))))
        .unwrap();
    let commit = sums(&[], &[encoded("x")], Some("a"));
    agent.commit(snapshot(commit)).unwrap();
    agent
        .0
        .take_frame(frame(Frame::Own(own("y", None, true))))
        .unwrap();
    let committed = agent.commit(sums(&[], &[encoded("y")], None)).unwrap();
    let keys: Vec<_> = committed.table.lists.keys().cloned().collect();
    assert_eq!(keys, [key("y")]);
    assert_eq!(committed.table.node, NodeInfo::default());
    // Another node's is for relays.
    let others = v1::Own {
        of_node: "b".to_owned(),
        ..own("z", None, false)
    };
    let taken = agent.0.take_frame(frame(Frame::Own(others))).unwrap();
    assert!(matches!(taken, Taken::Unknown));
}

#[test]
fn a_commit_without_own_hash_leaves_what_is_the_nodes_own() {
    let without = |commit: v1::Commit| v1::Commit {
        own_hash: vec![],
        ..commit
    };
    let (x, y) = (encoded("x", 1), encoded("y", 2));
    let mut agent = agent_with(from_ref(&x));
    agent.put(from_ref(&y));
    let commit = without(sums(&[x.clone(), y.clone()], &[], None));
    let committed = agent.commit(commit.clone()).unwrap();
    assert_eq!(committed.own_hash, committed.table.own_hash());
    // Nor may it change without saying so, nor be left open in a whole table.
    agent.commit(snapshot(commit.clone())).unwrap_err();
    let mut agent = agent_with(&[x, y]);
    let own = v1::Own {
        node: Some(v1::NodeInfo {
            zone: "a".to_owned(),
            ..v1::NodeInfo::default()
        }),
        ..v1::Own::default()
    };
    agent.0.take_frame(frame(Frame::Own(own))).unwrap();
    agent.commit(commit.clone()).unwrap_err();
    Agent::new().commit(commit).unwrap_err();
}

#[test]
fn source_versions_are_those_of_the_last_commit_until_they_are_forgotten() {
    let x = encoded("x", 1);
    let mut agent = agent_with(from_ref(&x));
    let commit = v1::Commit {
        source_versions: vec![7, 8, 9],
        trigger_times_ms: vec![5],
        ..sums(from_ref(&x), &[], None)
    };
    let committed = agent.commit(commit).unwrap();
    assert_eq!(committed.trigger_times_ms, [5]);
    assert_eq!(agent.hello().source_versions, [7, 8, 9]);
    assert!(agent.0.forget_source_versions());
    assert!(!agent.0.forget_source_versions());
    assert!(agent.hello().source_versions.is_empty());
    assert_eq!(agent.hello().revision, 1);
}

/// A staging that is restored from the saved state of another one.
pub(super) fn restored(saved: &Saved) -> (Staging, Committed) {
    let mut staging = Staging::new("east", "node-1");
    let mut last = None;
    for frame in saved.frames() {
        if let Taken::Committed(committed) = staging.take_frame(frame).unwrap() {
            last = Some(committed);
        }
    }
    (staging, last.unwrap())
}

#[test]
fn a_saved_table_is_the_same_with_its_hashes_and_position() {
    let records: Vec<_> = (0..2000).map(|i| encoded(&format!("s{i}"), 1)).collect();
    let mut agent = Agent::new();
    agent.put(&records);
    let own = v1::Own {
        node: Some(v1::NodeInfo {
            zone: "a".to_owned(),
            ..v1::NodeInfo::default()
        }),
        ..v1::Own::default()
    };
    agent.0.take_frame(frame(Frame::Own(own))).unwrap();
    let commit = v1::Commit {
        source_versions: vec![3],
        ..snapshot(sums(&records, &[], Some("a")))
    };
    agent.commit(commit).unwrap();
    let saved = agent.0.save();
    assert!(saved.frames().len() > 4);
    let (mut staging, committed) = restored(&saved);
    assert_eq!(committed.table, agent.0.table);
    assert_eq!(staging.begin(v1::Hello::default()), agent.hello());
    assert_eq!((committed.epoch, committed.revision), (9, 1));
}

#[test]
fn a_record_that_was_not_taken_whole_is_asked_for_again_after_a_restart() {
    let (x, y, bad) = (encoded("x", 1), encoded("y", 2), broken("x", 77));
    let mut agent = agent_with(&[x, y.clone()]);
    agent.put(from_ref(&bad));
    agent
        .commit(sums(&[bad.clone(), y.clone()], &[], None))
        .unwrap();
    let (mut staging, committed) = restored(&agent.0.save());
    assert_eq!(services(&committed), [("x".into(), 1), ("y".into(), 2)]);
    let hello = staging.begin(v1::Hello::default());
    assert_eq!(hello.epoch, 0);
    let records_hash = sums(&[bad, y], &[], None).records_hash;
    assert!(!hello.records_hash.is_empty() && hello.records_hash != records_hash);
}

#[test]
fn a_refused_record_without_a_good_version_is_asked_for_again_after_a_restart() {
    let (x, bad) = (encoded("x", 1), broken("y", 77));
    let mut agent = agent_with(from_ref(&x));
    agent.put(from_ref(&bad));
    agent.commit(sums(&[x, bad], &[], None)).unwrap();
    let (mut staging, committed) = restored(&agent.0.save());
    assert_eq!(services(&committed), [("x".into(), 1)]);
    let hello = staging.begin(v1::Hello::default());
    assert_eq!((hello.epoch, hello.revision), (0, 0));
    assert_ne!(hello.records_hash, agent.hello().records_hash);
}

proptest! {
    /// Any sequence of transitions yields the same table as a snapshot of the final state.
    #[test]
    fn any_sequence_is_a_rebuild(
        commits in vec((0..4_u8, 0..16_u32, btree_map(0..8_usize, vec(any::<bool>(), 4), 0..6)), 1..12),
    ) {
        let mut agent = Agent::new();
        let mut sent: BTreeMap<usize, Record> = BTreeMap::new();
        for (kind, bucket_set, changes) in commits {
            let wire_key = |i: &usize| encode_key(&key(&format!("s{i}")));
            let replaced: Vec<u32> = (0..4).filter(|b| bucket_set & (1 << b) != 0).collect();
            let covered = |i: &usize| match kind {
                0 => true,
                1 => replaced.contains(&bucket_of(&wire_key(i), 4)),
                _ => false,
            };
            let last = sent.clone();
            sent.retain(|i, _| !covered(i));
            let mut records = v1::Records::default();
            for (i, ports) in changes {
                let ports: Vec<u16> = (1..5).zip(ports).filter(|(_, is)| *is).map(|(p, _)| p).collect();
                if ports.is_empty() {
                    records.delete.push(wire_key(&i));
                    sent.remove(&i);
                    continue;
                }
                let new = wide(&format!("s{i}"), &ports);
                match last.get(&i) {
                    Some(old) if kind >= 2 => records.patch.push(patch(old, &new)),
                    _ => records.put.push(wire(&new)),
                }
                sent.insert(i, new);
            }
            if kind == 1 {
                // After the rest of them.
                agent.0.take_frame(frame(Frame::Records(records.clone()))).unwrap();
                agent.0.take_frame(frame(buckets(replaced, 4))).unwrap();
            } else {
                agent.0.take_frame(frame(Frame::Compressed(compressed(&records)))).unwrap();
            }
            let all: Vec<v1::Record> = sent.values().map(wire).collect();
            let commit = v1::Commit { snapshot: kind == 0, ..sums(&all, &[], None) };
            let committed = agent.commit(commit).unwrap();
            let mut whole = Agent::new();
            whole.put(&all);
            let rebuilt = whole.commit(snapshot(sums(&all, &[], None))).unwrap();
            prop_assert_eq!(&committed.table, &rebuilt.table);
            prop_assert_eq!(agent.hello(), whole.hello());
            let (_, kept) = restored(&agent.0.save());
            prop_assert_eq!(&committed.table, &kept.table);
        }
    }

    #[test]
    fn any_bytes_are_taken_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let mut agent = Agent::new();
        let _ = agent.0.take_frame(frame(Frame::Compressed(bytes.clone())));
        let packed = zstd::bulk::compress(&bytes, 1).unwrap();
        let _ = agent.0.take_frame(frame(Frame::Compressed(packed)));
    }
}
