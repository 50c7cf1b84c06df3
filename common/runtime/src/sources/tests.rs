// SPDX-License-Identifier: Apache-2.0

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LIMITS: SlotLimits = SlotLimits {
    slots: 8,
    reserve: 2,
    per_source: 3,
    rate: None,
    remembered: 4,
};

fn ip(last: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, last])
}

fn parse(ip: &str) -> IpAddr {
    ip.parse().unwrap()
}

/// Acquires all available slots.
fn fill(sources: &ConnectionSlots, peer: IpAddr, origin: Origin) -> (Vec<Slot>, SlotError) {
    let mut slots = Vec::new();
    loop {
        match sources.enter(peer, origin, Instant::now()) {
            Ok(slot) => slots.push(slot),
            Err(reason) => return (slots, reason),
        }
    }
}

#[test]
fn a_source_acquires_its_share_and_releases_it() {
    let sources = ConnectionSlots::new(LIMITS);
    let (first, reason) = fill(&sources, ip(1), Origin::Remote);
    assert_eq!((first.len(), reason), (3, SlotError::Source));
    let (second, _) = fill(&sources, ip(2), Origin::Remote);
    let (third, reason) = fill(&sources, ip(3), Origin::Remote);
    assert_eq!((second.len(), third.len(), reason), (3, 0, SlotError::Full));
    drop(first);
    assert_eq!(fill(&sources, ip(3), Origin::Remote).0.len(), 3);
    drop(second);
    assert_eq!(sources.taken(), 0);
    assert!(sources.state().sources.is_empty());
}

#[test]
fn the_reserve_is_for_this_machine() {
    let sources = ConnectionSlots::new(LIMITS);
    let _strangers = (
        fill(&sources, ip(1), Origin::Remote),
        fill(&sources, ip(2), Origin::Remote),
    );
    let (own, reason) = fill(&sources, parse("::1"), Origin::Own);
    assert_eq!((own.len(), reason), (2, SlotError::Full));
    // Slots that remote sources do not use are available to this machine.
    let sources = ConnectionSlots::new(LIMITS);
    assert_eq!(fill(&sources, parse("::1"), Origin::Own).0.len(), 8);
}

#[test]
fn an_ipv6_network_is_one_source() {
    let sources = ConnectionSlots::new(LIMITS);
    for peer in ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::"] {
        std::mem::forget(
            sources
                .enter(parse(peer), Origin::Remote, Instant::now())
                .unwrap(),
        );
    }
    let enter = |peer| sources.enter(parse(peer), Origin::Remote, Instant::now());
    assert_eq!(enter("2001:db8::9").unwrap_err(), SlotError::Source);
    enter("2001:db8:0:1::9").unwrap();
    // An IPv4-mapped IPv6 address is the IPv4 address.
    let mapped = fill(&sources, parse("::ffff:192.0.2.1"), Origin::Remote).0;
    assert_eq!(mapped.len(), 3);
    assert_eq!(enter("192.0.2.1").unwrap_err(), SlotError::Source);
}

#[test]
fn loopback_and_the_local_address_are_this_machine() {
    for (peer, local, origin) in [
        ("127.0.0.9", "127.0.0.1", Origin::Own),
        ("::1", "::1", Origin::Own),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", Origin::Own),
        ("10.0.0.1", "::ffff:10.0.0.1", Origin::Own),
        ("10.0.0.2", "10.0.0.1", Origin::Remote),
        ("fd00::2", "fd00::1", Origin::Remote),
    ] {
        assert_eq!(Origin::of(parse(peer), parse(local)), origin, "{peer}");
    }
}

#[test]
fn a_newcomer_displaces_the_oldest_of_the_source_with_the_most() {
    let limits = SlotLimits {
        slots: 4,
        reserve: 0,
        ..LIMITS
    };
    let sources = ConnectionSlots::new(limits);
    let displace = |last| {
        sources
            .displace(ip(last), Origin::Remote, Instant::now())
            .unwrap()
    };
    let quiet = displace(1);
    let many = [displace(2), displace(2), displace(2)];
    let newcomer = displace(3);
    let displaced = many.each_ref().map(Slot::is_displaced);
    assert_eq!(
        (quiet.is_displaced(), displaced),
        (false, [true, false, false])
    );
    assert_eq!(sources.taken(), 4);
    // A displaced slot is not released twice.
    drop(many);
    assert_eq!(sources.taken(), 2);
    // A source at its limit displaces itself.
    let own = [displace(3), displace(3), displace(3)];
    assert!(newcomer.is_displaced() && !quiet.is_displaced());
    assert!(own.iter().all(|slot| !slot.is_displaced()));
}

#[test]
fn remote_sources_do_not_displace_this_machine() {
    let sources = ConnectionSlots::new(LIMITS);
    let (own, _) = fill(&sources, parse("::1"), Origin::Own);
    let stranger = sources.displace(ip(1), Origin::Remote, Instant::now());
    assert_eq!(stranger.unwrap_err(), SlotError::Full);
    let next = sources.displace(parse("::1"), Origin::Own, Instant::now());
    assert!(own[0].is_displaced() && !next.unwrap().is_displaced());
}

#[tokio::test]
async fn a_displaced_holder_is_notified() {
    let limits = SlotLimits {
        per_source: 1,
        ..LIMITS
    };
    let sources = ConnectionSlots::new(limits);
    let first = sources
        .displace(ip(1), Origin::Remote, Instant::now())
        .unwrap();
    let waits = tokio::spawn(async move { first.displaced().await });
    let _next = sources
        .displace(ip(1), Origin::Remote, Instant::now())
        .unwrap();
    waits.await.unwrap();
}

