// SPDX-License-Identifier: Apache-2.0

//! Names in certificates: the URI `portolan://CLUSTER/node/NODE` of a node's agent,
//! `portolan://CLUSTER/relay/NAME` of a relay, and `portolan://CLUSTER/edge/NAME` of an edge controller.
//!
//! `CLUSTER` is empty for a single cluster: `portolan:///node/worker-1`.

use std::fmt;
use std::str::FromStr;

/// Length limit of names of Kubernetes objects, in bytes.
const MAX_NAME: usize = 253;

const SCHEME: &str = "portolan://";

/// Name of a node in a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// Cluster of the node; empty for a single one.
    pub cluster: String,
    /// The node.
    pub node: String,
}

/// Name of a relay in a certificate. A relay receives the tables of all nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayName {
    /// Cluster of the tables; empty for a single one.
    pub cluster: String,
    /// The relay.
    pub relay: String,
}

/// Name of an edge controller in a certificate. It sends the objects of its cluster to the centre.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeName {
    /// Cluster of the edge.
    pub cluster: String,
    /// The edge.
    pub edge: String,
}

/// Name of a client of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerName {
    /// A node's agent.
    Node(NodeName),
    /// A relay.
    Relay(RelayName),
    /// An edge controller.
    Edge(EdgeName),
}

/// A URI that is not such a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{uri:?}: expected {expected}")]
pub struct NameError {
    uri: String,
    expected: &'static str,
}

const NODE: &str = "portolan://CLUSTER/node/NODE";
const RELAY: &str = "portolan://CLUSTER/relay/NAME";
const EDGE: &str = "portolan://CLUSTER/edge/NAME";
const PEER: &str =
    "portolan://CLUSTER/node/NODE, portolan://CLUSTER/relay/NAME or portolan://CLUSTER/edge/NAME";

impl NodeName {
    /// Creates a name.
    ///
    /// # Errors
    /// If a part has other characters than letters, digits, `-`, `.` and `_`, if the node's part is
    /// empty, or if a part is longer than 253 bytes.
    pub fn new(cluster: &str, node: &str) -> Result<Self, NameError> {
        let name = Self {
            cluster: cluster.to_owned(),
            node: node.to_owned(),
        };
        match are_plain(cluster, node) {
            true => Ok(name),
            false => Err(NameError::new(name, NODE)),
        }
    }
}

impl RelayName {
    /// Creates a name.
    ///
    /// # Errors
    /// As for [`NodeName::new`].
    pub fn new(cluster: &str, relay: &str) -> Result<Self, NameError> {
        let name = Self {
            cluster: cluster.to_owned(),
            relay: relay.to_owned(),
        };
        match are_plain(cluster, relay) {
            true => Ok(name),
            false => Err(NameError::new(name, RELAY)),
        }
    }
}

impl EdgeName {
    /// Creates a name.
    ///
    /// # Errors
    /// As for [`NodeName::new`], or if the cluster is empty: the centre has several.
    pub fn new(cluster: &str, edge: &str) -> Result<Self, NameError> {
        let name = Self {
            cluster: cluster.to_owned(),
            edge: edge.to_owned(),
        };
        match !cluster.is_empty() && are_plain(cluster, edge) {
            true => Ok(name),
            false => Err(NameError::new(name, EDGE)),
        }
    }
}

impl PeerName {
    /// Returns `true` if a URI has the scheme of these names. Other URIs are ignored.
    #[must_use]
    pub fn claims(uri: &str) -> bool {
        let scheme = uri.get(..SCHEME.len());
        scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
    }

    /// Cluster of the tables that the client receives, or of the objects that it sends.
    #[must_use]
    pub fn cluster(&self) -> &str {
        match self {
            Self::Node(name) => &name.cluster,
            Self::Relay(name) => &name.cluster,
            Self::Edge(name) => &name.cluster,
        }
    }
}

impl NameError {
    fn new(uri: impl fmt::Display, expected: &'static str) -> Self {
        let uri = uri.to_string();
        Self { uri, expected }
    }
}

fn are_plain(cluster: &str, name: &str) -> bool {
    !name.is_empty() && is_plain(cluster) && is_plain(name)
}

