// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::ipvs::{Flags, VirtualServerConfig};
use portolan_model::{Affinity, Destination, NodeInfo, NodeOverlay, Protocol, Scheduling};

use super::*;

mod balancing;
mod gateways;
mod policies;
mod remote;
mod scheduling;

fn key(service: &str, protocol: Protocol) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: service.into(),
        port: "".into(),
        protocol,
    }
}

fn vip(kind: FrontendKind, ip: &str, masquerade: bool) -> Frontend {
    let lists = if masquerade {
        Lists::Cluster
    } else {
        Lists::Local
    };
    Frontend {
        lists,
        masquerade,
        ..Frontend::new(kind, FrontendAddress::Vip(ip.parse().unwrap()), 80)
    }
}

fn node_port(family: Family, masquerade: bool) -> Frontend {
    Frontend {
        address: FrontendAddress::NodeAddresses(family),
        port: 30080,
        ..vip(FrontendKind::NodePort, "::", masquerade)
    }
}

fn record(service: &str, protocol: Protocol, frontends: Vec<Frontend>) -> Record {
    Record {
        frontends,
        destinations: vec![Destination::new("10.244.0.1:8080".parse().unwrap())],
        ..Record::new(key(service, protocol))
    }
}

fn table(records: Vec<Record>) -> NodeTable {
    NodeTable {
        records: records
            .into_iter()
            .map(|r| (r.key.clone(), Arc::new(r)))
            .collect(),
        ..NodeTable::default()
    }
}

fn facts() -> NodeFacts {
    let addresses = ["127.0.0.1", "192.168.0.10", "192.168.1.10", "fd00::10"];
    let addresses: BTreeSet<IpAddr> = addresses.iter().map(|a| a.parse().unwrap()).collect();
    NodeFacts {
        node_port_addresses: addresses
            .iter()
            .copied()
            .filter(|a| !a.is_loopback())
            .collect(),
        addresses,
        source: BTreeMap::from([(Family::V4, "192.168.0.10".parse().unwrap())]),
        ..NodeFacts::default()
    }
}

fn desire_all(records: Vec<Record>) -> Desired {
    desire(
        &table(records),
        &facts(),
        &Config::default(),
        &KernelState::default(),
    )
}

