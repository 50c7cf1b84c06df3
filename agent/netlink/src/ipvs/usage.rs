// SPDX-License-Identifier: Apache-2.0

//! Counters of real servers and of virtual servers, in 64 bits (since Linux 4.1; socket options give 32).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use portolan_model::ipvs::{Connections, VirtualServerKey};

use super::request::{self, GET_DEST, GET_SERVICE};
use super::{Ipvs, IpvsError, attr, family, reply};
use crate::wire::{Attributes, Malformed, Writer};

/// Counters of a real server since it was added, its weight and its current connections. The kernel brings the
/// counters up to date every 2 s (`ip_vs_est.c`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Weight of now.
    pub weight: u32,
    /// Connections of now.
    pub connections: Connections,
    /// Connections since it was added.
    pub total_connections: u64,
    /// Packets from clients since it was added.
    pub packets_in: u64,
    /// Packets to clients since it was added; 0 with methods whose answers pass the director by.
    pub packets_out: u64,
    /// Bytes from clients since it was added, headers of IP included.
    pub bytes_in: u64,
    /// Bytes to clients since it was added; 0 with methods whose answers pass the director by.
    pub bytes_out: u64,
}

/// Counters of a virtual server since it was added. The kernel brings them up to date every 2 s (`ip_vs_est.c`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections.
    pub connections: u64,
    /// Bytes from clients, headers of IP included.
    pub bytes_in: u64,
    /// Bytes to clients; 0 with methods whose answers pass the director by.
    pub bytes_out: u64,
}

impl Ipvs {
    /// Reads the counters of all virtual servers of both families in one dump.
    ///
    /// # Errors
    /// [`IpvsError::Socket`].
    pub fn totals(&mut self) -> Result<BTreeMap<VirtualServerKey, Totals>, IpvsError> {
        let fill = |writer: &mut Writer| request::write_header(writer, GET_SERVICE);
        Ok(self.socket.dump(self.family, fill, read_totals)?)
    }

    /// Reads the use of all real servers of a virtual server; empty if there is none of that key.
    ///
    /// # Errors
    /// [`IpvsError::Socket`].
    pub fn usage(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<BTreeMap<SocketAddr, Usage>, IpvsError> {
        let fill = |writer: &mut Writer| {
            request::write_header(writer, GET_DEST);
            request::write_service(writer, key, None);
        };
        Ok(self.socket.dump(self.family, fill, read)?)
    }
}

/// Adds the real server of a reply. Kernels before 4.1 count nothing in 64 bits: 0.
pub(super) fn read(
    used: &mut BTreeMap<SocketAddr, Usage>,
    payload: &[u8],
) -> Result<(), Malformed> {
    let nest = Attributes::new(payload, family::HEADER_LEN)?
        .get(attr::DEST)?
        .nested();
    let address_family = nest.get(attr::dest::ADDRESS_FAMILY)?.u16()?;
    let address = reply::address(nest.get(attr::dest::ADDRESS)?, address_family)?;
    let port = nest.get(attr::dest::PORT)?.be16()?;
    let mut usage = Usage {
        weight: nest.get(attr::dest::WEIGHT)?.u32()?,
        connections: reply::connections(&nest)?,
        ..Usage::default()
    };
    if let Some(counters) = nest.find(attr::dest::COUNTERS)? {
        let counters = counters.nested();
        let totals = totals(&counters)?;
        usage.packets_in = counters.get(attr::counters::PACKETS_IN)?.u64()?;
        usage.packets_out = counters.get(attr::counters::PACKETS_OUT)?.u64()?;
        usage.total_connections = totals.connections;
        usage.bytes_in = totals.bytes_in;
        usage.bytes_out = totals.bytes_out;
    }
    if let Some(address) = address {
        used.insert(SocketAddr::new(address, port), usage);
    }
    Ok(())
}

/// Adds the virtual server of a reply, with zeros before Linux 4.1.
fn read_totals(
    found: &mut BTreeMap<VirtualServerKey, Totals>,
    payload: &[u8],
) -> Result<(), Malformed> {
    let nest = Attributes::new(payload, family::HEADER_LEN)?
        .get(attr::SERVICE)?
        .nested();
    let counters = nest.find(attr::service::COUNTERS)?;
    let totals = counters.map(|counters| totals(&counters.nested()));
    let totals = totals.transpose()?.unwrap_or_default();
    if let Some(key) = reply::key(&nest)? {
        found.insert(key, totals);
    }
    Ok(())
}

fn totals(counters: &Attributes<'_>) -> Result<Totals, Malformed> {
    Ok(Totals {
        connections: counters.get(attr::counters::CONNECTIONS)?.u64()?,
        bytes_in: counters.get(attr::counters::BYTES_IN)?.u64()?,
        bytes_out: counters.get(attr::counters::BYTES_OUT)?.u64()?,
    })
}

#[cfg(test)]
mod tests {
    use portolan_model::{Family, Protocol};

