// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use portolan_model::{Affinity, Destination, Lists};

use super::super::testing::{Case, cases, config, table};
use super::*;

fn settings(config: &Config) -> NftablesSettings<'_> {
    NftablesSettings {
        families: [Family::V4].into_iter().collect(),
        config,
        node_port_addresses: None,
        node_ips: &[],
    }
}

fn text(cases: Vec<Case>) -> String {
    kube_proxy_nftables(&table(cases), &settings(&config())).text
}

/// The lines of a chain, set or map.
fn block<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let head = format!("\t{head} {{");
    let lines = text.lines().skip_while(|line| *line != head).skip(1);
    lines
        .take_while(|line| *line != "\t}")
        .map(str::trim)
        .collect()
}

#[test]
fn services_of_every_kind_have_kube_proxys_rules() {
    let export = kube_proxy_nftables(&table(cases()), &settings(&config()));
    assert_eq!(export.text, include_str!("tests/all.nft"));
    assert!(export.notes.is_empty(), "{:?}", export.notes);
}

#[test]
fn each_family_has_a_table() {
    let config = config();
    let settings = NftablesSettings {
        families: Family::ALL.into_iter().collect(),
        ..settings(&config)
    };
    let text = kube_proxy_nftables(&table(cases()), &settings).text;
    assert!(text.contains("\ntable ip6 kube-proxy {\n"), "{text}");
    assert!(text.contains("ip6 daddr != ::1 meta l4proto"), "{text}");
}

#[test]
fn weights_are_numbers_of_the_draw() {
    let mut case = Case::new(1).endpoints(&["10.180.0.1:80", "10.180.0.2:80"]);
    case.record.destinations[1].weight = 3;
    let text = text(vec![case]);
    let chain = block(&text, "chain service-ULMVA6XW-ns1/svc1/tcp/p80");
    let drawn = "numgen random mod 4 map { 0 : 10.180.0.1 . 80, 1-3 : 10.180.0.2 . 80 }";
    assert_eq!(
        chain,
        [format!("meta l4proto tcp dnat ip addr . port to {drawn}")]
    );
}

#[test]
fn policy_local_without_an_endpoint_here_drops() {
    let mut case = Case::new(1).endpoints(&["10.180.0.1:80"]);
    case.record.frontends[0].lists = Lists::Local;
    let text = text(vec![case]);
    let elements = block(&text, "map no-endpoint-services");
    let element = "172.30.0.1 . tcp . 80 comment \"ns1/svc1:p80\" : drop,";
    assert!(elements.contains(&element), "{elements:#?}");
    assert!(
        !text.contains("/svc1/tcp/p80 {"),
        "a chain of the Service: {text}"
    );
}

#[test]
fn an_endpoint_here_is_a_hairpin_and_affinity_has_a_set_for_each() {
    let mut case = Case::new(5).endpoints(&["10.180.0.3:80"]);
    case.record.affinity = Some(Affinity {
        timeout_seconds: 77,
    });
    case.local = vec![Destination::new("10.180.0.3:80".parse().unwrap())];
    let key = case.record.key.clone();
    let mut table = table(vec![case]);
    let overlay = std::sync::Arc::make_mut(table.lists.get_mut(&key).unwrap());
    overlay.own = vec![
        "10.180.0.3:80".parse().unwrap(),
        "10.180.0.9:80".parse().unwrap(),
    ];
    let text = kube_proxy_nftables(&table, &settings(&config())).text;
    let hairpins = block(&text, "set hairpin-connections");
    assert!(hairpins.contains(&"10.180.0.3 . 10.180.0.3 . tcp . 80,"));
    assert!(!text.contains("10.180.0.9"), "an endpoint that no list has");
    let endpoint = "GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80";
    let set = block(&text, &format!("set affinity-{endpoint}"));
    assert_eq!(
        set,
        ["type ipv4_addr", "flags dynamic,timeout", "timeout 77s"]
    );
    let chain = block(&text, &format!("chain endpoint-{endpoint}"));
    assert_eq!(
        chain,
        [
            format!("update @affinity-{endpoint} {{ ip saddr }}"),
            "meta l4proto tcp dnat to 10.180.0.3:80".to_owned(),
        ]
    );
}

#[test]
fn node_ports_are_those_of_addresses() {
    let config = config();
    let addresses: BTreeSet<IpAddr> = ["192.168.0.2", "127.0.0.1", "fd00::2"]
        .map(|ip| ip.parse().unwrap())
        .into();
    let settings = NftablesSettings {
        node_port_addresses: Some(&addresses),
        ..settings(&config)
    };
    let text = kube_proxy_nftables(&table(cases()), &settings).text;
    let elements = block(&text, "set nodeport-ips");
    assert_eq!(elements[3..], ["192.168.0.2,", "}"], "{elements:#?}");
    let services = block(&text, "chain services");
    let last = "ip daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports";
    assert_eq!(services.last(), Some(&last));
}

#[test]
fn a_balancer_ip_is_a_source_where_the_node_is() {
    let config = config();
    let settings = NftablesSettings {
        node_ips: &[IpAddr::V4([203, 0, 113, 7].into())],
        ..settings(&config)
    };
    let text = kube_proxy_nftables(&table(cases()), &settings).text;
    let rule = "ip saddr != { 203.0.113.0/25, 5.6.7.8 } drop";
    assert!(text.contains(rule), "{text}");
}
