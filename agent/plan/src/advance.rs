// SPDX-License-Identifier: Apache-2.0

//! Effect of a successful step on a state.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry, SetKind};
use portolan_model::ipvs::VirtualServer;

use crate::{KernelState, Rules, Step};

impl KernelState {
    /// Applies the effect of a step that the kernel executed. A step about a missing object has no effect:
    /// the state was wrong then, and the next observation corrects it.
    pub fn advance(&mut self, step: &Step) {
        match step {
            Step::CreateSet { name, header } => {
                let set = Set {
                    header: header.clone(),
                    entries: BTreeSet::new(),
                };
                self.sets.entry(name.clone()).or_insert(set);
            }
            Step::ReplaceSet { name, set } => {
                self.sets.insert(name.clone(), Set::clone(set));
            }
            Step::AddEntries { name, entries } => {
                if let Some(set) = self.sets.get_mut(name) {
                    add_entries(set, entries);
                }
            }
            Step::DelEntries { name, entries } => {
                if let Some(set) = self.sets.get_mut(name) {
                    del_entries(set, entries);
                }
            }
            Step::WriteRules { family, rules } => {
                self.rules.insert(*family, Rules::clone(rules));
            }
            Step::AddRoute { vip, source } | Step::SetRoute { vip, source } => {
                self.routes.insert(*vip, *source);
            }
            Step::DelRoute { vip } => {
                self.routes.remove(vip);
            }
            _ => self.advance_ipvs(step),
        }
    }

    fn advance_ipvs(&mut self, step: &Step) {
        let Some(key) = step.virtual_server() else {
            return;
        };
        match step {
            Step::AddVirtualServer { config, .. } => {
                let (config, real_servers) = (Arc::clone(config), Arc::default());
                self.virtual_servers.insert(
                    *key,
                    VirtualServer {
                        config,
                        real_servers,
                    },
                );
                return;
            }
            Step::DelVirtualServer { .. } => {
                self.virtual_servers.remove(key);
                self.recovered.remove(key);
                return;
            }
            _ => {}
        }
        let Some(server) = self.virtual_servers.get_mut(key) else {
            return;
        };
        match step {
            Step::SetVirtualServer { config, .. } => server.config = Arc::clone(config),
            Step::FillVirtualServer { real_servers, .. } => {
                server.real_servers = Arc::clone(real_servers);
            }
            Step::AddRealServer {
                address, config, ..
            }
            | Step::SetRealServer {
                address, config, ..
            } => {
                Arc::make_mut(&mut server.real_servers).insert(*address, *config);
            }
            Step::DelRealServer { address, .. } => {
                Arc::make_mut(&mut server.real_servers).remove(address);
            }
            _ => {}
        }
    }
}

/// An entry replaces one of the same identity.
fn add_entries(set: &mut Set, entries: &[SetEntry]) {
    if set.header.kind == SetKind::HashIpPortMark {
        del_entries(set, entries);
    }
    set.entries.extend(entries.iter().cloned());
}

fn del_entries(set: &mut Set, entries: &[SetEntry]) {
    for entry in entries {
        if let Some(there) = set.of_identity(entry).cloned() {
            set.entries.remove(&there);
        }
    }
}
