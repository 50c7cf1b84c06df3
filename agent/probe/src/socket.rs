// SPDX-License-Identifier: Apache-2.0

//! Sockets with the source that a check asks for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use portolan_model::check::Source;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::net::{TcpStream, UdpSocket};

use crate::Target;
use crate::fault::{Checked, Stop};

/// A connection for a conversation. With `aborts`, closing it sends RST, so no TIME_WAIT stays on either side.
pub(crate) async fn connect(target: &Target, aborts: bool) -> Checked<TcpStream> {
    let socket = open(target, aborts)?;
    begin(&socket, target)?;
    let stream = connected(socket).await?;
    // Small writes must not wait for each other's acknowledgement. Without it they only take longer.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

/// Waits until a socket that connects has a connection.
pub(crate) async fn connected(socket: Socket) -> io::Result<TcpStream> {
    let stream = TcpStream::from_std(socket.into())?;
    stream.writable().await?;
    match stream.take_error()? {
        None => Ok(stream),
        Some(error) => Err(error),
    }
}

/// A socket for a connection. With `aborts`, closing it sends RST.
pub(crate) fn open(target: &Target, aborts: bool) -> Checked<Socket> {
    let domain = Domain::for_address(target.address);
    let socket = Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP));
    let socket = socket.map_err(|error| Stop::local("socket", &error))?;
    if aborts {
        let set = socket.set_linger(Some(Duration::ZERO));
        set.map_err(|error| Stop::local("SO_LINGER", &error))?;
    }
    set_source(&SockRef::from(&socket), &target.source)?;
    Ok(socket)
}

/// Begins a connection. The socket is writable once there is one, or an error.
pub(crate) fn begin(socket: &Socket, target: &Target) -> Checked<()> {
    match socket.connect(&target.address.into()) {
        Err(error) if Errno::from_io_error(&error) != Some(Errno::INPROGRESS) => {
            Err(Stop::of_call(error))
        }
        _ => Ok(()),
    }
}

/// A connected socket for datagrams, at a port of the kernel's choice.
pub(crate) fn datagrams(target: &Target) -> Checked<UdpSocket> {
    let local = |error| Stop::local("socket", &error);
    let domain = Domain::for_address(target.address);
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP));
    let socket = socket.map_err(local)?;
    set_source(&SockRef::from(&socket), &target.source)?;
    let connected = socket.connect(&target.address.into());
    connected.map_err(Stop::of_call)?;
    UdpSocket::from_std(socket.into()).map_err(local)
}

/// Sets the interface, the mark and the source address.
pub(crate) fn set_source(socket: &SockRef<'_>, source: &Source) -> Checked<()> {
    if let Some(interface) = &source.interface {
        let bound = socket.bind_device(Some(interface.as_bytes()));
        bound.map_err(|error| Stop::local(&format!("interface {interface}"), &error))?;
    }
    if let Some(mark) = source.mark {
        let set = socket.set_mark(mark);
        set.map_err(|error| Stop::local(&format!("mark {mark:#x}"), &error))?;
    }
    if let Some(address) = source.address {
        let bound = bind(socket, address);
        bound.map_err(|error| Stop::local(&format!("source {address}"), &error))?;
    }
    Ok(())
}

fn bind(socket: &SockRef<'_>, address: IpAddr) -> io::Result<()> {
    socket.bind(&SockAddr::from(SocketAddr::new(address, 0)))
}

/// The address of all of a family.
pub(crate) fn any(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
