// SPDX-License-Identifier: Apache-2.0

//! Assertions on the kernel of a node.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::rig::Host;
use portolan_e2e::wait::{retry, wait_with_pauses};

use crate::world::{NODE_PORT, WEB};

/// Pause between two looks at all of a kernel.
const PAUSE: Duration = Duration::from_millis(500);

fn text(node: &Host, command: &str) -> String {
    let words: Vec<_> = command.split(' ').collect();
    retry(command, PATIENT, || node.exec(&words)).unwrap()
}

/// The number of connections so far of each real server of the Service under load, by virtual
/// server.
pub(crate) fn connections(node: &Host) -> BTreeMap<(String, String), u64> {
    let stats = text(node, "ipvsadm -Ln --stats --exact");
    let mut counts = BTreeMap::new();
    let mut server = String::new();
    for line in stats.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["TCP" | "UDP", address, ..] => server = format!("{} {address}", words[0]),
            ["->", address, count, ..] if is_loaded(&server) => {
                if let Ok(count) = count.parse() {
                    counts.insert((server.clone(), address.to_owned()), count);
                }
            }
            _ => {}
        }
    }
    assert!(!counts.is_empty(), "{stats}");
    counts
}

fn is_loaded(server: &str) -> bool {
    server.contains(WEB[0]) || server.contains(WEB[1]) || server.ends_with(&NODE_PORT.to_string())
}

/// Asserts that the real servers were not replaced: their counters continue.
pub(crate) fn assert_kept(node: &Host, before: &BTreeMap<(String, String), u64>) {
    let now = connections(node);
    for (key, count) in before {
        let found = now.get(key).copied();
        assert!(
            found.is_some_and(|found| found >= *count),
            "{key:?}: {count} before, now {found:?}"
        );
    }
}

fn assert_without(what: &str, text: &str, words: &[&str]) {
    let found: Vec<_> = text
        .lines()
        .filter(|line| words.iter().any(|word| line.contains(word)))
        .collect();
    assert!(found.is_empty(), "{what}: {found:#?}");
}

fn rules(node: &Host) -> String {
    text(node, "iptables-save") + &text(node, "ip6tables-save")
}

fn routes(node: &Host) -> String {
    let of = |family: &str| {
        text(
            node,
            &format!("ip {family} route show table local proto 99"),
        )
    };
    of("-4") + &of("-6")
}

/// Asserts that nothing of a kube-proxy is left.
pub(crate) fn assert_nothing_of_kube_proxy(node: &Host) {
    assert_no_device_of_kube_proxy(node);
    assert_without("rules", &rules(node), &["KUBE-IPVS-OUT-FILTER"]);
    let sets = text(node, "ipset list -n");
    assert_without("sets", &sets, &["SOURCE-IP", "PORTOLAN-TAKEOVER"]);
    // The agent may have taken over before it was told that the Service was deleted.
    let servers = wait_with_pauses("the deleted Service to go", PATIENT, PAUSE, || {
        let servers = text(node, "ipvsadm -Ln");
        let deleted = ["10.96.0.13:", "[fd00:10:96::13]"];
        let is_gone = !deleted.iter().any(|address| servers.contains(address));
        is_gone.then_some(servers)
    })
    .unwrap();
    assert!(servers.contains("FWM"), "{servers}");
    assert!(routes(node).contains(WEB[0]) && routes(node).contains(WEB[1]));
}

/// Asserts that a kube-proxy in this mode has programmed a node.
pub(crate) fn assert_rules_of(mode: &str, node: &Host) {
    match mode {
        "nftables" => {
            let tables = text(node, "nft list tables");
            for table in ["table ip kube-proxy", "table ip6 kube-proxy"] {
                assert!(tables.contains(table), "{tables}");
            }
        }
        _ => assert!(rules(node).contains("-j KUBE-SVC-")),
    }
    assert_eq!(servers(node), "", "IPVS is not used");
}

/// Asserts that no rules of a kube-proxy in iptables or nftables mode are left.
pub(crate) fn assert_no_rules_of_kube_proxy(node: &Host) {
    let words = [
        "KUBE-SVC-",
        "KUBE-SEP-",
        "KUBE-EXT-",
        "KUBE-FW-",
        "KUBE-NODEPORTS",
        "KUBE-EXTERNAL-SERVICES",
        "KUBE-PROXY-CANARY",
        "PREDECESSOR",
    ];
    assert_without("rules", &rules(node), &words);
    assert_without(
        "filter",
        &text(node, "iptables-save -t filter"),
        &["KUBE-SERVICES"],
    );
    let tables = node.exec(&["nft", "list", "tables"]).unwrap_or_default();
    assert_without("tables", &tables, &["kube-proxy"]);
    assert_without("sets", &text(node, "ipset list -n"), &["PORTOLAN-TAKEOVER"]);
}

