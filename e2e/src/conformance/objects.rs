// SPDX-License-Identifier: Apache-2.0

//! The Services, EndpointSlices and Nodes that the rows need: one Service for each situation and
//! policy, with every kind of frontend.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::row::{Kind, Policy, Row};
use super::situation::{Endpoint, Place, Situation, State};
use crate::cluster::{Cluster, EchoPod};
use crate::rig::{Family, Host, Protocol, Rig};

/// The port of every frontend but the node port.
const PORT: u16 = 80;

/// The Service of a situation and a policy, which is both its internal and its external policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    policy: Policy,
    situation: Situation,
}

impl Target {
    /// The Service that a row's request goes to.
    #[must_use]
    pub fn of(row: &Row) -> Self {
        Self {
            policy: row.policy,
            situation: row.situation,
        }
    }

    /// All Services.
    pub fn all() -> impl Iterator<Item = Self> {
        let with = |situation| Policy::ALL.map(|policy| Self { policy, situation });
        Situation::ALL.into_iter().flat_map(with)
    }

    /// Its number: unique, and below 100.
    fn number(self) -> u16 {
        let number = Self::all().take_while(|other| *other != self).count();
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        format!("{}-{}", self.situation.name(), self.policy)
    }

    fn node_port(self) -> u16 {
        30100 + self.number()
    }

    /// The Service's own address for a frontend, if the kind has one. The last digits as written
    /// are the same in both families.
    fn address(self, kind: Kind, family: Family) -> Option<IpAddr> {
        let number = self.number() + 10;
        let text = match (kind, family) {
            (Kind::NodePort, _) => return None,
            (Kind::ClusterIp, Family::V4) => format!("10.96.1.{number}"),
            (Kind::ClusterIp, Family::V6) => format!("fd00:10:96::1{number:03}"),
            (Kind::ExternalIp, Family::V4) => format!("198.51.100.{number}"),
            (Kind::ExternalIp, Family::V6) => format!("2001:db8:100::{number}"),
            (Kind::LoadBalancer, Family::V4) => format!("203.0.113.{number}"),
            (Kind::LoadBalancer, Family::V6) => format!("2001:db8:113::{number}"),
        };
        text.parse().ok()
    }

    fn addresses(self, kind: Kind) -> Vec<IpAddr> {
        let of = |family| self.address(kind, family);
        Family::ALL.into_iter().filter_map(of).collect()
    }

    /// The target of a row's request. Node ports are requested at `node`.
    #[must_use]
    pub fn socket(self, row: &Row, node: &Host) -> SocketAddr {
        self.socket_at(row, node.address(row.family))
    }

    /// The same, at a node of this address.
    #[must_use]
    pub fn socket_at(self, row: &Row, node: IpAddr) -> SocketAddr {
        match self.address(row.kind, row.family) {
            Some(address) => SocketAddr::new(address, PORT),
            None => SocketAddr::new(node, self.node_port()),
        }
    }

