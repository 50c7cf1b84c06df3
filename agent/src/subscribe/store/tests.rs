// SPDX-License-Identifier: Apache-2.0

use std::path::Path;

use portolan_model::{Record, SetHash};
use portolan_proto::convert::{encode_node, encode_record};
use portolan_proto::v1::frame::Frame;

use super::*;
use crate::subscribe::forget;
use crate::subscribe::tests::support::record as any_cluster;

fn store(directory: &Path) -> Store {
    Store {
        directory: directory.to_owned(),
        cluster: "east".to_owned(),
        node: "a".to_owned(),
        pin: ClusterPin::default(),
    }
}

/// A record of the cluster `east`.
fn record(service: &str) -> Record {
    let mut record = any_cluster(service);
    record.key.cluster = "east".into();
    record
}

/// A staging with so many records.
fn staging(records: usize) -> Staging {
    let mut staging = Staging::new("east", "node-1");
    let put: Vec<_> = (0..records)
        .map(|i| {
            let record = record(&format!("s{i}"));
            encode_record(&record, record.content_hash())
        })
        .collect();
    let sum = |hashes: &mut dyn Iterator<Item = portolan_model::ContentHash>| -> Vec<u8> {
        hashes.collect::<SetHash>().to_bytes().into()
    };
    let node = portolan_model::NodeInfo::default();
    let commit = v1::Commit {
        revision: 7,
        snapshot: true,
        records_hash: sum(&mut (0..records).map(|i| record(&format!("s{i}")).content_hash())),
        own_hash: sum(&mut [node.content_hash()].into_iter()),
        source_versions: vec![1, 2, 3],
        trigger_times_ms: vec![],
    };
    for frame in [
        Frame::Welcome(v1::Welcome {
            version: 1,
            epoch: 5,
            ..v1::Welcome::default()
        }),
        Frame::Records(v1::Records {
            put,
            ..v1::Records::default()
        }),
        Frame::Own(v1::Own {
            node: Some(encode_node(&node, node.content_hash())),
            ..v1::Own::default()
        }),
        Frame::Commit(commit),
    ] {
        staging
            .take_frame(v1::Frame { frame: Some(frame) })
            .unwrap();
    }
    staging
}

#[test]
fn a_table_comes_back_with_all_that_hello_says() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(&dir.path().join("not/there/yet"));
    assert!(store.load().unwrap().is_none());
    let mut last = None;
    for records in [3, 2_000, 0] {
        let mut staging = staging(records);
        store.write(&staging.save()).unwrap();
        let StoredTable {
            staging: mut loaded,
            committed,
            ..
        } = store.load().unwrap().unwrap();
        assert_eq!(committed.table.records.len(), records);
        assert_eq!((committed.epoch, committed.revision), (5, 7));
        let hello = loaded.begin(v1::Hello::default());
        assert_eq!(hello, staging.begin(v1::Hello::default()));
        assert_eq!(hello.source_versions, [1, 2, 3]);
        assert_ne!(Some(hello.records_hash.clone()), last);
        last = Some(hello.records_hash);
    }
}

#[test]
fn a_file_of_no_use_is_renamed_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let good = store.encode(&staging(50).save()).unwrap();
    let changed = |at: usize| {
        let mut content = good.clone();
        content[at] ^= 1;
        content
    };
    let other_node = Store {
        node: "b".to_owned(),
        ..store.clone()
    };
    let other_cluster = Store {
        cluster: "west".to_owned(),
        ..store.clone()
    };
    let frames = |count: usize| {
        let mut raw = v1::Hello {
            cluster: "east".to_owned(),
            node: "a".to_owned(),
            ..v1::Hello::default()
        }
        .encode_length_delimited_to_vec();
        for frame in &staging(50).save().frames()[..count] {
            raw.extend(frame.encode_length_delimited_to_vec());
        }
        let body = zstd::bulk::compress(&raw, 1).unwrap();
        let checksum = *blake3::hash(&body).as_bytes();
        [&good[..16], &checksum, &body].concat()
    };
    let cases = [
        (vec![], "not a table"),
        (b"garbage".to_vec(), "not a table"),
        (good[..15].to_vec(), "cut off"),
        (good[..40].to_vec(), "cut off"),
        (changed(15), "of format 0, not 1"),
        (changed(20), "checksum"),
        (good[..good.len() - 1].to_vec(), "checksum"),
        (changed(good.len() - 1), "checksum"),
        (frames(2), "does not end with a Commit"),
        (
            other_node.encode(&staging(1).save()).unwrap(),
            "of node \"b\", not \"a\"",
        ),
        (
            other_cluster.encode(&staging(1).save()).unwrap(),
            "of cluster \"west\"",
        ),
    ];
    for (content, reason) in cases {
        fs::write(dir.path().join(NAME), &content).unwrap();
        let why = store.load().unwrap_err().to_string();
        assert!(why.contains(reason) && why.contains(ASIDE), "{why}");
        assert_eq!(fs::read(dir.path().join(ASIDE)).unwrap(), content);
        assert!(store.load().unwrap().is_none());
    }
}

