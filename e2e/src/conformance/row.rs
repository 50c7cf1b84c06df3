// SPDX-License-Identifier: Apache-2.0

//! The dimensions of the table, and its rows.

use std::fmt;

use super::situation::{Endpoint, Place, Situation, State};
use crate::rig::{Family, Protocol};

/// The kind of frontend that a request goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The cluster IP.
    ClusterIp,
    /// The node port, on the address of the node here.
    NodePort,
    /// An external IP.
    ExternalIp,
    /// An address of a load balancer, of mode VIP.
    LoadBalancer,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [
        Self::ClusterIp,
        Self::NodePort,
        Self::ExternalIp,
        Self::LoadBalancer,
    ];
}

/// The traffic policy that holds for the frontend: internal for cluster IPs, else external.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// Endpoints of the whole cluster.
    Cluster,
    /// Endpoints of the node only.
    Local,
}

impl Policy {
    /// Both policies.
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Local];
}

/// The client of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A pod here that is no endpoint.
    Pod,
    /// The pod here that is an endpoint.
    Endpoint,
    /// A pod there that is no endpoint.
    PodThere,
    /// The node here itself.
    Node,
    /// The node there itself.
    NodeThere,
    /// A machine outside the cluster, which reaches virtual addresses by the node here.
    Outside,
}

impl Source {
    /// All sources.
    pub const ALL: [Self; 6] = [
        Self::Pod,
        Self::Endpoint,
        Self::PodThere,
        Self::Node,
        Self::NodeThere,
        Self::Outside,
    ];

    /// True for pods, whose addresses are in the cluster's pod ranges.
    #[must_use]
    pub fn is_pod(self) -> bool {
        matches!(self, Self::Pod | Self::Endpoint | Self::PodThere)
    }

    /// The node of the client: itself, or a pod's node; `None` outside.
    #[must_use]
    pub fn node(self) -> Option<Place> {
        match self {
            Self::Pod | Self::Endpoint | Self::Node => Some(Place::Here),
            Self::PodThere | Self::NodeThere => Some(Place::There),
            Self::Outside => None,
        }
    }
}

/// One request with one right result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// The kind of frontend.
    pub kind: Kind,
    /// The traffic policy of the frontend.
    pub policy: Policy,
    /// The address family.
    pub family: Family,
    /// The protocol.
    pub protocol: Protocol,
    /// The client.
    pub source: Source,
    /// The endpoints.
    pub situation: Situation,
}

impl Row {
    /// Every consistent row: all situations for TCP, and the basic ones for the other protocols,
    /// which the same code and the same rules handle.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut rows = Vec::new();
        for kind in Kind::ALL {
            for policy in Policy::ALL {
                for source in Source::ALL {
                    for situation in Situation::ALL {
                        let row = Self {
                            kind,
                            policy,
                            family: Family::V4,
                            protocol: Protocol::Tcp,
                            source,
                            situation,
                        };
                        if row.has_an_answer() {
                            rows.extend(row.ways());
                        }
                    }
                }
            }
        }
        rows
    }

    /// The row in every family and protocol that is worth its time.
    fn ways(self) -> impl Iterator<Item = Self> {
        use Situation::{Both, HereOnly, Nowhere, ThereOnly};
        let protocols: &[Protocol] = match self.situation {
            Both | ThereOnly => &[Protocol::Tcp, Protocol::Udp, Protocol::Sctp],
            HereOnly | Nowhere => &[Protocol::Tcp, Protocol::Udp],
            _ => &[Protocol::Tcp],
        };
        let of_family = move |family| {
            protocols.iter().map(move |&protocol| Self {
                family,
                protocol,
                ..self
            })
        };
        Family::ALL.into_iter().flat_map(of_family)
    }

    /// False if the dimensions contradict each other.
    #[must_use]
    pub fn has_an_answer(&self) -> bool {
        let serves_here = |endpoint: &Endpoint| {
            endpoint.place == Place::Here && endpoint.state != State::NotReady
        };
        let endpoints = self.situation.endpoints();
        self.source != Source::Endpoint || endpoints.iter().any(serves_here)
    }

    /// The node whose virtual server selects the endpoint.
    #[must_use]
    pub fn entry(&self) -> Place {
        match self.kind {
            Kind::NodePort => Place::Here,
            _ => self.source.node().unwrap_or(Place::Here),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClusterIp => "clusterip",
            Self::NodePort => "nodeport",
            Self::ExternalIp => "externalip",
            Self::LoadBalancer => "loadbalancer",
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cluster => "cluster",
            Self::Local => "local",
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod",
            Self::Endpoint => "endpoint",
            Self::PodThere => "pod-there",
            Self::Node => "node",
            Self::NodeThere => "node-there",
            Self::Outside => "outside",
        })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = match self.kind {
            Kind::ClusterIp => "itp",
            _ => "etp",
        };
        let family = match self.family {
            Family::V4 => "v4",
            Family::V6 => "v6",
        };
        let protocol = match self.protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        write!(
            f,
            "{}/{policy}-{}/{family}/{protocol}/from-{}/{}",
            self.kind,
            self.policy,
            self.source,
            self.situation.name()
        )
    }
}
