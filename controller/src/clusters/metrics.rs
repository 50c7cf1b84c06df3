// SPDX-License-Identifier: Apache-2.0

//! Metrics of clusters, computed when they are scraped.

use std::sync::PoisonError;

use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::ClusterSources;

/// Label of a cluster.
#[derive(Debug, EncodeLabelSet)]
struct ClusterLabel {
    cluster: String,
}

/// Collects the time since the last contact with each cluster.
#[derive(Debug)]
pub(crate) struct ClusterCollector(pub(crate) ClusterSources);

impl Collector for ClusterCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let sources = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let clusters = sources.iter().filter_map(|(cluster, contact)| {
            let label = ClusterLabel {
                cluster: cluster.to_string(),
            };
            Some((label, contact.silence()?.as_secs_f64()))
        });
        let clusters: Vec<_> = clusters.collect();
        drop(sources);
        let mut scrape = Scrape::new(encoder);
        scrape.gauges(
            "cluster_last_contact_seconds",
            "Time since the last contact with the source of a cluster",
            clusters,
        )
    }
}
