// SPDX-License-Identifier: Apache-2.0

//! Places at which ways are listened for. Pure.
//!
//! Inside of a command's namespaces that is the way's own address. On a shared loopback device each Service has an
//! address 127.64.0.0/10 by the hash of its name, so that files with names stay true, and for IPv6 a port of ::1.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use portolan_model::{FrontendKind, Protocol, RecordKey};
use portolan_nftables::{Way, WayKey, Ways};

use crate::listen::{Listen, Transport};

/// Added to ports that need a right.
const SHIFT: u16 = 10_000;

/// Addresses of Services: 127.64.0.0/10, far from those that systems use themselves.
const NETWORK: Ipv4Addr = Ipv4Addr::new(127, 64, 0, 0);

/// The number of such addresses.
const ADDRESSES: u32 = 1 << 22;

/// Ports of ::1 for Services: below those that kernels give to connections.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A Service: cluster, namespace and name.
pub(crate) type ServiceName = (Arc<str>, Arc<str>, Arc<str>);

/// The name of a record's Service.
pub(crate) fn service_of(key: &RecordKey) -> ServiceName {
    (
        Arc::clone(&key.cluster),
        Arc::clone(&key.namespace),
        Arc::clone(&key.service),
    )
}

/// The transport of a protocol, if sockets of this crate have it.
pub(crate) fn transport(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::Tcp => Some(Transport::Tcp),
        Protocol::Udp => Some(Transport::Udp),
        Protocol::Sctp => None,
    }
}

/// Ways by the socket that listens for them.
pub(crate) type Places = BTreeMap<Listen, WayKey>;

/// All ways at their own addresses.
pub(crate) fn own(ways: &Ways) -> Places {
    let listen = |key: &WayKey| {
        let transport = transport(key.protocol)?;
        let at = SocketAddr::new(key.address, key.port);
        Some((Listen { transport, at }, *key))
    };
    ways.ways.keys().filter_map(listen).collect()
}

/// The addresses that Services have on the loopback device. They stay while the Service is there.
#[derive(Debug, Default)]
pub(crate) struct Loopback {
    /// The first port that needs no right.
    unprivileged: u16,
    addresses: BTreeMap<ServiceName, Ipv4Addr>,
    ports: BTreeMap<RecordKeyAndPort, u16>,
}

type RecordKeyAndPort = (RecordKey, u16);

/// A way of one Service, as the loopback device has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The Service port.
    pub record: RecordKey,
    /// Its own port.
    pub port: u16,
    /// Whether it is a node port.
    pub is_node_port: bool,
    /// Where it is.
    pub listen: Listen,
}

impl Loopback {
    /// No Service has an address yet.
    pub(crate) fn new(unprivileged: u16) -> Self {
        Self {
            unprivileged,
            ..Self::default()
        }
    }

    /// The places of all ways. Of a Service's addresses one counts: the cluster IP if there is one.
    pub(crate) fn places(&mut self, ways: &Ways) -> (Places, Vec<Listed>) {
        let chosen = chosen(ways);
        self.keep(&chosen);
        // What has its own port comes first: others give way to it.
        let mut chosen: Vec<_> = chosen.into_iter().collect();
        chosen.sort_by_key(|(chosen, _)| !self.has_own_port(chosen));
        let (mut places, mut listed) = (Places::new(), Vec::new());
        for (chosen, key) in chosen {
            let has_own_port = self.has_own_port(&chosen);
            let (record, port, is_node_port, is_v4) = chosen;
            let Some(transport) = transport(record.protocol) else {
                continue;
            };
            let at = match (is_node_port, is_v4) {
                (true, true) => (IpAddr::V4(Ipv4Addr::LOCALHOST), self.shifted(port)),
                (true, false) => (IpAddr::V6(Ipv6Addr::LOCALHOST), self.shifted(port)),
                (false, true) => {
                    let address = self.address(service_of(&record));
                    (address.into(), self.shifted(port))
                }
                (false, false) => {
                    let port = self.port(&record, port);
                    (Ipv6Addr::LOCALHOST.into(), port)
                }
            };
            let wanted = Listen {
                transport,
                at: at.into(),
            };
            let listen = match has_own_port {
                true => wanted,
                false => self.free(&places, wanted),
            };
            places.insert(listen, key);
            listed.push(Listed {
                record,
                port,
                is_node_port,
                listen,
            });
        }
        listed.sort_by(|a, b| order(a).cmp(&order(b)));
        (places, listed)
    }

