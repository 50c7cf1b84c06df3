// SPDX-License-Identifier: Apache-2.0

//! The shares of clusters in the connections to one record, and the weights of its real servers.
//!
//! One importing cluster, Service port and address family at a time. The steps:
//!
//! 1. [`health()`] of a tier or cluster in twentieths: ready endpoints against a least number;
//! 2. the health of each tier, with the steps of its clusters; panic;
//! 3. the load of each tier, in order of preference;
//! 4. the shares of clusters within their tier;
//! 5. the shares of clusters in all, as integers without a common divisor: the share of a cluster is
//!    `h / sum of h`;
//! 6. the sum of the weights of each cluster's endpoints, exact if the kernel's bounds allow;
//! 7. the weight of each endpoint;
//! 8. reduction, and the scheduler.
//!
//! Weights are small integers, since the kernel's `wrr` serves the heaviest real servers alone until
//! its counter has come down to the next weight, and its `mh` keeps 6 bits of a weight. There is no
//! memory: equal inputs give equal weights, in any order of clusters and endpoints. Nothing is
//! computed in floating point.

mod arithmetic;
mod hash;
mod health;
mod loads;
mod split;
mod totals;
mod weights;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_policy::Threshold;
use portolan_policy::spec::SpillOver;

pub use hash::order_of;
pub use health::health;
pub use loads::{MAX_LOADED_TIERS, TWENTIETHS};

/// The greatest weight of a real server, unless the scheduler hashes: larger ones make runs of `wrr`
/// longer.
pub const MAX_WEIGHT: u32 = 255;

/// The greatest weight of a real server with `mh`, which keeps 6 bits of it.
pub const MAX_WEIGHT_HASHED: u32 = 63;

/// Everything that the shares of one record depend on.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The id of the importing cluster; only for [`order_of`].
    pub importing: &'a str,
    /// The bytes of the record's key; only for [`order_of`].
    pub record: &'a [u8],
    /// Tiers in order of preference. A cluster in several tiers counts in the first of them. A cluster in no tier is
    /// not used.
    pub tiers: &'a [Tier],
    /// The clusters by id.
    pub clusters: &'a BTreeMap<Arc<str>, Cluster>,
    /// The ready endpoints below which load is given away.
    pub min_healthy: Threshold,
    /// Way in which it is given away.
    pub spill_over: SpillOver,
    /// Percentage of health of all tiers together, 0 to 100, below which all endpoints count alike; 0
    /// for never.
    pub panic_threshold: u8,
    /// Limit of real servers, at least 1. Each cluster keeps one real server, also beyond the limit.
    pub max_endpoints: u32,
    /// Input that decides about the scheduler.
    pub scheduling: Scheduling<'a>,
}

/// Clusters that are preferred alike, by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tier {
    /// Every endpoint counts alike.
    Alike(Vec<Arc<str>>),
    /// Each cluster has a weight, 0 to 1000; 0 takes it out of use.
    Weighted(Vec<(Arc<str>, u16)>),
}

impl Tier {
    /// The ids of its clusters.
    pub fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        let (alike, weighted) = match self {
            Self::Alike(ids) => (Some(ids), None),
            Self::Weighted(ids) => (None, Some(ids)),
        };
        let weighted = weighted.into_iter().flatten().map(|(id, _)| id);
        alike.into_iter().flatten().chain(weighted)
    }
}

/// Endpoints and state of a cluster for a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cluster {
    /// The addresses that connections go to: of endpoints, or of gateways.
    pub endpoints: Vec<Endpoint>,
    /// The number of usable endpoints. A lost cluster has none. Without a usable address above they
    /// count as none.
    pub ready: u32,
    /// The number of endpoints that are not terminating. A lost cluster has its last known number.
    pub expected: u32,
    /// The cluster's step, 0 to 20: the part of its share that it gets.
    pub step: u8,
    /// `true` if the operator's drain leaves it nothing: at step 0 it counts as if it had no endpoints.
    pub drained: bool,
    /// Whether the addresses are those of gateways: each weighs 1, and the share of a cluster in a
    /// tier without weights goes by its ready endpoints.
    pub gateway: bool,
}

