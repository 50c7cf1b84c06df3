// SPDX-License-Identifier: Apache-2.0

//! Steps that a reconciliation would take, without taking them.

use std::sync::Arc;

use portolan_dataplane::{Dataplane, DataplaneError, HostPlane};
use portolan_model::NodeTable;
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
    /// The steps of the host's settings.
    pub host: HostPreview,
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
        let host = self.preview_host(&desired, table).await?;
        Ok(Preview {
            observed,
            desired,
            steps,
            host,
        })
    }
}
