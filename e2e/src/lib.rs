// SPDX-License-Identifier: Apache-2.0

//! Support for end-to-end tests and the demo: test lanes, a cluster of network namespaces, real Kubernetes
//! servers.

pub mod ask;
pub mod chart;
pub mod clients;
pub mod clock;
pub mod cluster;
pub mod clusters_demo;
pub mod conformance;
pub mod director_demo;
#[cfg(test)]
mod documents;
pub mod figure;
pub mod kubelets;
pub mod lane;
pub mod listing;
pub mod mcs;
pub mod objects;
pub mod ports;
pub mod programs;
pub mod rig;
pub mod saved_table;
pub mod scale;
pub mod servers;
pub mod specs;
pub mod static_api;
pub mod wait;
