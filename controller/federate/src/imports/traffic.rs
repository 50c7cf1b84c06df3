// SPDX-License-Identifier: Apache-2.0

//! Shares of connections to an import: its TrafficPolicy, or the wishes of the owners.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_policy::spec::{OwnerHints, SpillOver};
use portolan_policy::{
    Because, ClusterFacts, Labels, ResolvedTier, SchedulerName, ServiceFacts, Threshold,
    Tier as PolicyTier, TrafficDecision, resolve_tiers, traffic_decision,
};

use super::{Candidate, ImportName, World};
use crate::merge::Import;
use crate::shares::{Cluster, Input, Scheduling, Shares, Tier, is_settled, shares};

/// Distribution of connections to an import among the clusters that export it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traffic {
    /// Reason of the distribution.
    pub reason: TrafficReason,
    /// Policies that select the import and do not apply.
    pub shadowed: Vec<String>,
    /// The tiers, of ids of exporting clusters.
    pub tiers: Vec<Tier>,
    /// The ready endpoints below which load is given away.
    pub min_healthy: Threshold,
    /// Way in which it is given away.
    pub spill_over: SpillOver,
    /// Percentage of health of all tiers together below which all endpoints count alike; 0 for never.
    pub panic_threshold: u8,
    /// The most real servers of a record and family.
    pub max_endpoints: u32,
    /// The scheduler that the policy names.
    pub scheduler: Option<SchedulerName>,
}

/// A record of an import: one port in one importing cluster and family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImportRecord<'a> {
    /// The id of the importing cluster.
    pub importing: &'a str,
    /// The bytes of the record's key.
    pub key: &'a [u8],
    /// Whether clients stay with their endpoint.
    pub affinity: bool,
    /// The scheduler that the Service names.
    pub scheduler: Option<&'a str>,
}

impl Traffic {
    /// The shares of clusters in the connections to a record, and the weights of its real servers.
    /// `clusters` are those that expose its port, by id. A scheduler of the policy comes before one
    /// of the Service, and that before what affinity needs.
    #[must_use]
    pub fn shares(
        &self,
        record: ImportRecord<'_>,
        clusters: &BTreeMap<Arc<str>, Cluster>,
    ) -> Shares {
        let named = self.scheduler.map(SchedulerName::as_str);
        let scheduling = match named.or(record.scheduler) {
            Some(name) => Scheduling::Named(name),
            None if record.affinity => Scheduling::Affinity,
            None => Scheduling::Default,
        };
        shares(&self.input(record, scheduling, clusters))
    }

    /// Returns `true` if a cluster is in a tier, and in the first one with a weight: others get no
    /// connections.
    #[must_use]
    pub fn may_use(&self, id: &str) -> bool {
        let place = self.tiers.iter().find_map(|tier| match tier {
            Tier::Alike(ids) => ids.iter().any(|one| **one == *id).then_some(true),
            Tier::Weighted(ids) => {
                let mut ids = ids.iter();
                ids.find(|(one, _)| **one == *id)
                    .map(|(_, weight)| *weight > 0)
            }
        });
        place.unwrap_or(false)
    }

    /// Returns `true` if the clusters of the first tiers, so many, take all connections, whatever
    /// those of later ones have. `clusters` needs those of the first ones, of which one must have a
    /// ready endpoint.
    #[must_use]
    pub fn is_settled(&self, tiers: usize, clusters: &BTreeMap<Arc<str>, Cluster>) -> bool {
        let input = self.input(ImportRecord::default(), Scheduling::Default, clusters);
        is_settled(&input, tiers)
    }

    fn input<'a>(
        &'a self,
        record: ImportRecord<'a>,
        scheduling: Scheduling<'a>,
        clusters: &'a BTreeMap<Arc<str>, Cluster>,
    ) -> Input<'a> {
        Input {
            importing: record.importing,
            record: record.key,
            tiers: &self.tiers,
            clusters,
            min_healthy: self.min_healthy,
            spill_over: self.spill_over,
            panic_threshold: self.panic_threshold,
            max_endpoints: self.max_endpoints,
            scheduling,
        }
    }
}

/// Where the tiers of an import come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrafficReason {
    /// A TrafficPolicy.
    Policy(Because),
    /// `clusterSelectors` of the winning ServiceExport.
    ClusterSelectors,
    /// A weight of each cluster in annotations of the ServiceExports.
    Weights,
    /// Nothing is said: all endpoints are alike.
    Alike,
}

