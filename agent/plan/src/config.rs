// SPDX-License-Identifier: Apache-2.0

//! Inputs of the plan besides the table: configuration and facts about the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::{Family, NodeInfo};

use crate::{LocalPorts, Names};

/// Configuration of the kernel's programming.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Families to program. Objects of other families are left untouched.
    pub families: BTreeSet<Family>,
    /// Names of sets and chains.
    pub names: Names,
    /// Scheduler for records that name none; `None` for `rr`.
    pub scheduler: Option<&'static str>,
    /// Whether all connections to cluster IPs are masqueraded (`--masquerade-all`).
    pub masquerade_all: bool,
    /// Detection of packets of the node's own pods.
    pub detect_local: DetectLocal,
    /// Mark of packets to masquerade: one bit; kube-proxy's is `0x4000`.
    pub masquerade_mark: u32,
    /// The marks for short circuits and ranges of ports.
    pub short_circuit_mask: MarkMask,
    /// The mask that was asked for, if any.
    pub asked_marks: Option<u32>,
    /// Virtual servers of addresses in here are never deleted (`--ipvs-exclude-cidrs`).
    pub exclude_cidrs: Vec<IpNet>,
    /// Binding of VIPs, by which packets to them arrive on the node.
    pub vip_binding: VipBinding,
    /// Binding of the VIPs of load balancers: off on standby, and if another program binds them.
    pub binds_balancers: bool,
    /// When rules and their sets are made.
    pub rules_mode: RulesMode,
    /// Clamping of TCP segments from real servers of imports to the size of the path (`--clamp-remote-mss`).
    pub clamp_remote_mss: bool,
    /// Sizes of nftables' sets, which the kernel must be able to change later.
    pub sizes_sets: bool,
    /// `true` if checks follow: a backend without a result keeps the weight that it has in the kernel until it has one.
    pub awaits_checks: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            families: Family::ALL.into(),
            names: Names::default(),
            scheduler: None,
            masquerade_all: false,
            detect_local: DetectLocal::default(),
            masquerade_mark: 0x4000,
            short_circuit_mask: MarkMask::default(),
            asked_marks: None,
            exclude_cidrs: Vec::new(),
            vip_binding: VipBinding::Route,
            binds_balancers: true,
            rules_mode: RulesMode::Always,
            clamp_remote_mss: true,
            sizes_sets: false,
            awaits_checks: true,
        }
    }
}

/// When a family has rules, and the sets that they match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RulesMode {
    /// From the start: any Service of Kubernetes needs some.
    #[default]
    Always,
    /// From the first record on that needs some. Most load balancers need none. They stay when no record needs
    /// them any more, with empty sets.
    OnDemand,
}

/// Binding of VIPs, by which packets to them arrive on the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipBinding {
    /// By a local route for each, which gives the node's own connections the node's address.
    #[default]
    Route,
    /// By addresses of a dummy device, as in kube-proxy. The source of the node's own connections to a VIP
    /// is then the VIP itself.
    Address,
}

/// Detection of packets of the node's own pods (kube-proxy's `detectLocalMode`).
///
/// Connections of all others to cluster IPs are masqueraded. Connections of the node's own pods to
/// external addresses of a Service with `externalTrafficPolicy: Local` may go to any destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectLocal {
    /// By source network; the first network of each family counts. Without one, the family's packets are
    /// not recognised.
    ClusterCidr(Vec<IpNet>),
    /// By the Node's `spec.podCIDRs`; until these are known, packets are not recognised.
    NodeCidr,
    /// By incoming interface.
    Bridge(String),
    /// By prefix of the incoming interface's name.
    InterfacePrefix(String),
}

impl Default for DetectLocal {
    fn default() -> Self {
        Self::ClusterCidr(Vec::new())
    }
}

impl DetectLocal {
    /// The iptables match for packets of the node's own pods, which a leading `!` negates; `None` if they
    /// cannot be recognised.
    ///
    /// Packets of the node itself have no incoming interface: `-i` does not match them, `! -i` does.
    #[must_use]
    pub fn rule_match(&self, family: Family, node: &NodeInfo) -> Option<String> {
        let from = |networks: &[IpNet]| {
            let mut networks = networks.iter();
            let network = networks.find(|network| Family::of(network.addr()) == family)?;
            Some(format!("-s {network}"))
        };
        match self {
            Self::ClusterCidr(networks) => from(networks),
            Self::NodeCidr => from(&node.pod_cidrs),
            Self::Bridge(name) => Some(format!("-i {name}")),
            Self::InterfacePrefix(prefix) => Some(format!("-i {prefix}+")),
        }
    }
}

/// Marks available for short circuits: those without bits outside the mask. Its bits need not be
/// adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkMask(u32);