/// An address that connections go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The address.
    pub address: SocketAddr,
    /// Its own weight; 0 takes it out of use. Of no effect for gateways.
    pub weight: u32,
    /// Whether it is ready, or serves while it terminates and none is ready anywhere.
    pub usable: bool,
}

/// Input that decides about the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scheduling<'a> {
    /// Nothing: the rule of a single cluster, or `wrr` for unequal weights.
    #[default]
    Default,
    /// Clients stay with their endpoint: `mh`.
    Affinity,
    /// The policy or the Service names a scheduler.
    Named(&'a str),
}

impl Scheduling<'_> {
    fn max_weight(self) -> u32 {
        match self {
            Self::Affinity | Self::Named("mh") => MAX_WEIGHT_HASHED,
            Self::Default | Self::Named(_) => MAX_WEIGHT,
        }
    }
}

/// The shares of clusters, and the weights of their endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    /// The health of each tier in twentieths, before loads are given.
    pub health: Vec<u32>,
    /// The load of each tier in twentieths. In panic there is one tier.
    pub loads: Vec<u32>,
    /// Whether all endpoints count alike, because too few are ready.
    pub panic: bool,
    /// The clusters with a share, by id.
    pub clusters: BTreeMap<Arc<str>, Share>,
    /// Whether connections follow the shares exactly.
    pub precision: Precision,
    /// The scheduler; none for the rule of a single cluster.
    pub scheduler: Option<String>,
}

/// The share of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Share {
    /// Its tier, from 0; in panic 0.
    pub tier: usize,
    /// Its share is this number by the sum of all clusters'.
    pub share: u128,
    /// The sum of its endpoints' weights before their reduction.
    pub total: u128,
    /// Its endpoints with their weights, all above 0, sorted by address.
    pub weights: Vec<(SocketAddr, u32)>,
}

impl Share {
    /// The weight of an endpoint; none if it is left out.
    #[must_use]
    pub fn weight(&self, address: SocketAddr) -> Option<u32> {
        let found = self.weights.binary_search_by_key(&address, |(of, _)| *of);
        Some(self.weights[found.ok()?].1)
    }
}

/// Whether connections follow the shares exactly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// They do.
    #[default]
    Exact,
    /// Weights are bounded.
    Capped {
        /// The largest difference between a cluster's share and its part of the weights, in
        /// permille, rounded up.
        error_permille: u32,
    },
}

/// A cluster with its part in the computation.
#[derive(Debug, Clone)]
struct Candidate<'a> {
    id: &'a Arc<str>,
    weight: Option<u16>,
    /// Addresses with their own weights, all above 0.
    endpoints: Vec<(SocketAddr, u32)>,
    ready: u64,
    expected: u64,
    step: u32,
    gateway: bool,
}

impl Candidate<'_> {
    /// The sum of own weights, or for gateways the number of endpoints behind them.
    fn size(&self) -> u64 {
        if self.gateway {
            self.ready
        } else {
            self.endpoints.iter().map(|(_, own)| u64::from(*own)).sum()
        }
    }
}

/// The shares of clusters, and the weights of their endpoints.
#[must_use]
pub fn shares(input: &Input<'_>) -> Shares {
    let tiers = candidates(input, endpoints);
    let loads::Loads {
        health,
        loads,
        panic,
        spill_over,
    } = loads::loads(&tiers, input);
    let tiers = if panic {
        vec![loads::all_alike(tiers)]
    } else {
        tiers
    };
    let parts = split::parts(&tiers, &loads, input.min_healthy, spill_over);
    let clusters = split::shares(tiers, parts, &loads);
    let clusters = weights::limited(clusters, input);
    let weighed = weights::alone(&clusters).unwrap_or_else(|| {
        let (totals, precision) = totals::totals(&clusters, input.scheduling.max_weight());
        let (weights, unequal) = weights::weights(&clusters, &totals, input);
        weights::Weighed {
            totals,
            precision,
            weights,
            unequal,
        }
    });
    let weights::Weighed {
        totals,
        precision,
        weights,
        unequal,
    } = weighed;
    let shares = clusters.into_iter().zip(totals).zip(weights);
    let clusters = shares.map(|((cluster, total), weights)| {
        let share = Share {
            tier: cluster.tier,
            share: cluster.share,
            total,
            weights,
        };
        (Arc::clone(cluster.candidate.id), share)
    });
    Shares {
        health,
        loads,
        panic,
        clusters: clusters.collect(),
        precision,
        scheduler: scheduler(input.scheduling, unequal),
    }
}