#[test]
fn a_table_with_a_wrong_hash_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let mut frames = staging(5).save().frames();
    let Some(Frame::Records(records)) = &mut frames[1].frame else {
        panic!("no records");
    };
    records.put.pop();
    let mut raw = v1::Hello {
        cluster: "east".to_owned(),
        node: "a".to_owned(),
        ..v1::Hello::default()
    }
    .encode_length_delimited_to_vec();
    for frame in frames {
        raw.extend(frame.encode_length_delimited_to_vec());
    }
    let why = store.stage(&raw).unwrap_err().to_string();
    assert!(why.contains("have hash"), "{why}");
}

#[test]
fn a_failed_write_leaves_the_last_table() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.write(&staging(3).save()).unwrap();
    // A directory has the path of the new file.
    fs::create_dir(dir.path().join(".portolan_table_new")).unwrap();
    store.write(&staging(4).save()).unwrap_err();
    let committed = store.load().unwrap().unwrap().committed;
    assert_eq!(committed.table.records.len(), 3);
}

#[test]
fn a_table_that_is_set_aside_is_not_read_and_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    assert!(!set_aside(dir.path()).unwrap());
    store.write(&staging(2).save()).unwrap();
    assert!(set_aside(dir.path()).unwrap());
    assert!(store.load().unwrap().is_none());
    assert!(dir.path().join(OLD).is_file());
}

/// The table of a staging, by way of the disk.
fn loaded_table(store: &Store, staging: &Staging) -> Arc<portolan_model::NodeTable> {
    store.write(&staging.save()).unwrap();
    store.load().unwrap().unwrap().in_force
}

#[test]
fn a_table_with_held_deletions_comes_back_as_both_tables() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let mut staging = staging(3);
    let mut in_force = portolan_model::NodeTable::clone(&loaded_table(&store, &staging));
    let held = record("held");
    let emptied = Record {
        destinations: vec![],
        ..record("s1")
    };
    for record in [held.clone(), emptied] {
        in_force
            .records
            .insert(record.key.clone(), Arc::new(record));
    }
    let overlay = portolan_model::NodeOverlay {
        own: vec![([10, 0, 0, 1], 80).into()],
        ..portolan_model::NodeOverlay::default()
    };
    in_force.lists.insert(held.key, Arc::new(overlay));
    let in_force = Arc::new(in_force);
    let saved = staging.save().with_in_force(Some(Arc::clone(&in_force)));
    store.write(&saved).unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!(loaded.in_force, in_force);
    assert_eq!(loaded.committed.table.records.len(), 3);
    let mut resumed = loaded.staging;
    let hello = resumed.begin(v1::Hello::default());
    assert_eq!(hello, staging.begin(v1::Hello::default()));
}

#[test]
fn a_file_that_cannot_be_read_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    fs::create_dir(dir.path().join(NAME)).unwrap();
    let error = store.load().unwrap_err();
    assert!(matches!(error, StoreError::Read { .. }), "{error}");
    assert!(dir.path().join(NAME).is_dir());
}

#[test]
fn a_table_that_is_written_after_forget_keeps_its_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store {
        pin: ClusterPin::open(dir.path()),
        ..store(dir.path())
    };
    let after_a_restart = || {
        let again = Store {
            pin: ClusterPin::open(dir.path()),
            ..store.clone()
        };
        again.load().unwrap().unwrap()
    };
    store.pin.check("a").unwrap();
    store.pin.took_table("a");
    forget(dir.path()).unwrap().unwrap();
    assert_eq!(store.pin.id(), "");
    store.write(&staging(1).save()).unwrap();
    assert!(after_a_restart().is_of_other_cluster);
    // The next cluster is known before its first table comes.
    store.pin.check("b").unwrap();
    store.write(&staging(1).save()).unwrap();
    assert!(after_a_restart().is_of_other_cluster);
    store.pin.took_table("b");
    store.write(&staging(1).save()).unwrap();
    assert!(!after_a_restart().is_of_other_cluster);
}

#[test]
fn a_table_of_an_earlier_run_keeps_its_cluster_until_another_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store {
        pin: ClusterPin::open(dir.path()),
        ..store(dir.path())
    };
    store.pin.restored_table("a");
    store.pin.check("b").unwrap();
    store.write(&staging(1).save()).unwrap();
    let loaded = store.load().unwrap().unwrap();
    assert_eq!(loaded.cluster_id, "a");
    assert!(loaded.is_of_other_cluster);
}

#[test]
fn a_table_of_another_cluster_is_known_as_such() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    store.pin.check("first").unwrap();
    store.write(&staging(1).save()).unwrap();
    assert!(!store.load().unwrap().unwrap().is_of_other_cluster);
    for (id, expected) in [("first", false), ("second", true)] {
        let moved = Store {
            pin: ClusterPin::default(),
            ..store.clone()
        };
        // A pin that was forgotten, then another one.
        assert!(moved.load().unwrap().unwrap().is_of_other_cluster);
        moved.pin.check(id).unwrap();
        let loaded = moved.load().unwrap().unwrap();
        assert_eq!(loaded.is_of_other_cluster, expected);
    }
}
