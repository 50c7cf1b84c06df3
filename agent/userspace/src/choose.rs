// SPDX-License-Identifier: Apache-2.0

//! Choice of an endpoint: smooth weighted round robin, in which failing endpoints come last for a while. Pure.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use portolan_model::Destination;

/// Failures in a row after which an endpoint comes last.
const FAILURES: u32 = 3;

/// Time for which it does.
const LAST: Duration = Duration::from_secs(10);

/// The endpoints of one list, and whose turn it is.
///
/// Each choice adds to every candidate its weight, takes the one with most, and subtracts the sum of the weights from
/// it. So each endpoint gets exactly its share in every round, as evenly spread as weights allow.
#[derive(Debug, Default)]
pub struct Chooser {
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Clone)]
struct Endpoint {
    address: SocketAddr,
    weight: i64,
    credit: i64,
    failures: u32,
    last_until: Option<Instant>,
}

impl Endpoint {
    fn new(destination: &Destination) -> Self {
        Self {
            address: destination.address,
            weight: destination.weight.into(),
            credit: 0,
            failures: 0,
            last_until: None,
        }
    }

    fn comes_last(&self, now: Instant) -> bool {
        self.last_until.is_some_and(|until| until > now)
    }
}

impl Chooser {
    /// Replaces the list. Endpoints that stay keep their turn and their failures. A first list begins at the endpoint
    /// of number `first`, modulo their number, so that not every program's first connection has the same one.
    pub fn replace(&mut self, list: &[Destination], first: usize) {
        let before = std::mem::take(&mut self.endpoints).into_iter();
        let mut before: HashMap<_, _> = before.map(|e| (e.address, e)).collect();
        let is_first = before.is_empty();
        let list = list.iter().filter(|destination| destination.weight > 0);
        let total = list.clone().map(|d| i64::from(d.weight)).sum::<i64>();
        let kept = |destination: &Destination| match before.remove(&destination.address) {
            // Credit from larger weights would take all turns for long.
            Some(kept) => Endpoint {
                weight: destination.weight.into(),
                credit: kept.credit.clamp(-total, total),
                ..kept
            },
            None => Endpoint::new(destination),
        };
        self.endpoints = list.map(kept).collect();
        if is_first && !self.endpoints.is_empty() {
            let first = first % self.endpoints.len();
            self.endpoints.rotate_left(first);
        }
    }

    /// Returns `true` if an endpoint is in the list.
    #[must_use]
    pub fn has(&self, address: SocketAddr) -> bool {
        self.endpoints.iter().any(|e| e.address == address)
    }

    /// The endpoint whose turn it is, other than those in `tried` if there are others. `None` without an endpoint.
    pub fn next(&mut self, tried: &[SocketAddr], now: Instant) -> Option<SocketAddr> {
        let is_new = |e: &Endpoint| !tried.contains(&e.address);
        // The best class that has an endpoint.
        let class = |e: &Endpoint| (!is_new(e), e.comes_last(now));
        let best = self.endpoints.iter().map(class).min()?;
        let mut chosen: Option<&mut Endpoint> = None;
        let mut total = 0;
        for endpoint in self.endpoints.iter_mut().filter(|e| class(e) == best) {
            total += endpoint.weight;
            endpoint.credit += endpoint.weight;
            // Of equal ones the first.
            if chosen.as_ref().is_none_or(|c| endpoint.credit > c.credit) {
                chosen = Some(endpoint);
            }
        }
        let chosen = chosen?;
        chosen.credit -= total;
        Some(chosen.address)
    }

    /// Notes that an endpoint could not be reached.
    pub fn failed(&mut self, address: SocketAddr, now: Instant) {
        if let Some(endpoint) = self.endpoints.iter_mut().find(|e| e.address == address) {
            endpoint.failures += 1;
            if endpoint.failures >= FAILURES {
                endpoint.last_until = Some(now + LAST);
            }
        }
    }

