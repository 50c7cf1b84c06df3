// SPDX-License-Identifier: Apache-2.0

//! Steps 2 and 3: the health of tiers and their loads.

use portolan_policy::Threshold;
use portolan_policy::spec::SpillOver;

use super::health::health;
use super::{Candidate, Input};

/// Health and load are counted in twentieths of all connections.
pub const TWENTIETHS: u32 = 20;

/// The most tiers with a load: the numbers of step 5 are products over them.
pub const MAX_LOADED_TIERS: usize = 5;

/// The loads of tiers.
#[derive(Debug)]
pub(super) struct Loads {
    pub(super) health: Vec<u32>,
    pub(super) loads: Vec<u32>,
    pub(super) panic: bool,
    /// Way in which load is given away in fact.
    pub(super) spill_over: SpillOver,
}

/// Steps 2 and 3.
pub(super) fn loads(tiers: &[Vec<Candidate<'_>>], input: &Input<'_>) -> Loads {
    let mut spill_over = input.spill_over;
    let health_of = |spill_over| -> Vec<u32> {
        let tiers = tiers.iter();
        tiers
            .map(|tier| tier_health(tier, input.min_healthy, spill_over))
            .collect()
    };
    let mut health = health_of(spill_over);
    let sum = |health: &[u32]| health.iter().sum::<u32>();
    // Something is ready, and nobody has enough: what there is serves.
    if sum(&health) == 0 {
        spill_over = SpillOver::Proportional;
        health = health_of(spill_over);
    }
    let is_ready = tiers.iter().flatten().any(|cluster| cluster.ready > 0);
    let percent = sum(&health) * 100 / TWENTIETHS;
    let panic = is_ready && percent < u32::from(input.panic_threshold);
    let loads = if panic {
        vec![TWENTIETHS]
    } else {
        given(&health)
    };
    Loads {
        health,
        loads,
        panic,
        spill_over,
    }
}

/// Returns `true` if these tiers, if they come first, are given the whole load.
pub(super) fn are_full(tiers: &[Vec<Candidate<'_>>], input: &Input<'_>) -> bool {
    let tiers = tiers.iter();
    let health = tiers.map(|tier| tier_health(tier, input.min_healthy, input.spill_over));
    let health: Vec<u32> = health.collect();
    given(&health).iter().sum::<u32>() == TWENTIETHS
}

/// The health of a tier: that of all its endpoints, with the part that its clusters' steps allow.
fn tier_health(tier: &[Candidate<'_>], least: Threshold, spill_over: SpillOver) -> u32 {
    let active = tier.iter().filter(|cluster| cluster.step > 0);
    let ready = active.map(|cluster| cluster.ready).sum();
    let expected = tier.iter().map(|cluster| cluster.expected).sum();
    let own = health(ready, expected, least, spill_over);
    let serving = tier.iter().filter(|cluster| cluster.ready > 0);
    let step = serving.map(|cluster| cluster.step).max().unwrap_or(0);
    if own == 0 {
        0
    } else {
        (own * step / TWENTIETHS).max(1)
    }
}

/// Loads in order of preference: each tier what its health allows of what is left. The fifth tier
/// with a load takes that of all after it.
fn given(health: &[u32]) -> Vec<u32> {
    let mut left = TWENTIETHS;
    let mut loaded = 0;
    let mut loads = vec![0; health.len()];
    for (index, own) in health.iter().enumerate() {
        if *own == 0 || left == 0 {
            continue;
        }
        loaded += 1;
        let able = if loaded == MAX_LOADED_TIERS {
            health[index..].iter().sum()
        } else {
            *own
        };
        loads[index] = able.min(left);
        left -= loads[index];
        if loaded == MAX_LOADED_TIERS {
            break;
        }
    }
    loads
}

/// All clusters with a ready endpoint in one tier without weights and steps.
pub(super) fn all_alike(tiers: Vec<Vec<Candidate<'_>>>) -> Vec<Candidate<'_>> {
    let ready = tiers
        .into_iter()
        .flatten()
        .filter(|cluster| cluster.ready > 0);
    ready
        .map(|cluster| Candidate {
            weight: None,
            step: TWENTIETHS,
            ..cluster
        })
        .collect()
}
