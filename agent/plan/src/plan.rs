//! The steps from what the kernel holds to what it should hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use portolan_model::Protocol;
use portolan_model::ipset::{Set, SetEntry, SetKind};
use portolan_model::ipvs::{RealServerConfig, VirtualServer, VirtualServerKey};

use crate::{KernelState, Names, SetName, Step};

/// The steps, in order, from `observed` to `desired`; empty if there is nothing to do.
///
/// Additions go from what packets meet first to what they meet last: sets, entries, rules, routes,
/// virtual servers, real servers; removals go the other way round and come after all additions.
/// What is not ours is not touched: of the virtual servers only those in the ownership record, of
/// the sets only those that we name.
///
/// A TCP real server that is no longer wanted gets weight 0 and stays: whoever watches its
/// connections deletes it when they have ended. UDP and SCTP ones go at once, as upstream does.
#[must_use]
pub fn plan(desired: &KernelState, observed: &KernelState, names: &Names) -> Vec<Step> {
    let mut planner = Planner {
        additions: Vec::new(),
        removals: Vec::new(),
    };
    planner.sets(desired, observed);
    planner.rules(desired, observed);
    planner.routes(desired, observed);
    planner.virtual_servers(desired, observed, names);
    planner.finish()
}

struct Planner {
    additions: Vec<Step>,
    /// In the order of additions; turned round at the end.
    removals: Vec<Step>,
}

impl Planner {
    fn finish(self) -> Vec<Step> {
        let mut steps = self.additions;
        steps.extend(self.removals.into_iter().rev());
        steps
    }

    fn sets(&mut self, desired: &KernelState, observed: &KernelState) {
        let mut entries = Vec::new();
        for (name, want) in &desired.sets {
            match observed.sets.get(name) {
                None => {
                    let header = want.header.clone();
                    self.additions.push(Step::CreateSet {
                        name: name.clone(),
                        header,
                    });
                    if !want.entries.is_empty() {
                        let (name, entries_of) = (name.clone(), want.entries.clone());
                        entries.push(Step::AddEntries {
                            name,
                            entries: entries_of,
                        });
                    }
                }
                Some(have) if !holds(have, want) => self.replace(name, want, have),
                Some(have) => self.entries(name, want, have, &mut entries),
            }
        }
        self.additions.append(&mut entries);
    }

    /// Replaces a set. Entries that are to go stay until their virtual servers are gone.
    fn replace(&mut self, name: &str, want: &Set, have: &Set) {
        let mut set = want.clone();
        let alike =
            have.header.kind == want.header.kind && have.header.family == want.header.family;
        if alike {
            set.entries.extend(have.entries.iter().cloned());
            let needed = u32::try_from(set.entries.len()).unwrap_or(u32::MAX);
            set.header.max_entries = set.header.max_entries.max(needed);
        }
        self.additions.push(Step::ReplaceSet {
            name: name.to_owned(),
            set,
        });
        if alike {
            self.surplus(name, want, have);
        }
    }

    fn entries(&mut self, name: &str, want: &Set, have: &Set, additions: &mut Vec<Step>) {
        let missing: BTreeSet<_> = want.entries.difference(&have.entries).cloned().collect();
        if !missing.is_empty() {
            additions.push(Step::AddEntries {
                name: name.to_owned(),
                entries: missing,
            });
        }
        self.surplus(name, want, have);
    }

    fn surplus(&mut self, name: &str, want: &Set, have: &Set) {
        let entries: BTreeSet<_> = have.entries.difference(&want.entries).cloned().collect();
        if !entries.is_empty() {
            self.removals.push(Step::DelEntries {
                name: name.to_owned(),
                entries,
            });
        }
    }

    fn rules(&mut self, desired: &KernelState, observed: &KernelState) {
        for (family, rules) in &desired.rules {
            if observed.rules.get(family) != Some(rules) {
                self.additions.push(Step::WriteRules {
                    family: *family,
                    rules: rules.clone(),
                });
            }
        }
    }

    fn routes(&mut self, desired: &KernelState, observed: &KernelState) {
        for (vip, source) in &desired.routes {
            if observed.routes.get(vip) != Some(source) {
                self.additions.push(Step::PutRoute {
                    vip: *vip,
                    source: *source,
                });
            }
        }
        for vip in observed
            .routes
            .keys()
            .filter(|vip| !desired.routes.contains_key(vip))
        {
            self.removals.push(Step::DelRoute { vip: *vip });
        }
    }

    fn virtual_servers(&mut self, desired: &KernelState, observed: &KernelState, names: &Names) {
        let mut real_servers = Vec::new();
        for (key, want) in &desired.virtual_servers {
            match observed.virtual_servers.get(key) {
                None => {
                    let config = want.config.clone();
                    self.additions
                        .push(Step::AddVirtualServer { key: *key, config });
                }
                Some(have) if have.config != want.config => {
                    let config = want.config.clone();
                    self.additions
                        .push(Step::SetVirtualServer { key: *key, config });
                }
                Some(_) => {}
            }
            let have = observed.virtual_servers.get(key);
            self.real_servers(*key, want, have, &mut real_servers);
        }
        self.additions.append(&mut real_servers);
        for key in observed.virtual_servers.keys() {
            if !desired.virtual_servers.contains_key(key) && is_ours(observed, names, key) {
                self.removals.push(Step::DelVirtualServer { key: *key });
            }
        }
    }

    fn real_servers(
        &mut self,
        key: VirtualServerKey,
        want: &VirtualServer,
        have: Option<&VirtualServer>,
        additions: &mut Vec<Step>,
    ) {
        let none = BTreeMap::new();
        let have: &BTreeMap<SocketAddr, RealServerConfig> =
            have.map_or(&none, |server| &server.real_servers);
        for (address, config) in &want.real_servers {
            let (address, config) = (*address, *config);
            match have.get(&address) {
                None => additions.push(Step::AddRealServer {
                    key,
                    address,
                    config,
                }),
                Some(before) if *before != config => {
                    additions.push(Step::SetRealServer {
                        key,
                        address,
                        config,
                    });
                }
                Some(_) => {}
            }
        }
        for (address, config) in have
            .iter()
            .filter(|(a, _)| !want.real_servers.contains_key(a))
        {
            let address = *address;
            if key.protocol != Protocol::Tcp {
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

/// Whether a set can hold what is wanted as it is.
fn holds(have: &Set, want: &Set) -> bool {
    let room = have.header.max_entries >= want.header.max_entries
        || want.header.kind == SetKind::BitmapPort;
    let family =
        have.header.family == want.header.family || want.header.kind == SetKind::BitmapPort;
    have.header.kind == want.header.kind && family && room
}

/// Whether the ownership record in the kernel has a virtual server.
pub(crate) fn is_ours(observed: &KernelState, names: &Names, key: &VirtualServerKey) -> bool {
    let record = names.set(SetName::VirtualServers, key.family());
    let entry = SetEntry::IpPort(key.address, key.protocol, key.port);
    observed
        .sets
        .get(&record)
        .is_some_and(|set| set.entries.contains(&entry))
}

impl KernelState {
    /// The virtual servers that are not in the ownership record.
    #[must_use]
    pub fn foreign_virtual_servers(
        &self,
        names: &Names,
    ) -> BTreeMap<VirtualServerKey, VirtualServer> {
        let foreign = self
            .virtual_servers
            .iter()
            .filter(|(key, _)| !is_ours(self, names, key));
        foreign
            .map(|(key, server)| (*key, server.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
