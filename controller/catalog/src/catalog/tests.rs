// SPDX-License-Identifier: Apache-2.0

use std::net::IpAddr;

use portolan_model::{Family, FrontendKind, NodeInfo, Protocol};

use super::*;
use crate::{Claim, Endpoint, ServicePort, SlicePort};

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

fn service(name: &str, external_ip: &str) -> Object {
    Object::Service(Service {
        cluster_ips: vec![ip("10.96.0.1")],
        external_ips: vec![ip(external_ip)],
        ports: vec![ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        ..Service::new(key("ns", name))
    })
}

fn node(name: &str, addresses: &[&str], weight: Option<u32>) -> Object {
    Object::Node(Node {
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        weight,
        ..Node::new(key("", name))
    })
}

fn slice(name: &str, node: &str, pod: &str) -> Object {
    let endpoint = Endpoint {
        node: Some(node.into()),
        pod: Some(pod.into()),
        ..Endpoint::new(ip("10.0.0.1"))
    };
    Object::EndpointSlice(EndpointSlice {
        key: key("ns", &format!("{name}-1")),
        service: name.into(),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
        }],
        endpoints: vec![endpoint],
        triggered_ms: None,
    })
}

fn pod(name: &str, weight: u32) -> Object {
    let key = key("ns", name);
    Object::Pod(Pod { key, weight })
}

fn put(catalog: &mut Catalog, object: Object) -> DirtySet {
    let mut dirty = DirtySet::default();
    let problems = vec![];
    catalog.apply(ObjectChange::Put { object, problems }, &mut dirty);
    dirty
}

fn delete(catalog: &mut Catalog, kind: Kind, key: ObjectKey) -> DirtySet {
    let mut dirty = DirtySet::default();
    catalog.apply(ObjectChange::Delete(ObjectRef { kind, key }), &mut dirty);
    dirty
}

fn names(services: &BTreeSet<ObjectKey>) -> Vec<&str> {
    services.iter().map(|key| &*key.name).collect()
}

#[test]
fn endpoints_are_counted_in_the_slices_that_there_are() {
    let mut catalog = Catalog::default();
    let of_two = |service: &str| {
        let Object::EndpointSlice(mut slice) = slice("web", "a", "web-0") else {
            unreachable!("a slice");
        };
        slice.endpoints.push(Endpoint::new(ip("10.0.0.2")));
        slice.service = service.into();
        Object::EndpointSlice(slice)
    };
    put(&mut catalog, slice("web", "a", "web-0"));
    put(&mut catalog, slice("api", "a", "api-0"));
    assert_eq!(catalog.count_endpoints(""), 2);
    put(&mut catalog, of_two("web"));
    put(&mut catalog, of_two("web"));
    assert_eq!(catalog.count_endpoints(""), 3);
    put(&mut catalog, of_two("other"));
    assert_eq!(catalog.count_endpoints(""), 3);
    delete(&mut catalog, Kind::EndpointSlice, key("ns", "web-1"));
    assert_eq!(catalog.count_endpoints(""), 1);
    assert_eq!(catalog.count_endpoints("elsewhere"), 0);
}

#[test]
fn an_address_that_a_node_gains_or_loses_dirties_the_services_that_want_it() {
    let mut catalog = Catalog::default();
    put(&mut catalog, service("a", "192.0.2.1"));
    put(&mut catalog, service("b", "192.0.2.2"));
    put(&mut catalog, service("c", "192.0.2.2"));
    let holder = |catalog: &Catalog, text| catalog.node_with_address("", ip(text)).cloned();

    let dirty = put(&mut catalog, node("n1", &["192.0.2.1"], None));
    assert_eq!(names(&dirty.services), ["a"]);
    assert_eq!(holder(&catalog, "192.0.2.1").as_deref(), Some("n1"));
    let dirty = put(&mut catalog, node("n1", &["192.0.2.1", "192.0.2.9"], None));
    assert!(dirty.is_empty());
    let dirty = put(&mut catalog, node("n1", &["192.0.2.2"], None));
    assert_eq!(names(&dirty.services), ["a", "b", "c"]);
    assert_eq!(holder(&catalog, "192.0.2.1"), None);
    assert_eq!(catalog.node_with_address("other", ip("192.0.2.2")), None);

    // A service that lost the address is no longer affected by it.
    put(&mut catalog, service("b", "192.0.2.3"));
    delete(&mut catalog, Kind::Service, key("ns", "a"));
    let dirty = delete(&mut catalog, Kind::Node, key("", "n1"));
    assert_eq!(names(&dirty.services), ["c"]);
    assert_eq!(holder(&catalog, "192.0.2.2"), None);
}

