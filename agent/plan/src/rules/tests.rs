use super::*;
use crate::Config;

fn text(family: Family, masquerade: Masquerade) -> String {
    let config = Config {
        masquerade,
        ..Config::default()
    };
    rules(family, &config).restore_input(&[])
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
        let text = rules.restore_input(&[]);
        for word in text.split_whitespace().collect::<Vec<_>>().windows(2) {
            if word[0] == "--match-set" {
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
                let target = rule.rsplit_once("-j ")?.1.split(' ').next()?;
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
    let vip = "-A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ";
    let vip6 = "-A KUBE-SERVICES -m set --match-set KUBE-6-CLUSTER-IP src,dst -j KUBE-MARK-MASQ";
    let v4_only = || Masquerade::From(vec!["10.244.0.0/16".parse().unwrap()]);
    for (text, line) in [
        (text(Family::V4, Masquerade::All), all),
        (text(Family::V4, v4_only()), from),
        (text(Family::V4, Masquerade::FromVip), vip),
        // Without a network of the family nothing is known to be local.
        (text(Family::V6, v4_only()), vip6),
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
        .find(|jump| jump.chain == "POSTROUTING")
        .unwrap();
    let text = rules.restore_input(&[jump]);
    let (nat, filter) = text.split_once("*filter").unwrap();
    assert!(nat.contains("-I POSTROUTING 1 -j KUBE-POSTROUTING\n"));
    assert!(!filter.contains("-I "));
}
