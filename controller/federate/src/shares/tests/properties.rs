// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::wrr::{Wrr, servers};
use super::*;

pub(super) const IDS: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];

fn cluster() -> impl Strategy<Value = Cluster> {
    let own = select(&[0_u32, 1, 1, 1, 1, 1, 2, 3, 7, 65_535][..]);
    let step = select(&[20_u8, 20, 20, 20, 0, 1, 7, 19][..]);
    (
        vec(own, 0..14),
        0..6_u32,
        step,
        any::<bool>(),
        0..5_u8,
        1..40_u32,
    )
        .prop_map(|(weights, missing, step, drained, kind, behind)| {
            let usable = weights.iter().filter(|weight| **weight > 0).count();
            let ready = u32::try_from(usable).unwrap();
            let gateway = kind == 0 && ready > 0;
            let ready = if gateway { behind } else { ready };
            Cluster {
                ready,
                expected: ready + missing,
                step,
                drained,
                gateway,
                ..owned(&weights, 0)
            }
        })
}

/// Tiers of some of the clusters, each in one.
fn tiers() -> impl Strategy<Value = Vec<Tier>> {
    let weight = prop_oneof![0..4_u16, 0..1001_u16];
    let places = vec((0..8_usize, weight), IDS.len());
    (places, vec(any::<bool>(), 7)).prop_map(|(places, weighted)| {
        let mut tiers: Vec<Vec<(Arc<str>, u16)>> = vec![Vec::new(); 7];
        for (id, (tier, weight)) in IDS.iter().zip(places) {
            if let Some(tier) = tiers.get_mut(tier) {
                tier.push((Arc::from(*id), weight));
            }
        }
        let tiers = tiers.into_iter().zip(weighted);
        tiers
            .map(|(tier, weighted)| {
                if weighted {
                    Tier::Weighted(tier)
                } else {
                    Tier::Alike(tier.into_iter().map(|(id, _)| id).collect())
                }
            })
            .collect()
    })
}

prop_compose! {
    fn rules()(
        tiers in tiers(),
        least in prop_oneof![
            (1..101_u8).prop_map(Threshold::Percent),
            (1..20_u32).prop_map(Threshold::Number),
        ],
        spill_over in select(&[SpillOver::Proportional, SpillOver::AllAtOnce][..]),
        panic_threshold in select(&[0_u8, 0, 30, 100][..]),
        max_endpoints in select(&[4000_u32, 4000, 4000, 20, 1][..]),
        scheduling in select(&[Scheduling::Default, Scheduling::Affinity][..]),
    ) -> Rules {
        Rules {
            tiers,
            min_healthy: least,
            spill_over,
            panic_threshold,
            max_endpoints,
            scheduling,
        }
    }
}

fn world() -> impl Strategy<Value = (Rules, BTreeMap<Arc<str>, Cluster>)> {
    let clusters = vec(cluster(), IDS.len());
    (rules(), clusters).prop_map(|(rules, each)| (rules, clusters_of(each)))
}

pub(super) fn clusters_of(each: Vec<Cluster>) -> BTreeMap<Arc<str>, Cluster> {
    clusters(IDS.into_iter().zip(each))
}

pub(super) fn used_weight(share: &Share) -> u128 {
    share
        .weights
        .iter()
        .map(|(_, weight)| u128::from(*weight))
        .sum()
}

