// SPDX-License-Identifier: Apache-2.0

//! Listening sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket};

/// Backlog of connections to be accepted, which `net.core.somaxconn` limits too. A connection beyond it
/// is retried by its client after a second.
const BACKLOG: u32 = 4096;

/// Listens on an address. On a machine without IPv6, `[::]` stands for all IPv4 addresses.
///
/// # Errors
/// If the port cannot be bound; the message names the address.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let bind = |address: SocketAddr| {
        let socket = match address.is_ipv6() {
            true => TcpSocket::new_v6()?,
            false => TcpSocket::new_v4()?,
        };
        open(socket, address)
    };
    match bind(address) {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() && no_ipv6(&error) => {
            let all = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port());
            bind(all).map_err(named)
        }
        bound => bound.map_err(named),
    }
}

/// Listens on an address of one family only: `[::]` excludes IPv4, for which another listener may use
/// the port. Must be called within a tokio runtime.
///
/// # Errors
/// If the port cannot be bound.
pub fn listen_one_family(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() {
        let socket = TcpSocket::new_v6()?;
        set_ipv6_v6only(&socket, true)?;
        socket
    } else {
        TcpSocket::new_v4()?
    };
    open(socket, address)
}

fn open(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// `EAFNOSUPPORT` without the module, `EADDRNOTAVAIL` where a setting disables IPv6.
fn no_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(97)
}
