use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::ipvs::{Flags, VirtualServerConfig};
use portolan_model::{Affinity, Destination, NodeInfo, NodeLists, Protocol, Scheduling};

use super::*;

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
        missing_schedulers: BTreeSet::new(),
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
fn every_kind_of_way_in_gets_its_servers_sets_and_routes() {
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
    let lists = NodeLists {
        local: vec![Destination::new(local)],
        own: vec![local],
        ..NodeLists::default()
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
fn an_address_of_the_node_is_never_bound() {
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
fn an_address_of_another_node_is_served_and_not_bound() {
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
fn a_foreign_virtual_server_is_left_alone_unless_it_is_just_as_wanted() {
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
        server.config.scheduler = "wlc".to_owned();
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
        "ns/svc/TCP: virtual server TCP 198.51.100.1:80 exists and is not ours: left alone"
    );
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

/// What a record's virtual servers, by address and by mark, do with connections.
fn configs(
    record: &Record,
    config: &Config,
    facts: &NodeFacts,
) -> (VirtualServerConfig, VirtualServerConfig) {
    let desired = desire(
        &table(vec![record.clone()]),
        facts,
        config,
        &KernelState::default(),
    );
    let of = |marked: bool| {
        let mut servers = desired.state.virtual_servers.iter();
        let (_, server) = servers
            .find(|(key, _)| key.mark().is_some() == marked)
            .unwrap();
        server.config.clone()
    };
    (of(false), of(true))
}

fn does(scheduler: &str, flags: u32, persistence: Option<u32>) -> VirtualServerConfig {
    VirtualServerConfig {
        scheduler: scheduler.to_owned(),
        flags: Flags(flags),
        persistence,
    }
}

#[test]
fn the_services_choice_goes_before_the_agents_and_that_before_the_defaults() {
    let plain = record(
        "svc",
        Protocol::Tcp,
        vec![vip(FrontendKind::ExternalIp, "198.51.100.1", false)],
    );
    let mut affine = plain.clone();
    affine.affinity = Some(Affinity {
        timeout_seconds: 60,
    });
    let mut named = affine.clone();
    named.scheduling = Scheduling {
        scheduler: Some("lc".into()),
        flags: Some(Flags(Flags::SCHED1 | 0x1000)),
    };
    let told = |scheduler: &str| Config {
        scheduler: Some(scheduler.to_owned()),
        ..Config::default()
    };
    let with = facts();
    let without = NodeFacts {
        missing_schedulers: ["mh".to_owned()].into(),
        ..facts()
    };
    let default = Config::default();
    let cases = [
        // Record, agent, node: by address, by mark.
        (&plain, &default, &with, ("rr", 0, None), ("rr", 0)),
        (&plain, &told("lc"), &with, ("lc", 0, None), ("lc", 0)),
        (&plain, &told("mh"), &with, ("mh", 0x10, None), ("mh", 0x10)),
        (&affine, &default, &with, ("mh", 0, Some(60)), ("mh", 0)),
        (&affine, &default, &without, ("rr", 0, Some(60)), ("rr", 0)),
        (
            &affine,
            &told("wrr"),
            &with,
            ("wrr", 0, Some(60)),
            ("mh", 0),
        ),
        (
            &affine,
            &told("mh"),
            &with,
            ("mh", 0x10, Some(60)),
            ("mh", 0),
        ),
        (&named, &told("mh"), &with, ("lc", 8, Some(60)), ("mh", 0)),
    ];
    for (index, (record, config, facts, address, mark)) in cases.into_iter().enumerate() {
        let expected = (
            does(address.0, address.1, address.2),
            does(mark.0, mark.1, None),
        );
        assert_eq!(configs(record, config, facts), expected, "case {index}");
    }
    let desired = desire(
        &table(vec![affine]),
        &without,
        &default,
        &KernelState::default(),
    );
    assert_eq!(desired.notes, [Note::NoMaglev].into());
}

/// A record with one local way in of each external kind, and endpoints on other nodes.
fn local_record(protocol: Protocol) -> Record {
    Record {
        available: [Family::V4].into_iter().collect(),
        ..record(
            "svc",
            protocol,
            vec![
                vip(FrontendKind::ClusterIp, "10.96.0.1", false),
                vip(FrontendKind::ExternalIp, "198.51.100.1", false),
                vip(FrontendKind::LoadBalancer, "203.0.113.1", false),
                node_port(Family::V4, false),
            ],
        )
    }
}

fn with_lists(record: &Record, local: &str) -> NodeTable {
    let mut table = table(vec![record.clone()]);
    let lists = NodeLists {
        local: vec![Destination::new(local.parse().unwrap())],
        ..NodeLists::default()
    };
    table.lists.insert(record.key.clone(), Arc::new(lists));
    table
}

#[test]
fn a_short_circuit_leads_to_the_cluster_wide_list() {
    for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
        let table = with_lists(&local_record(protocol), "10.244.7.7:8080");
        let desired = desire(
            &table,
            &facts(),
            &Config::default(),
            &KernelState::default(),
        );
        let marks: Vec<_> = desired
            .state
            .virtual_servers
            .iter()
            .filter_map(|(key, server)| Some((*key, key.mark()?, server)))
            .collect();
        let [(key, mark, server)] = marks[..] else {
            panic!("{marks:?}");
        };
        assert!(Config::default().short_circuit_mask.contains(mark));
        let real: Vec<_> = server
            .real_servers
            .keys()
            .map(ToString::to_string)
            .collect();
        assert_eq!(real, ["10.244.0.1:8080"]);
        assert_eq!(desired.protocol(&key), Some(protocol));
        // Not the cluster IP: an internal policy holds for everybody.
        let lower = protocol.to_string().to_lowercase();
        let expected = [
            format!("192.168.0.10,{lower}:30080 skbmark {mark:#x}"),
            format!("192.168.1.10,{lower}:30080 skbmark {mark:#x}"),
            format!("198.51.100.1,{lower}:80 skbmark {mark:#x}"),
            format!("203.0.113.1,{lower}:80 skbmark {mark:#x}"),
        ];
        assert_eq!(entries(&desired, "KUBE-SHORT-CIRCUIT"), expected);
        let owned = &desired.state.sets["KUBE-PORTOLAN-OWNED"].entries;
        assert!(owned.contains(&ownership_entry(&key)));
        assert!(entries(&desired, "KUBE-NO-LOCAL").is_empty());
    }
}

#[test]
fn a_mark_is_kept_and_a_foreign_one_never_taken() {
    let table = with_lists(&local_record(Protocol::Tcp), "10.244.7.7:8080");
    let marked = |state: &KernelState| state.virtual_servers.keys().find_map(|key| key.mark());
    let desire = |observed: &KernelState| desire(&table, &facts(), &Config::default(), observed);
    let first = desire(&KernelState::default()).state;
    let mark = marked(&first).unwrap();

    // Somebody else's virtual server has that mark.
    let key = VirtualServerKey::Mark {
        family: Family::V4,
        mark,
    };
    let mut foreign = KernelState::default();
    let theirs = VirtualServer {
        config: VirtualServerConfig::round_robin(),
        real_servers: BTreeMap::new(),
    };
    foreign.virtual_servers.insert(key, theirs.clone());
    let second = desire(&foreign).state;
    let other = marked(&second).unwrap();
    assert_ne!(other, mark);
    assert!(!second.virtual_servers.contains_key(&key));
    // It stays when the other one goes.
    assert_eq!(marked(&desire(&second).state), Some(other));

    // In the other family the same mark is another one.
    let key = VirtualServerKey::Mark {
        family: Family::V6,
        mark,
    };
    foreign.virtual_servers = BTreeMap::from([(key, theirs)]);
    assert_eq!(marked(&desire(&foreign).state), Some(mark));
}

#[test]
fn too_few_marks_are_told_and_the_rest_works() {
    let config = Config {
        short_circuit_mask: crate::MarkMask::new(1, 0x4000).unwrap(),
        ..Config::default()
    };
    let frontend = |ip| vec![vip(FrontendKind::ExternalIp, ip, false)];
    let records = vec![
        record("a", Protocol::Tcp, frontend("198.51.100.1")),
        record("b", Protocol::Tcp, frontend("198.51.100.2")),
    ];
    let desired = desire(&table(records), &facts(), &config, &KernelState::default());
    assert_eq!(
        servers(&desired),
        ["TCP 198.51.100.1:80", "TCP 198.51.100.2:80", "FWM 1 IPv4"]
    );
    let [refused] = &desired.refused[..] else {
        panic!("{:?}", desired.refused);
    };
    assert_eq!(refused.record(), &key("b", Protocol::Tcp));
    assert!(refused.to_string().contains("no IPv4 packet mark is free"));
}

#[test]
fn a_way_in_drops_only_if_there_are_destinations_elsewhere() {
    let no_local = |record: &Record| {
        let desired = desire_all(vec![record.clone()]);
        entries(&desired, "KUBE-NO-LOCAL")
    };
    let mut record = local_record(Protocol::Tcp);
    let all = [
        "10.96.0.1,tcp:80",
        "192.168.0.10,tcp:30080",
        "192.168.1.10,tcp:30080",
        "198.51.100.1,tcp:80",
        "203.0.113.1,tcp:80",
    ];
    assert_eq!(no_local(&record), all);
    record.available = [Family::V6].into_iter().collect();
    assert!(no_local(&record).is_empty());
    record.available = Family::ALL.into_iter().collect();
    for frontend in &mut record.frontends {
        frontend.lists = Lists::Cluster;
    }
    assert!(no_local(&record).is_empty());
}

#[test]
fn source_ranges_hold_for_every_kind_and_each_node_address() {
    let mut frontends = local_record(Protocol::Tcp).frontends;
    for frontend in &mut frontends {
        frontend.source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    }
    let desired = desire_all(vec![record("svc", Protocol::Tcp, frontends)]);
    assert_eq!(entries(&desired, "KUBE-LOAD-BALANCER-FW").len(), 5);
    let cidrs = entries(&desired, "KUBE-LOAD-BALANCER-SOURCE-CIDR");
    assert_eq!(cidrs.len(), 5);
    assert!(cidrs.contains(&"192.168.1.10,tcp:30080,10.0.0.0/8".to_owned()));
}

#[test]
fn health_checks_come_in_by_the_services_families() {
    let mut record = local_record(Protocol::Tcp);
    record.health_check_port = Some(32000);
    let desired = desire_all(vec![record]);
    assert_eq!(entries(&desired, "KUBE-HEALTH-CHECK-NODE-PORT"), ["32000"]);
    assert!(entries(&desired, "KUBE-6-HEALTH-CHECK-NODE-PORT").is_empty());
}

#[test]
fn the_rules_follow_the_nodes_pod_networks() {
    let config = Config {
        detect_local: crate::DetectLocal::NodeCidr,
        ..Config::default()
    };
    let mut table = NodeTable::default();
    let text = |table: &NodeTable| {
        let desired = desire(table, &facts(), &config, &KernelState::default());
        desired.state.rules[&Family::V4].restore_input(&[], &[])
    };
    assert!(!text(&table).contains("10.244.7.0/24"));
    table.node = NodeInfo {
        pod_cidrs: vec!["10.244.7.0/24".parse().unwrap()],
        ..NodeInfo::default()
    };
    assert!(text(&table).contains("! -s 10.244.7.0/24 -m set"));
}

#[test]
fn an_entry_leads_to_the_records_that_need_it() {
    let table = with_lists(&local_record(Protocol::Tcp), "10.244.7.7:8080");
    let desired = desire(
        &table,
        &facts(),
        &Config::default(),
        &KernelState::default(),
    );
    let key = key("svc", Protocol::Tcp);
    let hairpin: SetEntry = {
        let ip = "10.244.7.7".parse().unwrap();
        SetEntry::IpPortIp(ip, Protocol::Tcp, 8080, ip)
    };
    for set in desired.state.sets.values() {
        for entry in set.entries.iter().chain([&hairpin]) {
            let records: Vec<_> = desired.records_of(entry).into_iter().collect();
            assert_eq!(records, [&key], "{entry}");
        }
    }
    let unknown = SetEntry::Port(1);
    assert!(desired.records_of(&unknown).is_empty());
}

#[test]
fn sets_have_room_for_what_is_in_them() {
    let frontends = |i: u32| {
        let ip = std::net::Ipv4Addr::from(0x0a60_0000 + i);
        vec![vip(FrontendKind::ExternalIp, &ip.to_string(), true)]
    };
    let records = (0..70_000).map(|i| record(&format!("s{i}"), Protocol::Tcp, frontends(i)));
    let desired = desire_all(records.collect());
    let set = &desired.state.sets["KUBE-EXTERNAL-IP"];
    assert_eq!(
        (set.entries.len(), set.header.max_entries),
        (70_000, 131_072)
    );
    assert_eq!(
        desired.state.sets["KUBE-CLUSTER-IP"].header.max_entries,
        65_536
    );
}
