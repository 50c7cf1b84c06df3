// SPDX-License-Identifier: Apache-2.0

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;

fn range(text: &str) -> Range {
    Range::new(text.parse().unwrap())
}

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn name(name: &str) -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A claim of an IPv4 address.
fn claim(import: &str, created: i64, ips: &[IpAddr]) -> Claim {
    Claim {
        name: name(import),
        created: Some(created),
        families: vec![Family::V4],
        ips: ips.to_vec(),
    }
}

fn given(vips: &mut Vips, claim: &Claim, now: u64) -> IpAddr {
    let allocations = vips.allocate(std::slice::from_ref(claim), at(now));
    allocations[&claim.name].ips[0]
}

#[test]
fn a_range_has_no_network_and_broadcast_address() {
    let cases = [
        ("10.112.0.0/16", 65_534, "10.112.0.1", "10.112.255.254"),
        ("10.112.0.4/30", 2, "10.112.0.5", "10.112.0.6"),
        ("10.112.0.4/31", 2, "10.112.0.4", "10.112.0.5"),
        ("10.112.0.4/32", 1, "10.112.0.4", "10.112.0.4"),
        (
            "fd00:112::/108",
            (1 << 20) - 1,
            "fd00:112::1",
            "fd00:112::f:ffff",
        ),
        (
            "fd00::/8",
            (1 << 63) - 1,
            "fd00::1",
            "fd00::7fff:ffff:ffff:ffff",
        ),
        ("fd00::4/127", 2, "fd00::4", "fd00::5"),
    ];
    for (network, size, first, last) in cases {
        let range = range(network);
        assert_eq!(range.size(), size, "{network}");
        assert_eq!(range.nth(0, 0), ip(first), "{network}");
        assert_eq!(range.nth(size - 1, 0), ip(last), "{network}");
        assert_eq!(range.nth(size - 1, 1), ip(first), "{network}");
        assert!(range.contains(ip(first)) && range.contains(ip(last)));
    }
    let range = range("10.112.0.0/16");
    for outside in [
        "10.112.0.0",
        "10.112.255.255",
        "10.111.255.255",
        "10.113.0.1",
        "fd00::1",
    ] {
        assert!(!range.contains(ip(outside)), "{outside}");
    }
}

#[test]
fn the_first_address_depends_on_the_name_alone() {
    let allocate = |import: &str| {
        let mut vips = Vips::new([range("10.112.0.0/16")]);
        given(&mut vips, &claim(import, 0, &[]), 0)
    };
    assert_eq!(allocate("web"), ip("10.112.106.168"));
    assert_eq!(allocate("web"), allocate("web"));
    assert_ne!(allocate("web"), allocate("db"));
}

#[test]
fn families_are_in_the_order_of_the_claim() {
    let mut vips = Vips::new([range("10.112.0.0/16"), range("fd00:112::/108")]);
    let mut both = claim("web", 0, &[]);
    both.families = vec![Family::V6, Family::V4];
    let found = vips
        .allocate(&[both.clone()], at(0))
        .remove(&both.name)
        .unwrap();
    let families: Vec<Family> = found.ips.iter().map(|ip| Family::of(*ip)).collect();
    assert_eq!(families, both.families);
    // One address is there: it stays, and the other one comes.
    both.ips = vec![ip("10.112.0.77")];
    let mut vips = Vips::new([range("10.112.0.0/16"), range("fd00:112::/108")]);
    let again = vips
        .allocate(&[both.clone()], at(0))
        .remove(&both.name)
        .unwrap();
    assert_eq!(again.ips, [found.ips[0], ip("10.112.0.77")]);
}

#[test]
fn an_address_stays_while_the_import_has_it() {
    let mut vips = Vips::new([range("10.112.0.0/16")]);
    let present = claim("web", 5, &[ip("10.112.0.9")]);
    assert_eq!(given(&mut vips, &present, 0), ip("10.112.0.9"));
    // Another replica takes over and knows nothing.
    let mut other = Vips::new([range("10.112.0.0/16")]);
    assert_eq!(given(&mut other, &present, 0), ip("10.112.0.9"));
    // What is allocated and not written yet stays, too.
    let first = given(&mut other, &claim("db", 6, &[]), 1);
    assert_eq!(given(&mut other, &claim("db", 6, &[]), 2), first);
}

