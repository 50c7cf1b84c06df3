// SPDX-License-Identifier: Apache-2.0

//! Metrics of an edge controller, computed when they are scraped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use portolan_runtime::Scrape;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

/// Counts of an edge controller.
#[derive(Debug, Default)]
pub(crate) struct UplinkStats {
    replicas: AtomicUsize,
    current: AtomicUsize,
    failures: AtomicU64,
    transitions: AtomicU64,
    objects: AtomicUsize,
    too_large: AtomicU64,
    refused: AtomicU64,
    plans: AtomicUsize,
    plan_transitions: AtomicU64,
}

impl UplinkStats {
    pub(super) fn set_replicas(&self, count: usize) {
        self.replicas.store(count, Ordering::Relaxed);
    }

    pub(super) fn set_objects(&self, count: usize) {
        self.objects.store(count, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn too_large(&self) {
        self.too_large.fetch_add(1, Ordering::Relaxed);
    }

    /// Something that the centre asks for is not done.
    pub(super) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn refusals(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// So many plans of imports are in force.
    pub(super) fn set_plans(&self, count: usize) {
        self.plans.store(count, Ordering::Relaxed);
    }

    /// A set of changes of plans was taken in, after which so many are in force.
    pub(super) fn plans_taken(&self, count: usize) {
        self.set_plans(count);
        self.plan_transitions.fetch_add(1, Ordering::Relaxed);
    }

    /// A replica has taken in a transition.
    pub(super) fn accepted(&self) {
        self.transitions.fetch_add(1, Ordering::Relaxed);
    }

    /// A replica has all objects, and a stream, while the returned value lives.
    pub(super) fn current(self: &Arc<Self>) -> Current {
        self.current.fetch_add(1, Ordering::Relaxed);
        Current(Arc::clone(self))
    }
}

/// A replica that has all objects.
#[derive(Debug)]
pub(super) struct Current(Arc<UplinkStats>);

impl Drop for Current {
    fn drop(&mut self) {
        self.0.current.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Collects the counts.
#[derive(Debug)]
pub(crate) struct UplinkCollector(pub(crate) Arc<UplinkStats>);

impl Collector for UplinkCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let stats = &self.0;
        let gauge =
            |count: &AtomicUsize| i64::try_from(count.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        let counter = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut scrape = Scrape::new(encoder);
        for (name, help, count) in [
            (
                "edge_replicas",
                "Replicas of the centre that this edge controller knows",
                &stats.replicas,
            ),
            (
                "edge_replicas_current",
                "Replicas of the centre that have all objects of this cluster, and are told of changes",
                &stats.current,
            ),
            (
                "edge_objects",
                "Objects of this cluster that are sent to the centre",
                &stats.objects,
            ),
            (
                "edge_plans",
                "Plans of imports, and parts of such, by which this edge controller serves its agents",
                &stats.plans,
            ),
        ] {
            scrape.gauge(name, help, gauge(count))?;
        }
        for (name, help, count) in [
            (
                "edge_failures",
                "Attempts and streams to replicas of the centre that failed",
                &stats.failures,
            ),
            (
                "edge_transitions",
                "Sets of changes that a replica of the centre has taken in",
                &stats.transitions,
            ),
            (
                "edge_objects_too_large",
                "Versions of objects that are too large to be sent to the centre",
                &stats.too_large,
            ),
            (
                "edge_refused",
                "Times that the centre asked this edge controller to write what it does not write, or sent a plan that \
                 breaks a rule",
                &stats.refused,
            ),
            (
                "edge_plan_transitions",
                "Sets of changes of plans that this edge controller has taken in from replicas of the centre",
                &stats.plan_transitions,
            ),
        ] {
            scrape.counter(name, help, counter(count))?;
        }
        Ok(())
    }
}
