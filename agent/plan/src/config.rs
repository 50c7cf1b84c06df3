//! What the plan depends on besides the table.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::{Family, NodeInfo};

use crate::Names;

/// How the agent was told to program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The families to program. What the kernel holds of another one stays as it is.
    pub families: BTreeSet<Family>,
    /// What sets and chains are called.
    pub names: Names,
    /// The scheduler of virtual servers of records that name none; `None` for `rr`.
    pub scheduler: Option<&'static str>,
    /// Whether all connections to cluster IPs are masqueraded (`--masquerade-all`).
    pub masquerade_all: bool,
    /// How packets of the node's own pods are told from others.
    pub detect_local: DetectLocal,
    /// The mark of a packet that is to be masqueraded: one bit; kube-proxy's is `0x4000`.
    pub masquerade_mark: u32,
    /// The marks for short circuits.
    pub short_circuit_mask: MarkMask,
    /// Virtual servers of addresses in here are never deleted (`--ipvs-exclude-cidrs`).
    pub exclude_cidrs: Vec<IpNet>,
    /// How packets to VIPs arrive on the node.
    pub vip_binding: VipBinding,
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
            exclude_cidrs: Vec::new(),
            vip_binding: VipBinding::Route,
        }
    }
}

/// How packets to VIPs arrive on the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VipBinding {
    /// By a local route for each, which gives the node's own connections the node's address.
    #[default]
    Route,
    /// As addresses of a dummy device, as kube-proxy does. The node's own connections to a VIP have
    /// it as their source then.
    Address,
}

/// How packets of the node's own pods are told from others (kube-proxy's `detectLocalMode`).
///
/// From others connections to cluster IPs are masqueraded; from the node's own pods connections to
/// external addresses of a Service with `externalTrafficPolicy: Local` may go to any destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectLocal {
    /// They come from one of these networks, of which the first of each family counts. Of a family
    /// without one nothing is known.
    ClusterCidr(Vec<IpNet>),
    /// They come from the Node's `spec.podCIDRs`; while these are unknown, nothing is known.
    NodeCidr,
    /// They come in by this interface.
    Bridge(String),
    /// They come in by an interface whose name begins so.
    InterfacePrefix(String),
}

impl Default for DetectLocal {
    fn default() -> Self {
        Self::ClusterCidr(Vec::new())
    }
}

impl DetectLocal {
    /// The match of iptables for packets of the node's own pods, which a `!` in front turns round;
    /// `None` if they cannot be told from others.
    ///
    /// A packet that the node itself sends has come in by no interface, so `-i` does not match it
    /// and `! -i` does.
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

/// Which marks of packets may stand for short circuits: those with no other bits than the mask's.
/// Its bits need not be neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkMask(u32);

/// Why a mask cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMask {
    /// It has no bits.
    #[error("it has no bits")]
    Empty,
    /// It has a bit that means something else.
    #[error("it has the bit {0:#x}, which means something else")]
    Reserved(u32),
}

impl MarkMask {
    /// kubelet's mark of packets to be dropped.
    const DROP: u32 = 0x8000;

    /// The marks within a mask.
    ///
    /// # Errors
    /// If it has no bits, or one that means that a packet is to be masqueraded or dropped.
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

    /// Whether a mark is one of those.
    #[must_use]
    pub fn contains(self, mark: u32) -> bool {
        mark != 0 && mark & !self.0 == 0
    }

    /// How many marks there are, 1 to 2^30 - 1.
    pub(crate) fn capacity(self) -> u32 {
        u32::MAX >> (32 - self.0.count_ones())
    }

    /// The mark of a number from 1 to the capacity: its bits, put into those of the mask.
    pub(crate) fn mark(self, number: u32) -> u32 {
        let bits = (0..32).filter(|bit| self.0 >> bit & 1 != 0);
        bits.enumerate()
            .fold(0, |mark, (from, to)| mark | (number >> from & 1) << to)
    }
}

impl Default for MarkMask {
    /// 16,383 marks that Kubernetes does not use. Calico's default (`iptablesMarkMask` 0xffff0000)
    /// has these bits too: one of the two must then be given others.
    fn default() -> Self {
        Self(0x3fff_0000)
    }
}

/// What the node is like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Every address on any interface, loopback included.
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that take node ports.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// The source of the node's own connections to VIPs, by family.
    pub source: BTreeMap<Family, IpAddr>,
    /// The schedulers that the kernel was asked for and does not have.
    pub missing_schedulers: BTreeSet<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_has_no_bits_that_mean_something_else() {
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
    fn the_marks_of_a_mask_are_different_and_within_it() {
        let mask = MarkMask::new(0x8005_0001, 0x4000).unwrap();
        let marks: BTreeSet<_> = (1..=mask.capacity()).map(|n| mask.mark(n)).collect();
        assert_eq!(marks.len(), 15);
        assert!(marks.iter().all(|mark| mask.contains(*mark)));
        assert!(!mask.contains(0) && !mask.contains(2));
        assert_eq!(MarkMask::default().capacity(), 0x3fff);
        assert_eq!(MarkMask::default().mark(1), 0x1_0000);
    }

    #[test]
    fn local_packets_are_told_as_configured() {
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
