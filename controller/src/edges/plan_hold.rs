// SPDX-License-Identifier: Apache-2.0

//! The deletion guard of plans. Pure: time comes in, plans to serve by come out.
//!
//! A replica of the centre that starts without its state, or whose other clusters have not dialled yet, has few plans.
//! So the plans of another stream are compared with those in force. If they lack too much, the losses among them are
//! held: the plans from before stay in force. Other changes pass at once. Later losses on a stream are believed: the
//! centre saw them happen, and has a guard of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use portolan_federate::plans::{ImportPlan, PlanChanges, ServicePlan};
use portolan_model::{Loss, TableSize};
use portolan_source::deletions::{HeldLoss, Size};
use portolan_subscription::GuardConfig;

/// The guard, and the losses that it holds.
#[derive(Debug)]
pub(super) struct PlanHold {
    config: GuardConfig,
    /// The plans from before, by the names of the losses.
    kept: PlanChanges,
    /// The plans of the centre, by the same names.
    told: PlanChanges,
    /// The size of the losses, and of all plans with them.
    loss: Loss,
    /// Time at which the losses were found; `None` if none are held.
    since: Option<Instant>,
    /// Presence of a stream whose plans have the losses.
    is_current: bool,
}

impl PlanHold {
    /// A guard that holds nothing.
    pub(super) fn new(config: GuardConfig) -> Self {
        Self {
            config,
            kept: PlanChanges::default(),
            told: PlanChanges::default(),
            loss: Loss::default(),
            since: None,
            is_current: false,
        }
    }

    /// Takes in the plans of another stream: those that differ, the same ones as they were before, and the size of all
    /// that were before. Returns those to serve by.
    pub(super) fn replace(
        &mut self,
        changes: PlanChanges,
        before: PlanChanges,
        size: TableSize,
        now: Instant,
    ) -> PlanChanges {
        let mut passed = self.split(changes, before);
        self.is_current = true;
        self.measure(size);
        let is_held = self.since.is_some() || self.config.is_too_much(self.loss);
        if is_held && !self.told.is_empty() {
            self.since.get_or_insert(now);
        } else {
            passed.extend(self.release());
        }
        // The time may have passed while there was no stream.
        if self.until().is_some_and(|until| until <= now) {
            passed.extend(self.release());
        }
        passed
    }

    /// Notes that no stream is there. Time believes nothing meanwhile.
    pub(super) fn pause(&mut self) {
        self.is_current = false;
    }

    /// Takes in later plans of the stream. Returns those to serve by.
    pub(super) fn follow(&mut self, changes: PlanChanges) -> PlanChanges {
        if self.since.is_none() {
            return changes;
        }
        let mut passed = self.split(changes, PlanChanges::default());
        self.measure(TableSize::default());
        if self.told.is_empty() {
            // The next hold is measured anew.
            passed.extend(self.release());
        }
        passed
    }

    /// Ends the hold. Returns the plans of the centre that were held.
    pub(super) fn release(&mut self) -> PlanChanges {
        self.since = None;
        self.loss = Loss::default();
        self.kept = PlanChanges::default();
        std::mem::take(&mut self.told)
    }

    /// The time at which the losses are believed without a confirmation.
    fn until(&self) -> Option<Instant> {
        let since = self.since.filter(|_| self.is_current)?;
        Some(since + self.config.time?)
    }

    /// The held losses, if any.
    pub(super) fn held(&self) -> Option<HeldLoss> {
        self.since?;
        let size = |size: TableSize| Size {
            objects: size.records,
            ready: size.endpoints,
        };
        Some(HeldLoss {
            lost: size(self.loss.lost),
            of: size(self.loss.of),
            until: self.until(),
        })
    }

