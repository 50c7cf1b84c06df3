// SPDX-License-Identifier: Apache-2.0

use portolan_model::{Family, NodeInfo};

use super::rule::{Match, Rule, Side, Target};
use crate::{Config, DetectLocal, rules};

#[test]
fn every_rule_is_understood() {
    let networks = vec![
        "10.244.0.0/16".parse().unwrap(),
        "fd00::/32".parse().unwrap(),
    ];
    let detections = [
        DetectLocal::ClusterCidr(networks),
        DetectLocal::Bridge("cni0".to_owned()),
        DetectLocal::default(),
    ];
    let mut understood = 0;
    for detect_local in detections {
        for masquerade_all in [false, true] {
            let config = Config {
                detect_local: detect_local.clone(),
                masquerade_all,
                ..Config::default()
            };
            for family in Family::ALL {
                let rules = rules(family, &config, &NodeInfo::default());
                let chains = rules.tables.iter().flat_map(|table| &table.chains);
                for text in chains.flat_map(|(_, rules)| rules) {
                    assert!(Rule::parse(text).is_some(), "{text}");
                    understood += 1;
                }
            }
        }
    }
    assert!(understood > 400, "{understood}");
}

#[test]
fn rules_are_read_as_written() {
    let own = Match::Set(
        "A".to_owned(),
        vec![Side::Destination, Side::Destination, Side::Source],
    );
    for (text, matches, target) in [
        (
            "-m set ! --match-set A dst,dst,src -j MASQUERADE --random-fully",
            vec![(own, false)],
            Target::Masquerade,
        ),
        (
            "! -i veth+ -m set --match-set B dst -g C",
            vec![
                (Match::OwnInterface, false),
                (Match::Set("B".to_owned(), vec![Side::Destination]), true),
            ],
            Target::Goto("C".to_owned()),
        ),
        (
            "-m addrtype --dst-type LOCAL --limit-iface-in -j RETURN",
            vec![(Match::LocalDestination(true), true)],
            Target::Return,
        ),
        (
            "-j CONNMARK --set-xmark 0x4000/0x4000",
            vec![],
            Target::ConnectionMark(0x4000, 0x4000),
        ),
        (
            "-m mark ! --mark 0x0/0xff -j MARK --set-xmark 0x0/0xff",
            vec![(Match::Mark(0, 0xff), false)],
            Target::Mark(0xff, 0),
        ),
        (
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            vec![(Match::New(false), true)],
            Target::Accept,
        ),
        (
            "-j MARK --or-mark 0x4000",
            vec![],
            Target::Mark(0x4000, 0x4000),
        ),
        (
            "-j SET --map-set D dst,dst --map-mark",
            vec![],
            Target::MapMark("D".to_owned()),
        ),
    ] {
        assert_eq!(Rule::parse(text), Some(Rule { matches, target }), "{text}");
    }
    for text in [
        "",
        "-s 10.0.0.0/8",
        "-m bpf --bytecode x -j DROP",
        "-j MARK --set-mark 1",
    ] {
        assert_eq!(Rule::parse(text), None, "{text}");
    }
}
