// SPDX-License-Identifier: Apache-2.0

//! Kinds and names of objects.

use std::fmt;

/// A kind of policy object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The set of clusters and its defaults.
    ClusterSet,
    /// A member.
    Cluster,
    /// Rule for exports: the clusters and Services that may export, and the clusters that may import.
    ExportPolicy,
    /// Rule for imports: the clusters that import, and the Services that they import.
    ImportPolicy,
    /// Rule for the distribution of connections among clusters.
    TrafficPolicy,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [
        Self::ClusterSet,
        Self::Cluster,
        Self::ExportPolicy,
        Self::ImportPolicy,
        Self::TrafficPolicy,
    ];

    /// As in an object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterSet => "ClusterSet",
            Self::Cluster => "Cluster",
            Self::ExportPolicy => "ExportPolicy",
            Self::ImportPolicy => "ImportPolicy",
            Self::TrafficPolicy => "TrafficPolicy",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Kind and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The kind.
    pub kind: Kind,
    /// The name.
    pub name: String,
}

impl ObjectName {
    /// A name.
    #[must_use]
    pub fn new(kind: Kind, name: impl Into<String>) -> Self {
        Self {
            kind,
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}
