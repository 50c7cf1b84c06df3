// SPDX-License-Identifier: Apache-2.0

//! Steps 4 and 5: the shares of clusters in their tier, and in all.

use portolan_policy::Threshold;
use portolan_policy::spec::SpillOver;

use super::arithmetic::reduced;
use super::health::health;
use super::{Candidate, TWENTIETHS};

/// The bits that the product of all tiers' sums may have. With the load's 5 and the 24 of a bound on
/// weights (step 6) all products stay below 2^128.
const PRODUCT_BITS: u32 = 96;

/// A cluster with its share in all.
#[derive(Debug)]
pub(super) struct Sharer<'a> {
    pub(super) candidate: Candidate<'a>,
    pub(super) tier: usize,
    pub(super) share: u128,
}

/// Step 4: the part of each cluster in its tier, without a common divisor, for tiers with a load.
pub(super) fn parts(
    tiers: &[Vec<Candidate<'_>>],
    loads: &[u32],
    least: Threshold,
    spill_over: SpillOver,
) -> Vec<Vec<u128>> {
    let loaded = loads.iter().filter(|load| **load > 0).count();
    let bits = PRODUCT_BITS / u32::try_from(loaded.max(1)).unwrap_or(1);
    let tiers = tiers.iter().zip(loads);
    tiers
        .map(|(tier, load)| {
            if *load == 0 {
                return vec![0; tier.len()];
            }
            let parts = tier.iter().map(|cluster| part(cluster, least, spill_over));
            let mut parts: Vec<u128> = parts.collect();
            reduced(&mut parts);
            bounded(&mut parts, 1 << bits);
            parts
        })
        .collect()
}

fn part(cluster: &Candidate<'_>, least: Threshold, spill_over: SpillOver) -> u128 {
    if cluster.ready == 0 || cluster.step == 0 {
        return 0;
    }
    let Some(weight) = cluster.weight else {
        return u128::from(cluster.size()) * u128::from(cluster.step);
    };
    let health = match spill_over {
        SpillOver::AllAtOnce => TWENTIETHS,
        SpillOver::Proportional => health(cluster.ready, cluster.expected, least, spill_over),
    };
    let active = (health * cluster.step / TWENTIETHS).max(1);
    u128::from(weight) * u128::from(active)
}

/// Bounds the sum. Five tiers, each with clusters of thousands of endpoints in numbers that have no
/// common divisor, would exceed 128 bits; then parts are rounded to 19 bits.
fn bounded(parts: &mut [u128], most: u128) {
    let sum: u128 = parts.iter().sum();
    if sum <= most {
        return;
    }
    let count = u128::try_from(parts.len()).unwrap_or(most);
    let divisor = sum.div_ceil(most.saturating_sub(count).max(1));
    for part in parts.iter_mut().filter(|part| **part > 0) {
        *part = (*part / divisor).max(1);
    }
    reduced(parts);
}

/// Step 5: the share of each cluster in all, without a common divisor; only those that have one.
pub(super) fn shares<'a>(
    tiers: Vec<Vec<Candidate<'a>>>,
    parts: Vec<Vec<u128>>,
    loads: &[u32],
) -> Vec<Sharer<'a>> {
    let sums: Vec<u128> = parts.iter().map(|parts| parts.iter().sum()).collect();
    // Sums of 0 are those of tiers without a load.
    let product: u128 = sums.iter().filter(|sum| **sum > 0).product();
    let mut sharers = Vec::new();
    for (index, (tier, parts)) in tiers.into_iter().zip(parts).enumerate() {
        for (candidate, part) in tier.into_iter().zip(parts) {
            if part > 0 {
                let others = product / sums[index];
                sharers.push(Sharer {
                    candidate,
                    tier: index,
                    share: u128::from(loads[index]) * part * others,
                });
            }
        }
    }
    let mut shares: Vec<u128> = sharers.iter().map(|sharer| sharer.share).collect();
    reduced(&mut shares);
    for (sharer, share) in sharers.iter_mut().zip(shares) {
        sharer.share = share;
    }
    sharers
}
