// SPDX-License-Identifier: Apache-2.0

//! A stable order of endpoints.

use std::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

use crate::stable;

/// The place of an endpoint among those of a record in an importing cluster: SipHash-1-3 over the address and the port,
/// big-endian. Its key is 64 bits of keyed BLAKE3 over the cluster's id and the record's key. Equal on all replicas and in
/// all versions; different for each record and importing cluster, so that not all of them burden the same endpoints.
#[must_use]
pub fn order_of(importing: &str, record: &[u8], address: SocketAddr) -> u64 {
    Order::new(importing, record).of(address)
}

/// The same for many endpoints. Each import of each cluster has an order of its own, so BLAKE3, which takes several times as
/// long for an address, was half of the cost of an import of many endpoints.
#[derive(Debug)]
pub(super) struct Order(SipHasher13);

impl Order {
    pub(super) fn new(importing: &str, record: &[u8]) -> Self {
        let key = stable::hash([b"endpoint", importing.as_bytes(), record]);
        Self(SipHasher13::new_with_keys(key, 0))
    }

    pub(super) fn of(&self, address: SocketAddr) -> u64 {
        let port = address.port().to_be_bytes();
        let mut bytes = [0; 18];
        match address.ip() {
            IpAddr::V4(ip) => {
                bytes[..4].copy_from_slice(&ip.octets());
                bytes[4..6].copy_from_slice(&port);
                self.0.hash(&bytes[..6])
            }
            IpAddr::V6(ip) => {
                bytes[..16].copy_from_slice(&ip.octets());
                bytes[16..].copy_from_slice(&port);
                self.0.hash(&bytes)
            }
        }
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
            18_203_744_062_360_831_126
        );
        let v6 = order_of("eu-1", b"shop/web", "[fd00::1]:80".parse().unwrap());
        assert_eq!(v6, 17_833_454_459_024_751_148);
        assert_ne!(
            order_of("eu-1", b"shop/web", address),
            order_of("eu-1s", b"hop/web", address)
        );
    }
}
