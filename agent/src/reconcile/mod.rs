//! Makes the kernel equal to a table: observe, desire, plan, apply, remember.
//!
//! [`Reconciler`] does it once and knows what the kernel holds; [`run`] does it whenever the table
//! changes, when something failed, and every sync period in case somebody else changed the kernel.

mod run;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_dataplane::{Dataplane, DataplaneError, StepError};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{NodeTable, RecordKey};
use portolan_plan::{Config, Desired, KernelState, NodeFacts, Step, desire, plan};

pub use run::{Outlets, Timing, run};

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
        }
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

    /// Makes the kernel equal to a table.
    ///
    /// # Errors
    /// If the kernel cannot be read. Nothing was changed then.
    pub async fn reconcile(&mut self, table: &NodeTable) -> Result<Outcome, DataplaneError> {
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
        let step_errors = self.take(&steps, known).await;
        let mut errors: Vec<_> = self
            .desired
            .refused
            .iter()
            .map(|refused| (Some(refused.record().clone()), refused.to_string()))
            .collect();
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
        })
    }

    /// Deletes the draining real servers whose connections have ended; says how many still drain.
    ///
    /// # Errors
    /// If the connections cannot be read. Nothing was changed then.
    pub async fn finish_drains(&mut self) -> Result<usize, DataplaneError> {
        let Some(known) = self.known.take() else {
            return Ok(0);
        };
        let draining = draining(&known, &self.desired.state);
        let mut steps = Vec::new();
        let mut left = 0;
        for (key, addresses) in draining {
            let connections = match self.dataplane.connections(&key).await {
                Ok(connections) => connections,
                Err(error) => {
                    self.known = Some(known);
                    return Err(error);
                }
            };
            for address in addresses {
                let idle = connections
                    .get(&address)
                    .is_none_or(|c| c.active + c.inactive == 0);
                if idle {
                    steps.push(Step::DelRealServer { key, address });
                } else {
                    left += 1;
                }
            }
        }
        for error in self.take(&steps, known).await {
            for (_, message) in self.explain(&steps, error) {
                tracing::warn!(message, "a drained real server could not be deleted");
            }
        }
        Ok(left)
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

/// Real servers of wanted virtual servers that are not wanted any more and have weight 0.
fn draining(
    known: &KernelState,
    desired: &KernelState,
) -> BTreeMap<VirtualServerKey, Vec<SocketAddr>> {
    let mut draining: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (key, server) in &known.virtual_servers {
        let Some(wanted) = desired.virtual_servers.get(key) else {
            continue;
        };
        for (address, config) in &server.real_servers {
            if config.weight == 0 && !wanted.real_servers.contains_key(address) {
                draining.entry(*key).or_default().push(*address);
            }
        }
    }
    draining
}

#[cfg(test)]
mod tests;
