// SPDX-License-Identifier: Apache-2.0

//! The references of flags and metrics in `docs/reference`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use clap::CommandFactory as _;
use portolan_dataplane::{NodePortAddresses, Tuning, settings};
use portolan_director::Role;
use portolan_dns::{LagCollector, Metrics, NamesChange, Server, SharedZone, Zone, ZoneConfig};
use portolan_model::Family;
use portolan_reconcile::Outcome;
use portolan_reference::samples;
use portolan_runtime::{CredentialCollector, register_process};
use portolan_source::file::ReadCounts;
use portolan_source::{ContactCollector, ProblemLog};
use prometheus_client::registry::Registry;
use tower::ServiceExt as _;

use super::arrivals::Arrivals;
use super::latency_stats;
use crate::args::{Cli, Source};
use crate::backends::metrics::tests::sample;
use crate::choice::{Choice, Reason};
use crate::director::metrics::tests::sample as director;
use crate::forwarding::ClosedChains;
use crate::health::Health;
use crate::health_check::HealthChecks;
use crate::healthz::Healthz;
use crate::metrics::{
    RealServerCollector, ReconcileMetrics, ServiceCollector, SettingsCollector, SourceCollector,
    StreamCollector,
};
use crate::status::Status;
use crate::sync::NoLocalEndpoints;

#[test]
fn the_reference_of_flags_is_that_of_the_code() {
    let page = portolan_reference::flags(Cli::command());
    portolan_reference::compare("agent-flags.md", "Flags of portolan-agent", &page);
}

/// Everything that [`super::run`] registers.
#[tokio::test(start_paused = true)]
async fn the_reference_of_metrics_is_that_of_the_code() {
    let mut registry = Registry::default();
    register_process(&mut registry);
    let health = Health::new(Family::ALL, Duration::from_secs(30));
    let healthz = Healthz::register(health.clone(), &mut registry);
    for path in ["/healthz", "/livez"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        healthz.clone().router().oneshot(request).await.unwrap();
    }
    let reconcile = ReconcileMetrics::register(&mut registry);
    let rules = BTreeMap::from([("nat".to_owned(), 1)]);
    reconcile.observe(&Outcome::default(), None, Some(&rules));
    reconcile.observe_no_local_endpoints(NoLocalEndpoints::default());
    Arrivals::register(Source::Controller, health.clone(), &mut registry);
    let stats = latency_stats(Source::Controller, &mut registry);

    let ours = registry.sub_registry_with_prefix("portolan_agent");
    let choice = Choice {
        dataplane: "ipvs",
        reason: Reason::Flag,
    };
    choice.register(ours);
    ClosedChains::register(ours);
    ours.register_collector(Box::new(ServiceCollector::sample()));
    ours.register_collector(Box::new(RealServerCollector::sample()));
    let families = Family::ALL.into();
    let node_ports = NodePortAddresses::parse(&[]).unwrap();
    let _ = HealthChecks::register(families, node_ports, health, ours);
    portolan_userspace::Metrics::default().register(ours);
    ours.register_collector(Box::new(SourceCollector(Arc::clone(&stats))));
    ours.register_collector(Box::new(StreamCollector(stats)));
    let settings = settings(&Tuning::default());
    let settings = SettingsCollector::new(settings, Status::default());
    ours.register_collector(Box::new(settings));
    ours.register_collector(Box::new(sample().await));
    ours.register_collector(Box::new(director(Role::Always)));
    let credentials = vec![("tls", Arc::default())];
    ours.register_collector(Box::new(CredentialCollector(credentials)));
    ours.register_collector(Box::new(ContactCollector(|| Some(Duration::ZERO))));
    ReadCounts::default().register(ours);
    let mut problems = ProblemLog::default();
    problems.register(ours);
    problems.update(&samples::problem());
    let config = ZoneConfig::new("cluster.local").unwrap();
    let zone = Arc::new(SharedZone::new(Zone::new(config, 1).unwrap()));
    let _lag = zone.subscribe("agent");
    zone.apply([NamesChange::Synced]);
    ours.register_collector(Box::new(LagCollector(Arc::clone(&zone))));
    let server = Server::new(zone).with_metrics(Metrics::register(ours));
    assert!(server.resolve(samples::DNS_QUERY).await.is_some());

    let page = portolan_reference::metrics(&registry);
    portolan_reference::compare("agent-metrics.md", "Metrics of portolan-agent", &page);
}
