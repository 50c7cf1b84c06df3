use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const LIMITS: SourceLimits = SourceLimits {
    places: 8,
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

/// Takes as many places as there are.
fn fill(sources: &Sources, peer: IpAddr, origin: Origin) -> (Vec<Place>, NoPlace) {
    let mut places = Vec::new();
    loop {
        match sources.enter(peer, origin, Instant::now()) {
            Ok(place) => places.push(place),
            Err(reason) => return (places, reason),
        }
    }
}

#[test]
fn a_source_has_its_share_and_gives_it_back() {
    let sources = Sources::new(LIMITS);
    let (first, reason) = fill(&sources, ip(1), Origin::Remote);
    assert_eq!((first.len(), reason), (3, NoPlace::Source));
    let (second, _) = fill(&sources, ip(2), Origin::Remote);
    let (third, reason) = fill(&sources, ip(3), Origin::Remote);
    assert_eq!((second.len(), third.len(), reason), (3, 0, NoPlace::Full));
    drop(first);
    assert_eq!(fill(&sources, ip(3), Origin::Remote).0.len(), 3);
    drop(second);
    assert_eq!(sources.taken(), 0);
    assert!(sources.state().sources.is_empty());
}

#[test]
fn the_reserve_is_for_this_machine() {
    let sources = Sources::new(LIMITS);
    let _strangers = (
        fill(&sources, ip(1), Origin::Remote),
        fill(&sources, ip(2), Origin::Remote),
    );
    let (own, reason) = fill(&sources, parse("::1"), Origin::Own);
    assert_eq!((own.len(), reason), (2, NoPlace::Full));
    // Unused places of strangers are for everybody.
    let sources = Sources::new(LIMITS);
    assert_eq!(fill(&sources, parse("::1"), Origin::Own).0.len(), 8);
}

#[test]
fn an_ipv6_network_is_one_source() {
    let sources = Sources::new(LIMITS);
    for peer in ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::"] {
        std::mem::forget(
            sources
                .enter(parse(peer), Origin::Remote, Instant::now())
                .unwrap(),
        );
    }
    let enter = |peer| sources.enter(parse(peer), Origin::Remote, Instant::now());
    assert_eq!(enter("2001:db8::9").unwrap_err(), NoPlace::Source);
    enter("2001:db8:0:1::9").unwrap();
    // An IPv4 address is the same one in IPv6's clothes.
    let mapped = fill(&sources, parse("::ffff:192.0.2.1"), Origin::Remote).0;
    assert_eq!(mapped.len(), 3);
    assert_eq!(enter("192.0.2.1").unwrap_err(), NoPlace::Source);
}

#[test]
fn our_own_are_loopback_and_the_address_that_was_asked() {
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
    let limits = SourceLimits {
        places: 4,
        reserve: 0,
        ..LIMITS
    };
    let sources = Sources::new(limits);
    let displace = |last| {
        sources
            .displace(ip(last), Origin::Remote, Instant::now())
            .unwrap()
    };
    let quiet = displace(1);
    let many = [displace(2), displace(2), displace(2)];
    let newcomer = displace(3);
    let displaced = many.each_ref().map(Place::is_displaced);
    assert_eq!(
        (quiet.is_displaced(), displaced),
        (false, [true, false, false])
    );
    assert_eq!(sources.taken(), 4);
    // One that has lost its place does not give it back again.
    drop(many);
    assert_eq!(sources.taken(), 2);
    // A source that has all it can have makes room for itself.
    let own = [displace(3), displace(3), displace(3)];
    assert!(newcomer.is_displaced() && !quiet.is_displaced());
    assert!(own.iter().all(|place| !place.is_displaced()));
}

#[test]
fn strangers_displace_nobody_of_this_machine() {
    let sources = Sources::new(LIMITS);
    let (own, _) = fill(&sources, parse("::1"), Origin::Own);
    let stranger = sources.displace(ip(1), Origin::Remote, Instant::now());
    assert_eq!(stranger.unwrap_err(), NoPlace::Full);
    let next = sources.displace(parse("::1"), Origin::Own, Instant::now());
    assert!(own[0].is_displaced() && !next.unwrap().is_displaced());
}

