// SPDX-License-Identifier: Apache-2.0

//! The states of clusters as metrics and dumps show them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_federate::state::Status;

/// The states of clusters, shared with metrics and dumps.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClusterStates(Arc<Mutex<States>>);

/// The states of clusters.
#[derive(Debug, Default)]
pub(crate) struct States {
    /// By the name of the cluster.
    pub(crate) statuses: BTreeMap<Arc<str>, Status>,
    /// Whether so many clusters are stale that none is lost.
    pub(crate) preserving: bool,
    /// The number of gateways' addresses that take connections, by the name of each cluster that has gateways.
    pub(crate) gateways: BTreeMap<Arc<str>, usize>,
    /// Number of restarts of the source of a cluster after a panic, by its name.
    pub(crate) restarts: BTreeMap<Arc<str>, u64>,
}

impl ClusterStates {
    pub(crate) fn lock(&self) -> MutexGuard<'_, States> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
