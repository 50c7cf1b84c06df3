// SPDX-License-Identifier: Apache-2.0

//! The policy that applies, and the reason.

use std::cmp::{Ordering, Reverse};
use std::fmt;

use crate::object::{Member, Tier};
use crate::spec::Action;
use crate::{
    ClusterFacts, ClusterSet, ExportPolicy, ImportPolicy, Meta, Selector, ServiceFacts,
    TrafficPolicy,
};

/// Reason why a policy applies. Its text is a reason in explanations.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Because {
    /// No policy selects it, so the ClusterSet's default holds.
    Default,
    /// The importing cluster exports it itself.
    Own,
    /// One policy alone selects it.
    Only(String),
    /// The policy comes before all others that select it.
    Before {
        /// The policy that applies.
        policy: String,
        /// The next one.
        other: String,
        /// Rule that decides between both.
        rule: Rule,
    },
}

/// Rule that decides between two policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// It names the Service more closely.
    Services,
    /// It names the importing cluster more closely.
    Clusters,
    /// Its priority is higher.
    Priority,
    /// The priorities are equal, and it denies.
    Denies,
    /// It is older.
    Age,
    /// Its name comes first.
    Name,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default of the ClusterSet: no policy selects it"),
            Self::Own => f.write_str("the cluster exports it itself"),
            Self::Only(policy) => write!(f, "{policy}: no other policy selects it"),
            Self::Before {
                policy,
                other,
                rule,
            } => {
                let rule = match rule {
                    Rule::Services => "names the Service more closely than",
                    Rule::Clusters => "names the importing cluster more closely than",
                    Rule::Priority => "has a higher priority than",
                    Rule::Denies => "denies, at the same priority as",
                    Rule::Age => "is older than",
                    Rule::Name => "comes by name before",
                };
                write!(f, "{policy}: {rule} {other}")
            }
        }
    }
}

impl Because {
    /// The policy that applies; none if a default does.
    #[must_use]
    pub fn policy(&self) -> Option<&str> {
        match self {
            Self::Default | Self::Own => None,
            Self::Only(policy) | Self::Before { policy, .. } => Some(policy),
        }
    }
}

/// Decision about an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportDecision<'p> {
    /// Whether it is allowed.
    pub action: Action,
    /// Whether it needs no ServiceExport.
    pub automatic: bool,
    /// The clusters that may import it; all if none.
    pub to: Option<&'p Selector>,
    /// Reason.
    pub because: Because,
}

impl ExportDecision<'_> {
    /// Returns `true` if a cluster may import it.
    #[must_use]
    pub fn reaches(&self, cluster: &ClusterFacts<'_>) -> bool {
        self.action == Action::Allow && self.to.is_none_or(|to| to.selects_cluster(cluster))
    }
}

/// Returns the decision about a Service of an exporting cluster: that of the matching policy with the highest priority,
/// of equal ones one that denies, the older, the first by name; else the set's default.
#[must_use]
pub fn export_decision<'p>(
    set: &'p ClusterSet,
    policies: impl IntoIterator<Item = &'p ExportPolicy>,
    cluster: &ClusterFacts<'_>,
    service: &ServiceFacts<'_>,
) -> ExportDecision<'p> {
    let matching = policies.into_iter().filter(|policy| {
        policy.clusters.selects_cluster(cluster) && policy.services.selects(service)
    });
    let order = |one: &&ExportPolicy, other: &&ExportPolicy| {
        by_priority(
            (one.priority, one.action, &one.meta),
            (other.priority, other.action, &other.meta),
        )
    };
    match first(matching, order, |policy| &policy.meta) {
        Some((policy, because)) => ExportDecision {
            action: policy.action,
            automatic: policy.automatic && policy.action == Action::Allow,
            to: Some(&policy.to),
            because,
        },
        None => ExportDecision {
            action: set.exports,
            automatic: set.automatic && set.exports == Action::Allow,
            to: None,
            because: Because::Default,
        },
    }
}

