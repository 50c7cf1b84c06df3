// SPDX-License-Identifier: Apache-2.0

//! Clients that are remembered with destinations that are not theirs any more.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portolan_dataplane::DataplaneError;
use portolan_model::{Families, Family, Protocol};
use portolan_netlink::Errno;
use portolan_netlink::SocketError;
use portolan_netlink::nftables::{CommitError, Key, Request, Value};
use portolan_nftables::{AFFINITY, Client, Place, TABLE};

use super::NftablesReconciler;

/// Most clients that one transaction forgets.
const TOGETHER: usize = 4_096;

/// The time between two looks at clients. A packet that drew an endpoint just before it was deleted may have its client
/// remembered after the first look; no packet is in the rules for as long as this.
const AGAIN: Duration = Duration::from_secs(1);

/// A look at the clients of a family that is due.
#[derive(Debug, Clone, Copy)]
enum Look {
    /// The one that follows a change.
    First,
    /// The second one, and its time.
    Second(Instant),
}

/// Families in which clients may be remembered with destinations that are not theirs any more.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientsDue(BTreeMap<Family, Look>);

impl ClientsDue {
    /// Adds a family that has changed.
    pub(super) fn insert(&mut self, family: Family) {
        self.0.insert(family, Look::First);
    }

    /// The families that are to be looked at, of those that are current.
    pub(super) fn at(&self, now: Instant, current: Families) -> Families {
        let is_due = |look: &Look| match look {
            Look::First => true,
            Look::Second(at) => *at <= now,
        };
        let due = self.0.iter().filter(|(_, look)| is_due(look));
        let due = due.map(|(family, _)| *family);
        due.filter(|family| current.contains(*family)).collect()
    }

    /// Follows a look at a family that was due.
    pub(super) fn looked(&mut self, family: Family, now: Instant) {
        if let Some(Look::First) = self.0.remove(&family) {
            self.0.insert(family, Look::Second(now + AGAIN));
        }
    }

    /// Follows a look at a family in which nobody can be remembered.
    fn remove(&mut self, family: Family) {
        self.0.remove(&family);
    }

    /// The time of the next second look at a family that is current.
    pub(super) fn again(&self, current: Families) -> Option<Instant> {
        let time = |(family, look): (&Family, &Look)| match look {
            Look::Second(at) if current.contains(*family) => Some(*at),
            _ => None,
        };
        self.0.iter().filter_map(time).min()
    }
}

impl FromIterator<Family> for ClientsDue {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        let families = families.into_iter();
        Self(families.map(|family| (family, Look::First)).collect())
    }
}

impl NftablesReconciler {
    /// Completes a reconciliation: deletes the affinity of clients to destinations that no longer serve them, now and
    /// once more at [`Self::settles_at`]. A family waits for that until its latest table is programmed.
    ///
    /// # Errors
    /// If the kernel cannot be read or written. The next call tries again.
    pub fn settle(&mut self) -> Result<(), DataplaneError> {
        if self.facts.is_none() {
            // The next reconciliation reads the facts that tell clients from outside.
            return Ok(());
        }
        let due = self.clients_due.at(Instant::now(), self.current);
        for family in due.iter() {
            match self.forget_clients(family)? {
                true => self.clients_due.looked(family, Instant::now()),
                false => self.clients_due.remove(family),
            }
        }
        Ok(())
    }

    /// The time at which [`Self::settle`] has more to do, if nothing changes before.
    #[must_use]
    pub fn settles_at(&self) -> Option<Instant> {
        self.facts.as_ref()?;
        self.clients_due.again(self.current)
    }

    /// Returns `false` if the family has no clients that are remembered.
    fn forget_clients(&mut self, family: Family) -> Result<bool, DataplaneError> {
        let mut clients = match self.kernel.elements(family, TABLE, AFFINITY) {
            // No Service has had affinity.
            Err(DataplaneError::Nftables(SocketError::Refused(Errno::ENOENT))) => {
                return Ok(false);
            }
            read => read?,
        };
        clients.retain(|(key, value)| !self.keeps(family, key, value));
        let is_of_udp = |(key, value): &(Key, Value)| is_of_udp(family, key, value);
        if clients.iter().any(is_of_udp) {
            // Its flows go where it was remembered with.
            self.flows_due.insert(family);
        }
        for clients in clients.chunks(TOGETHER) {
            self.forget_together(family, clients)?;
        }
        Ok(true)
    }

    /// Returns `true` if an element is a client that stays with its destination.
    fn keeps(&self, family: Family, key: &Key, value: &Value) -> bool {
        let (Some(client), Some(facts)) = (client(family, key, value), &self.facts) else {
            return false;
        };
        let place = Place {
            config: &self.config,
            node: &self.node,
            facts,
        };
        self.ways.keeps(&client, place)
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

/// The client that an element is; `None` if it is none.
fn client(family: Family, key: &Key, value: &Value) -> Option<Client> {
    match value {
        Value::Data(destination) => Client::read(family, key, destination),
        _ => None,
    }
}

fn is_of_udp(family: Family, key: &Key, value: &Value) -> bool {
    let client = client(family, key, value);
    client.is_some_and(|client| client.way.protocol == Protocol::Udp)
}

fn is_gone(refused: &[(usize, Errno)]) -> bool {
    refused.iter().all(|(_, errno)| *errno == Errno::ENOENT)
}
