// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use portolan_catalog::{Node, Object, ObjectChange, Reason, Service, ServicePort};
use portolan_model::{Destination, NodeTable, Protocol};
use proptest::prelude::*;

use super::*;
use crate::testing::{change, config, fold};

/// The objects that are left after a sequence of changes.
fn survivors(changes: &[ObjectChange]) -> BTreeMap<ObjectRef, Object> {
    let mut left = BTreeMap::new();
    for change in changes {
        match change {
            ObjectChange::Put { object, .. } => {
                left.insert(object.reference(), object.clone());
            }
            ObjectChange::Delete(object) => {
                left.remove(object);
            }
            ObjectChange::Retain { kind, keep, .. } => {
                left.retain(|object, _| object.kind != *kind || keep.contains(&object.key));
            }
            ObjectChange::Refused { .. }
            | ObjectChange::Problems { .. }
            | ObjectChange::Reached { .. }
            | ObjectChange::LoadBalancers { .. } => {}
        }
    }
    left
}

fn tables_from_scratch(
    catalog: &Catalog,
    config: SelectConfig,
) -> BTreeMap<&'static str, NodeTable> {
    let mut tables = BTreeMap::new();
    fold(&mut tables, &Projector::rebuild(catalog, config).1);
    tables
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Tables updated by deltas equal tables from scratch, however the events are grouped; and both
    /// depend on the final objects only, not on their history.
    #[test]
    fn incremental_tables_equal_a_rebuild(
        changes in prop::collection::vec((change(), any::<bool>(), any::<bool>()), 0..40),
        shuffle in prop::collection::vec(any::<u32>(), 40),
        config in config(),
    ) {
        let mut catalog = Catalog::default();
        let mut projector = Projector::new(config);
        let mut tables = BTreeMap::new();
        fold(&mut tables, &TableDelta::default());
        let mut dirty = DirtySet::default();
        for (change, twice, flush) in &changes {
            catalog.apply(change.clone(), &mut dirty);
            if *twice {
                catalog.apply(change.clone(), &mut dirty);
            }
            if *flush {
                fold(&mut tables, &projector.update(&catalog, &std::mem::take(&mut dirty)));
            }
        }
        fold(&mut tables, &projector.update(&catalog, &dirty));
        prop_assert_eq!(&tables, &tables_from_scratch(&catalog, config));
        let (rebuilt, _) = Projector::rebuild(&catalog, config);
        prop_assert_eq!(projector.problems(), rebuilt.problems());

        let changes: Vec<_> = changes.into_iter().map(|(change, ..)| change).collect();
        let mut objects: Vec<_> = survivors(&changes).into_values().zip(shuffle).collect();
        objects.sort_by_key(|(_, order)| *order);
        let mut shuffled = Catalog::default();
        for (object, _) in objects {
            shuffled.apply(ObjectChange::Put { object, problems: vec![] }, &mut DirtySet::default());
        }
        prop_assert_eq!(&tables, &tables_from_scratch(&shuffled, config));
    }

    /// Changes that cancel out make an empty delta.
    #[test]
    fn no_news_is_an_empty_delta(changes in prop::collection::vec(change(), 0..20)) {
        let mut catalog = Catalog::default();
        let mut projector = Projector::default();
        let mut dirty = DirtySet::default();
        changes.iter().for_each(|change| catalog.apply(change.clone(), &mut dirty));
        projector.update(&catalog, &dirty);
        prop_assert!(projector.update(&catalog, &dirty).is_empty());
    }
}

/// It is wrong for both ports, but one thing is wrong; and it is right as soon as it can be.
#[test]
fn a_nodes_address_is_one_problem_while_it_lasts() {
    let key = |namespace: &str, name: &str| ObjectKey {
        cluster: "".into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let port = |port| ServicePort {
        name: format!("p{port}").into(),
        protocol: Protocol::Tcp,
        port,
        node_port: None,
    };
    let service = Service {
        cluster_ips: vec!["10.96.0.1".parse().unwrap()],
        external_ips: vec!["192.0.2.1".parse().unwrap()],
        ports: vec![port(80), port(443)],
        ..Service::new(key("ns", "web"))
    };
    let mut pipeline = crate::Pipeline::new(SelectConfig::default());
    let put = |object| {
        let problems = vec![];
        ObjectChange::Put { object, problems }
    };
    pipeline.apply(put(Object::Service(service)));
    assert_eq!(pipeline.flush().records.len(), 2);
    assert!(pipeline.problems().is_empty());

    let mut node = Node::new(key("", "n1"));
    node.addresses = ["192.0.2.1".parse().unwrap()].into();
    pipeline.apply(put(Object::Node(node.clone())));
    assert_eq!(pipeline.flush().records.len(), 2);
    let problems: Vec<_> = pipeline.problems().into_values().flatten().collect();
    let reasons: Vec<_> = problems.iter().map(|p| p.reason).collect();
    assert_eq!(reasons, [Reason::NodeAddress]);

    node.addresses.clear();
    pipeline.apply(put(Object::Node(node)));
    assert_eq!(pipeline.flush().records.len(), 2);
    assert!(pipeline.problems().is_empty());
}

/// A record of a load balancer with one destination.
fn balanced(name: &str, last: u8) -> (RecordKey, Arc<Record>) {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: name.into(),
        port: "tcp-80".into(),
        protocol: Protocol::Tcp,
    };
    let record = Record {
        destinations: vec![Destination::new(([10, 0, 0, last], 80).into())],
        ..Record::new(key.clone())
    };
    (key, Arc::new(record))
}

#[test]
fn a_generation_of_load_balancers_replaces_the_one_before() {
    let (mut catalog, mut dirty) = (Catalog::default(), DirtySet::default());
    let mut projector = Projector::default();
    let mut deliver = |records: &[(RecordKey, Arc<Record>)]| {
        let generation = ObjectChange::LoadBalancers {
            cluster: "".into(),
            records: records.iter().cloned().collect(),
        };
        catalog.apply(generation, &mut dirty);
        projector
            .update(&catalog, &std::mem::take(&mut dirty))
            .records
    };
    let (web, dns) = (balanced("web", 1), balanced("dns", 1));
    let put = |(key, record): &(RecordKey, Arc<Record>)| (key.clone(), Some(Arc::clone(record)));
    assert_eq!(
        deliver(&[web.clone(), dns.clone()]),
        [put(&web), put(&dns)].into()
    );
    assert_eq!(deliver(&[web.clone(), dns.clone()]), [].into());
    let moved = balanced("web", 2);
    assert_eq!(
        deliver(std::slice::from_ref(&moved)),
        [put(&moved), (dns.0, None)].into()
    );
}
