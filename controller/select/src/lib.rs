// SPDX-License-Identifier: Apache-2.0

//! Endpoint selection for each node: traffic policies, topology hints, terminating endpoints.
//!
//! Pure. [`categorize`] is upstream's rule for one node, word for word; [`Projector`] computes the
//! same for all nodes at once, as one shared record and small lists for the nodes that differ.

#![forbid(unsafe_code)]

mod categorize;
mod config;
mod delta;
mod explain;
mod federation;
mod pipeline;
mod project;
mod projector;
mod rule;
#[cfg(test)]
mod testing;

pub use categorize::{Categories, NodeView, categorize};
pub use config::{ParseSourceRangesError, SelectConfig, SourceRanges};
pub use delta::TableDelta;
pub use explain::{Explained, Explanation, Inquiry, NoAnswer};
pub use federation::{
    ClusterState, FederationCounts, GatewayPorts, Kept, NamedEndpoint, NamedImport, PlanBook,
    PlannedImport, PlannedShares, Replanned, ShownCluster, ShownExport, ShownGateway, ShownImport,
    ShownPort, Wanted, import_key, import_name,
};
pub use pipeline::{Audit, Pipeline};
pub use project::{Projection, project};
pub use projector::Projector;
