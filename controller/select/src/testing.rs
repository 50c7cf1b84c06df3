// SPDX-License-Identifier: Apache-2.0

//! Small random worlds: few names, so that events meet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{
    Endpoint, EndpointSlice, Kind, Node, Object, ObjectChange, ObjectKey, Pod, Service,
    ServicePort, SlicePort, TrafficPolicy,
};
use portolan_model::ipvs::Flags;
use portolan_model::{Family, NodeInfo, NodeTable, Protocol, Scheduling};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::{option, sample::select};

use crate::{SelectConfig, SourceRanges, TableDelta};

pub(crate) const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];
const ZONES: [&str; 3] = ["a", "b", "c"];
const SERVICES: [&str; 3] = ["s0", "s1", "s2"];
const PODS: [&str; 3] = ["p0", "p1", "p2"];

fn names(of: &'static [&'static str]) -> impl Strategy<Value = Arc<str>> {
    select(of).prop_map(Into::into)
}

fn object_key(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: "ns".into(),
        name: name.into(),
    }
}

pub(crate) fn policy() -> impl Strategy<Value = TrafficPolicy> {
    select(&[TrafficPolicy::Cluster, TrafficPolicy::Local][..])
}

fn address(family: Family, last: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 0, 0, last]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
    }
}

fn ips(subnet: u8) -> impl Strategy<Value = Vec<IpAddr>> {
    let v4 = (1..4u8).prop_map(move |last| IpAddr::from([10, subnet, 0, last]));
    let v6 =
        (1..4u16).prop_map(move |last| IpAddr::from([0xfd00, 0, subnet.into(), 0, 0, 0, 0, last]));
    prop_oneof![
        2 => v4.clone().prop_map(|ip| vec![ip]),
        1 => v6.clone().prop_map(|ip| vec![ip]),
        2 => (v4, v6).prop_map(|(a, b)| vec![a, b]),
    ]
}

fn some_ips(subnet: u8) -> impl Strategy<Value = Vec<IpAddr>> {
    option::weighted(0.3, ips(subnet)).prop_map(Option::unwrap_or_default)
}

fn service_port() -> impl Strategy<Value = ServicePort> {
    let protocol = select(&[Protocol::Tcp, Protocol::Udp][..]);
    (
        names(&["http", "dns"]),
        protocol,
        80..82u16,
        option::of(30000..30003u16),
    )
        .prop_map(|(name, protocol, port, node_port)| ServicePort {
            name,
            protocol,
            port,
            node_port,
        })
}

pub(crate) fn service() -> impl Strategy<Value = Service> {
    let ports = vec(service_port(), 1..3).prop_map(|mut ports| {
        ports.dedup_by(|a, b| (&a.name, a.protocol) == (&b.name, b.protocol));
        ports
    });
    (
        (names(&SERVICES), option::of(0..3i64)),
        (ips(96), some_ips(97), some_ips(98)),
        (policy(), policy()),
        option::weighted(0.2, Just(10u32)),
        (settings(), any::<bool>()),
        ports,
    )
        .prop_map(
            |((name, created), ips, (external, internal), affinity, (settings, keeps), ports)| {
                Service {
                    key: object_key(&name),
                    created,
                    cluster_ips: ips.0,
                    external_ips: ips.1,
                    balancer_keeps_sources: keeps && !ips.2.is_empty(),
                    load_balancer_ips: ips.2,
                    source_ranges: vec!["192.168.0.0/16".parse().unwrap()],
                    external_policy: external,
                    internal_policy: internal,
                    affinity_seconds: affinity,
                    scheduling: settings.0,
                    drain_seconds: settings.1,
                    health_check_port: settings.2,
                    ports,
                }
            },
        )
}

/// Annotations and a health-check port.
fn settings() -> impl Strategy<Value = (Scheduling, Option<u32>, Option<u16>)> {
    let scheduler = option::weighted(0.2, names(&["lc", "sh"]));
    let flags = option::weighted(0.2, Just(Flags(Flags::SCHED1)));
    let scheduling =
        (scheduler, flags).prop_map(|(scheduler, flags)| Scheduling { scheduler, flags });
    (
        scheduling,
        option::weighted(0.2, 0..3u32),
        option::weighted(0.3, 32000..32002u16),
    )
}

pub(crate) fn config() -> impl Strategy<Value = SelectConfig> {
    let ranges = select(&[SourceRanges::All, SourceRanges::LoadBalancer][..]);
    ranges.prop_map(|source_ranges| SelectConfig { source_ranges })
}

fn hints(of: &'static [&'static str]) -> impl Strategy<Value = Option<Vec<Arc<str>>>> {
    option::weighted(
        0.8,
        btree_set(names(of), 1..3).prop_map(|set| set.into_iter().collect()),
    )
}

