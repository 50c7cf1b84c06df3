//! The objects, reduced to what endpoint selection looks at.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{Family, FrontendKind, NodeInfo, Protocol, Scheduling};
use serde::Serialize;

use crate::{Claim, Kind, ObjectRef};

/// Names an object of a known kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectKey {
    /// The cluster's name; empty for a single cluster.
    pub cluster: Arc<str>,
    /// The namespace; empty for a Node.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.cluster, &self.namespace] {
            if !part.is_empty() {
                write!(f, "{part}/")?;
            }
        }
        f.write_str(&self.name)
    }
}

/// Any object that the catalog holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A Service that is ours to serve.
    Service(Service),
    /// An EndpointSlice that belongs to a Service.
    EndpointSlice(EndpointSlice),
    /// A Node.
    Node(Node),
    /// A Pod that has a weight of its own.
    Pod(Pod),
}

impl Object {
    /// Its kind and name.
    #[must_use]
    pub fn reference(&self) -> ObjectRef {
        let (kind, key) = match self {
            Self::Service(service) => (Kind::Service, &service.key),
            Self::EndpointSlice(slice) => (Kind::EndpointSlice, &slice.key),
            Self::Node(node) => (Kind::Node, &node.key),
            Self::Pod(pod) => (Kind::Pod, &pod.key),
        };
        ObjectRef {
            kind,
            key: key.clone(),
        }
    }
}

/// Which endpoints a way in may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum TrafficPolicy {
    /// All of the cluster's.
    #[default]
    Cluster,
    /// Only those on the node where the connection comes in.
    Local,
}

/// A Service with a cluster IP. Headless Services and `ExternalName`s never become one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Its name.
    pub key: ObjectKey,
    /// `metadata.creationTimestamp` in seconds since 1970, if known. When two Services claim the
    /// same address and port, the older one has it.
    pub created: Option<i64>,
    /// `spec.clusterIPs`: one or two, of different families. The Service exists in these families
    /// only: addresses of another family below have no effect.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` with `ipMode` VIP.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Whether the load balancer leaves clients' addresses alone: it has ingress points, and all of
    /// them are in `load_balancer_ips`. One that is a host name, or forwards to node ports
    /// (`ipMode: Proxy`), shows nodes addresses of its own instead.
    pub balancer_keeps_sources: bool,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Vec<IpNet>,
    /// `spec.externalTrafficPolicy`.
    pub external_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// The timeout of ClientIP affinity in seconds, or `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// How its virtual servers choose (annotations).
    pub scheduling: Scheduling,
    /// How long a destination that went away keeps its connections, in seconds (annotation); 0 for
    /// not at all, `None` for what the agent was told.
    pub drain_seconds: Option<u32>,
    /// `spec.healthCheckNodePort`, if it has effect: of type LoadBalancer, with
    /// `externalTrafficPolicy: Local`.
    pub health_check_port: Option<u16>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServicePort {
    /// Its name; empty if the Service has one port without a name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port of cluster, external and load-balancer IPs.
    pub port: u16,
    /// The port on every node's addresses, if any.
    pub node_port: Option<u16>,
}

impl Service {
    /// A Service with a name and nothing else.
    #[must_use]
    pub fn new(key: ObjectKey) -> Self {
        Self {
            key,
            created: None,
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            balancer_keeps_sources: false,
            source_ranges: Vec::new(),
            external_policy: TrafficPolicy::Cluster,
            internal_policy: TrafficPolicy::Cluster,
            affinity_seconds: None,
            scheduling: Scheduling::default(),
            drain_seconds: None,
            health_check_port: None,
            ports: Vec::new(),
        }
    }

