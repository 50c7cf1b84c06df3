// SPDX-License-Identifier: Apache-2.0

//! Kernel in memory with the refusals of the real one, and with injected faults.

mod host;
mod kube_proxy;
mod other_plane;
mod refusals;

pub use host::FakeHost;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::Family;
use portolan_model::ipvs::{Connections, RealServers, VirtualServer, VirtualServerKey};
use portolan_netlink::Errno;
use portolan_plan::kube_proxy::{PacketRules, RuleMode};
use portolan_plan::{
    Config, KernelState, MarkMask, MarkUsers, MaskError, Names, NodeFacts, Rules, Step,
};

use crate::kernel::{REPLACEMENT_SET, glance};
use crate::runs::{self, ApplyRun, Class, StepFailure};
use crate::{Dataplane, DataplaneError, Doubt, Flow, StepError};
use refusals::{Refusal, check, ensure};

/// Fault of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refuses it.
    Refused(Errno),
    /// The kernel refuses one entry of a set, with this number (modulo their count), and applies the
    /// others. Like [`Self::Refused`] for any other step.
    Entry(usize, Errno),
    /// The kernel executes it, and its answer is lost.
    AnswerLost,
    /// Another program deletes the object of the step before it.
    Deleted,
}

/// Model of the kernel.
#[derive(Debug, Default)]
pub struct FakeKernel {
    /// Its state.
    pub state: KernelState,
    /// Settings of the host.
    pub host: FakeHost,
    /// Facts about the node.
    pub facts: NodeFacts,
    /// Connections of real servers.
    pub connections: BTreeMap<(VirtualServerKey, SocketAddr), Connections>,
    /// Real servers that a reading of connections does not show.
    pub unshown: BTreeSet<SocketAddr>,
    /// Number of the next readings of connections that fail.
    pub unreadable_connections: usize,
    /// UDP flows in conntrack.
    pub flows: Vec<Flow>,
    /// Number of readings of the flows.
    pub flow_reads: usize,
    /// Messages of failing steps, by their number since the start.
    pub failures: BTreeMap<usize, String>,
    /// Other faults of steps, by their number since the start.
    pub faults: BTreeMap<usize, Fault>,
    /// Error of permanently refused steps.
    pub refuses: Option<fn(&Step) -> Option<Errno>>,
    /// Number of the next readings that fail.
    pub unreadable: usize,
    /// All steps so far, failed ones included.
    pub applied: Vec<Step>,
    /// Dummy devices with virtual addresses.
    pub devices: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Rules of a kube-proxy in iptables or nftables mode.
    pub packet_rules: PacketRules,
    /// Set once these rules are copied, so that writing rules of the same names does not end them.
    pub packet_rules_kept: bool,
    /// Frontends of such rules that nothing served at some time: not the rules any more, and no virtual
    /// server yet.
    pub unserved_frontends: BTreeSet<VirtualServerKey>,
    /// Addresses and ports in tables of our nftables dataplane.
    pub tables: BTreeMap<Family, BTreeSet<VirtualServerKey>>,
    /// Bits that new connections lose before these tables.
    pub unmarked: u32,
    /// Chains of others that rules were removed with, by family.
    pub removed_chains: BTreeSet<(Family, String)>,
    /// Other programs that use packet marks.
    pub mark_users: MarkUsers,
    /// Number of choices of marks.
    pub mark_choices: usize,
    /// Set once conntrack was told to know connections to masqueraded servers.
    pub is_tracking: bool,
    /// Number of steps after which everything fails (the agent was killed).
    pub crash_after: Option<usize>,
    /// Number of operations, steps and others, after which everything fails.
    pub operations_left: Option<usize>,
}

impl FakeKernel {
    /// Fails after a crash. Operations that are no steps are counted by [`Self::operations_left`] alone.
    fn work(&mut self) -> Result<(), DataplaneError> {
        let has_crashed = self
            .crash_after
            .is_some_and(|limit| self.applied.len() >= limit);
        if has_crashed || self.operations_left == Some(0) {
            return Err(std::io::Error::other("crashed").into());
        }
        self.operations_left = self.operations_left.map(|left| left - 1);
        Ok(())
    }

