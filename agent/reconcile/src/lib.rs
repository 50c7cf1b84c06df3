//! Makes the kernel equal to a table: observe, desire, plan, apply, remember.
//!
//! [`Reconciler`] does it once and knows what the kernel holds. When to do it is the agent's
//! business.

#![forbid(unsafe_code)]

mod apply;
mod drains;
mod failed;
mod flows;
pub mod kube_proxy;
mod outcome;
mod spread;
mod trash;
mod unserved;

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use portolan_dataplane::{Dataplane, DataplaneError, Flow};
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, NodeTable, RecordKey};
use portolan_plan::{
    Config, Desired, IncrementalDesired, KernelState, NodeFacts, Refused, Step, plan,
    plan_additions, plan_touched,
};

pub use drains::Draining;
pub use flows::StaleFlows;
pub use outcome::{Counts, Outcome};

use apply::PendingMerge;
use drains::DrainingServers;
use failed::FailedRecords;
use outcome::breaks;
use spread::PutOff;
use trash::Trash;
use unserved::Unserved;

/// The desired state, for dumps too. Whoever reads it holds up the reconciliation meanwhile.
#[derive(Debug, Clone, Default)]
pub struct SharedDesired(Arc<RwLock<IncrementalDesired>>);

impl SharedDesired {
    /// What the kernel should hold since the last reconciliation.
    pub fn read<T>(&self, look: impl FnOnce(&Desired) -> T) -> T {
        look(
            self.0
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .desired(),
        )
    }

    fn write<T>(&self, change: impl FnOnce(&mut IncrementalDesired) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What becomes of what is ours in the kernel and not desired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Surplus {
    Delete,
    Keep,
}

/// What is to be done.
#[derive(Default)]
struct PlannedSteps {
    steps: Vec<Step>,
    /// The virtual servers that have changed, where it is known what drains of the others.
    touched: BTreeSet<VirtualServerKey>,
    /// The records that were looked at; `None` if all were.
    tried: Option<BTreeSet<RecordKey>>,
}

/// Keeps one kernel equal to one table.
#[derive(Debug)]
pub struct Reconciler<D> {
    dataplane: D,
    config: Config,
    facts: Option<NodeFacts>,
    /// What the kernel holds as far as we know; unknown at start and after an error.
    observed: Option<KernelState>,
    /// What the last steps have not been added to yet; then nothing else is known.
    pending: Option<PendingMerge>,
    /// How many real servers there are in what is known.
    real_servers: usize,
    desired: SharedDesired,
    /// What the desired state is of: the table and the node as they were, if the kernel was made
    /// equal to it without an error.
    settled: Option<(Arc<NodeTable>, NodeFacts)>,
    /// What drains, as far as is known; unknown after the state was made anew.
    draining: Option<DrainingServers>,
    /// The families whose UDP flows may be stale.
    flows_due: Families,
    trash: Trash,
    /// What could not be deleted at once with much else.
    put_off: PutOff,
    /// What the ownership record held when the kernel was last known.
    remembered: BTreeSet<SetEntry>,
    /// What the kernel refused and lacks since: tried again when it is asked for, and not whenever
    /// anything else changes.
    failed: FailedRecords,
    unserved: Unserved,
}

impl<D: Dataplane> Reconciler<D> {
    /// Begins without knowing anything of the kernel.
    pub fn new(dataplane: D, config: Config) -> Self {
        let flows_due = config.families.iter().copied().collect();
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
            // One that was killed before may have left some.
            flows_due,
            trash: Trash::default(),
            put_off: PutOff::default(),
            remembered: BTreeSet::new(),
            failed: FailedRecords::default(),
            unserved: Unserved::default(),
        }
    }

    /// What the node is like as far as is known.
    pub fn facts(&self) -> Option<&NodeFacts> {
        self.facts.as_ref()
    }

    /// What the kernel should hold since the last reconciliation.
    pub fn desired(&self) -> &SharedDesired {
        &self.desired
    }

    /// What the kernel holds as far as is known.
    pub fn observed(&mut self) -> Option<&KernelState> {
        self.merge_pending();
        self.observed.as_ref()
    }

    /// How much the kernel holds, as far as is known.
    pub fn counts(&mut self) -> Option<Counts> {
        self.merge_pending();
        let observed = self.observed.as_ref()?;
        Some(Counts {
            virtual_servers: observed.virtual_servers.len(),
            real_servers: self.real_servers,
        })
    }

    /// Forgets what the kernel holds and what the node is like, so that the next reconciliation
    /// reads both anew.
    pub fn forget(&mut self) {
        self.merge_pending();
        if let Some(observed) = self.observed.take() {
            self.remembered = observed.ownership(&self.config.names);
        }
        self.facts = None;
    }

    /// Reads the kernel. What of it is ours is ours although somebody has emptied the ownership record.
    async fn observe(&mut self) -> Result<KernelState, DataplaneError> {
        let mut observed = self.dataplane.observe().await?;
        observed.recover(&self.config.names, &self.remembered);
        if !observed.recovered.is_empty() {
            let servers = observed.recovered.len();
            tracing::warn!(
                servers,
                "the ownership record lacks virtual servers that are ours: mended"
            );
        }
        Ok(observed)
    }

    /// Looks whether the kernel still holds what it should, as far as a few milliseconds tell (see
    /// [`Dataplane::glance`]). What is found otherwise is said, and all is forgotten, so that the
    /// next reconciliation reads the kernel and mends it.
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

    /// Lets the next reconciliation try again what the kernel refused and what is due by now, and not
    /// only what has changed since.
    pub fn try_again(&mut self, now: Instant) {
        self.failed.try_again(now);
    }

    /// When something that the kernel refused is due. The pause before the next attempt doubles with
    /// each that fails, from `first` to `longest`, for each record by itself.
    pub fn next_attempt(
        &mut self,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) -> Option<Instant> {
        self.failed.next(now, first, longest)
    }

    /// Reads what the node is like, and nothing else; whether that is other than what the last
    /// reconciliation went by.
    ///
    /// # Errors
    /// If it cannot be read. Then the next reconciliation reads it anew.
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

    /// Adds to the kernel what a table has, and changes what both have. What of ours the table does
    /// not have stays as it is: for a table that may be older than what the kernel holds.
    ///
    /// # Errors
    /// As [`Self::reconcile`].
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
        let PlannedSteps {
            steps,
            touched,
            tried,
        } = self.steps(table, &facts, &observed, surplus);
        let affected = self.desired.read(|d| flows::affected(&steps, &observed, d));
        self.flows_due = self.flows_due.iter().chain(affected.iter()).collect();
        let steps = self.spread(steps, &observed, tried.is_none()).await?;
        let objects = steps.iter().map(Step::objects).sum();
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
        let unserved = self
            .desired
            .read(|desired| self.unserved.follow(&steps, &refused, desired));
        if is_state_certain {
            // What a whole family needs is tried again with every change: nothing new may come up
            // without it.
            let is_equal = surplus == Surplus::Delete && broken.is_empty();
            self.settled = is_equal.then(|| (Arc::clone(table), facts.clone()));
            self.pending = Some(PendingMerge::new(observed, steps, &step_errors, touched));
        } else {
            // What is known of the kernel is not so any more: the next one looks.
            (self.settled, self.draining) = (None, None);
            self.remembered = observed.ownership(&self.config.names);
        }
        self.facts = Some(facts);
        let refused = |refused: &Refused| (Some(refused.record().clone()), refused.to_string());
        let mut errors: Vec<_> = self
            .desired
            .read(|desired| desired.refused.iter().map(refused).collect());
        errors.extend(self.failed.errors());
        Ok(Outcome {
            objects,
            duration: start.elapsed(),
            errors,
            broken: broken.iter().chain(unserved.iter()).collect(),
            again: !self.failed.is_empty(),
        })
    }