    use super::*;

    fn write_counters(nest: &mut Writer, kind: u16, values: [u64; 5]) {
        nest.nest(kind, |nest| {
            let kinds = [
                attr::counters::CONNECTIONS,
                attr::counters::PACKETS_IN,
                attr::counters::PACKETS_OUT,
                attr::counters::BYTES_IN,
                attr::counters::BYTES_OUT,
            ];
            for (kind, value) in kinds.into_iter().zip(values) {
                nest.attribute(kind, &value.to_ne_bytes());
            }
        });
    }

    fn reply(counters: Option<[u64; 5]>) -> Vec<u8> {
        let mut writer = Writer::default();
        request::write_header(&mut writer, GET_DEST);
        writer.nest(attr::DEST, |nest| {
            let mut address = [0; 16];
            address[..4].copy_from_slice(&[10, 0, 0, 1]);
            nest.attribute(attr::dest::ADDRESS, &address);
            nest.attribute(attr::dest::PORT, &8080_u16.to_be_bytes());
            nest.u16(attr::dest::ADDRESS_FAMILY, attr::AF_INET);
            for (kind, value) in [
                (attr::dest::WEIGHT, 7),
                (attr::dest::ACTIVE, 4),
                (attr::dest::INACTIVE, 5),
                (attr::dest::PERSISTENT, 6),
            ] {
                nest.u32(kind, value);
            }
            if let Some(counters) = counters {
                write_counters(nest, attr::dest::COUNTERS, counters);
            }
        });
        writer.as_bytes().to_vec()
    }

    #[test]
    fn counters_are_read_in_64_bits() {
        let expected = Usage {
            weight: 7,
            connections: Connections {
                active: 4,
                inactive: 5,
                persistent: 6,
            },
            total_connections: 1 << 40,
            packets_in: 2 << 40,
            packets_out: 3 << 40,
            bytes_in: 4 << 40,
            bytes_out: 5 << 40,
        };
        let address: SocketAddr = "10.0.0.1:8080".parse().unwrap();
        let read_all = |payload: &[u8]| {
            let mut used = BTreeMap::new();
            read(&mut used, payload).map(|()| used)
        };
        let full = reply(Some([1_u64, 2, 3, 4, 5].map(|count| count << 40)));
        assert_eq!(read_all(&full).unwrap(), [(address, expected)].into());
        let old = read_all(&reply(None)).unwrap()[&address];
        assert_eq!((old.connections, old.bytes_in), (expected.connections, 0));
        // A reply that ends anywhere is an error, and no panic.
        for end in 0..full.len() {
            assert!(read_all(&full[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn counters_of_virtual_servers_are_read_with_their_keys() {
        let reply = |fill: &dyn Fn(&mut Writer), counters: Option<[u64; 5]>| {
            let mut writer = Writer::default();
            request::write_header(&mut writer, GET_SERVICE);
            writer.nest(attr::SERVICE, |nest| {
                fill(nest);
                if let Some(counters) = counters {
                    write_counters(nest, attr::service::COUNTERS, counters);
                }
            });
            writer.as_bytes().to_vec()
        };
        let by_address = |nest: &mut Writer| {
            nest.u16(attr::service::ADDRESS_FAMILY, attr::AF_INET);
            nest.u16(attr::service::PROTOCOL, 6);
            let mut address = [0; 16];
            address[..4].copy_from_slice(&[10, 96, 0, 1]);
            nest.attribute(attr::service::ADDRESS, &address);
            nest.attribute(attr::service::PORT, &80_u16.to_be_bytes());
        };
        let by_mark = |nest: &mut Writer| {
            nest.u16(attr::service::ADDRESS_FAMILY, attr::AF_INET6);
            nest.u32(attr::service::FIREWALL_MARK, 9);
        };
        let mut found = BTreeMap::new();
        let full = reply(&by_address, Some([1 << 40, 0, 0, 2, 3]));
        read_totals(&mut found, &full).unwrap();
        read_totals(&mut found, &reply(&by_mark, None)).unwrap();
        let counted = Totals {
            connections: 1 << 40,
            bytes_in: 2,
            bytes_out: 3,
        };
        let mark = VirtualServerKey::Mark {
            family: Family::V6,
            mark: 9,
        };
        let address = VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, 1].into(), 80);
        let expected = [(address, counted), (mark, Totals::default())];
        assert_eq!(found, expected.into());
        // A reply that ends anywhere is an error, and no panic.
        for end in 0..full.len() {
            assert!(
                read_totals(&mut BTreeMap::new(), &full[..end]).is_err(),
                "{end}"
            );
        }
    }
}