#[test]
fn each_source_has_its_own_rate() {
    let rate = Some(Rate {
        per_second: 2,
        burst: 3,
    });
    let sources = ConnectionSlots::new(SlotLimits { rate, ..LIMITS });
    let start = Instant::now();
    let spend = |last, after| {
        let now = start + Duration::from_millis(after);
        sources.spend(ip(last), Origin::Remote, now).is_ok()
    };
    assert_eq!(
        [0; 4].map(|after| spend(1, after)),
        [true, true, true, false]
    );
    assert!(spend(2, 0) && !spend(1, 400) && spend(1, 500) && !spend(1, 500));
    // Time that runs backwards adds no tokens.
    assert!(!spend(1, 0) && spend(1, 1_000));
    let refused = sources.enter(ip(1), Origin::Remote, start).unwrap_err();
    assert_eq!(refused, SlotError::Rate);
    sources.enter(ip(1), Origin::Own, start).unwrap();
}

#[test]
fn remembered_rates_are_bounded_and_the_newest_are_kept() {
    let rate = Some(Rate {
        per_second: 1,
        burst: 1,
    });
    let limits = SlotLimits {
        rate,
        remembered: 100,
        ..LIMITS
    };
    let sources = ConnectionSlots::new(limits);
    let start = Instant::now();
    let at = |n: u32| start + Duration::from_micros(u64::from(n));
    let spend = |n: u32| sources.spend(IpAddr::from(n.to_be_bytes()), Origin::Remote, at(n));
    for n in 0..10_000 {
        spend(n).unwrap();
        assert!(sources.state().sources.len() <= 100);
        // Recent sources are not forgotten because of newer ones.
        if let Some(last) = n.checked_sub(20) {
            let last = IpAddr::from(last.to_be_bytes());
            assert!(sources.spend(last, Origin::Remote, at(n)).is_err());
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Op {
    Enter(u8, Origin),
    Displace(u8, Origin),
    Leave(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let origin = || prop_oneof![4 => Just(Origin::Remote), 1 => Just(Origin::Own)];
    prop_oneof![
        3 => (0..6_u8, origin()).prop_map(|(peer, origin)| Op::Enter(peer, origin)),
        3 => (0..6_u8, origin()).prop_map(|(peer, origin)| Op::Displace(peer, origin)),
        4 => any::<usize>().prop_map(Op::Leave),
    ]
}

proptest! {
    /// Limits hold, the reserve is available and no slot leaks, for any sequence of operations.
    #[test]
    fn limits_hold(ops in vec(op(), 0..200), rated in any::<bool>()) {
        let rate = rated.then_some(Rate { per_second: 1_000, burst: 20 });
        let sources = ConnectionSlots::new(SlotLimits { rate, ..LIMITS });
        let start = Instant::now();
        let mut held: Vec<(u8, Origin, Slot)> = Vec::new();
        for (ms, op) in (0..).zip(ops) {
            let now = start + Duration::from_millis(ms);
            match op {
                Op::Enter(peer, origin) => {
                    let before = sources.taken();
                    let entered = sources.enter(ip(peer), origin, now);
                    prop_assert_eq!(sources.taken(), before + usize::from(entered.is_ok()));
                    held.extend(entered.ok().map(|slot| (peer, origin, slot)));
                }
                Op::Displace(peer, origin) => {
                    let before = counts(&held);
                    if let Ok(slot) = sources.displace(ip(peer), origin, now) {
                        check_displaced(&before, &counts(&held), peer);
                        held.push((peer, origin, slot));
                    }
                }
                Op::Leave(index) if !held.is_empty() => {
                    held.swap_remove(index % held.len());
                }
                Op::Leave(_) => {}
            }
            let all = counts(&held);
            prop_assert_eq!(sources.taken(), all.iter().sum::<usize>());
            prop_assert!(sources.taken() <= LIMITS.slots);
            prop_assert!(all[..6].iter().sum::<usize>() <= LIMITS.slots - LIMITS.reserve);
            prop_assert!(all[..6].iter().all(|count| *count <= LIMITS.per_source));
            if all[6] < LIMITS.reserve {
                prop_assert!(sources.enter(ip(0), Origin::Own, now).is_ok());
            }
            let tracked = sources.state().sources.len();
            prop_assert!(tracked <= LIMITS.slots + LIMITS.remembered);
        }
        held.clear();
        prop_assert_eq!(sources.taken(), 0);
        prop_assert!(sources.state().order.is_empty());
    }
}

/// Slots that were not displaced, of each remote source and of this machine.
fn counts(held: &[(u8, Origin, Slot)]) -> [usize; 7] {
    let mut counts = [0; 7];
    for (peer, origin, slot) in held {
        let holder = if *origin == Origin::Own {
            6
        } else {
            usize::from(*peer)
        };
        counts[holder] += usize::from(!slot.is_displaced());
    }
    counts
}

/// Checks that only the newcomer's own source or one with the most was displaced.
fn check_displaced(before: &[usize; 7], after: &[usize; 7], peer: u8) {
    let most = before[..6].iter().max();
    for holder in (0..7).filter(|holder| before[*holder] != after[*holder]) {
        assert_eq!(before[holder], after[holder] + 1);
        let is_most = holder < 6 && Some(&before[holder]) == most;
        assert!(is_most || holder == usize::from(peer) || holder == 6);
    }
}
