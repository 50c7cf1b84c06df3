// SPDX-License-Identifier: Apache-2.0

//! Names of sets and chains: kube-proxy's, which operators, CNI plugins and guides refer to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use portolan_model::ipset::{MAX_NAME_LEN, SetEntry, SetKind};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Family, Protocol};

/// Sets of the agent, one each per family (`pkg/proxy/ipvs/proxier.go`, `ipsetInfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is documented by its name and `kind`")]
pub enum SetName {
    /// Local endpoints that reach themselves (hairpin).
    LoopBack,
    ClusterIp,
    ExternalIp,
    ExternalIpLocal,
    LoadBalancer,
    LoadBalancerLocal,
    /// Frontends with source ranges.
    LoadBalancerFw,
    LoadBalancerSourceCidr,
    NodePortTcp,
    NodePortUdp,
    NodePortSctp,
    NodePortLocalTcp,
    NodePortLocalUdp,
    NodePortLocalSctp,
    /// `spec.healthCheckNodePort`s.
    HealthCheckNodePort,
    /// Every VIP that has a local route of ours.
    IpvsIps,
    /// Frontends whose connections from the node itself and from its own pods go to a virtual server by
    /// mark, with that mark.
    ShortCircuit,
    /// Frontends that forward to local destinations only and have none: other packets are dropped.
    NoLocal,
    /// Addresses and ports of load balancers with ranges of ports, with the mark of their virtual server.
    BalancedMark,
    /// TCP real servers of imports: the size of their segments is kept to that of the path.
    Remote,
    /// The ownership record: our virtual servers. It has their lifetime, in the same kernel, and is
    /// written before the first and deleted after the last of them.
    VirtualServers,
}

impl SetName {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::LoopBack,
        Self::ClusterIp,
        Self::ExternalIp,
        Self::ExternalIpLocal,
        Self::LoadBalancer,
        Self::LoadBalancerLocal,
        Self::LoadBalancerFw,
        Self::LoadBalancerSourceCidr,
        Self::NodePortTcp,
        Self::NodePortUdp,
        Self::NodePortSctp,
        Self::NodePortLocalTcp,
        Self::NodePortLocalUdp,
        Self::NodePortLocalSctp,
        Self::HealthCheckNodePort,
        Self::IpvsIps,
        Self::ShortCircuit,
        Self::NoLocal,
        Self::BalancedMark,
        Self::Remote,
        Self::VirtualServers,
    ];

    /// The sets whose entries give packets a mark.
    pub(crate) const MARKS: [Self; 2] = [Self::ShortCircuit, Self::BalancedMark];

    /// The sets that rules match.
    pub fn of_rules() -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter();
        all.filter(|set| *set != Self::VirtualServers)
    }

    /// The set's type.
    #[must_use]
    pub fn kind(self) -> SetKind {
        match self {
            Self::LoopBack => SetKind::HashIpPortIp,
            Self::LoadBalancerSourceCidr => SetKind::HashIpPortNet,
            Self::NodePortTcp
            | Self::NodePortUdp
            | Self::NodePortLocalTcp
            | Self::NodePortLocalUdp
            | Self::HealthCheckNodePort => SetKind::BitmapPort,
            Self::ShortCircuit | Self::BalancedMark => SetKind::HashIpPortMark,
            Self::IpvsIps => SetKind::HashIp,
            _ => SetKind::HashIpPort,
        }
    }

    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::LoopBack => "LOOP-BACK",
            Self::ClusterIp => "CLUSTER-IP",
            Self::ExternalIp => "EXTERNAL-IP",
            Self::ExternalIpLocal => "EXTERNAL-IP-LOCAL",
            Self::LoadBalancer => "LOAD-BALANCER",
            Self::LoadBalancerLocal => "LOAD-BALANCER-LOCAL",
            Self::LoadBalancerFw => "LOAD-BALANCER-FW",
            Self::LoadBalancerSourceCidr => "LOAD-BALANCER-SOURCE-CIDR",
            Self::NodePortTcp => "NODE-PORT-TCP",
            Self::NodePortUdp => "NODE-PORT-UDP",
            Self::NodePortSctp => "NODE-PORT-SCTP-HASH",
            Self::NodePortLocalTcp => "NODE-PORT-LOCAL-TCP",
            Self::NodePortLocalUdp => "NODE-PORT-LOCAL-UDP",
            Self::NodePortLocalSctp => "NODE-PORT-LOCAL-SCTP-HASH",
            Self::HealthCheckNodePort => "HEALTH-CHECK-NODE-PORT",
            Self::IpvsIps => "IPVS-IPS",
            Self::ShortCircuit => "SHORT-CIRCUIT",
            Self::NoLocal => "NO-LOCAL",
            Self::BalancedMark => "BALANCED-MARK",
            Self::Remote => "REMOTE",
            Self::VirtualServers => "PORTOLAN-OWNED",
        }
    }
}

