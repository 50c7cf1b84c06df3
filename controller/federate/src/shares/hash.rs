// SPDX-License-Identifier: Apache-2.0

//! A stable order of endpoints.

use std::net::{IpAddr, SocketAddr};

/// Keeps these hashes apart from any other use of BLAKE3.
const KEY: &[u8; 32] = b"portolan federate endpoint order";

/// The place of an endpoint among those of a record in an importing cluster: 64 bits of keyed BLAKE3
/// over the lengths and bytes of the cluster's id and the record's key, then the address and port,
/// big-endian. Equal on all replicas and in all versions; different for each record and importing
/// cluster, so that not all of them burden the same endpoints.
#[must_use]
pub fn order_of(importing: &str, record: &[u8], address: SocketAddr) -> u64 {
    let mut hasher = blake3::Hasher::new_keyed(KEY);
    for text in [importing.as_bytes(), record] {
        hasher.update(&(text.len() as u64).to_be_bytes());
        hasher.update(text);
    }
    match address.ip() {
        IpAddr::V4(ip) => hasher.update(&ip.octets()),
        IpAddr::V6(ip) => hasher.update(&ip.octets()),
    };
    hasher.update(&address.port().to_be_bytes());
    let mut bytes = [0; 8];
    hasher.finalize_xof().fill(&mut bytes);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_the_same_in_all_versions() {
        let address = "10.1.0.1:80".parse().unwrap();
        assert_eq!(
            order_of("eu-1", b"shop/web", address),
            5_411_294_983_078_657_976
        );
        assert_ne!(
            order_of("eu-1", b"shop/web", address),
            order_of("eu-1s", b"hop/web", address)
        );
    }
}
