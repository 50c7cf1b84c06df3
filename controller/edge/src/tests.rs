// SPDX-License-Identifier: Apache-2.0

//! Tests of an edge's outbox and the centre's partition together.

mod conversions;

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{
    ClusterProperty, Condition, Endpoint, EndpointSlice, ExportPort, ExportStatus, HostFacts,
    ImportSpec, Kind, Node, Object, ObjectChange, ObjectKey, ObjectRef, OwnImport, Pod, Service,
    ServiceExport, ServiceFacts, ServiceImport, ServicePort, ServiceType, SlicePort, TrafficPolicy,
};
use portolan_model::{Family, Protocol, Scheduling};
use portolan_proto::v1;
use prost::Message as _;

use conversions::{export, service};

use crate::ledger::HASHED;
use crate::{
    BadHashes, Limits, Outbox, Partition, PartitionError, Received, StreamId, Transition, wire,
};

const LIMITS: Limits = Limits {
    objects: 1_000,
    endpoints: 100,
    bytes: 1 << 20,
    staged_bytes: 1 << 20,
};

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "eu".into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn slice(name: &str, endpoints: u8) -> Object {
    let address = |last| Endpoint::new([10, 1, 0, last].into());
    Object::EndpointSlice(EndpointSlice {
        key: key("shop", name),
        service: "web".into(),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: (0..endpoints).map(address).collect(),
        triggered_ms: Some(7),
    })
}

fn put(object: Object) -> ObjectChange {
    let problems = Vec::new();
    ObjectChange::Put { object, problems }
}

fn delete(object: &Object) -> ObjectChange {
    ObjectChange::Delete(object.reference())
}

/// An edge with at most one stream.
#[derive(Default)]
struct Edge {
    outbox: Outbox,
    stream: Option<StreamId>,
}

impl Edge {
    fn apply(&mut self, change: &ObjectChange) {
        self.outbox.apply(change).unwrap();
    }

    fn begin(&mut self, bucket_hashes: &[u8]) -> Result<(), BadHashes> {
        let begun = self.outbox.begin(bucket_hashes)?;
        if let Some(last) = self.stream.replace(begun) {
            self.outbox.end(last);
        }
        Ok(())
    }

    fn take(&mut self) -> Option<Transition> {
        self.outbox.take(self.stream?)
    }
}

fn part(transition: &Transition) -> v1::EdgeObjects {
    v1::EdgeObjects {
        put: transition.put.clone(),
        delete: transition.delete.clone(),
        replace_buckets: transition.replace_buckets.clone(),
    }
}

/// Sends all that the edge has to send. Returns what was received last.
fn send(outbox: &mut Edge, centre: &mut Partition) -> Result<Option<Received>, PartitionError> {
    let mut last = None;
    while let Some(transition) = outbox.take() {
        centre.stage(part(&transition))?;
        last = Some(centre.commit(&transition.commit)?);
    }
    Ok(last)
}

fn connected(objects: impl IntoIterator<Item = Object>) -> (Edge, Partition) {
    let (mut outbox, mut centre) = (Edge::default(), Partition::new("eu".into(), LIMITS));
    objects
        .into_iter()
        .for_each(|object| outbox.apply(&put(object)));
    outbox.begin(&centre.begin()).unwrap();
    send(&mut outbox, &mut centre).unwrap();
    (outbox, centre)
}

fn names(centre: &Partition) -> Vec<String> {
    let name = |object: Result<Object, (ObjectRef, wire::WireError)>| match object {
        Ok(object) => object.reference(),
        Err((name, _)) => name,
    };
    let names = centre.objects().map(name);
    names.map(|name| name.key.to_string()).collect()
}

#[test]
fn the_status_of_an_export_is_sent_when_it_changes() {
    let (mut outbox, mut centre) = connected([Object::ServiceExport(export())]);
    let mut changed = export();
    changed.status.generation += 1;
    outbox.apply(&put(Object::ServiceExport(changed.clone())));
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert_eq!(received.put, [Object::ServiceExport(changed)]);
}

/// As of an edge that sends a kind which came later: ServiceImports, to a centre of before them.
#[test]
fn an_object_of_a_later_kind_is_left_out_and_counts_for_the_hash() {
    let (mut edge, mut centre) = connected([slice("web-1", 1)]);
    edge.apply(&put(slice("web-2", 1)));
    let later = v1::ClusterObject {
        id: Some(v1::ObjectId {
            kind: 99,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        }),
        object: None,
    };
    let bytes: prost::bytes::Bytes = later.encode_to_vec().into();
    let mut transition = edge.take().unwrap();
    transition.put.push(bytes.clone());
    let hash = crate::ledger::Entry::new(bytes, 0).hash;
    let mut total = edge.outbox.total();
    total.insert(hash);
    transition.commit.hash = total.to_bytes().into();
    centre.stage(part(&transition)).unwrap();
    let received = centre.commit(&transition.commit).unwrap();
    assert_eq!(received.put, [slice("web-2", 1)]);
    assert_eq!((received.refused.len(), received.delete.len()), (0, 0));
    assert_eq!(names(&centre), ["eu/shop/web-1", "eu/shop/web-2"]);
}

