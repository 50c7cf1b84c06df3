// SPDX-License-Identifier: Apache-2.0

//! Names and types of the sets and maps of a table, and the keys of their elements.

use std::net::{IpAddr, SocketAddr};

use portolan_model::{Family, Protocol};
use portolan_netlink::nftables::{Data, Field, Key, Set};

use crate::WayKey;

/// Name of our table, in `ip` and in `ip6`.
pub const TABLE: &str = "portolan";

/// Where the connections of each way go.
pub const SERVICES: &str = "services";
/// The same for connections that come neither from the node's own pods nor from the node.
pub(crate) const OUTSIDE: &str = "outside";
/// Destinations of ways by slot.
pub(crate) const ENDPOINTS: &str = "endpoints";
/// Destinations for `outside`.
pub(crate) const LOCAL_ENDPOINTS: &str = "local-endpoints";
/// Cluster IPs, whose other ports are refused.
pub(crate) const CLUSTER_IPS: &str = "cluster-ips";
/// Ways whose connections are masqueraded.
pub(crate) const MASQUERADED: &str = "masqueraded";
/// Ways with which the node's own connections are masqueraded.
pub(crate) const MASQUERADED_OWN: &str = "masqueraded-own";
/// Endpoints of this node, with their address twice.
pub(crate) const HAIRPIN: &str = "hairpin";
/// Ways with permitted sources.
pub(crate) const RANGED: &str = "ranged";
/// The permitted sources, but for those of ways with many.
pub(crate) const ALLOWED: &str = "allowed";
/// The permitted sources of ways with more than [`MANY`], each before its way.
pub(crate) const ALLOWED_MANY: &str = "allowed-many";
/// The sets of permitted sources, and their other names.
const NAMES: [(&str, &str); 2] = [(ALLOWED, "allowed-2"), (ALLOWED_MANY, "allowed-many-2")];
/// TCP endpoints of imports.
pub(crate) const REMOTE: &str = "remote";
/// Ways with affinity.
pub(crate) const STICKY: &str = "sticky";
/// Destinations of clients of ways with affinity. Rules write it.
pub const AFFINITY: &str = "affinity";

/// Most permitted sources of a way in [`ALLOWED`]. The kernel compares a key field by field and visits all elements
/// that have the first fields in common, for each packet and for each element that is added: with the way first, 20,000
/// sources of one way take 13 s, and 70,000 some minutes. With the source first they take less than a second, and
/// sources that many ways have in common would be slow.
pub(crate) const MANY: usize = 256;

/// Most clients that are remembered at a time. A full map costs a client its affinity, and no connection.
const CLIENTS_MAX: u32 = 262_144;

/// The sets and maps that a table always has.
pub(crate) fn sets(family: Family) -> Vec<Set> {
    let address = address_field(family);
    let way = [address, Field::Protocol, Field::Port];
    let slot = [address, Field::Protocol, Field::Port, Field::Number];
    let to = || Data::Fields(vec![address, Field::Port]);
    let from = [address, Field::Protocol, Field::Port, address];
    let hairpin = [address, address, Field::Protocol, Field::Port];
    let of_many = [address, address, Field::Protocol, Field::Port];
    let sources = |name: &str, key: &[Field]| Set {
        is_interval: true,
        ..Set::new(name, key, Data::None)
    };
    vec![
        Set::new(SERVICES, &way, Data::Verdict),
        Set::new(ENDPOINTS, &slot, to()),
        Set::new(LOCAL_ENDPOINTS, &slot, to()),
        Set::new(CLUSTER_IPS, &[address], Data::None),
        Set::new(MASQUERADED, &way, Data::None),
        Set::new(MASQUERADED_OWN, &way, Data::None),
        Set::new(HAIRPIN, &hairpin, Data::None),
        Set::new(RANGED, &way, Data::None),
        sources(ALLOWED, &from),
        sources(ALLOWED_MANY, &of_many),
    ]
}

/// The map that comes with the first way on which connections from outside have their own destinations.
pub(crate) fn outside_map(family: Family) -> Set {
    let way = [address_field(family), Field::Protocol, Field::Port];
    Set::new(OUTSIDE, &way, Data::Verdict)
}

/// The maps that come with the first Service that has affinity.
pub(crate) fn sticky_sets(family: Family) -> [Set; 2] {
    let address = address_field(family);
    let way = [address, Field::Protocol, Field::Port];
    let client = [address, address, Field::Protocol, Field::Port];
    let mut affinity = Set::new(AFFINITY, &client, Data::Fields(vec![address, Field::Port]));
    affinity.size = Some(CLIENTS_MAX);
    affinity.is_dynamic = true;
    [Set::new(STICKY, &way, Data::Verdict), affinity]
}

/// The set that comes with the first import.
pub(crate) fn remote_set(family: Family) -> Set {
    let endpoint = [address_field(family), Field::Protocol, Field::Port];
    Set::new(REMOTE, &endpoint, Data::None)
}

