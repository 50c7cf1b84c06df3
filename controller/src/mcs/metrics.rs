// SPDX-License-Identifier: Apache-2.0

//! Counts of writes.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Labels of a write.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct WriteLabels {
    cluster: String,
    kind: &'static str,
    result: &'static str,
}

/// Counts of writes by cluster, kind and result.
#[derive(Debug, Clone, Default)]
pub(crate) struct WriteCounts(Family<WriteLabels, Counter>);

impl WriteCounts {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let this = Self::default();
        registry.register(
            "mcs_writes",
            "Writes of MCS objects into a cluster: written, or refused as conflict, forbidden, invalid, missing or \
             error",
            this.0.clone(),
        );
        this
    }

    pub(crate) fn count(&self, cluster: &str, kind: &'static str, result: &'static str) {
        let labels = WriteLabels {
            cluster: cluster.to_owned(),
            kind,
            result,
        };
        self.0.get_or_create(&labels).inc();
    }
}
