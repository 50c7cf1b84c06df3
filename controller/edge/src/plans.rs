// SPDX-License-Identifier: Apache-2.0

//! Plans of imports, on their way from the centre to the edge that serves them.
//!
//! The centre keeps a [`PlanOutbox`] of the plans of a cluster, the edge the [`Plans`] that it has and a [`PlanInbox`]
//! for each stream. Both compare by the hashes of buckets, so that a stream that begins again, or an edge that starts
//! again with plans of its disk, is sent only what differs.

mod decode;
mod encode;
mod inbox;
mod outbox;
mod parts;
#[cfg(test)]
mod tests;

use portolan_federate::imports::ImportName;
use portolan_federate::plans::ExportName;
use std::sync::Arc;

pub use inbox::{PlanError, PlanInbox, Plans, RefusedPlan, SavedError};
pub use outbox::{PlanOutbox, PlanTooLarge, PlanTransition};
pub use parts::PlanParts;

/// Keeps the hashes of plans apart from any other use of BLAKE3.
const PLAN_KEY: &[u8; 32] = b"portolan.v1 plan of import (key)";

/// The largest plan, in bytes: an import with 256 ports of 64 clusters, or a part of a Service, has less.
pub const MAX_PLAN_BYTES: usize = 512 << 10;
/// The most plans of a cluster: 4,000 imports of Services in 50 clusters, and more.
pub const MAX_PLANS: usize = 250_000;
/// The most endpoints of all plans of a cluster.
pub const MAX_ENDPOINTS: usize = 1_000_000;
/// The most bytes of all plans of a cluster; those before a commit are counted apart.
pub const MAX_BYTES: usize = 128 << 20;
/// About the most endpoints of one part of a Service.
const PART_ENDPOINTS: usize = 64;
/// The most parts of a Service.
const MAX_PARTS: u32 = 4_096;

/// Kind and name of a plan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PlanName {
    Cluster(Arc<str>),
    Group(Arc<str>),
    Import(ImportName),
    Service(ExportName),
    Gateway(ImportName),
}
