// SPDX-License-Identifier: Apache-2.0

//! Metrics of load balancers' backends, computed when they are scraped.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use portolan_health::{BackendStatus, State, Verdicts};
use portolan_model::RecordKey;
use portolan_probe::{BUCKETS, Counts, Handle, Histogram};
use portolan_runtime::{HistogramValues, Scrape, gauge_value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};

use super::{Health, since_boot};

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

/// One backend of a frontend, and its state.
#[derive(Debug, Clone, EncodeLabelSet)]
struct StateLabels {
    #[prometheus(flatten)]
    backend: BackendLabels,
    state: &'static str,
}

/// Kind of a probe.
#[derive(Debug, Clone, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// Kind and result of a probe.
#[derive(Debug, Clone, EncodeLabelSet)]
struct CheckLabels {
    kind: &'static str,
    result: &'static str,
}

impl Collector for BackendCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let health = self.0.health.borrow().clone();
        let mut scrape = Scrape::new(encoder);
        of_checks(&mut scrape, &self.0.counts())?;
        of_backends(&mut scrape, &health)?;
        of_frontends(&mut scrape, &health)
    }
}

/// Metrics of the checks themselves.
fn of_checks(scrape: &mut Scrape<'_>, counts: &Counts) -> fmt::Result {
    let checks = counts.checks.iter().map(|((kind, result), count)| {
        let result = result.label();
        (CheckLabels { kind, result }, *count)
    });
    scrape.counters(
        "checks",
        "Health checks of backends, by kind and result",
        checks,
    )?;
    let kinds = counts.durations.iter();
    let durations = kinds.map(|(kind, times)| (KindLabel { kind }, seconds(times)));
    scrape.histograms(
        "check_duration_seconds",
        "Durations of health checks of backends, by kind",
        durations,
    )?;
    scrape.histogram(
        "check_lateness_seconds",
        "How long after their time health checks of backends started",
        &seconds(&counts.lateness),
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
    )
}

/// The states of backends.
fn of_backends(scrape: &mut Scrape<'_>, health: &Health) -> fmt::Result {
    let up = statuses(health).map(|(key, address, status)| {
        let up = gauge_value(usize::from(status.state.is_up()));
        (backend_labels(key, address), up)
    });
    scrape.gauges("backend_up", "Whether a backend's health checks pass", up)?;
    // One series for each backend and not for each state: a director may have 10,000 backends.
    let states = statuses(health).map(|(key, address, status)| {
        let labels = StateLabels {
            backend: backend_labels(key, address),
            state: state(status.state),
        };
        (labels, 1)
    });
    scrape.gauges(
        "backend_state",
        "State that its health checks give a backend: 1 for the state that it has, no series for the others",
        states,
    )?;
    let changes = statuses(health)
        .map(|(key, address, status)| (backend_labels(key, address), status.changes));
    scrape.counters(
        "backend_changes",
        "Rises and falls of a backend since the agent started",
        changes,
    )?;
    let now = since_boot();
    let factors = statuses(health).map(|(key, address, status)| {
        let factor = i64::from(status.flap_factor_at(now));
        (backend_labels(key, address), factor)
    });
    scrape.gauges(
        "backend_flap_factor",
        "Factor of the passes that a backend needs to come up: 1, doubled by flaps up to 8, halved by quiet time",
        factors,
    )
}

/// Quorum of frontends.
fn of_frontends(scrape: &mut Scrape<'_>, health: &Health) -> fmt::Result {
    let of = |value: fn(&Verdicts) -> i64| {
        let verdicts = health.iter();
        verdicts.map(move |(key, verdicts)| (frontend_labels(key), value(verdicts)))
    };
    scrape.gauges(
        "quorum",
        "Whether enough weight of a frontend's backends is healthy",
        of(|verdicts| gauge_value(usize::from(verdicts.quorum))),
    )?;
    scrape.gauges(
        "quorum_weight",
        "Configured weight of a frontend's healthy backends, which decides about its quorum",
        of(|verdicts| gauge_value(verdicts.healthy_weight)),
    )?;
    scrape.gauges(
        "sorry_server_active",
        "Whether a frontend's sorry server serves; 0 if it does for one of two families alone",
        of(|verdicts| gauge_value(usize::from(verdicts.sorry))),
    )
}

/// The status of each backend of each frontend.
fn statuses(health: &Health) -> impl Iterator<Item = (&RecordKey, &SocketAddr, &BackendStatus)> {
    health.iter().flat_map(|(key, verdicts)| {
        let states = verdicts.states.iter();
        states.map(move |(address, status)| (key, address, status))
    })
}

