// SPDX-License-Identifier: Apache-2.0

//! Clusters behind gateways: what imports use of them, and what their gateways accept.

use portolan_catalog::{Kind, ObjectRef, OwnImport, Reason, ServiceImport};
use portolan_mcs::Awaited;
use portolan_model::{Destination, FrontendAddress, FrontendKind};

use super::rules::World;
use super::*;

/// `b` is behind gateways, with the networks of pods of `a`.
const BEHIND: [&str; 3] = [
    "nodeCIDRs: [192.168.1.0/24, 192.168.0.0/24]",
    "mode: Gateway, nodeCIDRs: [192.168.2.0/24], gateway: {nodes: {names: ['n*']}, ports: 20000-20100}",
    "nodeCIDRs: [192.168.3.0/24]",
];

fn world(networks: [&str; 3], more: &[(&str, &str)]) -> World {
    let mut world = World::of(policies_with("{}", networks, more));
    world.apply(CLUSTERS.map(|cluster| export(cluster, "web", single())));
    let nodes = CLUSTERS.map(|cluster| ["n1", "n2"].map(|name| gateway(cluster, name, true)));
    world.apply(nodes.into_iter().flatten());
    world
}

fn destinations(world: &World, cluster: &str) -> Vec<(String, u32)> {
    let all = &world.record(cluster).destinations;
    let text = |one: &Destination| (one.address.to_string(), one.weight);
    all.iter().map(text).collect()
}

fn at_gateways<'w>(world: &'w World, cluster: &str) -> Option<&'w Record> {
    let mut records = world.tables().records.iter();
    let found = records.find(|(key, _)| *key.cluster == *cluster && &*key.service == "web@gateway");
    found.map(|(_, record)| &**record)
}

/// The port of `web` at the gateways of `b`.
fn port(world: &World) -> u16 {
    let frontends = &at_gateways(world, "b").unwrap().frontends;
    let ports: std::collections::BTreeSet<_> = frontends.iter().map(|one| one.port).collect();
    assert_eq!(ports.len(), 1);
    *ports.first().unwrap()
}

#[test]
fn importers_send_to_gateways_by_the_number_of_pods_behind_them() {
    let world = world(BEHIND, &[]);
    let port = port(&world);
    let gateways = [1, 2].map(|last| format!("192.168.2.{last}:{port}"));
    let of_gateways: Vec<_> = destinations(&world, "a")
        .into_iter()
        .filter(|(address, _)| address.starts_with("192.168"))
        .collect();
    // 3, 7 and 11 pods: the 7 of b are behind two gateways.
    let weights: Vec<u32> = of_gateways.iter().map(|(_, weight)| *weight).collect();
    assert_eq!(
        of_gateways
            .iter()
            .map(|(at, _)| at.clone())
            .collect::<Vec<_>>(),
        gateways
    );
    assert_eq!(weights.iter().sum::<u32>() * 3, 7 * world.weights("a")[0]);
    let masqueraded = world.record("a").frontends.iter().all(|frontend| {
        frontend.kind == FrontendKind::ExternalIp && frontend.masquerade && frontend.bind
    });
    assert!(masqueraded, "{:?}", world.record("a").frontends);
}

#[test]
fn a_cluster_behind_gateways_uses_its_own_pods_and_others_gateways_alone() {
    let world = world(BEHIND, &[]);
    let own: Vec<_> = (1..=7)
        .map(|last| (format!("10.2.0.{last}:8080"), 1))
        .collect();
    assert_eq!(destinations(&world, "b"), own);
    assert!(
        world
            .record("b")
            .frontends
            .iter()
            .all(|frontend| { frontend.kind == FrontendKind::ClusterIp && !frontend.masquerade })
    );
    assert!(at_gateways(&world, "a").is_none() && at_gateways(&world, "c").is_none());
    let with_gateway = [
        BEHIND[0],
        BEHIND[1],
        "nodeCIDRs: [192.168.3.0/24], gateway: {ports: 30000-30100}",
    ];
    let world = self::world(with_gateway, &[]);
    let reached = destinations(&world, "b").into_iter();
    let of_c = reached.filter(|(address, _)| address.starts_with("192.168.3."));
    assert_eq!(of_c.count(), 2);
    // Two Flat clusters have a route, gateways or not.
    assert!(
        !destinations(&world, "a")
            .iter()
            .any(|(at, _)| at.starts_with("192.168.3."))
    );
    let sources = &at_gateways(&world, "c").unwrap().frontends[0].source_ranges;
    assert_eq!(sources, &["192.168.2.0/24".parse().unwrap()]);
}

