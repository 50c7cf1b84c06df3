// SPDX-License-Identifier: Apache-2.0

//! Changing over from one of our dataplanes to another: what the former one has left in the kernel is found
//! there, and retired piece by piece while the new one serves.
//!
//! * From IPVS to nftables: once the table is in, new connections are translated before routing and never
//!   see IPVS; open ones reach it by the routes of their addresses. So the marks go first, which would lead
//!   translated packets to IPVS. A virtual server and its route go when their connections have ended, or at
//!   a deadline, and all else after the last of them ([`FormerIpvs`]).
//! * From nftables to IPVS: the table wins while IPVS grows behind it. It goes when a virtual server is
//!   behind each of its addresses ([`Reconciler::retire_tables`]). Open connections keep their translation,
//!   since the chains of iptables hold the hooks.
//!
//! Each piece is idempotent, and an agent that starts after a crash finds what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_dataplane::{
    Dataplane, DataplaneError, KubeProxyObjects, OtherPlane, REPLACEMENT_SET, VIP_DEVICE,
};
use portolan_model::ipset::Set;
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Family, NodeInfo, Protocol};
use portolan_plan::kube_proxy::takeover_marker;
use portolan_plan::{
    Config, Desired, KernelState, Rules, SetName, Step, ownership_entry, plan, rules,
};

use crate::Reconciler;

/// Sets that only our IPVS dataplane has.
const OURS: [SetName; 2] = [SetName::VirtualServers, SetName::ShortCircuit];

/// Progress of a retirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retirement {
    /// Nothing of another dataplane of ours is left.
    Done,
    /// More can be done at once.
    More,
    /// More can be done later.
    Waiting {
        /// Virtual servers with connections, or addresses and ports that have none yet.
        left: usize,
    },
}

/// Names of the sets by which objects of our IPVS dataplane are recognised.
#[must_use]
pub fn ipvs_marker_sets(config: &Config) -> Vec<String> {
    let names = |family: &Family| OURS.map(|set| config.names.set(set, *family));
    config.families.iter().flat_map(names).collect()
}

/// Objects of our IPVS dataplane on a node that another one serves.
#[derive(Debug)]
pub struct FormerIpvs<D> {
    dataplane: D,
    config: Config,
    /// Bits of the marks that lead to its virtual servers.
    marks: u32,
    is_unhooked: bool,
    patience: Duration,
    /// Time after which connections are waited for no longer.
    until: Option<Instant>,
}

impl<D: Dataplane + KubeProxyObjects + OtherPlane> FormerIpvs<D> {
    /// Reads what is there. Connections may go on for as long as `patience` after the first
    /// [`Self::retire`].
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn open(
        mut dataplane: D,
        config: Config,
        patience: Duration,
    ) -> Result<Self, DataplaneError> {
        let observed = observe(&mut dataplane, &config).await?;
        let marks = owned(&observed, &config).filter_map(|key| key.mark());
        Ok(Self {
            marks: marks.fold(0, |bits, mark| bits | mark),
            dataplane,
            config,
            is_unhooked: false,
            patience,
            until: None,
        })
    }

    /// Bits of the packet mark by which IPVS still selects virtual servers.
    pub fn marks(&self) -> u32 {
        self.marks
    }

