// SPDX-License-Identifier: Apache-2.0

//! Steps that a reconciliation would take, without taking them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use portolan_dataplane::{Dataplane, DataplaneError, HostPlane};
use portolan_model::{NodeTable, RecordKey};
use portolan_plan::{Desired, KernelState, Step, desire, plan};

use crate::{HostPreview, Reconciler};

/// Steps from the kernel's state to a table's.
#[derive(Debug)]
pub struct Preview {
    /// State of the kernel.
    pub observed: KernelState,
    /// State that the table asks for.
    pub desired: Desired,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// Schedulers that steps need and the kernel lacks: it will refuse these steps.
    pub lacking: BTreeSet<LackingScheduler>,
    /// The steps of the host's settings.
    pub host: HostPreview,
}

/// A scheduler that virtual servers of a record need and the kernel lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LackingScheduler {
    /// The record.
    pub record: RecordKey,
    /// The scheduler.
    pub name: String,
}

impl fmt::Display for LackingScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { record, name } = self;
        write!(
            f,
            "{record}: scheduler: the kernel has no {name}, and no module ip_vs_{name}: it would refuse the virtual \
             server"
        )
    }
}

impl<D: Dataplane + HostPlane> Reconciler<D> {
    /// Reads the kernel and plans a complete reconciliation with a table. Changes nothing.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn preview(&mut self, table: &Arc<NodeTable>) -> Result<Preview, DataplaneError> {
        let facts = self.dataplane.facts().await?;
        let observed = self.observe().await?;
        let mut desired = desire(table, &facts, &self.config, &observed);
        let are_desired = !desired.state.rules.is_empty() || desired.needs_ways();
        if self.choose_marks(&observed, are_desired).await {
            desired = desire(table, &facts, &self.config, &observed);
        }
        let steps = plan(&desired, &observed, &self.config);
        let lacking = self.lacking(&steps, &desired).await?;
        let host = self.preview_host(&desired, table).await?;
        Ok(Preview {
            observed,
            desired,
            steps,
            lacking,
            host,
        })
    }

    /// Returns the schedulers that the kernel lacks, of virtual servers that are to be added or changed. The kernel has
    /// the schedulers of all others: otherwise they would not be there.
    async fn lacking(
        &mut self,
        steps: &[Step],
        desired: &Desired,
    ) -> Result<BTreeSet<LackingScheduler>, DataplaneError> {
        let mut needed: BTreeMap<String, BTreeSet<RecordKey>> = BTreeMap::new();
        for step in steps {
            if let Step::AddVirtualServer { key, config } | Step::SetVirtualServer { key, config } =
                step
                && let Some(record) = desired.records.get(key)
            {
                let records = needed.entry(config.scheduler.to_string()).or_default();
                records.insert(record.key.clone());
            }
        }
        let names = needed.keys().cloned().collect();
        let missing = self.dataplane.lacking_schedulers(&names).await?;
        needed.retain(|name, _| missing.contains(name));
        let lacking = needed.into_iter().flat_map(|(name, records)| {
            records.into_iter().map(move |record| {
                let name = name.clone();
                LackingScheduler { record, name }
            })
        });
        Ok(lacking.collect())
    }
}