/// Decision about an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportDecision<'p> {
    /// Whether it is allowed.
    pub action: Action,
    /// The namespace that the Service has in the importing cluster, if another.
    pub namespace_as: Option<&'p str>,
    /// The name of the policy whose nodes get the virtual address; all nodes if none.
    pub nodes: Option<&'p str>,
    /// Reason.
    pub because: Because,
}

/// Returns the decision about the import of a Service from one cluster into another. Policies are chosen as for
/// exports. A cluster always imports the Services that it exports itself.
#[must_use]
pub fn import_decision<'p>(
    set: &'p ClusterSet,
    policies: impl IntoIterator<Item = &'p ImportPolicy>,
    importing: &ClusterFacts<'_>,
    exporting: &ClusterFacts<'_>,
    service: &ServiceFacts<'_>,
) -> ImportDecision<'p> {
    let matching = policies.into_iter().filter(|policy| {
        policy.clusters.selects_cluster(importing)
            && policy.from.selects_cluster(exporting)
            && policy.services.selects(service)
    });
    let order = |one: &&ImportPolicy, other: &&ImportPolicy| {
        by_priority(
            (one.priority, one.action, &one.meta),
            (other.priority, other.action, &other.meta),
        )
    };
    let mut decision = match first(matching, order, |policy| &policy.meta) {
        Some((policy, because)) => ImportDecision {
            action: policy.action,
            namespace_as: policy.namespace_as.as_deref(),
            nodes: policy.narrows().then_some(&*policy.meta.name),
            because,
        },
        None => ImportDecision {
            action: set.imports,
            namespace_as: None,
            nodes: None,
            because: Because::Default,
        },
    };
    if importing.name == exporting.name && decision.action == Action::Deny {
        decision = ImportDecision {
            action: Action::Allow,
            namespace_as: None,
            nodes: None,
            because: Because::Own,
        };
    }
    decision
}

/// The policy of an import's traffic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrafficDecision<'p> {
    /// The policy that applies, alone.
    pub policy: &'p TrafficPolicy,
    /// Reason.
    pub because: Because,
    /// Policies that select the Service too and do not apply, by name.
    pub shadowed: Vec<&'p str>,
}

/// The policy that applies to an import: the one that names the Service most closely, then the
/// importing cluster, then that with the highest priority, the older, the first by name.
#[must_use]
pub fn traffic_decision<'p>(
    policies: impl IntoIterator<Item = &'p TrafficPolicy>,
    importing: &ClusterFacts<'_>,
    service: &ServiceFacts<'_>,
) -> Option<TrafficDecision<'p>> {
    let matching: Vec<&TrafficPolicy> = policies
        .into_iter()
        .filter(|policy| {
            policy.clusters.selects_cluster(importing) && policy.services.selects(service)
        })
        .collect();
    let (policy, because) = first(
        matching.iter().copied(),
        |one, other| by_closeness(one, other),
        |policy| &policy.meta,
    )?;
    let others = matching.iter().map(|other| other.meta.name.as_str());
    let mut shadowed: Vec<&str> = others.filter(|name| *name != policy.meta.name).collect();
    shadowed.sort_unstable();
    Some(TrafficDecision {
        policy,
        because,
        shadowed,
    })
}

/// The clusters of a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolvedTier {
    /// Every endpoint counts alike.
    Alike(Vec<String>),
    /// Each cluster has a weight.
    Weighted(Vec<(String, u16)>),
}

