// SPDX-License-Identifier: Apache-2.0

use portolan_model::NodeInfo;

use super::*;
use crate::{Config, rules as rules_of};

/// Rules that a kube-proxy 1.36 in iptables mode leaves for one Service with a node port, one endpoint and source
/// ranges, shortened; and rules of others.
const SAVED: &str = r#"*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment "default/gone has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:DOCKER - [0:0]
:KUBE-EXT-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-NODEPORTS -p tcp -m comment --comment "default/web" -m tcp --dport 30080 -j KUBE-EXT-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m comment --comment "default/web cluster IP" -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -d 203.0.113.1/32 -p udp -m comment --comment "default/web:dns external IP" -m udp --dport 53 -j KUBE-EXT-AAAAAAAAAAAAAAAA
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-SVC-AAAAAAAAAAAAAAAA -m comment --comment "default/web -> 10.244.0.5:8080" -j KUBE-SEP-BBBBBBBBBBBBBBBB
COMMIT"#;

fn saved(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

fn ours() -> Rules {
    rules_of(Family::V4, &Config::default(), &NodeInfo::default())
}

/// The lines of an input that delete or add, in order.
fn lines<'a>(input: &'a str, start: &str) -> Vec<&'a str> {
    input
        .lines()
        .filter(|line| line.starts_with(start))
        .collect()
}

#[test]
fn iptables_mode_is_known_by_chains_that_ipvs_mode_lacks() {
    assert!(has_iptables_mode(&saved(SAVED)));
    let ipvs = include_str!("../takeover/tests/kube-proxy-ipvs.txt");
    assert!(!has_iptables_mode(&saved(ipvs)));
    // Only the table `nat` counts.
    assert!(!has_iptables_mode(&saved(&SAVED.replace("*nat", "*raw"))));
    // A takeover that has begun.
    assert!(has_iptables_mode(&saved(
        "*nat\n:KUBE-PORTOLAN-PREDECESSOR - [0:0]"
    )));
}

#[test]
fn frontends_are_those_with_a_chain_and_an_address() {
    let key = |protocol, ip: &str, port| VirtualServerKey::new(protocol, ip.parse().unwrap(), port);
    let expected = [
        key(Protocol::Tcp, "10.96.0.10", 80),
        key(Protocol::Udp, "203.0.113.1", 53),
    ];
    assert_eq!(iptables_frontends(&saved(SAVED)), expected.into());
}

#[test]
fn elements_of_nftables_are_frontends() {
    let v4 = [10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0];
    let key = VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, 10].into(), 80);
    assert_eq!(nftables_frontend(Family::V4, &v4), Some(key));
    let mut v6 = vec![0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    v6.extend([17, 0, 0, 0, 0, 53, 0, 0]);
    let key = VirtualServerKey::new(Protocol::Udp, "fd00::1".parse().unwrap(), 53);
    assert_eq!(nftables_frontend(Family::V6, &v6), Some(key));
    for (family, broken) in [(Family::V4, &v4[..9]), (Family::V6, &v4[..])] {
        assert_eq!(nftables_frontend(family, broken), None);
    }
}

#[test]
fn services_are_kept_by_a_copy_that_packets_meet_first() {
    let before = saved(SAVED);
    let input = kept_input(&before).unwrap();
    assert_eq!(lines(&input, "*"), ["*nat"]);
    assert_eq!(
        lines(&input, "-I"),
        [
            "-I PREROUTING 1 -j KUBE-PORTOLAN-PREDECESSOR",
            "-I OUTPUT 1 -j KUBE-PORTOLAN-PREDECESSOR"
        ]
    );
    let copied = lines(&input, "-A KUBE-PORTOLAN-PREDECESSOR ");
    assert_eq!(copied.len(), 3, "{input}");
    assert!(copied[2].ends_with("--dst-type LOCAL -j KUBE-NODEPORTS"));
    // Done once: the chain that was copied is ours by then.
    let after = SAVED.replace("*nat\n", "*nat\n:KUBE-PORTOLAN-PREDECESSOR - [0:0]\n");
    assert_eq!(kept_input(&saved(&after)), None);
}

