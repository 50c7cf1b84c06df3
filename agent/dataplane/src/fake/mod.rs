//! A kernel in memory: it refuses what the real one refuses, and fails where it is told to.

mod predecessor;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use portolan_model::Family;
use portolan_model::ipset::{Set, SetEntry, SetKind};
use portolan_model::ipvs::{Connections, VirtualServerKey};
use portolan_plan::{KernelState, NodeFacts, Rules, Step};

use crate::gate::Gate;
use crate::{Dataplane, DataplaneError, Flow, StepError};

/// The kernel's model.
#[derive(Debug, Default)]
pub struct FakeKernel {
    /// What it holds.
    pub state: KernelState,
    /// What the node is like.
    pub facts: NodeFacts,
    /// Connections to say there are.
    pub connections: BTreeMap<(VirtualServerKey, SocketAddr), Connections>,
    /// UDP flows that conntrack remembers.
    pub flows: Vec<Flow>,
    /// How often the flows were read.
    pub flow_reads: usize,
    /// Steps to fail, by their number since the start, with the message.
    pub failures: BTreeMap<usize, String>,
    /// All steps taken so far, failed ones included.
    pub taken: Vec<Step>,
    /// Dummy devices with virtual addresses.
    pub devices: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Chains of others that rules were removed with, by family.
    pub removed_chains: BTreeSet<(Family, String)>,
    /// After this many steps nothing works any more (the agent was killed).
    pub crash_after: Option<usize>,
}

