// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::{Config, DetectLocal};

fn rules(family: Family, config: &Config) -> Rules {
    super::rules(family, config, &NodeInfo::default())
}

fn text(family: Family, masquerade_all: bool, detect_local: DetectLocal) -> String {
    let config = Config {
        masquerade_all,
        detect_local,
        ..Config::default()
    };
    rules(family, &config).restore_input(&[], &[])
}

#[test]
fn rules_refer_only_to_sets_that_desire_creates() {
    for family in Family::ALL {
        let config = Config::default();
        let names: BTreeSet<_> = SetName::ALL
            .into_iter()
            .map(|set| config.names.set(set, family))
            .collect();
        let rules = rules(family, &config);
        assert!(rules.sets.is_subset(&names));
        let text = rules.restore_input(&[], &[]);
        for word in text.split_whitespace().collect::<Vec<_>>().windows(2) {
            if ["--match-set", "--map-set"].contains(&word[0]) {
                assert!(rules.sets.contains(word[1]), "{} is not listed", word[1]);
            }
        }
    }
}

#[test]
fn every_chain_that_is_jumped_to_exists() {
    let rules = rules(Family::V4, &Config::default());
    for table in &rules.tables {
        let chains: BTreeSet<_> = table
            .chains
            .iter()
            .map(|(chain, _)| chain.as_str())
            .collect();
        let targets = table
            .chains
            .iter()
            .flat_map(|(_, rules)| rules)
            .filter_map(|rule| {
                let (_, target) = rule.rsplit_once("-j ").or(rule.rsplit_once("-g "))?;
                let target = target.split(' ').next()?;
                target.starts_with("KUBE-").then_some(target)
            });
        let jumps = rules.jumps.iter().filter(|jump| jump.table == table.name);
        for target in targets.chain(jumps.map(|jump| jump.target.as_str())) {
            assert!(
                chains.contains(target),
                "{target} is missing in {}",
                table.name
            );
        }
        assert!(
            chains.iter().all(|chain| chain.len() <= 28),
            "chain names have 28 characters"
        );
    }
}

#[test]
fn cluster_ips_are_masqueraded_as_configured() {
    let all = "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ";
    let from = "-A KUBE-SERVICES ! -s 10.244.0.0/16 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ";
    let own = "-A KUBE-SERVICES -m addrtype --src-type LOCAL -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ";
    let own6 = "-A KUBE-SERVICES -m addrtype --src-type LOCAL -m set --match-set KUBE-6-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ";
    let bridge =
        "-A KUBE-SERVICES ! -i cni0 -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ";
    let v4_only = || DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let by_bridge = DetectLocal::Bridge("cni0".to_owned());
    for (text, line) in [
        (text(Family::V4, true, v4_only()), all),
        (text(Family::V4, false, v4_only()), from),
        (text(Family::V4, false, DetectLocal::default()), own),
        (text(Family::V4, false, by_bridge), bridge),
        // Without a network of the family no packet is local.
        (text(Family::V6, false, v4_only()), own6),
    ] {
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    }
}

#[test]
fn missing_jumps_go_into_their_table() {
    let rules = rules(Family::V4, &Config::default());
    let jump = rules
        .jumps
        .iter()
        .find(|jump| (&*jump.table, &*jump.chain) == ("nat", "POSTROUTING"))
        .unwrap();
    let text = rules.restore_input(&[jump], &[]);
    let (rest, filter) = text.split_once("*filter").unwrap();
    let (_, nat) = rest.split_once("*nat").unwrap();
    assert!(nat.contains("-I POSTROUTING 1 -j KUBE-POSTROUTING\n"));
    assert!(!filter.contains("-I "));
}

fn chain(text: &str, table: &str, name: &str) -> Vec<String> {
    let (_, rest) = text.split_once(&format!("*{table}\n")).unwrap();
    let (table, _) = rest.split_once("COMMIT").unwrap();
    let start = format!("-A {name} ");
    let rules = table.lines().filter_map(|line| line.strip_prefix(&start));
    rules.map(str::to_owned).collect()
}

#[test]
fn only_local_pods_and_the_node_itself_are_short_circuited() {
    let local = DetectLocal::InterfacePrefix("veth".to_owned());
    let text = text(Family::V6, false, local);
    let drop = "-m set --match-set KUBE-6-NO-LOCAL dst,dst -j DROP";
    let short = "-m set --match-set KUBE-6-SHORT-CIRCUIT dst,dst -g KUBE-SHORT-CIRCUIT";
    assert_eq!(
        chain(&text, "mangle", "KUBE-LOCAL-POLICY")[2..],
        [format!("-i veth+ {short}"), drop.to_owned()]
    );
    assert_eq!(
        chain(&text, "mangle", "KUBE-LOCAL-POLICY-OUT")[4..],
        [format!("{short}-OUT"), drop.to_owned()]
    );
}