#[test]
fn gateways_admit_nodes_of_importers_and_lead_to_own_pods() {
    let world = world(BEHIND, &[]);
    let record = at_gateways(&world, "b").unwrap();
    let sources: Vec<ipnet::IpNet> = ["192.168.0.0/23", "192.168.3.0/24"]
        .map(|text| text.parse().unwrap())
        .into();
    let addresses: Vec<_> = record.frontends.iter().map(|one| one.address).collect();
    let vip = |last: u8| FrontendAddress::Vip([192, 168, 2, last].into());
    assert_eq!(addresses, [vip(1), vip(2)]);
    for frontend in &record.frontends {
        assert_eq!(frontend.source_ranges, sources, "neighbours are one");
        assert!(frontend.masquerade && !frontend.bind);
        assert_eq!(frontend.kind, FrontendKind::ExternalIp);
    }
    let pods: Vec<_> = record
        .destinations
        .iter()
        .map(|one| one.address.ip())
        .collect();
    let expected: Vec<IpAddr> = (1..=7).map(|last| pod("b", last)).collect();
    assert_eq!(pods, expected);
    assert_eq!(world.problems(), BTreeMap::new());
}

#[test]
fn an_importer_without_networks_of_nodes_gets_nothing_and_is_not_admitted() {
    let world = world(["", BEHIND[1], BEHIND[2]], &[]);
    assert_eq!(world.weights("a")[1], 0);
    assert!(
        !destinations(&world, "a")
            .iter()
            .any(|(at, _)| at.starts_with("192.168"))
    );
    let sources = &at_gateways(&world, "b").unwrap().frontends[0].source_ranges;
    assert_eq!(sources, &["192.168.3.0/24".parse().unwrap()]);
    let shown = world.import("a");
    let why = "not imported: spec.network.nodeCIDRs of Cluster a is empty: gateways would refuse its nodes";
    assert!(
        shown.hidden.contains(&("b".to_owned(), why.to_owned())),
        "{:?}",
        shown.hidden
    );
    // Nobody but itself imports it: it is at no gateway.
    let world = self::world(["", BEHIND[1], ""], &[]);
    assert!(at_gateways(&world, "b").is_none());
}

#[test]
fn a_family_without_networks_of_the_importers_is_closed() {
    let dual = [
        "nodeCIDRs: [192.168.1.0/24]",
        "mode: Gateway, nodeCIDRs: [192.168.2.0/24, 'fd00:2:2::/64'], gateway: {ports: 20000-20100}",
        "nodeCIDRs: [192.168.3.0/24]",
    ];
    let mut world = world(dual, &[]);
    world.apply(CLUSTERS.map(|cluster| export(cluster, "web", facts())));
    let with_v6 = put(Object::Node(dual_node("b", "n1")));
    world.apply([with_v6]);
    let frontends = &at_gateways(&world, "b").unwrap().frontends;
    assert!(!frontends.is_empty() && frontends.iter().all(|one| one.family() == Family::V4));
    let v6_pod = Endpoint::new("fd00:2::1".parse().unwrap());
    world.apply([put(Object::EndpointSlice(EndpointSlice {
        family: Family::V6,
        key: key("b", "web-6"),
        ..super::slice_of("b", "web", vec![v6_pod])
    }))]);
    let of_v6 = |world: &World| {
        let all = destinations(world, "a").into_iter();
        all.filter(|(at, _)| at.starts_with("[fd00:2:2:")).count()
    };
    assert_eq!(of_v6(&world), 0);
    let open = [
        "nodeCIDRs: [192.168.1.0/24, 'fd00:1:1::/64']",
        dual[1],
        dual[2],
    ];
    world.policies(policies_with("{}", open, &[]));
    let frontends = &at_gateways(&world, "b").unwrap().frontends;
    let v6 = frontends
        .iter()
        .find(|one| one.family() == Family::V6)
        .unwrap();
    assert_eq!(v6.source_ranges, ["fd00:1:1::/64".parse().unwrap()]);
    assert_eq!(of_v6(&world), 1);
}

