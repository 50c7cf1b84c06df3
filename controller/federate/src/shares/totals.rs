// SPDX-License-Identifier: Apache-2.0

//! Step 6: the sum of the weights of each cluster's endpoints.

use super::Precision;
use super::arithmetic::gcd;
use super::split::Sharer;

/// The greatest sum of weights of a cluster whose endpoints weigh in proportion to their own weights,
/// and the least sum that gives each of them its proportion exactly.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    most: u128,
    unit: u128,
}

fn bounds(sharer: &Sharer<'_>, max_weight: u32) -> Bounds {
    let own = || {
        let endpoints = sharer.candidate.endpoints.iter();
        endpoints.map(|(_, own)| u128::from(*own))
    };
    let sum: u128 = own().sum();
    Bounds {
        most: u128::from(max_weight) * sum / own().max().unwrap_or(1),
        unit: sum / gcd(own()).max(1),
    }
}

/// The sum of the weights of each cluster's endpoints: a common multiple of the shares if no weight
/// exceeds `max_weight` then, else the shares' multiples that fit, rounded, each at least 1.
pub(super) fn totals(sharers: &[Sharer<'_>], max_weight: u32) -> (Vec<u128>, Precision) {
    let bounds: Vec<Bounds> = sharers
        .iter()
        .map(|sharer| bounds(sharer, max_weight))
        .collect();
    let pairs = || sharers.iter().zip(&bounds);
    let multiple = pairs().map(|(sharer, bounds)| bounds.unit.div_ceil(sharer.share));
    let multiple = multiple.max().unwrap_or(1);
    let exact: Option<Vec<u128>> = pairs()
        .map(|(sharer, bounds)| {
            let total = sharer.share.checked_mul(multiple)?;
            (total <= bounds.most).then_some(total)
        })
        .collect();
    if let Some(totals) = exact {
        return (totals, Precision::Exact);
    }
    // The cluster that reaches its bound first; the quotients are compared as products.
    let tightest = pairs().min_by(|(one, one_bounds), (other, other_bounds)| {
        (one_bounds.most * other.share).cmp(&(other_bounds.most * one.share))
    });
    let Some((tightest, bounds)) = tightest else {
        return (Vec::new(), Precision::Exact);
    };
    let totals: Vec<u128> = sharers
        .iter()
        .map(|sharer| {
            let rounded = (2 * sharer.share * bounds.most + tightest.share) / (2 * tightest.share);
            rounded.max(1)
        })
        .collect();
    let error_permille = error(sharers, &totals);
    (totals, Precision::Capped { error_permille })
}

/// The largest difference between a share and its part of the totals, in permille, rounded up.
fn error(sharers: &[Sharer<'_>], totals: &[u128]) -> u32 {
    let sum: u128 = sharers.iter().map(|sharer| sharer.share).sum();
    // 64 bits of the shares are enough for this.
    let shift = 64_u32.saturating_sub(sum.leading_zeros());
    let share_sum = sum >> shift;
    let total_sum: u128 = totals.iter().sum();
    let errors = sharers.iter().zip(totals).map(|(sharer, total)| {
        let wanted = (sharer.share >> shift) * total_sum;
        let given = total * share_sum;
        (wanted.abs_diff(given) * 1000).div_ceil(share_sum * total_sum)
    });
    u32::try_from(errors.max().unwrap_or(0)).unwrap_or(u32::MAX)
}