    /// Whether something is listened for at its own port, which nothing else may have.
    fn has_own_port(&self, (_, port, is_node_port, is_v4): &Chosen) -> bool {
        *port >= self.unprivileged && (*is_node_port || *is_v4)
    }

    /// A place that nothing has: the wanted one, or one with the next free port.
    fn free(&self, places: &Places, wanted: Listen) -> Listen {
        let port = wanted.at.port();
        let next = (port..=u16::MAX).chain((self.unprivileged.max(1)..port).rev());
        let at = |port| Listen {
            at: SocketAddr::new(wanted.at.ip(), port),
            ..wanted
        };
        let mut next = next.map(at);
        next.find(|listen| !places.contains_key(listen))
            .unwrap_or(wanted)
    }

    fn shifted(&self, port: u16) -> u16 {
        match port < self.unprivileged {
            true => port.saturating_add(SHIFT),
            false => port,
        }
    }

    /// Forgets Services that are gone.
    fn keep(&mut self, chosen: &BTreeMap<Chosen, WayKey>) {
        let services: BTreeSet<_> = chosen.keys().map(|(r, ..)| service_of(r)).collect();
        self.addresses.retain(|name, _| services.contains(name));
        let ports: BTreeSet<_> = chosen.keys().map(|(r, port, ..)| (r, *port)).collect();
        self.ports
            .retain(|(r, port), _| ports.contains(&(r, *port)));
    }

    fn address(&mut self, name: ServiceName) -> Ipv4Addr {
        if let Some(address) = self.addresses.get(&name) {
            return *address;
        }
        let taken: BTreeSet<_> = self.addresses.values().copied().collect();
        let (cluster, namespace, service) = &name;
        let start = hash(&[cluster, namespace, service]);
        // Of two Services with one hash the later one has the next address.
        let candidates = (0..ADDRESSES).map(|next| {
            let number = (start % ADDRESSES).wrapping_add(next) % ADDRESSES;
            Ipv4Addr::from(u32::from(NETWORK) | number)
        });
        let is_plain = |ip: &Ipv4Addr| ![0, 255].contains(&ip.octets()[3]);
        let free = candidates.filter(is_plain).find(|ip| !taken.contains(ip));
        let address = free.unwrap_or(NETWORK);
        self.addresses.insert(name, address);
        address
    }

    fn port(&mut self, record: &RecordKey, port: u16) -> u16 {
        let key = (record.clone(), port);
        if let Some(port) = self.ports.get(&key) {
            return *port;
        }
        let taken: BTreeSet<_> = self.ports.values().copied().collect();
        let (cluster, namespace, service) = service_of(record);
        let start = hash(&[&cluster, &namespace, &service, &port.to_string()]);
        let count = u32::from(PORTS.end - PORTS.start);
        let candidates = (0..count).filter_map(|next| {
            let number = (start % count + next) % count;
            Some(PORTS.start + u16::try_from(number).ok()?)
        });
        let free = candidates.into_iter().find(|port| !taken.contains(port));
        let port = free.unwrap_or(PORTS.start);
        self.ports.insert(key, port);
        port
    }
}

/// Record, port, whether it is a node port, whether it is IPv4.
type Chosen = (RecordKey, u16, bool, bool);

/// The order of a list: that of [`Chosen`].
fn order(listed: &Listed) -> (&RecordKey, u16, bool, bool) {
    let is_v4 = listed.listen.at.is_ipv4();
    (&listed.record, listed.port, listed.is_node_port, is_v4)
}

/// One way for each port and family of a Service.
fn chosen(ways: &Ways) -> BTreeMap<Chosen, WayKey> {
    let mut chosen: BTreeMap<Chosen, (&Way, WayKey)> = BTreeMap::new();
    for (key, way) in &ways.ways {
        let is_node_port = way.kind == FrontendKind::NodePort;
        let name = (
            way.record.key.clone(),
            key.port,
            is_node_port,
            key.address.is_ipv4(),
        );
        let entry = chosen.entry(name).or_insert((way, *key));
        if way.kind < entry.0.kind {
            *entry = (way, *key);
        }
    }
    let keys = chosen.into_iter();
    keys.map(|(name, (_, key))| (name, key)).collect()
}

/// A hash that stays the same over versions and machines.
fn hash(parts: &[&str]) -> u32 {
    let hash = blake3::hash(parts.join("/").as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

#[cfg(test)]
mod tests;
