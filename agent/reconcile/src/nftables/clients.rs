// SPDX-License-Identifier: Apache-2.0

//! Clients that are remembered with destinations that are not theirs any more.

use portolan_dataplane::DataplaneError;
use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_netlink::SocketError;
use portolan_netlink::nftables::{CommitError, Key, Request, Value};
use portolan_nftables::{AFFINITY, Client, Place, TABLE};

use super::NftablesReconciler;

/// Most clients that one transaction forgets.
const TOGETHER: usize = 4_096;

impl NftablesReconciler {
    /// Completes a reconciliation: forgets clients that are remembered with destinations that are not theirs any more.
    /// Clients of a family that is not as its latest table says stay until it is.
    ///
    /// # Errors
    /// If the kernel cannot be read or written. The next call tries again.
    pub fn settle(&mut self) -> Result<(), DataplaneError> {
        let (due, current) = (self.clients_due, self.current);
        for family in due.iter().filter(|family| current.contains(*family)) {
            self.forget_clients(family)?;
        }
        let left = due.iter().filter(|family| !current.contains(*family));
        self.clients_due = left.collect();
        Ok(())
    }

    fn forget_clients(&mut self, family: Family) -> Result<(), DataplaneError> {
        let mut clients = match self.kernel.elements(family, TABLE, AFFINITY) {
            // No Service has had affinity.
            Err(DataplaneError::Nftables(SocketError::Refused(Errno::ENOENT))) => return Ok(()),
            read => read?,
        };
        clients.retain(|(key, value)| !self.keeps(family, key, value));
        for clients in clients.chunks(TOGETHER) {
            self.forget_together(family, clients)?;
        }
        Ok(())
    }

    /// Returns `true` if an element is a client that stays with its destination.
    fn keeps(&self, family: Family, key: &Key, value: &Value) -> bool {
        let (Value::Data(destination), Some(facts)) = (value, &self.facts) else {
            return false;
        };
        let place = Place {
            config: &self.config,
            node: &self.node,
            facts,
        };
        let client = Client::read(family, key, destination);
        client.is_some_and(|client| self.ways.keeps(&client, place))
    }

    /// One that expires meanwhile is an error of the whole transaction: it is made in halves then.
    fn forget_together(
        &mut self,
        family: Family,
        clients: &[(Key, Value)],
    ) -> Result<(), DataplaneError> {
        // Our own change, and perhaps others': the next look reads all.
        if let Some(observed) = &mut self.observed {
            observed.generation = None;
        }
        let request = Request::DelElements(AFFINITY.into(), clients.to_vec());
        match self.kernel.commit(family, TABLE, &[request], None) {
            Ok(()) => Ok(()),
            Err(CommitError::Refused(_)) if clients.len() > 1 => {
                let (some, others) = clients.split_at(clients.len() / 2);
                self.forget_together(family, some)?;
                self.forget_together(family, others)
            }
            Err(CommitError::Refused(refused)) if is_gone(&refused) => Ok(()),
            Err(error) => {
                let what = format!("change of the {family} map {AFFINITY}");
                Err(DataplaneError::of_commit(what, error))
            }
        }
    }
}

fn is_gone(refused: &[(usize, Errno)]) -> bool {
    refused.iter().all(|(_, errno)| *errno == Errno::ENOENT)
}
