// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use super::super::{
    Base, ChainKind, Ct, Direction, Expression, Header, Lookup, Meta, Operator, Register, Which,
};
use super::*;

fn set(name: &str, key: &[Field], data: Data) -> Set {
    Set::new(name, key, data)
}

fn table(sets: Vec<(Set, Elements)>, rules: Vec<Rule>) -> TableContent {
    let chain = Chain {
        name: "chain".into(),
        base: Some(Base {
            kind: ChainKind::Nat,
            hook: Hook::Prerouting,
            priority: -101,
        }),
    };
    TableContent {
        sets: sets
            .into_iter()
            .map(|(set, elements)| (Arc::clone(&set.name), (set, elements)))
            .collect(),
        chains: [(Arc::clone(&chain.name), (chain, rules))].into(),
        ..TableContent::default()
    }
}

/// The lines of one rule beside maps and sets of ways.
fn lines(rule: Rule) -> Vec<String> {
    use Field::{Ipv4, Port, Protocol};
    let way = [Ipv4, Protocol, Port];
    let client = [Ipv4, Ipv4, Protocol, Port];
    let to = || Data::Fields(vec![Ipv4, Port]);
    let sets = [
        set("ways", &way, Data::None),
        set("verdicts", &way, Data::Verdict),
        set("endpoints", &way, to()),
        set("clients", &client, to()),
        set("ips", &[Ipv4], Data::None),
    ];
    let sets = sets.map(|set| (set, Elements::new())).into();
    let text = table(sets, vec![rule]).text(Family::V4, "t").unwrap();
    let lines = text.lines().skip_while(|line| !line.contains("policy"));
    let lines = lines.skip(1).take_while(|line| *line != "\t}");
    lines.map(|line| line.trim().to_owned()).collect()
}

/// Loads the packet's way.
fn way(from: Register) -> Rule {
    vec![
        Expression::payload(Header::Network, 16, 4, from),
        Expression::meta(Meta::Protocol, from.after(4)),
        Expression::payload(Header::Transport, 2, 2, from.after(8)),
    ]
}

fn then(mut rule: Rule, more: impl IntoIterator<Item = Expression>) -> Rule {
    rule.extend(more);
    rule
}

const FIRST: Register = Register::FIRST;

#[test]
fn lookups_name_their_keys() {
    let key = "ip daddr . meta l4proto . th dport";
    for (set, lookup, expected) in [
        ("ways", Lookup::Has, format!("{key} @ways")),
        ("ways", Lookup::Lacks, format!("{key} != @ways")),
        ("verdicts", Lookup::Verdict, format!("{key} vmap @verdicts")),
    ] {
        let rule = then(way(FIRST), [Expression::lookup(set, lookup)]);
        assert_eq!(lines(rule), [expected]);
    }
    // Registers that hold more than the key.
    let rule = then(way(FIRST), [Expression::lookup("ips", Lookup::Has)]);
    assert_eq!(lines(rule), ["ip daddr @ips"]);
}

#[test]
fn ports_come_after_a_match_on_a_protocol() {
    let rule = then(
        way(FIRST),
        [
            Expression::lookup("endpoints", Lookup::Data),
            Expression::dnat(Family::V4, FIRST, FIRST.after(4)),
        ],
    );
    let key = "ip daddr . meta l4proto . th dport";
    let any = "meta l4proto { tcp, udp, sctp }";
    assert_eq!(
        lines(rule),
        [format!("{any} dnat ip to {key} map @endpoints")]
    );

    let original = Direction::Original;
    let rule = vec![
        Expression::ct(Ct::Destination(original, Family::V4), FIRST),
        Expression::meta(Meta::Protocol, FIRST.after(4)),
        Expression::ct(Ct::DestinationPort(original), FIRST.after(8)),
        Expression::lookup("ways", Lookup::Has),
        Expression::masquerade(),
    ];
    let key = "ct original ip daddr . meta l4proto . ct original proto-dst";
    let line = |protocol| format!("meta l4proto {protocol} {key} @ways masquerade fully-random");
    assert_eq!(lines(rule), ["tcp", "udp", "sctp"].map(line));
}

#[test]
fn clients_are_remembered_by_an_update() {
    let reply = Direction::Reply;
    let data = FIRST.after(16);
    let rule = then(
        vec![Expression::payload(Header::Network, 12, 4, FIRST)],
        then(
            way(FIRST.after(4)),
            [
                Expression::ct(Ct::Source(reply, Family::V4), data),
                Expression::ct(Ct::SourcePort(reply), data.after(4)),
                Expression::remember("clients", data, 600_000),
            ],
        ),
    );
    let key = "ip saddr . ip daddr . meta l4proto . th dport";
    assert_eq!(
        lines(rule)[0],
        format!(
            "meta l4proto tcp update @clients {{ {key} timeout 600s : ct reply ip saddr . ct reply proto-src }}"
        )
    );
}