    /// Retires a piece. New connections must be served already.
    ///
    /// # Errors
    /// If the kernel cannot be read, or refuses. Earlier pieces stay done.
    pub async fn retire(&mut self, now: Instant) -> Result<Retirement, DataplaneError> {
        if !self.is_unhooked {
            for family in self.config.families.clone() {
                let marking = marking_rules(&rules(family, &self.config, &NodeInfo::default()));
                self.dataplane.remove_rules(&marking, family).await?;
            }
            self.is_unhooked = true;
            return Ok(Retirement::More);
        }
        let until = *self.until.get_or_insert(now + self.patience);
        let observed = observe(&mut self.dataplane, &self.config).await?;
        let ours: BTreeSet<_> = owned(&observed, &self.config).copied().collect();
        let mut kept = BTreeSet::new();
        if now < until {
            for key in &ours {
                let connections = self.dataplane.connections(key).await?;
                if connections.values().any(|c| c.active + c.inactive > 0) {
                    kept.insert(*key);
                }
            }
        }
        let part = Desired {
            state: part(&observed, &kept, &self.config),
            ..Desired::default()
        };
        let steps = plan(&part, &observed, &self.config);
        carry_out(&mut self.dataplane, &steps).await?;
        self.forget_flows(&(&ours - &kept)).await?;
        if !kept.is_empty() {
            let left = kept.len();
            return Ok(Retirement::Waiting { left });
        }
        let families: Vec<Family> = self.config.families.iter().copied().collect();
        clear(&mut self.dataplane, &self.config, &families).await?;
        self.marks = 0;
        Ok(Retirement::Done)
    }

    /// Deletes UDP flows through virtual servers that are gone: their packets would arrive nowhere.
    async fn forget_flows(
        &mut self,
        gone: &BTreeSet<VirtualServerKey>,
    ) -> Result<(), DataplaneError> {
        let is_udp = |key: &&VirtualServerKey| key.protocol() != Some(Protocol::Tcp);
        let families: BTreeSet<Family> = gone.iter().filter(is_udp).map(|k| k.family()).collect();
        for family in families {
            // Those of a mark may have any address.
            let all = gone
                .iter()
                .any(|key| key.family() == family && key.mark().is_some());
            let sockets = gone.iter().filter(is_udp).filter_map(|key| key.socket());
            let sockets: BTreeSet<_> = sockets.collect();
            let is_stale = |flow: &portolan_dataplane::Flow| {
                let to = flow.original.destination;
                sockets.contains(&to) || (all && flow.reply.source != to)
            };
            self.dataplane
                .delete_untranslated_flows(family, &is_stale)
                .await?;
        }
        Ok(())
    }
}

async fn observe<D: Dataplane>(
    dataplane: &mut D,
    config: &Config,
) -> Result<KernelState, DataplaneError> {
    let mut observed = dataplane.observe().await?;
    observed.recover(&config.names, &BTreeSet::new());
    Ok(observed)
}

fn owned<'a>(
    observed: &'a KernelState,
    config: &'a Config,
) -> impl Iterator<Item = &'a VirtualServerKey> {
    let keys = observed.virtual_servers.keys();
    keys.filter(|key| config.families.contains(&key.family()))
        .filter(|key| observed.owns(&config.names, key))
}

/// The rules that decide before any nat chain sees a packet.
fn marking_rules(rules: &Rules) -> Rules {
    let mut marking = rules.clone();
    marking.tables.retain(|table| table.name == "mangle");
    marking.jumps.retain(|jump| jump.table == "mangle");
    marking.obsolete.retain(|jump| jump.table == "mangle");
    marking
}

/// The part of the observed state that some virtual servers need: their routes, and their entries in the
/// ownership record. The plan leaves all sets alone that are not desired.
fn part(observed: &KernelState, kept: &BTreeSet<VirtualServerKey>, config: &Config) -> KernelState {
    let mut part = KernelState::default();
    let servers = observed.virtual_servers.iter();
    part.virtual_servers = servers
        .filter(|(key, _)| kept.contains(key))
        .map(|(key, server)| (*key, server.clone()))
        .collect();
    // Packets with a mark may have any of the addresses.
    let is_any = kept.iter().any(|key| key.mark().is_some());
    let addresses = kept.iter().filter_map(|key| key.socket());
    let addresses: BTreeSet<_> = addresses.map(|socket| socket.ip()).collect();
    let routes = observed.routes.iter();
    part.routes = routes
        .filter(|(vip, _)| is_any || addresses.contains(vip))
        .map(|(vip, source)| (*vip, *source))
        .collect();
    let records = Family::ALL.map(|family| config.names.set(SetName::VirtualServers, family));
    let entries: BTreeSet<_> = kept.iter().map(ownership_entry).collect();
    for name in records {
        if let Some(set) = observed.sets.get(&name) {
            let entries = set.entries.iter().filter(|entry| entries.contains(entry));
            let set = Set {
                header: set.header.clone(),
                entries: entries.cloned().collect(),
            };
            part.sets.insert(name, set);
        }
    }
    part
}