#[test]
fn of_two_with_one_address_the_older_keeps_it() {
    let taken = ip("10.112.0.9");
    let mut vips = Vips::new([range("10.112.0.0/16")]);
    let claims = [
        claim("young", 20, &[taken]),
        claim("old", 10, &[taken]),
        Claim {
            created: None,
            ..claim("unknown", 0, &[taken])
        },
    ];
    let found = vips.allocate(&claims, at(0));
    assert_eq!(found[&name("old")].ips, [taken]);
    assert_eq!(found[&name("old")].problems, []);
    for other in ["young", "unknown"] {
        let allocation = &found[&name(other)];
        assert_ne!(allocation.ips, [taken]);
        let problem = VipProblem::Taken {
            address: taken,
            holder: name("old"),
        };
        assert_eq!(allocation.problems, [problem]);
    }
}

#[test]
fn a_foreign_address_is_replaced() {
    let mut vips = Vips::new([range("10.112.0.0/16")]);
    for foreign in ["10.96.0.1", "10.112.255.255"] {
        let found = vips.allocate(&[claim("web", 0, &[ip(foreign)])], at(0));
        let allocation = &found[&name("web")];
        assert!(range("10.112.0.0/16").contains(allocation.ips[0]));
        assert_eq!(allocation.problems, [VipProblem::Foreign(ip(foreign))]);
    }
    // After a change of ranges all addresses are foreign.
    let old = given(&mut vips, &claim("web", 0, &[]), 0);
    vips.set_ranges([range("10.113.0.0/16")]);
    assert!(range("10.113.0.0/16").contains(given(&mut vips, &claim("web", 0, &[old]), 0)));
}

#[test]
fn the_address_of_a_deleted_import_is_held_for_ten_minutes() {
    let mut vips = Vips::new([range("10.112.0.4/32")]);
    let only = given(&mut vips, &claim("web", 0, &[]), 0);
    assert!(vips.allocate(&[], at(100)).is_empty());
    assert_eq!(vips.held(), BTreeSet::from([only]));
    let other = claim("db", 0, &[]);
    let full = |vips: &mut Vips, now| {
        let claims = std::slice::from_ref(&other);
        vips.allocate(claims, at(now))[&other.name].clone()
    };
    assert_eq!(
        full(&mut vips, 699).problems,
        [VipProblem::Full(Family::V4)]
    );
    assert_eq!(full(&mut vips, 700).ips, [only]);
    // The import itself gets it back at once.
    let mut vips = Vips::new([range("10.112.0.4/32")]);
    given(&mut vips, &claim("web", 0, &[]), 0);
    vips.allocate(&[], at(100));
    assert_eq!(given(&mut vips, &claim("web", 0, &[]), 101), only);
}

#[test]
fn an_address_freed_by_a_clock_that_was_ahead_is_held_no_longer_than_others() {
    let mut vips = Vips::new([range("10.112.0.4/32")]);
    let only = given(&mut vips, &claim("web", 0, &[]), 86_400);
    assert!(vips.allocate(&[], at(86_400)).is_empty());
    let other = claim("db", 0, &[]);
    let mut ips = |now| {
        let claims = std::slice::from_ref(&other);
        vips.allocate(claims, at(now))[&other.name].ips.clone()
    };
    assert!(ips(0).is_empty());
    assert!(ips(HELD.as_secs() - 1).is_empty());
    assert_eq!(ips(HELD.as_secs()), [only]);
}

#[test]
fn a_full_range_and_no_range_are_problems_of_those_without_an_address() {
    let mut vips = Vips::new([range("10.112.0.4/31")]);
    let mut both = claim("c", 3, &[]);
    both.families = vec![Family::V4, Family::V6];
    let found = vips.allocate(&[both, claim("a", 1, &[]), claim("b", 2, &[])], at(0));
    assert_eq!(found[&name("a")].ips.len() + found[&name("b")].ips.len(), 2);
    let problems = [
        VipProblem::Full(Family::V4),
        VipProblem::NoRange(Family::V6),
    ];
    assert_eq!(found[&name("c")].problems, problems);
}

