// SPDX-License-Identifier: Apache-2.0

//! Conflicts of exports.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::{Affinity, Export, ImportKind, Port};

/// Property that exports differ in, in the order of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConflictReason {
    /// The sets of ports.
    Port,
    /// Headless or not.
    Type,
    /// Whether clients stay with their endpoint.
    SessionAffinity,
    /// For how long.
    SessionAffinityConfig,
    /// Exported labels.
    Labels,
    /// Exported annotations.
    Annotations,
    /// `internalTrafficPolicy`.
    InternalTrafficPolicy,
    /// `trafficDistribution`.
    TrafficDistribution,
    /// An export has no family of the winner's, or none of those that an importing cluster has addresses of: nobody, or
    /// nobody there, reaches its endpoints.
    IpFamily,
    /// `clusterSelectors`.
    ClusterSelectors,
}

impl ConflictReason {
    /// All reasons, in the order of a condition.
    pub fn all() -> impl Iterator<Item = Self> {
        FIELDS.into_iter().map(|(reason, _)| reason)
    }

    /// As in the condition `Conflict`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Port => "PortConflict",
            Self::Type => "TypeConflict",
            Self::SessionAffinity => "SessionAffinityConflict",
            Self::SessionAffinityConfig => "SessionAffinityConfigConflict",
            Self::Labels => "LabelsConflict",
            Self::Annotations => "AnnotationsConflict",
            Self::InternalTrafficPolicy => "InternalTrafficPolicyConflict",
            Self::TrafficDistribution => "TrafficDistributionConflict",
            Self::IpFamily => "IPFamilyConflict",
            Self::ClusterSelectors => "ClusterSelectorsConflict",
        }
    }

    fn field(self) -> &'static str {
        match self {
            Self::Port => "ports",
            Self::Type => "type",
            Self::SessionAffinity => "sessionAffinity",
            Self::SessionAffinityConfig => "sessionAffinityConfig",
            Self::Labels => "exportedLabels",
            Self::Annotations => "exportedAnnotations",
            Self::InternalTrafficPolicy => "internalTrafficPolicy",
            Self::TrafficDistribution => "trafficDistribution",
            Self::IpFamily => "ipFamilies",
            Self::ClusterSelectors => "clusterSelectors",
        }
    }
}

/// A field in which exports differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The field.
    pub reason: ConflictReason,
    /// The id of the cluster whose value counts.
    pub winner: Arc<str>,
    /// The ids of the clusters that differ from it.
    pub others: BTreeSet<Arc<str>>,
    /// The number of exports.
    pub of: usize,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let field = self.reason.field();
        let (others, of) = (self.others.len(), self.of);
        if self.reason == ConflictReason::Port {
            write!(f, "{field}: those of {} come first; ", self.winner)?;
        } else {
            write!(f, "{field}: that of {} counts; ", self.winner)?;
        }
        let differ = if others == 1 { "differs" } else { "differ" };
        write!(f, "{others} of {of} exports {differ}")
    }
}

/// Reason and message of the condition `Conflict`, which all exports have.
#[must_use]
pub fn condition(conflicts: &[Conflict]) -> (String, String) {
    if conflicts.is_empty() {
        return (String::from("NoConflicts"), String::new());
    }
    let reasons: Vec<&str> = conflicts
        .iter()
        .map(|conflict| conflict.reason.as_str())
        .collect();
    let messages: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
    (reasons.join(","), messages.join(". "))
}

/// Whether an export differs from the winner in a field.
type Differs = fn(&Export, &Export) -> bool;

const FIELDS: [(ConflictReason, Differs); 10] = [
    (ConflictReason::Port, |one, other| {
        ports(one) != ports(other)
    }),
    (ConflictReason::Type, |one, other| one.kind != other.kind),
    (ConflictReason::SessionAffinity, |one, other| {
        let has = |export: &Export| export.affinity != Affinity::None;
        are_addressed(one, other) && has(one) != has(other)
    }),
    (ConflictReason::SessionAffinityConfig, |one, other| {
        let has = |export: &Export| export.affinity != Affinity::None;
        are_addressed(one, other) && has(one) && has(other) && one.affinity != other.affinity
    }),
    (ConflictReason::Labels, |one, other| {
        one.labels != other.labels
    }),
    (ConflictReason::Annotations, |one, other| {
        one.annotations != other.annotations
    }),
    (ConflictReason::InternalTrafficPolicy, |one, other| {
        one.internal_local != other.internal_local
    }),
    (ConflictReason::TrafficDistribution, |one, other| {
        one.traffic_distribution != other.traffic_distribution
    }),
    (ConflictReason::IpFamily, |winner, other| {
        let mut families = other.families.iter();
        !families.any(|family| winner.families.contains(family))
    }),
    (ConflictReason::ClusterSelectors, |one, other| {
        one.cluster_selectors != other.cluster_selectors
    }),
];

/// Headless Services have no affinity that could differ.
fn are_addressed(one: &Export, other: &Export) -> bool {
    let is_addressed = |export: &Export| export.kind == ImportKind::ClusterSetIp;
    is_addressed(one) && is_addressed(other)
}

fn ports(export: &Export) -> BTreeSet<&Port> {
    export.ports.iter().collect()
}

pub(super) fn conflicts(winner: &Export, exports: &[&Export]) -> Vec<Conflict> {
    let fields = FIELDS.iter().map(|(reason, differs)| {
        let others = exports.iter().filter(|export| differs(winner, export));
        Conflict {
            reason: *reason,
            winner: Arc::clone(&winner.cluster),
            others: others.map(|export| Arc::clone(&export.cluster)).collect(),
            of: exports.len(),
        }
    });
    fields
        .filter(|conflict| !conflict.others.is_empty())
        .collect()
}
