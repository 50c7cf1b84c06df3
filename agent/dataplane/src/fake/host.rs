// SPDX-License-Identifier: Apache-2.0

//! Settings of a host in memory, with the kernel's refusals.

use std::collections::BTreeSet;

use portolan_model::Family;
use portolan_netlink::Errno;
use portolan_plan::host::{HostDesired, HostState, HostStep, Owned};
use portolan_plan::{Step, VipBinding};

use super::FakeKernel;
use crate::{DataplaneError, HostPlane};

/// The settings of a host.
#[derive(Debug, Clone, Default)]
pub struct FakeHost {
    /// Their state. Settings that are missing here do not exist.
    pub state: HostState,
    /// Names of the interfaces.
    pub interfaces: BTreeSet<String>,
    /// Names of settings that can be read and not written.
    pub read_only: BTreeSet<String>,
    /// All steps so far, refused ones included.
    pub applied: Vec<HostStep>,
    /// The last chosen binding of virtual addresses.
    pub binding: Option<VipBinding>,
}

impl HostPlane for FakeKernel {
    async fn observe_host(
        &mut self,
        desired: &HostDesired,
        _: &Owned,
    ) -> Result<HostState, DataplaneError> {
        self.read()?;
        let mut state = self.host.state.clone();
        let names = desired.sysctls.keys().chain(&desired.not_strict);
        for name in names.chain(&desired.forwarding) {
            let missing = || Err("no such file".to_owned());
            state.sysctls.entry(name.clone()).or_insert_with(missing);
        }
        Ok(state)
    }

    async fn apply_host(&mut self, steps: &[HostStep]) -> Vec<(HostStep, String)> {
        let mut failed = Vec::new();
        for step in steps {
            self.host.applied.push(step.clone());
            match self.refusal(step) {
                None => self.host.state.advance(step),
                Some(errno) => failed.push((step.clone(), errno.to_string())),
            }
        }
        failed
    }

    fn bind_by(&mut self, binding: VipBinding) {
        self.host.binding = Some(binding);
    }
}

impl FakeKernel {
    fn refusal(&self, step: &HostStep) -> Option<Errno> {
        let FakeHost {
            state,
            interfaces,
            read_only,
            ..
        } = &self.host;
        match step {
            HostStep::AddDaemon { role, daemon } => {
                if state.daemons.contains_key(role) {
                    Some(Errno::EEXIST)
                } else if !interfaces.contains(&daemon.interface) {
                    Some(Errno::ENODEV)
                } else {
                    self.has_mixed_families().then_some(Errno::EINVAL)
                }
            }
            HostStep::DelDaemon { role } => {
                (!state.daemons.contains_key(role)).then_some(Errno::ESRCH)
            }
            HostStep::AddNeighbour(neighbour) => {
                (!interfaces.contains(&neighbour.interface)).then_some(Errno::ENODEV)
            }
            HostStep::SetSysctl { name, .. } if read_only.contains(name) => Some(Errno::EPERM),
            HostStep::SetSysctl { name, .. } => {
                (!state.sysctls.contains_key(name)).then_some(Errno::ENOENT)
            }
            HostStep::Announce { table, vip } => state
                .announced
                .contains(&(*table, *vip))
                .then_some(Errno::EEXIST),
            _ => None,
        }
    }

    /// Returns `true` if a step adds a real server of another family while a sync daemon runs.
    pub(super) fn excludes_sync_daemon(&self, step: &Step) -> bool {
        let is_mixed = matches!(step, Step::AddRealServer { key, address, .. }
            if Family::of(address.ip()) != key.family());
        is_mixed && !self.host.state.daemons.is_empty()
    }

    /// Returns `true` if a real server is of another family than its virtual server, as only a
    /// tunnel's can be.
    fn has_mixed_families(&self) -> bool {
        let mut servers = self.state.virtual_servers.iter();
        servers.any(|(key, server)| {
            let mut addresses = server.real_servers.keys();
            addresses.any(|address| Family::of(address.ip()) != key.family())
        })
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::ipvs::{SyncDaemon, SyncRole};

    use super::*;

    #[tokio::test]
    async fn daemons_are_refused_as_the_kernel_does() {
        let mut fake = FakeKernel::default();
        let add = |interface: &str| HostStep::AddDaemon {
            role: SyncRole::Master,
            daemon: SyncDaemon::new(interface),
        };
        let del = HostStep::DelDaemon {
            role: SyncRole::Master,
        };
        fake.host.interfaces.insert("eth1".to_owned());
        let steps = [del.clone(), add("eth2"), add("eth1"), add("eth1"), del];
        let failed = fake.apply_host(&steps).await;
        let reasons: Vec<_> = failed.iter().map(|(_, reason)| &**reason).collect();
        assert_eq!(reasons, ["ESRCH (3)", "ENODEV (19)", "EEXIST (17)"]);
        assert!(fake.host.state.daemons.is_empty());
    }
}