#[test]
fn another_gateway_takes_over_and_the_lost_one_keeps_its_connections() {
    let mut world = world(BEHIND, &[]);
    let port = port(&world);
    world.apply([gateway("b", "n1", false)]);
    let is_there = |world: &World, last: u8| {
        let place = format!("192.168.2.{last}:{port}");
        destinations(world, "a").iter().any(|(at, _)| *at == place)
    };
    assert!(!is_there(&world, 1) && is_there(&world, 2));
    assert_eq!(at_gateways(&world, "b").unwrap().frontends.len(), 2);
    assert_eq!(world.weights("a")[0] * 7, 3 * sum(&world, "192.168.2."));
    world.apply([put_deletion("b", "n1")]);
    assert_eq!(at_gateways(&world, "b").unwrap().frontends.len(), 1);
    world.apply([gateway("b", "n2", false)]);
    let local = destinations(&world, "a");
    assert!(
        !local.iter().any(|(at, _)| at.starts_with("192.168")),
        "{local:?}"
    );
    assert_eq!(
        named(&world, Kind::ServiceExport, "b", "web"),
        [(
            Reason::InvalidValue,
            "NoGateway: no Ready Node of the cluster is a gateway: not reached from a, c"
                .to_owned(),
        )]
    );
    world.apply([gateway("b", "n9", true)]);
    assert!(is_there(&world, 9));
    assert_eq!(named(&world, Kind::ServiceExport, "b", "web"), []);
}

#[test]
fn endpoints_and_importers_that_change_change_what_gateways_have() {
    let mut world = world(BEHIND, &[]);
    let pods = |world: &World| at_gateways(world, "b").unwrap().destinations.len();
    let slice_of = |count: u8| {
        let pods = (1..=count).map(|number| Endpoint::new(pod("b", number)));
        slice("b", "web", pods.collect())
    };
    world.apply([slice_of(2)]);
    assert_eq!(pods(&world), 2);
    world.apply([slice_of(0)]);
    assert_eq!(pods(&world), 0);
    assert!(
        !destinations(&world, "a")
            .iter()
            .any(|(at, _)| at.starts_with("192.168"))
    );
    world.apply([slice_of(1)]);
    assert_eq!(pods(&world), 1);
    // Nobody imports what is not exported.
    let quota = policies_with("{quota: {exportsPerCluster: 0}}", BEHIND, &[]);
    world.policies(quota);
    assert!(at_gateways(&world, "b").is_none());
}

#[test]
fn an_export_that_a_quota_refuses_leaves_the_gateways() {
    let policies = policies_with("{quota: {exportsPerCluster: 1}}", BEHIND, &[]);
    let mut world = World::of(policies);
    let dated = |name: &str, created: i64| {
        put(Object::ServiceExport(ServiceExport {
            requested: true,
            created: Some(created),
            service: Some(Arc::new(single())),
            ..ServiceExport::new(key("b", name))
        }))
    };
    world.apply([gateway("b", "n1", true), dated("web", 9)]);
    assert!(at_gateways(&world, "b").is_some());
    world.apply([put(Object::Service(service("b", "api"))), dated("api", 1)]);
    assert!(at_gateways(&world, "b").is_none(), "an older export came");
}

