// SPDX-License-Identifier: Apache-2.0

//! Destinations in columns.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use portolan_model::Destination;

use super::{DecodeError, DecodeErrorKind};
use crate::v1;

/// Columns in their shortest form: one port if all are the same, no weights if all are 1, nothing
/// if there are no destinations.
pub(super) fn encode_destinations(destinations: &[Destination]) -> Option<v1::Destinations> {
    let mut columns = encode_addresses(destinations.iter().map(|d| d.address))?;
    if destinations.iter().any(|d| d.weight != 1) {
        columns.weights = destinations.iter().map(|d| d.weight).collect();
    }
    Some(columns)
}

/// Columns without weights; nothing if there are no addresses.
pub(super) fn encode_addresses(
    addresses: impl Iterator<Item = SocketAddr> + Clone,
) -> Option<v1::Destinations> {
    let first = addresses.clone().next()?.port();
    let mut ports = addresses.clone().map(|address| address.port());
    let ports = if ports.all(|port| port == first) {
        vec![first.into()]
    } else {
        addresses.clone().map(|one| one.port().into()).collect()
    };
    let count_v4 = addresses.clone().filter(SocketAddr::is_ipv4).count();
    let mut columns = v1::Destinations {
        v4: Vec::with_capacity(count_v4),
        ports,
        ..v1::Destinations::default()
    };
    for address in addresses {
        match address.ip() {
            IpAddr::V4(ip) => columns.v4.push(ip.into()),
            IpAddr::V6(ip) => columns.v6.extend(ip.octets()),
        }
    }
    Some(columns)
}

/// The destinations of columns; empty without columns.
pub(super) fn decode_destinations(
    columns: Option<&v1::Destinations>,
    lowest_port: u16,
) -> Result<Vec<Destination>, DecodeError> {
    let Some(columns) = columns else {
        return Ok(Vec::new());
    };
    let addresses = decode_addresses(Some(columns), lowest_port)?;
    let weights = &columns.weights;
    if !weights.is_empty() && weights.len() != addresses.len() {
        return Err(DecodeError::length(
            "destinations.weights",
            addresses.len(),
            weights.len(),
        ));
    }
    let weights = weights.iter().copied().chain(std::iter::repeat(1));
    Ok(addresses
        .into_iter()
        .zip(weights)
        .map(|(address, weight)| Destination { address, weight })
        .collect())
}

/// The sockets of the address and port columns; empty without columns.
pub(super) fn decode_addresses(
    columns: Option<&v1::Destinations>,
    lowest_port: u16,
) -> Result<Vec<SocketAddr>, DecodeError> {
    let Some(columns) = columns else {
        return Ok(Vec::new());
    };
    let (v6, rest) = columns.v6.as_chunks::<16>();
    if !rest.is_empty() {
        let whole = v6.len() * 16;
        return Err(DecodeError::length(
            "destinations.v6",
            whole,
            columns.v6.len(),
        ));
    }
    let count = columns.v4.len() + v6.len();
    let ports = ports(&columns.ports, count, lowest_port)?;
    let v4 = columns.v4.iter().map(|bits| Ipv4Addr::from(*bits).into());
    let v6 = v6.iter().map(|octets| Ipv6Addr::from(*octets).into());
    let addresses: Vec<SocketAddr> = v4
        .chain(v6)
        .zip(ports)
        .map(|(ip, port)| SocketAddr::new(ip, port))
        .collect();
    if !addresses.is_sorted_by(|a, b| a < b) {
        return Err(DecodeError::new("destinations", DecodeErrorKind::Unsorted));
    }
    Ok(addresses)
}

/// The port of each of `count` destinations.
fn ports(column: &[u32], count: usize, lowest: u16) -> Result<Vec<u16>, DecodeError> {
    let one_for_all = column.len() == 1 && count > 0;
    if !one_for_all && column.len() != count {
        return Err(DecodeError::length(
            "destinations.ports",
            count,
            column.len(),
        ));
    }
    let ports = column
        .iter()
        .map(|number| decode_port_from(lowest, "destinations.ports", *number))
        .collect::<Result<Vec<_>, _>>()?;
    match ports.as_slice() {
        [port] => Ok(vec![*port; count]),
        _ => Ok(ports),
    }
}

/// A port from 1 to 65,535.
pub(super) fn decode_port(field: &'static str, number: u32) -> Result<u16, DecodeError> {
    decode_port_from(1, field, number)
}

fn decode_port_from(lowest: u16, field: &'static str, number: u32) -> Result<u16, DecodeError> {
    match u16::try_from(number) {
        Ok(port) if port >= lowest => Ok(port),
        _ => Err(DecodeError::new(field, DecodeErrorKind::Range(number))),
    }
}
