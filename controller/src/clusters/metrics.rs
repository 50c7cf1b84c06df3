// SPDX-License-Identifier: Apache-2.0

//! Metrics of clusters, computed when they are scraped.

use std::sync::PoisonError;

use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::{ClusterSources, ClusterStates};

/// Label of a cluster.
#[derive(Debug, EncodeLabelSet)]
struct ClusterLabel {
    cluster: String,
}

impl ClusterLabel {
    fn new(cluster: &str) -> Self {
        let cluster = cluster.to_owned();
        Self { cluster }
    }
}

/// Labels of a cluster and its phase.
#[derive(Debug, EncodeLabelSet)]
struct PhaseLabel {
    cluster: String,
    phase: &'static str,
}

/// Collects contact with clusters, and their states.
#[derive(Debug)]
pub(crate) struct ClusterCollector {
    pub(crate) sources: ClusterSources,
    pub(crate) states: ClusterStates,
}

impl Collector for ClusterCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let clusters = sources.iter().filter_map(|(cluster, contact)| {
            let silence = contact.silence()?.as_secs_f64();
            Some((ClusterLabel::new(cluster), silence))
        });
        let clusters: Vec<_> = clusters.collect();
        drop(sources);
        let mut scrape = Scrape::new(encoder);
        scrape.gauges(
            "cluster_last_contact_seconds",
            "Time since the last contact with the source of a cluster",
            clusters,
        )?;
        let states = self.states.lock();
        let all = || states.statuses.iter();
        let phases = all().map(|(cluster, status)| {
            let label = PhaseLabel {
                cluster: cluster.to_string(),
                phase: status.phase.as_str(),
            };
            (label, 1_i64)
        });
        scrape.gauges(
            "cluster_phase",
            "1 for the phase of a cluster: Connecting, Ready, Stale, Lost, Returning, Draining or Drained",
            phases.collect::<Vec<_>>(),
        )?;
        let steps =
            all().map(|(cluster, status)| (ClusterLabel::new(cluster), i64::from(status.step)));
        scrape.gauges(
            "cluster_step",
            "Part of its share that a cluster gets in imports, in twentieths",
            steps.collect::<Vec<_>>(),
        )?;
        let gateways = states.gateways.iter();
        let gateways = gateways.map(|(cluster, count)| {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            (ClusterLabel::new(cluster), count)
        });
        scrape.gauges(
            "cluster_gateways",
            "Addresses of a cluster's gateways that take connections",
            gateways.collect::<Vec<_>>(),
        )?;
        let losses = all().map(|(cluster, status)| (ClusterLabel::new(cluster), status.losses));
        scrape.counters(
            "cluster_losses",
            "Times that a cluster was lost",
            losses.collect::<Vec<_>>(),
        )?;
        let restarts = states.restarts.iter();
        let restarts = restarts.map(|(cluster, count)| (ClusterLabel::new(cluster), *count));
        scrape.counters(
            "cluster_source_restarts",
            "Starts of the source of a cluster after a panic in it",
            restarts.collect::<Vec<_>>(),
        )?;
        scrape.gauge(
            "self_preservation",
            "1 while so many clusters are out of contact that none is lost",
            i64::from(states.preserving),
        )
    }
}
