//! Local routes, many at a time (kernel: `net/ipv4/fib_frontend.c`, `net/ipv6/route.c`).
//!
//! `local ADDRESS dev lo table local proto N src SOURCE`: packets to the address are delivered here.
//! Only for changes: whoever reads routes needs all the attributes that there are.

use std::net::IpAddr;

use crate::Errno;
use crate::socket::{Bus, Socket, SocketError};
use crate::wire::Writer;

const NEW_ROUTE: u16 = 24;
const DEL_ROUTE: u16 = 25;
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
        Ok(Self { socket, protocol })
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

/// `struct rtmsg` and attributes.
fn write(writer: &mut Writer, protocol: u8, address: IpAddr, source: Option<IpAddr>) {
    let (family, length, scope) = match address {
        IpAddr::V4(_) => (libc::AF_INET, 32, SCOPE_HOST),
        IpAddr::V6(_) => (libc::AF_INET6, 128, 0),
    };
    let family = u8::try_from(family).unwrap_or_default();
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
}