    fn apply_step(&mut self, step: &Step) -> Result<(), StepFailure> {
        let number = self.applied.len();
        if self.work().is_err() {
            return Err(StepFailure::lost("crashed"));
        }
        self.applied.push(step.clone());
        if let Some(message) = self.failures.get(&number) {
            return Err(StepFailure::lost(message.clone()));
        }
        if let Some(errno) = self.refuses.and_then(|refuses| refuses(step)) {
            return Err(StepFailure::refused(step, errno));
        }
        match self.faults.get(&number).copied() {
            None => self.execute(step),
            Some(Fault::Refused(errno)) => Err(StepFailure::refused(step, errno)),
            Some(Fault::Entry(index, errno)) => self.refuse_entry(step, index, errno),
            Some(Fault::AnswerLost) => {
                self.execute(step)?;
                Err(StepFailure::lost("the answer was lost"))
            }
            Some(Fault::Deleted) => {
                delete(&mut self.state, step);
                self.execute(step)
            }
        }
    }

    /// Applies real servers one by one, like the kernel.
    fn fill(
        &mut self,
        step: &Step,
        key: VirtualServerKey,
        real_servers: &RealServers,
    ) -> Result<(), StepFailure> {
        let (mut refused, mut doubt) = (Vec::new(), Doubt::None);
        for (address, config) in real_servers.iter() {
            let config = *config;
            let added = self.apply_step(&Step::AddRealServer {
                key,
                address,
                config,
            });
            if let Err(failure) = added {
                refused.push((address, Errno::EINVAL));
                doubt = doubt.max(failure.doubt);
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        Err(StepFailure {
            doubt,
            ..StepFailure::of_real_servers(step, &refused)
        })
    }

    fn execute(&mut self, step: &Step) -> Result<(), StepFailure> {
        let is_refused = self.excludes_sync_daemon(step);
        ensure(!is_refused, Refusal::Errno(Errno::EINVAL))
            .and_then(|()| check(&self.state, step))
            .map_err(|refusal| StepFailure::new(Doubt::Stale, refusal.to_string()))?;
        if matches!(step, Step::WriteRules { .. }) && !self.packet_rules_kept {
            // The chains of a kube-proxy in iptables mode have the same names.
            if self.packet_rules.modes.contains(&RuleMode::Iptables) {
                self.note_unserved();
            }
        }
        self.state.advance(step);
        Ok(())
    }

    /// Notes the frontends of a kube-proxy's rules that have no virtual server.
    fn note_unserved(&mut self) {
        let served = &self.state.virtual_servers;
        let frontends = self.packet_rules.frontends.iter();
        let unserved = frontends.filter(|key| !served.contains_key(key));
        self.unserved_frontends.extend(unserved);
    }

    fn refuse_entry(&mut self, step: &Step, index: usize, errno: Errno) -> Result<(), StepFailure> {
        let (Step::AddEntries { entries, .. } | Step::DelEntries { entries, .. }) = step else {
            return Err(StepFailure::refused(step, errno));
        };
        let Some(bad) = entries.get(index % entries.len().max(1)).cloned() else {
            return Err(StepFailure::refused(step, errno));
        };
        let failure = StepFailure::of_entries(step, vec![bad]);
        if let Some(rest) = &failure.done {
            self.execute(rest)?;
        }
        Err(StepFailure {
            message: errno.to_string(),
            ..failure
        })
    }

    fn read(&mut self) -> Result<(), DataplaneError> {
        fail_next(&mut self.unreadable)
    }
}

/// Fails if it is to fail this many times more.
fn fail_next(times: &mut usize) -> Result<(), DataplaneError> {
    let fails = *times > 0;
    *times = times.saturating_sub(1);
    let error = || DataplaneError::Io(std::io::Error::other("unreadable"));
    if fails { Err(error()) } else { Ok(()) }
}

/// Deletes the object of a step, as another program may at any time.
fn delete(state: &mut KernelState, step: &Step) {
    match step {
        Step::AddEntries { name, entries } | Step::DelEntries { name, entries } => {
            if let Some(set) = state.sets.get_mut(name) {
                set.entries.retain(|entry| !entries.contains(entry));
            }
        }
        Step::WriteRules { family, .. } => drop(state.rules.remove(family)),
        Step::AddRoute { vip, .. } | Step::SetRoute { vip, .. } | Step::DelRoute { vip } => {
            state.routes.remove(vip);
        }
        Step::AddRealServer { key, address, .. }
        | Step::SetRealServer { key, address, .. }
        | Step::DelRealServer { key, address } => {
            let server = state.virtual_servers.get_mut(key);
            server.map(|server| Arc::make_mut(&mut server.real_servers).remove(address));
        }
        _ => {
            if let Some(key) = step.virtual_server() {
                state.virtual_servers.remove(key);
            }
        }
    }
}

impl ApplyRun for FakeKernel {
    async fn apply_run<S: Borrow<Step> + Sync>(
        &mut self,
        _: Class,
        run: &[S],
    ) -> Vec<(usize, StepFailure)> {
        let mut failures = Vec::new();
        for (number, step) in run.iter().map(Borrow::borrow).enumerate() {
            let taken = match step {
                Step::FillVirtualServer { key, real_servers } => {
                    self.fill(step, *key, real_servers)
                }
                step => self.apply_step(step),
            };
            failures.extend(taken.err().map(|failure| (number, failure)));
        }
        failures
    }
}

impl Dataplane for FakeKernel {
    async fn prepare(&mut self) -> Result<(), DataplaneError> {
        self.state.sets.remove(REPLACEMENT_SET);
        Ok(())
    }

    async fn observe(&mut self) -> Result<KernelState, DataplaneError> {
        self.read()?;
        Ok(self.state.clone())
    }

    async fn glance(
        &mut self,
        observed: &KernelState,
        names: &Names,
    ) -> Result<Option<String>, DataplaneError> {
        let ours = observed.virtual_servers.iter();
        let mut ours = ours.filter(|(key, _)| observed.owns(names, key));
        let differs = |(key, server): (&VirtualServerKey, &VirtualServer)| {
            let alike = |there: &VirtualServer| {
                there.config == server.config
                    && there.real_servers.len() == server.real_servers.len()
            };
            let there = self.state.virtual_servers.get(key);
            let same = key.family() == Family::V6 || there.is_some_and(alike);
            (!same).then(|| format!("virtual server {key} has changed"))
        };
        if let Some(found) = ours.find_map(differs) {
            return Ok(Some(found));
        }
        let same = observed
            .routes
            .iter()
            .all(|(vip, source)| self.state.routes.get(vip) == Some(source));
        if !same {
            return Ok(Some("local routes have changed".to_owned()));
        }
        if self.state.foreign_routes != observed.foreign_routes {
            return Ok(Some("foreign local routes have changed".to_owned()));
        }
        let sets = self.state.sets.iter();
        let sets = sets.map(|(name, set)| {
            let count = u32::try_from(set.entries.len()).unwrap_or(u32::MAX);
            (name.clone(), (set.header.clone(), count))
        });
        Ok(glance::sets(&sets.collect(), observed, names))
    }

    async fn facts(&mut self) -> Result<NodeFacts, DataplaneError> {
        Ok(self.facts.clone())
    }

    async fn lacking_schedulers(
        &mut self,
        names: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, DataplaneError> {
        Ok(&self.facts.missing_schedulers & names)
    }

    fn track(&mut self) {
        self.is_tracking = true;
    }

    async fn choose_marks(&mut self, config: &Config) -> Result<MarkMask, MaskError> {
        self.mark_choices += 1;
        self.mark_users
            .choose(config.asked_marks, config.masquerade_mark)
    }

    async fn apply(&mut self, steps: &[Step]) -> Vec<StepError> {
        runs::apply(self, steps).await
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        Ok(())
    }

    async fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<BTreeMap<SocketAddr, Connections>, DataplaneError> {
        fail_next(&mut self.unreadable_connections)?;
        let Some(server) = self.state.virtual_servers.get(key) else {
            return Ok(BTreeMap::new());
        };
        let of = |address: &SocketAddr| self.connections.get(&(*key, *address)).copied();
        Ok(server
            .real_servers
            .keys()
            .filter(|a| !self.unshown.contains(a))
            .map(|a| (a, of(&a).unwrap_or_default()))
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
