//! The name of a node in a certificate: the URI `portolan://CLUSTER/node/NODE`.
//!
//! `CLUSTER` is empty for a single cluster: `portolan:///node/worker-1`.

use std::fmt;
use std::str::FromStr;

/// The longest name of a Kubernetes object, in bytes.
const MAX_NAME: usize = 253;

const SCHEME: &str = "portolan://";

/// A node as a certificate names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeName {
    /// The node's cluster; empty for a single one.
    pub cluster: String,
    /// The node.
    pub node: String,
}

/// Not the name of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected portolan://CLUSTER/node/NODE")]
pub struct NameError(String);

impl NodeName {
    /// A name whose parts can stand in a URI as they are.
    ///
    /// # Errors
    /// If a part has other characters than letters, digits, `-`, `.` and `_`, if the node's is
    /// empty, or if one is longer than 253 bytes.
    pub fn new(cluster: &str, node: &str) -> Result<Self, NameError> {
        let name = Self {
            cluster: cluster.to_owned(),
            node: node.to_owned(),
        };
        if !node.is_empty() && is_plain(cluster) && is_plain(node) {
            Ok(name)
        } else {
            Err(NameError(name.to_string()))
        }
    }

    /// Whether a URI claims to name a node; others say nothing to us.
    #[must_use]
    pub fn claims(uri: &str) -> bool {
        let scheme = uri.get(..SCHEME.len());
        scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(SCHEME))
    }
}

/// Nothing is percent-decoded and nothing is normalised, so that two ways to write one name, or
/// one way to write two, cannot exist.
fn is_plain(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    part.len() <= MAX_NAME && part.bytes().all(plain)
}

impl FromStr for NodeName {
    type Err = NameError;

    fn from_str(uri: &str) -> Result<Self, NameError> {
        let bad = || NameError(uri.to_owned());
        let rest = uri.strip_prefix(SCHEME).ok_or_else(bad)?;
        let (cluster, node) = rest.split_once("/node/").ok_or_else(bad)?;
        Self::new(cluster, node).map_err(|_| bad())
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/node/{}", self.cluster, self.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_was_written() {
        for (cluster, node) in [("", "worker-1"), ("eu", "ip-10-0-0-1.eu.internal")] {
            let name = NodeName::new(cluster, node).unwrap();
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        let uri = "portolan:///node/worker-1";
        assert_eq!(uri.parse(), NodeName::new("", "worker-1"));
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_name() {
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
        ] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
        let long = "n".repeat(MAX_NAME + 1);
        assert!(NodeName::new("", &long).is_err());
        assert!(NodeName::new(&long, "a").is_err());
        assert!(NodeName::claims("PORTOLAN:///node/a") && !NodeName::claims("spiffe://a/node/b"));
    }
}