    /// Notes that an endpoint was reached.
    pub fn reached(&mut self, address: SocketAddr) {
        if let Some(endpoint) = self.endpoints.iter_mut().find(|e| e.address == address) {
            endpoint.failures = 0;
            endpoint.last_until = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn address(number: u8) -> SocketAddr {
        ([10, 0, 0, number], 80).into()
    }

    fn list(weights: &[(u8, u32)]) -> Vec<Destination> {
        let destination = |(number, weight): &(u8, u32)| Destination {
            address: address(*number),
            weight: *weight,
        };
        weights.iter().map(destination).collect()
    }

    fn count(chooser: &mut Chooser, times: u32) -> BTreeMap<SocketAddr, u32> {
        let now = Instant::now();
        let mut counts = BTreeMap::new();
        for _ in 0..times {
            *counts.entry(chooser.next(&[], now).unwrap()).or_default() += 1;
        }
        counts
    }

    fn weights() -> impl Strategy<Value = Vec<(u8, u32)>> {
        proptest::collection::btree_map(0..20_u8, 1..9_u32, 1..8)
            .prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn shares_are_exact_in_every_round(weights in weights(), first: usize, rounds in 1..4_u32) {
            let mut chooser = Chooser::default();
            chooser.replace(&list(&weights), first);
            let total: u32 = weights.iter().map(|(_, weight)| weight).sum();
            let counts = count(&mut chooser, rounds * total);
            for (number, weight) in weights {
                prop_assert_eq!(counts.get(&address(number)), Some(&(rounds * weight)));
            }
        }

        #[test]
        fn after_a_swap_shares_are_those_of_the_new_list(
            before in weights(), picks in 0..50_u32, after in weights(),
        ) {
            let mut chooser = Chooser::default();
            chooser.replace(&list(&before), 0);
            count(&mut chooser, picks);
            chooser.replace(&list(&after), 0);
            let total: u32 = after.iter().map(|(_, weight)| weight).sum();
            let rounds = 20;
            let counts = count(&mut chooser, rounds * total);
            // Nothing of the old list is chosen, and what was owed is paid back within two rounds.
            prop_assert_eq!(counts.values().sum::<u32>(), rounds * total);
            for (number, weight) in &after {
                let got = counts.get(&address(*number)).copied().unwrap_or_default();
                prop_assert!(got.abs_diff(rounds * weight) <= 2 * total, "{number}: {got}");
            }
            prop_assert!(counts.keys().all(|a| after.iter().any(|(n, _)| address(*n) == *a)));
        }
    }

    #[test]
    fn a_failing_endpoint_comes_last_for_a_while() {
        let mut chooser = Chooser::default();
        chooser.replace(&list(&[(1, 1), (2, 1)]), 0);
        let now = Instant::now();
        for _ in 0..2 {
            chooser.failed(address(1), now);
        }
        let picks: Vec<_> = (0..4).map(|_| chooser.next(&[], now).unwrap()).collect();
        assert_eq!(picks.iter().filter(|a| **a == address(1)).count(), 2);
        chooser.failed(address(1), now);
        for _ in 0..4 {
            assert_eq!(chooser.next(&[], now), Some(address(2)));
        }
        // It is better than none, and better than one that was tried.
        assert_eq!(chooser.next(&[address(2)], now), Some(address(1)));
        let picks = |chooser: &mut Chooser, at| -> Vec<_> {
            (0..4).map(|_| chooser.next(&[], at).unwrap()).collect()
        };
        assert!(picks(&mut chooser, now + LAST).contains(&address(1)));
        chooser.reached(address(1));
        assert!(picks(&mut chooser, now).contains(&address(1)));
    }

    #[test]
    fn without_endpoints_there_is_no_choice() {
        let mut chooser = Chooser::default();
        chooser.replace(&list(&[(1, 0)]), 7);
        assert_eq!(chooser.next(&[], Instant::now()), None);
    }
}
