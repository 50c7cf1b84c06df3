// SPDX-License-Identifier: Apache-2.0

//! Addresses, networks and destinations of either family, each from the bytes of an IPv4 address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use portolan_model::{Destination, Family};

/// Bits of an IPv6 address before those of an IPv4 one.
const BEFORE: u8 = 96;

/// The address of a family that ends with these bytes.
pub(crate) fn address_in(family: Family, bytes: [u8; 4]) -> IpAddr {
    match family {
        Family::V4 => bytes.into(),
        Family::V6 => {
            let first = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0).to_bits();
            Ipv6Addr::from_bits(first | u128::from(u32::from_be_bytes(bytes))).into()
        }
    }
}

/// The network of a family that has as many addresses as one of IPv4 with this prefix.
pub(crate) fn network_in(family: Family, bytes: [u8; 4], prefix: u8) -> IpNet {
    let prefix = match family {
        Family::V4 => prefix,
        Family::V6 => BEFORE + prefix,
    };
    IpNet::new(address_in(family, bytes), prefix).unwrap()
}

/// Destinations of a family, as many as asked for.
pub(crate) fn destinations_in(family: Family, count: u16) -> Vec<Destination> {
    let destination = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let address = address_in(family, [10, 244, high, low]);
        Destination::new(SocketAddr::new(address, 8080))
    };
    (1..=count).map(destination).collect()
}

/// Ranges that are apart, so many that their way is one of those with many.
pub(crate) fn many_ranges(family: Family) -> Vec<IpNet> {
    let range = |number: u16| {
        let [high, low] = number.to_be_bytes();
        network_in(family, [20, high, low, 0], 25)
    };
    (0..257).map(range).collect()
}
