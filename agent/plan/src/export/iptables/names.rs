// SPDX-License-Identifier: Apache-2.0

//! Names of chains of a kube-proxy in iptables mode.
//!
//! A name ends in the first 16 characters of the base32 of the SHA-256 of the Service port's name, its
//! protocol in lower case, and for an endpoint's chain its address (`pkg/proxy/iptables/proxier.go`,
//! `portProtoHash` and `servicePortEndpointChainName`).

use std::net::SocketAddr;

use data_encoding::BASE32;
use portolan_model::RecordKey;
use sha2::{Digest as _, Sha256};

use super::super::port::{port_name, protocol};

/// Length of the hash in a name: the kernel takes names of at most 28 bytes.
const HASH_LEN: usize = 16;

/// Names of one Service port's chains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// Name and protocol of the port: the start of the hashed text of endpoints' chains.
    port: String,
    hash: String,
}

impl Names {
    pub(super) fn new(key: &RecordKey) -> Self {
        let port = format!("{}{}", port_name(key), protocol(key.protocol));
        Self {
            hash: hash(&port),
            port,
        }
    }

    /// Chain of the cluster-wide list.
    pub(super) fn cluster(&self) -> String {
        format!("KUBE-SVC-{}", self.hash)
    }

    /// Chain of the node's own list.
    pub(super) fn local(&self) -> String {
        format!("KUBE-SVL-{}", self.hash)
    }

    /// Chain of connections to external IPs, balancer IPs and node ports.
    pub(super) fn external(&self) -> String {
        format!("KUBE-EXT-{}", self.hash)
    }

    /// Chain of permitted sources of balancer IPs.
    pub(super) fn firewall(&self) -> String {
        format!("KUBE-FW-{}", self.hash)
    }

    /// Chain of one endpoint.
    pub(super) fn endpoint(&self, address: SocketAddr) -> String {
        let hash = hash(&format!("{}{address}", self.port));
        format!("KUBE-SEP-{hash}")
    }
}

fn hash(text: &str) -> String {
    let mut hash = BASE32.encode(&Sha256::digest(text.as_bytes()));
    hash.truncate(HASH_LEN);
    hash
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;

    use super::*;

    fn names(service: &str, port: &str, protocol: Protocol) -> Names {
        let (namespace, service) = service.split_once('/').unwrap();
        Names::new(&RecordKey {
            cluster: "".into(),
            namespace: namespace.into(),
            service: service.into(),
            port: port.into(),
            protocol,
        })
    }

    #[test]
    fn chains_have_kube_proxys_names() {
        use Protocol::{Tcp, Udp};
        for (service, port, protocol, hash) in [
            ("kube-system/kube-dns", "dns", Udp, "TCOU7JCQXEZGVUNU"),
            ("kube-system/kube-dns", "dns-tcp", Tcp, "ERIFXISQEP7F7OF4"),
            ("default/kubernetes", "https", Tcp, "NPX46M4PTMTKRN6Y"),
            ("ns1/svc1", "p80", Tcp, "XPGD46QRK7WJZT7O"),
            ("ns2/svc2", "p80", Tcp, "GNZBNJ2PO5MGZ6GT"),
            ("ns4/svc4", "p80", Tcp, "4SW47YFZTEDKD3PK"),
            ("ns5/svc5", "p80", Tcp, "NUKIZ6OKUXPJNT4C"),
            ("default/mysql-service", "", Tcp, "G4UYIH746YNNDBV2"),
        ] {
            let names = names(service, port, protocol);
            assert_eq!(names.cluster(), format!("KUBE-SVC-{hash}"));
            assert_eq!(names.local(), format!("KUBE-SVL-{hash}"));
            assert_eq!(names.external(), format!("KUBE-EXT-{hash}"));
            assert_eq!(names.firewall(), format!("KUBE-FW-{hash}"));
        }
        // Before Kubernetes 1.19 the colon was there without a name, too.
        assert_eq!(hash("default/mysql-service:tcp"), "67RL4FN6JRUPOJYM");
    }

    #[test]
    fn chains_of_endpoints_have_kube_proxys_names() {
        use Protocol::{Tcp, Udp};
        for (service, port, protocol, address, hash) in [
            (
                "kube-system/kube-dns",
                "dns",
                Udp,
                "10.244.0.48:53",
                "MK55K7XS7VKFSUGB",
            ),
            ("ns1/svc1", "p80", Tcp, "10.180.0.1:80", "SXIVWICOYRO3J4NJ"),
            ("ns2/svc2", "p80", Tcp, "10.180.0.2:80", "RS4RBKLTHTF2IUXJ"),
            ("ns4/svc4", "p80", Tcp, "10.180.0.4:80", "UKSFD7AGPMPPLUHC"),
            ("ns4/svc4", "p80", Tcp, "10.180.0.5:80", "C6EBXVWJJZMIWKLZ"),
            ("ns5/svc5", "p80", Tcp, "10.180.0.3:80", "I77PXRDZVX7PMWMN"),
        ] {
            let chain = names(service, port, protocol).endpoint(address.parse().unwrap());
            assert_eq!(chain, format!("KUBE-SEP-{hash}"), "{service} {address}");
        }
    }
}
