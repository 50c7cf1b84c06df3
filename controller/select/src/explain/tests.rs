// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use portolan_catalog::{
    DirtySet, Endpoint, EndpointSlice, Node, Object, ObjectChange, ObjectKey, ServicePort,
    SlicePort, TrafficPolicy,
};
use portolan_model::{NodeInfo, NodeTable};
use proptest::prelude::*;

use super::*;
use crate::Projector;
use crate::testing::{NODES, change, config, fold};

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn node_key(name: &str) -> NodeKey {
    NodeKey {
        cluster: "".into(),
        name: name.into(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For every frontend and node, the used endpoints are those of the node's table.
    #[test]
    fn explanations_agree_with_the_tables(
        changes in prop::collection::vec(change(), 0..25),
        config in config(),
    ) {
        let mut catalog = Catalog::default();
        for change in changes {
            catalog.apply(change, &mut DirtySet::default());
        }
        let (_, delta) = Projector::rebuild(&catalog, config);
        let mut tables: BTreeMap<&str, NodeTable> = BTreeMap::new();
        fold(&mut tables, &delta);
        for name in NODES {
            let node = node_key(name);
            for (record, frontend) in tables[name].records.values().flat_map(|record| {
                record.frontends.iter().map(move |frontend| (record, frontend))
            }) {
                // Node ports have a test of their own.
                let FrontendAddress::Vip(ip) = frontend.address else { continue };
                let address = SocketAddr::new(ip, frontend.port);
                let protocol = record.key.protocol;
                let inquiry = Inquiry { node: node.clone(),
                    has_agent: false, address, protocol };
                let got = explain(&catalog, &Federation::default(), config, &inquiry);
                if catalog.node_info(&node).is_none() {
                    prop_assert_eq!(got, Err(NoAnswer::UnknownNode(node.clone())));
                    continue;
                }
                let got = got.unwrap();
                prop_assert_eq!(&got.record, &record.key.to_string());
                let used = got.endpoints.iter().filter(|e| e.used);
                let used: Vec<_> = used.map(|e| (e.address, e.weight)).collect();
                let table = tables[name].destinations(record, frontend);
                let table: Vec<_> = table.iter().map(|d| (d.address, d.weight)).collect();
                prop_assert_eq!(used, table);
            }
        }
    }
}

/// Two zones, a node in each, and one endpoint more than nodes.
fn world(external: TrafficPolicy) -> Catalog {
    let node = |name: &str, zone: &str, last: u8| {
        Object::Node(Node {
            key: key("", name),
            info: NodeInfo {
                zone: Some(zone.into()),
                ..NodeInfo::default()
            },
            addresses: BTreeSet::from([[192, 168, 0, last].into()]),
            weight: None,
            host: None,
        })
    };
    let service = Service {
        cluster_ips: vec![[10, 96, 0, 1].into()],
        external_policy: external,
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: Some(30080),
        }],
        ..Service::new(key("ns", "web"))
    };
    let endpoint = |last: u8, node: &str, zone: &str| Endpoint {
        node: Some(node.into()),
        zone_hints: Some(vec![zone.into()]),
        ..Endpoint::new([10, 0, 0, last].into())
    };
    let slice = EndpointSlice {
        key: key("ns", "web-1"),
        service: "web".into(),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: vec![
            endpoint(1, "a", "east"),
            endpoint(2, "b", "west"),
            Endpoint {
                ready: false,
                terminating: true,
                ..endpoint(3, "b", "west")
            },
        ],
        triggered_ms: None,
    };
    let mut catalog = Catalog::default();
    let objects = [
        node("a", "east", 1),
        node("b", "west", 2),
        Object::Service(service),
        Object::EndpointSlice(slice),
    ];
    for object in objects {
        let problems = vec![];
        catalog.apply(
            ObjectChange::Put { object, problems },
            &mut DirtySet::default(),
        );
    }
    catalog
}

fn ask(catalog: &Catalog, node: &str, address: &str) -> Result<Explanation, NoAnswer> {
    let inquiry = Inquiry {
        node: node_key(node),
        has_agent: false,
        address: address.parse().unwrap(),
        protocol: Protocol::Tcp,
    };
    explain(
        catalog,
        &Federation::default(),
        SelectConfig::default(),
        &inquiry,
    )
}

fn verdicts(explanation: &Explanation) -> Vec<(bool, &str)> {
    let all = explanation.endpoints.iter();
    all.map(|e| (e.used, e.reason.as_str())).collect()
}

#[test]
fn hints_are_the_reason() {
    let got = ask(&world(TrafficPolicy::Cluster), "a", "10.96.0.1:80").unwrap();
    assert_eq!(
        (got.record.as_str(), got.kind),
        ("ns/web/TCP", FrontendKind::ClusterIp)
    );
    assert_eq!(got.endpoints[1].zone.as_deref(), Some("west"));
    assert_eq!(
        verdicts(&got),
        [
            (true, "ready, and hinted to this node's zone"),
            (false, "hinted to zones: west"),
            (false, "terminating, and others are ready"),
        ]
    );
    assert_eq!(got.notes, Vec::<String>::new());
}

#[test]
fn the_policy_is_the_reason_at_a_node_port() {
    let got = ask(&world(TrafficPolicy::Local), "a", "192.168.0.2:30080").unwrap();
    assert_eq!(
        (got.kind, got.lists),
        (FrontendKind::NodePort, Lists::Local)
    );
    let elsewhere = (false, "on node b, and the traffic policy is Local");
    assert_eq!(verdicts(&got), [(true, "ready"), elsewhere, elsewhere]);
    assert!(got.notes[0].contains("whole cluster"), "{:?}", got.notes);
    assert!(
        got.notes[1].contains("address of Node b"),
        "{:?}",
        got.notes
    );
}

#[test]
fn unknown_names_are_reported_with_similar_ones() {
    let world = world(TrafficPolicy::Cluster);
    let error = |node, address| ask(&world, node, address).unwrap_err().to_string();
    assert_eq!(error("c", "10.96.0.1:80"), "node c: there is no such Node");
    assert_eq!(
        error("a", "10.96.0.1:81"),
        "TCP 10.96.0.1:81: no Service has it; 10.96.0.1 has TCP 80"
    );
    assert_eq!(
        error("a", "10.96.0.9:80"),
        "TCP 10.96.0.9:80: no Service has it, nor any other port of 10.96.0.9"
    );
    assert!(error("a", "192.168.0.1:80").ends_with("is an address of Node a"));
}
