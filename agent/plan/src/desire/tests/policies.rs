// SPDX-License-Identifier: Apache-2.0

//! Traffic policies, and related rules.

use super::*;

/// A record with one local frontend of each external kind, and endpoints on other nodes.
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
    let lists = NodeOverlay {
        local: vec![Destination::new(local.parse().unwrap())],
        ..NodeOverlay::default()
    };
    table.lists.insert(record.key.clone(), Arc::new(lists));
    table
}

#[test]
fn short_circuit_leads_to_the_cluster_wide_list() {
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
            .map(|address| address.to_string())
            .collect();
        assert_eq!(real, ["10.244.0.1:8080"]);
        assert_eq!(desired.protocol(&key), Some(protocol));
        // Not the cluster IP: an internal policy has no short circuit.
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
fn mark_is_kept_and_a_foreign_one_never_used() {
    let table = with_lists(&local_record(Protocol::Tcp), "10.244.7.7:8080");
    let marked = |state: &KernelState| state.virtual_servers.keys().find_map(|key| key.mark());
    let desire = |observed: &KernelState| desire(&table, &facts(), &Config::default(), observed);
    let first = desire(&KernelState::default()).state;
    let mark = marked(&first).unwrap();

    // A foreign virtual server has that mark.
    let key = VirtualServerKey::Mark {
        family: Family::V4,
        mark,
    };
    let mut foreign = KernelState::default();
    let theirs = VirtualServer {
        config: VirtualServerConfig::round_robin().into(),
        real_servers: Arc::default(),
    };
    foreign.virtual_servers.insert(key, theirs.clone());
    let second = desire(&foreign).state;
    let other = marked(&second).unwrap();
    assert_ne!(other, mark);
    assert!(!second.virtual_servers.contains_key(&key));
    // It stays when the foreign one is deleted.
    assert_eq!(marked(&desire(&second).state), Some(other));

    // In the other family the mark is free.
    let key = VirtualServerKey::Mark {
        family: Family::V6,
        mark,
    };
    foreign.virtual_servers = BTreeMap::from([(key, theirs)]);
    assert_eq!(marked(&desire(&foreign).state), Some(mark));
}

#[test]
fn lack_of_marks_is_reported_and_the_rest_works() {
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
fn frontend_drops_only_if_there_are_destinations_elsewhere() {
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
fn packets_routed_to_another_node_are_not_dropped() {
    let mut record = local_record(Protocol::Tcp);
    record.frontends = ["203.0.113.1", "192.168.1.10"]
        .map(|ip| Frontend {
            bind: false,
            ..vip(FrontendKind::LoadBalancer, ip, false)
        })
        .into();
    // The second address is this node's own.
    let desired = desire_all(vec![record]);
    assert_eq!(entries(&desired, "KUBE-NO-LOCAL"), ["192.168.1.10,tcp:80"]);
}

#[test]
fn source_ranges_apply_to_every_kind_and_each_node_address() {
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
fn health_checks_are_accepted_in_the_families_of_the_service() {
    let mut record = local_record(Protocol::Tcp);
    record.health_check_port = Some(32000);
    let desired = desire_all(vec![record]);
    assert_eq!(entries(&desired, "KUBE-HEALTH-CHECK-NODE-PORT"), ["32000"]);
    assert!(entries(&desired, "KUBE-6-HEALTH-CHECK-NODE-PORT").is_empty());
}

#[test]
fn rules_follow_the_pod_networks_of_the_node() {
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
fn entry_is_traced_to_the_records_that_need_it() {
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
fn sets_have_room_for_their_entries() {
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

#[test]
fn bound_address_is_an_allowed_source_where_the_node_is() {
    let balanced = |range: &str| Frontend {
        source_ranges: vec![range.parse().unwrap()],
        ..vip(FrontendKind::LoadBalancer, "203.0.113.1", true)
    };
    let sources = |vip_binding, range| {
        let config = Config {
            vip_binding,
            ..Config::default()
        };
        let records = vec![record("svc", Protocol::Tcp, vec![balanced(range)])];
        let kernel = KernelState::default();
        let desired = desire(&table(records), &facts(), &config, &kernel);
        entries(&desired, "KUBE-LOAD-BALANCER-SOURCE-CIDR")
    };
    let (nodes, others) = ("192.168.0.0/24", "192.0.2.0/24");
    let of = |range| format!("203.0.113.1,tcp:80,{range}");
    assert_eq!(sources(VipBinding::Route, nodes), [of(nodes)]);
    assert_eq!(sources(VipBinding::Address, others), [of(others)]);
    let both = sources(VipBinding::Address, nodes);
    assert_eq!(both.len(), 2, "{both:?}");
    assert!(
        both.iter()
            .any(|entry| entry.starts_with(&of("203.0.113.1")))
    );
}
