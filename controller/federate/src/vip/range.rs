// SPDX-License-Identifier: Apache-2.0

//! Ranges of virtual addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use portolan_model::Family;

/// A range of addresses that imports can have: those of a network, but for the network's own address
/// and the broadcast address. Of an IPv6 network with more than 2^63 addresses only the first 2^63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    network: IpNet,
    /// The offset of the first address in the network.
    first: u64,
    /// The number of addresses, at least 1.
    size: u64,
}

impl Range {
    /// The range of a network.
    #[must_use]
    pub fn new(network: IpNet) -> Self {
        let network = network.trunc();
        let bits = network.max_prefix_len() - network.prefix_len();
        let all = 1_u64 << bits.min(63);
        let (first, size) = match Family::of(network.addr()) {
            // Two addresses or one are those of a link or a host, which have no others.
            _ if bits <= 1 => (0, all),
            Family::V4 => (1, all - 2),
            Family::V6 => (1, all - 1),
        };
        Self {
            network,
            first,
            size,
        }
    }

    /// The family.
    #[must_use]
    pub fn family(self) -> Family {
        Family::of(self.network.addr())
    }

    /// The number of addresses.
    #[must_use]
    pub fn size(self) -> u64 {
        self.size
    }

    /// Returns `true` if an address is one of the range.
    #[must_use]
    pub fn contains(self, ip: IpAddr) -> bool {
        let offset = match (self.network.addr(), ip) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                u128::from(u32::from(ip)).checked_sub(u32::from(network).into())
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                u128::from(ip).checked_sub(u128::from(network))
            }
            _ => None,
        };
        let first = u128::from(self.first);
        offset.is_some_and(|offset| (first..first + u128::from(self.size)).contains(&offset))
    }

    /// The address so many steps after a place, going on with the first after the last.
    pub(super) fn nth(self, place: u64, step: u64) -> IpAddr {
        let index = (u128::from(place) + u128::from(step)) % u128::from(self.size);
        let offset = index + u128::from(self.first);
        match self.network.addr() {
            IpAddr::V4(network) => {
                // The network has no more addresses than the family.
                let offset = u32::try_from(offset).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(network).wrapping_add(offset)))
            }
            IpAddr::V6(network) => {
                IpAddr::V6(Ipv6Addr::from(u128::from(network).wrapping_add(offset)))
            }
        }
    }
}