/// Returns `true` if the first tiers, so many, take all connections whatever the clusters of later
/// ones have. `clusters` needs those of the first ones. It holds only if one of them has a ready
/// endpoint: if none has, those of later tiers decide which endpoints are usable.
#[must_use]
pub fn is_settled(input: &Input<'_>, tiers: usize) -> bool {
    let first = Input {
        tiers: &input.tiers[..tiers.min(input.tiers.len())],
        ..*input
    };
    // Numbers of endpoints decide, not the endpoints.
    loads::are_full(&candidates(&first, |_| Vec::new()), &first)
}

fn scheduler(scheduling: Scheduling<'_>, unequal: bool) -> Option<String> {
    match (scheduling, unequal) {
        (Scheduling::Named(name), _) => Some(name.to_owned()),
        (_, false) => None,
        (Scheduling::Default, true) => Some(String::from("wrr")),
        (Scheduling::Affinity, true) => Some(String::from("mh")),
    }
}

/// The clusters of each tier that may have a share: not those of weight 0, which count neither as
/// ready nor as missing. Each has the endpoints that `endpoints` says.
fn candidates<'a>(
    input: &Input<'a>,
    endpoints: impl Fn(&Cluster) -> Vec<(SocketAddr, u32)> + Copy,
) -> Vec<Vec<Candidate<'a>>> {
    let mut seen = BTreeSet::new();
    let tiers = input.tiers.iter().map(|tier| {
        // Tiers may name many clusters that are not looked at.
        if seen.len() == input.clusters.len() {
            return Vec::new();
        }
        let members: Vec<(&Arc<str>, Option<u16>)> = match tier {
            Tier::Alike(ids) => ids.iter().map(|id| (id, None)).collect(),
            Tier::Weighted(ids) => ids.iter().map(|(id, weight)| (id, Some(*weight))).collect(),
        };
        let known = members.into_iter().filter_map(|(id, weight)| {
            let (id, cluster) = input.clusters.get_key_value(id)?;
            Some((id, cluster, weight))
        });
        let first = known.filter(|(id, _, _)| seen.insert(*id));
        let used = first.filter(|(_, _, weight)| *weight != Some(0));
        used.map(|(id, cluster, weight)| candidate((id, cluster, weight), endpoints))
            .collect()
    });
    tiers.collect()
}

/// The usable endpoints of a cluster with their own weights, all above 0.
fn usable(cluster: &Cluster) -> impl Iterator<Item = (SocketAddr, u32)> {
    let usable = cluster.endpoints.iter().filter(|endpoint| endpoint.usable);
    let weighed = usable.map(|endpoint| {
        let own = if cluster.gateway { 1 } else { endpoint.weight };
        (endpoint.address, own)
    });
    weighed.filter(|(_, own)| *own > 0)
}

/// The same, sorted.
fn endpoints(cluster: &Cluster) -> Vec<(SocketAddr, u32)> {
    let mut endpoints = Vec::with_capacity(cluster.endpoints.len());
    endpoints.extend(usable(cluster));
    // Mostly they are sorted already; of copies the last one counts.
    if !endpoints.is_sorted_by(|(one, _), (next, _)| one < next) {
        let by_address: BTreeMap<SocketAddr, u32> = endpoints.into_iter().collect();
        endpoints = by_address.into_iter().collect();
    }
    endpoints
}

fn candidate<'a>(
    (id, cluster, weight): (&'a Arc<str>, &Cluster, Option<u16>),
    endpoints: impl Fn(&Cluster) -> Vec<(SocketAddr, u32)>,
) -> Candidate<'a> {
    let step = u32::from(cluster.step).min(TWENTIETHS);
    let is_away = cluster.drained && step == 0;
    let ready = if is_away || usable(cluster).next().is_none() {
        0
    } else {
        cluster.ready
    };
    Candidate {
        id,
        weight,
        endpoints: endpoints(cluster),
        ready: ready.into(),
        expected: if is_away { 0 } else { cluster.expected.into() },
        step,
        gateway: cluster.gateway,
    }
}
