//! Makes the kernel equal to a table: observe, desire, plan, apply, remember.
//!
//! [`Reconciler`] does it once and knows what the kernel holds. When to do it is the agent's
//! business.

#![forbid(unsafe_code)]

mod flows;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_dataplane::{Dataplane, DataplaneError, Flow, StepError};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, Family, NodeTable, RecordKey};
use portolan_plan::{Config, Desired, KernelState, NodeFacts, Step, desire, plan};

pub use flows::StaleFlows;

/// A real server that drains: of which virtual server, and its address.
pub type Draining = (VirtualServerKey, SocketAddr);

/// Of how many missing entries of a set the records are looked for: enough to see what is wrong,
/// and not too dear for a set that is missing as a whole.
const EXPLAINED: usize = 64;

/// What one reconciliation did.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// How many kernel objects it changed or tried to.
    pub objects: usize,
    /// How long it took.
    pub duration: Duration,
    /// What did not work, with the record it belongs to where it belongs to one.
    pub errors: Vec<(Option<RecordKey>, String)>,
    /// The families for which nothing can be relied on: the kernel could not be read, or what all
    /// virtual servers need could not be written.
    pub broken: Families,
}

impl Outcome {
    /// That of a kernel that cannot be read.
    #[must_use]
    pub fn unreadable(error: &DataplaneError) -> Self {
        Self {
            errors: vec![(None, format!("the kernel cannot be read: {error}"))],
            broken: Family::ALL.into_iter().collect(),
            ..Self::default()
        }
    }
}

/// Keeps one kernel equal to one table.
#[derive(Debug)]
pub struct Reconciler<D> {
    dataplane: D,
    config: Config,
    facts: Option<NodeFacts>,
    /// What the kernel holds as far as we know; unknown at start and after an error.
    known: Option<KernelState>,
    desired: Arc<Desired>,
    /// The families whose UDP flows may be stale.
    flows_due: Families,
}

impl<D: Dataplane> Reconciler<D> {
    /// Begins without knowing anything of the kernel.
    pub fn new(dataplane: D, config: Config) -> Self {
        Self {
            dataplane,
            config,
            facts: None,
            known: None,
            desired: Arc::default(),
            flows_due: Families::NONE,
        }
    }

    /// What the node is like as far as is known.
    pub fn facts(&self) -> Option<&NodeFacts> {
        self.facts.as_ref()
    }

    /// What the kernel should hold since the last reconciliation.
    pub fn desired(&self) -> &Arc<Desired> {
        &self.desired
    }

    /// What the kernel holds as far as is known.
    pub fn known(&self) -> Option<&KernelState> {
        self.known.as_ref()
    }

    /// Forgets what the kernel holds and what the node is like, so that the next reconciliation
    /// reads both anew.
    pub fn forget(&mut self) {
        self.known = None;
        self.facts = None;
    }

