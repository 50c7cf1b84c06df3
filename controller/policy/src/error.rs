// SPDX-License-Identifier: Apache-2.0

//! Errors of an object, by reason.

use std::fmt;

use crate::{ObjectName, Overlap};

/// The reason of a condition `Accepted=False`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A field is unknown, missing or of another type.
    InvalidStructure,
    /// A selector that can select nothing meant so.
    InvalidSelector,
    /// A weight outside 0 to 1000, or some members of a tier without one.
    InvalidWeight,
    /// A tier that is of several kinds, empty, one too many, or after `rest`.
    InvalidTier,
    /// A threshold outside its range.
    InvalidThreshold,
    /// A network that is none, or not with the others.
    InvalidNetwork,
    /// A range of ports that is none.
    InvalidPortRange,
    /// A duration that is none, or outside its range.
    InvalidDuration,
    /// No way to reach the cluster, or several.
    AccessNotOne,
    /// Tokens of edge controllers without keys or ServiceAccounts.
    InvalidTokens,
    /// The id of an existing Cluster has changed.
    ImmutableId,
    /// Another object has the same id or name.
    DuplicateId,
    /// As many objects are in force as there may be.
    QuotaExceeded,
    /// The Secret with the kubeconfig is not there.
    SecretNotFound,
    /// The kubeconfig asks for something that is not allowed.
    KubeconfigForbidden,
    /// A warning: no Cluster has this name, and the rest of the object holds.
    UnknownCluster,
}

impl Reason {
    /// As in a condition.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidStructure => "InvalidStructure",
            Self::InvalidSelector => "InvalidSelector",
            Self::InvalidWeight => "InvalidWeight",
            Self::InvalidTier => "InvalidTier",
            Self::InvalidThreshold => "InvalidThreshold",
            Self::InvalidNetwork => "InvalidNetwork",
            Self::InvalidPortRange => "InvalidPortRange",
            Self::InvalidDuration => "InvalidDuration",
            Self::AccessNotOne => "AccessNotOne",
            Self::InvalidTokens => "InvalidTokens",
            Self::ImmutableId => "ImmutableID",
            Self::DuplicateId => "DuplicateID",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::SecretNotFound => "SecretNotFound",
            Self::KubeconfigForbidden => "KubeconfigForbidden",
            Self::UnknownCluster => "UnknownCluster",
        }
    }

    /// Returns `true` if the object is in force nevertheless.
    #[must_use]
    pub fn is_warning(self) -> bool {
        self == Self::UnknownCluster
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Error of a field. The text is the message of a condition and of a problem in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the variants are")]
pub enum PolicyError {
    #[error("{0}")]
    Structure(String),
    #[error("{0:?}: expected a name, or its beginning and \"*\"")]
    NamePattern(String),
    #[error("{0:?}: expected a label's key, as in \"example.org/tier\"")]
    LabelKey(String),
    #[error("{operator} has {count} values: expected {expected}")]
    OperatorValues {
        operator: &'static str,
        count: usize,
        expected: &'static str,
    },
    #[error("\"names\" means nothing in the labels of Services: expected \"services.names\"")]
    NamesOfServices,
    #[error("{0}: expected a weight of 0 to 1000")]
    WeightRange(i64),
    #[error("missing: other members of the tier have a weight: expected all of them to, or none")]
    WeightMissing,
    #[error("{0} tiers: expected at most 8")]
    TierCount(usize),
    #[error("{0}: expected exactly one of \"clusters\", \"sameAs\" and \"rest\"")]
    TierKind(String),
    #[error("expected either \"local\" or a selector")]
    LocalAndSelector,
    #[error("empty: expected at least one {0}")]
    TierEmpty(&'static str),
    #[error("\"rest\" is in tier {0}: expected it in the last tier")]
    AfterRest(usize),
    #[error("{found}: expected {expected}")]
    Threshold {
        found: String,
        expected: &'static str,
    },
    #[error("{0:?}: expected a network such as 10.1.0.0/16")]
    NetworkText(String),
    #[error("{found} has bits of a host: expected {network}")]
    HostBits { found: String, network: String },
    #[error("{found}: {other} is of the same family: expected one range for each family")]
    FamilyTwice { found: String, other: String },
    #[error("empty: expected at least one network of pods")]
    NoPodNetwork,
    #[error("missing: expected the gateways of a cluster in mode Gateway")]
    NoGateway,
    #[error("empty: expected the networks of nodes of a cluster with gateways")]
    NoNodeNetwork,
    #[error("{0:?}: expected a range of ports from 1 to 65535 such as 20000-29999")]
    PortRange(String),
    #[error("{0:?}: expected a duration such as 500ms, 5s or 2m")]
    Duration(String),
    #[error("{found}: expected at most {most}")]
    DurationRange { found: String, most: &'static str },
    #[error("{found}: expected exactly one of {expected}")]
    AccessNotOne {
        found: String,
        expected: &'static str,
    },
    #[error("{0}: expected exactly one of jwks and jwksFile")]
    TokenKeysNotOne(&'static str),
    #[error(
        "empty: expected the ServiceAccounts of these clients: any pod can get a token of its own"
    )]
    NoServiceAccount,
    #[error(
        "{0:?} is in spec.access.edge.tokens too: expected another one, which tells agents from edges"
    )]
    AccountOfEdges(String),
    #[error("{0:?}: expected a ServiceAccount as namespace/name")]
    ServiceAccount(String),
    #[error("{now:?}: expected {was:?}: the id of a cluster never changes")]
    ImmutableId { was: String, now: String },
    #[error("Cluster {other:?} has the id {id:?} too")]
    DuplicateId { id: String, other: String },
    #[error("{0} is defined twice")]
    DefinedTwice(ObjectName),
    #[error("{0} is in force: expected one ClusterSet")]
    SecondClusterSet(ObjectName),
    #[error("no Secret {namespace}/{name} with the key {key:?}")]
    SecretNotFound {
        namespace: String,
        name: String,
        key: String,
    },
    #[error("the kubeconfig has {0}: expected data within it")]
    KubeconfigForbidden(String),
    #[error("{0}, which is in force")]
    Overlap(Overlap),
    #[error(
        "{0} other Clusters are in force, and spec.quota.clusters of the ClusterSet allows no more"
    )]
    TooManyClusters(usize),
    #[error("{0} other ImportPolicies name nodes, and no more can")]
    TooManyNodeSelectors(usize),
    #[error("no Cluster {0:?}: the rest of the object is in force")]
    UnknownCluster(String),
}