/// Reason why a mask cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMask {
    /// It has no bits.
    #[error("it has no bits")]
    Empty,
    /// It has a bit with another meaning.
    #[error("it has the bit {0:#x}, which has another meaning")]
    Reserved(u32),
}

impl MarkMask {
    /// No mark at all.
    pub const NONE: Self = Self(0);

    /// kubelet's mark of packets to be dropped.
    pub(crate) const DROP: u32 = 0x8000;

    /// The marks within a mask.
    ///
    /// # Errors
    /// If it has no bits, or the bit of packets to masquerade or to drop.
    pub fn new(mask: u32, masquerade_mark: u32) -> Result<Self, InvalidMask> {
        if mask == 0 {
            return Err(InvalidMask::Empty);
        }
        let mut reserved = [masquerade_mark, Self::DROP].into_iter();
        match reserved.find(|bits| mask & bits != 0) {
            Some(bits) => Err(InvalidMask::Reserved(bits)),
            None => Ok(Self(mask)),
        }
    }

    /// The mask's bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns `true` if a mark is one of the mask.
    #[must_use]
    pub fn contains(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }

    /// Returns the number of marks, 0 to 2^30 - 1.
    pub(crate) fn capacity(self) -> u32 {
        u32::MAX.checked_shr(32 - self.0.count_ones()).unwrap_or(0)
    }

    /// The mark of a number from 1 to the capacity: the number's bits, moved to the mask's.
    pub(crate) fn mark(self, number: u32) -> u32 {
        let bits = (0..32).filter(|bit| self.0 >> bit & 1 != 0);
        bits.enumerate()
            .fold(0, |mark, (from, to)| mark | (number >> from & 1) << to)
    }
}

impl Default for MarkMask {
    /// 16,383 marks that Kubernetes does not use. Calico's default (`iptablesMarkMask` 0xffff0000) has
    /// these bits too; see [`MarkUsers`](crate::MarkUsers).
    fn default() -> Self {
        Self(0x3fff_0000)
    }
}

/// Facts about the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Every address on any interface, loopback included, but for link-local ones of IPv6.
    pub addresses: BTreeSet<IpAddr>,
    /// The addresses that accept node ports.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// Source of the node's own connections to VIPs, by family.
    pub source: BTreeMap<Family, IpAddr>,
    /// Schedulers that the kernel lacks.
    pub missing_schedulers: BTreeSet<String>,
    /// The ports that the host's own connections begin from.
    pub local_ports: LocalPorts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_with_reserved_bits_is_refused() {
        assert_eq!(MarkMask::new(0, 0x4000), Err(InvalidMask::Empty));
        assert_eq!(
            MarkMask::new(0xff00, 0x4000),
            Err(InvalidMask::Reserved(0x4000))
        );
        assert_eq!(
            MarkMask::new(0x8000, 0x4000),
            Err(InvalidMask::Reserved(0x8000))
        );
        assert_eq!(MarkMask::new(0x1_0000, 0x1), Ok(MarkMask(0x1_0000)));
    }

    #[test]
    fn marks_of_a_mask_are_distinct_and_within_it() {
        let mask = MarkMask::new(0x8005_0001, 0x4000).unwrap();
        let marks: BTreeSet<_> = (1..=mask.capacity()).map(|n| mask.mark(n)).collect();
        assert_eq!(marks.len(), 15);
        assert!(marks.iter().all(|mark| mask.contains(*mark)));
        assert!(!mask.contains(0) && !mask.contains(2));
        assert_eq!(MarkMask::default().capacity(), 0x3fff);
        assert_eq!(MarkMask::NONE.capacity(), 0);
        assert_eq!(MarkMask::default().mark(1), 0x1_0000);
    }

    #[test]
    fn local_packets_are_matched_as_configured() {
        let node = NodeInfo {
            pod_cidrs: vec!["10.244.7.0/24".parse().unwrap()],
            ..NodeInfo::default()
        };
        let cluster = DetectLocal::ClusterCidr(vec!["fd00:244::/32".parse().unwrap()]);
        let found = |detect: &DetectLocal, family| detect.rule_match(family, &node);
        assert_eq!(found(&cluster, Family::V4), None);
        assert_eq!(
            found(&cluster, Family::V6),
            Some("-s fd00:244::/32".to_owned())
        );
        assert_eq!(
            found(&DetectLocal::NodeCidr, Family::V4),
            Some("-s 10.244.7.0/24".to_owned())
        );
        assert_eq!(found(&DetectLocal::NodeCidr, Family::V6), None);
        let bridge = DetectLocal::Bridge("cni0".to_owned());
        assert_eq!(found(&bridge, Family::V6), Some("-i cni0".to_owned()));
        let prefix = DetectLocal::InterfacePrefix("veth".to_owned());
        assert_eq!(found(&prefix, Family::V4), Some("-i veth+".to_owned()));
    }
}
