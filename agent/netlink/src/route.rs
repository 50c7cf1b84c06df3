//! Local routes, many at a time (kernel: `net/ipv4/fib_frontend.c`, `net/ipv6/route.c`).
//!
//! `local ADDRESS dev lo table local proto N src SOURCE`: packets to the address are delivered here.
//! Of other routes nothing is known here.

use std::net::IpAddr;

use portolan_model::Family;

use crate::Errno;
use crate::socket::{Bus, Socket, SocketError};
use crate::wire::{Attributes, Malformed, Writer, array};

const NEW_ROUTE: u16 = 24;
const DEL_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
/// `NLM_F_CREATE | NLM_F_REPLACE`.
const CREATE_OR_REPLACE: u16 = 0x500;
/// `RT_TABLE_LOCAL`.
const TABLE_LOCAL: u8 = 255;
/// `RT_SCOPE_HOST`; IPv6 has no scopes.
const SCOPE_HOST: u8 = 254;
/// `RTN_LOCAL`.
const TYPE_LOCAL: u8 = 2;
/// The index of `lo`, the same in every network namespace.
const LOOPBACK: u32 = 1;
const SEND_SIZE: usize = 256 << 10;
/// The length of `struct rtmsg`.
const HEADER_LEN: usize = 12;

/// `RTA_*`.
mod attr {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const OUTPUT: u16 = 4;
    pub(super) const PREFERRED_SOURCE: u16 = 7;
}

/// A change of the local route of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Adds it, or gives it another source. `EINVAL` if the source is no address of the node.
    Put(IpAddr, Option<IpAddr>),
    /// Deletes it. `ESRCH` if there is none.
    Del(IpAddr),
}

/// A request that failed; all others are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestError {
    /// The request's index.
    pub index: usize,
    /// Why.
    pub errno: Errno,
}

/// The local routes of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct LocalRoutes {
    socket: Socket,
    /// The routing protocol number that says whose routes they are.
    protocol: u8,
}

