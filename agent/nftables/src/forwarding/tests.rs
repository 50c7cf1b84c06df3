// SPDX-License-Identifier: Apache-2.0

use portolan_netlink::nftables::{Lookup, Rule};

use super::*;

fn chain(table: &str, rules: &[(&str, Rule)]) -> DropChain {
    DropChain {
        family: TableFamily::Ip,
        table: table.to_owned(),
        name: "FORWARD".into(),
        rules: rules
            .iter()
            .map(|(chain, rule)| ((*chain).into(), rule.clone()))
            .collect(),
    }
}

fn verdict(verdict: Verdict) -> Expression {
    Expression::verdict(&verdict)
}

/// A rule about bits of the connection, as nft writes it.
fn bits(property: Ct, bits: u32, then: Verdict) -> Rule {
    let first = Register::FIRST;
    vec![
        Expression::ct(property, first),
        Expression::bitwise(first, &bits.to_ne_bytes(), &[0; 4]),
        Expression::compare(first, Operator::NotEqual, &[0; 4]),
        verdict(then),
    ]
}

fn is_closed(rules: &[(&str, Rule)], translation: Translation) -> bool {
    let closed = closed_chains(&[chain("filter", rules)], translation);
    let names: Vec<_> = closed.iter().map(ToString::to_string).collect();
    assert!(names.iter().all(|name| name == "ip filter FORWARD"));
    !names.is_empty()
}

#[test]
fn a_chain_is_open_by_the_rule_that_is_advised_and_closed_without_it() {
    let dnat = bits(Ct::Status, Ct::STATUS_DNAT, Verdict::Accept);
    let established = bits(Ct::State, Ct::STATE_ESTABLISHED, Verdict::Accept);
    let both = Ct::STATE_ESTABLISHED | Ct::STATE_RELATED;
    let related = bits(Ct::State, both, Verdict::Accept);
    let all = vec![verdict(Verdict::Accept)];
    let dropped = bits(Ct::Status, Ct::STATUS_DNAT, Verdict::Drop);
    for (rule, nftables, ipvs) in [
        (dnat, false, true),
        (established, true, false),
        (related, true, false),
        (all, false, false),
        (dropped, true, true),
    ] {
        let rules = [("FORWARD", rule)];
        let found = [Translation::Nftables, Translation::Ipvs].map(|of| is_closed(&rules, of));
        assert_eq!(found, [nftables, ipvs], "{rules:?}");
        // The rule of another chain, to which nothing leads.
        let rules = [("INPUT", rules[0].1.clone())];
        assert!(is_closed(&rules, Translation::Nftables));
        assert!(is_closed(&rules, Translation::Ipvs));
    }
    assert!(is_closed(&[], Translation::Nftables));
}

#[test]
fn a_rule_counts_in_chains_to_which_all_packets_are_led() {
    let user = |first: Rule| {
        let dnat = bits(Ct::Status, Ct::STATUS_DNAT, Verdict::Accept);
        // Chains may lead to each other.
        let back = vec![verdict(Verdict::Jump("FORWARD".into()))];
        let rules = [("FORWARD", first), ("USER", back), ("USER", dnat)];
        is_closed(&rules, Translation::Nftables)
    };
    let jump = || Verdict::Jump("USER".into());
    assert!(!user(vec![verdict(jump())]));
    assert!(!user(vec![verdict(Verdict::Goto("USER".into()))]));
    assert!(user(vec![verdict(Verdict::Jump("OTHER".into()))]));
    assert!(user(bits(Ct::State, Ct::STATE_NEW, jump())));
}

#[test]
fn a_map_or_set_of_states_accepts_answers() {
    let rule = vec![
        Expression::ct(Ct::State, Register::FIRST),
        Expression::lookup("__map0", Lookup::Verdict),
    ];
    // As `nft` spells `ct state { established, related } accept`.
    let of_set = vec![
        Expression::ct(Ct::State, Register::FIRST),
        Expression::lookup("__set0", Lookup::Has),
        verdict(Verdict::Accept),
    ];
    for rule in [rule, of_set] {
        let rules = [("FORWARD", rule)];
        assert!(!is_closed(&rules, Translation::Ipvs));
        assert!(is_closed(&rules, Translation::Nftables));
    }
}

#[test]
fn the_chain_of_iptables_is_told_from_others() {
    let mut chains = [chain("filter", &[]), chain("filter", &[]), chain("x", &[])];
    chains[1].family = TableFamily::Inet;
    let closed = closed_chains(&chains, Translation::Ipvs);
    let of_iptables = closed.iter().filter(|chain| chain.is_of_iptables());
    let names: Vec<_> = of_iptables.map(ToString::to_string).collect();
    assert_eq!(names, ["ip filter FORWARD"]);
    assert_eq!(closed.len(), 3);
}

#[test]
fn a_chain_is_told_once_until_it_has_gone() {
    let closed = |tables: &[&str]| {
        let chains: Vec<_> = tables.iter().map(|table| chain(table, &[])).collect();
        Some(closed_chains(&chains, Translation::Nftables))
    };
    let mut looks = ClosedLooks::default();
    let mut take = |found| {
        let told = looks.take(found);
        let names: Vec<_> = told.iter().map(ToString::to_string).collect();
        (names.join(", "), looks.count())
    };
    let told = |names: &str, count| (names.to_owned(), count);
    assert_eq!(take(closed(&["a"])), told("", 0));
    assert_eq!(take(None), told("ip a FORWARD", 1));
    assert_eq!(take(None), told("", 1));
    assert_eq!(take(closed(&["a", "b"])), told("", 1));
    assert_eq!(take(closed(&["a", "b"])), told("ip b FORWARD", 2));
    assert_eq!(take(closed(&["b"])), told("", 1));
    assert_eq!(take(closed(&["a", "b"])), told("", 1));
    assert_eq!(take(None), told("ip a FORWARD", 2));
    // Gone before the second look.
    assert_eq!(take(closed(&["a", "b", "c"])), told("", 2));
    assert_eq!(take(closed(&[])), told("", 0));
}