fn entries(desired: &Desired, set: &str) -> Vec<String> {
    desired.state.sets[set]
        .entries
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn servers(desired: &Desired) -> Vec<String> {
    desired
        .state
        .virtual_servers
        .keys()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn every_kind_of_frontend_gets_its_servers_sets_and_routes() {
    let desired = desire_all(vec![record(
        "svc",
        Protocol::Tcp,
        vec![
            Frontend {
                lists: Lists::Cluster,
                ..vip(FrontendKind::ClusterIp, "10.96.0.1", false)
            },
            vip(FrontendKind::ExternalIp, "198.51.100.1", true),
            vip(FrontendKind::LoadBalancer, "203.0.113.1", true),
            node_port(Family::V4, true),
        ],
    )]);
    assert_eq!(
        servers(&desired),
        [
            "TCP 10.96.0.1:80",
            "TCP 192.168.0.10:30080",
            "TCP 192.168.1.10:30080",
            "TCP 198.51.100.1:80",
            "TCP 203.0.113.1:80"
        ]
    );
    assert_eq!(entries(&desired, "KUBE-CLUSTER-IP"), ["10.96.0.1,tcp:80"]);
    assert_eq!(
        entries(&desired, "KUBE-EXTERNAL-IP"),
        ["198.51.100.1,tcp:80"]
    );
    assert_eq!(
        entries(&desired, "KUBE-LOAD-BALANCER"),
        ["203.0.113.1,tcp:80"]
    );
    assert_eq!(entries(&desired, "KUBE-NODE-PORT-TCP"), ["30080"]);
    assert_eq!(
        entries(&desired, "KUBE-IPVS-IPS"),
        ["10.96.0.1", "198.51.100.1", "203.0.113.1"]
    );
    assert_eq!(desired.state.sets["KUBE-PORTOLAN-OWNED"].entries.len(), 5);
    let source = Some("192.168.0.10".parse().unwrap());
    assert_eq!(desired.state.routes.len(), 3);
    assert!(desired.state.routes.values().all(|s| *s == source));
    for server in desired.state.virtual_servers.values() {
        let address: SocketAddr = "10.244.0.1:8080".parse().unwrap();
        assert!(server.real_servers.contains_key(&address));
    }
}

#[test]
fn local_policy_uses_the_nodes_list_and_the_local_sets() {
    let record = record(
        "svc",
        Protocol::Udp,
        vec![
            vip(FrontendKind::ExternalIp, "198.51.100.1", false),
            vip(FrontendKind::LoadBalancer, "203.0.113.1", false),
            node_port(Family::V4, false),
        ],
    );
    let by_address = |desired: &Desired, good: &dyn Fn(&VirtualServer) -> bool| {
        let servers = desired.state.virtual_servers.iter();
        servers
            .filter(|(key, _)| key.mark().is_none())
            .all(|(_, server)| good(server))
    };
    let mut table = table(vec![record.clone()]);
    let desired = desire(
        &table,
        &facts(),
        &Config::default(),
        &KernelState::default(),
    );
    assert!(by_address(&desired, &|s| s.real_servers.is_empty()));
    assert_eq!(
        entries(&desired, "KUBE-EXTERNAL-IP-LOCAL"),
        ["198.51.100.1,udp:80"]
    );
    assert!(entries(&desired, "KUBE-EXTERNAL-IP").is_empty());
    assert_eq!(
        entries(&desired, "KUBE-LOAD-BALANCER-LOCAL"),
        ["203.0.113.1,udp:80"]
    );
    assert_eq!(
        entries(&desired, "KUBE-LOAD-BALANCER"),
        ["203.0.113.1,udp:80"]
    );
    assert_eq!(entries(&desired, "KUBE-NODE-PORT-UDP"), ["30080"]);
    assert_eq!(entries(&desired, "KUBE-NODE-PORT-LOCAL-UDP"), ["30080"]);

    let local: SocketAddr = "10.244.7.7:8080".parse().unwrap();
    let lists = NodeOverlay {
        local: vec![Destination::new(local)],
        own: vec![local],
        ..NodeOverlay::default()
    };
    table.lists.insert(record.key.clone(), Arc::new(lists));
    let desired = desire(
        &table,
        &facts(),
        &Config::default(),
        &KernelState::default(),
    );
    assert!(by_address(&desired, &|s| s
        .real_servers
        .contains_key(&local)));
    assert_eq!(
        entries(&desired, "KUBE-LOOP-BACK"),
        ["10.244.7.7,udp:8080,10.244.7.7"]
    );
}

#[test]
fn source_ranges_fill_the_firewall_sets() {
    let mut frontend = vip(FrontendKind::LoadBalancer, "203.0.113.1", true);
    frontend.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let desired = desire_all(vec![record("svc", Protocol::Tcp, vec![frontend])]);
    assert_eq!(
        entries(&desired, "KUBE-LOAD-BALANCER-FW"),
        ["203.0.113.1,tcp:80"]
    );
    let cidrs = entries(&desired, "KUBE-LOAD-BALANCER-SOURCE-CIDR");
    assert_eq!(cidrs, ["203.0.113.1,tcp:80,10.0.0.0/8"]);
}

#[test]
fn address_of_the_node_is_never_bound() {
    let frontend = vip(FrontendKind::ExternalIp, "192.168.1.10", true);
    let desired = desire_all(vec![record("svc", Protocol::Tcp, vec![frontend])]);
    assert_eq!(servers(&desired), ["TCP 192.168.1.10:80"]);
    assert!(desired.state.routes.is_empty());
    assert!(entries(&desired, "KUBE-IPVS-IPS").is_empty());
    let notes: Vec<_> = desired.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        ["ns/svc/TCP: 192.168.1.10 is an address of this node: not bound as a virtual one"]
    );
}

#[test]
fn address_of_another_node_is_served_and_not_bound() {
    let frontend = Frontend {
        bind: false,
        ..vip(FrontendKind::ExternalIp, "192.168.0.99", true)
    };
    let desired = desire_all(vec![record("svc", Protocol::Tcp, vec![frontend])]);
    assert_eq!(servers(&desired), ["TCP 192.168.0.99:80"]);
    assert!(desired.state.routes.is_empty() && desired.notes.is_empty());
    assert!(entries(&desired, "KUBE-IPVS-IPS").is_empty());
    assert_eq!(entries(&desired, "KUBE-EXTERNAL-IP").len(), 1);
}

#[test]
fn foreign_virtual_server_is_left_untouched_unless_equal() {
    let records = || {
        vec![record(
            "svc",
            Protocol::Tcp,
            vec![vip(FrontendKind::ExternalIp, "198.51.100.1", true)],
        )]
    };
    let wanted = desire_all(records()).state.virtual_servers;
    let mut theirs = KernelState {
        virtual_servers: wanted.clone(),
        ..KernelState::default()
    };
    let adopted = desire(&table(records()), &facts(), &Config::default(), &theirs);
    assert!(adopted.refused.is_empty());
    assert_eq!(adopted.state.virtual_servers, wanted);

    for server in theirs.virtual_servers.values_mut() {
        Arc::make_mut(&mut server.config).scheduler = "wlc".into();
    }
    let refused = desire(&table(records()), &facts(), &Config::default(), &theirs);
    assert!(refused.state.virtual_servers.is_empty() && refused.state.routes.is_empty());
    assert!(
        refused
            .state
            .sets
            .values()
            .all(|set| set.entries.is_empty())
    );
    assert_eq!(
        refused.refused[0].to_string(),
        "ns/svc/TCP: virtual server TCP 198.51.100.1:80 exists and is not ours: left untouched"
    );
}

#[test]
fn foreign_route_is_reported_once_next_to_ours() {
    let address = "198.51.100.1";
    let ways_in = [FrontendKind::ExternalIp, FrontendKind::LoadBalancer];
    let frontends = ways_in.map(|kind| Frontend {
        port: if kind == FrontendKind::ExternalIp {
            80
        } else {
            81
        },
        ..vip(kind, address, true)
    });
    let records = || vec![record("svc", Protocol::Tcp, frontends.to_vec())];
    let of = |address: &str| KernelState {
        foreign_routes: [address.parse().unwrap()].into(),
        ..KernelState::default()
    };
    let alone = desire_all(records());
    let desired = desire(
        &table(records()),
        &facts(),
        &Config::default(),
        &of(address),
    );
    assert_eq!(desired.state, alone.state);
    let told: Vec<_> = desired.refused.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "ns/svc/TCP: a route of 198.51.100.1 in the local table is not ours: left untouched, and it \
          takes precedence while it exists"
        ]
    );
    let elsewhere = of("198.51.100.2");
    let desired = desire(&table(records()), &facts(), &Config::default(), &elsewhere);
    assert_eq!(desired, alone);
}

#[test]
fn two_records_never_share_a_virtual_server() {
    let frontend = || vec![vip(FrontendKind::ExternalIp, "198.51.100.1", true)];
    let desired = desire_all(vec![
        record("a", Protocol::Tcp, frontend()),
        record("b", Protocol::Tcp, frontend()),
        record("c", Protocol::Udp, frontend()),
    ]);
    assert_eq!(
        servers(&desired),
        ["TCP 198.51.100.1:80", "UDP 198.51.100.1:80"]
    );
    assert_eq!(desired.refused.len(), 1);
    assert_eq!(desired.refused[0].record(), &key("b", Protocol::Tcp));
}

#[test]
fn affinity_is_persistence() {
    let mut affine = record("a", Protocol::Tcp, vec![node_port(Family::V6, true)]);
    affine.affinity = Some(Affinity {
        timeout_seconds: 10_800,
    });
    let desired = desire_all(vec![affine]);
    assert_eq!(servers(&desired), ["TCP [fd00::10]:30080"]);
    let server = desired.state.virtual_servers.values().next().unwrap();
    assert_eq!(server.config.persistence, Some(10_800));
}