    /// The Service, with a port for each protocol.
    #[must_use]
    pub fn service(self, protocols: &BTreeSet<Protocol>) -> Value {
        let policy = match self.policy {
            Policy::Cluster => "Cluster",
            Policy::Local => "Local",
        };
        let cluster_ips = self.addresses(Kind::ClusterIp);
        let mut service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": self.name(), "namespace": "default" },
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": cluster_ips.first(),
                "clusterIPs": cluster_ips,
                "ipFamilies": ["IPv4", "IPv6"],
                "ipFamilyPolicy": "RequireDualStack",
                "externalIPs": self.addresses(Kind::ExternalIp),
                "externalTrafficPolicy": policy,
                "internalTrafficPolicy": policy,
                "ports": self.ports(protocols),
            },
            "status": self.status(),
        });
        if self.policy == Policy::Local {
            service["spec"]["healthCheckNodePort"] = (31100 + self.number()).into();
        }
        service
    }

    /// The status of the Service: the addresses of its load balancer.
    #[must_use]
    pub fn status(self) -> Value {
        let ingress = self.addresses(Kind::LoadBalancer);
        let ingress: Vec<_> = ingress.iter().map(|ip| json!({ "ip": ip })).collect();
        json!({ "loadBalancer": { "ingress": ingress } })
    }

    fn ports(self, protocols: &BTreeSet<Protocol>) -> Vec<Value> {
        let port = |protocol: &Protocol| {
            let (name, protocol) = words(*protocol);
            json!({
                "name": name,
                "protocol": protocol,
                "port": PORT,
                "targetPort": EchoPod::PORT,
                "nodePort": self.node_port(),
            })
        };
        protocols.iter().map(port).collect()
    }

    /// Its EndpointSlices, for the pods of both places.
    #[must_use]
    pub fn slices(self, protocols: &BTreeSet<Protocol>, pods: [&Host; 2]) -> Vec<Value> {
        self.slices_at(protocols, |place, family| {
            pods[place.number()].address(family)
        })
    }

    /// The same, for pods of these addresses.
    #[must_use]
    pub fn slices_at(
        self,
        protocols: &BTreeSet<Protocol>,
        pod: impl Fn(Place, Family) -> IpAddr,
    ) -> Vec<Value> {
        let of = |family| {
            let endpoints: Vec<_> = self
                .situation
                .endpoints()
                .iter()
                .map(|e| endpoint_object(e, pod(e.place, family)))
                .collect();
            self.slice(family, protocols, &endpoints)
        };
        Family::ALL.into_iter().map(of).collect()
    }

    fn slice(self, family: Family, protocols: &BTreeSet<Protocol>, endpoints: &[Value]) -> Value {
        let (suffix, address_type) = match family {
            Family::V4 => ("v4", "IPv4"),
            Family::V6 => ("v6", "IPv6"),
        };
        let port = |protocol: &Protocol| {
            let (name, protocol) = words(*protocol);
            json!({ "name": name, "protocol": protocol, "port": EchoPod::PORT })
        };
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{}-{suffix}", self.name()),
                "namespace": "default",
                "labels": {
                    "kubernetes.io/service-name": self.name(),
                    // Otherwise a controller would manage the slice.
                    "endpointslice.kubernetes.io/managed-by": "e2e",
                },
            },
            "addressType": address_type,
            "ports": protocols.iter().map(port).collect::<Vec<_>>(),
            "endpoints": endpoints,
        })
    }
}

/// The name of a protocol's port, and the API's name of the protocol.
fn words(protocol: Protocol) -> (&'static str, &'static str) {
    match protocol {
        Protocol::Tcp => ("tcp", "TCP"),
        Protocol::Udp => ("udp", "UDP"),
        Protocol::Sctp => ("sctp", "SCTP"),
    }
}

fn endpoint_object(endpoint: &Endpoint, address: IpAddr) -> Value {
    let (ready, serving, terminating) = match endpoint.state {
        State::Ready => (true, true, false),
        State::Terminating => (false, true, true),
        State::NotReady => (false, false, false),
    };
    let mut object = json!({
        "addresses": [address],
        "nodeName": Cluster::node_name(endpoint.place.number()),
        "conditions": { "ready": ready, "serving": serving, "terminating": terminating },
    });
    if let Some(place) = endpoint.hint {
        object["hints"] = json!({ "forZones": [{ "name": place.zone() }] });
    }
    object
}

/// The Nodes, with their zones and addresses.
#[must_use]
pub fn node_objects(rig: &Rig) -> Vec<Value> {
    let object = |place: Place| {
        let node = rig.node(place.number());
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": Cluster::node_name(place.number()),
                "labels": { "topology.kubernetes.io/zone": place.zone() },
            },
            "spec": { "podCIDRs": [node.pod_range_v4(), node.pod_range_v6()] },
            "status": { "addresses": Family::ALL.map(|family| {
                json!({ "type": "InternalIP", "address": node.address(family) })
            }) },
        })
    };
    Place::ALL.into_iter().map(object).collect()
}
