// SPDX-License-Identifier: Apache-2.0

//! Shares of new connections that the rules give to each destination of a way.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portolan_netlink::nftables::Key;

use super::*;
use crate::layout::slot_key;

/// The largest permitted error of a share.
const BOUND: f64 = 0.016;
const ADDRESS: &str = "10.96.0.1";

/// A table with one way to destinations of these weights.
fn table_of(weights: &[u32]) -> NodeTable {
    let frontend = vip(ADDRESS, FrontendKind::ClusterIp, Lists::Cluster);
    let count = u16::try_from(weights.len()).unwrap();
    let mut record = record("a", vec![frontend], count);
    for (destination, weight) in record.destinations.iter_mut().zip(weights) {
        destination.weight = *weight;
    }
    table([record])
}

/// The rules of a chain as `nft` has them.
fn rules<'a>(text: &'a str, chain: &str) -> Vec<&'a str> {
    let head = format!("\tchain {chain} {{");
    let from = text.lines().skip_while(|line| *line != head).skip(1);
    from.take_while(|line| *line != "\t}")
        .map(str::trim)
        .collect()
}

/// The share of each destination. Each rule of the way's chain draws a number. Connections whose number has no slot go
/// on to the next rule.
fn shares(content: &TableContent) -> BTreeMap<Key, f64> {
    let slots = &content.sets[layout::ENDPOINTS].1;
    let Some(Verdict::Goto(pick)) = verdict(content, layout::SERVICES, ADDRESS) else {
        panic!("no list");
    };
    let text = content.text(Family::V4, crate::TABLE).unwrap();
    let mut shares = BTreeMap::new();
    let mut left = 1.0_f64;
    for rule in rules(&text, &pick) {
        let Some(attempt) = rule.strip_prefix("jump ") else {
            assert_eq!(rule, "drop");
            break;
        };
        let [draw] = rules(&text, attempt)[..] else {
            panic!("{attempt} has one rule");
        };
        let (_, number) = draw.split_once("numgen random mod ").unwrap();
        let modulus: u32 = number.split(' ').next().unwrap().parse().unwrap();
        let each = left / f64::from(modulus);
        for number in 0..modulus {
            if let Some(Value::Data(destination)) = slots.get(&slot_key(&way(ADDRESS), number)) {
                *shares.entry(destination.clone()).or_insert(0.0) += each;
                left -= each;
            }
        }
    }
    assert!(left.abs() < 1e-9, "{left} of all connections are dropped");
    shares
}

/// Compares shares with weights. `bound` gives the largest permitted error of an expected share.
fn check(content: &TableContent, weights: &[u32], bound: impl Fn(f64) -> f64) {
    let shares = shares(content);
    let sum: u32 = weights.iter().sum();
    let numbered = (1..).zip(weights);
    for (number, weight) in numbered {
        let [high, low] = u16::to_be_bytes(number);
        let address = SocketAddr::from(([10, 244, high, low], 8080));
        let share = shares.get(&layout::destination(address));
        let share = share.copied().unwrap_or_default();
        let expected = f64::from(*weight) / f64::from(sum);
        let is_right = (share - expected).abs() <= bound(expected);
        assert!(
            is_right,
            "{address} of {weights:?}: {share}, not {expected}"
        );
    }
    let with_weight = weights.iter().filter(|weight| **weight > 0);
    assert_eq!(shares.len(), with_weight.count());
}

#[test]
fn equal_endpoints_have_equal_shares() {
    let mut before: Option<TableContent> = None;
    // Slots that endpoints have are kept, so that lists that shrink have other slots than those that grow.
    for count in (1..=40).chain((1..40).rev()).chain([65, 129]) {
        let weights = vec![1_u32; count];
        let content = desired(&table_of(&weights), before.as_ref());
        // A fraction of the share itself, which is stricter than one of the whole.
        check(&content, &weights, |expected| BOUND * expected);
        before = Some(content);
    }
}

#[test]
fn endpoints_have_shares_by_weight() {
    let mut of_many = vec![1_u32; 32];
    of_many.push(2);
    let ascending: Vec<u32> = (1..=40).collect();
    let mut before: Option<TableContent> = None;
    for weights in [
        &[5, 5, 0][..],
        &[1, 2, 3],
        &[7, 11, 13, 17],
        &[100, 1],
        // Weights that are scaled down.
        &[65_535, 1],
        &[65_535, 65_534, 3],
        &[4_001, 3_001, 2_003, 1_009, 1],
        &ascending[..],
        &of_many[..],
    ] {
        for observed in [None, before.as_ref()] {
            let content = desired(&table_of(weights), observed);
            check(&content, weights, |_| BOUND);
        }
        before = Some(desired(&table_of(weights), before.as_ref()));
    }
}