#[test]
fn all_addresses_of_a_range_are_given() {
    let mut vips = Vips::new([range("10.112.0.0/26")]);
    let claims: Vec<Claim> = (0..62)
        .map(|number| claim(&number.to_string(), number, &[]))
        .collect();
    let found = vips.allocate(&claims, at(0));
    let given: BTreeSet<IpAddr> = found.values().flat_map(|one| one.ips.clone()).collect();
    assert_eq!(given.len(), 62);
}

/// Event between two allocations.
#[derive(Debug, Clone)]
enum Event {
    Create(usize),
    Delete(usize),
    /// Somebody writes an address, the address of another import perhaps.
    Write(usize, Option<u32>),
    /// A new replica allocates.
    Replace,
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0..12_usize).prop_map(Event::Create),
        2 => (0..12_usize).prop_map(Event::Delete),
        1 => (0..12_usize, option::of(0..20_u32)).prop_map(|(of, ip)| Event::Write(of, ip)),
        1 => Just(Event::Replace),
        2 => (0..700_u64).prop_map(Event::Wait),
    ]
}

fn ranges() -> impl Strategy<Value = Vec<&'static str>> {
    select(vec![
        vec!["10.112.0.0/28"],
        vec!["10.112.0.0/30", "fd00:112::/108"],
        vec!["fd00:112::/125"],
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn addresses_are_within_unique_and_stable(
        networks in ranges(),
        events in vec(event(), 1..60),
    ) {
        let ranges: Vec<Range> = networks.iter().map(|text| range(text)).collect();
        let families: Vec<Family> = ranges.iter().map(|range| range.family()).collect();
        let mut vips = Vips::new(ranges.clone());
        let mut imports: BTreeMap<usize, Claim> = BTreeMap::new();
        // Since when an address has been free, and of whom it was, as far as one replica knows.
        let mut freed: BTreeMap<IpAddr, (ImportName, u64)> = BTreeMap::new();
        let mut now = 1000;
        for (number, event) in events.into_iter().enumerate() {
            match event {
                Event::Create(index) => {
                    imports.entry(index).or_insert_with(|| Claim {
                        families: families.clone(),
                        ..claim(&index.to_string(), i64::try_from(number).unwrap(), &[])
                    });
                }
                Event::Delete(index) => {
                    if let Some(claim) = imports.remove(&index) {
                        for ip in claim.ips {
                            freed.entry(ip).or_insert((claim.name.clone(), now));
                        }
                    }
                }
                Event::Write(index, offset) => {
                    if let Some(claim) = imports.get_mut(&index) {
                        let written = offset.map(|offset| IpAddr::from([10, 112, 0, u8::try_from(offset).unwrap()]));
                        claim.ips = written.into_iter().collect();
                    }
                }
                Event::Replace => {
                    vips = Vips::new(ranges.clone());
                    freed.clear();
                }
                Event::Wait(seconds) => now += seconds,
            }
            let claims: Vec<Claim> = imports.values().cloned().collect();
            let found = vips.allocate(&claims, at(now));
            prop_assert_eq!(found.len(), imports.len());
            let mut all = BTreeSet::new();
            for claim in imports.values_mut() {
                let allocation = &found[&claim.name];
                for ip in &allocation.ips {
                    prop_assert!(ranges.iter().any(|range| range.contains(*ip)), "{} outside", ip);
                    prop_assert!(all.insert(*ip), "{} twice", ip);
                    if !claim.ips.contains(ip) && let Some((of, since)) = freed.get(ip) {
                        prop_assert!(*of == claim.name || now - since >= 600, "{} too early", ip);
                    }
                    freed.remove(ip);
                }
                if allocation.problems.is_empty() {
                    prop_assert_eq!(allocation.ips.len(), families.len());
                    // What was there stays.
                    let wanted = |ip: &&IpAddr| families.contains(&Family::of(**ip));
                    let mut present = claim.ips.iter().filter(wanted);
                    prop_assert!(present.all(|ip| allocation.ips.contains(ip)));
                }
                claim.ips = allocation.ips.clone();
            }
            // The same claims have the same addresses, in any order and for any replica.
            let again: Vec<Claim> = imports.values().rev().cloned().collect();
            let ips = |found: BTreeMap<ImportName, Allocation>| {
                found.into_iter().map(|(name, one)| (name, one.ips)).collect::<Vec<_>>()
            };
            let first = ips(found);
            prop_assert_eq!(&ips(vips.allocate(&again, at(now))), &first);
        }
    }
}
