// SPDX-License-Identifier: Apache-2.0

//! Addresses and ports of servers, of which each virtual server has each once.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use portolan_model::{Families, Family};

use crate::balancer;
use crate::frontend::Frontend;

/// Backends by address and port. One without a port is at the port of each frontend that it serves.
pub(crate) struct Sockets {
    /// Ports that the frontends give to servers, by the family of the server.
    given: HashMap<Family, BTreeSet<u16>>,
    known: HashMap<(IpAddr, Option<u16>), usize>,
}

/// A backend at the same address and port as another server.
pub(crate) struct Same {
    /// Its place among the backends.
    pub(crate) index: usize,
    /// The port, if one of both names it.
    pub(crate) port: Option<u16>,
}

impl Sockets {
    /// No backends, behind these frontends.
    pub(crate) fn new(frontends: &[Frontend]) -> Self {
        let all = balancer::families(frontends);
        let given = |family| {
            let serving = frontends
                .iter()
                .filter(|frontend| is_behind(frontend, family, all));
            serving.map(given_port).collect()
        };
        Self {
            given: Family::ALL
                .into_iter()
                .map(|family| (family, given(family)))
                .collect(),
            known: HashMap::new(),
        }
    }

    /// The first backend that some frontend has at the same address and port.
    pub(crate) fn find(&self, address: IpAddr, port: Option<u16>) -> Option<Same> {
        let given = self.given.get(&Family::of(address)).into_iter().flatten();
        let others: Vec<_> = match port {
            Some(own) => given.filter(|given| **given == own).map(|_| None).collect(),
            None => given.copied().map(Some).collect(),
        };
        let same = others.into_iter().chain([port]).filter_map(|other| {
            let index = *self.known.get(&(address, other))?;
            let port = other.or(port);
            Some(Same { index, port })
        });
        same.min_by_key(|same| same.index)
    }

    /// Adds a backend by its place. The first one of equal ones stays.
    pub(crate) fn insert(&mut self, address: IpAddr, port: Option<u16>, index: usize) {
        self.known.entry((address, port)).or_insert(index);
    }
}

/// Returns `true` if servers of a family are behind a frontend: behind one of their own family, or
/// by a tunnel if there is none.
fn is_behind(frontend: &Frontend, family: Family, all: Families) -> bool {
    !all.contains(family) || frontend.packets.families().contains(family)
}

/// The port that a server without one has: the frontend's, or 0 for the client's.
fn given_port(frontend: &Frontend) -> u16 {
    frontend.packets.port().unwrap_or_default()
}
