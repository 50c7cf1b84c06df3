// SPDX-License-Identifier: Apache-2.0

//! The way of one packet through a node: its lookups and its end.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::Protocol;

/// Where the first packet of a connection comes from, as seen by the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// A pod of the node.
    Pod,
    /// A pod of another node.
    OtherPod,
    /// The node itself.
    Node,
    /// Any other machine.
    Outside,
}

/// The first packet of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Where it comes from.
    pub origin: Origin,
    /// Its source address.
    pub source: IpAddr,
    /// The address and port that it is sent to.
    pub destination: SocketAddr,
    /// Its protocol.
    pub protocol: Protocol,
}

/// The way of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Lookups, in order.
    pub steps: Vec<Step>,
    /// End of the way.
    pub outcome: Outcome,
}

/// One look at an object of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The object and the key: `set KUBE-CLUSTER-IP 10.96.0.10,tcp:80`.
    pub place: String,
    /// Entry that is there; `None` if none is.
    pub found: Option<String>,
    /// Consequence, in words; may be empty.
    pub why: String,
}

/// The end of a packet's way through the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "result")]
pub enum Outcome {
    /// One of these real servers gets the connection.
    Forwarded {
        /// The object that chooses.
        by: String,
        /// The real servers, sorted by address; those of weight 0 keep their connections only.
        servers: Vec<Server>,
    },
    /// No answer and no error.
    Dropped {
        /// The object that drops it.
        by: String,
    },
    /// An immediate error.
    Refused {
        /// The object that refuses it.
        by: String,
    },
    /// No Service decides: the node's own sockets answer, or the packet is routed on.
    Passes {
        /// Reason why no Service decides.
        why: String,
    },
}

/// A real server of a virtual server, or the destination of a map's slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Address and port.
    pub address: SocketAddr,
    /// Share of new connections.
    pub weight: u32,
    /// Whether it sees an address of the node in place of the client's.
    pub masquerade: bool,
    /// The object that decides about the source.
    pub source_by: String,
    /// Connections so far, if the kernel counts them.
    #[serde(default)]
    pub connections: Option<u64>,
    /// Reason why it is a destination; empty if the table does not tell.
    #[serde(default)]
    pub why: String,
}

/// A place where two ways differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// The object.
    pub place: String,
    /// Entry that the table asks for, or the end of its way.
    pub wanted: String,
    /// Entry that the kernel has, or the end of its way.
    pub found: String,
}

/// The way that the table asks for, and that of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// The node.
    pub node: String,
    /// Revision of the table.
    pub revision: u64,
    /// `ipvs` or `nftables`.
    pub dataplane: String,
    /// The packet.
    pub packet: Packet,
    /// The record that has the destination, as `namespace/service[:port]/PROTOCOL`, and what is to be
    /// known of it.
    pub record: Option<String>,
    /// The way by the table.
    pub wanted: Way,
    /// The way by the kernel.
    pub found: Way,
    /// Where they differ, in the order of the way; empty if they are equal.
    pub differences: Vec<Difference>,
    /// Further notes, each a sentence.
    pub notes: Vec<String>,
}

impl Way {
    /// Returns the places where another way differs: objects that both look at with different results, then the end.
    /// Objects that only one of them looks at follow from such an object.
    #[must_use]
    pub fn differences(&self, found: &Self) -> Vec<Difference> {
        let theirs: BTreeMap<_, _> = found.steps.iter().map(|s| (&s.place, &s.found)).collect();
        let looked_at = self.steps.iter().filter_map(|step| {
            let other = *theirs.get(&step.place)?;
            let text =
                |found: &Option<String>| found.clone().unwrap_or_else(|| "absent".to_owned());
            (step.found != *other).then(|| Difference {
                place: step.place.clone(),
                wanted: text(&step.found),
                found: text(other),
            })
        });
        let mut differences: Vec<_> = looked_at.collect();
        differences.extend(self.outcome.difference(&found.outcome));
        differences
    }
}

impl Outcome {
    /// Returns the difference from another outcome, if connections go elsewhere or have another source.
    fn difference(&self, found: &Self) -> Option<Difference> {
        (self.to_string() != found.to_string()).then(|| Difference {
            place: "the end".to_owned(),
            wanted: self.to_string(),
            found: found.to_string(),
        })
    }

    /// The real servers that new connections go to.
    pub fn chosen(&self) -> impl Iterator<Item = &Server> {
        let servers = match self {
            Self::Forwarded { servers, .. } => &servers[..],
            _ => &[],
        };
        servers.iter().filter(|server| server.weight > 0)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forwarded { .. } => {
                let one = |server: &Server| {
                    let source = if server.masquerade {
                        "masqueraded"
                    } else {
                        "as it is"
                    };
                    format!(
                        "{} (weight {}, source {source})",
                        server.address, server.weight
                    )
                };
                let all: Vec<_> = self.chosen().map(one).collect();
                write!(f, "forwarded to {}", all.join(", "))
            }
            Self::Dropped { .. } => f.write_str("dropped"),
            Self::Refused { .. } => f.write_str("refused"),
            Self::Passes { why } => write!(f, "passes: {why}"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "a pod of the node",
            Self::OtherPod => "a pod of another node",
            Self::Node => "the node itself",
            Self::Outside => "outside",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(found: &[(&str, Option<&str>)], outcome: Outcome) -> Way {
        let step = |(place, found): &(&str, Option<&str>)| Step {
            place: (*place).to_owned(),
            found: found.map(str::to_owned),
            why: String::new(),
        };
        Way {
            steps: found.iter().map(step).collect(),
            outcome,
        }
    }

    #[test]
    fn ways_differ_where_they_look_at_the_same_and_find_another() {
        let dropped = || Outcome::Dropped { by: "a".to_owned() };
        let wanted = way(
            &[("set A", Some("x")), ("set B", None), ("set C", Some("y"))],
            dropped(),
        );
        assert_eq!(wanted.differences(&wanted), []);
        let by_another = way(
            &[("set A", Some("x"))],
            Outcome::Dropped { by: "b".to_owned() },
        );
        assert_eq!(wanted.differences(&by_another), [], "the end is the same");
        let refused = Outcome::Refused { by: "a".to_owned() };
        let found = way(&[("set A", None), ("set D", None)], refused);
        let differences = wanted.differences(&found);
        let texts: Vec<_> = differences
            .iter()
            .map(|d| format!("{}: {} / {}", d.place, d.wanted, d.found))
            .collect();
        assert_eq!(texts, ["set A: x / absent", "the end: dropped / refused"]);
    }
}