#[tokio::test]
async fn who_is_displaced_learns_of_it() {
    let limits = SourceLimits {
        per_source: 1,
        ..LIMITS
    };
    let sources = Sources::new(limits);
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
fn a_rate_is_for_each_source() {
    let rate = Some(Rate {
        per_second: 2,
        burst: 3,
    });
    let sources = Sources::new(SourceLimits { rate, ..LIMITS });
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
    // Time that runs backwards gives nothing.
    assert!(!spend(1, 0) && spend(1, 1_000));
    let refused = sources.enter(ip(1), Origin::Remote, start).unwrap_err();
    assert_eq!(refused, NoPlace::Rate);
    sources.enter(ip(1), Origin::Own, start).unwrap();
}

#[test]
fn the_memory_for_rates_is_bounded_and_keeps_the_newest() {
    let rate = Some(Rate {
        per_second: 1,
        burst: 1,
    });
    let limits = SourceLimits {
        rate,
        remembered: 100,
        ..LIMITS
    };
    let sources = Sources::new(limits);
    let start = Instant::now();
    let at = |n: u32| start + Duration::from_micros(u64::from(n));
    let spend = |n: u32| sources.spend(IpAddr::from(n.to_be_bytes()), Origin::Remote, at(n));
    for n in 0..10_000 {
        spend(n).unwrap();
        assert!(sources.state().sources.len() <= 100);
        // The last ones cannot come again because others have come.
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
    /// Whatever comes and goes: the limits hold, the reserve can be had, and nothing is lost.
    #[test]
    fn limits_hold(ops in vec(op(), 0..200), rated in any::<bool>()) {
        let rate = rated.then_some(Rate { per_second: 1_000, burst: 20 });
        let sources = Sources::new(SourceLimits { rate, ..LIMITS });
        let start = Instant::now();
        let mut held: Vec<(u8, Origin, Place)> = Vec::new();
        for (ms, op) in (0..).zip(ops) {
            let now = start + Duration::from_millis(ms);
            match op {
                Op::Enter(peer, origin) => {
                    let before = sources.taken();
                    let entered = sources.enter(ip(peer), origin, now);
                    prop_assert_eq!(sources.taken(), before + usize::from(entered.is_ok()));
                    held.extend(entered.ok().map(|place| (peer, origin, place)));
                }
                Op::Displace(peer, origin) => {
                    let before = counts(&held);
                    if let Ok(place) = sources.displace(ip(peer), origin, now) {
                        check_displaced(&before, &counts(&held), peer);
                        held.push((peer, origin, place));
                    }
                }
                Op::Leave(index) if !held.is_empty() => {
                    held.swap_remove(index % held.len());
                }
                Op::Leave(_) => {}
            }
            let all = counts(&held);
            prop_assert_eq!(sources.taken(), all.iter().sum::<usize>());
            prop_assert!(sources.taken() <= LIMITS.places);
            prop_assert!(all[..6].iter().sum::<usize>() <= LIMITS.places - LIMITS.reserve);
            prop_assert!(all[..6].iter().all(|count| *count <= LIMITS.per_source));
            if all[6] < LIMITS.reserve {
                prop_assert!(sources.enter(ip(0), Origin::Own, now).is_ok());
            }
            let tracked = sources.state().sources.len();
            prop_assert!(tracked <= LIMITS.places + LIMITS.remembered);
        }
        held.clear();
        prop_assert_eq!(sources.taken(), 0);
        prop_assert!(sources.state().order.is_empty());
    }
}

/// How many places each remote source has that were not lost, and this machine.
fn counts(held: &[(u8, Origin, Place)]) -> [usize; 7] {
    let mut counts = [0; 7];
    for (peer, origin, place) in held {
        let holder = if *origin == Origin::Own {
            6
        } else {
            usize::from(*peer)
        };
        counts[holder] += usize::from(!place.is_displaced());
    }
    counts
}

/// Only the newcomer's own source or one with the most has lost a place.
fn check_displaced(before: &[usize; 7], after: &[usize; 7], peer: u8) {
    let most = before[..6].iter().max();
    for holder in (0..7).filter(|holder| before[*holder] != after[*holder]) {
        assert_eq!(before[holder], after[holder] + 1);
        let is_most = holder < 6 && Some(&before[holder]) == most;
        assert!(is_most || holder == usize::from(peer) || holder == 6);
    }
}