#[test]
fn an_object_that_breaks_a_rule_is_refused_and_others_are_taken_in() {
    let (mut outbox, mut centre) = connected([slice("web-1", 1)]);
    let Object::EndpointSlice(mut bad) = slice("web-1", 1) else {
        panic!("no slice");
    };
    // An address of the other family.
    bad.family = Family::V6;
    outbox.apply(&put(Object::EndpointSlice(bad)));
    outbox.apply(&put(slice("web-2", 1)));
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert_eq!(
        (received.put.as_slice(), received.delete.len()),
        (&[slice("web-2", 1)][..], 0)
    );
    let [(object, error)] = &received.refused[..] else {
        panic!("{received:?}");
    };
    assert_eq!(*object, slice("web-1", 1).reference());
    assert_eq!(error.field, "slice.endpoints.address");
    outbox.apply(&put(slice("web-1", 2)));
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert_eq!(received.put, [slice("web-1", 2)]);
}

#[test]
fn nothing_is_taken_in_before_the_commit_and_an_interrupted_transition_is_dropped() {
    let (mut outbox, mut centre) = connected([slice("web-1", 1)]);
    outbox.apply(&put(slice("web-2", 1)));
    outbox.apply(&delete(&slice("web-1", 1)));
    let lost = outbox.take().unwrap();
    centre.stage(part(&lost)).unwrap();
    assert_eq!(names(&centre), ["eu/shop/web-1"]);

    // The stream breaks before the commit; the next one brings the difference.
    outbox.begin(&centre.begin()).unwrap();
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert!(received.listing);
    assert_eq!(received.put, [slice("web-2", 1)]);
    assert_eq!(received.delete, [slice("web-1", 1).reference()]);
    assert_eq!(names(&centre), ["eu/shop/web-2"]);
}

#[test]
fn a_stream_that_begins_again_brings_only_what_differs() {
    let all: Vec<_> = (0..500)
        .map(|number| slice(&format!("s-{number}"), 0))
        .collect();
    let (mut outbox, mut centre) = connected(all);
    let hashes = centre.begin();
    outbox.begin(&hashes).unwrap();
    let nothing = outbox.take().unwrap();
    assert_eq!((nothing.put.len(), nothing.replace_buckets.len()), (0, 0));
    // Nothing has changed: the hashes are a small part of the objects, which are short.
    let all = 500 * slice_length();
    assert!(90 * hashes.len() < all, "{} of {all}", hashes.len());

    // While the centre is away, one object changes again and again.
    for count in 2..9 {
        outbox.apply(&put(slice("s-7", count)));
    }
    outbox.begin(&centre.begin()).unwrap();
    let one = outbox.take().unwrap();
    // A bucket has 16 objects on average.
    assert!(one.put.len() <= 50, "{} objects", one.put.len());
    centre.stage(part(&one)).unwrap();
    let received = centre.commit(&one.commit).unwrap();
    assert_eq!(received.put, [slice("s-7", 8)]);
    assert_eq!(received.delete, []);
    // A new centre has nothing, and is sent all.
    let mut new = Partition::new("eu".into(), LIMITS);
    outbox.begin(&new.begin()).unwrap();
    let received = send(&mut outbox, &mut new).unwrap().unwrap();
    assert_eq!(received.put.len(), 500);
}

#[test]
fn the_number_of_buckets_follows_that_of_the_objects() {
    let (mut outbox, mut centre) = connected([]);
    for (objects, buckets) in [(0, 1), (16, 1), (17, 2), (500, 32), (520, 64)] {
        for number in 0..objects {
            outbox.apply(&put(slice(&format!("s-{number}"), 0)));
        }
        send(&mut outbox, &mut centre).unwrap();
        let hashes = centre.begin();
        assert_eq!(hashes.len(), 8 * buckets, "{objects} objects");
        // The edge has lost some since.
        outbox.apply(&delete(&slice("s-3", 0)));
        outbox.begin(&hashes).unwrap();
        let received = send(&mut outbox, &mut centre).unwrap().unwrap();
        assert_eq!(received.delete.len(), usize::from(objects > 0));
    }
}

