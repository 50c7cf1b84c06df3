// SPDX-License-Identifier: Apache-2.0

//! nftables on a real kernel: needs root, each test has a network namespace of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::sync::Arc;

use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_netlink::nftables::{
    Base, Chain, ChainKind, CommitError, Ct, Data, Direction, Expression, Field, Header, Hook, Key,
    Lookup, Meta, Nftables, Operator, Register, Request, Rule, Set, Value, Verdict, Which,
};

const LANES: &[&str] = &["netns", "uml", "debian"];
const TABLE: &str = "portolan-test";

/// Runs with nftables in a namespace; the first request loads modules.
fn with_nftables(test: &str, body: impl FnOnce(Nftables) + Send) {
    let open = || {
        let mut nftables = Nftables::open().map_err(|error| error.to_string())?;
        let checked = nftables.check(Family::V4, TABLE, &[Request::AddTable]);
        checked.map_err(|error| error.to_string())?;
        Ok::<_, String>(nftables)
    };
    common::in_netns(test, LANES, open, body);
}

fn chain(name: &str, base: Option<Base>) -> Request {
    let name = name.into();
    Request::AddChain(Chain { name, base })
}

fn rule(chain: &str, rule: Rule) -> Request {
    Request::AddRule(chain.into(), rule)
}

fn address(family: Family) -> (Field, u32) {
    match family {
        Family::V4 => (Field::Ipv4, 16),
        Family::V6 => (Field::Ipv6, 24),
    }
}

/// The fields of an address, a protocol and a port.
fn way(family: Family) -> Vec<Field> {
    vec![address(family).0, Field::Protocol, Field::Port]
}

fn zeros(fields: &[Field], last: u8) -> Key {
    let len: usize = fields.iter().map(|field| field.padded_len()).sum();
    let mut key = vec![0; len];
    key[len - 4] = last;
    key.into()
}

fn sets(family: Family) -> Vec<(Set, Vec<(Key, Value)>)> {
    let way = way(family);
    let slot: Vec<_> = way.iter().copied().chain([Field::Number]).collect();
    let to = vec![address(family).0, Field::Port];
    let ranged: Vec<_> = way.iter().copied().chain([address(family).0]).collect();
    let client: Vec<_> = [address(family).0].into_iter().chain(way.clone()).collect();
    let mut allowed = Set::new("allowed", &ranged, Data::None);
    allowed.is_interval = true;
    let mut affinity = Set::new("affinity", &client, Data::Fields(to.clone()));
    affinity.size = Some(1000);
    affinity.is_dynamic = true;
    let goto = Value::Verdict(Verdict::Goto("pick".into()));
    let ways = vec![
        (zeros(&way, 1), goto),
        (zeros(&way, 2), Value::Verdict(Verdict::Drop)),
    ];
    let slots = (0..9).map(|n| (zeros(&slot, n), Value::Data(zeros(&to, n))));
    let range = (zeros(&ranged, 1), Value::UpTo(zeros(&ranged, 9)));
    vec![
        (Set::new("services", &way, Data::Verdict), ways),
        (
            Set::new("endpoints", &slot, Data::Fields(to.clone())),
            slots.collect(),
        ),
        (
            Set::new("ranged", &way, Data::None),
            vec![(zeros(&way, 1), Value::Present)],
        ),
        (allowed, vec![range]),
        (affinity, Vec::new()),
    ]
}

/// Loads address, protocol and port of the destination.
fn load_way(family: Family) -> (Rule, Register) {
    let (field, offset) = address(family);
    let len = u32::try_from(field.bytes()).unwrap();
    let protocol = Register::FIRST.after(field.bytes());
    let port = protocol.after(1);
    let load = vec![
        Expression::payload(Header::Network, offset, len, Register::FIRST),
        Expression::meta(Meta::Protocol, protocol),
        Expression::payload(Header::Transport, 2, 2, port),
    ];
    (load, port.after(2))
}

