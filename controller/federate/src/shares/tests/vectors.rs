// SPDX-License-Identifier: Apache-2.0

//! A table of cases with results that were computed apart from this code.

use std::fmt::Write as _;

use super::wrr::{Wrr, servers};
use super::*;

/// A case and its result.
struct Vector {
    row: u32,
    rules: Rules,
    clusters: Vec<(&'static str, Cluster)>,
    loads: &'static [u32],
    /// By cluster; 0 for none.
    shares: &'static [u128],
    /// Of each cluster with a share, as in `2×26+1×25`.
    weights: &'static [&'static str],
    /// The most connections that a cluster is ever off its share within a cycle of `wrr`.
    run: Option<u128>,
}

const ABC: [(&str, u16); 3] = [("A", 70), ("B", 20), ("C", 10)];

fn three(a: u32, b: u32, c: u32) -> Vec<(&'static str, Cluster)> {
    vec![("A", pods(a, a)), ("B", pods(b, b)), ("C", pods(c, c))]
}

fn two(a: Cluster, b: Cluster) -> Vec<(&'static str, Cluster)> {
    vec![("A", a), ("B", b)]
}

fn at_step(step: u8, cluster: Cluster) -> Cluster {
    Cluster { step, ..cluster }
}

fn lost(expected: u32) -> Cluster {
    at_step(0, pods(0, expected))
}

/// Weights of 70, 20 and 10.
fn plain() -> Vec<Vector> {
    let split = || Rules::new(vec![weighted(&ABC)]);
    vec![
        Vector {
            row: 1,
            rules: split(),
            clusters: three(10, 10, 10),
            loads: &[20],
            shares: &[7, 2, 1],
            weights: &["10×7", "10×2", "10×1"],
            run: Some(18),
        },
        Vector {
            row: 2,
            rules: split(),
            clusters: three(3, 7, 11),
            loads: &[20],
            shares: &[7, 2, 1],
            weights: &["2×26+1×25", "1×4+6×3", "11×1"],
            run: Some(21),
        },
        Vector {
            row: 3,
            rules: split(),
            clusters: three(1, 50, 50),
            loads: &[20],
            shares: &[7, 2, 1],
            weights: &["1×255", "23×2+27×1", "36×1+14×0"],
            run: Some(76),
        },
        Vector {
            row: 4,
            rules: split().hashed(),
            clusters: three(1, 50, 50),
            loads: &[20],
            shares: &[7, 2, 1],
            weights: &["1×63", "18×1+32×0", "9×1+41×0"],
            run: Some(19),
        },
    ]
}

/// Few or equal weights.
fn simple() -> Vec<Vector> {
    let pair = |a, b| Rules::new(vec![weighted(&[("A", a), ("B", b)])]);
    vec![
        Vector {
            row: 5,
            rules: Rules::new(vec![alike(&["A", "B", "C"])]),
            clusters: three(3, 7, 11),
            loads: &[20],
            shares: &[3, 7, 11],
            weights: &["3×1", "7×1", "11×1"],
            run: None,
        },
        Vector {
            row: 6,
            rules: Rules::new(vec![weighted(&[("A", 1), ("B", 1), ("C", 1)])]),
            clusters: three(10, 10, 11),
            loads: &[20],
            shares: &[1, 1, 1],
            weights: &["1×2+9×1", "1×2+9×1", "11×1"],
            run: Some(7),
        },
        Vector {
            row: 7,
            rules: pair(99, 1),
            clusters: two(pods(100, 100), pods(2, 2)),
            loads: &[20],
            shares: &[99, 1],
            weights: &["98×2+2×1", "2×1"],
            run: Some(2),
        },
        Vector {
            row: 8,
            rules: pair(999, 1),
            clusters: two(pods(1, 1), pods(1, 1)),
            loads: &[20],
            shares: &[999, 1],
            weights: &["1×255", "1×1"],
            run: Some(1),
        },
        Vector {
            row: 9,
            rules: pair(1, 1),
            clusters: two(owned(&[1, 3], 2), pods(4, 4)),
            loads: &[20],
            shares: &[1, 1],
            weights: &["1×3+1×1", "4×1"],
            run: Some(2),
        },
    ]
}