impl FakeKernel {
    /// Fails if nothing works any more; what is no step counts as none.
    fn work(&self) -> Result<(), DataplaneError> {
        match self.crash_after {
            Some(limit) if self.taken.len() >= limit => {
                Err(std::io::Error::other("crashed").into())
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        let number = self.taken.len();
        if self.crash_after.is_some_and(|limit| number >= limit) {
            return Err("crashed".to_owned());
        }
        self.taken.push(step.clone());
        match self.failures.get(&number) {
            Some(message) => Err(message.clone()),
            None => {
                check(&self.state, step)?;
                self.state.advance(step);
                Ok(())
            }
        }
    }
}

/// What the kernel refuses.
fn check(state: &KernelState, step: &Step) -> Result<(), String> {
    let set = |name: &String| state.sets.get(name).ok_or_else(|| format!("no set {name}"));
    let server = |key| {
        state
            .virtual_servers
            .get(key)
            .ok_or_else(|| "ESRCH".to_owned())
    };
    match step {
        Step::CreateSet { name, header } => {
            let fits = state.sets.get(name).is_none_or(|set| set.header == *header);
            same(fits, "set exists with another header")
        }
        Step::ReplaceSet { set, .. } => {
            set.entries.iter().try_for_each(|entry| fits(set, entry))?;
            let identities: BTreeSet<_> = set.entries.iter().map(SetEntry::identity).collect();
            same(identities.len() == set.entries.len(), "two entries are one")?;
            room(set, 0)
        }
        Step::AddEntries { name, entries } => {
            let set = set(name)?;
            entries.iter().try_for_each(|entry| fits(set, entry))?;
            let there: BTreeSet<_> = set.entries.iter().map(SetEntry::identity).collect();
            let added: BTreeSet<_> = entries.iter().map(SetEntry::identity).collect();
            room(set, added.difference(&there).count())
        }
        Step::DelEntries { name, .. } => set(name).map(drop),
        Step::WriteRules { rules, .. } => {
            rules.sets.iter().try_for_each(|name| set(name).map(drop))
        }
        Step::PutRoute { .. } | Step::DelRoute { .. } => Ok(()),
        Step::AddVirtualServer { key, .. } => same(server(key).is_err(), "EEXIST"),
        Step::SetVirtualServer { key, .. } | Step::DelVirtualServer { key } => {
            server(key).map(drop)
        }
        Step::AddRealServer { key, address, .. } => {
            same(key.family() == Family::of(address.ip()), "EINVAL")?;
            same(!server(key)?.real_servers.contains_key(address), "EEXIST")
        }
        Step::SetRealServer { key, address, .. } | Step::DelRealServer { key, address } => {
            same(server(key)?.real_servers.contains_key(address), "ENOENT")
        }
    }
}

fn same(good: bool, message: &str) -> Result<(), String> {
    if good {
        Ok(())
    } else {
        Err(message.to_owned())
    }
}

fn room(set: &Set, more: usize) -> Result<(), String> {
    let limit = usize::try_from(set.header.max_entries).unwrap_or(usize::MAX);
    let bounded = set.header.kind != SetKind::BitmapPort;
    same(!bounded || set.entries.len() + more <= limit, "set is full")
}

fn fits(set: &Set, entry: &SetEntry) -> Result<(), String> {
    let (kind, address) = match entry {
        SetEntry::Ip(ip) => (SetKind::HashIp, Some(*ip)),
        SetEntry::IpPort(ip, ..) => (SetKind::HashIpPort, Some(*ip)),
        SetEntry::IpPortMark(ip, ..) => (SetKind::HashIpPortMark, Some(*ip)),
        SetEntry::IpPortIp(ip, ..) => (SetKind::HashIpPortIp, Some(*ip)),
        SetEntry::IpPortNet(ip, ..) => (SetKind::HashIpPortNet, Some(*ip)),
        SetEntry::Port(_) => (SetKind::BitmapPort, None),
    };
    let family = address.is_none_or(|ip| Family::of(ip) == set.header.family);
    same(
        kind == set.header.kind && family,
        "entry does not fit the set",
    )
}

impl Dataplane for FakeKernel {
    async fn prepare(&mut self) -> Result<(), DataplaneError> {
        Ok(())
    }

    async fn observe(&mut self) -> Result<KernelState, DataplaneError> {
        Ok(self.state.clone())
    }

    async fn facts(&mut self) -> Result<NodeFacts, DataplaneError> {
        Ok(self.facts.clone())
    }

    async fn apply(&mut self, steps: &[Step]) -> Vec<StepError> {
        let mut gate = Gate::default();
        let mut errors = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            let result = match gate.holds(step) {
                Some(reason) => Err(reason.to_owned()),
                None => self.take(step),
            };
            if let Err(message) = result {
                gate.failed(step);
                errors.push(StepError {
                    index,
                    message,
                    entries: step.added_entries(),
                });
            }
        }
        errors
    }

    async fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<BTreeMap<SocketAddr, Connections>, DataplaneError> {
        let Some(server) = self.state.virtual_servers.get(key) else {
            return Ok(BTreeMap::new());
        };
        let of = |address: &SocketAddr| self.connections.get(&(*key, *address)).copied();
        Ok(server
            .real_servers
            .keys()
            .map(|a| (*a, of(a).unwrap_or_default()))
            .collect())
    }

    async fn flows(
        &mut self,
        family: Family,
        keep: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> Result<Vec<Flow>, DataplaneError> {
        self.flow_reads += 1;
        let of_family = |flow: &&Flow| Family::of(flow.original.source.ip()) == family;
        let kept = self
            .flows
            .iter()
            .filter(of_family)
            .filter(|flow| keep(flow));
        Ok(kept.copied().collect())
    }

    async fn delete_flows(&mut self, flows: &[Flow]) -> Result<usize, DataplaneError> {
        let before = self.flows.len();
        self.flows.retain(|flow| !flows.contains(flow));
        Ok(before - self.flows.len())
    }

    async fn remove_rules(&mut self, rules: &Rules, family: Family) -> Result<(), DataplaneError> {
        self.work()?;
        let shares = |written: &Rules| written.shares_chain(rules);
        let kept = |of: &Family, written: &Rules| *of != family || !shares(written);
        self.state.rules.retain(|of, written| kept(of, written));
        let chains = rules.tables.iter().flat_map(|table| &table.chains);
        let removed = chains.map(|(chain, _)| (family, chain.clone()));
        self.removed_chains.extend(removed);
        Ok(())
    }

    async fn destroy_sets(&mut self, names: &[String]) -> Result<(), DataplaneError> {
        self.work()?;
        for name in names {
            self.state.sets.remove(name);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
