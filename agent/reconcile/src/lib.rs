//! Makes the kernel equal to a table: observe, desire, plan, apply, remember.
//!
//! [`Reconciler`] does it once and knows what the kernel holds. When to do it is the agent's
//! business.

#![forbid(unsafe_code)]

mod flows;
pub mod takeover;
mod trash;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use portolan_dataplane::{Dataplane, DataplaneError, Flow, StepError};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Families, Family, NodeTable, RecordKey};
use portolan_plan::{
    Config, Desired, Kept, KernelState, NodeFacts, Refused, Step, plan, plan_touched,
};

pub use flows::StaleFlows;

use trash::Trash;

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

/// The desired state, for dumps too. Whoever reads it holds up the reconciliation meanwhile.
#[derive(Debug, Clone, Default)]
pub struct SharedDesired(Arc<RwLock<Kept>>);

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

    fn write<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
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
    desired: SharedDesired,
    /// What the desired state is of: the table and the node as they were, if the kernel was made
    /// equal to it without an error.
    settled: Option<(Arc<NodeTable>, NodeFacts)>,
    /// What drains, as far as is known; unknown after the state was made anew.
    draining: Option<BTreeSet<Draining>>,
    /// The families whose UDP flows may be stale.
    flows_due: Families,
    trash: Trash,
    /// The table before: to take it apart costs more than to program a change of it.
    retired: Option<Arc<NodeTable>>,
}