#[test]
fn an_address_of_two_nodes_stays_while_one_has_it() {
    let mut catalog = Catalog::default();
    put(&mut catalog, node("n2", &["192.0.2.1"], None));
    put(&mut catalog, node("n1", &["192.0.2.1"], None));
    let holder = |catalog: &Catalog| catalog.node_with_address("", ip("192.0.2.1")).cloned();
    assert_eq!(holder(&catalog).as_deref(), Some("n1"));
    delete(&mut catalog, Kind::Node, key("", "n1"));
    assert_eq!(holder(&catalog).as_deref(), Some("n2"));
}

#[test]
fn a_weight_dirties_the_services_with_endpoints_there() {
    let mut catalog = Catalog::default();
    put(&mut catalog, slice("a", "n1", "p1"));
    put(&mut catalog, slice("b", "n2", "p2"));
    let weighed = |catalog: &Catalog, dirty: &DirtySet| {
        let services = catalog.weighed_by(dirty);
        names(&services).join(" ")
    };

    let dirty = put(&mut catalog, node("n1", &[], Some(3)));
    assert_eq!(weighed(&catalog, &dirty), "a");
    let dirty = put(&mut catalog, node("n1", &["192.0.2.1"], Some(3)));
    assert_eq!(weighed(&catalog, &dirty), "");
    let dirty = put(&mut catalog, pod("p2", 0));
    assert_eq!(weighed(&catalog, &dirty), "b");
    assert!(put(&mut catalog, pod("p2", 0)).is_empty());
    let dirty = delete(&mut catalog, Kind::Pod, key("ns", "p2"));
    assert_eq!(weighed(&catalog, &dirty), "b");
    let dirty = delete(&mut catalog, Kind::Node, key("", "n1"));
    assert_eq!(weighed(&catalog, &dirty), "a");
    assert!(delete(&mut catalog, Kind::Pod, key("ns", "none")).is_empty());
}

#[test]
fn a_pods_weight_counts_more_than_its_nodes() {
    let mut catalog = Catalog::default();
    let of = key("ns", "a");
    let endpoint = Endpoint {
        node: Some("n1".into()),
        pod: Some("p1".into()),
        ..Endpoint::new(ip("10.0.0.1"))
    };
    assert_eq!(catalog.weight(&of, &endpoint.view()), 1);
    put(&mut catalog, node("n1", &[], Some(3)));
    assert_eq!(catalog.weight(&of, &endpoint.view()), 3);
    put(&mut catalog, pod("p1", 7));
    assert_eq!(catalog.weight(&of, &endpoint.view()), 7);
    // A pod of that name elsewhere is another pod.
    assert_eq!(catalog.weight(&key("other", "a"), &endpoint.view()), 3);
    assert_eq!(
        catalog.weight(&of, &Endpoint::new(ip("10.0.0.1")).view()),
        1
    );
}

#[test]
fn a_node_is_dirty_only_if_its_agent_has_to_know() {
    let mut catalog = Catalog::default();
    assert_eq!(put(&mut catalog, node("n1", &[], None)).nodes.len(), 1);
    assert!(put(&mut catalog, node("n1", &["192.0.2.1"], None)).is_empty());
    let changed = Node {
        info: NodeInfo {
            eligible: true,
            ..NodeInfo::default()
        },
        ..Node::new(key("", "n1"))
    };
    assert_eq!(put(&mut catalog, Object::Node(changed)).nodes.len(), 1);
}

