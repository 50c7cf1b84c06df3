// SPDX-License-Identifier: Apache-2.0

//! A question for the way of a packet.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_model::trace::{Origin, Packet};
use portolan_model::{Family, NodeTable, ParseProtocolError, Protocol};
use portolan_plan::{DetectLocal, NodeFacts};

/// Addresses that no host has (RFC 5737, RFC 3849): those of clients outside.
const OUTSIDE: [IpAddr; 2] = [
    IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)),
    IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// A question, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    from: Sender,
    to: SocketAddr,
    protocol: Protocol,
}

/// Where the packet comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Pod,
    Node,
    Outside,
    Address(IpAddr),
}

/// Error in a question.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum QuestionError {
    /// A field is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// The origin is no word and no address.
    #[error("from {0:?}: expected pod, node, outside or an address")]
    Sender(String),
    /// The destination has no port, or is no address.
    #[error("to {0:?}: expected ADDRESS:PORT")]
    To(String),
    /// The protocol is unknown.
    #[error("protocol: {0}")]
    Protocol(#[from] ParseProtocolError),
    /// Source and destination are of two families.
    #[error("from {from} to {to}: addresses of two families")]
    Families {
        /// The source.
        from: IpAddr,
        /// The destination.
        to: SocketAddr,
    },
    /// The node's address for connections is unknown.
    #[error("from node: the node has no {0} address")]
    NoAddress(Family),
    /// The networks of pods are unknown.
    #[error("from pod: no {0} network of pods is known here: name a pod's address")]
    NoPods(Family),
}

