// SPDX-License-Identifier: Apache-2.0

//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Kinds of sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Where something listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Listen {
    /// The kind of socket.
    pub transport: Transport,
    /// Address and port.
    pub at: SocketAddr,
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let transport = match self.transport {
            Transport::Tcp => "TCP",
            Transport::Udp => "UDP",
        };
        write!(f, "{transport} {}", self.at)
    }
}

/// Makes a socket that listens, in the network namespace of this thread.
///
/// # Errors
/// If the address is in use, is not one of this machine, or the port needs a right.
pub(crate) fn listen(listen: &Listen) -> io::Result<OwnedFd> {
    let kind = match listen.transport {
        Transport::Tcp => Type::STREAM,
        Transport::Udp => Type::DGRAM,
    };
    let socket = Socket::new(Domain::for_address(listen.at), kind, None)?;
    if listen.at.is_ipv6() {
        socket.set_only_v6(true)?;
        // A route of its own is enough for an IPv4 address, not for an IPv6 one.
        socket.set_freebind_v6(true)?;
    }
    if listen.transport == Transport::Tcp {
        // Connections of an earlier run may still wait for their end.
        socket.set_reuse_address(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&listen.at.into())?;
    if listen.transport == Transport::Tcp {
        socket.listen(BACKLOG)?;
    }
    Ok(socket.into())
}
