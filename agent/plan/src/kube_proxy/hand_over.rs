// SPDX-License-Identifier: Apache-2.0

//! Hand-over to a kube-proxy: removal of the objects that it does not have.
//!
//! From our IPVS dataplane to a kube-proxy in IPVS mode: it adopts all shared objects, which are virtual servers,
//! sets and chains. The remaining objects are removed after it has programmed the node, so that packets are
//! forwarded all the time ([`HandOver`]).
//!
//! From our nftables dataplane to a kube-proxy in any mode: they share nothing. Our tables go when it serves
//! whatever they have ([`ServedByKubeProxy`]).

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Family, NodeInfo};

use super::{PacketRules, takeover_marker};
use crate::{Config, KernelState, Rules, SetName, Step, rules};

/// Objects to remove after a kube-proxy has programmed the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandOver {
    /// Chains that only we have, and the jumps to them.
    pub rules: Vec<(Family, Rules)>,
    /// Deletions of virtual servers by mark and of local routes, to be applied after the chains are gone.
    pub steps: Vec<Step>,
    /// Sets that only we have.
    pub sets: Vec<String>,
    /// Virtual addresses with a virtual server that are not on the kube-proxy's device: it has not
    /// reached them yet, or never serves them. Their routes stay.
    pub unbound: BTreeSet<IpAddr>,
}

impl HandOver {
    /// Plans the hand-over; `bound` are the addresses on the kube-proxy's device.
    #[must_use]
    pub fn new(observed: &KernelState, bound: &BTreeSet<IpAddr>, config: &Config) -> Self {
        let mut this = Self::default();
        let served = observed.virtual_servers.keys();
        let served: BTreeSet<_> = served.filter_map(|key| Some(key.socket()?.ip())).collect();
        for key in observed.virtual_servers.keys() {
            if key.mark().is_some() && observed.owns(&config.names, key) {
                this.steps.push(Step::DelVirtualServer { key: *key });
            }
        }
        for vip in observed.routes.keys().copied() {
            if bound.contains(&vip) || !served.contains(&vip) {
                this.steps.push(Step::DelRoute { vip });
            } else {
                this.unbound.insert(vip);
            }
        }
        for family in &config.families {
            let mut ours = rules(*family, config, &NodeInfo::default());
            ours.tables.retain(|table| table.name == "mangle");
            ours.jumps.retain(|jump| jump.table == "mangle");
            this.rules.push((*family, ours));
        }
        let alone = [
            SetName::ShortCircuit,
            SetName::NoLocal,
            SetName::BalancedMark,
            SetName::Remote,
            SetName::VirtualServers,
        ];
        let of = |set: SetName| Family::ALL.map(|family| config.names.set(set, family));
        this.sets.extend(alone.into_iter().flat_map(of));
        this.sets.push(takeover_marker(&config.names));
        this
    }
}

/// Objects of a kube-proxy in any mode by which it serves the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedByKubeProxy {
    /// Rules of one in iptables or nftables mode.
    pub rules: PacketRules,
    /// Addresses on the device of one in IPVS mode; `None` without the device.
    pub device: Option<BTreeSet<IpAddr>>,
}

impl ServedByKubeProxy {
    /// Returns `true` if it has programmed nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.device.is_none()
    }

    /// Returns `true` if it serves an address and port. In IPVS mode the address alone is compared.
    #[must_use]
    pub fn serves(&self, key: &VirtualServerKey) -> bool {
        let is_bound = |bound: &BTreeSet<IpAddr>| {
            let socket = key.socket();
            socket.is_some_and(|socket| bound.contains(&socket.ip()))
        };
        self.rules.frontends.contains(key) || self.device.as_ref().is_some_and(is_bound)
    }
}
