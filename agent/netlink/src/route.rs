// SPDX-License-Identifier: Apache-2.0

//! Local routes, many at a time (kernel: `net/ipv4/fib_frontend.c`, `net/ipv6/route.c`).
//!
//! `local ADDRESS dev lo table local proto N metric M src SOURCE`: packets to the address are delivered
//! here. The kernel distinguishes routes of one destination by their metric, and replaces none of
//! another metric: a metric of its own leaves foreign routes unchanged. While both are there, the
//! one with the lower metric counts.

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
/// `NLM_F_CREATE | NLM_F_REPLACE`.
const CREATE_OR_REPLACE: u16 = 0x500;
/// `RTPROT_KERNEL`: routes that the kernel adds for addresses.
const PROTOCOL_KERNEL: u8 = 2;
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
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const PREFERRED_SOURCE: u16 = 7;
}

/// A change of the local route of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Adds it. `EINVAL` if the source is no address of the node, `EEXIST` if there is one of this
    /// metric.
    Add(IpAddr, Option<IpAddr>),
    /// Gives it another source, or adds it.
    Set(IpAddr, Option<IpAddr>),
    /// Deletes it. `ESRCH` if there is none.
    Del(IpAddr),
}

/// A route of one address alone in the table of local routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A route with the protocol number of [`Mark`].
    Ours {
        /// The address of the route.
        address: IpAddr,
        /// The source of the node's own connections to it.
        source: Option<IpAddr>,
    },
    /// A foreign route of any kind. Routes that the kernel added for addresses of devices are left out.
    Foreign {
        /// The address of the route.
        address: IpAddr,
    },
}

/// A failed request; all others were executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestError {
    /// The request's index.
    pub index: usize,
    /// Reason.
    pub errno: Errno,
}

/// The local routes of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct LocalRoutes {
    socket: Socket,
    mark: Mark,
}

/// Attributes that identify our routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The routing protocol number.
    pub protocol: u8,
    /// The metric; not 0, which is the kernel's own for addresses.
    pub metric: u32,
}

impl LocalRoutes {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`SocketError::Open`].
    pub fn open(mark: Mark) -> Result<Self, SocketError> {
        let mut socket = Socket::open(Bus::Route)?;
        // The kernel then filters the dump; without it routes are filtered here.
        socket.check_strictly();
        Ok(Self { socket, mark })
    }

    /// Number of netlink requests so far.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.socket.requests()
    }

    /// Shows the routes of a family.
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn read<T: Default>(
        &mut self,
        family: Family,
        each: impl Fn(&mut T, Route),
    ) -> Result<T, SocketError> {
        let protocol = self.mark.protocol;
        self.dump(family, |found: &mut T, payload: &[u8]| {
            if let Some(route) = read(payload, family, protocol)? {
                each(found, route);
            }
            Ok(())
        })
    }

    fn dump<T: Default>(
        &mut self,
        family: Family,
        decode: impl Fn(&mut T, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, SocketError> {
        let (number, _) = numbers(family);
        let fill = |writer: &mut Writer| {
            writer.raw(&[number, 0, 0, 0, TABLE_LOCAL, 0, 0, 0]);
            writer.raw(&[0; 4]);
        };
        match self.socket.dump(GET_ROUTE, fill, decode) {
            // The table does not exist before `lo` was up for the first time.
            Err(SocketError::Refused(Errno::ENOENT)) => Ok(T::default()),
            found => found,
        }
    }

    /// Addresses with a route that the kernel added because a device has them. The kernel adds that of an IPv6
    /// address some time after it has acknowledged the address (`addrconf_dad_work` in `net/ipv6/addrconf.c`).
    ///
    /// # Errors
    /// [`SocketError`].
    pub fn of_addresses(&mut self, family: Family) -> Result<BTreeSet<IpAddr>, SocketError> {
        self.dump(family, |found: &mut BTreeSet<IpAddr>, payload| {
            let (protocol, kind) = origin(payload)?;
            if (protocol, kind) == (PROTOCOL_KERNEL, TYPE_LOCAL) {
                found.extend(addresses(payload, family)?.map(|(address, _)| address));
            }
            Ok(())
        })
    }

    /// Executes requests in their order and returns those that failed, in order.
    ///
    /// # Errors
    /// [`SocketError`]: it is unknown which requests were executed.
    pub fn apply(&mut self, requests: &[Request]) -> Result<Vec<RequestError>, SocketError> {
        let mark = self.mark;
        let mut batch = self.socket.batch(SEND_SIZE);
        for request in requests {
            let (kind, flags, address, source) = match *request {
                Request::Add(address, source) => (NEW_ROUTE, CREATE_ONLY, address, source),
                Request::Set(address, source) => (NEW_ROUTE, CREATE_OR_REPLACE, address, source),
                Request::Del(address) => (DEL_ROUTE, 0, address, None),
            };
            batch.push(kind, flags, |writer| {
                write(writer, mark, address, source);
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

/// The route, if it is of this family and one that is to be shown; `ours` is our protocol number.
fn read(payload: &[u8], family: Family, ours: u8) -> Result<Option<Route>, Malformed> {
    let (protocol, kind) = origin(payload)?;
    if protocol == PROTOCOL_KERNEL {
        return Ok(None);
    }
    let found = addresses(payload, family)?;
    Ok(found.map(
        |(address, source)| match (protocol, kind) == (ours, TYPE_LOCAL) {
            true => Route::Ours { address, source },
            false => Route::Foreign { address },
        },
    ))
}

/// The protocol number and the type of a route.
fn origin(payload: &[u8]) -> Result<(u8, u8), Malformed> {
    let [.., protocol, _, kind] = array::<8>(payload, 0)?;
    Ok((protocol, kind))
}

/// Address and source of a route, if it is one of a single address of this family in the table of local routes.
fn addresses(
    payload: &[u8],
    family: Family,
) -> Result<Option<(IpAddr, Option<IpAddr>)>, Malformed> {
    let [number, length, _, _, table, ..] = array::<8>(payload, 0)?;
    if (number, length) != numbers(family) || table != TABLE_LOCAL {
        return Ok(None);
    }
    let (mut address, mut source) = (None, None);
    for attribute in Attributes::new(payload, HEADER_LEN)? {
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
fn write(writer: &mut Writer, mark: Mark, address: IpAddr, source: Option<IpAddr>) {
    let (family, length) = numbers(Family::of(address));
    let scope = if address.is_ipv4() { SCOPE_HOST } else { 0 };
    writer.raw(&[
        family,
        length,
        0,
        0,
        TABLE_LOCAL,
        mark.protocol,
        scope,
        TYPE_LOCAL,
    ]);
    writer.raw(&[0; 4]);
    write_address(writer, attr::DESTINATION, address);
    writer.u32(attr::OUTPUT, LOOPBACK);
    writer.u32(attr::PRIORITY, mark.metric);
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
mod tests;