/// Rules with every kind of expression.
fn rules(family: Family) -> Vec<(&'static str, Rule)> {
    let (load, next) = load_way(family);
    let field = address(family).0;
    let with = |more: Vec<Expression>| load.iter().cloned().chain(more).collect::<Rule>();
    let port = Register::FIRST.after(field.bytes());
    let mut local: Rule = Expression::is_local(Which::Source).into();
    local.push(Expression::masquerade());
    let mut arrived: Rule = Expression::is_local(Which::DestinationOnArrival).into();
    arrived.push(Expression::verdict(&Verdict::Drop));
    vec![
        (
            "pick",
            with(vec![
                Expression::random(4, next),
                Expression::lookup("endpoints", Lookup::Data),
                Expression::dnat(family, Register::FIRST, port),
            ]),
        ),
        ("pick", vec![Expression::verdict(&Verdict::Drop)]),
        (
            "refusal",
            vec![
                Expression::meta(Meta::Protocol, Register::FIRST),
                Expression::compare(Register::FIRST, Operator::Equal, &[6]),
                Expression::reset(),
            ],
        ),
        ("refusal", vec![Expression::refuse(family)]),
        (
            "nat-in",
            with(vec![
                Expression::lookup("ranged", Lookup::Lacks),
                Expression::verdict(&Verdict::Goto("refusal".into())),
            ]),
        ),
        (
            "nat-in",
            vec![
                Expression::meta(Meta::InputName, Register::FIRST),
                Expression::compare(Register::FIRST, Operator::NotEqual, b"veth"),
                Expression::verdict(&Verdict::Accept),
            ],
        ),
        ("nat-in", arrived),
        (
            "nat-in",
            with(vec![Expression::lookup("services", Lookup::Verdict)]),
        ),
        ("nat-post", local),
        (
            "nat-post",
            vec![
                Expression::ct(Ct::Status, Register::FIRST),
                Expression::bitwise(Register::FIRST, &Ct::STATUS_DNAT.to_ne_bytes(), &[0; 4]),
                Expression::compare(Register::FIRST, Operator::NotEqual, &[0; 4]),
                Expression::verdict(&Verdict::Jump("remember".into())),
            ],
        ),
        ("remember", remember(family)),
        ("segments", segments()),
    ]
}

/// Has the first packets of TCP connections announce segments that fit the path.
fn segments() -> Rule {
    let mut rule = vec![
        Expression::meta(Meta::Protocol, Register::FIRST),
        Expression::compare(Register::FIRST, Operator::Equal, &[6]),
        Expression::payload(Header::Transport, 13, 1, Register::FIRST),
        Expression::bitwise(Register::FIRST, &[6], &[0]),
        Expression::compare(Register::FIRST, Operator::Equal, &[2]),
    ];
    rule.extend(Expression::path_segment(Register::FIRST));
    rule.push(Expression::set_segment(Register::FIRST));
    rule
}

/// Adds the connection's destination to the map of clients.
fn remember(family: Family) -> Rule {
    let (field, original) = (address(family).0, Direction::Original);
    let data = Register::FIRST.after(2 * field.bytes()).after(1).after(2);
    vec![
        Expression::ct(Ct::Source(original, family), Register::FIRST),
        Expression::ct(
            Ct::Destination(original, family),
            Register::FIRST.after(field.bytes()),
        ),
        Expression::meta(Meta::Protocol, Register::FIRST.after(2 * field.bytes())),
        Expression::ct(
            Ct::DestinationPort(original),
            Register::FIRST.after(2 * field.bytes()).after(1),
        ),
        Expression::ct(Ct::Source(Direction::Reply, family), data),
        Expression::ct(Ct::SourcePort(Direction::Reply), data.after(field.bytes())),
        Expression::remember("affinity", data, 5000),
    ]
}