#[test]
fn a_node_that_may_be_a_gateway_makes_its_cluster_dirty() {
    let mut catalog = Catalog::default();
    let hosted = |ready| {
        let host = HostFacts {
            ready,
            ..HostFacts::default()
        };
        Object::Node(Node {
            host: Some(Box::new(host)),
            ..Node::new(key("", "n1"))
        })
    };
    let of = |dirty: DirtySet| (dirty.hosts.len(), dirty.urgent, dirty.nodes.len());
    assert_eq!(of(put(&mut catalog, hosted(true))), (1, false, 1));
    assert!(put(&mut catalog, hosted(true)).is_empty());
    assert_eq!(of(put(&mut catalog, hosted(false))), (1, true, 0));
    let hosts: Vec<_> = catalog.hosts(&key("", "n1").cluster).collect();
    assert_eq!(hosts, [(&"n1".into(), &HostFacts::default())]);
    let mut dirty = DirtySet::default();
    let node = hosted(true).reference();
    catalog.apply(ObjectChange::Delete(node), &mut dirty);
    assert_eq!(dirty.hosts.len(), 1);
}

/// The slice `web-1` of the Service `web`.
fn web(endpoints: Vec<Endpoint>, triggered_ms: Option<u64>) -> EndpointSlice {
    EndpointSlice {
        key: key("ns", "web-1"),
        service: "web".into(),
        family: Family::V4,
        ports: vec![],
        endpoints,
        triggered_ms,
    }
}

#[test]
fn only_removals_are_urgent() {
    let endpoint = |last: u8, edit: fn(&mut Endpoint)| {
        let mut endpoint = Endpoint::new([10, 0, 0, last].into());
        edit(&mut endpoint);
        endpoint
    };
    let ready = |last| endpoint(last, |_| ());
    let drains: fn(&mut Endpoint) = |e| (e.ready, e.terminating) = (false, true);
    let dead: fn(&mut Endpoint) = |e| (e.ready, e.serving) = (false, false);
    let steps = [
        (vec![ready(1)], false),
        (vec![ready(1), ready(2)], false),
        (vec![ready(2), ready(1)], false),
        (vec![ready(1), endpoint(2, drains)], true),
        (vec![ready(1), endpoint(2, dead)], true),
        (vec![ready(1)], false),
        (vec![ready(3)], true),
        (vec![], true),
    ];
    let mut catalog = Catalog::default();
    for (endpoints, expected) in steps {
        let slice = web(endpoints, None);
        let dirty = put(&mut catalog, Object::EndpointSlice(slice.clone()));
        assert_eq!(dirty.urgent, expected, "{slice:?}");
        assert_eq!(names(&dirty.services), ["web"]);
    }
    let deleted = |catalog: &mut Catalog| delete(catalog, Kind::EndpointSlice, key("ns", "web-1"));
    assert!(!deleted(&mut catalog).urgent);
    put(
        &mut catalog,
        Object::EndpointSlice(web(vec![ready(1)], None)),
    );
    assert!(deleted(&mut catalog).urgent);

    assert!(!put(&mut catalog, service("web", "192.0.2.1")).urgent);
    assert!(!put(&mut catalog, service("web", "192.0.2.2")).urgent);
    assert!(delete(&mut catalog, Kind::Service, key("ns", "web")).urgent);
}

