use std::net::IpAddr;

use portolan_model::{Family, NodeInfo};

use super::*;
use crate::{Endpoint, SlicePort};

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
            protocol: portolan_model::Protocol::Tcp,
            port: 80,
        }],
        endpoints: vec![endpoint],
    })
}

fn pod(name: &str, weight: u32) -> Object {
    let key = key("ns", name);
    Object::Pod(Pod { key, weight })
}

fn put(catalog: &mut Catalog, object: Object) -> DirtySet {
    let mut dirty = DirtySet::default();
    let problems = vec![];
    catalog.apply(Change::Put { object, problems }, &mut dirty);
    dirty
}

fn delete(catalog: &mut Catalog, kind: Kind, key: ObjectKey) -> DirtySet {
    let mut dirty = DirtySet::default();
    catalog.apply(Change::Delete(ObjectRef { kind, key }), &mut dirty);
    dirty
}

fn names(services: &BTreeSet<ObjectKey>) -> Vec<&str> {
    services.iter().map(|key| &*key.name).collect()
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
    assert_eq!(catalog.weight(&of, &endpoint), 1);
    put(&mut catalog, node("n1", &[], Some(3)));
    assert_eq!(catalog.weight(&of, &endpoint), 3);
    put(&mut catalog, pod("p1", 7));
    assert_eq!(catalog.weight(&of, &endpoint), 7);
    // A pod of that name elsewhere is another pod.
    assert_eq!(catalog.weight(&key("other", "a"), &endpoint), 3);
    assert_eq!(catalog.weight(&of, &Endpoint::new(ip("10.0.0.1"))), 1);
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
