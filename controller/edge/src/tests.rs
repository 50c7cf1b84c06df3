// SPDX-License-Identifier: Apache-2.0

//! Tests of an edge's outbox and the centre's partition together.

mod conversions;

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{
    ClusterProperty, Endpoint, EndpointSlice, ExportPort, ExportStatus, Kind, Node, Object,
    ObjectChange, ObjectKey, ObjectRef, Pod, Service, ServiceExport, ServiceFacts, ServicePort,
    ServiceType, SlicePort, TrafficPolicy,
};
use portolan_model::{Family, Protocol, Scheduling};
use portolan_proto::v1;
use prost::Message as _;

use conversions::{export, service};

use crate::{Limits, Outbox, Partition, PartitionError, Received, Transition, wire};

const LIMITS: Limits = Limits {
    objects: 1_000,
    endpoints: 100,
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

fn part(transition: &Transition) -> v1::EdgeObjects {
    v1::EdgeObjects {
        put: transition.put.clone(),
        delete: transition.delete.clone(),
        replace_buckets: transition.replace_buckets.clone(),
    }
}

/// Sends all that the edge has to send. Returns what was received last.
fn send(outbox: &mut Outbox, centre: &mut Partition) -> Result<Option<Received>, PartitionError> {
    let mut last = None;
    while let Some(transition) = outbox.take() {
        centre.stage(part(&transition))?;
        last = Some(centre.commit(&transition.commit)?);
    }
    Ok(last)
}

fn connected(objects: impl IntoIterator<Item = Object>) -> (Outbox, Partition) {
    let (mut outbox, mut centre) = (Outbox::default(), Partition::new("eu".into(), LIMITS));
    objects
        .into_iter()
        .for_each(|object| outbox.apply(&put(object)));
    outbox.begin(&centre.begin()).unwrap();
    send(&mut outbox, &mut centre).unwrap();
    (outbox, centre)
}

fn names(centre: &Partition) -> Vec<String> {
    centre.names().map(|name| name.key.to_string()).collect()
}

#[test]
fn the_status_of_an_export_is_not_sent_and_changes_nothing() {
    let (mut outbox, _) = connected([Object::ServiceExport(export())]);
    let status = ExportStatus {
        generation: 3,
        ..ExportStatus::default()
    };
    outbox.apply(&put(Object::ServiceExport(ServiceExport {
        status,
        ..export()
    })));
    assert_eq!(outbox.take(), None);
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
    let all: Vec<_> = (0..50)
        .map(|number| slice(&format!("s-{number}"), 1))
        .collect();
    let (mut outbox, mut centre) = connected(all);
    outbox.begin(&centre.begin()).unwrap();
    let nothing = outbox.take().unwrap();
    assert_eq!((nothing.put.len(), nothing.replace_buckets.len()), (0, 0));

    // While the centre is away, one object changes again and again.
    for count in 2..9 {
        outbox.apply(&put(slice("s-7", count)));
    }
    outbox.begin(&centre.begin()).unwrap();
    let one = outbox.take().unwrap();
    // Two objects of 50 rarely share one of 1,024 buckets.
    assert!(one.put.len() <= 2, "{} objects", one.put.len());
    centre.stage(part(&one)).unwrap();
    let received = centre.commit(&one.commit).unwrap();
    assert_eq!(received.put, [slice("s-7", 8)]);
    assert_eq!(received.delete, []);
    // A new centre has nothing, and is sent all.
    let mut new = Partition::new("eu".into(), LIMITS);
    outbox.begin(&new.begin()).unwrap();
    let received = send(&mut outbox, &mut new).unwrap().unwrap();
    assert_eq!(received.put.len(), 50);
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
    assert_eq!(error, PartitionError::NoListing);
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
