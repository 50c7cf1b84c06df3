// SPDX-License-Identifier: Apache-2.0

//! Held deletions of the source: flags, metrics, dump and confirmation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};
use portolan_catalog::Kind;
use portolan_runtime::{Scrape, gauge_value, parse_duration};
use portolan_source::deletions::{GuardConfig, HeldLoss, Size};
use portolan_source::{HeldDeletions, HeldKey};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde_json::{Value, json};

use crate::metrics::KindLabel;

/// Flags of the deletion guard and of the source's liveness.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Deletion guard")]
pub(crate) struct SourceGuardArgs {
    /// Limits, also of a relay.
    #[command(flatten)]
    limits: portolan_subscription::GuardArgs,

    /// Time without any message from the API server, with files that cannot all be read, or of a relay
    /// without tables from a controller, after which the controller is not ready; 0s for never. It goes on
    /// serving the last tables.
    #[arg(long, env = "PORTOLAN_SOURCE_TIMEOUT", default_value = "60s",
        value_parser = parse_duration)]
    source_timeout: Duration,
}

impl SourceGuardArgs {
    /// The silence of a source after which the controller is unready; `None` if it stays ready. A source that is
    /// polled is silent between two polls.
    pub(crate) fn source_timeout(&self, poll: Option<Duration>) -> Option<Duration> {
        let least = poll.unwrap_or_default().saturating_mul(2);
        (!self.source_timeout.is_zero()).then(|| self.source_timeout.max(least))
    }

    /// The limits of an API server's or files' deletions.
    pub(crate) fn config(&self) -> GuardConfig {
        let limits = self.upstream();
        GuardConfig {
            listing_percent: limits.percent,
            least: limits.least,
            hold: limits.time,
            ..GuardConfig::default()
        }
    }

    /// The limits of another controller's deletions.
    pub(crate) fn upstream(&self) -> portolan_subscription::GuardConfig {
        self.limits.config()
    }
}

/// The routes of dumps.
pub(crate) fn dumps(holds: &Arc<HeldDeletions>) -> Router {
    let router = Router::new().route("/deletions", get(held));
    router.with_state(Arc::clone(holds))
}

/// The confirmation, for requests with a credential.
pub(crate) fn actions(holds: &Arc<HeldDeletions>) -> Router {
    let router = Router::new().route("/confirm-deletions", post(confirm));
    router.with_state(Arc::clone(holds))
}

async fn held(State(holds): State<Arc<HeldDeletions>>) -> Json<Value> {
    Json(show(&holds.held()))
}

async fn confirm(State(holds): State<Arc<HeldDeletions>>) -> Json<Value> {
    let confirmed = holds.confirm();
    if !confirmed.is_empty() {
        tracing::warn!(of = ?confirmed.keys(), "an operator confirmed deletions");
    }
    Json(show(&confirmed))
}

fn show(held: &BTreeMap<HeldKey, HeldLoss>) -> Value {
    let now = Instant::now();
    let kinds = held.iter().map(|((cluster, kind), held)| {
        let remaining = held.until.map(|until| until.saturating_duration_since(now));
        json!({
            "cluster": cluster,
            "kind": kind.to_string(),
            "objects": held.lost.objects,
            "ofObjects": held.of.objects,
            "readyEndpoints": held.lost.ready,
            "ofReadyEndpoints": held.of.ready,
            "remainingSeconds": remaining.map(|remaining| remaining.as_secs()),
        })
    });
    json!({ "held": kinds.collect::<Vec<_>>() })
}

/// Metrics of held deletions, computed when they are scraped.
#[derive(Debug)]
pub(crate) struct HoldCollector(pub(crate) Arc<HeldDeletions>);

impl Collector for HoldCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        const KINDS: [Kind; 9] = [
            Kind::Service,
            Kind::EndpointSlice,
            Kind::Node,
            Kind::Namespace,
            Kind::LoadBalancer,
            Kind::Director,
            Kind::ServiceImport,
            Kind::ServiceExport,
            Kind::Policy,
        ];
        let held = self.0.held();
        let of = |kind| {
            let clusters = held.iter().filter(|((_, of), _)| *of == kind);
            let (objects, ready) = clusters.fold((0, 0), |(objects, ready), (_, held)| {
                (objects + held.lost.objects, ready + held.lost.ready)
            });
            Size { objects, ready }
        };
        let mut scrape = Scrape::new(encoder);
        scrape.gauges(
            "source_deletions_held",
            "Deletions that are held back, by kind",
            KINDS.map(|kind| (KindLabel::new(kind), gauge_value(of(kind).objects))),
        )?;
        scrape.gauge(
            "source_ready_endpoints_held",
            "Ready endpoints in the deletions that are held back",
            gauge_value(of(Kind::EndpointSlice).ready + of(Kind::ServiceImport).ready),
        )?;
        scrape.counters(
            "source_holds",
            "Times that the guard began to hold deletions of a kind back",
            KINDS.map(|kind| (KindLabel::new(kind), self.0.begun(kind))),
        )
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use portolan_source::HoldReport;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        guard: SourceGuardArgs,
    }

    #[test]
    fn a_polled_source_may_be_silent_between_two_polls_and_one_without_a_limit_for_ever() {
        let of = |limit: &str, poll| {
            let guard = Cli::parse_from(["controller", "--source-timeout", limit]).guard;
            let timeout = guard.source_timeout(poll);
            timeout.map(|timeout| timeout.as_secs())
        };
        assert_eq!(of("60s", None), Some(60));
        assert_eq!(of("60s", Some(Duration::from_secs(50))), Some(100));
        assert_eq!(of("0s", None), None);
        assert_eq!(of("0s", Some(Duration::from_secs(50))), None);
    }

    /// Returns `true` if a source, or the plans of a centre, guard deletions of a kind.
    fn is_guarded(kind: Kind) -> bool {
        // All kinds by name: a new one must be handled here, and below.
        match kind {
            Kind::Pod | Kind::ClusterProperty => false,
            Kind::Service
            | Kind::EndpointSlice
            | Kind::Node
            | Kind::Namespace
            | Kind::ServiceExport
            | Kind::ServiceImport
            | Kind::LoadBalancer
            | Kind::Director
            | Kind::Policy => true,
        }
    }

    #[test]
    fn held_deletions_of_every_guarded_kind_have_metrics() {
        let all = [
            Kind::Service,
            Kind::EndpointSlice,
            Kind::Node,
            Kind::Pod,
            Kind::Namespace,
            Kind::ServiceExport,
            Kind::ServiceImport,
            Kind::ClusterProperty,
            Kind::LoadBalancer,
            Kind::Director,
            Kind::Policy,
        ];
        let holds = Arc::<HeldDeletions>::default();
        let lost = Size {
            objects: 3,
            ready: 0,
        };
        let reports = all.map(|kind| {
            let report = HoldReport::new((Arc::default(), kind), Arc::clone(&holds));
            report.report(Some(HeldLoss {
                lost,
                of: lost,
                until: None,
            }));
            report
        });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(HoldCollector(Arc::clone(&holds))));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for kind in all {
            let held = format!("source_deletions_held{{kind=\"{kind}\"}} 3\n");
            assert_eq!(text.contains(&held), is_guarded(kind), "{kind}: {text}");
            let begun = format!("source_holds_total{{kind=\"{kind}\"}} 1\n");
            assert_eq!(text.contains(&begun), is_guarded(kind), "{kind}: {text}");
        }
        drop(reports);
    }

    #[test]
    fn no_held_deletions_are_an_empty_list() {
        assert_eq!(
            show(&HeldDeletions::default().held()),
            json!({ "held": [] })
        );
    }
}
