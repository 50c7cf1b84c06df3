// SPDX-License-Identifier: Apache-2.0

//! Arrival of tables, observed independently of the reconcile loop, which may be stuck.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use portolan_model::NodeInfo;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::args::Source;
use crate::health::Health;
use crate::subscribe::Subscribed;

/// Observes the arrival of tables.
#[derive(Debug)]
pub(super) struct Arrivals {
    source: Source,
    health: Health,
    last_queued: Gauge<f64, AtomicU64>,
}

impl Arrivals {
    /// Creates the observer for tables of a source, and registers its metric.
    pub(super) fn register(source: Source, health: Health, registry: &mut Registry) -> Self {
        let this = Self {
            source,
            health,
            last_queued: Gauge::default(),
        };
        registry.register_with_unit(
            "kubeproxy_sync_proxy_rules_last_queued_timestamp",
            "Arrival of the last table, in seconds of Unix time",
            Unit::Seconds,
            this.last_queued.clone(),
        );
        this
    }

    /// Runs until the source ends.
    pub(super) async fn follow(self, mut tables: watch::Receiver<Option<Arc<Subscribed>>>) {
        while tables.changed().await.is_ok() {
            let (received_at, node) = match &*tables.borrow_and_update() {
                Some(table) => (table.received_at, table.table.node.clone()),
                None => continue,
            };
            self.health.queued(Instant::from_std(received_at));
            self.health.set_eligible(is_eligible(self.source, &node));
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            self.last_queued
                .set(since.unwrap_or_default().as_secs_f64());
        }
    }
}

/// Returns `true` if load balancers may use the node. Files may lack the Node, which is eligible
/// then.
fn is_eligible(source: Source, node: &NodeInfo) -> bool {
    node.eligible || (source == Source::File && *node == NodeInfo::default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_model::{Family, NodeTable};

    use super::*;

    #[test]
    fn a_missing_node_is_eligible_with_files_only() {
        let zoned = NodeInfo {
            zone: Some("a".into()),
            ..NodeInfo::default()
        };
        let eligible = NodeInfo {
            eligible: true,
            ..zoned.clone()
        };
        for (node, with_files, with_controller) in [
            (NodeInfo::default(), true, false),
            (zoned, false, false),
            (eligible, true, true),
        ] {
            assert_eq!(is_eligible(Source::File, &node), with_files, "{node:?}");
            assert_eq!(
                is_eligible(Source::Controller, &node),
                with_controller,
                "{node:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_table_that_is_not_programmed_turns_unhealthy() {
        let health = Health::new(Family::ALL, Duration::from_secs(30));
        let mut registry = Registry::default();
        let arrivals = Arrivals::register(Source::File, health.clone(), &mut registry);
        let (tables_out, tables) = watch::channel(None);
        let task = tokio::spawn(arrivals.follow(tables));
        tables_out.send_replace(Some(Arc::new(Subscribed {
            epoch: 0,
            revision: 1,
            table: Arc::new(NodeTable::default()),
            received_at: std::time::Instant::now(),
            trigger_times_ms: vec![],
            is_from_disk: false,
            checked: 0,
        })));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let report = health.now();
        assert_eq!((report.healthy(), report.eligible), (true, true));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!health.now().healthy());
        drop(tables_out);
        task.await.unwrap();

        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1";
        assert!(text.lines().any(|line| line.starts_with(name)), "{text}");
    }
}