fn everything(family: Family) -> Vec<Request> {
    let base = |hook, priority| Base {
        kind: ChainKind::Nat,
        hook,
        priority,
    };
    let mut requests = vec![Request::AddTable];
    let sets = sets(family);
    requests.extend(sets.iter().map(|(set, _)| Request::AddSet(set.clone())));
    requests.extend(["pick", "refusal", "remember"].map(|name| chain(name, None)));
    requests.push(chain("nat-in", Some(base(Hook::Prerouting, -101))));
    requests.push(chain("nat-post", Some(base(Hook::Postrouting, 99))));
    let filter = Base {
        kind: ChainKind::Filter,
        hook: Hook::Postrouting,
        priority: -150,
    };
    requests.push(chain("segments", Some(filter)));
    requests.extend(
        sets.into_iter()
            .map(|(set, elements)| Request::AddElements(set.name, elements)),
    );
    let rules = rules(family).into_iter();
    requests.extend(rules.map(|(chain, expressions)| rule(chain, expressions)));
    requests
}

#[test]
fn what_was_written_is_read_back() {
    with_nftables("what_was_written_is_read_back", |mut nftables| {
        for family in Family::ALL {
            assert_eq!(nftables.content(family, TABLE), Ok(None));
            nftables
                .commit(family, TABLE, &everything(family), None)
                .unwrap();
            let content = nftables.content(family, TABLE).unwrap().unwrap();
            for (set, elements) in sets(family) {
                let read = &content.sets[&set.name];
                assert_eq!(read, &(set, elements.into_iter().collect()));
            }
            let mut unread = content.chains.clone();
            for (chain, rule) in rules(family) {
                let read = unread.get_mut(chain).unwrap().1.remove(0);
                let is_read =
                    |(wanted, read): (&Expression, &Expression)| wanted.is_dumped_as(read);
                assert!(
                    rule.len() == read.len() && rule.iter().zip(&read).all(is_read),
                    "{family} {chain}:\n{rule:?}\n{read:?}"
                );
            }
            let base = content.chains["nat-in"].0.base.unwrap();
            assert_eq!((base.hook, base.priority), (Hook::Prerouting, -101));
            // Written again, it is no error and changes nothing but that rules are doubled.
            let sets: Vec<_> = everything(family)
                .into_iter()
                .filter(|request| !matches!(request, Request::AddRule(..)))
                .collect();
            nftables.commit(family, TABLE, &sets, None).unwrap();
            assert_eq!(nftables.content(family, TABLE), Ok(Some(content)));
            // The tool for people lists it.
            if let Some(listed) = common::require("nft", &[], common::output("nft", "list ruleset"))
            {
                assert!(listed.contains("vmap @services"), "{listed}");
                let address = match family {
                    Family::V4 => "ip daddr",
                    Family::V6 => "ip6 daddr",
                };
                let slots = format!(
                    "typeof {address} . meta l4proto . th dport . numgen random mod 2 : {address} . th dport"
                );
                assert!(listed.contains(&slots), "{listed}");
                assert!(listed.contains(" . 0 . 8 : "), "{listed}");
            }
            nftables
                .commit(family, TABLE, &[Request::DelTable], None)
                .unwrap();
            assert_eq!(nftables.content(family, TABLE), Ok(None));
        }
    });
}

#[test]
fn a_transaction_is_made_whole_or_not_at_all() {
    with_nftables(
        "a_transaction_is_made_whole_or_not_at_all",
        |mut nftables| {
            let family = Family::V4;
            let mut requests = everything(family);
            requests.insert(3, Request::DelChain("nobody".into()));
            requests.push(Request::DelSet("nothing".into()));
            let refused = nftables.commit(family, TABLE, &requests, None).unwrap_err();
            let last = requests.len() - 1;
            let expected = vec![(3, Errno::ENOENT), (last, Errno::ENOENT)];
            assert_eq!(refused, CommitError::Refused(expected));
            assert_eq!(nftables.content(family, TABLE), Ok(None));

            nftables.check(family, TABLE, &everything(family)).unwrap();
            assert_eq!(
                nftables.content(family, TABLE),
                Ok(None),
                "a check makes nothing"
            );
        },
    );
}