/// Asserts that this dataplane serves a Service in both families, and no other one.
pub(crate) fn assert_serves(dataplane: &str, node: &Host) {
    if dataplane == "nftables" {
        for (family, ip) in ["ip", "ip6"].into_iter().zip(WEB) {
            let map = format!("nft list map {family} portolan services");
            let map = text(node, &map);
            assert!(map.contains(&format!("{ip} . tcp . 80 ")), "{map}");
        }
        assert_eq!(servers(node), "", "IPVS is not used");
        assert!(!routes(node).contains(WEB[0]) && !routes(node).contains(WEB[1]));
        return;
    }
    let servers = text(node, "ipvsadm -Ln");
    assert!(
        servers.contains(WEB[0]) && servers.contains(WEB[1]),
        "{servers}"
    );
    assert!(routes(node).contains(WEB[0]) && routes(node).contains(WEB[1]));
}

/// Asserts that no table of the agent is left.
pub(crate) fn assert_no_table_of_ours(node: &Host) {
    let tables = text(node, "nft list tables");
    assert_without("tables", &tables, &["portolan"]);
}

/// The virtual servers of a node; none without IPVS.
fn servers(node: &Host) -> String {
    node.exec(&["ipvsadm", "-Sn"]).unwrap_or_default()
}

/// Waits until the agent's table has a Service in both families.
pub(crate) fn wait_for_table(node: &Host) {
    wait_with_pauses("the table", PATIENT, PAUSE, || {
        let has = |(family, ip): (&str, &str)| {
            let map = ["nft", "list", "map", family, "portolan", "services"];
            let map = node.exec(&map);
            map.is_ok_and(|map| map.contains(&format!("{ip} . tcp . 80 ")))
        };
        let both = ["ip", "ip6"].into_iter().zip(WEB);
        both.into_iter().all(has).then_some(())
    })
    .unwrap();
}

/// Waits until nothing of IPVS is left.
pub(crate) fn wait_for_end_of_ipvs(node: &Host) {
    let left = || {
        let sets = text(node, "ipset list -n");
        let sets = sets.lines().filter(|name| name.starts_with("KUBE-"));
        let rules = rules(node);
        let chains = rules.lines().filter(|line| line.contains("KUBE-"));
        let found: Vec<_> = sets.chain(chains).map(str::to_owned).collect();
        (servers(node) + &routes(node), found)
    };
    let is_gone = || {
        let (servers, found) = left();
        (servers.is_empty() && found.is_empty()).then_some(())
    };
    wait_with_pauses("nothing of IPVS to be left", PATIENT, PAUSE, is_gone)
        .unwrap_or_else(|error| panic!("{error}: {:#?}", left()));
}

/// Asserts that the device of a kube-proxy in IPVS mode is gone.
pub(crate) fn assert_no_device_of_kube_proxy(node: &Host) {
    assert_without("links", &text(node, "ip -o link"), &["kube-ipvs0"]);
}

/// Asserts that nothing of the agent is left.
pub(crate) fn assert_nothing_of_ours(node: &Host) {
    assert_without("routes", &routes(node), &["local"]);
    assert_without("virtual servers", &text(node, "ipvsadm -Ln"), &["FWM"]);
    let sets = text(node, "ipset list -n");
    assert_without(
        "sets",
        &sets,
        &[
            "PORTOLAN",
            "NO-LOCAL",
            "SHORT-CIRCUIT",
            "BALANCED-MARK",
            "REMOTE",
        ],
    );
    let words = [
        "KUBE-LOCAL-POLICY",
        "KUBE-SHORT-CIRCUIT",
        "NO-LOCAL",
        "REMOTE",
    ];
    assert_without("rules", &rules(node), &words);
    // The agent's jumps have no comment; a kube-proxy has one jump of each kind, with a comment.
    assert_without(
        "jumps",
        &rules(node),
        &["-A PREROUTING -j KUBE-", "-A OUTPUT -j KUBE-"],
    );
    let addresses = text(node, "ip -o addr show dev kube-ipvs0");
    assert!(
        addresses.contains(WEB[0]) && addresses.contains(WEB[1]),
        "{addresses}"
    );
}