#[test]
fn pods_without_a_gateway_do_not_keep_terminating_ones_from_serving() {
    let mut world = world(BEHIND, &[]);
    let ending = Endpoint {
        ready: false,
        serving: true,
        terminating: true,
        ..Endpoint::new(pod("a", 1))
    };
    let none = slice("c", "web", Vec::new());
    world.apply([slice("a", "web", vec![ending]), none]);
    assert!(
        !destinations(&world, "a")
            .iter()
            .any(|(at, _)| at.starts_with("10.1."))
    );
    let unready = ["n1", "n2"].map(|name| gateway("b", name, false));
    world.apply(unready);
    assert_eq!(destinations(&world, "a"), [("10.1.0.1:8080".to_owned(), 1)]);
}

#[test]
fn ports_are_noted_in_the_import_of_the_exporting_cluster_and_read_back() {
    let world = world(BEHIND, &[]);
    let before = port(&world);
    let writes = |world: &World, cluster: &str| {
        let writes = world
            .pipeline()
            .mcs_writes(&cluster.into(), &Awaited::default());
        format!("{writes:?}")
    };
    // What is created first has the mark alone; the next look applies the rest.
    let created = put(Object::ServiceImport(ServiceImport {
        key: key("b", "web"),
        uid: "u".into(),
        generation: 1,
        created: None,
        own: Some(Box::new(OwnImport {
            winner: "a".into(),
            ..OwnImport::default()
        })),
    }));
    let mut world = world;
    world.apply([created]);
    let expected = format!("http/TCP={before}");
    assert!(
        writes(&world, "b").contains(&expected),
        "{}",
        writes(&world, "b")
    );
    assert!(!writes(&world, "a").contains("gateway-ports"));
    // Another replica has given another port.
    let noted = [(
        "portolan.dev/gateway-ports".to_owned(),
        "http/TCP=20042".to_owned(),
    )];
    let theirs = put(Object::ServiceImport(ServiceImport {
        key: key("b", "web"),
        uid: "u".into(),
        generation: 2,
        created: None,
        own: Some(Box::new(OwnImport {
            winner: "a".into(),
            annotations: noted.into(),
            ..OwnImport::default()
        })),
    }));
    world.adopt("b", theirs);
    assert_eq!(port(&world), 20_042);
    assert!(
        destinations(&world, "a")
            .iter()
            .any(|(at, _)| at == "192.168.2.1:20042")
    );
}

fn sum(world: &World, prefix: &str) -> u32 {
    let all = destinations(world, "a").into_iter();
    all.filter(|(at, _)| at.starts_with(prefix))
        .map(|(_, weight)| weight)
        .sum()
}

fn put_deletion(cluster: &str, name: &str) -> ObjectChange {
    ObjectChange::Delete(gateway_object(cluster, name, true).reference())
}

fn named(world: &World, kind: Kind, cluster: &str, name: &str) -> Vec<(Reason, String)> {
    let mut of = ObjectRef {
        kind,
        key: key(cluster, name),
    };
    if kind == Kind::Node {
        of.key.namespace = "".into();
    }
    let problems = world.problems();
    let problems = problems.get(&of).cloned().unwrap_or_default();
    problems
        .into_iter()
        .map(|one| (one.reason, one.message))
        .collect()
}

#[test]
fn an_address_outside_the_networks_of_nodes_is_no_gateway_and_is_named() {
    let mut world = world(BEHIND, &[]);
    let mut forged = gateway_node("b", "n2", true);
    forged.host.as_mut().unwrap().internal = [[192, 168, 1, 77].into()].into();
    world.apply([put(Object::Node(forged))]);
    assert_eq!(at_gateways(&world, "b").unwrap().frontends.len(), 1);
    assert!(
        !destinations(&world, "a")
            .iter()
            .any(|(at, _)| at.starts_with("192.168.1.77"))
    );
    assert_eq!(named(&world, Kind::Node, "b", "n2"), [(
        Reason::AddressOutsideNetwork,
        "AddressOutsideNetwork: 192.168.1.77 (outside the cluster's networks): no gateway has them"
            .to_owned(),
    )]);
    world.apply([gateway("b", "n2", true)]);
    assert_eq!(named(&world, Kind::Node, "b", "n2"), []);
}

