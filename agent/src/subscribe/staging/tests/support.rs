// SPDX-License-Identifier: Apache-2.0

//! Records as a controller sends them, and an agent that takes them.

use portolan_model::{ContentHash, Destination, NodeInfo, Protocol, Record, RecordKey, SetHash};
use portolan_proto::convert::{encode_key, encode_record};
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;

use crate::subscribe::{Committed, Staging, StagingError, Taken};

pub(super) fn key(service: &str) -> RecordKey {
    RecordKey {
        cluster: "east".into(),
        namespace: "ns".into(),
        service: service.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

pub(super) fn record(service: &str, port: u16) -> Record {
    Record {
        destinations: vec![Destination::new(([10, 0, 0, 1], port).into())],
        ..Record::new(key(service))
    }
}

pub(super) fn encoded(service: &str, port: u16) -> v1::Record {
    let record = record(service, port);
    encode_record(&record, record.content_hash())
}

/// A record that no version of this agent can take, with a hash of its own.
pub(super) fn broken(service: &str, hash: u128) -> v1::Record {
    let mut record = encoded(service, 80);
    record.hash = ContentHash(hash).to_bytes().into();
    record.affinity_seconds = u32::MAX;
    record
}

/// The hashes that a controller computes for these records and lists.
pub(super) fn sums(
    records: &[v1::Record],
    lists: &[v1::NodeLists],
    zone: Option<&str>,
) -> v1::Commit {
    let sum = |hashes: Vec<&Vec<u8>>| -> SetHash {
        let hashes = hashes.into_iter();
        hashes
            .map(|hash| ContentHash::from_bytes(hash).unwrap())
            .collect()
    };
    let records = sum(records.iter().map(|r| &r.hash).collect());
    let mut own = sum(lists.iter().map(|l| &l.hash).collect());
    let node = NodeInfo {
        zone: zone.map(Into::into),
        ..NodeInfo::default()
    };
    own.insert(node.content_hash());
    v1::Commit {
        revision: 1,
        snapshot: false,
        records_hash: records.to_bytes().into(),
        own_hash: own.to_bytes().into(),
        ..v1::Commit::default()
    }
}

pub(super) fn snapshot(commit: v1::Commit) -> v1::Commit {
    v1::Commit {
        snapshot: true,
        ..commit
    }
}

pub(super) struct Agent(pub(super) Staging);

impl Agent {
    pub(super) fn new() -> Self {
        let mut staging = Staging::new("east", "node-1");
        let welcome = Frame::Welcome(v1::Welcome {
            version: 1,
            epoch: 9,
            ..v1::Welcome::default()
        });
        staging.take_frame(frame(welcome)).unwrap();
        Self(staging)
    }

    pub(super) fn put(&mut self, records: &[v1::Record]) {
        let put = records.to_vec();
        let delete = vec![];
        let taken = self.0.take_frame(frame(Frame::Records(v1::Records {
            put,
            delete,
            ..v1::Records::default()
        })));
        assert!(matches!(taken, Ok(Taken::Staged)));
    }

    pub(super) fn delete(&mut self, service: &str) {
        let put = vec![];
        let delete = vec![encode_key(&key(service))];
        let taken = self.0.take_frame(frame(Frame::Records(v1::Records {
            put,
            delete,
            ..v1::Records::default()
        })));
        assert!(matches!(taken, Ok(Taken::Staged)));
    }

    pub(super) fn commit(&mut self, commit: v1::Commit) -> Result<Committed, StagingError> {
        match self.0.take_frame(frame(Frame::Commit(commit)))? {
            Taken::Committed(committed) => Ok(committed),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn hello(&mut self) -> v1::Hello {
        self.0.begin(v1::Hello::default())
    }
}

pub(super) fn frame(frame: Frame) -> v1::Frame {
    v1::Frame { frame: Some(frame) }
}

pub(super) fn services(committed: &Committed) -> Vec<(String, u16)> {
    let records = committed.table.records.iter();
    records
        .map(|(key, record)| {
            (
                key.service.to_string(),
                record.destinations[0].address.port(),
            )
        })
        .collect()
}
