// SPDX-License-Identifier: Apache-2.0

//! State that all listeners and connections share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use portolan_runtime::Origin;
use tokio_util::sync::CancellationToken;

use crate::limits::Limits;
use crate::metrics::Metrics;

/// State that all listeners and connections share. Clones share it too.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) metrics: Metrics,
    /// Cancelled when connections should end.
    pub(crate) ending: CancellationToken,
}

/// A client, by the addresses of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Client {
    /// Its own address; a client of this machine is one, whatever address the kernel chose.
    pub(crate) identity: IpAddr,
    origin: Origin,
    address: IpAddr,
}

impl Client {
    /// The client of a connection from `peer` to `local`.
    pub(crate) fn of(peer: SocketAddr, local: SocketAddr) -> Self {
        let (address, local) = (peer.ip().to_canonical(), local.ip().to_canonical());
        let origin = Origin::of(address, local);
        let identity = match (origin, address) {
            (Origin::Own, IpAddr::V4(_)) => Ipv4Addr::LOCALHOST.into(),
            (Origin::Own, IpAddr::V6(_)) => Ipv6Addr::LOCALHOST.into(),
            (Origin::Remote, address) => address,
        };
        Self {
            identity,
            origin,
            address,
        }
    }

    /// The addresses that source ranges may name. A client of this machine has also that which this machine has
    /// elsewhere.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses = vec![self.address, self.identity];
        if self.origin == Origin::Own {
            addresses.extend(outward(self.address));
        }
        addresses
    }
}

/// The address that this machine would have for others, by its routes. Nothing is sent.
fn outward(like: IpAddr) -> Option<IpAddr> {
    // Networks for documentation: any address beyond the default route.
    let (any, far): (IpAddr, IpAddr) = match like {
        IpAddr::V4(_) => (
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv4Addr::new(192, 0, 2, 1).into(),
        ),
        IpAddr::V6(_) => (
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        ),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_this_machine_are_one_client() {
        let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
        let client = |peer, local| Client::of(socket(peer), socket(local)).identity.to_string();
        assert_eq!(client("10.96.0.1:4000", "10.96.0.1:80"), "127.0.0.1");
        assert_eq!(client("127.64.0.9:4000", "127.70.0.1:80"), "127.0.0.1");
        assert_eq!(client("[fd00::1]:4000", "[fd00::1]:80"), "::1");
        assert_eq!(client("192.0.2.7:4000", "10.96.0.1:80"), "192.0.2.7");
        // A socket of both families has IPv4 addresses so.
        let mapped = ["[::ffff:192.0.2.7]:4000", "[::ffff:10.0.0.9]:1080"];
        assert_eq!(client(mapped[0], mapped[1]), "192.0.2.7");
        assert_eq!(client("[::ffff:10.0.0.9]:4000", mapped[1]), "127.0.0.1");
    }
}
