// SPDX-License-Identifier: Apache-2.0

//! The kernel's `wrr` (`net/netfilter/ipvs/ip_vs_wrr.c`, 6.12).

use std::sync::Arc;

use super::super::Shares;
use super::super::arithmetic::gcd;

/// A virtual server: the cursor of the kernel's `struct ip_vs_wrr_mark`.
#[derive(Debug)]
pub(super) struct Wrr {
    weights: Vec<i64>,
    /// `cl`: the index after that of the last choice.
    next: usize,
    /// `cw`: the least weight that is served now.
    current: i64,
    /// `mw`: the greatest, less the divisor's rest.
    greatest: i64,
    /// `di`: the weights' common divisor.
    divisor: i64,
}

impl Wrr {
    /// As `ip_vs_wrr_init_svc` leaves it.
    pub(super) fn new(weights: Vec<i64>) -> Self {
        let numbers = weights
            .iter()
            .map(|weight| u128::try_from(*weight).unwrap());
        let divisor = i64::try_from(gcd(numbers)).unwrap();
        let greatest = weights.iter().max().unwrap() - (divisor - 1);
        Self {
            weights,
            next: 0,
            current: greatest,
            greatest,
            divisor,
        }
    }

    /// As `ip_vs_wrr_schedule`: the index of the real server of the next connection.
    pub(super) fn schedule(&mut self) -> usize {
        loop {
            let from = self.next;
            let found =
                (from..self.weights.len()).find(|index| self.weights[*index] >= self.current);
            if let Some(index) = found {
                self.next = index + 1;
                return index;
            }
            self.next = 0;
            self.current -= self.divisor;
            if self.current <= 0 {
                self.current = self.greatest;
            }
        }
    }

    /// The connections of one cycle.
    pub(super) fn cycle(&self) -> usize {
        usize::try_from(self.weights.iter().sum::<i64>() / self.divisor).unwrap()
    }
}

/// The real servers of a table in the kernel's order, clusters one after another: for each the number
/// of its cluster, and its weight.
pub(super) fn servers(shares: &Shares) -> (Vec<Arc<str>>, Vec<usize>, Vec<i64>) {
    let ids: Vec<Arc<str>> = shares.clusters.keys().cloned().collect();
    let mut of = Vec::new();
    let mut weights = Vec::new();
    for (number, share) in shares.clusters.values().enumerate() {
        for (_, weight) in &share.weights {
            of.push(number);
            weights.push(i64::from(*weight));
        }
    }
    (ids, of, weights)
}
