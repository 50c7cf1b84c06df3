// SPDX-License-Identifier: Apache-2.0

//! Requests of clients of the proxy port: SOCKS5 (RFC 1928) and HTTP CONNECT. Pure, but for reading.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Version of the protocol, first of each SOCKS message.
pub(super) const SOCKS: u8 = 5;

/// The method of authentication without any.
pub(super) const NO_AUTHENTICATION: u8 = 0;

/// The largest head of a CONNECT request.
const LARGEST_HEAD: usize = 8 * 1024;

/// Where a client wants to go.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// To an address.
    Ip(IpAddr, u16),
    /// To a name.
    Name(String, u16),
}

/// Command of a client of SOCKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    /// A connection.
    Connect,
    /// Datagrams.
    Associate,
    /// Something that is not offered.
    Other,
}

/// Answers of SOCKS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Denied,
    HostUnreachable,
    Refused,
    NoSuchCommand,
}

impl Reply {
    /// Its bytes, with the address of the proxy.
    pub(super) fn bytes(self, bound: SocketAddr) -> Vec<u8> {
        let code = match self {
            Self::Done => 0,
            Self::Denied => 2,
            Self::HostUnreachable => 4,
            Self::Refused => 5,
            Self::NoSuchCommand => 7,
        };
        [&[SOCKS, code, 0][..], &address_bytes(bound)].concat()
    }
}

/// An address as SOCKS has it: type, address, port.
fn address_bytes(address: SocketAddr) -> Vec<u8> {
    let port = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => [&[1][..], &ip.octets(), &port].concat(),
        IpAddr::V6(ip) => [&[4][..], &ip.octets(), &port].concat(),
    }
}

/// Reads the methods that a client offers, after the version.
pub(super) async fn methods(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let count = stream.read_u8().await?;
    let mut methods = vec![0; count.into()];
    stream.read_exact(&mut methods).await?;
    Ok(methods)
}

/// Reads a request of SOCKS.
pub(super) async fn request(
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<(Command, Target)> {
    let mut head = [0; 3];
    stream.read_exact(&mut head).await?;
    if head[0] != SOCKS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let command = match head[1] {
        1 => Command::Connect,
        3 => Command::Associate,
        _ => Command::Other,
    };
    Ok((command, target(stream).await?))
}

/// Reads type, address and port.
async fn target(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Target> {
    let kind = stream.read_u8().await?;
    let ip: IpAddr = match kind {
        1 => {
            let mut octets = [0; 4];
            stream.read_exact(&mut octets).await?;
            Ipv4Addr::from(octets).into()
        }
        4 => {
            let mut octets = [0; 16];
            stream.read_exact(&mut octets).await?;
            Ipv6Addr::from(octets).into()
        }
        3 => {
            let length = stream.read_u8().await?;
            let mut name = vec![0; length.into()];
            stream.read_exact(&mut name).await?;
            let port = stream.read_u16().await?;
            let name = String::from_utf8(name).map_err(io::Error::other)?;
            return Ok(named(&name, port));
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    Ok(Target::Ip(ip.to_canonical(), stream.read_u16().await?))
}

/// A name, which may be an address that is written as one.
fn named(name: &str, port: u16) -> Target {
    let plain = name.trim_start_matches('[').trim_end_matches(']');
    match plain.parse::<IpAddr>() {
        Ok(ip) => Target::Ip(ip.to_canonical(), port),
        Err(_) => Target::Name(name.trim_end_matches('.').to_ascii_lowercase(), port),
    }
}

/// The target of a datagram from a client, and the length of the head before its content. Fragments are not offered.
pub(super) async fn datagram(bytes: &[u8]) -> Option<(Target, usize)> {
    let [0, 0, 0, rest @ ..] = bytes else {
        return None;
    };
    let mut reader = rest;
    let target = target(&mut reader).await.ok()?;
    Some((target, bytes.len() - reader.len()))
}

/// Reads the head of a CONNECT request, and its target; `None` if it is another request. The first byte was read.
pub(super) async fn connect(
    first: u8,
    stream: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<Target>> {
    let mut head = vec![first];
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= LARGEST_HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // What follows the head belongs to the connection.
        head.push(stream.read_u8().await?);
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(std::str::from_utf8(line).ok().and_then(authority))
}

/// The target of a request line such as `CONNECT web.default:80 HTTP/1.1`.
fn authority(line: &str) -> Option<Target> {
    let mut words = line.split(' ');
    if words.next()? != "CONNECT" {
        return None;
    }
    let (host, port) = words.next()?.rsplit_once(':')?;
    Some(named(host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str, port: u16) -> Target {
        Target::Name(name.to_owned(), port)
    }

    #[tokio::test]
    async fn requests_are_read_and_nothing_behind_them() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        for (bytes, expected) in [
            (
                &b"\x05\x01\x00\x01\x0a\x60\x00\x0a\x00\x50rest"[..],
                (Command::Connect, Target::Ip(ip("10.96.0.10"), 80)),
            ),
            (
                b"\x05\x01\x00\x03\x0bWeb.Default\x1f\x90rest",
                (Command::Connect, name("web.default", 8080)),
            ),
            (
                b"\x05\x03\x00\x04\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x35rest",
                (Command::Associate, Target::Ip(ip("fd00::1"), 53)),
            ),
        ] {
            let mut reader = bytes;
            assert_eq!(request(&mut reader).await.unwrap(), expected);
            assert_eq!(reader, b"rest");
        }
        let mut wrong = &b"\x04\x01\x00\x01\x0a\x60\x00\x0a\x00\x50"[..];
        assert!(request(&mut wrong).await.is_err());
    }

    #[tokio::test]
    async fn connect_requests_have_a_host_and_a_port() {
        for (text, expected) in [
            (
                "CONNECT web:80 HTTP/1.1\r\nHost: web\r\n\r\nrest",
                Some(name("web", 80)),
            ),
            (
                "CONNECT [fd00::1]:80 HTTP/1.1\r\n\r\nrest",
                Some(named("fd00::1", 80)),
            ),
            ("CONNECT web HTTP/1.1\r\n\r\nrest", None),
            ("GET / HTTP/1.1\r\n\r\nrest", None),
        ] {
            let mut reader = &text.as_bytes()[1..];
            let found = connect(text.as_bytes()[0], &mut reader).await.unwrap();
            assert_eq!(found, expected, "{text}");
            assert_eq!(reader, b"rest");
        }
        let endless = vec![b'a'; 10_000];
        assert!(connect(b'a', &mut &endless[..]).await.is_err());
    }

    #[tokio::test]
    async fn datagrams_begin_with_their_target() {
        let bytes = b"\0\0\0\x01\x0a\x60\x00\x0a\x00\x35content";
        let (found, head) = datagram(bytes).await.unwrap();
        assert_eq!(found, Target::Ip("10.96.0.10".parse().unwrap(), 53));
        assert_eq!(&bytes[head..], b"content");
        assert_eq!(
            datagram(b"\0\0\x01\x01\x0a\x60\x00\x0a\x00\x35").await,
            None
        );
        assert_eq!(datagram(b"\0\0\0\x01\x0a").await, None);
    }
}
