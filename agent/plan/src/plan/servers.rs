// SPDX-License-Identifier: Apache-2.0

//! Steps about virtual and real servers.

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::ipvs::{RealServerConfig, VirtualServer, VirtualServerKey};
use portolan_model::{Protocol, Record};

use super::{Of, Planner};
use crate::desire::refuses_at_zero;
use crate::{Desired, KernelState, Step};

impl Planner<'_> {
    /// Virtual servers selected by mark, or by address; then their real servers.
    pub(super) fn virtual_servers(
        &mut self,
        desired: &Desired,
        observed: &KernelState,
        by_mark: bool,
    ) {
        let of_kind = |key: &VirtualServerKey| key.mark().is_some() == by_mark;
        let wanted = || {
            let servers = desired.state.virtual_servers.iter();
            servers.filter(|(key, _)| of_kind(key))
        };
        for (key, want) in wanted() {
            let (key, config) = (*key, Arc::clone(&want.config));
            match observed.virtual_servers.get(&key) {
                None => self.additions.push(Step::AddVirtualServer { key, config }),
                Some(have) if have.config != config => {
                    self.additions.push(Step::SetVirtualServer { key, config });
                }
                Some(_) => {}
            }
        }
        for key in observed.virtual_servers.keys().filter(|key| of_kind(key)) {
            let gone = !desired.state.virtual_servers.contains_key(key);
            let stays = self.is_excluded(key) || !self.config.families.contains(&key.family());
            if gone && !stays && observed.owns(&self.config.names, key) {
                self.remove(Of::Kernel, Step::DelVirtualServer { key: *key });
            }
        }
        for (key, want) in wanted() {
            match observed.virtual_servers.get(key) {
                Some(have) => {
                    self.real_servers(*key, want, have, desired);
                }
                None if want.real_servers.is_empty() => {}
                None => self.additions.push(Step::FillVirtualServer {
                    key: *key,
                    real_servers: Arc::clone(&want.real_servers),
                }),
            }
        }
    }

    pub(super) fn is_excluded(&self, key: &VirtualServerKey) -> bool {
        let networks = &self.config.exclude_cidrs;
        key.socket()
            .is_some_and(|socket| networks.iter().any(|net| net.contains(&socket.ip())))
    }

    /// Steps about the real servers of one virtual server: those that bring weight, then those that lower weights, and
    /// removals last. So if one has a weight before and after, one has a weight at every moment between. A step does
    /// not wait for an earlier one that the kernel refuses.
    fn real_servers(
        &mut self,
        key: VirtualServerKey,
        want: &VirtualServer,
        have: &VirtualServer,
        desired: &Desired,
    ) {
        if Arc::ptr_eq(&want.real_servers, &have.real_servers) {
            return;
        }
        let is_tcp = desired.protocol(&key) == Some(Protocol::Tcp);
        let drains = is_tcp && !refuses_at_zero(&want.config.scheduler);
        let record = desired.records.get(&key);
        let fails = |address| record.is_some_and(|record| desired.is_failed(record, address));
        let mut lowered = Vec::new();
        for (address, config) in want.real_servers.iter() {
            let config = *config;
            let set = || Step::SetRealServer {
                key,
                address,
                config,
            };
            match have.real_servers.get(&address) {
                None => self.additions.push(Step::AddRealServer {
                    key,
                    address,
                    config,
                }),
                Some(before) if config.weight < before.weight => lowered.push(set()),
                Some(before) if *before != config => self.additions.push(set()),
                Some(_) => {}
            }
        }
        self.additions.append(&mut lowered);
        for (address, config) in have.real_servers.iter() {
            if want.real_servers.contains_key(&address) {
                continue;
            }
            let of = match record.is_some_and(|record| has_backend(record, address)) {
                true => Of::Table,
                false => Of::Kernel,
            };
            if !drains || fails(address) {
                self.remove(of, Step::DelRealServer { key, address });
            } else if config.weight != 0 {
                let config = RealServerConfig {
                    weight: 0,
                    ..*config
                };
                let step = Step::SetRealServer {
                    key,
                    address,
                    config,
                };
                self.remove(of, step);
            }
        }
    }
}

/// Returns `true` if a load balancer has this backend or sorry server.
fn has_backend(record: &Record, address: SocketAddr) -> bool {
    record.balancing.as_ref().is_some_and(|balancing| {
        let mut backends = record.destinations.iter();
        let sorry = balancing.sorry_server.as_ref();
        backends.any(|backend| backend.address == address)
            || sorry.is_some_and(|sorry| sorry.address == address)
    })
}