async fn carry_out<D: Dataplane>(dataplane: &mut D, steps: &[Step]) -> Result<(), DataplaneError> {
    let errors = dataplane.apply(steps).await;
    for error in &errors {
        tracing::error!("{}: {}", steps[error.index], error.message);
    }
    match errors.len() {
        0 => Ok(()),
        failed => {
            let message = format!("{failed} of {} steps failed", steps.len());
            Err(std::io::Error::other(message).into())
        }
    }
}

/// Removes all objects of our IPVS dataplane, in the families of the configuration; rules only of some. Returns how many steps there were.
///
/// # Errors
/// If the kernel cannot be read, or an object could not be removed.
pub async fn clear(
    dataplane: &mut (impl Dataplane + KubeProxyObjects),
    config: &Config,
    removable: &[Family],
) -> Result<usize, DataplaneError> {
    let observed = observe(dataplane, config).await?;
    // The plan leaves sets alone without desired ones, so that rules stay valid until they are removed.
    let steps = plan(&Desired::default(), &observed, config);
    carry_out(dataplane, &steps).await?;
    if Family::ALL
        .iter()
        .all(|family| config.families.contains(family))
    {
        dataplane.delete_vip_device(VIP_DEVICE).await?;
    }
    // Chains and jumps are the same on any node.
    let node = NodeInfo::default();
    for family in removable {
        dataplane
            .remove_rules(&rules(*family, config, &node), *family)
            .await?;
    }
    let markers = ipvs_marker_sets(config);
    let families = config.families.iter();
    let mut names: Vec<String> = families
        .flat_map(|family| SetName::ALL.map(|set| config.names.set(set, *family)))
        .filter(|name| !markers.contains(name))
        .collect();
    names.push(takeover_marker(&config.names));
    names.push(REPLACEMENT_SET.to_owned());
    dataplane.destroy_sets(&names).await?;
    // An agent that was killed before recognises the rest by them.
    dataplane.destroy_sets(&markers).await?;
    Ok(steps.len())
}

impl<D: Dataplane + OtherPlane> Reconciler<D> {
    /// Deletes the tables of our nftables dataplane, unless something must be in place first. A Service that
    /// the kernel refuses for good holds up nothing.
    ///
    /// # Errors
    /// If the kernel cannot be read or written.
    pub async fn retire_tables(&mut self) -> Result<Retirement, DataplaneError> {
        self.merge_pending();
        let mut tables = self.dataplane.tables().await?;
        // What is not served here stays as it is.
        tables.retain(|family, _| self.config.families.contains(family));
        if tables.is_empty() {
            return Ok(Retirement::Done);
        }
        let left = self.unserved_of(&tables);
        if left > 0 {
            return Ok(Retirement::Waiting { left });
        }
        for family in tables.keys() {
            self.dataplane.delete_table(*family).await?;
        }
        tracing::info!("changed over: the tables of nftables are deleted");
        Ok(Retirement::Done)
    }

    /// Returns the number of addresses and ports that are not served yet, and of families without rules.
    fn unserved_of(&self, tables: &BTreeMap<Family, BTreeSet<VirtualServerKey>>) -> usize {
        let Some(observed) = &self.observed else {
            return tables.values().map(BTreeSet::len).sum::<usize>().max(1);
        };
        self.desired.read(|desired| {
            let rules = desired.state.rules.iter();
            let lacking = rules
                .filter(|(family, rules)| observed.rules.get(family) != Some(rules))
                .count();
            let frontends = tables.values().flatten();
            let unserved = frontends.filter(|key| self.lacks(observed, desired, key));
            lacking + unserved.count()
        })
    }
}

#[cfg(test)]
mod tests;
