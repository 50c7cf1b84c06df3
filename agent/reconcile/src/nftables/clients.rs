// SPDX-License-Identifier: Apache-2.0

//! Clients that are remembered with destinations that are gone.

use portolan_dataplane::DataplaneError;
use portolan_model::{Families, Family};
use portolan_netlink::nftables::{CommitError, Request, Value};
use portolan_nftables::{AFFINITY, List, TABLE, affinity_of};

use super::NftablesReconciler;

impl NftablesReconciler {
    /// Completes a reconciliation: forgets clients that are remembered with destinations that are gone.
    ///
    /// # Errors
    /// If the kernel cannot be read or written. The next call tries again.
    pub fn settle(&mut self) -> Result<(), DataplaneError> {
        for family in self.clients_due.iter() {
            self.forget_clients(family)?;
        }
        self.clients_due = Families::NONE;
        Ok(())
    }

    fn forget_clients(&mut self, family: Family) -> Result<(), DataplaneError> {
        let tables = self.observed.as_ref().map(|observed| &observed.tables);
        let content = tables.and_then(|tables| tables.get(&family)?.as_ref());
        if !content.is_some_and(|content| content.sets.contains_key(AFFINITY)) {
            return Ok(());
        }
        let clients = self.kernel.elements(family, TABLE, AFFINITY)?;
        for client in clients {
            if self.is_served(family, &client) {
                continue;
            }
            // Our own change, and perhaps others': the next look reads all.
            if let Some(observed) = &mut self.observed {
                observed.generation = None;
            }
            // Each on its own: one may expire meanwhile, and then is an error.
            let request = Request::DelElements(AFFINITY.into(), vec![client]);
            match self.kernel.commit(family, TABLE, &[request], None) {
                Ok(()) | Err(CommitError::Refused(_)) => {}
                Err(error) => tracing::warn!(%family, %error, "clients cannot be forgotten"),
            }
        }
        Ok(())
    }

    /// Returns `true` if a client's way still has the destination that the client is remembered with.
    fn is_served(&self, family: Family, (key, value): &(Box<[u8]>, Value)) -> bool {
        let Value::Data(value) = value else {
            return false;
        };
        let Some((way, socket)) = affinity_of(family, key, value) else {
            return false;
        };
        let Some(way) = self.ways.ways.get(&way).filter(|w| w.affinity.is_some()) else {
            return false;
        };
        let lists = [Some(&way.inside), way.outside.as_ref()];
        lists.into_iter().flatten().any(|list| match list {
            List::To(list) => list.iter().any(|destination| destination.address == socket),
            List::Drop | List::Refuse => false,
        })
    }
}
