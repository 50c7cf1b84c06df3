// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::spec::{AccessSpec, ClusterSpec, EdgeSpec, GatewaySpec, NetworkSpec};
use crate::{Cluster, Meta};

fn cluster(name: &str, created: i64, network: NetworkSpec) -> (String, Cluster) {
    let meta = Meta {
        name: name.to_owned(),
        created: Some(created),
        ..Meta::default()
    };
    let spec = ClusterSpec {
        access: AccessSpec {
            edge: Some(EdgeSpec::default()),
            ..AccessSpec::default()
        },
        network,
        ..ClusterSpec::default()
    };
    (name.to_owned(), Cluster::new(meta, &spec).unwrap())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn flat(pods: &[&str], nodes: &[&str]) -> NetworkSpec {
    NetworkSpec {
        pod_cidrs: texts(pods),
        node_cidrs: texts(nodes),
        ..NetworkSpec::default()
    }
}

fn behind_gateway(pods: &[&str], nodes: &[&str]) -> NetworkSpec {
    NetworkSpec {
        mode: NetworkMode::Gateway,
        gateway: Some(GatewaySpec {
            ports: "20000-20010".into(),
            ..GatewaySpec::default()
        }),
        ..flat(pods, nodes)
    }
}

fn found(clusters: Vec<(String, Cluster)>) -> Vec<(String, &'static str, String)> {
    let found = overlaps(&clusters.into_iter().collect());
    let each = found.into_iter().flat_map(|(name, overlaps)| {
        overlaps
            .into_iter()
            .map(move |overlap| (name.clone(), overlap.reason(), overlap.to_string()))
    });
    each.collect()
}

#[test]
fn the_younger_of_two_flat_clusters_may_not_overlap() {
    let found = found(vec![
        cluster("a", 20, flat(&["10.1.0.0/16", "10.3.0.0/24"], &[])),
        cluster("b", 10, flat(&["10.3.0.0/16"], &[])),
        cluster("c", 30, flat(&["10.4.0.0/16"], &[])),
    ]);
    let text = "10.3.0.0/24 of pods overlaps 10.3.0.0/16 of Cluster b".to_owned();
    assert_eq!(found, [("a".to_owned(), "PodCIDROverlap", text)]);
}

#[test]
fn pods_behind_gateways_may_overlap_and_their_nodes_may_not() {
    let found = found(vec![
        cluster(
            "a",
            1,
            behind_gateway(&["10.1.0.0/16"], &["192.168.0.0/24"]),
        ),
        cluster(
            "b",
            2,
            behind_gateway(&["10.1.0.0/16"], &["192.168.1.0/24"]),
        ),
        cluster("c", 3, flat(&["10.1.0.0/16"], &["192.168.1.0/25"])),
        cluster("d", 4, flat(&["10.2.0.0/16"], &["192.168.9.0/24"])),
        cluster("e", 5, flat(&["10.5.0.0/16"], &["192.168.9.0/24"])),
    ]);
    let text = "192.168.1.0/25 of nodes overlaps 192.168.1.0/24 of Cluster b".to_owned();
    assert_eq!(found, [("c".to_owned(), "NodeAddressOverlap", text)]);
}

#[test]
fn virtual_addresses_miss_the_clusters_own_networks() {
    let network = NetworkSpec {
        service_cidrs: texts(&["10.96.0.0/12"]),
        cluster_set_ips: texts(&["10.100.0.0/16", "fd00:112::/108"]),
        ..flat(&["10.0.0.0/12", "fd00::/8"], &["192.168.0.0/16"])
    };
    let found = found(vec![cluster("a", 1, network)]);
    let expected = [
        "range fd00:112::/108 of virtual addresses overlaps fd00::/8 of pods",
        "range 10.100.0.0/16 of virtual addresses overlaps 10.96.0.0/12 of Services",
    ];
    let expected = expected.map(|text| ("a".to_owned(), "VIPRangeOverlap", text.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn ports_of_gateways_that_may_be_node_ports_are_named() {
    let told = |ports: &str| {
        let mut spec = behind_gateway(&["10.1.0.0/16"], &["192.168.1.0/24"]);
        spec.gateway = Some(GatewaySpec {
            ports: ports.into(),
            ..GatewaySpec::default()
        });
        let (_, cluster) = cluster("a", 1, spec);
        may_be_node_ports(&cluster).map(|overlap| overlap.to_string())
    };
    for apart in ["20000-29999", "32768-40000"] {
        assert_eq!(told(apart), None);
    }
    for meeting in ["20000-30000", "32767-40000", "1-65535", "31000-31000"] {
        let found = told(meeting).unwrap();
        let start = format!("spec.network.gateway.ports: {meeting} overlaps 30000-32767, ");
        assert!(found.starts_with(&start), "{found}");
    }
    let (_, without) = cluster("a", 1, flat(&["10.1.0.0/16"], &[]));
    assert_eq!(may_be_node_ports(&without), None);
}
