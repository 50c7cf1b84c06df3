// SPDX-License-Identifier: Apache-2.0

//! Metrics of the agent. Names that begin with `kubeproxy_` are kube-proxy's, with its meaning.

mod kube_proxy;
mod real_servers;
mod services;
mod settings;
mod subscription;

use std::collections::BTreeMap;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::sync::{Counts, NoLocalEndpoints, Outcome, TableChanges};
use kube_proxy::{KubeProxyMetrics, gauge_value};

pub use real_servers::RealServerCollector;
pub use services::ServiceCollector;
pub use settings::SettingsCollector;
pub use subscription::{SourceCollector, StreamCollector};

/// Metrics of the sync loop.
#[derive(Debug, Clone)]
pub struct ReconcileMetrics {
    kube_proxy: KubeProxyMetrics,
    objects: Counter,
    errors: Gauge,
    virtual_servers: Gauge,
    real_servers: Gauge,
    differences: Counter,
    drift: Counter,
    takeover: Gauge,
    changeover: Gauge,
}

impl ReconcileMetrics {
    /// Adds the metrics to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let this = Self {
            kube_proxy: KubeProxyMetrics::register(registry),
            objects: Counter::default(),
            errors: Gauge::default(),
            virtual_servers: Gauge::default(),
            real_servers: Gauge::default(),
            differences: Counter::default(),
            drift: Counter::default(),
            takeover: Gauge::default(),
            changeover: Gauge::default(),
        };
        this.register_kernel(registry.sub_registry_with_prefix("portolan_agent"));
        this
    }

    fn register_kernel(&self, registry: &mut Registry) {
        let counters = [
            ("objects_changed", "Kernel objects changed", &self.objects),
            (
                "drift_repaired",
                "Kernel objects repaired after another program had changed or deleted them",
                &self.drift,
            ),
            (
                "check_differences",
                "Checks that found the kernel changed by another program",
                &self.differences,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let gauges = [
            (
                "takeover_pending",
                "Whether a takeover from a kube-proxy is asked for and has not been complete since the start",
                &self.takeover,
            ),
            (
                "changeover_pending",
                "Whether objects of another dataplane of the agent may be left: 1 until it has found none",
                &self.changeover,
            ),
            (
                "errors_current",
                "Errors of the last reconciliation",
                &self.errors,
            ),
            (
                "virtual_servers",
                "Virtual servers in the kernel, foreign ones included",
                &self.virtual_servers,
            ),
            (
                "real_servers",
                "Real servers in the kernel, foreign ones included",
                &self.real_servers,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
    }

    /// Sets the numbers of Service ports without endpoints on this node.
    pub fn observe_no_local_endpoints(&self, count: NoLocalEndpoints) {
        self.kube_proxy.observe_no_local_endpoints(count);
    }

    /// Counts the changes of a table, and sets the number of those that are not programmed.
    pub fn observe_changes(&self, new: TableChanges, pending: TableChanges) {
        self.kube_proxy.observe_changes(new, pending);
    }

    /// Counts a check that found the kernel changed by another program.
    pub fn observe_difference(&self) {
        self.differences.inc();
    }

    /// Counts a deletion of stale UDP flows.
    pub fn observe_flows(&self, duration: Duration, deleted: usize) {
        self.kube_proxy.observe_flows(duration, deleted);
    }

    /// Counts objects that another program had changed.
    pub fn observe_drift(&self, objects: usize) {
        self.drift.inc_by(objects as u64);
    }

    /// Sets whether a takeover is pending.
    pub fn observe_takeover(&self, pending: bool) {
        self.takeover.set(i64::from(pending));
    }

    /// Sets whether objects of another dataplane may be left.
    pub fn observe_changeover(&self, pending: bool) {
        self.changeover.set(i64::from(pending));
    }

    /// Counts a reconciliation. `rules` are the desired iptables rules by table, where they may have
    /// changed.
    pub fn observe(
        &self,
        outcome: &Outcome,
        counts: Option<Counts>,
        rules: Option<&BTreeMap<String, usize>>,
    ) {
        self.kube_proxy.observe(outcome, rules);
        self.objects.inc_by(outcome.objects as u64);
        self.errors.set(gauge_value(outcome.errors.len()));
        if let Some(counts) = counts {
            self.virtual_servers
                .set(gauge_value(counts.virtual_servers));
            self.real_servers.set(gauge_value(counts.real_servers));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconciliations_without_errors_are_exposed() {
        let mut registry = Registry::default();
        let metrics = ReconcileMetrics::register(&mut registry);
        metrics.observe(&Outcome::default(), None, None);
        metrics.observe_drift(4);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "portolan_agent_errors_current 0",
            "portolan_agent_drift_repaired_total 4",
            "portolan_agent_objects_changed_total 0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line}\n{text}");
        }
    }
}