impl LocalRoutes {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`SocketError::Open`].
    pub fn open(protocol: u8) -> Result<Self, SocketError> {
        let socket = Socket::open(Bus::Route)?;
        // So that the kernel shows what is asked for and no more; without it we look for ourselves.
        let _ = socket.check_strictly();
        Ok(Self { socket, protocol })
    }

    /// How many netlink requests were made so far.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.socket.requests()
    }

    /// Shows the local routes of a family that have the protocol number: address and source.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn read<T: Default>(
        &mut self,
        family: Family,
        each: impl Fn(&mut T, IpAddr, Option<IpAddr>),
    ) -> Result<T, SocketError> {
        let (number, length) = numbers(family);
        let header = [number, 0, 0, 0, TABLE_LOCAL, self.protocol, 0, TYPE_LOCAL];
        let fill = |writer: &mut Writer| {
            writer.raw(&header);
            writer.raw(&[0; 4]);
        };
        let is_ours = [number, length, TABLE_LOCAL, self.protocol, TYPE_LOCAL];
        let decode = |found: &mut T, payload: &[u8]| {
            if let Some((address, source)) = read(payload, is_ours)? {
                each(found, address, source);
            }
            Ok(())
        };
        match self.socket.dump(GET_ROUTE, fill, decode) {
            // There is no such table before `lo` was up for the first time.
            Err(SocketError::Refused(Errno::ENOENT)) => Ok(T::default()),
            found => found,
        }
    }

    /// Executes requests in their order and returns those that failed, in order.
    ///
    /// # Errors
    /// [`SocketError`]: it is unknown which requests were executed.
    pub fn apply(&mut self, requests: &[Request]) -> Result<Vec<RequestError>, SocketError> {
        let protocol = self.protocol;
        let mut batch = self.socket.batch(SEND_SIZE);
        for request in requests {
            let (kind, flags, address, source) = match *request {
                Request::Put(address, source) => (NEW_ROUTE, CREATE_OR_REPLACE, address, source),
                Request::Del(address) => (DEL_ROUTE, 0, address, None),
            };
            batch.push(kind, flags, |writer| {
                write(writer, protocol, address, source);
            })?;
        }
        let refused = batch.finish()?;
        let error = |refused: &crate::socket::Refused| RequestError {
            index: refused.index,
            errno: refused.errno,
        };
        Ok(refused.iter().map(error).collect())
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

/// The address and the source of a route of this family, length of prefix, table, protocol and type.
fn read(payload: &[u8], expected: [u8; 5]) -> Result<Option<(IpAddr, Option<IpAddr>)>, Malformed> {
    let [family, length, _, _, table, protocol, _, kind] = array::<8>(payload, 0)?;
    if [family, length, table, protocol, kind] != expected {
        return Ok(None);
    }
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    let (mut address, mut source) = (None, None);
    for attribute in attributes {
        let attribute = attribute?;
        let value = || -> Result<IpAddr, Malformed> {
            match length {
                32 => attribute.exact::<4>().map(IpAddr::from),
                _ => attribute.exact::<16>().map(IpAddr::from),
            }
        };
        match attribute.kind {
            attr::DESTINATION => address = Some(value()?),
            attr::PREFERRED_SOURCE => source = Some(value()?),
            _ => {}
        }
    }
    Ok(address.map(|address| (address, source)))
}

/// `struct rtmsg` and attributes.
fn write(writer: &mut Writer, protocol: u8, address: IpAddr, source: Option<IpAddr>) {
    let (family, length) = numbers(Family::of(address));
    let scope = if address.is_ipv4() { SCOPE_HOST } else { 0 };
    writer.raw(&[
        family,
        length,
        0,
        0,
        TABLE_LOCAL,
        protocol,
        scope,
        TYPE_LOCAL,
    ]);
    writer.raw(&[0; 4]);
    write_address(writer, attr::DESTINATION, address);
    writer.u32(attr::OUTPUT, LOOPBACK);
    if let Some(source) = source {
        write_address(writer, attr::PREFERRED_SOURCE, source);
    }
}

fn write_address(writer: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => writer.attribute(kind, &address.octets()),
        IpAddr::V6(address) => writer.attribute(kind, &address.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_is_written_as_the_kernel_reads_it() {
        let mut writer = Writer::default();
        let (vip, node) = ([10, 96, 0, 1].into(), [192, 0, 2, 1].into());
        write(&mut writer, 99, vip, Some(node));
        let expected = [
            &[2, 32, 0, 0, 255, 99, 254, 2, 0, 0, 0, 0][..],
            &[8, 0, 1, 0, 10, 96, 0, 1],
            &[8, 0, 4, 0, 1, 0, 0, 0],
            &[8, 0, 7, 0, 192, 0, 2, 1],
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(writer.as_bytes(), expected.concat());
        }
    }

    #[test]
    fn a_route_is_read_as_it_is_written_and_no_other_is() {
        for (address, source) in [("10.96.0.1", Some("192.0.2.1")), ("fd00:96::1", None)] {
            let address: IpAddr = address.parse().unwrap();
            let source: Option<IpAddr> = source.map(|source| source.parse().unwrap());
            let (family, length) = numbers(Family::of(address));
            let expected = [family, length, TABLE_LOCAL, 99, TYPE_LOCAL];
            let mut writer = Writer::default();
            write(&mut writer, 99, address, source);
            let bytes = writer.as_bytes();
            assert_eq!(read(bytes, expected), Ok(Some((address, source))));
            // Another family, length, table, protocol or type.
            for at in [0, 1, 4, 5, 7] {
                let mut other = bytes.to_vec();
                other[at] ^= 4;
                assert_eq!(read(&other, expected), Ok(None), "{at}");
            }
            for cut in 0..HEADER_LEN {
                assert_eq!(read(&bytes[..cut], expected), Err(Malformed::Truncated));
            }
        }
    }
}
