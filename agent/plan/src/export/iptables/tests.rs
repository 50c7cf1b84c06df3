// SPDX-License-Identifier: Apache-2.0

//! Expected texts, in the format of `iptables-save`.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::{Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists};

use super::super::testing::{Case, cases, config, table};
use super::*;
use crate::DetectLocal;

fn settings(config: &Config) -> IptablesSettings<'_> {
    IptablesSettings {
        family: Family::V4,
        config,
        node_port_addresses: None,
        node_ip: None,
        has_jumps: false,
        is_short: false,
    }
}

#[test]
fn services_of_every_kind_have_kube_proxys_rules() {
    let export = iptables(&table(cases()), &settings(&config()));
    assert_eq!(export.text, include_str!("tests/all.txt"));
    assert!(export.notes.is_empty(), "{:?}", export.notes);
}

/// The lines of an export that begin so.
fn lines<'a>(export: &'a Export, start: &str) -> Vec<&'a str> {
    let lines = export.text.lines();
    lines.filter(|line| line.starts_with(start)).collect()
}

#[test]
fn short_rules_have_no_comments_and_jumps_come_in_kube_proxys_order() {
    let config = config();
    let settings = IptablesSettings {
        has_jumps: true,
        is_short: true,
        ..settings(&config)
    };
    let export = iptables(&table(cases()), &settings);
    assert!(!export.text.contains("comment"), "{}", export.text);
    assert_eq!(
        lines(&export, "-I "),
        [
            "-I INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES",
            "-I FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES",
            "-I INPUT -j KUBE-NODEPORTS",
            "-I FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES",
            "-I OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES",
            "-I FORWARD -j KUBE-FORWARD",
            "-I INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL",
            "-I OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL",
            "-I FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL",
            "-I INPUT -j KUBE-FIREWALL",
            "-I OUTPUT -j KUBE-FIREWALL",
            "-I OUTPUT -j KUBE-SERVICES",
            "-I PREROUTING -j KUBE-SERVICES",
            "-I POSTROUTING -j KUBE-POSTROUTING",
        ]
    );
}

#[test]
fn policy_local_has_the_nodes_own_list_and_ways_past_it() {
    let mut case = Case::new(2)
        .endpoints(&["10.180.0.2:80", "10.180.0.10:80"])
        .node_port(3001, Lists::Local);
    case.local = vec![Destination::new("10.180.0.10:80".parse().unwrap())];
    let export = iptables(&table(vec![case]), &settings(&config()));
    let external = lines(&export, "-A KUBE-EXT-");
    let last = "-A KUBE-EXT-GNZBNJ2PO5MGZ6GT -j KUBE-SVL-GNZBNJ2PO5MGZ6GT";
    assert_eq!(external.len(), 4, "{external:#?}");
    assert_eq!(external[3], last);
    let comment = "-m comment --comment \"ns2/svc2:p80 -> 10.180.0.10:80\"";
    let to = endpoint("10.180.0.10:80");
    assert_eq!(
        lines(&export, "-A KUBE-SVL-"),
        [format!("-A KUBE-SVL-GNZBNJ2PO5MGZ6GT {comment} -j {to}")]
    );
    // In the order of their texts, as kube-proxy sorts them.
    let cluster = lines(&export, "-A KUBE-SVC-");
    assert!(
        cluster[1].contains("10.180.0.10:80\" -m statistic"),
        "{cluster:#?}"
    );
    assert!(lines(&export, "-A KUBE-EXTERNAL-SERVICES").is_empty());
}

fn endpoint(address: &str) -> String {
    let names = names::Names::new(&Case::new(2).record.key);
    names.endpoint(address.parse::<SocketAddr>().unwrap())
}

#[test]
fn internal_policy_local_without_endpoints_here_drops_and_masquerades_nothing() {
    let mut case = Case::new(1).endpoints(&["10.180.0.1:80"]);
    case.record.frontends[0].lists = Lists::Local;
    let export = iptables(&table(vec![case]), &settings(&config()));
    assert_eq!(
        lines(&export, "-A KUBE-SERVICES"),
        [
            "-A KUBE-SERVICES -m comment --comment \"ns1/svc1:p80 has no local endpoints\" -m tcp -p tcp \
             -d 172.30.0.1 --dport 80 -j DROP",
            "-A KUBE-SERVICES -m comment --comment \"kubernetes service nodeports; NOTE: this must be the \
             last rule in this chain\" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
        ]
    );
    assert!(
        lines(&export, ":KUBE-S")
            .iter()
            .all(|l| l.contains("SERVICES"))
    );
}

#[test]
fn masquerading_follows_the_configuration() {
    let with = |config: &Config| {
        let table = table(vec![Case::new(1).endpoints(&["10.180.0.1:80"])]);
        let export = iptables(&table, &settings(config));
        let rules = lines(&export, "-A KUBE-SVC-").into_iter();
        rules.map(str::to_owned).collect::<Vec<_>>()
    };
    let all = with(&Config {
        masquerade_all: true,
        ..config()
    });
    let to = "-d 172.30.0.1 --dport 80 -j KUBE-MARK-MASQ";
    assert!(all[0].ends_with(to), "{all:#?}");
    // Without a detector nothing is masqueraded.
    assert_eq!(with(&Config::default()).len(), 1);
    let bridge = with(&Config {
        detect_local: DetectLocal::Bridge("cni0".to_owned()),
        masquerade_mark: 0x10,
        ..Config::default()
    });
    assert!(
        bridge[0].ends_with("! -i cni0 -j KUBE-MARK-MASQ"),
        "{bridge:#?}"
    );
}

