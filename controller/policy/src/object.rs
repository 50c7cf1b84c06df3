// SPDX-License-Identifier: Apache-2.0

//! Checked objects: every value that one of them has makes sense.

mod cluster;
mod cluster_set;
mod network;
mod policies;
mod traffic;

use portolan_director::read::Path;

pub use cluster::{
    Access, ClientTokens, Cluster, ClusterLoss, ClusterQuota, Drain, REGION, TokenKeys,
};
pub use cluster_set::{ClusterSet, Loss, Quota};
pub use network::{Gateway, Network, NotAdmitted, PortRange, PortRangeError};
pub use policies::{ExportPolicy, ImportPolicy};
pub use traffic::{MAX_TIERS, MAX_WEIGHT, Member, Threshold, Tier, TrafficPolicy};

use crate::Labels;

/// Metadata: the part that all objects have besides their spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    /// The name.
    pub name: String,
    /// `metadata.creationTimestamp` in seconds since 1970, if known: objects of files have none.
    pub created: Option<i64>,
    /// `metadata.labels`.
    pub labels: Labels,
}

impl Meta {
    /// Older objects first, an unknown age last, then by name.
    pub(crate) fn by_age(&self) -> (bool, i64, &str) {
        (
            self.created.is_none(),
            self.created.unwrap_or_default(),
            &self.name,
        )
    }
}

/// The path of a field of the spec.
fn spec(field: &str) -> Path {
    Path::default().field("spec").field(field)
}