#[test]
fn unrecognised_pods_are_not_short_circuited() {
    let text = text(Family::V4, false, DetectLocal::default());
    let rules = chain(&text, "mangle", "KUBE-LOCAL-POLICY");
    assert_eq!(
        rules[1..],
        [
            "-j SET --map-set KUBE-BALANCED-MARK dst,dst --map-mark",
            "-m set --match-set KUBE-NO-LOCAL dst,dst -j DROP"
        ]
    );
}

#[test]
fn mark_of_a_short_circuit_is_cleared_unless_it_has_foreign_bits() {
    let config = Config {
        short_circuit_mask: crate::MarkMask::new(0x00f0_0000, 0x4000).unwrap(),
        ..Config::default()
    };
    let text = rules(Family::V4, &config).restore_input(&[], &[]);
    assert_eq!(
        chain(&text, "mangle", "KUBE-SHORT-CIRCUIT-END"),
        [
            "-m conntrack --ctstate NEW -m mark --mark 0x0/0xff0fffff -m mark ! --mark 0x0/0xf00000 \
             -j MARK --set-xmark 0x0/0xf00000"
        ]
    );
}

#[test]
fn a_mark_of_ours_leads_past_rules_that_would_change_it() {
    let text = rules(Family::V4, &Config::default()).restore_input(&[], &[]);
    let passes = "-m mark ! --mark 0x0/0x3fff0000 -j RETURN";
    let out = chain(&text, "mangle", "KUBE-LOCAL-POLICY-OUT");
    assert_eq!(out[1], passes, "{out:?}");
    let masquerade = chain(&text, "nat", "KUBE-MARK-MASQ");
    let local = format!("-m addrtype --src-type LOCAL {passes}");
    assert_eq!(masquerade, [&local, "-j MARK --or-mark 0x4000"]);
}

#[test]
fn chains_fit_the_longest_prefix() {
    let config = Config {
        names: crate::Names::new("PORTO").unwrap(),
        ..Config::default()
    };
    for table in rules(Family::V6, &config).tables {
        for (chain, _) in &table.chains {
            assert!(chain.len() <= 28, "{chain}");
        }
    }
}

#[test]
fn obsolete_jumps_go_from_their_table() {
    let rules = rules(Family::V4, &Config::default());
    let line = "-A OUTPUT -m comment --comment \"a b\" -j KUBE-PROXY-FIREWALL";
    let text = rules.restore_input(&[], &[("filter", line)]);
    let (_, filter) = text.split_once("*filter").unwrap();
    assert!(filter.contains("-D OUTPUT -m comment --comment \"a b\" -j KUBE-PROXY-FIREWALL\n"));
    assert_eq!(text.matches("-D ").count(), 1);
}

#[test]
fn pods_of_other_nodes_are_told_from_own_ones_only_with_cluster_cidr() {
    let of_others = "-s 10.244.0.0/16 -m set --match-set KUBE-SHORT-CIRCUIT dst,dst \
                     -m addrtype --dst-type LOCAL --limit-iface-in -j RETURN";
    let local_policy = |local| {
        let text = text(Family::V4, false, local);
        let rules = chain(&text, "mangle", "KUBE-LOCAL-POLICY");
        let position = |end: &str| rules.iter().position(|rule| rule.contains(end));
        (
            position(of_others),
            position("-g KUBE-SHORT-CIRCUIT"),
            position("KUBE-NO-LOCAL dst,dst -j DROP"),
        )
    };
    let by_network = DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    assert_eq!(local_policy(by_network), (Some(2), Some(3), Some(4)));
    let by_interface = DetectLocal::Bridge("cni0".to_owned());
    assert_eq!(local_policy(by_interface), (None, Some(2), Some(3)));
}

#[test]
fn segments_of_imports_are_clamped_unless_that_is_switched_off() {
    for (family, set) in [(Family::V4, "KUBE-REMOTE"), (Family::V6, "KUBE-6-REMOTE")] {
        let all = rules(family, &Config::default());
        assert!(all.clamps() && all.sets.contains(set));
        let text = all.restore_input(&[], &[]);
        let expected = format!(
            "-p tcp --tcp-flags SYN,RST SYN -m set --match-set {set} dst,dst -j TCPMSS --clamp-mss-to-pmtu"
        );
        assert_eq!(chain(&text, "mangle", "KUBE-REMOTE-MSS"), [expected]);
        let others = all.without_clamp();
        let text = others.restore_input(&others.jumps.iter().collect::<Vec<_>>(), &[]);
        assert!(!text.contains("REMOTE"), "{text}");
        let without_its_lines = |rules: &Rules| {
            let text = rules.restore_input(&rules.jumps.iter().collect::<Vec<_>>(), &[]);
            let lines = text.lines().filter(|line| !line.contains("REMOTE"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(without_its_lines(&all), without_its_lines(&others));
        assert_eq!(all.sets.len(), others.sets.len() + 1);

        let off = Config {
            clamp_remote_mss: false,
            ..Config::default()
        };
        let off = rules(family, &off);
        assert!(!off.clamps());
        assert_eq!(off.jumps, all.jumps, "an earlier rule goes from its chain");
        assert_eq!(off.without_clamp(), others);
    }
}
