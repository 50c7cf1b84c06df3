// SPDX-License-Identifier: Apache-2.0

//! Draining real servers: no longer desired, and kept for their connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use portolan_dataplane::{Dataplane, DataplaneError};
use portolan_model::NodeTable;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::{KernelState, Step};

use crate::Reconciler;
use crate::apply::PendingMerge;

/// A draining real server: its virtual server and its address.
pub type Draining = (VirtualServerKey, SocketAddr);

/// Draining real servers by virtual server, without empty sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DrainingServers(BTreeMap<VirtualServerKey, BTreeSet<SocketAddr>>);

impl DrainingServers {
    /// All draining real servers of an observed state.
    pub(crate) fn new(observed: &KernelState, desired: &KernelState) -> Self {
        let mut drains = Self::default();
        drains.follow(observed.virtual_servers.keys(), observed, desired);
        drains
    }

    /// Updates some virtual servers.
    fn follow<'a>(
        &mut self,
        servers: impl IntoIterator<Item = &'a VirtualServerKey>,
        observed: &KernelState,
        desired: &KernelState,
    ) {
        for key in servers {
            let draining = draining(key, observed, desired);
            if draining.is_empty() {
                self.0.remove(key);
            } else {
                self.0.insert(*key, draining);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Draining> {
        let servers = self.0.iter();
        servers.flat_map(|(key, draining)| draining.iter().map(|address| (*key, *address)))
    }
}

/// The draining real servers of a desired virtual server: at weight 0 and not desired. A real server that
/// is desired at weight 0 does not drain.
fn draining(
    key: &VirtualServerKey,
    observed: &KernelState,
    desired: &KernelState,
) -> BTreeSet<SocketAddr> {
    let have = observed.virtual_servers.get(key);
    let (Some(have), Some(wanted)) = (have, desired.virtual_servers.get(key)) else {
        return BTreeSet::new();
    };
    let drains = have.real_servers.iter().filter(|(address, config)| {
        config.weight == 0 && !wanted.real_servers.contains_key(address)
    });
    drains.map(|(address, _)| address).collect()
}

impl<D: Dataplane> Reconciler<D> {
    /// All draining real servers, with the seconds that their records allow; `None` if the kernel's state is
    /// uncertain.
    pub fn draining(&mut self, table: &NodeTable) -> Option<BTreeMap<Draining, Option<u32>>> {
        self.merge_pending();
        let observed = self.observed.as_ref()?;
        self.desired.read(|desired| {
            let seconds = |draining: &Draining| {
                let record = desired.records.get(&draining.0)?;
                table.records.get(&record.key)?.drain_seconds
            };
            let all = || DrainingServers::new(observed, &desired.state);
            let draining = self.draining.get_or_insert_with(all).iter();
            Some(draining.map(|d| (d, seconds(&d))).collect())
        })
    }

    /// Updates the draining real servers of some virtual servers. If the kernel's state is uncertain, all
    /// are computed when they are needed.
    pub(crate) fn follow_drains(&mut self, servers: &BTreeSet<VirtualServerKey>) {
        let Some(observed) = &self.observed else {
            self.draining = None;
            return;
        };
        if let Some(drains) = &mut self.draining {
            self.desired
                .read(|desired| drains.follow(servers, observed, &desired.state));
        }
    }

    /// Deletes waiting virtual servers, then draining real servers whose deadline has passed, then those
    /// whose connections have ended, up to the limit of the module `trash`; returns how many are left.
    ///
    /// # Errors
    /// If the connections cannot be read. Nothing was changed then.
    pub async fn finish_drains(
        &mut self,
        has_passed: impl Fn(&Draining) -> bool,
    ) -> Result<usize, DataplaneError> {
        self.merge_pending();
        let Some(observed) = &self.observed else {
            return Ok(0);
        };
        let desired = &self.desired;
        let all = || desired.read(|desired| DrainingServers::new(observed, &desired.state));
        let draining: Vec<Draining> = self.draining.get_or_insert_with(all).iter().collect();
        let names = &self.config.names;
        let wanted = |key: &_| desired.read(|d| d.state.virtual_servers.contains_key(key));
        let is_there =
            |key: &_| observed.virtual_servers.contains_key(key) && observed.owns(names, key);
        self.put_off.retain(|key| is_there(key) && !wanted(key));
        let left = draining.len() + self.put_off.len();
        let room = self.trash.room(Instant::now());
        if room == 0 || left == 0 {
            return Ok(left);
        }
        let (mut late, mut idle) = (Vec::new(), Vec::new());
        for of_one in draining.chunk_by(|(a, _), (b, _)| a == b) {
            let connections = self.dataplane.connections(&of_one[0].0).await?;
            // A real server of the other family may not be shown. Its connections are unknown: the deadline decides.
            for draining @ (key, address) in of_one.iter().copied() {
                let step = Step::DelRealServer { key, address };
                let found = connections.get(&address);
                if has_passed(&draining) {
                    late.push(step);
                } else if found.is_some_and(|c| c.active + c.inactive == 0) {
                    idle.push(step);
                }
            }
        }
        // Only now: those that it returns no longer wait, and connections that cannot be read end the attempt.
        let (mut steps, disowned, room) = self.put_off.finish(observed, names, room);
        late.append(&mut idle);
        late.truncate(room);
        steps.append(&mut late);
        let finished = steps.len();
        steps.extend(disowned);
        let observed = self.observed.take().unwrap_or_default();
        let errors = self.apply(&steps, &observed).await;
        for error in &errors {
            for (_, message) in self.explain(&steps, error) {
                tracing::warn!(message, "a drained real server could not be deleted");
            }
        }
        if self.is_state_certain(&steps, &errors, false) {
            let touched = steps.iter().filter_map(Step::virtual_server).copied();
            let touched = touched.collect();
            self.pending = Some(PendingMerge::new(observed, steps, &errors, touched));
        } else {
            self.draining = None;
        }
        Ok(left - finished)
    }
}