#[test]
fn node_ports_are_those_of_addresses_and_a_balancer_ip_is_a_source_of_its_node() {
    let config = config();
    let addresses: BTreeSet<IpAddr> = ["192.168.0.2", "fd00::2"]
        .map(|ip| ip.parse().unwrap())
        .into();
    let settings = IptablesSettings {
        node_port_addresses: Some(&addresses),
        node_ip: Some([203, 0, 113, 7].into()),
        ..settings(&config)
    };
    let export = iptables(&table(cases()), &settings);
    let services = lines(&export, "-A KUBE-SERVICES");
    let last = "this must be the last rule in this chain\" -d 192.168.0.2 -j KUBE-NODEPORTS";
    assert!(services.last().unwrap().ends_with(last), "{services:#?}");
    let sources = lines(&export, "-A KUBE-FW-");
    assert!(
        sources[1].contains(" -s 5.6.7.8 -j KUBE-EXT-"),
        "{sources:#?}"
    );
    assert_eq!(sources.len(), 3);
}

#[test]
fn shares_follow_weights_and_add_up() {
    let mut case = Case::new(1).endpoints(&["10.180.0.1:80", "10.180.0.2:80", "10.180.0.3:80"]);
    for (destination, weight) in case.record.destinations.iter_mut().zip([1, 0, 3]) {
        destination.weight = weight;
    }
    let export = iptables(&table(vec![case]), &settings(&config()));
    let rules = lines(&export, "-A KUBE-SVC-");
    assert_eq!(
        rules.len(),
        3,
        "the masquerade, and two endpoints: {rules:#?}"
    );
    assert!(rules[1].contains("--probability 0.2500000000"));
    assert!(!rules[2].contains("probability"));
    for (of, text) in [
        (2, "0.5000000000"),
        (3, "0.3333333333"),
        (10, "0.1000000000"),
        (100_001, "0.0000099999"),
    ] {
        assert_eq!(lists::probability(1, of), text);
    }
}

#[test]
fn comments_of_endpoints_go_above_a_thousand() {
    let of = |count: u16| {
        let addresses: BTreeMap<u16, String> = (1..=count)
            .map(|i| (i, format!("10.180.{}.{}:80", i / 250, i % 250)))
            .collect();
        let addresses: Vec<&str> = addresses.values().map(String::as_str).collect();
        let export = iptables(
            &table(vec![Case::new(1).endpoints(&addresses)]),
            &settings(&config()),
        );
        let has = |start| {
            lines(&export, start)
                .iter()
                .any(|l| l.contains(" -> ") || l.contains("--comment ns1"))
        };
        (
            has("-A KUBE-SVC-"),
            has("-A KUBE-SEP-"),
            export.text.contains("cluster IP"),
        )
    };
    assert_eq!(of(1000), (true, true, true));
    assert_eq!(of(1001), (false, false, true));
}

#[test]
fn ipv6_has_its_own_services_and_no_rules_for_the_loopback_device() {
    let mut case = Case::new(1).endpoints(&["10.180.0.1:80", "[fd00:10::1]:80"]);
    let ip = FrontendAddress::Vip("fd00:30::1".parse().unwrap());
    let frontend = Frontend::new(FrontendKind::ClusterIp, ip, 80);
    case.record.frontends.push(frontend);
    let config = config();
    let settings = IptablesSettings {
        family: Family::V6,
        has_jumps: true,
        ..settings(&config)
    };
    let export = iptables(&table(vec![case]), &settings);
    assert!(export.text.contains("--to-destination [fd00:10::1]:80\n"));
    assert!(
        export
            .text
            .contains("--dst-type LOCAL ! -d ::1/128 -j KUBE-NODEPORTS\n")
    );
    // kube-proxy makes this chain without a rule.
    assert_eq!(lines(&export, ":KUBE-FIREWALL").len(), 1);
    assert_eq!(lines(&export, "-A KUBE-FIREWALL"), Vec::<&str>::new());
    assert_eq!(lines(&export, "-I INPUT -j KUBE-FIREWALL").len(), 1);
    for absent in ["10.180.0.1", "172.30"] {
        assert!(!export.text.contains(absent), "{absent}: {}", export.text);
    }
}

#[test]
fn what_kube_proxy_has_no_rules_for_is_noted() {
    let mut balanced = Case::new(1).endpoints(&["10.180.0.1:80"]);
    balanced.record.balancing = Some(Arc::default());
    let mut restricted = Case::new(2).endpoints(&["10.180.0.2:80"]);
    restricted.record.frontends[0].source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let export = iptables(&table(vec![balanced, restricted]), &settings(&config()));
    assert!(!export.text.contains("ns1/svc1"));
    let [balanced, restricted] = &export.notes[..] else {
        panic!("{:?}", export.notes)
    };
    assert!(
        balanced.starts_with("ns1/svc1:p80/TCP: left out"),
        "{balanced}"
    );
    assert!(
        restricted.contains("172.30.0.2:80 is open to all sources"),
        "{restricted}"
    );
}

#[test]
fn a_name_never_ends_a_comment() {
    let mut case = Case::new(1).endpoints(&["10.180.0.1:80"]);
    case.record.key.port = "a\" -j ACCEPT\n-A INPUT".into();
    let export = iptables(&table(vec![case]), &settings(&config()));
    assert!(
        export
            .text
            .contains("ns1/svc1:a? -j ACCEPT?-A INPUT cluster IP\" -m tcp")
    );
    assert!(lines(&export, "-A INPUT").is_empty());
}