#[test]
fn comparisons_have_the_words_of_nft() {
    let load = |expression| vec![expression];
    let saddr = || load(Expression::payload(Header::Network, 12, 4, FIRST));
    let mask = Expression::bitwise(FIRST, &[255, 255, 0, 0], &[0; 4]);
    let not = |value: &[u8]| Expression::compare(FIRST, Operator::NotEqual, value);
    let is = |value: &[u8]| Expression::compare(FIRST, Operator::Equal, value);
    let masked = |bits: u32| Expression::bitwise(FIRST, &bits.to_ne_bytes(), &[0; 4]);
    let any = |bits| [masked(bits), not(&[0; 4])];
    let none = |bits| [masked(bits), is(&[0; 4])];
    let name = || load(Expression::meta(Meta::InputName, FIRST));
    let ct = |ct| load(Expression::ct(ct, FIRST));
    for (rule, expected) in [
        (
            then(saddr(), [mask.clone(), not(&[10, 244, 0, 0])]),
            "ip saddr != 10.244.0.0/16",
        ),
        (then(saddr(), [is(&[10, 0, 0, 1])]), "ip saddr 10.0.0.1"),
        (
            then(name(), [is(b"cni0\0\0\0\0\0\0\0\0\0\0\0\0")]),
            "iifname \"cni0\"",
        ),
        (then(name(), [not(b"veth")]), "iifname != \"veth*\""),
        (then(ct(Ct::State), any(Ct::STATE_NEW)), "ct state new"),
        (then(ct(Ct::Status), any(Ct::STATUS_DNAT)), "ct status dnat"),
        (
            then(ct(Ct::Status), none(Ct::STATUS_CONFIRMED)),
            "ct status ! confirmed",
        ),
        (
            Expression::is_local(Which::Source).into(),
            "fib saddr type local",
        ),
        (
            Expression::is_local(Which::DestinationOnArrival).into(),
            "fib daddr . iif type local",
        ),
        (
            vec![
                Expression::meta(Meta::Protocol, FIRST),
                is(&[6]),
                Expression::reset(),
            ],
            "meta l4proto tcp reject with tcp reset",
        ),
        (vec![Expression::refuse(Family::V4)], "reject"),
        (
            then(
                load(Expression::payload(Header::Transport, 13, 1, FIRST)),
                [Expression::bitwise(FIRST, &[6], &[0]), is(&[2])],
            ),
            "tcp flags & (syn | rst) == syn",
        ),
        (
            then(
                Expression::path_segment(FIRST).into(),
                [Expression::set_segment(FIRST)],
            ),
            "tcp option maxseg size set rt mtu",
        ),
        (
            vec![Expression::verdict(&Verdict::Jump("a".into()))],
            "jump a",
        ),
    ] {
        assert_eq!(lines(rule), [expected]);
    }
}

#[test]
fn elements_have_their_fields() {
    use Field::{Ipv4, Number, Port, Protocol};
    let key = [10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0];
    let slot = [&key[..], &1_u32.to_ne_bytes()].concat();
    let first = [&key[..], &[10, 0, 0, 0]].concat();
    let last = [&key[..], &[10, 255, 255, 255]].concat();
    let mut allowed = set("allowed", &[Ipv4, Protocol, Port, Ipv4], Data::None);
    allowed.is_interval = true;
    let endpoints = set(
        "endpoints",
        &[Ipv4, Protocol, Port, Number],
        Data::Fields(vec![Ipv4, Port]),
    );
    let endpoint = Value::Data([10, 244, 0, 1, 31, 144, 0, 0].into());
    let verdict = Value::Verdict(Verdict::Goto("pick-0".into()));
    let sets = vec![
        (allowed, [(first.into(), Value::UpTo(last.into()))].into()),
        (endpoints, [(slot.into(), endpoint)].into()),
        (
            set("services", &[Ipv4, Protocol, Port], Data::Verdict),
            [(key.into(), verdict)].into(),
        ),
    ];
    let text = table(sets, Vec::new()).text(Family::V4, "t").unwrap();
    for line in [
        "10.96.0.10 . tcp . 80 . 10.0.0.0-10.255.255.255,",
        "typeof ip daddr . meta l4proto . th dport . numgen random mod 2 : ip daddr . th dport",
        "10.96.0.10 . tcp . 80 . 1 : 10.244.0.1 . 8080,",
        "10.96.0.10 . tcp . 80 : goto pick-0,",
        "type nat hook prerouting priority -101; policy accept;",
    ] {
        assert!(text.lines().any(|l| l.trim() == line), "{line}\n{text}");
    }
}

#[test]
fn an_expression_without_text_is_named() {
    let rule = vec![Expression::payload(Header::Network, 0, 1, FIRST)];
    let error = table(Vec::new(), vec![rule]).text(Family::V4, "t");
    assert_eq!(
        error.unwrap_err().to_string(),
        "chain chain, rule 1: an expression `payload` that has no text"
    );
}
