// SPDX-License-Identifier: Apache-2.0

//! Reconciliation of one kernel with one table: observe, desire, plan, apply, remember.
//!
//! [`Reconciler`] runs one reconciliation at a time and keeps the observed state. The agent decides when
//! to run it.

#![forbid(unsafe_code)]

mod apply;
mod drains;
mod failed;
mod flows;
mod foreign;
mod former;
mod host;
pub mod kube_proxy;
mod marks;
mod nftables;
mod outcome;
mod preview;
mod shared;
mod spread;
mod trash;
mod unserved;
mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_dataplane::{Dataplane, DataplaneError};
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, NodeTable, RecordKey};
use portolan_plan::{
    Config, Desired, IncrementalDesired, KernelState, NodeFacts, Refused, RulesMode, Step, plan,
    plan_additions, plan_touched,
};

pub use drains::Draining;
pub use flows::StaleFlows;
pub use former::{FormerIpvs, Retirement, clear, ipvs_marker_sets};
pub use host::{HostOutcome, HostPreview, refused_host};
pub use nftables::NftablesReconciler;
pub use outcome::{Counts, Outcome};
pub use preview::{LackingScheduler, Preview};
pub use shared::SharedDesired;

use apply::PendingMerge;
use drains::DrainingServers;
use failed::FailedRecords;
use foreign::{Forgotten, count_objects};
use host::HostKeeper;
use marks::MarkChoice;
use outcome::{breaks, written_rules};
use spread::PutOff;
use trash::Trash;
use unserved::Unserved;

/// Treatment of our objects in the kernel that are not desired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surplus {
    Delete,
    Keep,
}

/// Steps of one reconciliation.
#[derive(Default)]
struct PlannedSteps {
    steps: Vec<Step>,
    /// Changed virtual servers; those of the others that drain are known.
    touched: BTreeSet<VirtualServerKey>,
    /// Records that were compared; `None` for all.
    tried: Option<BTreeSet<RecordKey>>,
}

/// Reconciles one kernel with one table.
#[derive(Debug)]
pub struct Reconciler<D> {
    dataplane: D,
    config: Config,
    facts: Option<NodeFacts>,
    /// State of the kernel, updated with every step; `None` at start and after an error.
    observed: Option<KernelState>,
    /// Observed state and steps that are not merged yet; `observed` is `None` then.
    pending: Option<PendingMerge>,
    /// Number of real servers in the observed state.
    real_servers: usize,
    desired: SharedDesired,
    /// Table and facts of the desired state, if the kernel was made equal to it without an error.
    settled: Option<(Arc<NodeTable>, NodeFacts)>,
    /// Draining real servers; `None` after the desired state was computed from scratch.
    draining: Option<DrainingServers>,
    /// Families whose UDP flows may be stale.
    flows_due: Families,
    trash: Trash,
    /// Virtual servers whose deletion waits for room.
    put_off: PutOff,
    /// Content of the ownership record when the kernel was last observed.
    remembered: BTreeSet<SetEntry>,
    /// Table of the last reconciliation that read the kernel or followed it.
    last: Option<Arc<NodeTable>>,
    forgotten: Option<Forgotten>,
    /// Records with refused steps, which are retried after a pause and not with every change.
    failed: FailedRecords,
    unserved: Unserved,
    marks: MarkChoice,
    host: HostKeeper,
}

impl<D: Dataplane> Reconciler<D> {
    /// Creates a reconciler that has not observed the kernel.
    pub fn new(dataplane: D, config: Config) -> Self {
        let flows_due = config.families.iter().copied().collect();
        let marks = match config.rules_mode {
            RulesMode::Always => MarkChoice::Made,
            RulesMode::OnDemand => MarkChoice::Open,
        };
        Self {
            dataplane,
            config,
            facts: None,
            observed: None,
            pending: None,
            real_servers: 0,
            desired: SharedDesired::default(),
            settled: None,
            draining: None,
            // An agent that was killed may have left some.
            flows_due,
            trash: Trash::default(),
            put_off: PutOff::default(),
            remembered: BTreeSet::new(),
            last: None,
            forgotten: None,
            failed: FailedRecords::default(),
            unserved: Unserved::default(),
            marks,
            host: HostKeeper::default(),
        }
    }

    /// Facts about the node, if they have been read.
    pub fn facts(&self) -> Option<&NodeFacts> {
        self.facts.as_ref()
    }

    /// Configuration of the kernel's programming now: a host's `Director` and the choice of marks change it.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Desired state of the last reconciliation.
    pub fn desired(&self) -> &SharedDesired {
        &self.desired
    }

    /// Observed state of the kernel, if it is certain.
    pub fn observed(&mut self) -> Option<&KernelState> {
        self.merge_pending();
        self.observed.as_ref()
    }

    /// Numbers of objects in the observed state.
    pub fn counts(&mut self) -> Option<Counts> {
        self.merge_pending();
        let observed = self.observed.as_ref()?;
        Some(Counts {
            virtual_servers: observed.virtual_servers.len(),
            real_servers: self.real_servers,
        })
    }

