// SPDX-License-Identifier: Apache-2.0

//! Imports that follow any changes equal imports from scratch, and each rule of an import by itself.

mod absent;
mod admitted;
mod adopted;
mod affinity;
mod counts;
mod deciding;
mod edges;
mod gateways;
mod names;
mod node_groups;
mod objects;
mod ports;
mod properties;
mod quota;
mod random;
mod rules;
mod shadowed;
mod wanted;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{
    Endpoint, EndpointSlice, ExportPort, HostFacts, Node, Object, ObjectChange, ObjectKey, Service,
    ServiceExport, ServiceFacts, ServicePort, ServiceType, SlicePort,
};
use portolan_federate::Moment;
use portolan_federate::gateway::{PortClaim, Ports};
use portolan_model::{Family, NodeInfo, NodeKey, NodeOverlay, Protocol, Record, RecordKey};
use portolan_policy::{File, Objects, read};

use super::*;
use crate::{Pipeline, TableDelta};

pub(super) const CLUSTERS: [&str; 3] = ["a", "b", "c"];

pub(super) fn key(cluster: &str, name: &str) -> ObjectKey {
    ObjectKey {
        cluster: cluster.into(),
        namespace: "ns".into(),
        name: name.into(),
    }
}

pub(super) fn put(object: Object) -> ObjectChange {
    let problems = vec![];
    ObjectChange::Put { object, problems }
}

/// A policy of the three clusters, cluster number N with pods in 10.N.0.0/16, and further objects.
pub(super) fn policies(set: &str, more: &[(&str, &str)]) -> Objects {
    policies_with(set, [""; 3], more)
}

/// The same with further fields of the clusters' networks.
pub(super) fn policies_with(set: &str, networks: [&str; 3], more: &[(&str, &str)]) -> Objects {
    policies_of(set, networks, [""; 3], more)
}

/// The same with further fields of the clusters.
pub(super) fn policies_of(
    set: &str,
    networks: [&str; 3],
    fields: [&str; 3],
    more: &[(&str, &str)],
) -> Objects {
    let clusters = (1..)
        .zip(CLUSTERS)
        .zip(networks.into_iter().zip(fields))
        .map(|((number, name), (more, fields))| {
            let network = format!(
                "podCIDRs: [10.{number}.0.0/16, 'fd00:{number}::/32'], \
             clusterSetIPs: [10.112.0.0/16, 'fd00:112::/108'], {more}"
            );
            let zone = if number == 3 { "us" } else { "eu" };
            document(
                "Cluster",
                name,
                &format!(
                    "{{access: {{files: [x]}}, region: {zone}, network: {{{network}}}, {fields}}}"
                ),
            )
        });
    let more = more.iter().enumerate();
    let more = more.map(|(number, (kind, spec))| document(kind, &format!("p{number}"), spec));
    let text: String = [document("ClusterSet", "set", set)]
        .into_iter()
        .chain(clusters)
        .chain(more)
        .collect();
    let reading = read(&[File {
        name: "p.yaml",
        text: &text,
    }]);
    assert_eq!(reading.problems, []);
    reading.objects
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n"
    )
}

pub(super) fn facts() -> ServiceFacts {
    ServiceFacts {
        kind: ServiceType::ClusterIp,
        labels: BTreeMap::new(),
        ports: vec![ExportPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            app_protocol: None,
        }],
        families: vec![Family::V4, Family::V6],
        affinity_seconds: None,
        internal_local: false,
        traffic_distribution: None,
    }
}

/// With the family of [`slice`] alone.
pub(super) fn single() -> ServiceFacts {
    ServiceFacts {
        families: vec![Family::V4],
        ..facts()
    }
}

pub(super) fn export(cluster: &str, name: &str, facts: ServiceFacts) -> ObjectChange {
    put(Object::ServiceExport(ServiceExport {
        requested: true,
        service: Some(Arc::new(facts)),
        ..ServiceExport::new(key(cluster, name))
    }))
}

pub(super) fn namespace(cluster: &str) -> ObjectChange {
    put(Object::Namespace(ObjectKey {
        namespace: "".into(),
        ..key(cluster, "ns")
    }))
}

pub(super) fn service(cluster: &str, name: &str) -> Service {
    Service {
        cluster_ips: vec![[10, 96, 0, 1].into(), "fd00:96::1".parse().unwrap()],
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            node_port: None,
        }],
        ..Service::new(key(cluster, name))
    }
}

pub(super) fn node(cluster: &str, name: &str, zone: Option<&str>) -> ObjectChange {
    let mut node = Node::new(ObjectKey {
        namespace: "".into(),
        ..key(cluster, name)
    });
    node.info.zone = zone.map(Arc::from);
    put(Object::Node(node))
}

/// A Node that may be a gateway: of cluster number N and with a name that ends in M, it has the address 192.168.N.M.
pub(super) fn gateway_node(cluster: &str, name: &str, ready: bool) -> Node {
    let number = CLUSTERS.iter().position(|one| *one == cluster).unwrap() + 1;
    let last = name.bytes().last().unwrap() - b'0';
    let ip: IpAddr = [192, 168, number.try_into().unwrap(), last].into();
    let host = HostFacts {
        ready,
        internal: [ip].into(),
        ..HostFacts::default()
    };
    Node {
        addresses: [ip].into(),
        host: Some(Box::new(host)),
        ..Node::new(ObjectKey {
            namespace: "".into(),
            ..key(cluster, name)
        })
    }
}

