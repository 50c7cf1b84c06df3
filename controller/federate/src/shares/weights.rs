// SPDX-License-Identifier: Apache-2.0

//! Steps 7 and 8, and the bound on real servers: the weight of each endpoint.

use std::cmp::Reverse;
use std::net::SocketAddr;

use super::arithmetic::gcd;
use super::hash::Order;
use super::split::Sharer;
use super::{Input, Precision};

/// Keeps of each cluster's endpoints its part of the most real servers, at least one.
pub(super) fn limited<'a>(mut sharers: Vec<Sharer<'a>>, input: &Input<'_>) -> Vec<Sharer<'a>> {
    let count: usize = sharers
        .iter()
        .map(|sharer| sharer.candidate.endpoints.len())
        .sum();
    let limit = usize::try_from(input.max_endpoints.max(1)).unwrap_or(usize::MAX);
    if count <= limit {
        return sharers;
    }
    let order = Order::new(input.importing, input.record);
    for sharer in &mut sharers {
        let endpoints = &mut sharer.candidate.endpoints;
        let kept = (limit * endpoints.len() / count).max(1);
        endpoints.sort_by_cached_key(|(address, _)| (order.of(*address), *address));
        endpoints.truncate(kept);
    }
    sharers
}

/// Result of steps 6 to 8.
#[derive(Debug)]
pub(super) struct Weighed {
    pub(super) totals: Vec<u128>,
    pub(super) precision: Precision,
    /// The weights of each cluster's endpoints by address.
    pub(super) weights: Vec<Vec<(SocketAddr, u32)>>,
    /// True if they differ.
    pub(super) unequal: bool,
}

/// The steps for a cluster that has no other beside it, and whose endpoints weigh the same: they weigh 1.
pub(super) fn alone(sharers: &[Sharer<'_>]) -> Option<Weighed> {
    let [sharer] = sharers else { return None };
    let endpoints = &sharer.candidate.endpoints;
    let total = u128::try_from(endpoints.len()).ok()?;
    equal(endpoints, total)?;
    let mut weights: Vec<_> = endpoints.iter().map(|(address, _)| (*address, 1)).collect();
    weights.sort_unstable();
    Some(Weighed {
        totals: vec![total],
        precision: Precision::Exact,
        weights: vec![weights],
        unequal: false,
    })
}

/// The weights of each cluster's endpoints by address, and whether they differ. An endpoint of weight 0
/// is left out.
pub(super) fn weights(
    sharers: &[Sharer<'_>],
    totals: &[u128],
    input: &Input<'_>,
) -> (Vec<Vec<(SocketAddr, u32)>>, bool) {
    let weighed: Vec<Vec<(SocketAddr, u128)>> = sharers
        .iter()
        .zip(totals)
        .map(|(sharer, total)| distributed(sharer, *total, input))
        .collect();
    let all = || weighed.iter().flatten().map(|(_, weight)| *weight);
    let divisor = gcd(all()).max(1);
    let unequal = all().any(|weight| weight != divisor);
    let reduced = weighed.into_iter().map(|weights| {
        let weights = weights.into_iter().map(|(address, weight)| {
            // At most 255, by the bound on totals.
            let weight = u32::try_from(weight / divisor).unwrap_or(u32::MAX);
            (address, weight)
        });
        let mut weights: Vec<_> = weights.collect();
        weights.sort_unstable();
        weights
    });
    (reduced.collect(), unequal)
}

/// The weight of each endpoint, if all have the same of the total, and nothing is left.
fn equal(endpoints: &[(SocketAddr, u32)], total: u128) -> Option<u128> {
    let (_, first) = endpoints.first()?;
    let count = u128::try_from(endpoints.len()).ok()?;
    let are_equal = endpoints.iter().all(|(_, own)| own == first);
    (are_equal && total > 0 && total.is_multiple_of(count)).then_some(total / count)
}

/// The total in proportion to the endpoints' own weights: rounded down, and what is left in units to
/// the largest remainders.
fn distributed(sharer: &Sharer<'_>, total: u128, input: &Input<'_>) -> Vec<(SocketAddr, u128)> {
    let endpoints = &sharer.candidate.endpoints;
    if let Some(weight) = equal(endpoints, total) {
        let weights = endpoints.iter().map(|(address, _)| (*address, weight));
        return weights.collect();
    }
    let sum: u128 = endpoints.iter().map(|(_, own)| u128::from(*own)).sum();
    let mut weights: Vec<(SocketAddr, u128, u128)> = endpoints
        .iter()
        .map(|(address, own)| {
            let share = total * u128::from(*own);
            (*address, share / sum, share % sum)
        })
        .collect();
    let given: u128 = weights.iter().map(|(_, weight, _)| *weight).sum();
    let left = usize::try_from(total - given).unwrap_or(usize::MAX);
    if left > 0 {
        let order = Order::new(input.importing, input.record);
        weights.sort_by_cached_key(|(address, _, remainder)| {
            (Reverse(*remainder), order.of(*address), *address)
        });
        for (_, weight, _) in weights.iter_mut().take(left) {
            *weight += 1;
        }
    }
    let used = weights.into_iter().filter(|(_, weight, _)| *weight > 0);
    used.map(|(address, weight, _)| (address, weight)).collect()
}