/// The weight that a tier gives a cluster; 1 without weights, 0 if it is in no tier.
fn tier_weight(rules: &Rules, id: &str) -> u16 {
    let found = rules.tiers.iter().find_map(|tier| match tier {
        Tier::Alike(ids) => ids.iter().any(|other| **other == *id).then_some(1),
        Tier::Weighted(ids) => {
            let mut ids = ids.iter();
            ids.find(|(other, _)| **other == *id)
                .map(|(_, weight)| *weight)
        }
    });
    found.unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn connections_follow_the_shares((rules, clusters) in world()) {
        let found = rules.shares(&clusters);
        let share_sum: u128 = found.clusters.values().map(|share| share.share).sum();
        let total_sum: u128 = found.clusters.values().map(|share| share.total).sum();
        let weight_sum: u128 = found.clusters.values().map(used_weight).sum();
        let ones = found.clusters.values().filter(|share| share.total == 1).count() as u128;
        let count = found.clusters.len() as u128;
        for share in found.clusters.values() {
            // Weights are the totals without their common divisor.
            prop_assert_eq!(used_weight(share) * total_sum, share.total * weight_sum);
            let error = (share.total * share_sum).abs_diff(share.share * total_sum);
            match found.precision {
                Precision::Exact => prop_assert_eq!(error, 0),
                Precision::Capped { error_permille } => {
                    prop_assert!(2 * error <= (count + 2 * ones) * share_sum);
                    let permille = u128::from(error_permille) * share_sum * total_sum;
                    prop_assert!(1000 * error <= permille);
                }
            }
        }
    }

    #[test]
    fn weights_fit_the_kernel((rules, clusters) in world()) {
        let found = rules.shares(&clusters);
        let weights: Vec<u32> = found
            .clusters
            .values()
            .flat_map(|share| share.weights.iter().map(|(_, weight)| *weight))
            .collect();
        let most = rules.scheduling.max_weight();
        prop_assert!(weights.iter().all(|weight| (1..=most).contains(weight)));
        let limit = rules.max_endpoints as usize + found.clusters.len();
        prop_assert!(weights.len() <= limit);
        let unequal = weights.iter().any(|weight| *weight != 1);
        prop_assert_eq!(found.scheduler.is_some(), unequal);
    }

    #[test]
    fn who_has_nothing_or_no_weight_gets_nothing((rules, clusters) in world()) {
        let found = rules.shares(&clusters);
        for (id, share) in &found.clusters {
            let cluster = &clusters[id];
            prop_assert!(cluster.ready > 0);
            prop_assert!(cluster.step > 0 || found.panic && !cluster.drained);
            prop_assert!(tier_weight(&rules, id) > 0);
            prop_assert!(!share.weights.is_empty());
            let known = cluster.endpoints.iter().filter(|endpoint| endpoint.usable);
            let known: Vec<SocketAddr> = known.map(|endpoint| endpoint.address).collect();
            prop_assert!(share.weights.iter().all(|(address, _)| known.contains(address)));
        }
        // Something is used if there is anything to use.
        let usable = clusters.iter().any(|(id, cluster)| {
            cluster.ready > 0 && cluster.step > 0 && tier_weight(&rules, id) > 0
        });
        prop_assert!(!usable || !found.clusters.is_empty());
    }

    #[test]
    fn tiers_get_their_loads((rules, clusters) in world()) {
        let found = rules.shares(&clusters);
        let load_sum: u32 = found.loads.iter().sum();
        prop_assert!(load_sum <= TWENTIETHS);
        prop_assert!(found.loads.iter().filter(|load| **load > 0).count() <= MAX_LOADED_TIERS);
        let share_sum: u128 = found.clusters.values().map(|share| share.share).sum();
        for (tier, load) in found.loads.iter().enumerate() {
            let of_tier = found.clusters.values().filter(|share| share.tier == tier);
            let of_tier: u128 = of_tier.map(|share| share.share).sum();
            prop_assert_eq!(of_tier * u128::from(load_sum), u128::from(*load) * share_sum);
        }
        // Nothing goes to a tier while an earlier one has health left.
        if !found.panic {
            for (index, load) in found.loads.iter().enumerate() {
                let later: u32 = found.loads[index + 1..].iter().sum();
                prop_assert!(later == 0 || *load >= found.health[index]);
            }
        }
    }

    #[test]
    fn first_tiers_that_take_all_need_no_others((rules, clusters) in world(), tiers in 1..7_usize) {
        let first = rules.tiers.iter().take(tiers).flat_map(Tier::ids);
        let first: BTreeSet<_> = first.collect();
        let mut known = clusters.clone();
        known.retain(|id, _| first.contains(id));
        if is_settled(&rules.input(&known), tiers) {
            let (of_first, of_all) = (rules.shares(&known), rules.shares(&clusters));
            prop_assert_eq!(of_first.clusters, of_all.clusters);
            prop_assert_eq!(of_first.scheduler, of_all.scheduler);
            prop_assert_eq!(of_first.precision, of_all.precision);
            prop_assert_eq!(of_first.panic, of_all.panic);
        }
    }

    #[test]
    fn order_means_nothing((rules, clusters) in world()) {
        let found = rules.shares(&clusters);
        let mut turned = rules.clone();
        for tier in &mut turned.tiers {
            match tier {
                Tier::Alike(ids) => ids.reverse(),
                Tier::Weighted(ids) => ids.reverse(),
            }
        }
        let mut turned_clusters = clusters.clone();
        for cluster in turned_clusters.values_mut() {
            cluster.endpoints.reverse();
        }
        prop_assert_eq!(turned.shares(&turned_clusters), found);
    }

    #[test]
    fn names_mean_nothing((rules, clusters) in world()) {
        let renamed = |id: &Arc<str>| -> Arc<str> {
            let index = IDS.iter().position(|other| **other == **id).unwrap();
            format!("z{}", IDS.len() - index).into()
        };
        let mut other_rules = rules.clone();
        for tier in &mut other_rules.tiers {
            match tier {
                Tier::Alike(ids) => ids.iter_mut().for_each(|id| *id = renamed(id)),
                Tier::Weighted(ids) => ids.iter_mut().for_each(|(id, _)| *id = renamed(id)),
            }
        }
        let other_clusters = clusters.iter().map(|(id, one)| (renamed(id), one.clone()));
        let other = other_rules.shares(&other_clusters.collect());
        let mut found = rules.shares(&clusters);
        found.clusters = found
            .clusters
            .iter()
            .map(|(id, share)| (renamed(id), share.clone()))
            .collect();
        prop_assert_eq!(other, found);
    }

    #[test]
    fn a_change_of_endpoints_stays_in_its_cluster(
        sizes in vec(1..40_u32, 3),
        weights in vec(1..100_u16, 3),
        more in 1..5_u32,
    ) {
        let tier = IDS.into_iter().zip(weights.iter().copied()).collect::<Vec<_>>();
        let rules = Rules::new(vec![weighted(&tier)]);
        let before = clusters(IDS.into_iter().zip(sizes.iter().map(|size| pods(*size, *size))));
        let mut after = before.clone();
        let grown = clusters([("A", pods(sizes[0] + more, sizes[0] + more))]);
        after.extend(grown);
        let (before, after) = (rules.shares(&before), rules.shares(&after));
        let exact = |shares: &Shares| shares.precision == Precision::Exact;
        let multiple = |shares: &Shares| {
            let share = &shares.clusters["A"];
            share.total / share.share
        };
        prop_assume!(exact(&before) && exact(&after) && multiple(&before) == multiple(&after));
        for id in ["B", "C"] {
            prop_assert_eq!(&before.clusters[id], &after.clusters[id]);
        }
        prop_assert_eq!(before.clusters["A"].total, after.clusters["A"].total);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_kernel_serves_each_weight_once_a_cycle((rules, clusters) in world()) {
        let found = rules.shares(&clusters);
        prop_assume!(!found.clusters.is_empty());
        let (_, _, weights) = servers(&found);
        let mut wrr = Wrr::new(weights.clone());
        for _ in 0..2 {
            let mut counts = vec![0_i64; weights.len()];
            for _ in 0..wrr.cycle() {
                counts[wrr.schedule()] += 1;
            }
            prop_assert_eq!(&counts, &weights);
        }
    }
}

/// The generator makes worlds whose first tiers take all, and whose later ones are in use otherwise.
#[test]
fn some_first_tiers_take_all() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let settled = (0..200).filter(|_| {
        let (rules, clusters) = world().new_tree(&mut runner).unwrap().current();
        (1..7).any(|tiers| is_settled(&rules.input(&clusters), tiers))
    });
    let settled = settled.count();
    assert!((20..180).contains(&settled), "{settled} of 200");
}