#[test]
fn removal_leaves_our_chains_and_those_of_others() {
    // The chain of `nat` that we share has rules of ours by then.
    let is_theirs = |line: &&str| line.starts_with("-A KUBE-SERVICES ") && !line.contains("REJECT");
    let rest: Vec<&str> = SAVED.lines().filter(|line| !is_theirs(line)).collect();
    let text = rest.join("\n").replace(
        "*nat\n",
        "*nat\n:KUBE-PORTOLAN-PREDECESSOR - [0:0]\n-A OUTPUT -j KUBE-PORTOLAN-PREDECESSOR\n",
    );
    let unhooked = unhooked_input(&saved(&text), &ours()).unwrap();
    assert_eq!(
        lines(&unhooked, "-D"),
        [
            "-D INPUT -m comment --comment \"kubernetes health check service ports\" -j KUBE-NODEPORTS",
            "-D INPUT -m conntrack --ctstate NEW -m comment --comment \"kubernetes externally-visible \
             service portals\" -j KUBE-EXTERNAL-SERVICES",
            "-D FORWARD -m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" \
             -j KUBE-SERVICES",
            "-D OUTPUT -j KUBE-PORTOLAN-PREDECESSOR",
        ]
    );
    let removed = removed_input(&saved(&text), &ours()).unwrap();
    let deleted = lines(&removed, "-X");
    for stays in [
        "KUBE-FIREWALL",
        "KUBE-FORWARD",
        "KUBE-KUBELET-CANARY",
        "KUBE-MARK-MASQ",
        "KUBE-POSTROUTING",
        "DOCKER",
    ] {
        assert!(
            !deleted.contains(&&*format!("-X {stays}")),
            "{stays}: {removed}"
        );
    }
    assert_eq!(deleted.len(), 9, "{removed}");
    // Of `nat`, ours stays; of `filter` we have none.
    assert_eq!(
        deleted
            .iter()
            .filter(|line| **line == "-X KUBE-SERVICES")
            .count(),
        1
    );
    assert!(lines(&removed, "*filter").len() == 1);
    assert_eq!(
        unhooked_input(&saved("*nat\n:DOCKER - [0:0]"), &ours()),
        None
    );
    assert_eq!(
        removed_input(&saved("*nat\n:DOCKER - [0:0]"), &ours()),
        None
    );
}

#[test]
fn chains_that_other_programs_jump_to_from_their_own_stay() {
    let none = Rules {
        tables: Vec::new(),
        jumps: Vec::new(),
        obsolete: Vec::new(),
        sets: BTreeSet::new(),
    };
    let rule = "-A CNI-DN-x -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ";
    let declared = "*nat\n:CNI-DN-x - [0:0]\n:OTHER - [0:0]\n";
    let others = format!("{rule}\n-A OTHER -j KUBE-EXT-AAAAAAAAAAAAAAAA\n");
    let first = "-A PREROUTING -m comment";
    let text = SAVED
        .replace("*nat\n", declared)
        .replace(first, &format!("{others}{first}"));

    let unhooked = unhooked_input(&saved(&text), &none).unwrap();
    let deleted = lines(&unhooked, "-D");
    let is_built_in = |line: &&str| {
        let chain = line.split(' ').nth(1);
        chain.is_some_and(|chain| BUILT_IN.contains(&chain))
    };
    assert!(deleted.iter().all(is_built_in), "{unhooked}");
    // What is marked is masqueraded as before.
    assert!(!unhooked.contains("KUBE-POSTROUTING"), "{unhooked}");
    let removed = removed_input(&saved(&text), &none).unwrap();
    for stays in ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"] {
        assert!(!removed.contains(stays), "{removed}");
    }
    // A chain that leads to others is emptied at least.
    assert!(removed.contains(":KUBE-EXT-AAAAAAAAAAAAAAAA - [0:0]\n"));
    assert!(!removed.contains("-X KUBE-EXT-AAAAAAAAAAAAAAAA\n"));
    assert!(removed.contains("-X KUBE-SVC-AAAAAAAAAAAAAAAA\n"));

    // Without such rules they go.
    let unhooked = unhooked_input(&saved(SAVED), &none).unwrap();
    assert!(unhooked.contains("-j KUBE-POSTROUTING\n"), "{unhooked}");
    let removed = removed_input(&saved(SAVED), &none).unwrap();
    for goes in ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"] {
        assert!(removed.contains(&format!("-X {goes}\n")), "{removed}");
    }
}
