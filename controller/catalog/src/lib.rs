//! The cluster as the sources told it: Services, EndpointSlices and Nodes, indexed.
//!
//! Pure: no I/O, no clock. Sources say [`Change`]s; [`Catalog::apply`] says what they made dirty.
//! Changes in any order and grouping give the same catalog.

#![forbid(unsafe_code)]

mod catalog;
mod change;
mod claims;
mod objects;
mod problem;

pub use catalog::{Catalog, DirtySet};
pub use change::Change;
pub use claims::{Claim, Claimant};
pub use objects::{
    Endpoint, EndpointSlice, Node, Object, ObjectKey, Service, ServicePort, SlicePort,
    TrafficPolicy,
};
pub use problem::{Kind, ObjectRef, Problem, Reason};