#[test]
fn a_full_range_of_ports_is_named_and_other_exports_go_on() {
    let one = BEHIND[1].replace("20000-20100", "20000-20000");
    let mut world = world([BEHIND[0], &one, BEHIND[2]], &[]);
    let before = port(&world);
    let pods = [1, 2].map(|number| Endpoint::new(pod("b", number)));
    world.apply([
        put(Object::Service(service("b", "api"))),
        slice("b", "api", pods.into()),
        export("b", "api", single()),
    ]);
    assert_eq!(named(&world, Kind::ServiceExport, "b", "api"), [(
        Reason::TooMany,
        "NoGatewayPort: port http TCP: no port is left in spec.network.gateway.ports 20000-20000 of the \
         Cluster: not reached from a, c"
            .to_owned(),
    )]);
    assert_eq!(port(&world), before);
    assert_eq!(named(&world, Kind::ServiceExport, "b", "web"), []);
    assert_eq!(
        world
            .tables()
            .import("b", "api")
            .unwrap()
            .destinations
            .len(),
        2
    );
    assert_eq!(world.tables().import("a", "api").unwrap().destinations, []);
    // The first export goes, and the port is another's.
    world.apply([ObjectChange::Delete(ObjectRef {
        kind: Kind::ServiceExport,
        key: key("b", "web"),
    })]);
    let of_api = &world.tables().import("a", "api").unwrap().destinations;
    let expected = [1, 2].map(|last| format!("192.168.2.{last}:20000"));
    let found: Vec<_> = of_api.iter().map(|one| one.address.to_string()).collect();
    assert_eq!(found, expected);
    let mut keys = world.tables().records.keys();
    assert!(keys.any(|key| &*key.service == "api@gateway"));
}

#[test]
fn a_headless_service_is_not_imported_from_behind_gateways() {
    let mut world = world(BEHIND, &[]);
    let headless = ServiceFacts {
        kind: ServiceType::Headless,
        ..single()
    };
    world.apply(CLUSTERS.map(|cluster| export(cluster, "web", headless.clone())));
    let shown = world.import("a");
    let why = "not imported: a headless Service, and no route to its pods";
    assert!(
        shown.hidden.contains(&("b".to_owned(), why.to_owned())),
        "{:?}",
        shown.hidden
    );
    assert!(at_gateways(&world, "b").is_none());
}

#[test]
fn people_see_gateways_and_whom_they_are_for() {
    let world = world(BEHIND, &[]);
    let port = port(&world);
    let shown = world.import("a");
    let mut of_b = shown.ports[0]
        .clusters
        .iter()
        .filter(|one| one.cluster == "b");
    let of_b = of_b.next().unwrap();
    let places = [1, 2].map(|last| format!("192.168.2.{last}:{port}").parse().unwrap());
    assert_eq!(of_b.gateways, places);
    assert_eq!((of_b.ready, of_b.expected), (7, 7));
    let export = world.export("b");
    assert_eq!(export.gateways.len(), 1);
    let gateway = &export.gateways[0];
    assert_eq!(
        (gateway.port.as_str(), &*gateway.importers),
        ("http TCP", &["a", "c"].map(str::to_owned)[..])
    );
    let named = places
        .iter()
        .zip(["n1", "n2"])
        .map(|(at, node)| (*at, node.to_owned()));
    assert_eq!(gateway.places, named.collect::<Vec<_>>());
    assert_eq!(world.export("a").gateways, []);
}

#[test]
fn another_policy_shows_what_gateways_would_have() {
    let world = world(["nodeCIDRs: [192.168.1.0/24]", "", ""], &[]);
    let other = policies_with("{}", [BEHIND[0], BEHIND[1], ""], &[]);
    let planned = world.planned(other);
    let of_a = planned.iter().find(|one| one.cluster == "a").unwrap();
    // The same shares, by gateways.
    assert_eq!(
        of_a.before.as_ref().unwrap().permille,
        of_a.after.as_ref().unwrap().permille
    );
    assert!(
        of_a.after.as_ref().unwrap().gateways.contains_key("b"),
        "{of_a:?}"
    );
}
