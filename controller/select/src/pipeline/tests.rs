// SPDX-License-Identifier: Apache-2.0

use portolan_catalog::{Kind, Node, Object, Reason, Service, ServicePort};
use portolan_model::Protocol;
use proptest::prelude::*;

use super::*;
use crate::testing::{change, config};

/// Runs an audit to its end.
fn audited(pipeline: &mut Pipeline) -> Vec<TableDelta> {
    let mut audit = pipeline.audit();
    let mut found = Vec::new();
    while !audit.is_done() {
        found.push(pipeline.continue_audit(&mut audit, 2));
    }
    found
}

proptest! {
    /// After any changes, an audit finds nothing, also while changes wait.
    #[test]
    fn tables_that_are_right_pass(
        changes in prop::collection::vec((change(), any::<bool>()), 0..30),
        config in config(),
    ) {
        let mut pipeline = Pipeline::new(config);
        for (change, flush) in changes {
            pipeline.apply(change);
            if flush {
                pipeline.flush();
            }
        }
        // Waiting changes of weights may make other Services dirty.
        pipeline.flush();
        prop_assert!(audited(&mut pipeline).iter().all(TableDelta::is_empty));
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: "ns".into(),
        name: name.into(),
    }
}

fn put(object: Object) -> ObjectChange {
    let problems = vec![];
    ObjectChange::Put { object, problems }
}

fn service(name: &str, last: u8) -> ObjectChange {
    put(Object::Service(Service {
        cluster_ips: vec![[10, 96, 0, last].into()],
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        ..Service::new(key(name))
    }))
}

fn node(name: &str) -> ObjectChange {
    let key = ObjectKey {
        namespace: "".into(),
        ..key(name)
    };
    let mut node = Node::new(key);
    node.info.eligible = true;
    put(Object::Node(node))
}

#[test]
fn an_audit_finds_and_repairs_errors_and_nothing_else() {
    let mut pipeline = Pipeline::default();
    for (name, last) in [("a", 1), ("b", 2), ("c", 3)] {
        pipeline.apply(service(name, last));
    }
    pipeline.apply(node("n1"));
    let published = pipeline.flush();
    // One update is lost, another one invented.
    pipeline.projector.forget(&key("b"));
    let mut other = Pipeline::default();
    other.apply(service("gone", 4));
    other.flush();
    pipeline.projector.steal(&mut other.projector, &key("gone"));

    let found = audited(&mut pipeline);
    let records: BTreeMap<_, _> = found.into_iter().flat_map(|delta| delta.records).collect();
    let names: Vec<_> = records
        .iter()
        .map(|(k, r)| (&*k.service, r.is_some()))
        .collect();
    assert_eq!(names, [("b", true), ("gone", false)]);
    let (key, repaired) = records.first_key_value().unwrap();
    assert_eq!(repaired, &published.records[key]);
    assert!(audited(&mut pipeline).iter().all(TableDelta::is_empty));
}

#[test]
fn waiting_changes_are_no_divergence() {
    let mut pipeline = Pipeline::default();
    pipeline.apply(service("a", 1));
    pipeline.apply(node("n1"));
    assert!(audited(&mut pipeline).iter().all(TableDelta::is_empty));
    let delta = pipeline.flush();
    assert_eq!((delta.records.len(), delta.nodes.len()), (1, 1));
}

#[test]
fn problems_are_told_when_they_change() {
    let mut pipeline = Pipeline::default();
    pipeline.apply(service("a", 1));
    pipeline.flush();
    assert_eq!(pipeline.changed_problems(), None);
    // One address for two.
    pipeline.apply(service("b", 1));
    pipeline.flush();
    let problems = pipeline.changed_problems().unwrap();
    let reasons: Vec<_> = problems.values().flatten().map(|p| p.reason).collect();
    assert_eq!(reasons, [Reason::Conflict]);
    assert_eq!(pipeline.changed_problems(), None);
    let gone = ObjectRef {
        kind: Kind::Service,
        key: key("b"),
    };
    pipeline.apply(ObjectChange::Delete(gone));
    assert!(pipeline.is_urgent());
    pipeline.flush();
    assert!(!pipeline.is_urgent());
    assert_eq!(pipeline.changed_problems(), Some(BTreeMap::new()));
}
