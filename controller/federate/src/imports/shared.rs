// SPDX-License-Identifier: Apache-2.0

//! Parts that imports share. A name that 50 clusters export is in 50 clusters an import of 50 exports:
//! without sharing, the plan would grow with the square of the number of clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::visible::Visible;
use super::{ByName, Candidate, ImportHere, ImportName, Statuses};
use crate::merge::{Export, Import, merge};

/// By name of the exporting cluster, the name that a Service has there.
pub(super) type Sources = BTreeMap<Arc<str>, ImportName>;

/// The distinct merges of the exports of one name: most importing clusters see the same exports.
#[derive(Debug, Default)]
pub(super) struct Merges(Vec<Merged>);

#[derive(Debug)]
struct Merged {
    sources: Arc<Sources>,
    last_winner: Option<Arc<str>>,
    import: Arc<Import>,
}

impl Merges {
    /// The import that visible exports make, and their names by exporting cluster; none without an export.
    /// `candidates` are these exports by exporting cluster.
    pub(super) fn merge(
        &mut self,
        group: &BTreeMap<Arc<str>, Visible>,
        last_winner: Option<&Arc<str>>,
        candidates: &BTreeMap<&Arc<str>, &Candidate>,
    ) -> Option<(Arc<Sources>, Arc<Import>)> {
        let is_same = |merged: &Merged| {
            let sources = group
                .iter()
                .map(|(cluster, visible)| (cluster, &visible.source));
            merged.last_winner.as_ref() == last_winner && merged.sources.iter().eq(sources)
        };
        if let Some(known) = self.0.iter().find(|merged| is_same(merged)) {
            return Some((Arc::clone(&known.sources), Arc::clone(&known.import)));
        }
        let exports = candidates
            .values()
            .map(|candidate| candidate.export.clone());
        let exports: Vec<Export> = exports.collect();
        let import = Arc::new(merge(&exports, last_winner.map(|id| &**id))?);
        let sources = group.iter();
        let sources =
            sources.map(|(cluster, visible)| (Arc::clone(cluster), visible.source.clone()));
        let sources = Arc::new(sources.collect());
        self.0.push(Merged {
            sources: Arc::clone(&sources),
            last_winner: last_winner.cloned(),
            import: Arc::clone(&import),
        });
        Some((sources, import))
    }
}

/// The imports that one is compared with, to share its traffic.
const COMPARED: usize = 8;

/// Puts an import among those of its cluster. It shares its traffic with one of a few others if they are
/// equal: policies select namespaces and clusters more often than single names.
pub(super) fn insert(all: &mut ByName<ImportHere>, name: ImportName, mut here: ImportHere) {
    let mut others = all.values().take(COMPARED);
    if let Some(other) = others.find(|other| other.traffic == here.traffic) {
        here.traffic = Arc::clone(&other.traffic);
    }
    all.insert(name, here);
}

/// Has exports with the same importers share them.
pub(super) fn share_importers(exports: &mut Statuses) {
    let mut last: Arc<BTreeSet<Arc<str>>> = Arc::default();
    for status in exports.values_mut().flat_map(BTreeMap::values_mut) {
        if status.importers == last {
            status.importers = Arc::clone(&last);
        } else {
            last = Arc::clone(&status.importers);
        }
    }
}