    /// Numbers of desired iptables rules in both families, by iptables table.
    pub fn rule_counts(&self) -> BTreeMap<String, usize> {
        self.desired.read(|desired| {
            let mut counts = BTreeMap::new();
            for rules in desired.state.rules.values() {
                for (table, count) in rules.count_by_table() {
                    *counts.entry(table).or_default() += count;
                }
            }
            counts
        })
    }

    /// Forgets the observed state and the facts, so that the next reconciliation reads both.
    pub fn forget(&mut self) {
        self.merge_pending();
        if let Some(observed) = self.observed.take() {
            self.remembered = observed.ownership(&self.config.names);
            self.forgotten = self.summary(&observed);
        }
        self.facts = None;
    }

    /// Reads the kernel, and recovers ownership if the record was emptied.
    async fn observe(&mut self) -> Result<KernelState, DataplaneError> {
        let mut observed = self.dataplane.observe().await?;
        observed.recover(&self.config.names, &self.remembered);
        if !observed.recovered.is_empty() {
            let servers = observed.recovered.len();
            tracing::warn!(
                servers,
                "the ownership record lacks some of our virtual servers: repaired"
            );
        }
        Ok(observed)
    }

    /// Checks cheaply whether the kernel still matches the observed state (see [`Dataplane::glance`]).
    /// Returns the first difference; the observed state is forgotten then, so that the next reconciliation
    /// reads and repairs the kernel.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        self.merge_pending();
        let Some(observed) = &self.observed else {
            return Ok(None);
        };
        let found = self.dataplane.glance(observed, &self.config.names).await?;
        if found.is_some() {
            self.forget();
        }
        Ok(found)
    }

    /// Lets the next reconciliation retry refused records that are due, besides changed ones.
    pub fn try_again(&mut self, now: Instant) {
        self.failed.try_again(now);
    }

    /// Time of the next retry of a refused record. The pause of each record doubles with each failed
    /// attempt, from `first` to `longest`.
    pub fn next_attempt(
        &mut self,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) -> Option<Instant> {
        self.failed.next(now, first, longest)
    }

    /// Reads the facts alone; returns whether they differ from those of the last reconciliation.
    ///
    /// # Errors
    /// If they cannot be read. The next reconciliation reads them then.
    pub async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        let before = self.facts.take();
        self.facts = Some(self.dataplane.facts().await?);
        Ok(before.is_some() && before != self.facts)
    }

    /// Makes the kernel equal to a table.
    ///
    /// # Errors
    /// If the kernel cannot be read. Nothing was changed then.
    pub async fn reconcile(&mut self, table: &Arc<NodeTable>) -> Result<Outcome, DataplaneError> {
        self.reconcile_with(table, Surplus::Delete).await
    }

    /// Adds and changes objects, and deletes none that the table does not have: for a table that may be older than the
    /// kernel's state.
    ///
    /// # Errors
    /// Same as [`Self::reconcile`].
    pub async fn reconcile_additions(
        &mut self,
        table: &Arc<NodeTable>,
    ) -> Result<Outcome, DataplaneError> {
        self.reconcile_with(table, Surplus::Keep).await
    }

    async fn reconcile_with(
        &mut self,
        table: &Arc<NodeTable>,
        surplus: Surplus,
    ) -> Result<Outcome, DataplaneError> {
        let start = Instant::now();
        self.merge_pending();
        let facts = match self.facts.take() {
            Some(facts) => facts,
            None => self.dataplane.facts().await?,
        };
        let (observed, is_fresh) = match self.observed.take() {
            Some(observed) => (observed, false),
            None => {
                self.settled = None;
                let observed = self.observe().await?;
                self.real_servers = real_servers(&observed);
                (observed, true)
            }
        };
        let foreign = self.foreign_changes(table, &facts, &observed);
        let mut planned = self.steps(table, &facts, &observed, surplus);
        let needs_marks =
            |desired: &Desired| !desired.state.rules.is_empty() || desired.needs_ways();
        let are_desired = self.desired.read(needs_marks);
        if self.choose_marks(&observed, are_desired).await {
            self.settled = None;
            planned = self.steps(table, &facts, &observed, surplus);
        }
        let PlannedSteps {
            steps,
            touched,
            tried,
        } = planned;
        let repaired = foreign.of(count_objects(&steps));
        let affected = self.desired.read(|d| flows::affected(&steps, &observed, d));
        self.flows_due = self.flows_due.iter().chain(affected.iter()).collect();
        let is_full = tried.is_none();
        let steps = self.spread(steps, &observed, is_full).await?;
        let objects = count_objects(&steps);
        let planned_in = start.elapsed();
        let step_errors = self.apply(&steps, &observed).await;
        let broken = step_errors
            .iter()
            .filter_map(|error| breaks(steps.get(error.index)?));
        let broken: Families = broken.collect();
        let is_state_certain = self.is_state_certain(&steps, &step_errors, is_fresh);
        let errors = step_errors.iter().flat_map(|e| self.explain(&steps, e));
        let errors = errors.collect();
        self.failed.note(tried.as_ref(), errors, is_fresh, table);
        let refused = step_errors.iter().map(|error| error.index).collect();
        let (rules_written, rule_failures) = written_rules(&steps, &refused);
        let unserved = self
            .desired
            .read(|d| self.unserved.follow(&steps, &refused, d, &observed));
        if is_state_certain {
            // Rules and sets are retried with every change: nothing new may come up without them.
            let is_equal = surplus == Surplus::Delete && broken.is_empty();
            self.settled = is_equal.then(|| (Arc::clone(table), facts.clone()));
            self.pending = Some(PendingMerge::new(observed, steps, &step_errors, touched));
        } else {
            // The state of the kernel is uncertain: the next reconciliation reads it.
            (self.settled, self.draining) = (None, None);
            self.remembered = observed.ownership(&self.config.names);
        }
        (self.facts, self.last) = (Some(facts), Some(Arc::clone(table)));
        let refused = |refused: &Refused| (Some(refused.record().clone()), refused.to_string());
        let mut errors: Vec<_> = self
            .desired
            .read(|desired| desired.refused.iter().map(refused).collect());
        errors.extend(self.failed.errors());
        let no_marks = self.marks.error();
        errors.extend(no_marks.clone().map(|error| (None, error)));
        Ok(Outcome {
            objects,
            duration: start.elapsed(),
            planned_in,
            errors,
            broken: broken.iter().chain(unserved.iter()).collect(),
            again: !self.failed.is_empty() || no_marks.is_some(),
            repaired,
            is_full,
            rules_written,
            rule_failures,
        })
    }

    /// The steps from a state of the kernel to the desired one.
    fn plan_all(&self, observed: &KernelState, surplus: Surplus) -> Vec<Step> {
        let config = &self.config;
        self.desired.read(|desired| match surplus {
            Surplus::Delete => plan(desired, observed, config),
            Surplus::Keep => plan_additions(desired, observed, config),
        })
    }

    /// Completes a reconciliation with deferred work. Without it the next reconciliation that reads
    /// the kernel rewrites rules that were just written.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.merge_pending();
        self.dataplane.settle().await
    }

    /// Moves the desired state to a table, and returns the steps that lead there. Following the changes
    /// alone and computing everything give the same result at different cost.
    fn steps(
        &mut self,
        table: &Arc<NodeTable>,
        facts: &NodeFacts,
        observed: &KernelState,
        surplus: Surplus,
    ) -> PlannedSteps {
        let config = &self.config;
        if surplus == Surplus::Keep {
            self.settled = None;
        }
        if self.failed.needs_all() {
            self.settled = None;
        }
        if let Some((before, _)) = self.settled.take_if(|(_, of)| of == facts) {
            let failed = &self.failed;
            let mut tried = table.changed_since(&before);
            tried.extend(failed.due().cloned());
            let update = |kept: &mut IncrementalDesired| {
                let mut touched = kept.update(&before, table, facts, config, observed)?;
                for key in tried.iter().filter(|key| failed.contains(key)) {
                    kept.touch(key, table, facts, config, observed, &mut touched)?;
                }
                Some(touched)
            };
            if let Some(touched) = self.desired.write(update) {
                touched
                    .notes
                    .iter()
                    .for_each(|note| tracing::info!("{note}"));
                let plan = |desired: &Desired| plan_touched(desired, observed, config, &touched);
                return PlannedSteps {
                    steps: self.desired.read(plan),
                    touched: touched.servers,
                    tried: Some(tried),
                };
            }
        }
        (self.settled, self.draining) = (None, None);
        let kept = IncrementalDesired::new(table, facts, config, observed);
        self.desired.write(|before| {
            let notes = &kept.desired().notes;
            for note in notes.difference(&before.desired().notes) {
                tracing::info!("{note}");
            }
            *before = kept;
        });
        if self.desired.read(Desired::masquerades) {
            self.dataplane.track();
        }
        PlannedSteps {
            steps: self.plan_all(observed, surplus),
            ..PlannedSteps::default()
        }
    }

    /// Replaces the observed state with a new reading.
    fn set_observed(&mut self, observed: KernelState) {
        self.real_servers = real_servers(&observed);
        (self.observed, self.pending, self.settled) = (Some(observed), None, None);
    }

    /// Merges the last steps into the observed state.
    fn merge_pending(&mut self) {
        let Some(pending) = self.pending.take() else {
            return;
        };
        let PendingMerge {
            mut observed,
            steps,
            touched,
        } = pending;
        for step in &steps {
            let of = |observed: &KernelState| {
                let server = observed.virtual_servers.get(step.virtual_server()?)?;
                Some(server.real_servers.len())
            };
            self.real_servers -= of(&observed).unwrap_or_default();
            observed.advance(step);
            self.real_servers += of(&observed).unwrap_or_default();
        }
        self.observed = Some(observed);
        self.follow_drains(&touched);
    }

    /// The dataplane.
    pub fn dataplane(&self) -> &D {
        &self.dataplane
    }

    /// Returns the dataplane.
    pub fn into_dataplane(self) -> D {
        self.dataplane
    }
}

fn real_servers(observed: &KernelState) -> usize {
    let servers = observed.virtual_servers.values();
    servers.map(|server| server.real_servers.len()).sum()
}

#[cfg(test)]
mod tests;