/// A local tier, then another of 20 pods.
fn failover() -> Vec<Vector> {
    let tiers = || Rules::new(vec![alike(&["A"]), alike(&["B"])]);
    let of_ten = |ready| two(pods(ready, 10), pods(20, 20));
    vec![
        Vector {
            row: 10,
            rules: tiers().percent(70),
            clusters: of_ten(8),
            loads: &[20, 0],
            shares: &[1, 0],
            weights: &["8×1"],
            run: None,
        },
        Vector {
            row: 11,
            rules: tiers().percent(70),
            clusters: of_ten(5),
            loads: &[14, 6],
            shares: &[7, 3],
            weights: &["4×10+1×9", "1×2+19×1"],
            run: Some(14),
        },
        Vector {
            row: 12,
            rules: tiers().percent(70),
            clusters: of_ten(1),
            loads: &[2, 18],
            shares: &[1, 9],
            weights: &["1×3", "7×2+13×1"],
            run: Some(2),
        },
        Vector {
            row: 13,
            rules: tiers().percent(70),
            clusters: of_ten(0),
            loads: &[0, 20],
            shares: &[0, 1],
            weights: &["20×1"],
            run: None,
        },
    ]
}

/// The same at other thresholds.
fn thresholds() -> Vec<Vector> {
    let tiers = || Rules::new(vec![alike(&["A"]), alike(&["B"])]);
    let of_ten = |ready| two(pods(ready, 10), pods(20, 20));
    vec![
        Vector {
            row: 14,
            rules: tiers().percent(70).all_at_once(),
            clusters: of_ten(6),
            loads: &[0, 20],
            shares: &[0, 1],
            weights: &["20×1"],
            run: None,
        },
        Vector {
            row: 15,
            rules: tiers().number(3),
            clusters: of_ten(2),
            loads: &[13, 7],
            shares: &[13, 7],
            weights: &["1×20+1×19", "1×2+19×1"],
            run: Some(13),
        },
        Vector {
            row: 16,
            rules: tiers().percent(70),
            clusters: two(pods(2, 10), pods(4, 20)),
            loads: &[5, 5],
            shares: &[1, 1],
            weights: &["2×2", "4×1"],
            run: Some(2),
        },
        Vector {
            row: 17,
            rules: tiers().percent(70).all_at_once(),
            clusters: two(pods(2, 10), pods(4, 20)),
            loads: &[5, 5],
            shares: &[1, 1],
            weights: &["2×2", "4×1"],
            run: Some(2),
        },
    ]
}

/// Lost, drained, returning and degraded clusters, gateways and panic.
fn degraded() -> Vec<Vector> {
    let then_d = || Rules::new(vec![weighted(&ABC), alike(&["D"])]).percent(70);
    let with_a = |a| {
        let ten = pods(10, 10);
        vec![("A", a), ("B", ten.clone()), ("C", ten.clone()), ("D", ten)]
    };
    let drained = Cluster {
        drained: true,
        ..at_step(0, pods(10, 10))
    };
    let mut degraded = vec![
        Vector {
            row: 18,
            rules: then_d(),
            clusters: with_a(lost(10)),
            loads: &[19, 1],
            shares: &[0, 38, 19, 3],
            weights: &["2×16+8×15", "6×8+4×7", "2×2+8×1"],
            run: Some(30),
        },
        Vector {
            row: 19,
            rules: then_d(),
            clusters: with_a(drained),
            loads: &[20, 0],
            shares: &[0, 2, 1, 0],
            weights: &["10×2", "10×1"],
            run: Some(7),
        },
        Vector {
            row: 20,
            rules: Rules::new(vec![weighted(&ABC)]),
            clusters: vec![
                ("A", at_step(5, pods(10, 10))),
                ("B", pods(10, 10)),
                ("C", pods(10, 10)),
            ],
            loads: &[20],
            shares: &[7, 8, 4],
            weights: &["1×3+9×2", "4×3+6×2", "2×2+8×1"],
            run: Some(8),
        },
        Vector {
            row: 21,
            rules: Rules::new(vec![alike(&["A"]), alike(&["B"])]),
            clusters: two(at_step(10, pods(10, 10)), pods(10, 10)),
            loads: &[10, 10],
            shares: &[1, 1],
            weights: &["10×1", "10×1"],
            run: Some(5),
        },
    ];
    degraded.extend(further());
    degraded
}

