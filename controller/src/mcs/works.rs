// SPDX-License-Identifier: Apache-2.0

//! Pending writes, by cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_federate::imports::ImportName;
use portolan_mcs::{WantedSlice, Write};
use tokio::sync::watch;

/// All that is to be written into one cluster now, in place of what was.
#[derive(Debug, Clone, Default)]
pub(crate) struct Work {
    /// The writes that make ServiceExports and ServiceImports as they should be, in order.
    pub(crate) writes: Arc<Vec<Write>>,
    /// The EndpointSlices of imports, in place of all that are there; `None` if none are written or deleted, nor looked
    /// for.
    pub(crate) slices: Option<Arc<BTreeMap<ImportName, WantedSlice>>>,
    /// EndpointSlices that are neither changed nor deleted. `slices` has none of them.
    pub(crate) spared: Arc<Spared>,
    /// The UIDs of ServiceImports, which own their slices.
    pub(crate) owners: Arc<BTreeMap<ImportName, Arc<str>>>,
}

/// EndpointSlices that stay unchanged while some members have not sent their objects.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    /// Imports that these members may export: all EndpointSlices of them stay.
    pub(crate) imports: BTreeSet<ImportName>,
    /// Ids of these members: the EndpointSlices from them stay.
    pub(crate) sources: BTreeSet<Arc<str>>,
}

/// The work of all clusters that are written to, shared by the task that plans it and those that do it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Works(Arc<Mutex<Queues>>);

#[derive(Debug, Default)]
struct Queues {
    by_cluster: BTreeMap<Arc<str>, watch::Sender<Work>>,
    /// Number of executors that have joined so far: a new one has no work yet.
    joined: u64,
}

impl Works {
    /// Begins to plan work for a cluster. Another executor of the same cluster gets no more.
    pub(crate) fn join(&self, cluster: &Arc<str>) -> watch::Receiver<Work> {
        let (sender, work) = watch::channel(Work::default());
        let mut queues = self.lock();
        queues.by_cluster.insert(Arc::clone(cluster), sender);
        queues.joined += 1;
        work
    }

    /// Ends the work for a cluster.
    pub(crate) fn leave(&self, cluster: &str) {
        self.lock().by_cluster.remove(cluster);
    }

    /// The clusters that are written to.
    pub(crate) fn clusters(&self) -> Vec<Arc<str>> {
        self.lock().by_cluster.keys().cloned().collect()
    }

    /// Returns the number of executors that have joined so far.
    pub(crate) fn joined(&self) -> u64 {
        self.lock().joined
    }

    /// Sets the work of a cluster.
    pub(crate) fn set(&self, cluster: &str, work: Work) {
        if let Some(sender) = self.lock().by_cluster.get(cluster) {
            sender.send_replace(work);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
