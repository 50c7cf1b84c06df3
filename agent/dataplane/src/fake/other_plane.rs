// SPDX-License-Identifier: Apache-2.0

//! Model of the tables of our nftables dataplane: their addresses and ports.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::Family;
use portolan_model::ipvs::VirtualServerKey;

use super::FakeKernel;
use crate::{Dataplane as _, DataplaneError, Flow, OtherPlane};

impl FakeKernel {
    /// Has the table of our nftables dataplane these addresses and ports, and no others.
    ///
    /// # Errors
    /// After a crash.
    pub fn write_table(
        &mut self,
        family: Family,
        frontends: BTreeSet<VirtualServerKey>,
    ) -> Result<(), DataplaneError> {
        self.work()?;
        self.tables.insert(family, frontends);
        Ok(())
    }
}

impl OtherPlane for FakeKernel {
    async fn tables(
        &mut self,
    ) -> Result<BTreeMap<Family, BTreeSet<VirtualServerKey>>, DataplaneError> {
        self.work()?;
        Ok(self.tables.clone())
    }

    async fn unmark(&mut self, bits: u32) -> Result<(), DataplaneError> {
        self.work()?;
        self.unmarked = bits;
        Ok(())
    }

    async fn delete_table(&mut self, family: Family) -> Result<(), DataplaneError> {
        self.work()?;
        let frontends = self.tables.remove(&family).unwrap_or_default();
        let served = &self.state.virtual_servers;
        let unserved = frontends
            .into_iter()
            .filter(|key| !served.contains_key(key));
        self.unserved_frontends.extend(unserved);
        Ok(())
    }

    async fn delete_untranslated_flows(
        &mut self,
        family: Family,
        is_stale: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> Result<usize, DataplaneError> {
        self.work()?;
        let flows = self.flows(family, is_stale).await?;
        self.delete_flows(&flows).await
    }
}
