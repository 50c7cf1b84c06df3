// SPDX-License-Identifier: Apache-2.0

//! The asking side of the echo protocol: one line out, one line back, over TCP, UDP or SCTP.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::net::ipproto;

use super::host::Protocol;
use super::sctp;

/// The answer of an echo server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The host that answered.
    pub name: String,
    /// The source address that it saw.
    pub source: IpAddr,
}

impl Answer {
    fn parse(line: &str) -> Option<Self> {
        let (name, source) = line.trim_end().split_once(' ')?;
        Some(Self {
            name: name.into(),
            source: source.parse().ok()?,
        })
    }
}

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// A reset, or an ICMP error that says the port is closed.
    Refused,
    /// Silence.
    TimedOut,
    /// No route to the target, or no neighbour with its address.
    Unreachable,
    /// Any other error: a closed connection, a malformed answer.
    Other(String),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("refused"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for RequestError {}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Self::Refused,
            // A blocking socket with a timeout reports it as "would block".
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            _ => Self::Other(error.to_string()),
        }
    }
}

/// An open connection to an echo server; for UDP, a socket with a fixed source port.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
}

#[derive(Debug)]
enum Transport {
    Stream(BufReader<TcpStream>),
    Udp(UdpSocket),
}

impl Connection {
    /// Opens a connection from the calling thread's namespace; see [`super::Namespace::run`].
    pub fn open(
        protocol: Protocol,
        target: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, RequestError> {
        Self::open_from(0, protocol, target, timeout)
    }

    /// Opens a connection from a port; 0 is any.
    pub fn open_from(
        port: u16,
        protocol: Protocol,
        target: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, RequestError> {
        let source = SocketAddr::new(unspecified(target), port);
        Self::open_at(source, protocol, target, timeout)
    }

    /// Opens a connection from an address and port; an unspecified address and port 0 are any. SCTP
    /// heeds the port alone.
    pub fn open_at(
        source: SocketAddr,
        protocol: Protocol,
        target: SocketAddr,
        timeout: Duration,
    ) -> Result<Self, RequestError> {
        let transport = match protocol {
            Protocol::Tcp => {
                let stream = connect(source, target, timeout)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                Transport::Stream(BufReader::new(stream))
            }
            Protocol::Sctp => {
                let stream = sctp::connect(source.port(), target, timeout)?;
                stream.set_read_timeout(Some(timeout))?;
                Transport::Stream(BufReader::new(stream))
            }
            Protocol::Udp => {
                let socket = UdpSocket::bind(source)?;
                socket.set_read_timeout(Some(timeout))?;
                socket.connect(target)?;
                Transport::Udp(socket)
            }
        };
        Ok(Self { transport })
    }

    /// Asks once more over the same connection.
    pub fn ask(&mut self) -> Result<Answer, RequestError> {
        let line = match &mut self.transport {
            Transport::Stream(stream) => ask_stream(stream)?,
            Transport::Udp(socket) => ask_datagram(socket)?,
        };
        Answer::parse(&line).ok_or_else(|| RequestError::Other(format!("not an answer: {line:?}")))
    }

    /// Changes how long each question may take.
    pub fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match &self.transport {
            Transport::Stream(stream) => stream.get_ref().set_read_timeout(Some(timeout)),
            Transport::Udp(socket) => socket.set_read_timeout(Some(timeout)),
        }
    }

    /// Ends the connection with a reset, which every machine on the way forgets sooner than an
    /// orderly end.
    pub fn reset(self) -> io::Result<()> {
        match self.transport {
            Transport::Stream(stream) => {
                let linger = Some(Duration::ZERO);
                rustix::net::sockopt::set_socket_linger(stream.get_ref(), linger)?;
            }
            Transport::Udp(_) => {}
        }
        Ok(())
    }

    /// The local address and port.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        match &self.transport {
            Transport::Stream(stream) => stream.get_ref().local_addr(),
            Transport::Udp(socket) => socket.local_addr(),
        }
    }
}

fn connect(source: SocketAddr, target: SocketAddr, timeout: Duration) -> io::Result<TcpStream> {
    if source.port() == 0 && source.ip().is_unspecified() {
        // Binding to any port would take one that no other connection has, whatever its target.
        return TcpStream::connect_timeout(&target, timeout);
    }
    let socket = sctp::stream_socket(target, ipproto::TCP)?;
    sctp::connect_from(socket, source, target, timeout)
}

fn ask_stream(stream: &mut BufReader<TcpStream>) -> Result<String, RequestError> {
    stream.get_mut().write_all(b"?\n")?;
    let mut line = String::new();
    match stream.read_line(&mut line)? {
        0 => Err(RequestError::Other("closed by the server".into())),
        _ => Ok(line),
    }
}

fn ask_datagram(socket: &UdpSocket) -> Result<String, RequestError> {
    match socket.send(b"?\n") {
        // The machine's own filter dropped it. If it was rejected, a message says so; else silence.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        sent => drop(sent?),
    }
    let mut buffer = [0; 512];
    let length = socket.recv(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// One request over a new connection, from the calling thread's namespace.
pub(super) fn request(
    protocol: Protocol,
    target: SocketAddr,
    timeout: Duration,
) -> Result<Answer, RequestError> {
    Connection::open(protocol, target, timeout)?.ask()
}

fn unspecified(target: SocketAddr) -> IpAddr {
    match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
