// SPDX-License-Identifier: Apache-2.0

//! A stable order of endpoints.

use std::net::{IpAddr, SocketAddr};

use crate::stable::Beginning;

/// The place of an endpoint among those of a record in an importing cluster: 64 bits of keyed BLAKE3
/// over the cluster's id, the record's key, the address and the port. Equal on all replicas and in all
/// versions; different for each record and importing cluster, so that not all of them burden the same
/// endpoints.
#[must_use]
pub fn order_of(importing: &str, record: &[u8], address: SocketAddr) -> u64 {
    Order::new(importing, record).of(address)
}

/// The same for many endpoints.
#[derive(Debug)]
pub(super) struct Order(Beginning);

impl Order {
    pub(super) fn new(importing: &str, record: &[u8]) -> Self {
        Self(Beginning::new([b"endpoint", importing.as_bytes(), record]))
    }

    pub(super) fn of(&mut self, address: SocketAddr) -> u64 {
        let (v4, v6);
        let ip: &[u8] = match address.ip() {
            IpAddr::V4(ip) => {
                v4 = ip.octets();
                &v4
            }
            IpAddr::V6(ip) => {
                v6 = ip.octets();
                &v6
            }
        };
        self.0.hash_with([ip, &address.port().to_be_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_same_in_all_versions() {
        let address = "10.1.0.1:80".parse().unwrap();
        assert_eq!(
            order_of("eu-1", b"shop/web", address),
            8_761_871_758_019_876_517
        );
        assert_ne!(
            order_of("eu-1", b"shop/web", address),
            order_of("eu-1s", b"hop/web", address)
        );
    }
}
