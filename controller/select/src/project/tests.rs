use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_catalog::{Change, DirtySet, EndpointSlice, Node, Object, ObjectKey};
use portolan_model::NodeTable;
use proptest::prelude::*;

use super::*;
use crate::testing::{NODES, service, slice};
use crate::{NodeView, categorize};

fn catalog(objects: Vec<Object>) -> Catalog {
    let mut catalog = Catalog::default();
    for object in objects {
        catalog.apply(
            Change::Put {
                object,
                problems: vec![],
            },
            &mut DirtySet::default(),
        );
    }
    catalog
}

fn table_of(projection: &Projection, node: &str, zone: Option<&str>) -> NodeTable {
    let record = projection.record.clone().unwrap();
    let node = NodeKey {
        cluster: "".into(),
        name: node.into(),
    };
    let lists = projection.lists.get(&node).cloned();
    NodeTable {
        node: portolan_model::NodeInfo {
            zone: zone.map(Into::into),
            ..portolan_model::NodeInfo::default()
        },
        lists: lists
            .map(|lists| (record.key.clone(), Arc::new(lists)))
            .into_iter()
            .collect(),
        records: BTreeMap::from([(record.key.clone(), Arc::new(record))]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// One projection for all nodes says for each node what upstream's rule says for that node.
    #[test]
    fn every_node_gets_what_the_rule_for_one_node_says(
        service in service(),
        slices in prop::collection::vec(slice(), 0..4),
    ) {
        let slices = slices.into_iter().map(|mut slice| {
            slice.service = Arc::clone(&service.key.name);
            Object::EndpointSlice(slice)
        });
        let catalog = catalog(slices.chain([Object::Service(service.clone())]).collect());
        for index in 0..service.ports.len() {
            let projection = project(&catalog, &service, index);
            let Some(record) = projection.record.clone() else { continue };
            let endpoints = catalog.endpoints(&service, &service.ports[index]);
            for (node, zone) in NODES.iter().flat_map(|n| {
                [None, Some("a"), Some("b"), Some("c")].map(|z| (*n, z))
            }) {
                let table = table_of(&projection, node, zone);
                for frontend in &record.frontends {
                    let of_family = endpoints
                        .iter()
                        .filter(|(address, _)| Family::of(address.ip()) == frontend.family())
                        .map(|(address, endpoint)| (*address, *endpoint))
                        .collect();
                    let rule = categorize(
                        &of_family,
                        service.internal_policy,
                        service.external_policy,
                        service.externally_accessible(&service.ports[index]),
                        NodeView { name: node, zone },
                    );
                    let expected = match frontend.lists {
                        Lists::Cluster => rule.cluster,
                        Lists::Local => rule.local,
                    };
                    let got: BTreeSet<_> =
                        table.destinations(&record, frontend).iter().map(|d| d.address).collect();
                    prop_assert_eq!(
                        got, expected.unwrap_or_default(),
                        "node {} zone {:?} frontend {:?}", node, zone, frontend
                    );
                }
            }
        }
    }
}

fn http(name: &str, created: Option<i64>, node_port: Option<u16>) -> Service {
    Service {
        key: ObjectKey {
            cluster: "".into(),
            namespace: "ns".into(),
            name: name.into(),
        },
        created,
        cluster_ips: vec![],
        external_ips: vec![],
        load_balancer_ips: vec![],
        source_ranges: vec![],
        external_policy: TrafficPolicy::Cluster,
        internal_policy: TrafficPolicy::Cluster,
        affinity_seconds: None,
        ports: vec![portolan_catalog::ServicePort {
            name: "".into(),
            protocol: portolan_model::Protocol::Tcp,
            port: 80,
            node_port,
        }],
    }
}

#[test]
fn the_older_service_keeps_a_node_port_that_both_claim() {
    let mut old = http("zz-old", Some(1), Some(30080));
    let mut new = http("aa-new", Some(2), Some(30080));
    old.cluster_ips = vec!["10.96.0.1".parse().unwrap()];
    new.cluster_ips = vec!["10.96.0.2".parse().unwrap()];
    let catalog = catalog(vec![
        Object::Service(new.clone()),
        Object::Service(old.clone()),
    ]);

    let kinds = |p: &Projection| {
        p.record
            .as_ref()
            .unwrap()
            .frontends
            .iter()
            .map(|f| f.kind)
            .collect::<Vec<_>>()
    };
    let winner = project(&catalog, &old, 0);
    assert_eq!(
        kinds(&winner),
        [FrontendKind::ClusterIp, FrontendKind::NodePort]
    );
    assert!(winner.problems.is_empty());

    let loser = project(&catalog, &new, 0);
    assert_eq!(kinds(&loser), [FrontendKind::ClusterIp]);
    let [problem] = &loser.problems[..] else {
        panic!("{:?}", loser.problems)
    };
    assert_eq!(
        problem.to_string(),
        "spec.ports[0].nodePort: TCP node port 30080 already belongs to Service ns/zz-old"
    );
}

#[test]
fn a_service_without_an_address_has_no_record() {
    let service = http("headless", None, None);
    let catalog = catalog(vec![Object::Service(service.clone())]);
    assert_eq!(project(&catalog, &service, 0), Projection::default());
}

#[test]
fn more_zones_than_a_mask_holds_are_reported_and_hints_ignored() {
    let mut service = http("s", None, None);
    service.cluster_ips = vec!["10.96.0.1".parse().unwrap()];
    let endpoints = (0..65u8).map(|i| Endpoint {
        address: [10, 0, 0, i + 1].into(),
        ready: true,
        serving: true,
        terminating: false,
        node: None,
        zone_hints: Some(vec![format!("zone-{i}").into()]),
        node_hints: None,
    });
    let slice = EndpointSlice {
        key: ObjectKey {
            cluster: "".into(),
            namespace: "ns".into(),
            name: "s-1".into(),
        },
        service: "s".into(),
        family: Family::V4,
        ports: vec![portolan_catalog::SlicePort {
            name: "".into(),
            protocol: portolan_model::Protocol::Tcp,
            port: 8080,
        }],
        endpoints: endpoints.collect(),
    };
    let node = Node {
        key: ObjectKey {
            cluster: "".into(),
            namespace: "".into(),
            name: "n".into(),
        },
        info: portolan_model::NodeInfo {
            zone: Some("zone-1".into()),
            ..portolan_model::NodeInfo::default()
        },
    };
    let catalog = catalog(vec![
        Object::Service(service.clone()),
        Object::EndpointSlice(slice),
        Object::Node(node),
    ]);
    let projection = project(&catalog, &service, 0);
    let record = projection.record.unwrap();
    assert_eq!((record.destinations.len(), record.zone_mask), (65, None));
    assert_eq!(projection.problems[0].reason, Reason::TooMany);
}
