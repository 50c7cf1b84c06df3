// SPDX-License-Identifier: Apache-2.0

//! Inputs of imports beyond objects and policies.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The state of a member, as far as shares are concerned. It depends on time, and is decided elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterState {
    /// The part of its share that it gets, in twentieths: 0 to 20.
    pub step: u8,
    /// `true` if the operator's drain leaves it nothing: at step 0 it counts as if it had no endpoints.
    pub drained: bool,
    /// Whether it is lost.
    pub lost: bool,
}

impl Default for ClusterState {
    /// A cluster with its whole share.
    fn default() -> Self {
        Self {
            step: portolan_federate::state::FULL,
            drained: false,
            lost: false,
        }
    }
}

/// State of an import that is kept over restarts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its virtual addresses, at most one of each family.
    pub ips: Vec<IpAddr>,
    /// The id of the cluster whose export won last.
    pub winner: Option<Arc<str>>,
    /// The ids of the clusters that export it. Imports with the same ones share them.
    pub clusters: Arc<BTreeSet<Arc<str>>>,
}