    /// Keeps the losses among changes of plans, and drops those that have returned. Returns the other changes.
    fn split(&mut self, changes: PlanChanges, before: PlanChanges) -> PlanChanges {
        let (kept, told) = (&mut self.kept, &mut self.told);
        let mut passed = PlanChanges {
            clusters: part(
                changes.clusters,
                before.clusters,
                (&mut kept.clusters, &mut told.clusters),
                |_, new| new.is_none(),
            ),
            groups: part(
                changes.groups,
                before.groups,
                (&mut kept.groups, &mut told.groups),
                |_, new| new.is_none(),
            ),
            imports: part(
                changes.imports,
                before.imports,
                (&mut kept.imports, &mut told.imports),
                lacks_sources,
            ),
            services: part(
                changes.services,
                before.services,
                (&mut kept.services, &mut told.services),
                lacks_endpoints,
            ),
            gateways: part(
                changes.gateways,
                before.gateways,
                (&mut kept.gateways, &mut told.gateways),
                |_, new| new.is_none(),
            ),
        };
        self.yield_addresses(&mut passed);
        passed
    }

    /// Lets go of imports whose virtual address another one has now.
    fn yield_addresses(&mut self, passed: &mut PlanChanges) {
        let new = passed.imports.values().flatten();
        let taken: BTreeSet<IpAddr> = new.flat_map(|import| import.ips.iter().copied()).collect();
        let kept = self.kept.imports.iter();
        let met = kept.filter(|(_, import)| {
            let mut ips = import.iter().flat_map(|import| &import.ips);
            ips.any(|ip| taken.contains(ip))
        });
        for name in met.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.kept.imports.remove(&name);
            if let Some(told) = self.told.imports.remove(&name) {
                passed.imports.insert(name, told);
            }
        }
    }

    /// Counts the losses, of plans of this size and those that are gone from them.
    fn measure(&mut self, size: TableSize) {
        let gone = self.told.imports.values();
        let records = gone.filter(|import| import.is_none()).count();
        let told = self.told.services.values().flatten();
        let kept = self.kept.services.values().flatten();
        let told: usize = told.map(|service| endpoints(service)).sum();
        let kept: usize = kept.map(|service| endpoints(service)).sum();
        let lost = TableSize {
            records,
            endpoints: kept.saturating_sub(told),
        };
        let before = self.loss.of;
        let of = TableSize {
            records: size.records.max(lost.records).max(before.records),
            endpoints: size.endpoints.max(lost.endpoints).max(before.endpoints),
        };
        self.loss = Loss { lost, of };
    }
}

/// Plans of one kind by name.
type Named<K, P> = BTreeMap<K, Option<P>>;

/// Moves the losses among changes to those that are kept, with the plans from before, and those that are told. Returns
/// the rest.
fn part<K: Ord + Clone, P>(
    changes: Named<K, P>,
    mut before: Named<K, P>,
    (kept, told): (&mut Named<K, P>, &mut Named<K, P>),
    is_loss: fn(&P, Option<&P>) -> bool,
) -> Named<K, P> {
    let mut passed = BTreeMap::new();
    for (name, new) in changes {
        told.remove(&name);
        let old = kept.remove(&name).or_else(|| before.remove(&name));
        match old.flatten() {
            Some(old) if is_loss(&old, new.as_ref()) => {
                kept.insert(name.clone(), Some(old));
                told.insert(name, new);
            }
            _ => _ = passed.insert(name, new),
        }
    }
    passed
}

/// Returns `true` if an import has gone, or has lost a cluster.
fn lacks_sources(old: &ImportPlan, new: Option<&ImportPlan>) -> bool {
    new.is_none_or(|new| {
        let mut sources = old.sources.keys();
        sources.any(|source| !new.sources.contains_key(source))
    })
}

/// Returns `true` if a Service has gone, or has lost all endpoints.
fn lacks_endpoints(old: &Arc<ServicePlan>, new: Option<&Arc<ServicePlan>>) -> bool {
    new.is_none_or(|new| endpoints(new) == 0 && endpoints(old) > 0)
}

/// The endpoints and gateways of a Service.
fn endpoints(service: &ServicePlan) -> usize {
    let ports = service.ports.values();
    ports
        .map(|port| port.endpoints.len() + port.gateways.len())
        .sum()
}

#[cfg(test)]
pub(super) mod tests;