/// Entry of a virtual server in [`SetName::VirtualServers`]. That set has addresses and ports; a mark is
/// written as an address with TCP port 0, which no virtual server by address has: `63.255.0.0,tcp:0` is
/// the mark 0x3fff0000 of IPv4, `::3fff:0,tcp:0` that of IPv6.
#[must_use]
pub fn ownership_entry(key: &VirtualServerKey) -> SetEntry {
    match *key {
        VirtualServerKey::Address {
            protocol,
            address,
            port,
        } => SetEntry::IpPort(address, protocol, port),
        VirtualServerKey::Mark { family, mark } => {
            let address: IpAddr = match family {
                Family::V4 => Ipv4Addr::from(mark).into(),
                Family::V6 => Ipv6Addr::from(u128::from(mark)).into(),
            };
            SetEntry::IpPort(address, Protocol::Tcp, 0)
        }
    }
}

/// Names with a common prefix; another prefix avoids a kube-proxy's names on a standalone host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    prefix: String,
}

impl Default for Names {
    /// kube-proxy's.
    fn default() -> Self {
        Self {
            prefix: "KUBE".to_owned(),
        }
    }
}

/// Reason a prefix is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("name prefix {0:?}: expected 1 to 5 upper-case letters or digits")]
pub struct InvalidPrefix(String);

impl Names {
    /// Names with the prefix `prefix-`.
    ///
    /// # Errors
    /// If the prefix is not 1 to 5 upper-case ASCII letters or digits: chain names are limited to
    /// 28 characters, of which `-SOURCE-RANGES-FIREWALL` has 23.
    pub fn new(prefix: &str) -> Result<Self, InvalidPrefix> {
        let valid = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit();
        if prefix.is_empty() || prefix.len() > 5 || !prefix.bytes().all(valid) {
            return Err(InvalidPrefix(prefix.to_owned()));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
        })
    }

    /// The name of a set, cut to the kernel's limit as upstream does.
    #[must_use]
    pub fn set(&self, set: SetName, family: Family) -> String {
        let mut name = match family {
            Family::V4 => format!("{}-{}", self.prefix, set.suffix()),
            Family::V6 => format!("{}-6-{}", self.prefix, set.suffix()),
        };
        name.truncate(MAX_NAME_LEN);
        name
    }

    /// The name of a chain.
    #[must_use]
    pub fn chain(&self, suffix: &str) -> String {
        format!("{}-{suffix}", self.prefix)
    }

    /// Returns `true` if a chain name could be one of ours.
    #[must_use]
    pub fn is_chain(&self, name: &str) -> bool {
        name.strip_prefix(&self.prefix)
            .is_some_and(|rest| rest.starts_with('-'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn default_names_are_those_of_kube_proxy() {
        let names = Names::default();
        assert_eq!(names.set(SetName::LoopBack, Family::V4), "KUBE-LOOP-BACK");
        assert_eq!(
            names.set(SetName::NodePortTcp, Family::V6),
            "KUBE-6-NODE-PORT-TCP"
        );
        let cut = names.set(SetName::LoadBalancerSourceCidr, Family::V6);
        assert_eq!(cut, "KUBE-6-LOAD-BALANCER-SOURCE-CID");
    }

    #[test]
    fn names_of_sets_are_distinct_with_any_prefix() {
        for prefix in ["K", "KUBE", "PORTO"] {
            let names = Names::new(prefix).unwrap();
            let all: BTreeSet<_> = SetName::ALL
                .iter()
                .flat_map(|set| Family::ALL.map(|family| names.set(*set, family)))
                .collect();
            assert_eq!(all.len(), 2 * SetName::ALL.len(), "{prefix}");
        }
    }

    #[test]
    fn marks_are_recorded_as_addresses_of_their_family() {
        let mark = |family| VirtualServerKey::Mark {
            family,
            mark: 0x3fff_0001,
        };
        let entries = Family::ALL.map(|family| ownership_entry(&mark(family)).to_string());
        assert_eq!(entries, ["63.255.0.1,tcp:0", "::3fff:1,tcp:0"]);
    }

    #[test]
    fn bad_prefix_is_refused() {
        for prefix in ["", "kube", "PREFIX", "A B"] {
            assert!(Names::new(prefix).is_err(), "{prefix}");
        }
    }
}