fn address_field(family: Family) -> Field {
    match family {
        Family::V4 => Field::Ipv4,
        Family::V6 => Field::Ipv6,
    }
}

/// Bytes of an address.
pub(crate) fn address_len(family: Family) -> usize {
    address_field(family).bytes()
}

pub(crate) fn push_address(key: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(ip) => key.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => key.extend_from_slice(&ip.octets()),
    }
}

fn push_port(key: &mut Vec<u8>, port: u16) {
    key.extend_from_slice(&port.to_be_bytes());
    key.extend_from_slice(&[0; 2]);
}

fn push_way(key: &mut Vec<u8>, way: &WayKey) {
    push_address(key, way.address);
    key.extend_from_slice(&[way.protocol.number(), 0, 0, 0]);
    push_port(key, way.port);
}

pub(crate) fn address_key(address: IpAddr) -> Key {
    let mut key = Vec::new();
    push_address(&mut key, address);
    key.into()
}

pub(crate) fn way_key(way: &WayKey) -> Key {
    let mut key = Vec::with_capacity(24);
    push_way(&mut key, way);
    key.into()
}

/// The key of a slot, whose number is in the host's byte order, like a random number.
pub(crate) fn slot_key(way: &WayKey, slot: u32) -> Key {
    let mut key = Vec::with_capacity(28);
    push_way(&mut key, way);
    key.extend_from_slice(&slot.to_ne_bytes());
    key.into()
}

/// The key of a permitted source; a range goes from that of its first address to that of its last.
pub(crate) fn source_key(way: &WayKey, source: IpAddr) -> Key {
    let mut key = Vec::with_capacity(40);
    push_way(&mut key, way);
    push_address(&mut key, source);
    key.into()
}

/// As [`source_key`], for a way with many sources.
pub(crate) fn source_of_many_key(way: &WayKey, source: IpAddr) -> Key {
    let mut key = Vec::with_capacity(40);
    push_address(&mut key, source);
    push_way(&mut key, way);
    key.into()
}

/// Returns `true` for the sets of permitted sources.
pub(crate) fn is_of_sources(set: &str) -> bool {
    other_name(set).is_some()
}

/// The other name of a set of permitted sources.
pub(crate) fn other_name(set: &str) -> Option<&'static str> {
    NAMES.into_iter().find_map(|(first, second)| {
        let names = [(first, second), (second, first)];
        let other = names.into_iter().find(|(name, _)| *name == set);
        other.map(|(_, other)| other)
    })
}

/// The first of a set's two names.
pub(crate) fn first_name(set: &str) -> &str {
    let is_second = |(_, second): &(&str, &str)| *second == set;
    let found = NAMES.into_iter().find(is_second);
    found.map_or(set, |(first, _)| first)
}

/// The way in the key of a permitted source; `None` if it is none.
pub(crate) fn way_of_source<'a>(set: &str, key: &'a [u8]) -> Option<&'a [u8]> {
    let address = match key.len() {
        16 => 4,
        40 => 16,
        _ => return None,
    };
    match first_name(set) == ALLOWED_MANY {
        true => key.get(address..),
        false => key.get(..key.len() - address),
    }
}

pub(crate) fn hairpin_key(endpoint: &WayKey) -> Key {
    let mut key = Vec::with_capacity(40);
    push_address(&mut key, endpoint.address);
    push_way(&mut key, endpoint);
    key.into()
}

/// The value of a slot.
pub(crate) fn destination(socket: SocketAddr) -> Key {
    let mut value = Vec::with_capacity(20);
    push_address(&mut value, socket.ip());
    push_port(&mut value, socket.port());
    value.into()
}

/// Reads the address at the start of a key; `None` if there is none.
pub(crate) fn read_address(family: Family, bytes: &[u8]) -> Option<IpAddr> {
    Some(match family {
        Family::V4 => IpAddr::from(*bytes.first_chunk::<4>()?),
        Family::V6 => IpAddr::from(*bytes.first_chunk::<16>()?),
    })
}

fn read_port(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().copied().map(u16::from_be_bytes)
}

/// Reads [`destination`]; `None` if it is none.
pub(crate) fn read_destination(family: Family, bytes: &[u8]) -> Option<SocketAddr> {
    let address = read_address(family, bytes)?;
    let port = read_port(bytes.get(address_len(family)..)?)?;
    Some(SocketAddr::new(address, port))
}

/// Reads the way at the start of a key; `None` if there is none.
pub(crate) fn read_way(family: Family, key: &[u8]) -> Option<WayKey> {
    let rest = key.get(address_len(family)..)?;
    Some(WayKey {
        address: read_address(family, key)?,
        protocol: Protocol::from_number(u16::from(*rest.first()?))?,
        port: read_port(rest.get(4..)?)?,
    })
}