    /// Reads what the node is like, and nothing else; whether that is other than what the last
    /// reconciliation went by.
    ///
    /// # Errors
    /// If it cannot be read. What was known stays.
    pub async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        let facts = self.dataplane.facts().await?;
        let before = self.facts.replace(facts);
        Ok(before.is_some() && before != self.facts)
    }

    /// Makes the kernel equal to a table.
    ///
    /// # Errors
    /// If the kernel cannot be read. Nothing was changed then.
    pub async fn reconcile(&mut self, table: &Arc<NodeTable>) -> Result<Outcome, DataplaneError> {
        let start = Instant::now();
        let facts = match self.facts.take() {
            Some(facts) => facts,
            None => self.dataplane.facts().await?,
        };
        let known = match self.known.take() {
            Some(known) => known,
            None => self.dataplane.observe().await?,
        };
        let desired = desire(table, &facts, &self.config, &known);
        for note in desired.notes.difference(&self.desired.notes) {
            tracing::info!("{note}");
        }
        self.desired = Arc::new(desired);
        self.facts = Some(facts);

        let steps = plan(&self.desired, &known, &self.config);
        let affected = flows::affected(&steps, &known, &self.desired);
        self.flows_due = self.flows_due.iter().chain(affected.iter()).collect();
        let step_errors = self.take(&steps, known).await;
        let mut errors: Vec<_> = self
            .desired
            .refused
            .iter()
            .map(|refused| (Some(refused.record().clone()), refused.to_string()))
            .collect();
        let broken = step_errors
            .iter()
            .filter_map(|error| breaks(steps.get(error.index)?));
        let broken = broken.collect();
        errors.extend(
            step_errors
                .into_iter()
                .flat_map(|error| self.explain(&steps, error)),
        );
        let objects = steps.iter().map(Step::objects).sum();
        Ok(Outcome {
            objects,
            duration: start.elapsed(),
            errors,
            broken,
        })
    }

    /// What drains, with how long its record lets it, in seconds; `None` if the kernel's state is
    /// unknown.
    pub fn draining(&self, table: &NodeTable) -> Option<BTreeMap<Draining, Option<u32>>> {
        let known = self.known.as_ref()?;
        let seconds = |draining: &Draining| {
            let record = self.desired.records.get(&draining.0)?;
            table.records.get(record)?.drain_seconds
        };
        let draining = draining(known, &self.desired.state).into_iter();
        Some(draining.map(|d| (d, seconds(&d))).collect())
    }

    /// Deletes the draining real servers whose connections have ended, and those whose deadline has
    /// passed; says how many still drain.
    ///
    /// # Errors
    /// If the connections cannot be read. Nothing was changed then.
    pub async fn finish_drains(
        &mut self,
        has_passed: impl Fn(&Draining) -> bool,
    ) -> Result<usize, DataplaneError> {
        let Some(known) = &self.known else {
            return Ok(0);
        };
        let (mut steps, mut left) = (Vec::new(), 0);
        let draining = draining(known, &self.desired.state);
        for of_one in draining.chunk_by(|(a, _), (b, _)| a == b) {
            let connections = self.dataplane.connections(&of_one[0].0).await?;
            for draining @ (key, address) in of_one.iter().copied() {
                let idle = connections
                    .get(&address)
                    .is_none_or(|c| c.active + c.inactive == 0);
                if idle || has_passed(&draining) {
                    steps.push(Step::DelRealServer { key, address });
                } else {
                    left += 1;
                }
            }
        }
        let known = self.known.take().unwrap_or_default();
        for error in self.take(&steps, known).await {
            for (_, message) in self.explain(&steps, error) {
                tracing::warn!(message, "a drained real server could not be deleted");
            }
        }
        Ok(left)
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

    /// Takes steps and remembers what they made of the kernel.
    async fn take(&mut self, steps: &[Step], mut known: KernelState) -> Vec<StepError> {
        if steps.is_empty() {
            self.known = Some(known);
            return Vec::new();
        }
        for step in steps {
            tracing::debug!(%step, "step");
        }
        let errors = self.dataplane.apply(steps).await;
        // After an error we do not know; the next reconciliation looks.
        if errors.is_empty() {
            steps.iter().for_each(|step| known.advance(step));
            self.known = Some(known);
        }
        errors
    }

    /// What went wrong, once for each record that it concerns.
    fn explain(&self, steps: &[Step], error: StepError) -> Vec<(Option<RecordKey>, String)> {
        let Some(step) = steps.get(error.index) else {
            return vec![(None, error.message)];
        };
        let of_server = step
            .virtual_server()
            .and_then(|key| self.desired.records.get(key));
        let missing = error.entries.iter().take(EXPLAINED);
        let of_entries = missing.flat_map(|entry| self.desired.records_of(entry));
        let records: BTreeSet<&RecordKey> = of_server.into_iter().chain(of_entries).collect();
        let message = format!("{step}: {}", error.message);
        if records.is_empty() {
            return vec![(None, message)];
        }
        let records = records.into_iter();
        records
            .map(|record| (Some(record.clone()), message.clone()))
            .collect()
    }

    /// The dataplane, given back.
    pub fn into_dataplane(self) -> D {
        self.dataplane
    }
}

/// The family for which nothing can be relied on after such a step has failed.
fn breaks(step: &Step) -> Option<Family> {
    match step {
        Step::CreateSet { header, .. } => Some(header.family),
        Step::ReplaceSet { set, .. } => Some(set.header.family),
        Step::WriteRules { family, .. } => Some(*family),
        _ => None,
    }
}

/// Real servers of wanted virtual servers that are not wanted any more and have weight 0. One that
/// is wanted with weight 0 does not drain: somebody wants it to stay so.
fn draining(known: &KernelState, desired: &KernelState) -> Vec<Draining> {
    let mut draining = Vec::new();
    for (key, server) in &known.virtual_servers {
        let Some(wanted) = desired.virtual_servers.get(key) else {
            continue;
        };
        for (address, config) in &server.real_servers {
            if config.weight == 0 && !wanted.real_servers.contains_key(address) {
                draining.push((*key, *address));
            }
        }
    }
    draining
}

#[cfg(test)]
mod tests;
