// SPDX-License-Identifier: Apache-2.0

mod ports;

use portolan_policy::Meta;
use portolan_policy::spec::SelectorSpec;
use portolan_policy::spec::{AccessSpec, ClusterSpec, EdgeSpec, GatewaySpec, NetworkSpec};

use super::*;

const NODES: [&str; 2] = ["192.168.1.0/24", "fd00:168:1::/64"];

fn spec(mode: NetworkMode, has_gateway: bool, nodes: &[&str]) -> NetworkSpec {
    let selector = SelectorSpec {
        match_labels: [("gateway".to_owned(), "true".to_owned())].into(),
        ..SelectorSpec::default()
    };
    NetworkSpec {
        mode,
        pod_cidrs: vec!["10.1.0.0/16".to_owned()],
        node_cidrs: nodes.iter().map(ToString::to_string).collect(),
        gateway: has_gateway.then(|| GatewaySpec {
            ports: "20000-20010".into(),
            nodes: selector,
            ..GatewaySpec::default()
        }),
        ..NetworkSpec::default()
    }
}

fn cluster(name: &str, network: NetworkSpec) -> Cluster {
    let meta = Meta {
        name: name.to_owned(),
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
    Cluster::new(meta, &spec).unwrap()
}

/// A Node as it is kept.
#[derive(Debug, Clone)]
struct Known {
    name: Arc<str>,
    ready: bool,
    labels: Labels,
    internal: BTreeSet<IpAddr>,
    external: BTreeSet<IpAddr>,
}

/// A Ready Node with the label and an address of each family.
fn node(number: u8) -> Known {
    Known {
        name: format!("n{number}").into(),
        ready: true,
        labels: [("gateway".to_owned(), "true".to_owned())].into(),
        internal: [v4(number), v6(number)].into(),
        external: BTreeSet::new(),
    }
}

fn v4(number: u8) -> IpAddr {
    [192, 168, 1, number].into()
}

fn v6(number: u8) -> IpAddr {
    [0xfd00, 0x168, 1, 0, 0, 0, 0, number.into()].into()
}

fn gateways(network: NetworkSpec, nodes: &[Known]) -> Gateways {
    let hosts = nodes.iter().map(|node| Host {
        name: &node.name,
        ready: node.ready,
        labels: &node.labels,
        internal: &node.internal,
        external: &node.external,
    });
    Gateways::choose(&cluster("a", network), hosts)
}

fn chosen(nodes: &[Known]) -> BTreeMap<IpAddr, Arc<str>> {
    gateways(spec(NetworkMode::Gateway, true, &NODES), nodes).chosen
}

#[test]
fn gateways_are_ready_nodes_with_the_label_and_an_address_of_the_networks() {
    let (mut unlabelled, mut unready, mut outside) = (node(2), node(3), node(4));
    unlabelled.labels.clear();
    unready.ready = false;
    let stranger: IpAddr = [10, 9, 9, 9].into();
    outside.internal = [stranger, v6(4)].into();
    let nodes = [node(1), unlabelled, unready, outside];
    let found = gateways(spec(NetworkMode::Gateway, true, &NODES), &nodes);
    let expected = [(v4(1), "n1"), (v6(1), "n1"), (v6(4), "n4")];
    assert_eq!(
        found.chosen,
        expected.map(|(ip, name)| (ip, name.into())).into()
    );
    assert_eq!(
        found.refused,
        [("n4".into(), [(stranger, NotAdmitted::Outside)].into())].into()
    );
    let of_family: Vec<_> = found.of_family(Family::V6).map(|(ip, _)| ip).collect();
    assert_eq!(of_family, [v6(1), v6(4)]);
}

#[test]
fn the_address_is_of_the_type_that_is_asked_for() {
    let mut both = node(1);
    both.external = [v4(200), v4(201)].into();
    let mut network = spec(NetworkMode::Gateway, true, &NODES);
    if let Some(gateway) = &mut network.gateway {
        gateway.address = AddressType::External;
    }
    let found = gateways(network, &[both, node(2)]);
    assert_eq!(found.chosen, [(v4(200), "n1".into())].into());
}

#[test]
fn an_address_within_the_pods_networks_is_no_gateways() {
    let mut pod = node(1);
    pod.internal = [[10, 1, 0, 1].into(), [127, 0, 0, 1].into()].into();
    let found = gateways(spec(NetworkMode::Gateway, true, &NODES), &[pod]);
    assert_eq!(found.chosen, BTreeMap::new());
    assert_eq!(found.refused["n1"].len(), 2);
}

#[test]
fn of_many_nodes_some_are_chosen_and_one_that_goes_is_replaced_by_one() {
    let nodes: Vec<Known> = (1..=20).map(node).collect();
    let all = chosen(&nodes);
    assert_eq!(all.len(), 2 * MAX_GATEWAYS);
    let mut reversed = nodes.clone();
    reversed.reverse();
    assert_eq!(chosen(&reversed), all, "in any order");
    let gone = all.values().next().unwrap();
    let rest: Vec<Known> = nodes
        .iter()
        .filter(|node| node.name != *gone)
        .cloned()
        .collect();
    let after = chosen(&rest);
    let stayed = all.iter().filter(|(ip, _)| after.contains_key(*ip)).count();
    assert_eq!((after.len(), stayed), (16, 14));
    assert_eq!(chosen(&nodes), all, "it returns to its place");
}

#[test]
fn a_gateway_that_is_not_ready_keeps_its_connections_and_gets_no_new_ones() {
    let mut nodes: Vec<Known> = (1..=20).map(node).collect();
    let network = || spec(NetworkMode::Gateway, true, &NODES);
    let before = gateways(network(), &nodes);
    assert_eq!(before.open, before.chosen);
    let name = Arc::clone(before.chosen.values().next().unwrap());
    for node in &mut nodes {
        node.ready = node.name != name;
    }
    let after = gateways(network(), &nodes);
    assert!(!after.chosen.values().any(|node| *node == name));
    assert_eq!(after.chosen.len(), 16);
    let mut open = before.chosen;
    open.extend(after.chosen.clone());
    assert_eq!(after.open, open);
}

#[test]
fn clusters_behind_gateways_are_reached_by_gateways_alone() {
    let flat = |name: &str| cluster(name, spec(NetworkMode::Flat, false, &NODES));
    let behind = |name: &str| cluster(name, spec(NetworkMode::Gateway, true, &NODES));
    let open = |name: &str| cluster(name, spec(NetworkMode::Flat, true, &NODES));
    let bare = cluster("bare", spec(NetworkMode::Flat, false, &[]));
    let no_gateway = |name: &str| Err(NoPath::NoGateway(name.to_owned()));
    let cases = [
        (flat("a"), flat("b"), Ok(Path::Pods)),
        (flat("a"), behind("b"), Ok(Path::Gateways)),
        (behind("a"), behind("b"), Ok(Path::Gateways)),
        (behind("a"), behind("a"), Ok(Path::Pods)),
        (behind("a"), flat("b"), no_gateway("b")),
        (behind("a"), open("b"), Ok(Path::Gateways)),
        (flat("a"), open("b"), Ok(Path::Pods)),
        (bare.clone(), flat("b"), Ok(Path::Pods)),
        (
            bare,
            behind("b"),
            Err(NoPath::NoNodeNetwork("bare".to_owned())),
        ),
    ];
    for (importing, exporting, expected) in cases {
        let names = (&importing.meta.name, &exporting.meta.name);
        assert_eq!(path(&importing, &exporting), expected, "{names:?}");
    }
}