/// Cluster and name of a URI, which a role separates.
fn parts<'a>(uri: &'a str, role: &str) -> Option<(&'a str, &'a str)> {
    uri.strip_prefix(SCHEME)?.split_once(role)
}

/// Names are neither percent-decoded nor normalised, so that each name has exactly one spelling.
fn is_plain(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    part.len() <= MAX_NAME && part.bytes().all(plain)
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Self, NameError> {
        let name = parts(uri, "/node/").and_then(|(cluster, node)| Self::new(cluster, node).ok());
        name.ok_or_else(|| NameError::new(uri, NODE))
    }
}

impl FromStr for RelayName {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Self, NameError> {
        let name = parts(uri, "/relay/").and_then(|(cluster, name)| Self::new(cluster, name).ok());
        name.ok_or_else(|| NameError::new(uri, RELAY))
    }
}

impl FromStr for EdgeName {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Self, NameError> {
        let name = parts(uri, "/edge/").and_then(|(cluster, name)| Self::new(cluster, name).ok());
        name.ok_or_else(|| NameError::new(uri, EDGE))
    }
}

impl FromStr for PeerName {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Self, NameError> {
        let node = uri.parse().map(Self::Node);
        let name = node.or_else(|_| uri.parse().map(Self::Relay));
        let name = name.or_else(|_| uri.parse().map(Self::Edge));
        name.map_err(|_| NameError::new(uri, PEER))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/node/{}", self.cluster, self.node)
    }
}

impl fmt::Display for RelayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/relay/{}", self.cluster, self.relay)
    }
}

impl fmt::Display for EdgeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/edge/{}", self.cluster, self.edge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for (cluster, node) in [("", "worker-1"), ("eu", "ip-10-0-0-1.eu.internal")] {
            let name = NodeName::new(cluster, node).unwrap();
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let uri = "portolan:///node/worker-1";
        assert_eq!(uri.parse(), NodeName::new("", "worker-1"));
        let relay = RelayName::new("eu", "relay-1").unwrap();
        assert_eq!(relay.to_string(), "portolan://eu/relay/relay-1");
        assert_eq!(relay.to_string().parse(), Ok(relay));
    }

    #[test]
    fn nodes_relays_and_edges_are_distinct() {
        let node = NodeName::new("eu", "a").unwrap();
        let relay = RelayName::new("eu", "a").unwrap();
        assert!(node.to_string().parse::<RelayName>().is_err());
        assert!(relay.to_string().parse::<NodeName>().is_err());
        assert_eq!(node.to_string().parse(), Ok(PeerName::Node(node)));
        assert_eq!(relay.to_string().parse(), Ok(PeerName::Relay(relay)));
        let edge = EdgeName::new("eu", "a").unwrap();
        assert_eq!(edge.to_string(), "portolan://eu/edge/a");
        assert!(edge.to_string().parse::<NodeName>().is_err());
        assert!(edge.to_string().parse::<RelayName>().is_err());
        assert_eq!(edge.to_string().parse(), Ok(PeerName::Edge(edge)));
        // The centre has several clusters: one without a name is none of them.
        assert!("portolan:///edge/a".parse::<PeerName>().is_err());
    }

    #[test]
    fn ambiguous_uris_are_refused() {
        for bad in [
            "",
            "worker-1",
            "spiffe://eu/node/a",
            "PORTOLAN:///node/a",
            "portolan://eu",
            "portolan://eu/node/",
            "portolan://eu/pod/a",
            "portolan://eu/node/a/node/b",
            "portolan://eu/x/node/a",
            "portolan://eu:1/node/a",
            "portolan://u@eu/node/a",
            "portolan:///node/a%2e",
            "portolan:///node/a?b",
            "portolan:///node/a#b",
            "portolan:///node/a b",
            "portolan:///node/a\0",
            "portolan:///node/a/relay/b",
        ] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
            for role in ["/relay/", "/edge/"] {
                let other = bad.replace("/node/", role);
                assert!(other.parse::<PeerName>().is_err(), "{other:?}");
            }
        }
        let long = "n".repeat(MAX_NAME + 1);
        assert!(NodeName::new("", &long).is_err());
        assert!(NodeName::new(&long, "a").is_err());
        assert!(PeerName::claims("PORTOLAN:///node/a") && !PeerName::claims("spiffe://a/node/b"));
    }
}
