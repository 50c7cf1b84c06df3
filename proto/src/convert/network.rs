// SPDX-License-Identifier: Apache-2.0

//! Families and networks.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use portolan_model::{Families, Family};

use super::{DecodeError, DecodeErrorKind};
use crate::v1;
use crate::v1::network::Network;

pub(super) fn encode_family(family: Family) -> v1::Family {
    match family {
        Family::V4 => v1::Family::V4,
        Family::V6 => v1::Family::V6,
    }
}

/// `None` if this version does not know the family.
pub(super) fn decode_family(number: i32) -> Option<Family> {
    match v1::Family::try_from(number).ok()? {
        v1::Family::Unspecified => None,
        v1::Family::V4 => Some(Family::V4),
        v1::Family::V6 => Some(Family::V6),
    }
}

pub(super) fn encode_families(families: Families) -> Vec<i32> {
    families.iter().map(|f| encode_family(f).into()).collect()
}

/// The families that this version knows.
pub(super) fn decode_families(numbers: &[i32]) -> Families {
    numbers.iter().filter_map(|n| decode_family(*n)).collect()
}

pub(super) fn encode_network(net: &IpNet) -> v1::Network {
    let network = match net.network() {
        IpAddr::V4(ip) => Network::V4(ip.into()),
        IpAddr::V6(ip) => Network::V6(ip.octets().into()),
    };
    v1::Network {
        network: Some(network),
        prefix_length: net.prefix_len().into(),
    }
}

/// `None` if this version does not know the network's family.
pub(super) fn decode_network(network: &v1::Network) -> Result<Option<IpNet>, DecodeError> {
    let ip: IpAddr = match &network.network {
        None => return Ok(None),
        Some(Network::V4(bits)) => IpAddr::V4((*bits).into()),
        Some(Network::V6(octets)) => decode_ipv6("network.v6", octets)?.into(),
    };
    let net = u8::try_from(network.prefix_length)
        .ok()
        .and_then(|length| IpNet::new(ip, length).ok());
    match net {
        Some(net) => Ok(Some(net.trunc())),
        None => Err(DecodeError::new(
            "network.prefix_length",
            DecodeErrorKind::Range(network.prefix_length),
        )),
    }
}

pub(super) fn decode_ipv6(field: &'static str, octets: &[u8]) -> Result<Ipv6Addr, DecodeError> {
    <[u8; 16]>::try_from(octets)
        .map(Ipv6Addr::from)
        .map_err(|_| DecodeError::length(field, 16, octets.len()))
}