impl PolicyError {
    /// The reason of the condition.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Structure(_) => Reason::InvalidStructure,
            Self::NamePattern(_)
            | Self::LabelKey(_)
            | Self::OperatorValues { .. }
            | Self::NamesOfServices
            | Self::TooManyNodeSelectors(_) => Reason::InvalidSelector,
            Self::WeightRange(_) | Self::WeightMissing => Reason::InvalidWeight,
            Self::TierCount(_)
            | Self::TierKind(_)
            | Self::LocalAndSelector
            | Self::TierEmpty(_)
            | Self::AfterRest(_) => Reason::InvalidTier,
            Self::Threshold { .. } => Reason::InvalidThreshold,
            Self::NetworkText(_)
            | Self::HostBits { .. }
            | Self::FamilyTwice { .. }
            | Self::NoPodNetwork
            | Self::NoGateway
            | Self::NoNodeNetwork
            | Self::Overlap(_) => Reason::InvalidNetwork,
            Self::PortRange(_) => Reason::InvalidPortRange,
            Self::Duration(_) | Self::DurationRange { .. } => Reason::InvalidDuration,
            Self::AccessNotOne { .. } => Reason::AccessNotOne,
            Self::TokenKeysNotOne(_)
            | Self::NoServiceAccount
            | Self::ServiceAccount(_)
            | Self::AccountOfEdges(_) => Reason::InvalidTokens,
            Self::ImmutableId { .. } => Reason::ImmutableId,
            Self::DuplicateId { .. } | Self::DefinedTwice(_) | Self::SecondClusterSet(_) => {
                Reason::DuplicateId
            }
            Self::TooManyClusters(_) => Reason::QuotaExceeded,
            Self::SecretNotFound { .. } => Reason::SecretNotFound,
            Self::KubeconfigForbidden(_) => Reason::KubeconfigForbidden,
            Self::UnknownCluster(_) => Reason::UnknownCluster,
        }
    }
}

/// Fault in one field of one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The path of the field, as in `spec.tiers[0].clusters[1].weight`.
    pub field: String,
    /// The error.
    pub error: PolicyError,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "{}", self.error)
        } else {
            write!(f, "{}: {}", self.field, self.error)
        }
    }
}