#[test]
fn a_trigger_is_reported_once_and_only_for_a_changed_slice() {
    let mut catalog = Catalog::default();
    let mut dirty = DirtySet::default();
    let mut put = |slice| {
        let change = ObjectChange::Put {
            object: Object::EndpointSlice(slice),
            problems: vec![],
        };
        catalog.apply(change, &mut dirty);
        dirty
            .triggers
            .values()
            .flatten()
            .copied()
            .collect::<Vec<_>>()
    };
    let one = || vec![Endpoint::new(ip("10.0.0.1"))];
    assert_eq!(put(web(one(), Some(7))), [7]);
    assert_eq!(put(web(one(), Some(8))), [7]);
    assert_eq!(put(web(vec![], Some(9))), [7, 9]);
    assert_eq!(put(web(one(), None)), [7, 9]);
    let object = ObjectRef {
        kind: Kind::EndpointSlice,
        key: key("ns", "web-1"),
    };
    catalog.apply(ObjectChange::Delete(object), &mut dirty);
    assert!(dirty.triggers.is_empty());
}

#[test]
fn versions_only_grow() {
    let mut catalog = Catalog::default();
    assert!(catalog.source_versions().is_empty());
    let mut reach = |kind, version| {
        let cluster = "".into();
        let reached = ObjectChange::Reached {
            kind,
            cluster,
            version,
        };
        let mut dirty = DirtySet::default();
        catalog.apply(reached, &mut dirty);
        assert!(dirty.is_empty());
        catalog.source_versions()[""]
    };
    assert_eq!(reach(Kind::Node, 5), [0, 0, 5]);
    assert_eq!(reach(Kind::Service, 9), [9, 0, 5]);
    assert_eq!(reach(Kind::EndpointSlice, 8), [9, 8, 5]);
    assert_eq!(reach(Kind::Service, 3), [9, 8, 5]);
    assert_eq!(reach(Kind::Pod, 99), [9, 8, 5]);
    catalog.forget_versions("");
    assert!(catalog.source_versions().is_empty());
}

#[test]
fn deleted_objects_leave_nothing() {
    let mut catalog = Catalog::default();
    put(&mut catalog, service("a", "192.0.2.1"));
    put(&mut catalog, slice("a", "n1", "p1"));
    put(&mut catalog, node("n1", &["192.0.2.1"], Some(3)));
    put(&mut catalog, pod("p1", 3));
    for (kind, key) in [
        (Kind::Service, key("ns", "a")),
        (Kind::EndpointSlice, key("ns", "a-1")),
        (Kind::Node, key("", "n1")),
        (Kind::Pod, key("ns", "p1")),
    ] {
        assert_eq!(catalog.count(kind), 1);
        assert!(!delete(&mut catalog, kind, key).is_empty());
        assert_eq!(catalog.count(kind), 0);
    }
    let cluster = catalog.clusters.values().next().unwrap();
    assert!(cluster.namespaces.is_empty());
    assert!(cluster.node_weights.is_empty());
    let left = format!("{:?} {:?}", cluster.claims, cluster.addresses);
    assert_eq!(left, "Claims { all: {}, contested: {} } Addresses({})");
}

#[test]
fn second_claims_make_contests_until_they_go() {
    let claim = |address| Claim {
        cluster: "".into(),
        address: Some(ip(address)),
        port: 80,
        protocol: Protocol::Tcp,
    };
    let mut catalog = Catalog::default();
    let of_both = claim("10.96.0.1");
    put(&mut catalog, service("a", "192.0.2.1"));
    assert!(!catalog.is_contested(&of_both));
    put(&mut catalog, service("b", "192.0.2.2"));
    assert!(catalog.is_contested(&of_both));
    assert!(!catalog.is_contested(&claim("192.0.2.1")));
    put(&mut catalog, service("b", "192.0.2.1"));
    assert!(catalog.is_contested(&claim("192.0.2.1")));
    delete(&mut catalog, Kind::Service, key("ns", "a"));
    for address in ["10.96.0.1", "192.0.2.1"] {
        assert!(!catalog.is_contested(&claim(address)), "{address}");
        let holder = catalog.holder(&claim(address)).unwrap();
        assert_eq!(&*holder.service.name, "b");
    }
}