#[test]
fn objects_that_a_listing_of_the_source_lacks_are_gone() {
    let (mut outbox, mut centre) = connected([slice("web-1", 1), slice("web-2", 1), service()]);
    outbox.apply(&ObjectChange::Retain {
        kind: Kind::EndpointSlice,
        cluster: "eu".into(),
        keep: BTreeSet::from([key("shop", "web-2")]),
    });
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert!(!received.listing);
    let gone = ObjectRef {
        kind: Kind::EndpointSlice,
        key: key("shop", "web-1"),
    };
    assert_eq!(received.delete, [gone]);
    assert_eq!(names(&centre), ["eu/shop/web", "eu/shop/web-2"]);
}

#[test]
fn a_transition_without_a_listing_hashes_no_id() {
    let (mut outbox, mut centre) = connected([slice("web-1", 1), slice("web-2", 1)]);
    outbox.apply(&put(slice("web-2", 2)));
    let before = HASHED.get();
    assert!(before > 0, "hashes are not counted");
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert_eq!(received.put, [slice("web-2", 2)]);
    assert_eq!(HASHED.get(), before);
}

#[test]
fn a_commit_of_other_objects_changes_nothing_and_the_next_stream_brings_everything() {
    let (mut outbox, mut centre) = connected([slice("web-1", 1)]);
    outbox.apply(&put(slice("web-2", 1)));
    let mut forged = outbox.take().unwrap();
    forged.put.clear();
    centre.stage(part(&forged)).unwrap();
    let error = centre.commit(&forged.commit).unwrap_err();
    assert_eq!(
        (&error, error.reason()),
        (&PartitionError::Mismatch, "mismatch")
    );
    outbox.begin(&centre.begin()).unwrap();
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert_eq!(received.put, [slice("web-1", 1), slice("web-2", 1)]);
}

#[test]
fn more_than_the_bounds_is_refused_and_what_was_there_stays() {
    let (mut outbox, mut centre) = connected([slice("web-1", 60)]);
    outbox.apply(&put(slice("web-2", 60)));
    let error = send(&mut outbox, &mut centre).unwrap_err();
    assert_eq!(error.reason(), "quota");
    assert!(
        error.to_string().contains("endpoints: more than 100"),
        "{error}"
    );
    assert_eq!(names(&centre), ["eu/shop/web-1"]);
    // One that is replaced does not count twice.
    outbox.apply(&put(slice("web-2", 40)));
    outbox.begin(&centre.begin()).unwrap();
    assert!(send(&mut outbox, &mut centre).is_ok());

    let many = Limits {
        objects: 2,
        ..LIMITS
    };
    let mut small = Partition::new("eu".into(), many);
    outbox.apply(&put(service()));
    outbox.begin(&small.begin()).unwrap();
    let error = send(&mut outbox, &mut small).unwrap_err();
    assert!(
        error.to_string().contains("objects: more than 2"),
        "{error}"
    );
    let light = Limits {
        bytes: 100,
        ..LIMITS
    };
    let mut small = Partition::new("eu".into(), light);
    outbox.begin(&small.begin()).unwrap();
    let error = send(&mut outbox, &mut small).unwrap_err();
    assert!(
        error.to_string().contains("bytes: more than 100"),
        "{error}"
    );
    assert_eq!(names(&small), [""; 0]);
    let short = Limits {
        staged_bytes: 100,
        ..LIMITS
    };
    let mut small = Partition::new("eu".into(), short);
    outbox.begin(&small.begin()).unwrap();
    let error = send(&mut outbox, &mut small).unwrap_err();
    assert!(error.to_string().contains("bytes"), "{error}");
    assert_eq!(names(&small), [""; 0]);
}

#[test]
fn a_stream_begins_with_a_listing_and_objects_have_ids() {
    let (mut outbox, mut centre) = connected([slice("web-1", 1)]);
    outbox.apply(&put(slice("web-2", 1)));
    let transition = outbox.take().unwrap();
    centre.begin();
    centre.stage(part(&transition)).unwrap();
    let error = centre.commit(&transition.commit).unwrap_err();
    assert_eq!(error, PartitionError::Listing);
    // A listing costs as much as all objects, so that a stream has one.
    edge_lists_twice();
    let beyond = v1::EdgeObjects {
        replace_buckets: vec![1],
        ..v1::EdgeObjects::default()
    };
    let error = centre.stage(beyond).unwrap_err();
    assert_eq!(error, PartitionError::Bucket(1));
    let nameless = v1::ClusterObject::default().encode_to_vec();
    let part = v1::EdgeObjects {
        put: vec![nameless.into()],
        ..v1::EdgeObjects::default()
    };
    assert_eq!(centre.stage(part).unwrap_err().reason(), "object");
    for bad in [0, 12, 24] {
        assert!(outbox.begin(&vec![0; bad]).is_err(), "{bad}");
    }
}

