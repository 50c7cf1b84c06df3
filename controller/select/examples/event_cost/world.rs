// SPDX-License-Identifier: Apache-2.0

//! A synthetic cluster, the same in each run.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{
    Endpoint, EndpointSlice, Node, Object, ObjectChange, ObjectKey, Service, ServicePort, SlicePort,
};
use portolan_model::{Family, NodeInfo, Protocol};

const ZONES: usize = 3;

/// The size of the cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct World {
    pub(crate) services: usize,
    /// Endpoints of each Service.
    pub(crate) endpoints: usize,
    pub(crate) nodes: usize,
}

impl World {
    pub(crate) const fn new(services: usize, endpoints: usize, nodes: usize) -> Self {
        Self {
            services,
            endpoints,
            nodes,
        }
    }

    /// All objects, in the order of the API server: by kind, then by name.
    pub(crate) fn objects(self) -> impl Iterator<Item = ObjectChange> {
        let services = (0..self.services).map(move |s| self.service(s, 0));
        let slices = (0..self.services).map(move |s| self.slice(s, 0));
        let nodes = (0..self.nodes).map(move |n| self.node(n, 0));
        services.chain(slices).chain(nodes)
    }

    /// An event that changes an object. Of eight, six replace one endpoint of a slice, one changes
    /// a Service and one a Node.
    pub(crate) fn event(self, number: usize) -> ObjectChange {
        let version = number + 1;
        // Far apart, and every object gets its turn.
        let spread = number.wrapping_mul(7_919);
        match number % 8 {
            6 => self.service(spread % self.services, version),
            7 => self.node(spread % self.nodes, version),
            _ => self.slice(spread % self.services, version),
        }
    }

    /// The size of all names, each counted once, in bytes.
    pub(crate) fn names(self) -> usize {
        let namespaces: BTreeSet<_> = (0..self.services).map(namespace).collect();
        let all = namespaces.into_iter();
        let all = all.chain((0..ZONES).map(zone)).chain(["http".to_owned()]);
        let all = all.chain((0..self.nodes).map(node_name));
        let of_service = |s: usize| {
            let pods = (0..self.endpoints).map(move |e| pod_name(s, e, 0));
            pods.chain([service_name(s), slice_name(s)])
        };
        let all = all.chain((0..self.services).flat_map(of_service));
        all.map(|name| name.len()).sum()
    }

    fn service(self, service: usize, version: usize) -> ObjectChange {
        // A permutation, as cluster IPs are assigned at random.
        let [a, b] = low(service.wrapping_mul(40_503));
        // Every tenth Service is limited to endpoints on the client's node.
        let local = service.is_multiple_of(10);
        put(Object::Service(Service {
            created: Some(1_700_000_000),
            cluster_ips: vec![[10, 96, a, b].into()],
            external_policy: policy(local),
            affinity_seconds: u32::try_from(version).ok().filter(|version| *version > 0),
            ports: vec![ServicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 80,
                node_port: local.then(|| 30_000 + u16::try_from(service / 10).unwrap_or(0) % 2_768),
            }],
            ..Service::new(key(&namespace(service), &service_name(service)))
        }))
    }

    fn slice(self, service: usize, version: usize) -> ObjectChange {
        let endpoints = (0..self.endpoints).map(|number| {
            // Each version replaces one endpoint.
            let version = if number == version % self.endpoints {
                version
            } else {
                0
            };
            self.endpoint(service, number, version)
        });
        put(Object::EndpointSlice(EndpointSlice {
            key: key(&namespace(service), &slice_name(service)),
            service: service_name(service).into(),
            family: Family::V4,
            ports: vec![SlicePort {
                name: "http".into(),
                protocol: Protocol::Tcp,
                port: 8080,
            }],
            endpoints: endpoints.collect(),
            triggered_ms: None,
        }))
    }

    fn endpoint(self, service: usize, number: usize, version: usize) -> Endpoint {
        let pod = service * self.endpoints + number;
        let [a, b] = low(pod);
        let [_, c] = low(pod >> 16);
        let node = (pod + version).wrapping_mul(31) % self.nodes;
        let address = IpAddr::from([10, c.wrapping_add(low(version)[1]), a, b]);
        Endpoint {
            node: Some(node_name(node).into()),
            pod: Some(pod_name(service, number, version).into()),
            zone_hints: Some(vec![zone(node % ZONES).into()]),
            ..Endpoint::new(address)
        }
    }

    fn node(self, node: usize, version: usize) -> ObjectChange {
        let [a, b] = low(node);
        let [c, d] = low(node.wrapping_mul(40_503));
        let key = key("", &node_name(node));
        put(Object::Node(Node {
            info: NodeInfo {
                zone: Some(zone((node + version) % ZONES).into()),
                pod_cidrs: vec![ipnet::Ipv4Net::new_assert([10, a, b, 0].into(), 24).into()],
                // A Node changes its eligibility only with its first change.
                eligible: version == 0,
                groups: Vec::new(),
                director: None,
            },
            addresses: [[172, 16, c, d].into()].into(),
            ..Node::new(key)
        }))
    }
}

fn policy(local: bool) -> portolan_catalog::TrafficPolicy {
    if local {
        portolan_catalog::TrafficPolicy::Local
    } else {
        portolan_catalog::TrafficPolicy::Cluster
    }
}

fn put(object: Object) -> ObjectChange {
    let problems = vec![];
    ObjectChange::Put { object, problems }
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: Arc::from(namespace),
        name: Arc::from(name),
    }
}

/// The lowest 16 bits.
fn low(number: usize) -> [u8; 2] {
    u16::try_from(number % (1 << 16)).unwrap_or(0).to_be_bytes()
}

/// The namespace of a Service. The first has one Service, the next two, and so on.
fn namespace(service: usize) -> String {
    format!("namespace-{}", (2 * service).isqrt())
}

fn service_name(service: usize) -> String {
    format!("service-{service}")
}

fn slice_name(service: usize) -> String {
    format!("service-{service}-x7k2p")
}

fn pod_name(service: usize, number: usize, version: usize) -> String {
    format!("service-{service}-5d4f8c7b9d-{number:03}{version}")
}

fn node_name(node: usize) -> String {
    format!("node-{node}.example.internal")
}

fn zone(zone: usize) -> String {
    format!("region-1{}", char::from(b"abc"[zone % ZONES]))
}
