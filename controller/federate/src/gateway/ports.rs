// SPDX-License-Identifier: Apache-2.0

//! Ports of gateways in one exporting cluster: each stands for one port of one export.
//!
//! A port of an export is kept. A new one is the first free port from a place on that its name determines, so that
//! an export usually has the same port again where nothing is kept. A port of an export that is gone is given to
//! no other one for [`HELD`], since nodes of other clusters may still send connections there. A node port of a Service
//! is given to none, and one that an export has already stays: who moves it breaks the connections of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use portolan_model::Protocol;
use portolan_policy::PortRange;

use crate::vip::{HELD, ImportName};
use crate::{Moment, stable};

/// The name of a port of an export in the exporting cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortName {
    /// The Service.
    pub service: ImportName,
    /// The name of the port; may be empty.
    pub port: Arc<str>,
    /// The protocol. Protocols share no numbers.
    pub protocol: Protocol,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} port ", self.service)?;
        if !self.port.is_empty() {
            write!(f, "{} ", self.port)?;
        }
        write!(f, "{}", self.protocol)
    }
}

/// A port of an export that needs a port of the gateways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortClaim {
    /// The port of the export.
    pub name: PortName,
    /// Its present port of the gateways, if any.
    pub present: Option<u16>,
}

/// Reason why a port of an export has no port of the gateways.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum PortProblem {
    /// All are taken.
    #[error("no port is left in gateway.ports {0}")]
    Full(PortRange),
    /// The cluster has no gateways any more.
    #[error("no gateway.ports")]
    NoRange,
}

/// Allocates the ports of the gateways of one cluster.
#[derive(Debug, Clone, Default)]
pub struct Ports {
    range: Option<PortRange>,
    /// The holders of all ports after the last allocation.
    holders: BTreeMap<(Protocol, u16), PortName>,
    /// Ports that Services have on the nodes of the cluster.
    of_nodes: BTreeSet<(Protocol, u16)>,
    /// Ports of exports that are gone: who had them, and since when they are free.
    freed: BTreeMap<(Protocol, u16), (PortName, Moment)>,
}

impl Ports {
    /// Another range. Ports outside it are replaced by the next allocation.
    pub fn set_range(&mut self, range: Option<PortRange>) {
        self.range = range;
    }

    /// The ports that Services have on the nodes of the cluster. The next allocation gives none of them.
    pub fn set_node_ports(&mut self, ports: BTreeSet<(Protocol, u16)>) {
        self.of_nodes = ports;
    }

    /// The ports of all exports. `claims` are all of them, not a part: what no claim has any more is free after
    /// [`HELD`]. Of two that have one port, which only a damaged record says, the first by name keeps it.
    pub fn allocate(
        &mut self,
        claims: &[PortClaim],
        now: Moment,
    ) -> BTreeMap<PortName, Result<u16, PortProblem>> {
        let Some(range) = self.range else {
            self.release(&BTreeMap::new(), now);
            let none = claims.iter();
            return none
                .map(|claim| (claim.name.clone(), Err(PortProblem::NoRange)))
                .collect();
        };
        let by_name: BTreeMap<&PortName, Option<u16>> = claims
            .iter()
            .map(|claim| (&claim.name, claim.present))
            .collect();
        let is_in = |port: &u16| (range.first..=range.last).contains(port);
        let mut kept = BTreeMap::new();
        for (name, present) in &by_name {
            if let Some(port) = present.filter(is_in) {
                let holder = kept.entry((name.protocol, port));
                holder.or_insert_with(|| (*name).clone());
            }
        }
        self.release(&kept, now);
        let kept: BTreeMap<PortName, u16> = kept
            .into_iter()
            .map(|((_, port), name)| (name, port))
            .collect();
        let allocated = by_name.into_keys().map(|name| {
            let kept = kept.get(name).copied();
            let port = kept.or_else(|| self.take(range, name));
            (name.clone(), port.ok_or(PortProblem::Full(range)))
        });
        allocated.collect()
    }

    /// Takes `kept` as what is held now.
    fn release(&mut self, kept: &BTreeMap<(Protocol, u16), PortName>, now: Moment) {
        for (port, holder) in std::mem::replace(&mut self.holders, kept.clone()) {
            if !kept.contains_key(&port) {
                self.freed.entry(port).or_insert((holder, now));
            }
        }
        // A clock that was ahead noted times after `now`.
        for (_, since) in self.freed.values_mut() {
            *since = now.min(*since);
        }
        self.freed
            .retain(|port, (_, since)| !kept.contains_key(port) && now.since(*since) < HELD);
    }

    /// The first free port from the place of the name on; before that one that the same port of the same export had.
    fn take(&mut self, range: PortRange, name: &PortName) -> Option<u16> {
        let parts = [&name.service.namespace, &name.service.name, &name.port];
        let parts = parts.map(|part| part.as_bytes());
        let hash = stable::hash([b"gateway port".as_slice()].into_iter().chain(parts));
        let size = u64::from(range.last - range.first) + 1;
        let is_free = |port: &u16| {
            let place = (name.protocol, *port);
            !self.holders.contains_key(&place) && !self.of_nodes.contains(&place)
        };
        let had = self.freed.iter().filter(|(_, (holder, _))| holder == name);
        let mut had = had.map(|((_, port), _)| *port);
        let had = had.find(|port| (range.first..=range.last).contains(port) && is_free(port));
        let free = had.or_else(|| {
            let mut ports = (0..size).filter_map(|step| {
                let offset = (hash % size + step) % size;
                Some(range.first + u16::try_from(offset).ok()?)
            });
            let is_held = |port: &u16| self.freed.contains_key(&(name.protocol, *port));
            ports.find(|port| is_free(port) && !is_held(port))
        });
        let place = (name.protocol, free?);
        self.freed.remove(&place);
        self.holders.insert(place, name.clone());
        free
    }
}