impl<D: Dataplane> Reconciler<D> {
    /// Begins without knowing anything of the kernel.
    pub fn new(dataplane: D, config: Config) -> Self {
        Self {
            dataplane,
            config,
            facts: None,
            known: None,
            desired: SharedDesired::default(),
            settled: None,
            draining: None,
            flows_due: Families::NONE,
            trash: Trash::default(),
            retired: None,
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

    /// Lets go of what is not needed any more: for when nobody waits.
    pub fn tidy(&mut self) {
        self.retired = None;
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
            None => {
                self.settled = None;
                self.dataplane.observe().await?
            }
        };
        let steps = self.steps(table, &facts, &known);
        let affected = self.desired.read(|d| flows::affected(&steps, &known, d));
        self.flows_due = self.flows_due.iter().chain(affected.iter()).collect();
        let step_errors = self.take(&steps, known).await;
        if step_errors.is_empty() {
            self.settled = Some((Arc::clone(table), facts.clone()));
        }
        self.facts = Some(facts);
        let refused = |refused: &Refused| (Some(refused.record().clone()), refused.to_string());
        let mut errors: Vec<_> = self
            .desired
            .read(|desired| desired.refused.iter().map(refused).collect());
        let broken = step_errors
            .iter()
            .filter_map(|error| breaks(steps.get(error.index)?));
        let broken = broken.collect();
        for error in step_errors {
            errors.extend(self.explain(&steps, error));
        }
        let objects = steps.iter().map(Step::objects).sum();
        Ok(Outcome {
            objects,
            duration: start.elapsed(),
            errors,
            broken,
        })
    }

    /// Makes the desired state that of a table, and says the steps that lead there. Whether that is
    /// done for all of it or for what has changed alone makes no difference but in time.
    fn steps(
        &mut self,
        table: &Arc<NodeTable>,
        facts: &NodeFacts,
        known: &KernelState,
    ) -> Vec<Step> {
        let config = &self.config;
        if let Some((before, _)) = self.settled.take_if(|(_, of)| of == facts) {
            let update = |kept: &mut Kept| kept.update(&before, table, facts, config, known);
            if let Some(touched) = self.desired.write(update) {
                touched
                    .notes
                    .iter()
                    .for_each(|note| tracing::info!("{note}"));
                let plan = |desired: &Desired| plan_touched(desired, known, config, &touched);
                let steps = self.desired.read(plan);
                self.draining = self
                    .draining
                    .take()
                    .filter(|_| steps.iter().all(is_addition));
                return steps;
            }
        }
        (self.settled, self.draining) = (None, None);
        let kept = Kept::new(table, facts, config, known);
        self.desired.write(|before| {
            let notes = &kept.desired().notes;
            for note in notes.difference(&before.desired().notes) {
                tracing::info!("{note}");
            }
            *before = kept;
        });
        self.desired.read(|desired| plan(desired, known, config))
    }

    /// What drains, with how long its record lets it, in seconds; `None` if the kernel's state is
    /// unknown.
    pub fn draining(&mut self, table: &NodeTable) -> Option<BTreeMap<Draining, Option<u32>>> {
        let known = self.known.as_ref()?;
        self.desired.read(|desired| {
            let seconds = |draining: &Draining| {
                let record = desired.records.get(&draining.0)?;
                table.records.get(record)?.drain_seconds
            };
            let all = || draining(known, &desired.state);
            let draining = self.draining.get_or_insert_with(all).iter();
            Some(draining.map(|d| (*d, seconds(d))).collect())
        })
    }

    /// Deletes the draining real servers whose deadline has passed, and those whose connections have
    /// ended, as many as the kernel stands (see the module `trash`); says how many are left.
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
        let draining = self.desired.read(|desired| draining(known, &desired.state));
        let draining: Vec<Draining> = draining.into_iter().collect();
        let room = self.trash.room(Instant::now());
        if room == 0 || draining.is_empty() {
            return Ok(draining.len());
        }
        let (mut late, mut idle) = (Vec::new(), Vec::new());
        for of_one in draining.chunk_by(|(a, _), (b, _)| a == b) {
            let connections = self.dataplane.connections(&of_one[0].0).await?;
            for draining @ (key, address) in of_one.iter().copied() {
                let step = Step::DelRealServer { key, address };
                let found = connections.get(&address);
                if has_passed(&draining) {
                    late.push(step);
                } else if found.is_none_or(|c| c.active + c.inactive == 0) {
                    idle.push(step);
                }
            }
        }
        late.append(&mut idle);
        late.truncate(room);
        let (steps, left) = (late, draining.len());
        self.draining = None;
        let known = self.known.take().unwrap_or_default();
        for error in self.take(&steps, known).await {
            for (_, message) in self.explain(&steps, error) {
                tracing::warn!(message, "a drained real server could not be deleted");
            }
        }
        Ok(left - steps.len())
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
        let deleted = steps.iter().map(|step| deleted_by(step, &known)).sum();
        self.trash.add(deleted, Instant::now());
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
        let records: BTreeSet<RecordKey> = self.desired.read(|desired| {
            let of_server = step
                .virtual_server()
                .and_then(|key| desired.records.get(key));
            let missing = error.entries.iter().take(EXPLAINED);
            let of_entries = missing.flat_map(|entry| desired.records_of(entry));
            of_server.into_iter().chain(of_entries).cloned().collect()
        });
        let message = format!("{step}: {}", error.message);
        if records.is_empty() {
            return vec![(None, message)];
        }
        let records = records.into_iter();
        records
            .map(|record| (Some(record), message.clone()))
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

/// How many real servers a step deletes.
fn deleted_by(step: &Step, known: &KernelState) -> usize {
    match step {
        Step::DelRealServer { .. } => 1,
        Step::DelVirtualServer { key } => {
            let server = known.virtual_servers.get(key);
            server.map_or(0, |server| server.real_servers.len())
        }
        _ => 0,
    }
}

/// Whether a step leaves what drains as it is.
fn is_addition(step: &Step) -> bool {
    !matches!(
        step,
        Step::SetRealServer { .. } | Step::DelRealServer { .. } | Step::DelVirtualServer { .. }
    )
}

/// Real servers of wanted virtual servers that are not wanted any more and have weight 0. One that
/// is wanted with weight 0 does not drain: somebody wants it to stay so.
fn draining(known: &KernelState, desired: &KernelState) -> BTreeSet<Draining> {
    let mut draining = BTreeSet::new();
    for (key, server) in &known.virtual_servers {
        let Some(wanted) = desired.virtual_servers.get(key) else {
            continue;
        };
        for (address, config) in &server.real_servers {
            if config.weight == 0 && !wanted.real_servers.contains_key(address) {
                draining.insert((*key, *address));
            }
        }
    }
    draining
}

#[cfg(test)]
mod tests;
