// SPDX-License-Identifier: Apache-2.0

//! Metrics of kube-proxy: its names, labels and buckets, with its meaning.
//!
//! Those of its other modes (`nftables_*`, `iptables_ct_state_invalid_*`, `localhost_nodeports_*`) have
//! no counterpart here.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::sync::{NoLocalEndpoints, Outcome, TableChanges};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    traffic_policy: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TableLabels {
    table: String,
}

/// All tables of iptables.
const TABLES: [&str; 5] = ["filter", "mangle", "nat", "raw", "security"];

/// Buckets of durations: 1 ms to 16 s.
fn buckets() -> impl Iterator<Item = f64> {
    exponential_buckets(0.001, 2.0, 15)
}

pub(super) fn gauge_value(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Metrics of the sync loop with kube-proxy's names.
#[derive(Debug, Clone)]
pub(super) struct KubeProxyMetrics {
    duration: Histogram,
    full_duration: Histogram,
    partial_duration: Histogram,
    last: Gauge<f64, AtomicU64>,
    service_changes: Counter,
    service_changes_pending: Gauge,
    endpoint_changes: Counter,
    endpoint_changes_pending: Gauge,
    iptables_total: Family<TableLabels, Gauge>,
    iptables_last: Family<TableLabels, Gauge>,
    iptables_failures: Counter,
    no_local_endpoints: Family<PolicyLabels, Gauge>,
    flows_duration: Histogram,
    flows_deleted: Counter,
}

impl KubeProxyMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let this = Self {
            duration: Histogram::new(buckets()),
            full_duration: Histogram::new(buckets()),
            partial_duration: Histogram::new(buckets()),
            last: Gauge::default(),
            service_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            endpoint_changes: Counter::default(),
            endpoint_changes_pending: Gauge::default(),
            iptables_total: Family::default(),
            iptables_last: Family::default(),
            iptables_failures: Counter::default(),
            no_local_endpoints: Family::default(),
            flows_duration: Histogram::new(buckets()),
            flows_deleted: Counter::default(),
        };
        this.register_times(registry);
        let rules = registry.sub_registry_with_prefix("kubeproxy_sync_proxy_rules");
        this.register_changes(rules);
        this.register_rules(rules);
        this.register_flows(registry.sub_registry_with_prefix("kubeproxy_conntrack_reconciler"));
        this
    }

    fn register_times(&self, registry: &mut Registry) {
        let times = [
            (
                "kubeproxy_sync_proxy_rules_duration",
                "Duration of one reconciliation",
                &self.duration,
            ),
            (
                "kubeproxy_sync_full_proxy_rules_duration",
                "Duration of one reconciliation of the whole table",
                &self.full_duration,
            ),
            (
                "kubeproxy_sync_partial_proxy_rules_duration",
                "Duration of one reconciliation of changed records",
                &self.partial_duration,
            ),
        ];
        for (name, help, histogram) in times {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        registry.register_with_unit(
            "kubeproxy_sync_proxy_rules_last_timestamp",
            "Time of the last reconciliation without errors, in seconds since 1970",
            Unit::Seconds,
            self.last.clone(),
        );
    }

    fn register_changes(&self, registry: &mut Registry) {
        registry.register(
            "service_changes",
            "Service ports added, changed or deleted",
            self.service_changes.clone(),
        );
        registry.register(
            "service_changes_pending",
            "Changes of Service ports that are not programmed",
            self.service_changes_pending.clone(),
        );
        registry.register(
            "endpoint_changes",
            "Service ports with changed endpoints",
            self.endpoint_changes.clone(),
        );
        registry.register(
            "endpoint_changes_pending",
            "Changes of endpoints that are not programmed",
            self.endpoint_changes_pending.clone(),
        );
    }

    fn register_rules(&self, registry: &mut Registry) {
        registry.register(
            "iptables_total",
            "iptables rules of the agent, both families",
            self.iptables_total.clone(),
        );
        registry.register(
            "iptables_last",
            "iptables rules written by the last reconciliation, both families",
            self.iptables_last.clone(),
        );
        registry.register(
            "iptables_restore_failures",
            "Failures to write the iptables rules of a family",
            self.iptables_failures.clone(),
        );
        registry.register(
            "no_local_endpoints_total",
            "Service ports with a Local traffic policy that have endpoints, but none on this node",
            self.no_local_endpoints.clone(),
        );
    }

    fn register_flows(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "sync_duration",
            "Duration of one deletion of stale UDP flows",
            Unit::Seconds,
            self.flows_duration.clone(),
        );
        registry.register(
            "deleted_entries",
            "Stale UDP flows deleted from conntrack",
            self.flows_deleted.clone(),
        );
    }

    pub(super) fn observe(&self, outcome: &Outcome, rules: Option<&BTreeMap<String, usize>>) {
        let seconds = outcome.duration.as_secs_f64();
        self.duration.observe(seconds);
        match outcome.is_full {
            true => self.full_duration.observe(seconds),
            false => self.partial_duration.observe(seconds),
        }
        if outcome.errors.is_empty() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            self.last.set(now.unwrap_or_default().as_secs_f64());
        }
        self.iptables_failures.inc_by(outcome.rule_failures as u64);
        if let Some(rules) = rules {
            self.observe_rules(outcome, rules);
        }
    }

    /// Sets the numbers of rules of each table. A table without rules has none, as with a dataplane without iptables.
    fn observe_rules(&self, outcome: &Outcome, rules: &BTreeMap<String, usize>) {
        for table in TABLES.iter().filter(|table| !rules.contains_key(**table)) {
            let labels = TableLabels {
                table: (*table).to_owned(),
            };
            self.iptables_last.remove(&labels);
            self.iptables_total.remove(&labels);
        }
        for (table, count) in rules {
            let labels = TableLabels {
                table: table.clone(),
            };
            let written = outcome.rules_written.get(table).copied();
            let last = self.iptables_last.get_or_create_owned(&labels);
            last.set(gauge_value(written.unwrap_or_default()));
            let total = self.iptables_total.get_or_create_owned(&labels);
            total.set(gauge_value(*count));
        }
    }

    /// Counts the changes of a table, and those that are not programmed so far.
    pub(super) fn observe_changes(&self, new: TableChanges, pending: TableChanges) {
        self.service_changes.inc_by(new.services as u64);
        self.endpoint_changes.inc_by(new.endpoints as u64);
        self.service_changes_pending
            .set(gauge_value(pending.services));
        self.endpoint_changes_pending
            .set(gauge_value(pending.endpoints));
    }

    pub(super) fn observe_no_local_endpoints(&self, count: NoLocalEndpoints) {
        let NoLocalEndpoints { internal, external } = count;
        for (traffic_policy, count) in [("internal", internal), ("external", external)] {
            let labels = PolicyLabels { traffic_policy };
            let gauge = self.no_local_endpoints.get_or_create_owned(&labels);
            gauge.set(gauge_value(count));
        }
    }

    pub(super) fn observe_flows(&self, duration: Duration, deleted: usize) {
        self.flows_duration.observe(duration.as_secs_f64());
        self.flows_deleted.inc_by(deleted as u64);
    }
}

#[cfg(test)]
mod tests;