pub(super) fn gateway_object(cluster: &str, name: &str, ready: bool) -> Object {
    Object::Node(gateway_node(cluster, name, ready))
}

pub(super) fn gateway(cluster: &str, name: &str, ready: bool) -> ObjectChange {
    put(gateway_object(cluster, name, ready))
}

/// The same with an address of each family.
pub(super) fn dual_node(cluster: &str, name: &str) -> Node {
    let mut node = gateway_node(cluster, name, true);
    let number = CLUSTERS.iter().position(|one| *one == cluster).unwrap() + 1;
    let number = u16::try_from(number).unwrap();
    let v6: IpAddr = [0xfd00, number, number, 0, 0, 0, 0, 1].into();
    node.addresses.insert(v6);
    node.host.as_mut().unwrap().internal.insert(v6);
    node
}

/// Address number N of a cluster's network.
pub(super) fn pod(cluster: &str, number: u8) -> IpAddr {
    let network = (1..).zip(CLUSTERS).find(|(_, name)| *name == cluster);
    [10, network.map_or(9, |(number, _)| number), 0, number].into()
}

pub(super) fn slice(cluster: &str, service: &str, endpoints: Vec<Endpoint>) -> ObjectChange {
    put(Object::EndpointSlice(slice_of(cluster, service, endpoints)))
}

pub(super) fn slice_of(cluster: &str, service: &str, endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        key: key(cluster, &format!("{service}-1")),
        service: service.into(),
        family: Family::V4,
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints,
        triggered_ms: None,
    }
}

/// All members in full.
pub(super) fn full() -> BTreeMap<Arc<str>, ClusterState> {
    CLUSTERS
        .map(|name| (name.into(), ClusterState::default()))
        .into()
}

/// Gives imports the addresses that their names say.
pub(super) fn allocate(pipeline: &mut Pipeline) {
    for (cluster, wanted) in pipeline.wanted().into_iter().flatten() {
        for import in wanted {
            let number = import.name.name.bytes().last().unwrap_or_default();
            let ips = import.families.iter().map(|family| match family {
                Family::V4 => IpAddr::from([10, 112, 0, number]),
                Family::V6 => IpAddr::from([0xfd00, 0x112, 0, 0, 0, 0, 0, number.into()]),
            });
            let key = import_key(&cluster, &import.name);
            pipeline.set_address(key, ips.collect());
        }
    }
    allocate_ports(pipeline);
}

/// Gives exports ports at gateways, as the controller does, in the ranges of [`policies_with`].
fn allocate_ports(pipeline: &mut Pipeline) {
    let Some(mut wanted) = pipeline.wanted_ports() else {
        return;
    };
    let kept = pipeline.gateway_ports().clone();
    for cluster in CLUSTERS.map(Arc::<str>::from) {
        let kept = kept.get(&cluster);
        let wanted = wanted.remove(&cluster).unwrap_or_default().into_iter();
        let claims = wanted.map(|name| PortClaim {
            present: kept.and_then(|kept| kept.get(&name)).copied(),
            name,
        });
        let mut ports = Ports::default();
        ports.set_range(pipeline.gateway_range(&cluster));
        let given = ports.allocate(&claims.collect::<Vec<_>>(), Moment::default());
        let given = given.into_iter();
        let given = given.filter_map(|(name, port)| Some((name, port.ok()?)));
        pipeline.set_gateway_ports(&cluster, given.collect());
    }
}

/// The tables that deltas make.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Tables {
    pub(super) records: BTreeMap<RecordKey, Arc<Record>>,
    pub(super) lists: BTreeMap<(NodeKey, RecordKey), Arc<NodeOverlay>>,
    pub(super) nodes: BTreeMap<NodeKey, NodeInfo>,
}

impl Tables {
    pub(super) fn fold(&mut self, delta: TableDelta) {
        for (key, record) in delta.records {
            match record {
                Some(record) => self.records.insert(key, record),
                None => self.records.remove(&key),
            };
        }
        for (node, info) in delta.nodes {
            match info == NodeInfo::default() {
                true => self.nodes.remove(&node),
                false => self.nodes.insert(node, info),
            };
        }
        for (node, lists) in delta.lists {
            for (key, overlay) in lists {
                let place = (node.clone(), key);
                match overlay {
                    Some(overlay) => self.lists.insert(place, overlay),
                    None => self.lists.remove(&place),
                };
            }
        }
    }

    /// The record of the import of a Service in a cluster.
    pub(super) fn import(&self, cluster: &str, name: &str) -> Option<&Record> {
        let is_it = |key: &RecordKey| {
            *key.cluster == *cluster && *key.service == format!("{name}@clusterset")
        };
        let mut records = self.records.iter();
        records
            .find(|(key, _)| is_it(key))
            .map(|(_, record)| &**record)
    }
}