    /// Whether the Service exists in this family.
    #[must_use]
    pub fn has_family(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|ip| Family::of(*ip) == family)
    }

    /// Whether anything but a cluster IP leads to this port (`ExternallyAccessible` upstream).
    #[must_use]
    pub fn externally_accessible(&self, port: &ServicePort) -> bool {
        port.node_port.is_some()
            || self
                .addresses()
                .any(|(kind, _)| kind != FrontendKind::ClusterIp)
    }

    /// Its addresses of the families it has, with their kind.
    pub fn addresses(&self) -> impl Iterator<Item = (FrontendKind, IpAddr)> + '_ {
        let of_kind =
            |kind, ips: &'_ [IpAddr]| ips.iter().map(move |ip| (kind, *ip)).collect::<Vec<_>>();
        of_kind(FrontendKind::ClusterIp, &self.cluster_ips)
            .into_iter()
            .chain(of_kind(FrontendKind::ExternalIp, &self.external_ips))
            .chain(of_kind(FrontendKind::LoadBalancer, &self.load_balancer_ips))
            .filter(|(_, ip)| self.has_family(Family::of(*ip)))
    }

    /// All that it claims: port index, kind of way in, and what no other Service may have too.
    pub fn claims(&self) -> impl Iterator<Item = (usize, FrontendKind, Claim)> + '_ {
        self.ports
            .iter()
            .enumerate()
            .flat_map(move |(index, port)| {
                let claim = |address, number| Claim {
                    cluster: Arc::clone(&self.key.cluster),
                    address,
                    port: number,
                    protocol: port.protocol,
                };
                let vips = self
                    .addresses()
                    .map(move |(kind, ip)| (index, kind, claim(Some(ip), port.port)));
                let node_port = port
                    .node_port
                    .map(|number| (index, FrontendKind::NodePort, claim(None, number)));
                vips.chain(node_port).collect::<Vec<_>>()
            })
    }
}

/// An EndpointSlice: endpoints of one family, all with the same ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EndpointSlice {
    /// Its name.
    pub key: ObjectKey,
    /// The name of the Service it belongs to (label `kubernetes.io/service-name`).
    pub service: Arc<str>,
    /// `addressType`.
    pub family: Family,
    /// Its ports; a port without a number never becomes one.
    pub ports: Vec<SlicePort>,
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
}

impl EndpointSlice {
    /// The Service it belongs to.
    #[must_use]
    pub fn service_key(&self) -> ObjectKey {
        ObjectKey {
            name: Arc::clone(&self.service),
            ..self.key.clone()
        }
    }
}

/// One port of an EndpointSlice: the number that the Service port's target has on these endpoints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SlicePort {
    /// The name of the Service port it belongs to.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port on the endpoint.
    pub port: u16,
}

/// One endpoint of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// `addresses[0]`: the others are never used.
    pub address: IpAddr,
    /// `conditions.ready`, true if unset.
    pub ready: bool,
    /// `conditions.serving`, true if unset.
    pub serving: bool,
    /// `conditions.terminating`, false if unset.
    pub terminating: bool,
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// `targetRef.name`, if that is a Pod; it is of the slice's namespace.
    pub pod: Option<Arc<str>>,
    /// `hints.forZones[].name`; `None` if the endpoint has no such hint.
    pub zone_hints: Option<Vec<Arc<str>>>,
    /// `hints.forNodes[].name`; `None` if the endpoint has no such hint.
    pub node_hints: Option<Vec<Arc<str>>>,
}

impl Endpoint {
    /// An endpoint that is ready, on no known node, without hints.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            ready: true,
            serving: true,
            terminating: false,
            node: None,
            pod: None,
            zone_hints: None,
            node_hints: None,
        }
    }
}

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its name; the namespace is empty.
    pub key: ObjectKey,
    /// What its agent needs to know of it.
    pub info: NodeInfo,
    /// `status.addresses[]` of types InternalIP and ExternalIP.
    pub addresses: BTreeSet<IpAddr>,
    /// The weight of the endpoints on it (annotation), 0 to [`MAX_WEIGHT`]; 1 if `None`.
    pub weight: Option<u32>,
}

impl Node {
    /// A Node of which nothing is known.
    #[must_use]
    pub fn new(key: ObjectKey) -> Self {
        Self {
            key,
            info: NodeInfo::default(),
            addresses: BTreeSet::new(),
            weight: None,
        }
    }
}

/// A Pod that has a weight of its own; all others are none of our business.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// Its name.
    pub key: ObjectKey,
    /// The weight of its endpoints (annotation), 0 to [`MAX_WEIGHT`]; counts more than its node's.
    pub weight: u32,
}

/// The greatest weight of an endpoint. The kernel takes 2^31 - 1, but its schedulers multiply
/// weights with connection counts; 65,535 is what keepalived allows.
pub const MAX_WEIGHT: u32 = 65_535;
