// SPDX-License-Identifier: Apache-2.0

//! SCTP sockets in one-to-one style: a stream that reads and writes as TCP does, so that the types
//! of the standard library can carry it. Each is bound to one address: one that is bound to none
//! tells the other side all addresses of the machine, and no address translation rewrites those.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_reuseaddr, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, ipproto, socket_with};

/// The interval at which a waiting listener checks whether it was stopped: nothing else wakes it.
const LOOK: Duration = Duration::from_millis(200);

/// True if this kernel speaks SCTP.
#[must_use]
pub fn has_sctp() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).is_ok())
}

fn socket(address: SocketAddr) -> io::Result<OwnedFd> {
    stream_socket(address, ipproto::SCTP)
}

/// A socket for streams to or from an address.
pub(super) fn stream_socket(address: SocketAddr, protocol: Protocol) -> io::Result<OwnedFd> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        family,
        SocketType::STREAM,
        flags,
        Some(protocol),
    )?)
}

/// Connects from the address that the routes choose; 0 is any port.
pub(super) fn connect(
    from_port: u16,
    target: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let socket = socket(target)?;
    let mut source = chosen_source(target)?;
    source.set_port(from_port);
    connect_from(socket, source, target, timeout)
}

/// Binds and connects a socket; the kernel chooses unspecified parts of the source.
pub(super) fn connect_from(
    socket: OwnedFd,
    source: SocketAddr,
    target: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &source)?;
    // The kernel lets a connect wait for as long as a send.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    match rustix::net::connect(&socket, &target) {
        Err(Errno::INPROGRESS) => Err(io::ErrorKind::TimedOut.into()),
        result => Ok(result.map(|()| TcpStream::from(socket))?),
    }
}

/// Listens on one address; its accept fails now and then, for the caller to look up from it.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    rustix::net::bind(&socket, &address)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(LOOK))?;
    rustix::net::listen(&socket, 64)?;
    Ok(TcpListener::from(socket))
}

/// The address that datagrams to the target would carry; no packet is sent for it.
fn chosen_source(target: SocketAddr) -> io::Result<SocketAddr> {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let probe = UdpSocket::bind(any)?;
    probe.connect(target)?;
    Ok(SocketAddr::new(probe.local_addr()?.ip(), 0))
}
