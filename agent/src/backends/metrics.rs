// SPDX-License-Identifier: Apache-2.0

//! Metrics of load balancers' backends, computed when they are scraped.

use std::fmt;

use portolan_model::RecordKey;
use portolan_probe::Handle;
use portolan_runtime::{Scrape, gauge_value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

/// Collects from the engine.
#[derive(Debug)]
pub(crate) struct BackendCollector(pub(crate) Handle<RecordKey>);

/// One frontend of a load balancer.
#[derive(Debug, Clone, EncodeLabelSet)]
struct FrontendLabels {
    namespace: String,
    name: String,
    frontend: String,
}

/// One backend of a frontend.
#[derive(Debug, Clone, EncodeLabelSet)]
struct BackendLabels {
    namespace: String,
    name: String,
    frontend: String,
    backend: String,
}

/// Kind and result of a probe.
#[derive(Debug, Clone, EncodeLabelSet)]
struct CheckLabels {
    kind: &'static str,
    result: &'static str,
}

impl Collector for BackendCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.counts();
        let health = self.0.health.borrow().clone();
        let mut scrape = Scrape::new(encoder);
        let checks = counts.checks.iter().map(|((kind, result), count)| {
            let result = result.label();
            (CheckLabels { kind, result }, *count)
        });
        scrape.counters(
            "checks",
            "Health checks of backends, by kind and result",
            checks,
        )?;
        scrape.counter(
            "backend_rises",
            "Times that a backend came up",
            counts.rises,
        )?;
        scrape.counter(
            "backend_falls",
            "Times that a backend went down",
            counts.falls,
        )?;
        let up = health.iter().flat_map(|(key, verdicts)| {
            let states = verdicts.states.iter();
            states.map(|(address, status)| {
                let labels = backend_labels(key, address);
                (labels, gauge_value(usize::from(status.state.is_up())))
            })
        });
        scrape.gauges("backend_up", "Whether a backend's health checks pass", up)?;
        let quorum = health.iter().map(|(key, verdicts)| {
            (
                frontend_labels(key),
                gauge_value(usize::from(verdicts.quorum)),
            )
        });
        scrape.gauges(
            "quorum",
            "Whether enough weight of a frontend's backends is healthy",
            quorum,
        )?;
        let sorry = health.iter().map(|(key, verdicts)| {
            (
                frontend_labels(key),
                gauge_value(usize::from(verdicts.sorry)),
            )
        });
        scrape.gauges(
            "sorry_server_active",
            "Whether a frontend's sorry server serves",
            sorry,
        )
    }
}

fn frontend_labels(key: &RecordKey) -> FrontendLabels {
    FrontendLabels {
        namespace: key.namespace.to_string(),
        name: key.service.to_string(),
        frontend: key.port.to_string(),
    }
}

fn backend_labels(key: &RecordKey, address: &std::net::SocketAddr) -> BackendLabels {
    let FrontendLabels {
        namespace,
        name,
        frontend,
    } = frontend_labels(key);
    BackendLabels {
        namespace,
        name,
        frontend,
        backend: address.to_string(),
    }
}
