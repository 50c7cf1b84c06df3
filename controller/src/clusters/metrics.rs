// SPDX-License-Identifier: Apache-2.0

//! Metrics of clusters, computed when they are scraped.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use portolan_runtime::{Scrape, gauge_value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::states::States;
use super::{ClusterSources, ClusterStates, SourceContact};

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

/// Labels of a cluster and a reason: of the end of a stream of its edge, or of a refusal of an export.
#[derive(Debug, EncodeLabelSet)]
struct ReasonLabel {
    cluster: String,
    reason: &'static str,
}

/// Label of the reason of a conflict.
#[derive(Debug, EncodeLabelSet)]
struct ConflictLabel {
    reason: &'static str,
}

/// Metrics of the clusters that edge controllers send.
#[derive(Debug, Default)]
struct Edges {
    connected: Vec<(ClusterLabel, i64)>,
    transitions: Vec<(ClusterLabel, u64)>,
    ended: Vec<(ReasonLabel, u64)>,
}

impl Edges {
    fn read(sources: &BTreeMap<Arc<str>, SourceContact>) -> Self {
        let mut all = Self::default();
        for (cluster, contact) in sources {
            let SourceContact::Edge(stats) = contact else {
                continue;
            };
            let label = || ClusterLabel::new(cluster);
            let is_connected = stats.edge().is_some();
            all.connected.push((label(), i64::from(is_connected)));
            let transitions = stats.transitions.load(Ordering::Relaxed);
            all.transitions.push((label(), transitions));
            all.ended
                .extend(stats.ended().into_iter().map(|(reason, count)| {
                    let cluster = cluster.to_string();
                    (ReasonLabel { cluster, reason }, count)
                }));
        }
        all
    }

    fn encode(self, scrape: &mut Scrape<'_>) -> Result<(), std::fmt::Error> {
        scrape.gauges(
            "cluster_edge_connected",
            "Whether the edge controller of a cluster has a stream",
            self.connected,
        )?;
        scrape.counters(
            "cluster_edge_transitions",
            "Sets of changes taken in from the edge controller of a cluster",
            self.transitions,
        )?;
        scrape.counters(
            "cluster_edge_ends",
            "Streams of edge controllers that ended or were refused: answers, broken, bucket, closed, listing, \
             mismatch, object, other_edge, protocol, quota, rate or replaced",
            self.ended,
        )
    }
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
        let edges = Edges::read(&sources);
        drop(sources);
        let mut scrape = Scrape::new(encoder);
        scrape.gauges(
            "cluster_last_contact_seconds",
            "Time since the last contact with the source of a cluster",
            clusters,
        )?;
        edges.encode(&mut scrape)?;
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
        )?;
        encode_counts(&states, &mut scrape)?;
        encode_work(&states, &mut scrape)
    }
}

/// Encodes the numbers of exports and imports, and of what is wrong with them and with the policy.
fn encode_counts(states: &States, scrape: &mut Scrape<'_>) -> Result<(), std::fmt::Error> {
    let counts = &states.counts;
    for (name, help, counts) in [
        (
            "exports",
            "Services that a cluster exports",
            &counts.exports,
        ),
        (
            "imports",
            "Services that a cluster imports, its own ones included",
            &counts.imports,
        ),
    ] {
        scrape.gauges(name, help, by_cluster(counts))?;
    }
    let refused = counts.refused.iter().flat_map(|(cluster, reasons)| {
        reasons.iter().map(move |(&reason, &count)| {
            let cluster = cluster.to_string();
            (ReasonLabel { cluster, reason }, gauge_value(count))
        })
    });
    scrape.gauges(
        "export_refused",
        "Exports of a cluster that are none: NoService, InvalidServiceType, DeniedByPolicy or QuotaExceeded",
        refused,
    )?;
    let conflicts = counts.conflicts.iter();
    let conflicts =
        conflicts.map(|(&reason, &count)| (ConflictLabel { reason }, gauge_value(count)));
    scrape.gauges(
        "conflicts",
        "Exports that differ from others of their import, by the reason of the condition Conflict",
        conflicts,
    )?;
    scrape.gauge(
        "policy_problems",
        "Problems of the policy of several clusters, and of access to its clusters",
        gauge_value(states.policy_problems),
    )
}

/// Encodes the work that clusters cause.
fn encode_work(states: &States, scrape: &mut Scrape<'_>) -> Result<(), std::fmt::Error> {
    let changes = states.changes.iter();
    let changes = changes.map(|(cluster, count)| (ClusterLabel::new(cluster), *count));
    scrape.counters(
        "cluster_changes",
        "Changes of objects that the source of a cluster has sent",
        changes,
    )?;
    scrape.gauges(
        "cluster_queue",
        "Events of the source of a cluster that wait to be taken in, looked at once a second; 8 are the most",
        by_cluster(&states.queues),
    )?;
    scrape.histogram(
        "federation_duration_seconds",
        "Time of a flush until imports are planned, and have their addresses and ports at gateways",
        &states.planning.values(),
    )
}

fn by_cluster(counts: &BTreeMap<Arc<str>, usize>) -> impl Iterator<Item = (ClusterLabel, i64)> {
    let counts = counts.iter();
    counts.map(|(cluster, count)| (ClusterLabel::new(cluster), gauge_value(*count)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_select::FederationCounts;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn exports_imports_and_work_are_counted_by_cluster_and_reason() {
        let states = ClusterStates::default();
        {
            let mut states = states.lock();
            states.counts = FederationCounts {
                exports: [("eu-1".into(), 5)].into(),
                imports: [("eu-1".into(), 7)].into(),
                refused: [("eu-1".into(), [("NoService", 2)].into())].into(),
                conflicts: [("PortConflict", 4)].into(),
            };
            states.policy_problems = 3;
            states.changes.insert("eu-1".into(), 11);
            states.queues.insert("eu-1".into(), 8);
            states.planning.note(Duration::from_secs(1));
        }
        let sources = ClusterSources::default();
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ClusterCollector { sources, states }));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "exports{cluster=\"eu-1\"} 5",
            "imports{cluster=\"eu-1\"} 7",
            "export_refused{cluster=\"eu-1\",reason=\"NoService\"} 2",
            "conflicts{reason=\"PortConflict\"} 4",
            "policy_problems 3",
            "cluster_changes_total{cluster=\"eu-1\"} 11",
            "cluster_queue{cluster=\"eu-1\"} 8",
            "federation_duration_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
