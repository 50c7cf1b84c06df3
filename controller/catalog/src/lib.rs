// SPDX-License-Identifier: Apache-2.0

//! The cluster as reported by the sources: Services, EndpointSlices, Nodes and the weights of Pods,
//! indexed.
//!
//! Pure: no I/O, no clock. Sources send [`ObjectChange`]s; [`Catalog::apply`] returns what they made
//! dirty. Changes in any order and grouping give the same catalog.

#![forbid(unsafe_code)]

mod addresses;
mod catalog;
mod change;
mod claims;
mod dirty;
mod objects;
mod packed;
mod problem;
mod quick;
mod shared;

pub use catalog::{Catalog, Endpoints, Weights};
pub use change::ObjectChange;
pub use claims::{Claim, Claimant};
pub use dirty::DirtySet;
pub use objects::{
    AFFINITY_PARTIAL, CONDITIONS, ClusterProperty, Condition, Endpoint, EndpointRef, EndpointSlice,
    ExportPort, ExportStatus, HostFacts, ImportSpec, MAX_WEIGHT, Node, Object, ObjectKey,
    OwnImport, Pod, Service, ServiceExport, ServiceFacts, ServiceImport, ServicePort, ServiceType,
    SlicePort, TrafficPolicy,
};
pub use problem::{FieldProblem, Kind, ObjectRef, Reason};
pub use quick::{QuickMap, quick_hash};
