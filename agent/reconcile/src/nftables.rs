// SPDX-License-Identifier: Apache-2.0

//! Reconciliation of the kernel's nftables with a table.

mod clients;
mod hand_over;
mod observed;
mod program;
mod takeover;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_dataplane::{DataplaneError, Flow, Kernel, KubeProxyRules, NftablesKernel};
use portolan_model::{Families, Family, NodeInfo, NodeTable, RecordKey};
use portolan_netlink::nftables::TableContent;
use portolan_nftables::{Lacking, Surplus, TABLE, Touched, Ways, everything, numbers, plan};
use portolan_plan::host::Host;
use portolan_plan::{Config, NodeFacts};

use crate::failed::FailedRecords;
use crate::{Counts, FormerIpvs, HostOutcome, Outcome, Retirement, StaleFlows, refused_host};
use clients::ClientsDue;
use observed::Observed;
use program::{describe, is_everything};

/// Name of the table of checks, which is never made.
const PROBE: &str = "portolan-probe";

/// Reconciles the kernel's nftables with one table.
#[derive(Debug)]
pub struct NftablesReconciler {
    kernel: NftablesKernel,
    /// Settings that the host's `Director` asks for.
    host: Option<Arc<Host>>,
    config: Config,
    facts: Option<NodeFacts>,
    /// Our tables, updated with every transaction; `None` at start and after an error.
    observed: Option<Observed>,
    /// Our tables as they were before others may have changed them, to count what others changed.
    forgotten: Option<Observed>,
    ways: Ways,
    /// The table that the ways and the observed tables are of, if nothing else is in these.
    followed: Option<Arc<NodeTable>>,
    /// Whether others made changes while we made one, which nobody tells us.
    is_doubtful: bool,
    /// Families whose UDP flows may be stale.
    flows_due: Families,
    /// Objects that our IPVS dataplane has left.
    former: Option<FormerIpvs<Kernel>>,
    /// The rules of a kube-proxy from which the node is taken over.
    kube_proxy: Option<KubeProxyRules>,
    /// Looks at remembered clients that are due.
    clients_due: ClientsDue,
    /// The node as the table of the last reconciliation describes it.
    node: NodeInfo,
    /// Families that are as this table says, but for failed records; none if it may be older than the kernel's state.
    current: Families,
    /// Families of which the last reconciliation has programmed the whole table, not only changes.
    whole: Families,
    /// Records of which the kernel refused a part. They are left out, and tried again after pauses.
    failed: FailedRecords,
}

impl NftablesReconciler {
    /// Creates a reconciler that has not read the kernel.
    pub fn new(kernel: NftablesKernel, mut config: Config) -> Self {
        config.sizes_sets = NftablesKernel::resizes_sets();
        // An agent that was killed may have left some.
        let due: Families = config.families.iter().copied().collect();
        Self {
            kernel,
            host: None,
            config,
            facts: None,
            observed: None,
            forgotten: None,
            ways: Ways::default(),
            followed: None,
            is_doubtful: false,
            flows_due: due,
            clients_due: due.iter().collect(),
            node: NodeInfo::default(),
            current: Families::NONE,
            whole: Families::NONE,
            failed: FailedRecords::default(),
            former: None,
            kube_proxy: None,
        }
    }

    /// Has it retire what our IPVS dataplane has left.
    #[must_use]
    pub fn after(self, former: Option<FormerIpvs<Kernel>>) -> Self {
        Self { former, ..self }
    }

    /// Retires a piece of that. Our tables must be in the kernel.
    ///
    /// # Errors
    /// If the kernel cannot be read, or refuses.
    pub async fn retire(&mut self) -> Result<Retirement, DataplaneError> {
        let Some(former) = &mut self.former else {
            return Ok(Retirement::Done);
        };
        let progress = former.retire(Instant::now()).await?;
        if progress == Retirement::Done {
            self.former = None;
            // Rules no longer respect its marks.
            self.followed = None;
        }
        Ok(progress)
    }

    /// Sets what the host's `Director` asks for.
    pub fn set_host(&mut self, host: Option<Arc<Host>>) {
        self.host = host;
    }

    /// Outcome of the settings of the host.
    #[must_use]
    pub fn host_outcome(&self) -> HostOutcome {
        refused_host(self.host.as_deref())
    }

    /// Whether the kernel can do all that a family needs. Nothing is changed, but modules are loaded.
    ///
    /// # Errors
    /// With what the kernel refused.
    pub fn probe(
        kernel: &mut NftablesKernel,
        config: &Config,
        family: Family,
    ) -> Result<(), Lacking> {
        let table = everything(family, config, &NodeInfo::default());
        let requests = plan(&table, None, Surplus::Delete);
        kernel.check(family, PROBE, &requests).map_err(|error| {
            describe(family, &error, &requests);
            Lacking::new(family, &requests, &error)
        })
    }