#[test]
fn changes_of_anybody_have_a_generation() {
    with_nftables("changes_of_anybody_have_a_generation", |mut nftables| {
        let before = nftables.generation().unwrap();
        assert_eq!(nftables.generation(), Ok(before));
        let add = [Request::AddTable];
        nftables
            .commit(Family::V4, TABLE, &add, Some(before))
            .unwrap();
        let after = nftables.generation().unwrap();
        assert_ne!(after, before);
        let late = nftables.commit(Family::V6, TABLE, &add, Some(before));
        assert_eq!(late, Err(CommitError::Outdated));
        assert_eq!(nftables.generation(), Ok(after));
        nftables
            .commit(Family::V6, TABLE, &add, Some(after))
            .unwrap();
    });
}

#[test]
fn many_elements_are_one_transaction() {
    with_nftables("many_elements_are_one_transaction", |mut nftables| {
        let set = Set::new("numbers", &[Field::Ipv4], Data::None);
        let key = |number: u32| Key::from(number.to_be_bytes());
        let elements: Vec<_> = (0..200_000).map(|n| (key(n), Value::Present)).collect();
        let name = Arc::clone(&set.name);
        let requests = [
            Request::AddTable,
            Request::AddSet(set),
            Request::AddElements(Arc::clone(&name), elements.clone()),
        ];
        let before = nftables.generation().unwrap();
        nftables.commit(Family::V6, TABLE, &requests, None).unwrap();
        assert_eq!(nftables.generation(), Ok(before.wrapping_add(1)));
        // The kernel still enlarges the hash table, and dumps some elements twice or not at all.
        let mut is_read = || {
            let mut read = nftables.elements(Family::V6, TABLE, &name).unwrap();
            read.sort_by(|one, other| one.0.cmp(&other.0));
            read == elements
        };
        assert!((0..100).any(|_| is_read()), "no dump has all elements");
    });
}

/// Returns `true` if the kernel is older.
fn is_before(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>());
    let mut next = || numbers.next().unwrap().unwrap();
    (next(), next()) < (major, minor)
}

// The agent gives sizes from Linux 6.12 on.
#[test]
fn a_set_takes_as_many_elements_as_its_size_says_and_can_be_resized() {
    let name = "a_set_takes_as_many_elements_as_its_size_says_and_can_be_resized";
    with_nftables(name, |mut nftables| {
        let family = Family::V4;
        let sized = |size| Set {
            size: Some(size),
            ..Set::new("numbers", &[Field::Ipv4, Field::Port], Data::None)
        };
        let of_set = |nftables: &mut Nftables| {
            let content = nftables.content(family, TABLE).unwrap().unwrap();
            let (set, elements) = &content.sets["numbers"];
            (set.clone(), elements.len())
        };
        let element = |n| (zeros(&[Field::Ipv4, Field::Port], n), Value::Present);
        let add =
            |from, to| Request::AddElements("numbers".into(), (from..to).map(element).collect());
        let requests = [Request::AddTable, Request::AddSet(sized(9)), add(0, 9)];
        nftables.commit(family, TABLE, &requests, None).unwrap();
        assert_eq!(of_set(&mut nftables), (sized(9), 9));

        let full = Err(CommitError::Refused(vec![(0, Errno::ENFILE)]));
        assert_eq!(nftables.commit(family, TABLE, &[add(9, 10)], None), full);
        // One that goes makes room within the transaction.
        let less = Request::DelElements("numbers".into(), vec![element(0)]);
        let requests = [less, add(9, 10)];
        nftables.commit(family, TABLE, &requests, None).unwrap();
        assert_eq!(of_set(&mut nftables), (sized(9), 9));

        let resize = [Request::ResizeSet(sized(100))];
        nftables.commit(family, TABLE, &resize, None).unwrap();
        let (resized, _) = of_set(&mut nftables);
        if is_before(6, 12) && resized == sized(9) {
            return;
        }
        assert_eq!(resized, sized(100));
        nftables
            .commit(family, TABLE, &[add(10, 60)], None)
            .unwrap();
        assert_eq!(of_set(&mut nftables), (sized(100), 59));
    });
}