/// Tiers as names of those `clusters` that are in them, and all of these alike without any tier; the importing one may be
/// among these. A cluster is in the first tier that names it, with the weight of the first member that
/// does. A property that the importing cluster lacks makes no cluster the same. A tier may be empty.
#[must_use]
pub fn resolve_tiers(
    tiers: &[Tier],
    importing: &ClusterFacts<'_>,
    clusters: &[ClusterFacts<'_>],
) -> Vec<ResolvedTier> {
    let mut left: Vec<&ClusterFacts<'_>> = clusters.iter().collect();
    if tiers.is_empty() {
        let names = left.iter().map(|cluster| cluster.name.to_owned());
        return vec![ResolvedTier::Alike(names.collect())];
    }
    let mut taken = |chosen: &dyn Fn(&ClusterFacts<'_>) -> bool| -> Vec<String> {
        let (of_tier, rest): (Vec<_>, Vec<_>) =
            left.iter().copied().partition(|cluster| chosen(cluster));
        left = rest;
        of_tier
            .into_iter()
            .map(|cluster| cluster.name.to_owned())
            .collect()
    };
    let is_member = |member: &Member, cluster: &ClusterFacts<'_>| match member {
        Member::Local => cluster.name == importing.name,
        Member::Selected(selector) => selector.selects_cluster(cluster),
    };
    let tiers = tiers.iter().map(|tier| match tier {
        Tier::Clusters(members) => ResolvedTier::Alike(taken(&|cluster| {
            members.iter().any(|member| is_member(member, cluster))
        })),
        Tier::Weighted(members) => {
            let weighted = members.iter().flat_map(|(member, weight)| {
                let names = taken(&|cluster| is_member(member, cluster));
                names.into_iter().map(|name| (name, *weight))
            });
            ResolvedTier::Weighted(weighted.collect())
        }
        Tier::SameAs(properties) => ResolvedTier::Alike(taken(&|cluster| {
            properties.iter().all(|property| {
                let own = importing.labels.get(property);
                own.is_some() && own == cluster.labels.get(property)
            })
        })),
        Tier::Rest => ResolvedTier::Alike(taken(&|_| true)),
    });
    tiers.collect()
}

/// The first policy by an order, and what decides between it and the next one.
fn first<'p, P: 'p>(
    policies: impl Iterator<Item = &'p P>,
    order: impl Fn(&&'p P, &&'p P) -> (Ordering, Rule),
    meta: impl Fn(&'p P) -> &'p Meta,
) -> Option<(&'p P, Because)> {
    let mut policies: Vec<&P> = policies.collect();
    policies.sort_by(|one, other| order(one, other).0);
    let winner = *policies.first()?;
    let name = meta(winner).name.clone();
    let because = match policies.get(1) {
        Some(second) => Because::Before {
            policy: name,
            other: meta(second).name.clone(),
            rule: order(&winner, second).1,
        },
        None => Because::Only(name),
    };
    Some((winner, because))
}

fn by_priority(
    (priority, action, meta): (i32, Action, &Meta),
    (other_priority, other_action, other_meta): (i32, Action, &Meta),
) -> (Ordering, Rule) {
    decided([
        (other_priority.cmp(&priority), Rule::Priority),
        (
            (action != Action::Deny).cmp(&(other_action != Action::Deny)),
            Rule::Denies,
        ),
        (age(meta).cmp(&age(other_meta)), Rule::Age),
        (meta.name.cmp(&other_meta.name), Rule::Name),
    ])
}

fn by_closeness(one: &TrafficPolicy, other: &TrafficPolicy) -> (Ordering, Rule) {
    let services = |policy: &TrafficPolicy| Reverse(policy.services.closeness());
    let clusters = |policy: &TrafficPolicy| Reverse(policy.clusters.closeness());
    decided([
        (services(one).cmp(&services(other)), Rule::Services),
        (clusters(one).cmp(&clusters(other)), Rule::Clusters),
        (other.priority.cmp(&one.priority), Rule::Priority),
        (age(&one.meta).cmp(&age(&other.meta)), Rule::Age),
        (one.meta.name.cmp(&other.meta.name), Rule::Name),
    ])
}

/// An unknown age comes last.
fn age(meta: &Meta) -> (bool, i64) {
    (meta.created.is_none(), meta.created.unwrap_or_default())
}

/// The first comparison that decides, else the last one.
fn decided<const N: usize>(comparisons: [(Ordering, Rule); N]) -> (Ordering, Rule) {
    let mut decisive = comparisons.iter().filter(|(order, _)| order.is_ne());
    decisive
        .next()
        .copied()
        .unwrap_or((Ordering::Equal, Rule::Name))
}

#[cfg(test)]
mod tests;
