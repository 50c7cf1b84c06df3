// SPDX-License-Identifier: Apache-2.0

//! The decisions about several clusters: which endpoints of which cluster serve a Service of the
//! set, with what share.
//!
//! Pure: values in, values out; no I/O, no clock. Time is an argument where it matters. Equal inputs
//! give equal results in any order, so that all replicas of a controller decide alike.
//!
//! * [`gateway`]: gateways of clusters whose pods other clusters do not reach, and their ports;
//! * [`imports`]: which imports exist in which clusters, and why others do not;
//! * [`merge`]: exports of several clusters as one import, and their conflicts;
//! * [`plans`]: what the controller of a cluster needs to serve its imports itself;
//! * [`shares`]: weights of the endpoints of one import from tiers, weights and health of clusters;
//! * [`state`]: contact with clusters, their loss, return and drain;
//! * [`vip`]: virtual addresses of imports.

#![forbid(unsafe_code)]

pub mod gateway;
pub mod imports;
pub mod merge;
mod moment;
pub mod plans;
pub mod shares;
mod stable;
pub mod state;
pub mod vip;

pub use moment::Moment;