/// The value of the label `state`, which is that of `portolan-agent status`.
fn state(state: State) -> &'static str {
    match state {
        State::Probing => "probing",
        State::Up => "up",
        State::Ramping => "ramping",
        State::Down => "down",
    }
}

/// A histogram with bounds in seconds.
fn seconds(times: &Histogram) -> HistogramValues {
    let bounds = BUCKETS.map(|millis| Duration::from_millis(millis).as_secs_f64());
    let bounds = bounds.into_iter().chain([f64::INFINITY]);
    HistogramValues {
        sum: times.sum.as_secs_f64(),
        buckets: bounds.zip(times.buckets).collect(),
    }
}

fn frontend_labels(key: &RecordKey) -> FrontendLabels {
    FrontendLabels {
        namespace: key.namespace.to_string(),
        name: key.service.to_string(),
        frontend: key.port.to_string(),
    }
}

fn backend_labels(key: &RecordKey, address: &SocketAddr) -> BackendLabels {
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

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use futures_util::future::BoxFuture;
    use portolan_health::{Administrative, Assigned, Backend, LoadBalancer, Outcome};
    use portolan_model::Protocol;
    use portolan_model::check::{Check, HealthPolicy, Probe, TcpProbe};
    use portolan_probe::{Clock, Engine, Inputs, Limits, Overrides, Prober, Target, Wanted};
    use prometheus_client::registry::Registry;
    use tokio::sync::watch;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Finds every backend well.
    struct Well;

    impl Prober for Well {
        fn probe(&self, _: Arc<Check>, _: Target, _: Instant) -> BoxFuture<'static, Outcome> {
            Box::pin(std::future::ready(Outcome::pass()))
        }
    }

    /// The collector of an engine that has checked one backend.
    pub(crate) async fn sample() -> BackendCollector {
        let address = ([10, 0, 0, 11], 8080).into();
        let key = RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: "web".into(),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let backend = Backend {
            weight: 3,
            checks: [Assigned::direct(Check::new(
                Probe::Tcp(TcpProbe::default()),
            ))]
            .into(),
            administrative: Administrative::Enabled,
            serves_already: false,
        };
        let balancer = LoadBalancer {
            name: "default/web".into(),
            frontend: "TCP/192.0.2.10:80".into(),
            policy: HealthPolicy::default(),
            has_sorry_server: false,
            backends: [(address, backend)].into(),
        };
        let (_wanted, wanted) = watch::channel(Wanted::from_iter([(key, Arc::new(balancer))]));
        let (_overrides, overrides) = watch::channel(Overrides::new());
        let (_, suspended) = watch::channel(false);
        let (_, limits) = watch::channel(Limits::default());
        let inputs = Inputs {
            wanted,
            overrides,
            suspended,
            limits,
        };
        let clock = Clock::new("boot", std::time::Duration::ZERO);
        let (engine, mut handle) = Engine::new(Well, None, clock, inputs, None);
        tokio::spawn(engine.run(CancellationToken::new()));
        let has_quorum = |health: &portolan_probe::Health<RecordKey>| {
            health.values().any(|verdicts| verdicts.quorum)
        };
        handle.health.wait_for(has_quorum).await.unwrap();
        BackendCollector(handle)
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_of_each_backend_is_told() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(sample().await));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let of_frontend = r#"namespace="default",name="web",frontend="http""#;
        for line in [
            format!(r#"backend_up{{{of_frontend},backend="10.0.0.11:8080"}} 1"#),
            format!(r#"backend_state{{{of_frontend},backend="10.0.0.11:8080",state="up"}} 1"#),
            format!(r#"backend_changes_total{{{of_frontend},backend="10.0.0.11:8080"}} 1"#),
            format!(r#"backend_flap_factor{{{of_frontend},backend="10.0.0.11:8080"}} 1"#),
            format!("quorum{{{of_frontend}}} 1"),
            format!("quorum_weight{{{of_frontend}}} 3"),
            format!("sorry_server_active{{{of_frontend}}} 0"),
            r#"checks_total{kind="tcp",result="pass"} 1"#.to_owned(),
            r#"check_duration_seconds_bucket{le="+Inf",kind="tcp"} 1"#.to_owned(),
            r#"check_lateness_seconds_bucket{le="0.001"} 1"#.to_owned(),
            "check_lateness_seconds_count 1".to_owned(),
            "backend_rises_total 1".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}: {text}");
        }
    }
}