fn edge_lists_twice() {
    let (mut outbox, mut centre) = connected([slice("web-1", 1)]);
    outbox.apply(&put(slice("web-2", 1)));
    let mut second = outbox.take().unwrap();
    second.commit.listing = true;
    centre.stage(part(&second)).unwrap();
    let error = centre.commit(&second.commit).unwrap_err();
    assert_eq!(error, PartitionError::Listing);
    assert_eq!(names(&centre), ["eu/shop/web-1"]);
}

#[test]
fn versions_of_the_source_come_with_the_next_commit() {
    let (mut outbox, mut centre) = connected([]);
    outbox.apply(&ObjectChange::Reached {
        kind: Kind::Node,
        cluster: "eu".into(),
        version: 12,
    });
    assert_eq!(outbox.take(), None, "no version is worth a message");
    outbox.apply(&put(slice("web-1", 1)));
    let received = send(&mut outbox, &mut centre).unwrap().unwrap();
    assert_eq!(received.source_versions, [0, 0, 12]);
}

#[test]
fn every_replica_is_sent_what_it_lacks() {
    let mut outbox = Outbox::default();
    outbox.apply(&put(slice("web-1", 1))).unwrap();
    let mut centres = [(); 2].map(|()| Partition::new("eu".into(), LIMITS));
    let streams = [0, 1].map(|one: usize| outbox.begin(&centres[one].begin()).unwrap());
    let receive = |outbox: &mut Outbox, centre: &mut Partition, stream| {
        let transition = outbox.take(stream).unwrap();
        centre.stage(part(&transition)).unwrap();
        centre.commit(&transition.commit).unwrap();
    };
    receive(&mut outbox, &mut centres[0], streams[0]);
    outbox.apply(&put(slice("web-2", 1))).unwrap();
    receive(&mut outbox, &mut centres[0], streams[0]);
    receive(&mut outbox, &mut centres[1], streams[1]);
    for centre in &centres {
        assert_eq!(names(centre), ["eu/shop/web-1", "eu/shop/web-2"]);
    }
    for stream in streams {
        assert_eq!(outbox.take(stream), None);
    }
    // Nothing is kept for a stream that has ended.
    outbox.end(streams[1]);
    outbox.apply(&delete(&slice("web-1", 1))).unwrap();
    assert_eq!(outbox.take(streams[1]), None);
    receive(&mut outbox, &mut centres[0], streams[0]);
    assert_eq!(names(&centres[0]), ["eu/shop/web-2"]);
}

#[test]
fn the_parts_of_a_transition_are_the_transition() {
    let mut edge = Edge::default();
    for number in 0..20 {
        edge.apply(&put(slice(&format!("s-{number}"), 1)));
    }
    let mut centre = Partition::new("eu".into(), LIMITS);
    edge.begin(&centre.begin()).unwrap();
    let length = slice_length();
    let (parts, commit) = edge.take().unwrap().into_parts(3 * length);
    assert!((6..=8).contains(&parts.len()), "{} parts", parts.len());
    for part in parts {
        centre.stage(part).unwrap();
    }
    assert_eq!(centre.commit(&commit).unwrap().put.len(), 20);
    // A transition without objects still says which buckets it replaces.
    let mut empty = Edge::default();
    empty.begin(&centre.begin()).unwrap();
    let (parts, commit) = empty.take().unwrap().into_parts(1);
    assert!(!parts.is_empty());
    for part in parts {
        centre.stage(part).unwrap();
    }
    assert_eq!(centre.commit(&commit).unwrap().delete.len(), 20);
}

fn slice_length() -> usize {
    let message = wire::encode(&slice("s-0", 1)).unwrap();
    message.encoded_len()
}

#[test]
fn an_object_that_is_too_large_is_named_and_its_last_version_stays() {
    let (mut edge, mut centre) = connected([slice("web-1", 1)]);
    let Object::EndpointSlice(mut large) = slice("web-1", 1) else {
        panic!("no slice");
    };
    let endpoint = large.endpoints[0].clone();
    large.endpoints = vec![endpoint; 1 << 20];
    let error = edge.outbox.apply(&put(Object::EndpointSlice(large)));
    let error = error.unwrap_err();
    assert_eq!(error.object, slice("web-1", 1).reference());
    assert_eq!(edge.take(), None);
    assert_eq!(send(&mut edge, &mut centre), Ok(None));
    assert_eq!(names(&centre), ["eu/shop/web-1"]);
}
