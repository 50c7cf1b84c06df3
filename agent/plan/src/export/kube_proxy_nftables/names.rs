// SPDX-License-Identifier: Apache-2.0

//! Names of chains and sets of a kube-proxy in nftables mode.
//!
//! A name is a prefix, the first 8 characters of the base32 of the SHA-256 of what follows, and
//! `namespace/service/protocol/port`, for an endpoint also `__address/port` (`pkg/proxy/nftables/proxier.go`,
//! `servicePortChainNameBase` and `servicePortEndpointChainNameBase`).

use std::net::SocketAddr;

use data_encoding::BASE32;
use portolan_model::RecordKey;
use sha2::{Digest as _, Sha256};

use super::super::port::protocol;

/// Length of the hash in a name.
const HASH_LEN: usize = 8;
/// Longest name without its prefix: nftables takes 256 bytes, of which kube-proxy keeps 16 for prefixes.
const NAME_LEN: usize = 240;

/// Names of one Service port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    base: String,
}

impl Names {
    pub(super) fn new(key: &RecordKey) -> Self {
        Self {
            base: format!(
                "{}/{}/{}/{}",
                key.namespace,
                key.service,
                protocol(key.protocol),
                key.port
            ),
        }
    }

    /// Chain of the cluster-wide list.
    pub(super) fn cluster(&self) -> String {
        format!("service-{}", hashed(&self.base))
    }

    /// Chain of the node's own list.
    pub(super) fn local(&self) -> String {
        format!("local-{}", hashed(&self.base))
    }

    /// Chain of connections to external IPs, balancer IPs and node ports.
    pub(super) fn external(&self) -> String {
        format!("external-{}", hashed(&self.base))
    }

    /// Chain of sources of balancer IPs.
    pub(super) fn firewall(&self) -> String {
        format!("firewall-{}", hashed(&self.base))
    }

    /// Chain of an endpoint of a Service with affinity.
    pub(super) fn endpoint(&self, address: SocketAddr) -> String {
        format!("endpoint-{}", self.of_endpoint(address))
    }

    /// Set of an endpoint's clients.
    pub(super) fn affinity(&self, address: SocketAddr) -> String {
        format!("affinity-{}", self.of_endpoint(address))
    }

    fn of_endpoint(&self, address: SocketAddr) -> String {
        // A name may not have colons.
        let ip = address.ip().to_string().replace(':', ".");
        hashed(&format!("{}__{ip}/{}", self.base, address.port()))
    }
}

fn hashed(name: &str) -> String {
    let hash = BASE32.encode(&Sha256::digest(name.as_bytes()));
    let hash = hash.get(..HASH_LEN).unwrap_or_default();
    // Imports and gateway exports have an `@` in theirs. The hash still tells them apart.
    let name = name.replace(|c: char| !is_plain(c), ".");
    let mut hashed = format!("{hash}-{name}");
    if hashed.len() > NAME_LEN {
        hashed.truncate(NAME_LEN - 3);
        hashed.push_str("...");
    }
    hashed
}

/// Returns `true` if `nft` takes a character in a name without quotes (nftables: `src/scanner.l`, `string`).
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.')
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;

    use super::*;

    fn names(number: u8) -> Names {
        Names::new(&RecordKey {
            cluster: "".into(),
            namespace: format!("ns{number}").into(),
            service: format!("svc{number}").into(),
            port: "p80".into(),
            protocol: Protocol::Tcp,
        })
    }

    #[test]
    fn chains_have_kube_proxys_names() {
        assert_eq!(names(1).cluster(), "service-ULMVA6XW-ns1/svc1/tcp/p80");
        assert_eq!(names(4).external(), "external-LAUZTJTB-ns4/svc4/tcp/p80");
        assert_eq!(
            names(5).endpoint("10.180.0.3:80".parse().unwrap()),
            "endpoint-GTK6MW7G-ns5/svc5/tcp/p80__10.180.0.3/80"
        );
    }

    #[test]
    fn addresses_of_ipv6_have_dots() {
        let set = names(5).affinity("[fd00::3]:80".parse().unwrap());
        assert!(set.ends_with("-ns5/svc5/tcp/p80__fd00..3/80"), "{set}");
    }

    #[test]
    fn names_of_imports_have_no_character_that_nft_refuses() {
        let names = |service: &str| {
            Names::new(&RecordKey {
                cluster: "".into(),
                namespace: "shop".into(),
                service: service.into(),
                port: "http".into(),
                protocol: Protocol::Tcp,
            })
        };
        let import = names("web@clusterset");
        let address = "[fd00::3]:80".parse().unwrap();
        for name in [
            import.cluster(),
            import.local(),
            import.external(),
            import.firewall(),
            import.endpoint(address),
            import.affinity(address),
        ] {
            assert!(name.chars().all(is_plain), "{name}");
            assert!(name.contains("-shop/web.clusterset/tcp/http"), "{name}");
        }
        // A Service with the same text has another hash.
        assert_ne!(import.cluster(), names("web.clusterset").cluster());
    }

    #[test]
    fn long_names_are_cut() {
        let long = hashed(&"n".repeat(300));
        assert_eq!(long.len(), NAME_LEN);
        assert!(long.ends_with("n..."), "{long}");
        assert_eq!(hashed(&"ä".repeat(300)).len(), NAME_LEN);
    }
}
