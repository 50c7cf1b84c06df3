// SPDX-License-Identifier: Apache-2.0

//! Concurrent streams and writer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use portolan_model::{Destination, Protocol, Record, RecordKey};
use portolan_select::TableDelta;

use super::*;
use crate::{Publisher, Retention};

/// The time after which a test counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// New values of all records, with destinations on this port: too large a change to be sent as one.
fn all_anew(port: u16) -> TableDelta {
    let records = (0..400).map(|i| {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: format!("a-service-with-a-name-{i}").into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let destinations = (1..9).map(|host| Destination::new(([10, 0, 0, host], port).into()));
        let record = Record {
            destinations: destinations.collect(),
            ..Record::new(key.clone())
        };
        (key, Some(Arc::new(record)))
    });
    TableDelta {
        records: records.collect(),
        ..TableDelta::default()
    }
}

#[test]
fn readers_and_the_writer_never_wait_for_each_other_in_a_circle() {
    let (mut publisher, tables) = Publisher::new(Retention::default());
    publisher.publish(&all_anew(1));
    publisher.set_synced(&"".into());
    let node = NodeKey {
        cluster: "".into(),
        name: "a".into(),
    };
    let feed = tables.feed(&node.cluster);
    let have = Have {
        epoch: tables.shared.epoch,
        revision: tables.head(&node.cluster),
        hashes: Some(tables.read().of(&node.cluster).hashes(&node.name)),
        source_versions: Vec::new(),
        since: None,
    };
    publisher.publish(&all_anew(2));
    let stop = Arc::new(AtomicBool::new(false));
    let (done, ended) = mpsc::channel();
    for is_new in [true, true, false, false] {
        let (tables, feed, scope) = (tables.clone(), Arc::clone(&feed), Scope::from(&node));
        let (have, stop, done) = (have.clone(), Arc::clone(&stop), done.clone());
        thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if is_new {
                    drop(tables.first(&feed, &scope, &have));
                } else {
                    drop(tables.next(&feed, &scope, have.revision));
                }
            }
            done.send(()).unwrap();
        });
    }
    thread::spawn(move || {
        for port in 3..100 {
            publisher.publish(&all_anew(port));
        }
        stop.store(true, Ordering::Relaxed);
        done.send(()).unwrap();
    });
    for _ in 0..5 {
        ended.recv_timeout(PATIENCE).expect("nobody hangs");
    }
}
