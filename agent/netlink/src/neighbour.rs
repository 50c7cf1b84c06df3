// SPDX-License-Identifier: Apache-2.0

//! Proxy neighbours: addresses that an interface answers neighbour solicitations for (kernel:
//! `net/core/neighbour.c`). A local route alone makes the kernel answer ARP requests, but no solicitations.

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::Family;

use crate::socket::{Bus, Socket, SocketError};
use crate::wire::{Attributes, Malformed, Writer, array};

const NEW_NEIGHBOUR: u16 = 28;
const DEL_NEIGHBOUR: u16 = 29;
const GET_NEIGHBOUR: u16 = 30;
/// `NLM_F_CREATE`.
const CREATE: u16 = 0x400;
/// `NTF_PROXY`.
const PROXY: u8 = 0x08;
/// The length of `struct ndmsg`.
const HEADER_LEN: usize = 12;

/// `NDA_*`.
mod attr {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const PROTOCOL: u16 = 12;
}

/// A proxy neighbour: the index of its interface, and the address.
pub type Proxy = (u32, IpAddr);

/// The proxy neighbours of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct ProxyNeighbours {
    socket: Socket,
    protocol: u8,
}

impl ProxyNeighbours {
    /// Opens the socket. Entries with this protocol number are ours (Linux 5.2 and newer keep it).
    ///
    /// # Errors
    /// [`SocketError::Open`].
    pub fn open(protocol: u8) -> Result<Self, SocketError> {
        let socket = Socket::open(Bus::Route)?;
        Ok(Self { socket, protocol })
    }

    /// Our entries.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn read(&mut self) -> Result<BTreeSet<Proxy>, SocketError> {
        let mut all = BTreeSet::new();
        for family in Family::ALL {
            let fill = |writer: &mut Writer| write_header(writer, family, 0);
            let protocol = self.protocol;
            let decode = |found: &mut BTreeSet<Proxy>, payload: &[u8]| {
                found.extend(read(payload, family, protocol)?);
                Ok(())
            };
            let mut found = self.socket.dump(GET_NEIGHBOUR, fill, decode)?;
            all.append(&mut found);
        }
        Ok(all)
    }

    /// Adds an entry, or makes it ours.
    ///
    /// # Errors
    /// [`SocketError`], with `ENODEV` without the interface.
    pub fn add(&mut self, proxy: Proxy) -> Result<(), SocketError> {
        self.change(NEW_NEIGHBOUR, CREATE, proxy)
    }

    /// Deletes an entry.
    ///
    /// # Errors
    /// [`SocketError`], with `ENOENT` if there is none.
    pub fn del(&mut self, proxy: Proxy) -> Result<(), SocketError> {
        self.change(DEL_NEIGHBOUR, 0, proxy)
    }

    fn change(&mut self, kind: u16, flags: u16, proxy: Proxy) -> Result<(), SocketError> {
        let protocol = self.protocol;
        let mut batch = self.socket.batch(4096);
        batch.push(kind, flags, |writer| write(writer, proxy, protocol))?;
        match batch.finish()?.first() {
            None => Ok(()),
            Some(refused) => Err(SocketError::Refused(refused.errno)),
        }
    }
}

fn family_number(family: Family) -> u8 {
    let number = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    u8::try_from(number).unwrap_or_default()
}

/// `struct ndmsg`.
fn write_header(writer: &mut Writer, family: Family, index: u32) {
    writer.raw(&[family_number(family), 0, 0, 0]);
    writer.raw(&index.to_ne_bytes());
    writer.raw(&[0, 0, PROXY, 0]);
}

fn write(writer: &mut Writer, (index, address): Proxy, protocol: u8) {
    write_header(writer, Family::of(address), index);
    match address {
        IpAddr::V4(address) => writer.attribute(attr::DESTINATION, &address.octets()),
        IpAddr::V6(address) => writer.attribute(attr::DESTINATION, &address.octets()),
    }
    writer.u8(attr::PROTOCOL, protocol);
}

/// The entry, if it is a proxy of ours.
fn read(payload: &[u8], family: Family, ours: u8) -> Result<Option<Proxy>, Malformed> {
    let header = array::<HEADER_LEN>(payload, 0)?;
    let index = u32::from_ne_bytes(array::<4>(&header, 4)?);
    if header[0] != family_number(family) || header[10] & PROXY == 0 {
        return Ok(None);
    }
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    let protocol = attributes.find(attr::PROTOCOL)?;
    let is_ours = protocol.map(|protocol| protocol.u8()).transpose()? == Some(ours);
    let Some(address) = attributes.find(attr::DESTINATION)?.filter(|_| is_ours) else {
        return Ok(None);
    };
    let address = match family {
        Family::V4 => address.exact::<4>().map(IpAddr::from)?,
        Family::V6 => address.exact::<16>().map(IpAddr::from)?,
    };
    Ok(Some((index, address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_written_as_the_kernel_reads_it_and_read_back() {
        let mut writer = Writer::default();
        let proxy: Proxy = (7, "2001:db8::10".parse().unwrap());
        write(&mut writer, proxy, 99);
        let expected = [
            &[10, 0, 0, 0][..],
            &7_u32.to_ne_bytes(),
            &[0, 0, 8, 0, 20, 0, 1, 0],
            &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10],
            &[5, 0, 12, 0, 99, 0, 0, 0],
        ];
        #[cfg(target_endian = "little")]
        assert_eq!(writer.as_bytes(), expected.concat());
        let of = |ours| read(writer.as_bytes(), Family::V6, ours);
        assert_eq!((of(99), of(98)), (Ok(Some(proxy)), Ok(None)));
    }
}