fn further() -> Vec<Vector> {
    let each = |a, b, d| vec![("A", a), ("B", b), ("D", d)];
    vec![
        Vector {
            row: 22,
            rules: Rules::new(vec![weighted(&[("A", 50), ("B", 50)])]).percent(100),
            clusters: two(pods(3, 10), pods(10, 10)),
            loads: &[13],
            shares: &[3, 10],
            weights: &["3×1", "10×1"],
            run: None,
        },
        Vector {
            row: 23,
            rules: Rules::new(vec![alike(&["A"]), alike(&["B"]), alike(&["D"])]).percent(100),
            clusters: each(pods(2, 10), pods(3, 10), pods(6, 6)),
            loads: &[4, 6, 10],
            shares: &[2, 3, 5],
            weights: &["2×2", "3×2", "4×2+2×1"],
            run: Some(3),
        },
        Vector {
            row: 24,
            rules: Rules::new(vec![alike(&["A", "B"])]),
            clusters: two(
                pods(10, 10),
                Cluster {
                    ready: 30,
                    gateway: true,
                    ..pods(2, 30)
                },
            ),
            loads: &[20],
            shares: &[1, 3],
            weights: &["10×1", "2×15"],
            run: Some(7),
        },
        Vector {
            row: 25,
            rules: Rules::new(vec![alike(&["A"]), alike(&["B"])])
                .percent(70)
                .panic(20),
            clusters: two(pods(1, 10), pods(1, 40)),
            loads: &[20],
            shares: &[1, 1],
            weights: &["1×1", "1×1"],
            run: None,
        },
    ]
}

/// Weights of a cluster as in a vector, endpoints without one as those of weight 0.
fn spelled(share: &Share, cluster: &Cluster) -> String {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, weight) in &share.weights {
        *counts.entry(*weight).or_default() += 1;
    }
    let left_out = cluster.endpoints.len() - share.weights.len();
    if left_out > 0 {
        counts.insert(0, left_out);
    }
    let mut text = String::new();
    for (weight, count) in counts.iter().rev() {
        let plus = if text.is_empty() { "" } else { "+" };
        write!(text, "{plus}{count}×{weight}").unwrap();
    }
    text
}

/// The most connections that a cluster is off its share within a cycle of the kernel, rounded.
fn run(shares: &Shares) -> u128 {
    let (ids, of, weights) = servers(shares);
    let sum: u128 = shares.clusters.values().map(|share| share.share).sum();
    let mut wrr = Wrr::new(weights);
    let mut counts = vec![0_u128; ids.len()];
    let mut most = 0;
    for connections in 1..=wrr.cycle() as u128 {
        counts[of[wrr.schedule()]] += 1;
        for (count, share) in counts.iter().zip(shares.clusters.values()) {
            most = most.max((count * sum).abs_diff(connections * share.share));
        }
    }
    (2 * most + sum) / (2 * sum)
}

#[test]
fn the_vectors_hold() {
    let vectors = [plain(), simple(), failover(), thresholds(), degraded()];
    for vector in vectors.into_iter().flatten() {
        let row = vector.row;
        let clusters = clusters(vector.clusters);
        let found = vector.rules.shares(&clusters);
        assert_eq!(found.loads, vector.loads, "loads of {row}");
        let shares: Vec<u128> = clusters
            .keys()
            .map(|id| found.clusters.get(id).map_or(0, |share| share.share))
            .collect();
        assert_eq!(shares, vector.shares, "shares of {row}");
        let weights: Vec<String> = found
            .clusters
            .iter()
            .map(|(id, share)| spelled(share, &clusters[id]))
            .collect();
        assert_eq!(weights, vector.weights, "weights of {row}");
        if let Some(expected) = vector.run {
            assert_eq!(run(&found), expected, "run of {row}");
        }
    }
}