/// The rules of an import's traffic. `candidates` are its exports by name of the cluster.
pub(super) fn traffic(
    world: &World<'_>,
    importing: &Arc<str>,
    name: &ImportName,
    import: &Import,
    candidates: &BTreeMap<&Arc<str>, &Candidate>,
) -> Traffic {
    let none = Labels::new();
    let facts = |name| facts(world, name, &none);
    let here = facts(importing);
    let clusters: Vec<ClusterFacts<'_>> = candidates.keys().map(|name| facts(name)).collect();
    let resolved = |tiers: &[PolicyTier]| with_ids(world, resolve_tiers(tiers, &here, &clusters));
    let service = ServiceFacts {
        namespace: &name.namespace,
        name: &name.name,
        labels: &import.labels,
    };
    if let Some(decision) = traffic_decision(world.objects.traffic.values(), &here, &service) {
        let tiers = resolved(&decision.policy.tiers);
        return of_policy(world, decision, tiers);
    }
    let (reason, tiers) = match hinted(world, import, candidates) {
        Hint::Selectors(tiers) => (TrafficReason::ClusterSelectors, resolved(&tiers)),
        Hint::Weights(weights) => (TrafficReason::Weights, vec![Tier::Weighted(weights)]),
        Hint::None => (TrafficReason::Alike, resolved(&[])),
    };
    Traffic {
        reason,
        shadowed: Vec::new(),
        tiers,
        min_healthy: Threshold::Number(1),
        spill_over: SpillOver::AllAtOnce,
        panic_threshold: 0,
        max_endpoints: world.set.quota.endpoints_per_import,
        scheduler: None,
    }
}

fn facts<'a>(world: &'a World<'_>, name: &'a Arc<str>, none: &'a Labels) -> ClusterFacts<'a> {
    let member = world.members.get(name);
    ClusterFacts {
        name,
        labels: member.map_or(none, |member| &member.labels),
    }
}

fn of_policy(world: &World<'_>, decision: TrafficDecision<'_>, tiers: Vec<Tier>) -> Traffic {
    let policy = decision.policy;
    let most = world.set.quota.endpoints_per_import;
    Traffic {
        reason: TrafficReason::Policy(decision.because),
        shadowed: decision
            .shadowed
            .into_iter()
            .map(ToOwned::to_owned)
            .collect(),
        tiers,
        min_healthy: policy.min_healthy,
        spill_over: policy.spill_over,
        panic_threshold: policy.panic_threshold,
        max_endpoints: policy.max_endpoints.unwrap_or(most),
        scheduler: policy.scheduler,
    }
}

/// Wish of the owners of the Service.
enum Hint {
    Selectors(Vec<PolicyTier>),
    Weights(Vec<(Arc<str>, u16)>),
    None,
}

/// Selectors count before weights, and weights only if all exports have one.
fn hinted(
    world: &World<'_>,
    import: &Import,
    candidates: &BTreeMap<&Arc<str>, &Candidate>,
) -> Hint {
    if world.set.owner_hints == OwnerHints::Ignore {
        return Hint::None;
    }
    if !import.cluster_selectors.is_empty() {
        let mut tiers = import.cluster_selectors.clone();
        if tiers.last() != Some(&PolicyTier::Rest) {
            tiers.push(PolicyTier::Rest);
        }
        return Hint::Selectors(tiers);
    }
    let weights = candidates.values().map(|candidate| {
        let weight = candidate.weight?;
        Some((Arc::clone(&candidate.export.cluster), weight))
    });
    let weights: Option<Vec<_>> = weights.collect();
    weights.map_or(Hint::None, Hint::Weights)
}

/// Tiers of ids in place of names.
fn with_ids(world: &World<'_>, tiers: Vec<ResolvedTier>) -> Vec<Tier> {
    let id = |name: String| {
        let member = world.members.get(name.as_str())?;
        Some(Arc::clone(&member.id))
    };
    let tiers = tiers.into_iter().map(|tier| match tier {
        ResolvedTier::Alike(names) => Tier::Alike(names.into_iter().filter_map(id).collect()),
        ResolvedTier::Weighted(names) => {
            let weighted = names.into_iter();
            Tier::Weighted(
                weighted
                    .filter_map(|(name, weight)| Some((id(name)?, weight)))
                    .collect(),
            )
        }
    });
    tiers.collect()
}
