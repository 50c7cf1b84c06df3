// SPDX-License-Identifier: Apache-2.0

//! Steps about virtual and real servers.

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::check::OnFailure;
use portolan_model::ipvs::{RealServerConfig, VirtualServer, VirtualServerKey};
use portolan_model::{Balancing, Protocol, Record};

use super::Planner;
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
                self.removals.push(Step::DelVirtualServer { key: *key });
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

    fn is_excluded(&self, key: &VirtualServerKey) -> bool {
        let networks = &self.config.exclude_cidrs;
        key.socket()
            .is_some_and(|socket| networks.iter().any(|net| net.contains(&socket.ip())))
    }

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
        let drains = desired.protocol(&key) == Some(Protocol::Tcp);
        let record = desired.records.get(&key);
        let fails = |address| record.is_some_and(|record| is_failed(record, address));
        for (address, config) in want.real_servers.iter() {
            let config = *config;
            match have.real_servers.get(&address) {
                None => self.additions.push(Step::AddRealServer {
                    key,
                    address,
                    config,
                }),
                Some(before) if *before != config => self.additions.push(Step::SetRealServer {
                    key,
                    address,
                    config,
                }),
                Some(_) => {}
            }
        }
        for (address, config) in have.real_servers.iter() {
            if want.real_servers.contains_key(&address) {
                continue;
            }
            if !drains || fails(address) {
                self.removals.push(Step::DelRealServer { key, address });
            } else if config.weight != 0 {
                let config = RealServerConfig {
                    weight: 0,
                    ..*config
                };
                self.removals.push(Step::SetRealServer {
                    key,
                    address,
                    config,
                });
            }
        }
    }
}

/// Whether a real server that is not desired failed its checks, and is to leave with its connections.
fn is_failed(record: &Record, address: SocketAddr) -> bool {
    let removes = |balancing: &Balancing| balancing.health.on_failure == OnFailure::Remove;
    let is_backend = || {
        let mut backends = record.destinations.iter();
        backends.any(|backend| backend.address == address)
    };
    record.balancing.as_deref().is_some_and(removes) && is_backend()
}
