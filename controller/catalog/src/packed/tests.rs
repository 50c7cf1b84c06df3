// SPDX-License-Identifier: Apache-2.0

//! Packing loses nothing.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{Family, NodeInfo, Protocol};
use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::{
    Endpoint, EndpointSlice, HostFacts, Node, ObjectKey, Service, ServicePort, TrafficPolicy,
};

fn name() -> impl Strategy<Value = Arc<str>> {
    "[ab]{1,2}".prop_map(Into::into)
}

fn key() -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: "ns".into(),
        name: "web".into(),
    }
}

fn address(family: Family) -> impl Strategy<Value = IpAddr> {
    any::<u8>().prop_map(move |last| match family {
        Family::V4 => IpAddr::from([10, 0, 0, last]),
        Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last.into()]),
    })
}

fn endpoint(family: Family) -> impl Strategy<Value = Endpoint> {
    let conditions = (any::<bool>(), any::<bool>(), any::<bool>());
    let hints = || option::of(vec(name(), 0..3));
    let names = (
        option::of(name()),
        option::of(name()),
        hints(),
        hints(),
        option::of(name()),
    );
    (address(family), conditions, names).prop_map(|(address, is, names)| Endpoint {
        address,
        ready: is.0,
        serving: is.1,
        terminating: is.2,
        node: names.0,
        pod: names.1,
        zone_hints: names.2,
        node_hints: names.3,
        hostname: names.4,
    })
}

fn node() -> impl Strategy<Value = Node> {
    let info = (
        option::of(name()),
        vec(0..3u8, 0..3),
        any::<bool>(),
        vec(name(), 0..3),
        option::of(name()),
    );
    let info = info.prop_map(|(zone, networks, eligible, groups, director)| NodeInfo {
        zone,
        pod_cidrs: networks
            .into_iter()
            .map(|network| format!("10.{network}.0.0/16").parse().unwrap())
            .collect(),
        eligible,
        groups,
        director,
    });
    let host = any::<bool>().prop_map(|ready| {
        Box::new(HostFacts {
            ready,
            ..HostFacts::default()
        })
    });
    let addresses = btree_set(address(Family::V4), 0..3);
    (info, addresses, option::of(host)).prop_map(|(info, addresses, host)| Node {
        info,
        addresses,
        host,
        ..Node::new(key())
    })
}

fn service() -> impl Strategy<Value = Service> {
    let ips = || vec(prop_oneof![address(Family::V4), address(Family::V6)], 0..3);
    let numbers = (
        option::of(any::<u32>()),
        option::of(any::<u32>()),
        option::of(any::<u16>()),
    );
    let local = any::<(bool, bool, bool)>();
    (
        option::of(0..9i64),
        ips(),
        ips(),
        ips(),
        numbers,
        local,
        option::of(name()),
    )
        .prop_map(
            |(created, cluster_ips, external_ips, load_balancer_ips, numbers, is, scheduler)| {
                let policy = |local| match local {
                    true => TrafficPolicy::Local,
                    false => TrafficPolicy::Cluster,
                };
                let port = ServicePort {
                    name: "http".into(),
                    protocol: Protocol::Tcp,
                    port: 80,
                    node_port: numbers.2,
                };
                Service {
                    created,
                    cluster_ips,
                    external_ips,
                    load_balancer_ips,
                    balancer_keeps_sources: is.0,
                    source_ranges: vec!["10.0.0.0/8".parse().unwrap()],
                    external_policy: policy(is.1),
                    internal_policy: policy(is.2),
                    affinity_seconds: numbers.0,
                    scheduling: portolan_model::Scheduling {
                        scheduler,
                        flags: None,
                    },
                    drain_seconds: numbers.1,
                    health_check_port: numbers.2,
                    ports: vec![port],
                    ..Service::new(key())
                }
            },
        )
}

/// Endpoints with addresses of their own.
fn endpoints() -> impl Strategy<Value = Vec<Endpoint>> {
    vec(endpoint(Family::V4), 0..6).prop_map(|mut all| {
        for endpoint in &mut all {
            // Two lists have some in common.
            if let IpAddr::V4(ip) = endpoint.address {
                endpoint.address = [10, 0, 0, ip.octets()[3] % 7].into();
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|endpoint| seen.insert(endpoint.address));
        all
    })
}

fn slice_of(family: Family, endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        key: key(),
        service: "web".into(),
        family,
        ports: vec![],
        endpoints,
        triggered_ms: None,
    }
}

proptest! {
    #[test]
    fn a_node_is_unpacked_as_it_was(node in node()) {
        let packed = PackedNode::pack(node.clone(), &mut Pack::default());
        prop_assert_eq!(packed.info(), node.info.clone());
        prop_assert_eq!(packed.zone(), node.info.zone.as_ref());
        prop_assert!(packed.addresses().iter().eq(&node.addresses));
        prop_assert_eq!(packed.host(), node.host.as_deref());
    }

    #[test]
    fn a_slice_loses_what_the_next_version_has_not(before in endpoints(), after in endpoints()) {
        let mut pack = Pack::default();
        let [one, next] = [&before, &after].map(|of| pack.slice(slice_of(Family::V4, of.clone())));
        let is_less = |endpoint: &Endpoint, has: fn(&Endpoint) -> bool| {
            let mut kept = after.iter().filter(|after| after.address == endpoint.address);
            has(endpoint) && !kept.any(has)
        };
        let is_lost = |endpoint: &Endpoint| {
            is_less(endpoint, |one| one.ready) || is_less(endpoint, |one| one.view().is_usable())
        };
        prop_assert_eq!(one.loses(Some(&next)), before.iter().any(is_lost));
    }

    #[test]
    fn a_slice_keeps_its_endpoints(
        (family, endpoints) in prop_oneof![Just(Family::V4), Just(Family::V6)]
            .prop_flat_map(|family| (Just(family), vec(endpoint(family), 0..6))),
    ) {
        let slice = slice_of(family, endpoints.clone());
        let mut pack = Pack::default();
        let packed = pack.slice(slice.clone());
        prop_assert_eq!(packed.family(), endpoints.first().map(|_| family));
        let views: Vec<_> = endpoints.iter().map(Endpoint::view).collect();
        prop_assert_eq!(packed.endpoints().collect::<Vec<_>>(), views);
        prop_assert_eq!(&packed, &pack.slice(slice));
    }

    #[test]
    fn a_service_keeps_everything(service in service()) {
        let mut pack = Pack::default();
        let packed = PackedService::pack(&service, &mut pack);
        prop_assert_eq!(packed.unpack(key()), service.clone());
        prop_assert_eq!(packed.created(), service.created);
        // And one that has little else.
        let plain = Service { ports: service.ports, ..Service::new(key()) };
        let packed = PackedService::pack(&plain, &mut pack);
        prop_assert_eq!(packed.unpack(key()), plain);
    }
}