    /// Deletes our tables; returns how many there were.
    ///
    /// # Errors
    /// If the kernel cannot be read, or refuses.
    pub fn remove(kernel: &mut NftablesKernel) -> Result<usize, DataplaneError> {
        let families: Vec<_> = Self::families(kernel)?.into_iter().collect();
        kernel.delete_tables(&families)?;
        Ok(families.len())
    }

    /// Facts about the node, if they have been read.
    pub fn facts(&self) -> Option<&NodeFacts> {
        self.facts.as_ref()
    }

    /// Numbers of ways and of slots of their lists, if the kernel's state is certain.
    pub fn counts(&self) -> Option<Counts> {
        let tables = self.observed.as_ref()?.tables.values().flatten();
        let mut counts = Counts::default();
        for (ways, slots) in tables.map(numbers) {
            counts.virtual_servers += ways;
            counts.real_servers += slots;
        }
        Some(counts)
    }

    /// Forgets what was read, so that the next reconciliation reads it.
    pub fn forget(&mut self) {
        self.forgotten = self.observed.take().or(self.forgotten.take());
        self.facts = None;
        self.followed = None;
    }

    /// Lets the next reconciliation try refused records that are due again. It reads the kernel, since a reading that
    /// lacked something may have been the reason.
    pub fn try_again(&mut self, now: Instant) {
        self.failed.try_again(now);
        if self.failed.due().next().is_some() {
            self.forget();
        }
    }

    /// Time of the next retry of a refused record. The pause of each record doubles with each failed attempt, from
    /// `first` to `longest`.
    pub fn next_attempt(
        &mut self,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) -> Option<Instant> {
        self.failed.next(now, first, longest)
    }

    /// Forgets what was read unless the kernel proves that our tables are still so, which saves a complete reading. The
    /// facts about the node, which no generation tells of, are read in any case.
    pub async fn forget_unproven(&mut self) {
        let generation = self.kernel.generation().ok();
        let is_proven = self
            .observed
            .as_ref()
            .zip(generation)
            .is_some_and(|(observed, now)| observed.is_proven(now, Instant::now()));
        if !is_proven {
            self.forget();
        } else if let Err(error) = self.refresh_facts().await {
            tracing::debug!(%error, "the next reconciliation reads the facts");
        }
    }

