// SPDX-License-Identifier: Apache-2.0

mod rule;

use std::net::IpAddr;

use portolan_catalog::{
    DirtySet, Endpoint, EndpointSlice, Node, Object, ObjectChange, ObjectKey, Reason,
};
use portolan_model::{FrontendAddress, FrontendKind};

use super::*;
use crate::SourceRanges;

fn catalog(objects: Vec<Object>) -> Catalog {
    let mut catalog = Catalog::default();
    for object in objects {
        catalog.apply(
            ObjectChange::Put {
                object,
                problems: vec![],
            },
            &mut DirtySet::default(),
        );
    }
    catalog
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn http(name: &str, created: Option<i64>, node_port: Option<u16>) -> Service {
    Service {
        created,
        ports: vec![portolan_catalog::ServicePort {
            name: "".into(),
            protocol: portolan_model::Protocol::Tcp,
            port: 80,
            node_port,
        }],
        ..Service::new(key("ns", name))
    }
}

/// Endpoints of the Service `s`.
fn slice_of(endpoints: Vec<Endpoint>) -> Object {
    Object::EndpointSlice(EndpointSlice {
        key: key("ns", "s-1"),
        service: "s".into(),
        family: Family::V4,
        ports: vec![portolan_catalog::SlicePort {
            name: "".into(),
            protocol: portolan_model::Protocol::Tcp,
            port: 8080,
        }],
        endpoints,
        triggered_ms: None,
    })
}

fn projected(objects: Vec<Object>, service: &Service) -> Projection {
    let all = objects
        .into_iter()
        .chain([Object::Service(service.clone())]);
    project(&catalog(all.collect()), SelectConfig::default(), service, 0)
}

#[test]
fn the_older_service_keeps_a_node_port_that_both_claim() {
    let mut old = http("zz-old", Some(1), Some(30080));
    let mut new = http("aa-new", Some(2), Some(30080));
    old.cluster_ips = vec![ip("10.96.0.1")];
    new.cluster_ips = vec![ip("10.96.0.2")];
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
    let config = SelectConfig::default();
    let winner = project(&catalog, config, &old, 0);
    assert_eq!(
        kinds(&winner),
        [FrontendKind::ClusterIp, FrontendKind::NodePort]
    );
    assert!(winner.problems.is_empty());

    let loser = project(&catalog, config, &new, 0);
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
    assert_eq!(projected(vec![], &service), Projection::default());
}

#[test]
fn more_zones_than_a_mask_holds_are_reported_and_hints_ignored() {
    let mut service = http("s", None, None);
    service.cluster_ips = vec![ip("10.96.0.1")];
    let endpoints = (0..65u8).map(|i| Endpoint {
        zone_hints: Some(vec![format!("zone-{i}").into()]),
        ..Endpoint::new([10, 0, 0, i + 1].into())
    });
    let mut node = Node::new(key("", "n"));
    node.info.zone = Some("zone-1".into());
    let objects = vec![slice_of(endpoints.collect()), Object::Node(node)];
    let projection = projected(objects, &service);
    let record = projection.record.unwrap();
    assert_eq!((record.destinations.len(), record.zone_mask), (65, None));
    assert_eq!(projection.problems[0].reason, Reason::TooMany);
}

#[test]
fn a_node_address_is_served_but_not_owned() {
    let mut service = http("s", None, Some(30080));
    service.cluster_ips = vec![ip("10.96.0.1")];
    service.external_ips = vec![ip("192.0.2.1"), ip("192.0.2.2")];
    service.load_balancer_ips = vec![ip("198.51.100.7")];
    let mut node = Node::new(key("", "n1"));
    node.addresses = [ip("192.0.2.1"), ip("198.51.100.7")].into();
    let projection = projected(vec![Object::Node(node)], &service);
    let record = projection.record.unwrap();
    let unbound: Vec<_> = record.frontends.iter().filter(|f| !f.bind).collect();
    let addresses: Vec<_> = unbound.iter().map(|f| f.address).collect();
    let expected = ["192.0.2.1", "198.51.100.7"].map(|text| FrontendAddress::Vip(ip(text)));
    assert_eq!((addresses, record.frontends.len()), (expected.to_vec(), 5));
    let problems: Vec<_> = projection
        .problems
        .iter()
        .map(ToString::to_string)
        .collect();
    let what = "is an address of Node n1: no node makes it its own, other nodes reach it there";
    let expected = [
        format!("spec.externalIPs: 192.0.2.1 {what}"),
        format!("status.loadBalancer.ingress: 198.51.100.7 {what}"),
    ];
    assert_eq!(problems, expected);
    assert_eq!(projection.problems[0].reason, Reason::NodeAddress);
}

#[test]
fn source_ranges_hold_where_clients_keep_their_addresses() {
    use FrontendKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
    let all: &[FrontendKind] = &[ExternalIp, LoadBalancer, NodePort];
    let cases = [
        (SourceRanges::All, true, all),
        (SourceRanges::All, false, &[LoadBalancer]),
        (SourceRanges::LoadBalancer, true, &[LoadBalancer]),
    ];
    for (source_ranges, balancer_keeps_sources, expected) in cases {
        let service = Service {
            cluster_ips: vec![ip("10.96.0.1"), ip("fd00:96::1")],
            external_ips: vec![ip("192.0.2.1"), ip("2001:db8::1")],
            load_balancer_ips: vec![ip("198.51.100.7"), ip("2001:db8::7")],
            balancer_keeps_sources,
            source_ranges: vec!["203.0.113.0/24".parse().unwrap()],
            ..http("s", None, Some(30080))
        };
        let config = SelectConfig { source_ranges };
        let catalog = catalog(vec![Object::Service(service.clone())]);
        let record = project(&catalog, config, &service, 0).record.unwrap();
        for kind in [ClusterIp, ExternalIp, LoadBalancer, NodePort] {
            let of_kind: Vec<_> = record.frontends.iter().filter(|f| f.kind == kind).collect();
            assert_eq!(of_kind.len(), 2);
            for frontend in of_kind {
                // A family without a range is open.
                let closed = frontend.family() == Family::V4 && expected.contains(&kind);
                assert_eq!(!frontend.source_ranges.is_empty(), closed, "{frontend:?}");
            }
        }
    }
}

#[test]
fn destinations_that_differ_in_weight_need_a_scheduler_that_heeds_it() {
    let endpoint = |last, pod: &str| Endpoint {
        pod: Some(pod.into()),
        ..Endpoint::new([10, 0, 0, last].into())
    };
    let pod = |name, weight| {
        let key = key("ns", name);
        Object::Pod(portolan_catalog::Pod { key, weight })
    };
    let scheduler = |weights: [u32; 2], edit: fn(&mut Service)| {
        let mut service = http("s", None, None);
        service.cluster_ips = vec![ip("10.96.0.1")];
        edit(&mut service);
        let endpoints = slice_of(vec![endpoint(1, "a"), endpoint(2, "b")]);
        let pods = [pod("a", weights[0]), pod("b", weights[1])];
        let objects = pods.into_iter().chain([endpoints]).collect();
        let record = projected(objects, &service).record.unwrap();
        let got: Vec<_> = record.destinations.iter().map(|d| d.weight).collect();
        assert_eq!(got, weights);
        record.scheduling.scheduler.map(|name| name.to_string())
    };
    assert_eq!(scheduler([1, 1], |_| ()), None);
    assert_eq!(scheduler([5, 5], |_| ()), None);
    assert_eq!(scheduler([0, 1], |_| ()), None);
    assert_eq!(scheduler([2, 1], |_| ()).as_deref(), Some("wrr"));
    let named = scheduler([2, 1], |s| s.scheduling.scheduler = Some("wlc".into()));
    assert_eq!(named.as_deref(), Some("wlc"));
    let affine = scheduler([2, 1], |s| s.affinity_seconds = Some(60));
    assert_eq!(affine.as_deref(), Some("wrr"));
}

#[test]
fn a_node_without_a_name_has_no_lists() {
    let mut service = http("s", None, None);
    service.cluster_ips = vec![ip("10.96.0.1")];
    service.internal_policy = portolan_catalog::TrafficPolicy::Local;
    service.external_ips = vec![ip("192.0.2.1")];
    let endpoint = |last: u8, hints: &[&str]| Endpoint {
        node: Some("".into()),
        node_hints: Some(hints.iter().map(|name| Arc::from(*name)).collect()),
        ..Endpoint::new([10, 0, 0, last].into())
    };
    let nodes = |endpoints: Vec<Endpoint>| {
        let lists = projected(vec![slice_of(endpoints)], &service).lists;
        let names = lists.into_keys().map(|node| node.name.to_string());
        names.collect::<Vec<_>>()
    };
    let nameless = endpoint(1, &[""]);
    assert_eq!(nodes(vec![nameless.clone()]), [""; 0]);
    assert_eq!(nodes(vec![nameless, endpoint(2, &["", "n1"])]), ["n1"]);
}

/// The lists of a policy that forwards nowhere must be there for a load balancer that counts.
#[test]
fn a_health_check_port_needs_local_lists() {
    let mut service = http("s", None, None);
    service.cluster_ips = vec![ip("10.96.0.1")];
    let endpoint = Endpoint {
        node: Some("n1".into()),
        ..Endpoint::new(ip("10.0.0.1"))
    };
    let lists = |service: &Service| {
        let projection = projected(vec![slice_of(vec![endpoint.clone()])], service);
        let lists = projection.lists.into_values().next().unwrap();
        lists.local.len()
    };
    assert_eq!(lists(&service), 0);
    service.health_check_port = Some(32000);
    assert_eq!(lists(&service), 1);
}