impl Question {
    /// Parses the query of a request: `from`, `to`, and `protocol` unless it is TCP.
    pub(super) fn parse(query: &str) -> Result<Self, QuestionError> {
        let (mut from, mut to, mut protocol) = (None, None, Protocol::Tcp);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "from" => {
                    from = Some(match &*value {
                        "pod" => Sender::Pod,
                        "node" => Sender::Node,
                        "outside" => Sender::Outside,
                        text => match text.parse() {
                            Ok(address) => Sender::Address(address),
                            Err(_) => return Err(QuestionError::Sender(text.to_owned())),
                        },
                    });
                }
                "to" => match value.parse() {
                    Ok(address) => to = Some(address),
                    Err(_) => return Err(QuestionError::To(value.into_owned())),
                },
                "protocol" => protocol = value.to_ascii_uppercase().parse()?,
                _ => {}
            }
        }
        Ok(Self {
            from: from.ok_or(QuestionError::Missing("from"))?,
            to: to.ok_or(QuestionError::Missing("to"))?,
            protocol,
        })
    }

    /// The family of the packet.
    pub(super) fn family(&self) -> Family {
        Family::of(self.to.ip())
    }

    /// The packet on a node. An address of a network of pods is one of the node's own pods if the Node says
    /// so, or does not say which networks it has.
    pub(super) fn packet(
        &self,
        table: &NodeTable,
        facts: &NodeFacts,
        detect_local: &DetectLocal,
    ) -> Result<Packet, QuestionError> {
        let family = self.family();
        let is_of_family = |network: &&IpNet| Family::of(network.addr()) == family;
        let own = table.node.pod_cidrs.iter().find(is_of_family);
        let all = match detect_local {
            DetectLocal::ClusterCidr(networks) => networks.iter().find(is_of_family),
            _ => None,
        };
        let (origin, source) = match self.from {
            Sender::Node => {
                let source = facts.source.get(&family).copied();
                let own = facts.addresses.iter().copied();
                let mut own = own.filter(|ip| Family::of(*ip) == family && !ip.is_loopback());
                let source = source.or_else(|| own.next());
                (
                    Origin::Node,
                    source.ok_or(QuestionError::NoAddress(family))?,
                )
            }
            Sender::Pod => {
                let network = own.or(all).ok_or(QuestionError::NoPods(family))?;
                // The first address is often that of the network's gateway.
                let address = network.hosts().nth(1).unwrap_or(network.addr());
                (Origin::Pod, address)
            }
            Sender::Outside => match family {
                Family::V4 => (Origin::Outside, OUTSIDE[0]),
                Family::V6 => (Origin::Outside, OUTSIDE[1]),
            },
            Sender::Address(address) => {
                let is_in = |network: Option<&IpNet>| network.is_some_and(|n| n.contains(&address));
                let origin = match () {
                    () if facts.addresses.contains(&address) => Origin::Node,
                    () if is_in(own) || own.is_none() && is_in(all) => Origin::Pod,
                    () if is_in(all) => Origin::OtherPod,
                    () => Origin::Outside,
                };
                (origin, address)
            }
        };
        if Family::of(source) != family {
            let (from, to) = (source, self.to);
            return Err(QuestionError::Families { from, to });
        }
        Ok(Packet {
            origin,
            source,
            destination: self.to,
            protocol: self.protocol,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_questions_name_the_field() {
        for (query, error) in [
            ("to=10.0.0.1:80", "from is missing"),
            ("from=pod", "to is missing"),
            (
                "from=here&to=10.0.0.1:80",
                "from \"here\": expected pod, node, outside or an address",
            ),
            (
                "from=pod&to=10.0.0.1",
                "to \"10.0.0.1\": expected ADDRESS:PORT",
            ),
        ] {
            assert_eq!(Question::parse(query).unwrap_err().to_string(), error);
        }
        let error = Question::parse("from=pod&to=10.0.0.1:80&protocol=icmp").unwrap_err();
        assert!(error.to_string().starts_with("protocol: "), "{error}");
    }

    #[test]
    fn the_origin_of_an_address_follows_from_the_networks() {
        let table = NodeTable {
            node: portolan_model::NodeInfo {
                pod_cidrs: vec!["10.244.1.0/24".parse().unwrap()],
                ..Default::default()
            },
            ..NodeTable::default()
        };
        let facts = NodeFacts {
            addresses: ["192.168.0.1".parse().unwrap()].into(),
            ..NodeFacts::default()
        };
        let detect = DetectLocal::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
        let packet = |from: &str, to: &str, table: &NodeTable| {
            let question = Question::parse(&format!("from={from}&to={to}&protocol=udp")).unwrap();
            question.packet(table, &facts, &detect)
        };
        for (from, origin, source) in [
            ("pod", Origin::Pod, "10.244.1.2"),
            ("node", Origin::Node, "192.168.0.1"),
            ("outside", Origin::Outside, "192.0.2.1"),
            ("10.244.1.77", Origin::Pod, "10.244.1.77"),
            ("10.244.2.77", Origin::OtherPod, "10.244.2.77"),
            ("192.168.0.1", Origin::Node, "192.168.0.1"),
            ("192.168.0.2", Origin::Outside, "192.168.0.2"),
        ] {
            let packet = packet(from, "10.96.0.1:53", &table).unwrap();
            let found = (packet.origin, packet.source, packet.protocol);
            assert_eq!(
                found,
                (origin, source.parse().unwrap(), Protocol::Udp),
                "{from}"
            );
        }
        let anywhere = packet("10.244.2.77", "10.96.0.1:53", &NodeTable::default());
        assert_eq!(
            anywhere.unwrap().origin,
            Origin::Pod,
            "no Node tells its networks"
        );
        for (from, to, error) in [
            (
                "10.0.0.1",
                "[fd00::1]:53",
                "from 10.0.0.1 to [fd00::1]:53: addresses of two families",
            ),
            (
                "pod",
                "[fd00::1]:53",
                "from pod: no IPv6 network of pods is known here: name a pod's address",
            ),
            (
                "node",
                "[fd00::1]:53",
                "from node: the node has no IPv6 address",
            ),
        ] {
            assert_eq!(packet(from, to, &table).unwrap_err().to_string(), error);
        }
    }
}