    /// Checks cheaply whether anybody has changed a table, and compares ours if so. Returns the first
    /// difference, and forgets what was read then.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        let Some(observed) = &mut self.observed else {
            return Ok(None);
        };
        let generation = self.kernel.generation()?;
        // After the generation: what is told later is noticed later.
        let told = self.kernel.take_disturbed(TABLE);
        if !observed.must_be_read(told, generation) {
            return Ok(None);
        }
        let now = self.read()?;
        let Some(observed) = &self.observed else {
            return Ok(None);
        };
        let differs = |family: &Family| !is_alike(&now.tables[family], &observed.tables[family]);
        let found = now.tables.keys().find(|family| differs(family)).copied();
        match found {
            None => self.observed = Some(now),
            Some(_) => self.forget(),
        }
        Ok(found.map(|family| format!("the {family} table {TABLE}")))
    }

    /// Waits until somebody else has changed our tables, or may have.
    pub async fn disturbed(&mut self) {
        if std::mem::take(&mut self.is_doubtful) {
            return;
        }
        self.kernel.disturbed(TABLE).await;
    }

    fn read(&mut self) -> Result<Observed, DataplaneError> {
        let families: Vec<_> = self.config.families.iter().copied().collect();
        let (tables, generation) = self.kernel.observe(&families, TABLE)?;
        Ok(Observed {
            tables: tables.into_iter().collect(),
            generation: Some(generation),
            is_due: false,
            read_at: Some(Instant::now()),
        })
    }

    /// Reads the facts alone; returns whether they differ from those of the last reconciliation.
    ///
    /// # Errors
    /// If they cannot be read. The next reconciliation reads them then.
    pub async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        let before = self.facts.take();
        let followed = self.followed.take();
        self.facts = Some(self.kernel.facts().await?);
        self.followed = followed.filter(|_| before == self.facts);
        Ok(before.is_some() && before != self.facts)
    }

    /// Makes the kernel equal to a table. A table that may be older than the kernel's state deletes
    /// nothing, with [`Surplus::Keep`].
    ///
    /// # Errors
    /// If the kernel cannot be read. Nothing was changed then.
    pub async fn reconcile(
        &mut self,
        table: &Arc<NodeTable>,
        surplus: Surplus,
    ) -> Result<Outcome, DataplaneError> {
        let start = Instant::now();
        let facts = match self.facts.take() {
            Some(facts) => facts,
            None => self.kernel.facts().await?,
        };
        let is_full = self.observed.is_none();
        let touched = self.follow(table, &facts, surplus);
        self.facts = Some(facts);
        let planned_in = start.elapsed();
        let refused = self.ways.refused.iter();
        let mut outcome = Outcome {
            errors: refused
                .map(|refused| (Some(refused.record().clone()), refused.to_string()))
                .collect(),
            is_full,
            planned_in,
            ..Outcome::default()
        };
        self.node.clone_from(&table.node);
        (self.current, self.whole) = (Families::NONE, Families::NONE);
        let mut failed = Vec::new();
        let families: Vec<_> = self.config.families.iter().copied().collect();
        for family in families {
            let programmed = self.family(family, table, surplus, touched.as_ref(), &mut outcome);
            match programmed? {
                Ok(left_out) => {
                    if is_everything(family, &self.ways, &left_out) {
                        outcome.broken.insert(family);
                    }
                    if surplus == Surplus::Delete {
                        self.current.insert(family);
                    }
                    failed.extend(left_out.into_iter().map(|(key, why)| (Some(key), why)));
                }
                Err(error) => {
                    outcome.errors.push((None, format!("{family}: {error}")));
                    outcome.broken.insert(family);
                    outcome.again = true;
                    self.observed = None;
                }
            }
        }
        self.forgotten = None;
        let is_whole = |family: &Family| self.whole.contains(*family);
        let tried = tried(touched.as_ref(), self.config.families.iter().all(is_whole));
        self.failed.note(tried, failed, true, table);
        outcome.errors.extend(self.failed.errors());
        outcome.again |= !self.failed.is_empty();
        let is_complete = is_complete(surplus, outcome.broken, self.observed.is_some());
        self.followed = is_complete.then(|| Arc::clone(table));
        outcome.duration = start.elapsed();
        Ok(outcome)
    }

    /// Computes the ways of a table: from the one that is followed, which touches some of them, or anew.
    fn follow(
        &mut self,
        table: &Arc<NodeTable>,
        facts: &NodeFacts,
        surplus: Surplus,
    ) -> Option<Touched> {
        let from = self.followed.take().filter(|_| {
            // While an IPVS dataplane retires, rules change with what is left of it.
            surplus == Surplus::Delete && self.observed.is_some() && self.former.is_none()
        });
        let touched = from.and_then(|from| self.ways.update(&from, table, facts));
        if touched.is_none() {
            self.ways = Ways::new(table, facts);
        }
        touched
    }

    /// Deletes UDP flows to endpoints that no longer serve from conntrack, if changes since the last call
    /// may have left any; returns how many.
    ///
    /// # Errors
    /// If the flows cannot be read or deleted. The next call tries again.
    pub fn forget_stale_flows(
        &mut self,
        table: &NodeTable,
    ) -> Result<Option<usize>, DataplaneError> {
        if self.flows_due.is_empty() {
            return Ok(None);
        }
        let Some(facts) = &self.facts else {
            // They are due until the facts are read again.
            return Ok(None);
        };
        let mut deleted = 0;
        for family in self.flows_due.iter() {
            let stale = StaleFlows::new(table, facts, family);
            let is_stale = |flow: &Flow| stale.is_stale(flow);
            deleted += self.kernel.delete_flows(family, &is_stale)?;
        }
        self.flows_due = Families::NONE;
        Ok(Some(deleted))
    }
}

/// The records that were tried; `None` for all. Changes of which the kernel refuses a part are tried with all else.
fn tried(touched: Option<&Touched>, is_whole: bool) -> Option<&BTreeSet<RecordKey>> {
    touched.filter(|_| !is_whole).map(Touched::records)
}

/// Returns `true` if the kernel has all of a table: the next one may be programmed by its differences. A family that
/// failed is as before, although the tables may have been read since, for the other family.
fn is_complete(surplus: Surplus, broken: Families, is_observed: bool) -> bool {
    surplus == Surplus::Delete && broken.is_empty() && is_observed
}

/// Returns `true` if two contents are the same table. Rules that the kernel dumps have more
/// attributes than those that were written.
fn is_alike(now: &Option<TableContent>, before: &Option<TableContent>) -> bool {
    match (now, before) {
        (None, None) => true,
        (Some(now), Some(before)) => plan(before, Some(now), Surplus::Delete).is_empty(),
        _ => false,
    }
}