fn endpoint(family: Family) -> impl Strategy<Value = Endpoint> {
    (
        1..6u8,
        (prop::bool::weighted(0.6), any::<bool>(), any::<bool>()),
        option::weighted(0.9, names(&NODES)),
        option::weighted(0.7, names(&PODS)),
        hints(&ZONES),
        hints(&NODES),
    )
        .prop_map(
            move |(last, conditions, node, pod, zone_hints, node_hints)| Endpoint {
                address: address(family, last),
                ready: conditions.0,
                serving: conditions.1,
                terminating: conditions.2,
                node,
                pod,
                hostname: None,
                zone_hints,
                node_hints,
            },
        )
}

pub(crate) fn slice() -> impl Strategy<Value = EndpointSlice> {
    let family = select(&Family::ALL[..]);
    (
        family,
        names(&SERVICES),
        0..2u8,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_flat_map(|(family, service, number, hinted, by_node)| {
            let ports = vec(service_port(), 1..3).prop_map(|ports| {
                let port = |p: ServicePort| SlicePort {
                    name: p.name,
                    protocol: p.protocol,
                    port: p.port + 8000,
                };
                ports.into_iter().map(port).collect::<Vec<_>>()
            });
            (ports, vec(endpoint(family), 0..6)).prop_map(move |(ports, mut endpoints)| {
                for endpoint in &mut endpoints {
                    // Whole slices with and without hints, or the safety rule always wins.
                    endpoint.zone_hints = endpoint.zone_hints.take().filter(|_| hinted);
                    endpoint.node_hints = endpoint.node_hints.take().filter(|_| by_node);
                }
                EndpointSlice {
                    key: object_key(&format!("{service}-{family}-{number}")),
                    service: Arc::clone(&service),
                    family,
                    ports,
                    endpoints,
                    triggered_ms: None,
                }
            })
        })
}

/// Addresses that Services may claim too.
fn node_addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    let some = (some_ips(97), some_ips(98), option::weighted(0.1, ips(96)));
    some.prop_map(|(a, b, c)| {
        a.into_iter()
            .chain(b)
            .chain(c.into_iter().flatten())
            .collect()
    })
}

pub(crate) fn node() -> impl Strategy<Value = Node> {
    (
        names(&NODES),
        option::weighted(0.7, names(&ZONES)),
        any::<bool>(),
        node_addresses(),
        option::weighted(0.3, 0..3u32),
    )
        .prop_map(|(name, zone, eligible, addresses, weight)| Node {
            key: ObjectKey {
                cluster: "".into(),
                namespace: "".into(),
                name,
            },
            info: NodeInfo {
                zone,
                eligible,
                ..NodeInfo::default()
            },
            addresses,
            weight,
            host: None,
        })
}

pub(crate) fn pod() -> impl Strategy<Value = Pod> {
    (names(&PODS), 0..4u32).prop_map(|(name, weight)| Pod {
        key: object_key(&name),
        weight,
    })
}

pub(crate) fn object() -> impl Strategy<Value = Object> {
    prop_oneof![
        3 => service().prop_map(Object::Service),
        5 => slice().prop_map(Object::EndpointSlice),
        2 => node().prop_map(Object::Node),
        1 => pod().prop_map(Object::Pod),
    ]
}

pub(crate) fn change() -> impl Strategy<Value = ObjectChange> {
    let keep = vec(object(), 0..8);
    prop_oneof![
        12 => object().prop_map(|object| ObjectChange::Put { object, problems: vec![] }),
        3 => object().prop_map(|object| ObjectChange::Delete(object.reference())),
        1 => (select(&[Kind::Service, Kind::EndpointSlice, Kind::Node, Kind::Pod][..]), keep).prop_map(
            |(kind, keep)| ObjectChange::Retain {
                kind,
                cluster: "".into(),
                keep: keep.into_iter().map(|o| o.reference()).filter(|r| r.kind == kind)
                    .map(|r| r.key).collect(),
            }
        ),
    ]
}

/// Adds a delta to the tables of all nodes, as agents would.
pub(crate) fn fold(tables: &mut BTreeMap<&'static str, NodeTable>, delta: &TableDelta) {
    for name in NODES {
        let table = tables.entry(name).or_default();
        let key = portolan_model::NodeKey {
            cluster: "".into(),
            name: name.into(),
        };
        for (key, record) in &delta.records {
            match record {
                Some(record) => table.records.insert(key.clone(), Arc::clone(record)),
                None => table.records.remove(key),
            };
        }
        for (record, lists) in delta.lists.get(&key).into_iter().flatten() {
            match lists {
                Some(lists) => table.lists.insert(record.clone(), Arc::clone(lists)),
                None => table.lists.remove(record),
            };
        }
        if let Some(info) = delta.nodes.get(&key) {
            table.node.clone_from(info);
        }
    }
}
