// SPDX-License-Identifier: Apache-2.0

//! Deletions of many real servers, spread over time (see the module `trash`).
//!
//! Real servers that exceed the room get weight 0, so that they take no new connections, and wait. A
//! virtual server that is no longer desired waits as a whole: without its route and its entries, and
//! still in the ownership record. [`Reconciler::finish_drains`] deletes waiting ones as room returns.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use portolan_dataplane::{Dataplane, DataplaneError};
use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{Connections, RealServerConfig, VirtualServerKey};
use portolan_plan::{KernelState, Names, SetName, Step, ownership_entry};

use crate::Reconciler;
use crate::trash::{MOST, deleted_by};

/// Additional deletions for objects that do not wait yet, so that a change of few Services is not delayed
/// by an earlier one of many.
const FEW: usize = 100;

/// Our virtual servers that are no longer desired and wait to be deleted.
#[derive(Debug, Default)]
pub(crate) struct PutOff(BTreeSet<VirtualServerKey>);

impl PutOff {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn extend(&mut self, keys: BTreeSet<VirtualServerKey>) {
        self.0.extend(keys);
    }

    /// Removes those that do not wait any more.
    pub(crate) fn retain(&mut self, waits: impl Fn(&VirtualServerKey) -> bool) {
        self.0.retain(waits);
    }

    /// Returns the steps that delete as many as there is room for, the steps that delete their ownership
    /// entries, and the remaining room. These no longer wait.
    pub(crate) fn finish(
        &mut self,
        observed: &KernelState,
        names: &Names,
        mut room: usize,
    ) -> (Vec<Step>, Vec<Step>, usize) {
        let mut servers = Vec::new();
        let mut entries: BTreeMap<String, BTreeSet<SetEntry>> = BTreeMap::new();
        self.0.retain(|key| {
            let server = observed.virtual_servers.get(key);
            let count = server.map_or(0, |server| server.real_servers.len());
            let Some(left) = room_after(room, count) else {
                return true;
            };
            room = left;
            servers.push(Step::DelVirtualServer { key: *key });
            let name = names.set(SetName::VirtualServers, key.family());
            let of_family = entries.entry(name).or_default();
            of_family.insert(ownership_entry(key));
            false
        });
        let entries = entries.into_iter();
        let entries = entries.map(|(name, entries)| Step::DelEntries {
            name,
            entries: Arc::new(entries.into_iter().collect()),
        });
        (servers, entries.collect(), room)
    }
}

/// The room left after deleting `count` together; `None` if they have to wait. More than the whole room
/// are deleted when the room is empty.
fn room_after(room: usize, count: usize) -> Option<usize> {
    (count <= room || room == MOST).then(|| room.saturating_sub(count))
}

/// Remaining room for deletions.
#[derive(Debug, Clone, Copy)]
struct Room {
    room: usize,
    few: usize,
}

impl Room {
    /// Claims room for `count` deletions, if there is any. Objects that `waits` already have no share in
    /// the additional ones.
    fn claim(&mut self, count: usize, waits: bool) -> bool {
        if let Some(left) = room_after(self.room, count) {
            self.room = left;
            return true;
        }
        let is_few = !waits && count <= self.few;
        if is_few {
            self.few -= count;
        }
        is_few
    }
}

type Busy = BTreeMap<VirtualServerKey, BTreeMap<SocketAddr, Connections>>;

/// Replaces deletions that exceed the room with weights of 0; also returns the virtual servers that wait.
/// Real servers of UDP with connections never wait: their clients must move at once.
fn spread(
    steps: Vec<Step>,
    observed: &KernelState,
    names: &Names,
    busy: &Busy,
    mut room: Room,
) -> (Vec<Step>, BTreeSet<VirtualServerKey>) {
    let records = portolan_model::Family::ALL.map(|f| names.set(SetName::VirtualServers, f));
    let is_busy = |key: &VirtualServerKey, address: &SocketAddr| {
        let connections = busy.get(key).and_then(|of_server| of_server.get(address));
        connections.is_some_and(|c| c.active + c.inactive > 0)
    };
    let (mut spread, mut waiting) = (Vec::with_capacity(steps.len()), BTreeSet::new());
    for step in steps {
        match step {
            Step::DelVirtualServer { key } => {
                let mut weights = quiet(observed, key, |_| true).peekable();
                let waits = weights.peek().is_none();
                if room.claim(deleted_by(&step, observed), waits) {
                    spread.push(step);
                } else {
                    waiting.insert(key);
                    spread.extend(weights);
                }
            }
            Step::DelRealServer { key, address } => {
                let mut weight = quiet(observed, key, |there| *there == address).peekable();
                let waits = weight.peek().is_none();
                if room.claim(1, waits) || is_busy(&key, &address) {
                    spread.push(step);
                } else {
                    spread.extend(weight);
                }
            }
            Step::DelEntries { name, entries } if records.contains(&name) => {
                let stay: BTreeSet<SetEntry> = waiting.iter().map(ownership_entry).collect();
                let entries = entries.iter().filter(|entry| !stay.contains(entry));
                let entries = Arc::new(entries.cloned().collect::<Vec<_>>());
                if !entries.is_empty() {
                    spread.push(Step::DelEntries { name, entries });
                }
            }
            other => spread.push(other),
        }
    }
    (spread, waiting)
}

/// The steps that set real servers of a virtual server to weight 0.
fn quiet(
    observed: &KernelState,
    key: VirtualServerKey,
    which: impl Fn(&SocketAddr) -> bool,
) -> impl Iterator<Item = Step> {
    let server = observed.virtual_servers.get(&key);
    let real_servers = server
        .into_iter()
        .flat_map(|server| server.real_servers.iter());
    let chosen = real_servers.filter(move |(there, config)| config.weight != 0 && which(there));
    chosen.map(move |(address, config)| Step::SetRealServer {
        key,
        address,
        config: RealServerConfig {
            weight: 0,
            ..*config
        },
    })
}

impl<D: Dataplane> Reconciler<D> {
    /// Returns `true` if virtual servers wait to be deleted.
    #[must_use]
    pub fn has_put_off(&self) -> bool {
        self.put_off.len() > 0
    }

    /// Postpones deletions that exceed the room. With `anew` the steps concern all objects.
    pub(crate) async fn spread(
        &mut self,
        steps: Vec<Step>,
        observed: &KernelState,
        anew: bool,
    ) -> Result<Vec<Step>, DataplaneError> {
        if anew {
            self.put_off.clear();
        }
        let deleted: usize = steps.iter().map(|step| deleted_by(step, observed)).sum();
        let room = self.trash.room(Instant::now());
        if deleted <= room {
            return Ok(steps);
        }
        let room = Room { room, few: FEW };
        let mut busy = Busy::new();
        for step in &steps {
            if let Step::DelRealServer { key, .. } = step
                && !busy.contains_key(key)
            {
                busy.insert(*key, self.dataplane.connections(key).await?);
            }
        }
        let (steps, waiting) = spread(steps, observed, &self.config.names, &busy, room);
        self.put_off.extend(waiting);
        Ok(steps)
    }
}

#[cfg(test)]
mod tests;
