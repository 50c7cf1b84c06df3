// SPDX-License-Identifier: Apache-2.0

//! Routes of announced addresses (kernel: `net/ipv4/fib_frontend.c`, `net/ipv6/route.c`).
//!
//! `ADDRESS dev lo table N proto P`: a routing daemon learns them from a table of their own and tells its peers.
//! No packet of this host uses them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::Family;

use crate::Errno;
use crate::socket::{Bus, Socket, SocketError};
use crate::wire::{Attributes, Malformed, Writer, array};

const NEW_ROUTE: u16 = 24;
const DEL_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
/// `NLM_F_CREATE | NLM_F_EXCL`.
const CREATE_ONLY: u16 = 0x600;
/// `RT_SCOPE_LINK`; IPv6 has no scopes.
const SCOPE_LINK: u8 = 253;
/// `RTN_UNICAST`.
const TYPE_UNICAST: u8 = 1;
/// The index of `lo`, the same in every network namespace.
const LOOPBACK: u32 = 1;
/// The length of `struct rtmsg`.
const HEADER_LEN: usize = 12;

/// `RTA_*`.
mod attr {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const OUTPUT: u16 = 4;
    pub(super) const TABLE: u16 = 15;
}

/// The announced routes of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct AnnouncedRoutes {
    socket: Socket,
    protocol: u8,
}

impl AnnouncedRoutes {
    /// Opens the socket. Routes with this protocol number are ours.
    ///
    /// # Errors
    /// [`SocketError::Open`].
    pub fn open(protocol: u8) -> Result<Self, SocketError> {
        let mut socket = Socket::open(Bus::Route)?;
        // The kernel then shows one table alone.
        socket.check_strictly();
        Ok(Self { socket, protocol })
    }

    /// The addresses with a route of ours in a table.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn read(&mut self, table: u32) -> Result<BTreeSet<IpAddr>, SocketError> {
        let mut all = BTreeSet::new();
        for family in Family::ALL {
            let protocol = self.protocol;
            let fill = |writer: &mut Writer| {
                let (number, _) = numbers(family);
                writer.raw(&[number, 0, 0, 0, 0, protocol, 0, 0, 0, 0, 0, 0]);
                writer.u32(attr::TABLE, table);
            };
            let decode = |found: &mut BTreeSet<IpAddr>, payload: &[u8]| {
                found.extend(read(payload, family, table, protocol)?);
                Ok(())
            };
            match self.socket.dump(GET_ROUTE, fill, decode) {
                // A table exists while it has routes.
                Err(SocketError::Refused(Errno::ENOENT)) => {}
                found => all.append(&mut found?),
            }
        }
        Ok(all)
    }

    /// Adds the route of an address.
    ///
    /// # Errors
    /// [`SocketError`], with `EEXIST` if a route of the address is in the table.
    pub fn add(&mut self, table: u32, address: IpAddr) -> Result<(), SocketError> {
        self.change(NEW_ROUTE, CREATE_ONLY, table, address)
    }

    /// Deletes the route of an address.
    ///
    /// # Errors
    /// [`SocketError`], with `ESRCH` if there is none of ours.
    pub fn del(&mut self, table: u32, address: IpAddr) -> Result<(), SocketError> {
        self.change(DEL_ROUTE, 0, table, address)
    }

    fn change(
        &mut self,
        kind: u16,
        flags: u16,
        table: u32,
        address: IpAddr,
    ) -> Result<(), SocketError> {
        let protocol = self.protocol;
        let mut batch = self.socket.batch(4096);
        batch.push(kind, flags, |writer| {
            write(writer, protocol, table, address);
        })?;
        match batch.finish()?.first() {
            None => Ok(()),
            Some(refused) => Err(SocketError::Refused(refused.errno)),
        }
    }
}

/// The number of a family, and the length of its addresses in bits.
fn numbers(family: Family) -> (u8, u8) {
    let (number, length) = match family {
        Family::V4 => (libc::AF_INET, 32),
        Family::V6 => (libc::AF_INET6, 128),
    };
    (u8::try_from(number).unwrap_or_default(), length)
}

/// `struct rtmsg` and attributes. The table is in an attribute, since the header has room for 255 alone.
fn write(writer: &mut Writer, protocol: u8, table: u32, address: IpAddr) {
    let (family, length) = numbers(Family::of(address));
    let scope = if address.is_ipv4() { SCOPE_LINK } else { 0 };
    writer.raw(&[family, length, 0, 0, 0, protocol, scope, TYPE_UNICAST]);
    writer.raw(&[0; 4]);
    match address {
        IpAddr::V4(address) => writer.attribute(attr::DESTINATION, &address.octets()),
        IpAddr::V6(address) => writer.attribute(attr::DESTINATION, &address.octets()),
    }
    writer.u32(attr::OUTPUT, LOOPBACK);
    writer.u32(attr::TABLE, table);
}

/// The address of a route of ours in a table. Kernels that do not filter show all routes.
fn read(payload: &[u8], family: Family, table: u32, ours: u8) -> Result<Option<IpAddr>, Malformed> {
    let [number, length, _, _, _, protocol, _, kind] = array::<8>(payload, 0)?;
    if (number, length) != numbers(family) || (protocol, kind) != (ours, TYPE_UNICAST) {
        return Ok(None);
    }
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    if attributes.get(attr::TABLE)?.u32()? != table {
        return Ok(None);
    }
    let Some(destination) = attributes.find(attr::DESTINATION)? else {
        return Ok(None);
    };
    Ok(Some(match family {
        Family::V4 => destination.exact::<4>().map(IpAddr::from)?,
        Family::V6 => destination.exact::<16>().map(IpAddr::from)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_written_as_the_kernel_reads_it_and_read_back() {
        let mut writer = Writer::default();
        let vip = [192, 0, 2, 10].into();
        write(&mut writer, 99, 1000, vip);
        let expected = [
            &[2, 32, 0, 0, 0, 99, 253, 1, 0, 0, 0, 0][..],
            &[8, 0, 1, 0, 192, 0, 2, 10],
            &[8, 0, 4, 0, 1, 0, 0, 0],
            &[8, 0, 15, 0, 0xe8, 3, 0, 0],
        ];
        assert_eq!(writer.as_bytes(), expected.concat());
        let of = |table, protocol| read(writer.as_bytes(), Family::V4, table, protocol);
        assert_eq!(of(1000, 99), Ok(Some(vip)));
        assert_eq!((of(1001, 99), of(1000, 98)), (Ok(None), Ok(None)));
        assert_eq!(read(writer.as_bytes(), Family::V6, 1000, 99), Ok(None));
    }
}
