// SPDX-License-Identifier: Apache-2.0

//! Single rules and bounds.

use super::properties::{IDS, clusters_of, used_weight};
use super::*;

/// Sums of parts without common divisors, so that their product does not fit into 128 bits.
#[test]
fn huge_numbers_do_not_overflow() {
    let tiers = [["A", "B"], ["C", "D"], ["E", "F"], ["G", "H"]];
    let rules = Rules::new(tiers.iter().map(|tier| alike(tier)).collect()).percent(100);
    let each = (0..8_u32).map(|number| {
        let weights: Vec<u32> = (0..4000)
            .map(|index| 65_535 - (index * 7 + number) % 97)
            .collect();
        // Each tier is ready for a fifth, so that all of them have a load.
        at_step_19(owned(&weights, 20_000))
    });
    let found = rules.shares(&clusters_of(each.collect()));
    assert_eq!(found.loads, [3, 3, 3, 3]);
    let sum: u128 = found.clusters.values().map(|share| share.share).sum();
    for share in found.clusters.values() {
        // An eighth each, up to what own weights differ.
        assert!(
            (share.share * 8000).abs_diff(sum * 1000) < sum * 2,
            "{share:?}"
        );
    }
}

fn at_step_19(cluster: Cluster) -> Cluster {
    Cluster {
        step: 19,
        ..cluster
    }
}

#[test]
fn a_bound_on_endpoints_leaves_shares_alone() {
    let rules = Rules::new(vec![weighted(&[("A", 1), ("B", 1)])]);
    let clusters = clusters([("A", pods(90, 90)), ("B", pods(10, 10))]);
    let found = rules.clone().at_most(20).shares(&clusters);
    let counts: Vec<usize> = found
        .clusters
        .values()
        .map(|share| share.weights.len())
        .collect();
    assert_eq!(counts, [18, 2]);
    let weights: Vec<u128> = found.clusters.values().map(used_weight).collect();
    assert_eq!(weights, [18, 18]);
    let kept = &found.clusters["A"].weights;
    let further = rules.at_most(21).shares(&clusters);
    assert!(
        kept.iter()
            .all(|(address, _)| further.clusters["A"].weight(*address).is_some())
    );
}

#[test]
fn kept_endpoints_are_the_first_of_the_stable_order() {
    let rules = Rules::new(vec![alike(&["A"])]).at_most(10);
    let clusters = clusters([("A", pods(50, 50))]);
    let mut all: Vec<SocketAddr> = (1..=50).map(|number| address(0, number)).collect();
    all.sort_by_key(|address| order_of("local", b"shop/web@clusterset:http/TCP", *address));
    let found = rules.shares(&clusters);
    let kept = found.clusters["A"].weights.iter();
    let kept: Vec<&SocketAddr> = kept.map(|(address, _)| address).collect();
    let mut expected: Vec<&SocketAddr> = all[..10].iter().collect();
    expected.sort();
    assert_eq!(kept, expected);
}

#[test]
fn all_at_once_leaves_a_weak_cluster_of_a_healthy_tier_alone() {
    let rules = Rules::new(vec![weighted(&[("A", 1), ("B", 1)])]).percent(70);
    let clusters = clusters([("A", pods(1, 10)), ("B", pods(40, 40))]);
    let of = |rules: Rules| -> Vec<u128> {
        let found = rules.shares(&clusters);
        found.clusters.values().map(|share| share.share).collect()
    };
    assert_eq!(of(rules.clone().all_at_once()), [1, 1]);
    assert_eq!(of(rules), [1, 10]);
}

#[test]
fn the_fifth_loaded_tier_takes_what_later_ones_could() {
    let tiers: Vec<Tier> = IDS.iter().map(|id| alike(&[id])).collect();
    let rules = Rules::new(tiers).percent(100);
    let each = |ready: [u32; 8]| clusters_of(ready.iter().map(|ready| pods(*ready, 20)).collect());
    let loads = |ready| rules.shares(&each(ready)).loads;
    assert_eq!(loads([1, 1, 0, 1, 1, 1, 0, 0]), [1, 1, 0, 1, 1, 1, 0, 0]);
    assert_eq!(loads([1, 1, 0, 1, 1, 1, 2, 3]), [1, 1, 0, 1, 1, 6, 0, 0]);
    assert_eq!(loads([1, 1, 0, 1, 1, 1, 20, 0]), [1, 1, 0, 1, 1, 16, 0, 0]);
}

#[test]
fn terminating_endpoints_are_healthy_if_nothing_else_is_expected() {
    for spill_over in [SpillOver::AllAtOnce, SpillOver::Proportional] {
        assert_eq!(health(3, 0, Threshold::Percent(70), spill_over), 20);
        assert_eq!(health(0, 0, Threshold::Percent(70), spill_over), 0);
    }
}

#[test]
fn schedulers_follow_the_weights_and_wishes() {
    let of = |scheduling, sizes: [u32; 2]| {
        let mut rules = Rules::new(vec![weighted(&[("A", 1), ("B", 1)])]);
        rules.scheduling = scheduling;
        let [a, b] = sizes;
        rules
            .shares(&clusters([("A", pods(a, a)), ("B", pods(b, b))]))
            .scheduler
    };
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(of(Scheduling::Default, [2, 2]), None);
    assert_eq!(of(Scheduling::Default, [2, 3]), named("wrr"));
    assert_eq!(of(Scheduling::Affinity, [2, 2]), None);
    assert_eq!(of(Scheduling::Affinity, [2, 3]), named("mh"));
    assert_eq!(of(Scheduling::Named("wlc"), [2, 2]), named("wlc"));
}
