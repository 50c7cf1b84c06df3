// SPDX-License-Identifier: Apache-2.0

//! Tests of an edge's outbox and the centre's partition together.

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

fn service() -> Object {
    Object::Service(Service {
        created: Some(-5),
        cluster_ips: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        external_ips: vec!["192.0.2.1".parse().unwrap()],
        load_balancer_ips: vec!["192.0.2.2".parse().unwrap()],
        balancer_keeps_sources: true,
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
        external_policy: TrafficPolicy::Local,
        internal_policy: TrafficPolicy::Cluster,
        affinity_seconds: Some(60),
        scheduling: Scheduling {
            scheduler: Some("mh".into()),
            flags: Some(portolan_model::ipvs::Flags(8)),
        },
        drain_seconds: Some(0),
        health_check_port: Some(30_000),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Sctp,
            port: 80,
            node_port: Some(31_000),
        }],
        key: key("shop", "web"),
    })
}

fn export() -> ServiceExport {
    let facts = ServiceFacts {
        kind: ServiceType::Headless,
        labels: [("tier".to_owned(), "a".to_owned())].into(),
        ports: vec![ExportPort {
            name: "http".into(),
            protocol: Protocol::Udp,
            port: 53,
            app_protocol: Some("h2c".into()),
        }],
        families: vec![Family::V6, Family::V4],
        affinity_seconds: Some(1),
        internal_local: true,
        traffic_distribution: Some("PreferClose".into()),
    };
    ServiceExport {
        requested: true,
        created: Some(9),
        labels: [("a".to_owned(), String::new())].into(),
        annotations: [("b".to_owned(), "c".to_owned())].into(),
        weight: Some(1_000),
        service: Some(Arc::new(facts)),
        ..ServiceExport::new(key("shop", "web"))
    }
}

#[test]
fn each_kind_of_object_arrives_as_it_was_sent() {
    let mut endpoint = Endpoint::new("fd00::7".parse().unwrap());
    (endpoint.ready, endpoint.terminating) = (false, true);
    endpoint.node = Some("node-1".into());
    endpoint.pod = Some("web-0".into());
    endpoint.hostname = Some("host".into());
    endpoint.zone_hints = Some(vec!["a".into(), "b".into()]);
    endpoint.node_hints = Some(Vec::new());
    let Object::EndpointSlice(v4) = slice("web-2", 2) else {
        panic!("no slice");
    };
    let v6 = EndpointSlice {
        family: Family::V6,
        endpoints: vec![endpoint],
        key: key("shop", "web-6"),
        ..v4.clone()
    };
    let mut node = Node::new(key("", "node-1"));
    node.info.zone = Some("a".into());
    node.info.eligible = true;
    node.info.pod_cidrs = vec!["10.1.0.0/24".parse().unwrap()];
    node.addresses = ["192.168.0.1".parse().unwrap()].into();
    node.weight = Some(0);
    let objects = [
        service(),
        Object::EndpointSlice(v4),
        Object::EndpointSlice(v6),
        Object::Node(node),
        Object::Pod(Pod {
            key: key("shop", "web-0"),
            weight: 65_535,
        }),
        Object::Namespace(key("", "shop")),
        Object::ServiceExport(export()),
        Object::ServiceExport(ServiceExport::new(key("shop", "none"))),
        Object::ClusterProperty(ClusterProperty {
            key: key("", "region"),
            value: "eu".into(),
        }),
    ];
    for object in objects {
        let bytes = wire::encode(&object).unwrap().encode_to_vec();
        let message = v1::ClusterObject::decode(&*bytes).unwrap();
        assert_eq!(wire::decode(&message, &"eu".into()), Ok(Some(object)));
    }
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
fn a_bad_field_is_named_and_an_unknown_kind_is_left_out() {
    let mut message = wire::encode(&slice("web-1", 1)).unwrap();
    let Some(v1::cluster_object::Object::Slice(bad)) = &mut message.object else {
        panic!("no slice");
    };
    bad.endpoints[0].address = vec![1, 2, 3];
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "slice.endpoints.address");
    message.id.as_mut().unwrap().kind = v1::ObjectKind::Node.into();
    message.id.as_mut().unwrap().namespace.clear();
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "object");
    message.id.as_mut().unwrap().kind = 99;
    assert_eq!(wire::decode(&message, &"eu".into()), Ok(None));
    message.id.as_mut().unwrap().kind = v1::ObjectKind::Pod.into();
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "id.namespace");
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
