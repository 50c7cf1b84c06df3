// SPDX-License-Identifier: Apache-2.0

//! Numbers of exports and imports, for metrics. An owner of a Service chooses none of their labels.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_federate::imports::{ExportStatus, Quota, Ready, Valid};
use portolan_federate::merge::ConflictReason;

use super::Federation;

/// Numbers of exports and imports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FederationCounts {
    /// Exports that are neither bad nor refused, by the name of the exporting cluster.
    pub exports: BTreeMap<Arc<str>, usize>,
    /// Imports, by the name of the importing cluster.
    pub imports: BTreeMap<Arc<str>, usize>,
    /// Exports that are bad or refused, by the name of the exporting cluster and the reason.
    pub refused: BTreeMap<Arc<str>, BTreeMap<&'static str, usize>>,
    /// Exports that differ from others of their import, by the reason of the condition `Conflict`.
    pub conflicts: BTreeMap<&'static str, usize>,
}

impl Federation {
    /// The numbers of exports and imports, if the plan has changed since the last call: all exports are looked at.
    pub(crate) fn changed_counts(&mut self) -> Option<FederationCounts> {
        std::mem::take(&mut self.counts_changed).then(|| self.counts())
    }

    fn counts(&self) -> FederationCounts {
        let imports = self.plan.imports.iter();
        let imports = imports.map(|(cluster, all)| (Arc::clone(cluster), all.len()));
        let conflicts = ConflictReason::all().map(|reason| (reason.as_str(), 0));
        let mut counts = FederationCounts {
            imports: imports.collect(),
            conflicts: conflicts.collect(),
            ..FederationCounts::default()
        };
        for (cluster, all) in &self.plan.exports {
            let mut exported = 0;
            let mut refused = BTreeMap::from(refusals().map(|reason| (reason, 0)));
            for status in all.values() {
                match refusal(status) {
                    Some(reason) => *refused.entry(reason).or_default() += 1,
                    None => exported += 1,
                }
                for conflict in &status.conflicts {
                    let reason = conflict.reason.as_str();
                    *counts.conflicts.entry(reason).or_default() += 1;
                }
            }
            counts.exports.insert(Arc::clone(cluster), exported);
            counts.refused.insert(Arc::clone(cluster), refused);
        }
        counts
    }
}

/// All reasons of [`refusal`], so that a number that falls to 0 is told.
fn refusals() -> [&'static str; 4] {
    [
        Valid::NoService.as_str(),
        Valid::InvalidServiceType.as_str(),
        Ready::DeniedByPolicy.as_str(),
        Ready::QuotaExceeded(Quota::Exports(0)).as_str(),
    ]
}

/// Reason why an export is none: of its condition `Valid` if it is bad, else of `Ready`.
fn refusal(status: &ExportStatus) -> Option<&'static str> {
    match (status.valid, status.ready) {
        (Valid::Valid, Ready::Exported) => None,
        (Valid::Valid, ready) => Some(ready.as_str()),
        (valid, _) => Some(valid.as_str()),
    }
}