/// A slice's name begins with its Service's name, or another's, or none.
#[test]
fn a_slice_is_found_by_any_name() {
    for (name, service, other) in [
        ("a-b-x1", "a-b", "a"),
        ("a-b-x1", "a", "a-b"),
        ("x1", "a", "x1"),
        ("a", "a", "b"),
        ("ab-x1", "a", "ab"),
        ("a\0b", "a", "b"),
    ] {
        let mut catalog = Catalog::default();
        let named = |name: &str, service: &str| {
            Object::EndpointSlice(EndpointSlice {
                key: key("ns", name),
                service: service.into(),
                ..web(vec![Endpoint::new(ip("10.0.0.1"))], None)
            })
        };
        put(&mut catalog, named(&format!("{other}-x0"), other));
        put(&mut catalog, named(name, service));
        assert_eq!(catalog.count(Kind::EndpointSlice), 2);
        let dirty = delete(&mut catalog, Kind::EndpointSlice, key("ns", name));
        assert_eq!(names(&dirty.services), [service], "{name}");
        assert_eq!(catalog.count(Kind::EndpointSlice), 1);
    }
}

#[test]
fn a_slice_that_changes_its_service_leaves_the_old_one() {
    let mut catalog = Catalog::default();
    put(&mut catalog, slice("a", "n1", "p1"));
    let Object::EndpointSlice(mut moved) = slice("a", "n1", "p1") else {
        panic!("a slice")
    };
    moved.service = "b".into();
    let dirty = put(&mut catalog, Object::EndpointSlice(moved));
    assert_eq!(names(&dirty.services), ["a", "b"]);
    assert_eq!(catalog.count(Kind::EndpointSlice), 1);
    let endpoints = |name| {
        let service = Service {
            cluster_ips: vec![ip("10.96.0.1")],
            ..Service::new(key("ns", name))
        };
        let port = ServicePort {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        };
        catalog.endpoints(&service, &port).len()
    };
    assert_eq!((endpoints("a"), endpoints("b")), (0, 1));
}

/// A Service of this age that claims these addresses.
fn of_age(name: &str, created: i64, addresses: [&[&str]; 3]) -> Service {
    let [cluster_ips, external_ips, load_balancer_ips] =
        addresses.map(|all| all.iter().map(|text| ip(text)).collect());
    let Object::Service(service) = service(name, "192.0.2.250") else {
        unreachable!()
    };
    Service {
        created: Some(created),
        cluster_ips,
        external_ips,
        load_balancer_ips,
        ..service
    }
}

#[test]
fn an_older_service_cannot_claim_an_allocated_address() {
    let (own, lent) = ("10.96.0.1", "192.0.2.1");
    let old = of_age("old", 1, [&["10.96.0.9"], &[own, lent], &[]]);
    let young = of_age("young", 2, [&[own], &[], &[lent]]);
    for order in [[&old, &young], [&young, &old]] {
        let mut catalog = Catalog::default();
        for service in order {
            put(&mut catalog, Object::Service(service.clone()));
        }
        for (_, kind, claim) in young.claims() {
            let holder = catalog.holder(&claim).unwrap();
            assert_eq!((&*holder.service.name, holder.kind), ("young", kind));
        }
        // There is no other claimant.
        delete(&mut catalog, Kind::Service, young.key.clone());
        for (_, _, claim) in old.claims() {
            assert_eq!(&*catalog.holder(&claim).unwrap().service.name, "old");
        }
    }
}

#[test]
fn an_external_ip_that_is_the_balancers_too_is_the_balancers() {
    let lent = "192.0.2.1";
    let service = of_age("a", 1, [&["10.96.0.1"], &[lent, "192.0.2.2"], &[lent]]);
    let kinds: Vec<_> = service.addresses().map(|(kind, ip)| (ip, kind)).collect();
    assert_eq!(
        kinds,
        [
            (ip("10.96.0.1"), FrontendKind::ClusterIp),
            (ip("192.0.2.2"), FrontendKind::ExternalIp),
            (ip(lent), FrontendKind::LoadBalancer),
        ]
    );
}
