// SPDX-License-Identifier: Apache-2.0

//! Plans the writes of MCS objects: the differences of what clusters have and should have, for those who write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_federate::imports::ImportName;
use portolan_mcs::Awaited;
use portolan_select::Pipeline;
use portolan_source::lease::Board;

use crate::mcs::{Leading, Spared, Work, Works};

/// Plans the writes into all clusters that are reached by their API servers.
#[derive(Debug, Default)]
pub(crate) struct McsPlanner {
    works: Works,
    /// `None`: this replica is the only one.
    leading: Option<Leading>,
    /// Inputs of the last plan beside objects, and the number of executors that had joined.
    last: Option<(Inputs, u64)>,
}

/// Inputs of a plan beside objects.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::writer) struct Inputs {
    /// The clusters in contact whose source has sent all objects.
    pub(super) reached: BTreeSet<Arc<str>>,
    /// The members that may still change what is wanted, by their ids alone.
    pub(super) awaited: Awaited,
    /// Use of EndpointSlices.
    pub(super) slices: SliceUse,
    /// Whether this replica writes.
    pub(super) is_leading: bool,
}

/// Use of the EndpointSlices of imports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::writer) enum SliceUse {
    /// They are written.
    Written,
    /// None is wanted: those that were written are deleted.
    Unwanted,
    /// It is not known: those that are there stay.
    Unknown,
}

impl McsPlanner {
    pub(crate) fn new(works: Works, leading: Leading) -> Self {
        Self {
            works,
            leading: Some(leading),
            last: None,
        }
    }

    pub(super) fn is_leading(&self) -> bool {
        self.leading.as_ref().is_none_or(Leading::is_leading)
    }

    /// The text by which the leading replica informs the others; `None` if there are no others.
    pub(super) fn board(&self) -> Option<&Board> {
        self.leading.as_ref()?.board()
    }

    pub(super) fn clusters(&self) -> Vec<Arc<str>> {
        self.works.clusters()
    }

    pub(super) fn writes_to(&self, cluster: &Arc<str>) -> bool {
        self.works.clusters().contains(cluster)
    }

    /// Plans the writes into the clusters that are reached, and none into others, if anything changed.
    pub(super) fn plan(&mut self, pipeline: &mut Pipeline, inputs: Inputs, has_changed: bool) {
        let inputs = (inputs, self.works.joined());
        let is_same = self.last.as_ref() == Some(&inputs);
        let (inputs, joined) = inputs;
        let are_written = inputs.slices == SliceUse::Written;
        let has_endpoints = pipeline.take_endpoints_changed() && are_written;
        if is_same && !has_changed && !has_endpoints {
            return;
        }
        let ids = &inputs.awaited.ids;
        let awaited = Awaited {
            ids: ids.clone(),
            exports: pipeline.awaited_exports(ids),
        };
        for cluster in self.works.clusters() {
            let is_written = inputs.is_leading && inputs.reached.contains(&cluster);
            let work = if is_written {
                work(pipeline, &cluster, inputs.slices, &awaited)
            } else {
                Work::default()
            };
            self.works.set(&cluster, work);
        }
        self.last = Some((inputs, joined));
    }
}

fn work(pipeline: &Pipeline, cluster: &Arc<str>, slices: SliceUse, awaited: &Awaited) -> Work {
    // As long as a member is awaited its slices may be missing, and others of the imports that it exports.
    let spared = Spared {
        imports: pipeline.awaited_imports(cluster, awaited),
        sources: awaited.ids.clone(),
    };
    let slices = match slices {
        SliceUse::Unknown => None,
        // A process that begins does not know whether slices were wanted before.
        SliceUse::Unwanted => Some(Arc::default()),
        SliceUse::Written => {
            let mut slices = pipeline.mcs_slices(cluster);
            slices.retain(|_, slice| !spared.imports.contains(&slice.import));
            Some(Arc::new(slices))
        }
    };
    let some = slices.as_ref().filter(|slices| !slices.is_empty());
    let owners = some.map(|_| owners(pipeline, cluster));
    Work {
        writes: Arc::new(pipeline.mcs_writes(cluster, awaited)),
        slices,
        spared: Arc::new(spared),
        owners: Arc::new(owners.unwrap_or_default()),
    }
}

/// The UIDs of a cluster's own ServiceImports.
fn owners(pipeline: &Pipeline, cluster: &Arc<str>) -> BTreeMap<ImportName, Arc<str>> {
    let imports = pipeline.catalog().observed_imports(cluster);
    let own = imports.filter(|import| import.own.is_some() && !import.uid.is_empty());
    let named = own.map(|import| {
        let name = ImportName {
            namespace: Arc::clone(&import.key.namespace),
            name: Arc::clone(&import.key.name),
        };
        (name, Arc::clone(&import.uid))
    });
    named.collect()
}

#[cfg(test)]
mod tests;