    /// Does what is still to be done after a reconciliation and nobody has to wait for. Without it
    /// the next one that reads the kernel writes rules anew that were just written.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.merge_pending();
        self.dataplane.settle().await
    }

    /// Makes the desired state that of a table, and says the steps that lead there. Whether that is
    /// done for all of it or for what has changed alone makes no difference but in time.
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
        let steps = self.desired.read(|desired| match surplus {
            Surplus::Delete => plan(desired, observed, config),
            Surplus::Keep => plan_additions(desired, observed, config),
        });
        PlannedSteps {
            steps,
            ..PlannedSteps::default()
        }
    }

    /// Makes conntrack forget the UDP flows that lead to where nothing answers any more, if
    /// anything that was done since the last time can have left such; says how many.
    ///
    /// # Errors
    /// If the flows cannot be read or deleted. The next call tries again.
    pub async fn forget_stale_flows(
        &mut self,
        table: &NodeTable,
    ) -> Result<Option<usize>, DataplaneError> {
        if self.flows_due.is_empty() {
            return Ok(None);
        }
        let mut deleted = 0;
        for family in self.flows_due.iter() {
            let stale = StaleFlows::new(table, family);
            let is_stale = |flow: &Flow| stale.is_stale(flow);
            let flows = self.dataplane.flows(family, &is_stale).await?;
            if !flows.is_empty() {
                deleted += self.dataplane.delete_flows(&flows).await?;
            }
        }
        self.flows_due = Families::NONE;
        Ok(Some(deleted))
    }

    /// Takes what was read of the kernel for what is known.
    fn set_observed(&mut self, observed: KernelState) {
        self.real_servers = real_servers(&observed);
        (self.observed, self.pending, self.settled) = (Some(observed), None, None);
    }

    /// Makes what is known what the last steps made of the kernel.
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

    /// The dataplane, given back.
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
