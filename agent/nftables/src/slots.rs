// SPDX-License-Identifier: Apache-2.0

//! Slots of a list: a random number below a power of two chooses one.
//!
//! A list of N slots has the numbers 0 to N - 1, and class `ceil(log2 N)`. A number without a slot is drawn
//! again, six times; the half of the numbers that all have a slot comes last. So each slot has its share to
//! within `(1 - N / 2^class)^6`.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portolan_model::Destination;

/// Most slots of a list whose weights differ. Weights are scaled down to that.
const WEIGHTED_MAX: u64 = 4096;

/// The class of a list of so many slots, at least one: its numbers are below two to that power.
pub(crate) fn class(slots: usize) -> u32 {
    slots.next_power_of_two().trailing_zeros()
}

/// Returns the number of slots for each destination; none with weight 0.
fn counts(destinations: &[Destination]) -> BTreeMap<SocketAddr, u64> {
    let weights = || {
        destinations
            .iter()
            .map(|d| u64::from(d.weight))
            .filter(|w| *w > 0)
    };
    let divisor = weights().fold(0, greatest_common_divisor).max(1);
    let sum: u64 = weights().map(|weight| weight / divisor).sum();
    let is_weighted = weights().any(|weight| weight != divisor);
    let count = |weight: u64| {
        let count = weight / divisor;
        if is_weighted && sum > WEIGHTED_MAX {
            (count * WEIGHTED_MAX / sum).max(1)
        } else {
            count
        }
    };
    let weighted = destinations.iter().filter(|d| d.weight > 0);
    weighted
        .map(|d| (d.address, count(u64::from(d.weight))))
        .collect()
}

/// Most slots that a list of these destinations has.
pub(crate) fn most(destinations: &[Destination]) -> u64 {
    let len = u64::try_from(destinations.len()).unwrap_or(u64::MAX);
    let first = destinations.first().map_or(0, |first| first.weight);
    if destinations.iter().all(|d| d.weight == first) {
        len
    } else {
        len.max(WEIGHTED_MAX) + len
    }
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 {
        one
    } else {
        greatest_common_divisor(other, one % other)
    }
}

/// The destination of each slot. As many as possible keep the slot that they have, so that one destination
/// more is one slot more, and one less changes two.
pub(crate) fn assign(
    before: &BTreeMap<u32, SocketAddr>,
    destinations: &[Destination],
) -> Vec<SocketAddr> {
    let mut unplaced = counts(destinations);
    let len = unplaced.values().sum::<u64>();
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    let mut slots: Vec<Option<SocketAddr>> = (0..len)
        .map(|slot| {
            let address = before.get(&slot)?;
            let left = unplaced.get_mut(address).filter(|left| **left > 0)?;
            *left -= 1;
            Some(*address)
        })
        .collect();
    let mut rest = unplaced
        .into_iter()
        .flat_map(|(address, left)| (0..left).map(move |_| address));
    for slot in slots.iter_mut().filter(|slot| slot.is_none()) {
        *slot = rest.next();
    }
    slots.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    fn address(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    fn list(weights: &BTreeMap<u8, u32>) -> Vec<Destination> {
        let destination = |(number, weight): (&u8, &u32)| Destination {
            address: address(*number),
            weight: *weight,
        };
        weights.iter().map(destination).collect()
    }

    fn numbered(slots: &[SocketAddr]) -> BTreeMap<u32, SocketAddr> {
        (0..).zip(slots.iter().copied()).collect()
    }

    #[test]
    fn a_class_is_the_logarithm() {
        let classes: Vec<_> = [1, 2, 3, 4, 5, 8, 9, 65_536].map(class).into();
        assert_eq!(classes, [0, 1, 2, 2, 3, 3, 4, 16]);
    }

    #[test]
    fn weights_are_reduced_and_scaled() {
        let slots = |weights: &[u32]| {
            let weights = (0..).zip(weights.iter().copied()).collect();
            counts(&list(&weights)).into_values().collect::<Vec<_>>()
        };
        assert_eq!(slots(&[5, 5, 0]), [1, 1]);
        assert_eq!(slots(&[4, 6]), [2, 3]);
        assert_eq!(slots(&[65_535, 1]), [4095, 1]);
    }

    proptest! {
        #[test]
        fn slots_are_dense_and_a_change_moves_few(
            weights in btree_map(any::<u8>(), 1u32..4, 1..40),
            gone in any::<prop::sample::Index>(),
        ) {
            let list_before = list(&weights);
            let before = assign(&BTreeMap::new(), &list_before);
            prop_assert_eq!(assign(&numbered(&before), &list_before), before.clone());
            let mut fewer = weights.clone();
            let number = *weights.keys().nth(gone.index(weights.len())).unwrap();
            fewer.remove(&number);
            let after = assign(&numbered(&before), &list(&fewer));
            let expected: u64 = counts(&list(&fewer)).values().sum();
            prop_assert_eq!(u64::try_from(after.len()).unwrap(), expected);
            // Equal weights: the hole alone is filled, and the last slot is free.
            if weights.values().all(|weight| *weight == 1) {
                let moved = before.iter().zip(&after).filter(|(one, other)| one != other);
                prop_assert!(moved.count() <= 1);
                let more = assign(&numbered(&after), &list_before);
                prop_assert_eq!(&more[..after.len()], &after[..]);
            }
            let mut counted: BTreeMap<SocketAddr, u64> = BTreeMap::new();
            for address in after {
                *counted.entry(address).or_default() += 1;
            }
            prop_assert_eq!(counted, counts(&list(&fewer)));
        }
    }
}
