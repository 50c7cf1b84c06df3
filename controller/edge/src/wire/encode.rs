// SPDX-License-Identifier: Apache-2.0

//! Objects to messages.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_catalog::{
    Endpoint, EndpointSlice, ExportPort, HostFacts, Kind, Node, Object, ObjectKey, Service,
    ServiceExport, ServiceFacts, ServiceType, TrafficPolicy,
};
use portolan_model::{Family, Protocol};
use portolan_proto::convert::encode_node;
use portolan_proto::v1;
use v1::cluster_object::Object as Message;
use v1::edge_facts::Type;

use super::import::{encode_conditions, encode_import};

/// The message of a kind; `None` for kinds that are not sent.
#[must_use]
pub fn encode_kind(kind: Kind) -> Option<v1::ObjectKind> {
    Some(match kind {
        Kind::Service => v1::ObjectKind::Service,
        Kind::EndpointSlice => v1::ObjectKind::EndpointSlice,
        Kind::Node => v1::ObjectKind::Node,
        Kind::Pod => v1::ObjectKind::Pod,
        Kind::Namespace => v1::ObjectKind::Namespace,
        Kind::ServiceExport => v1::ObjectKind::ServiceExport,
        Kind::ClusterProperty => v1::ObjectKind::ClusterProperty,
        Kind::ServiceImport => v1::ObjectKind::ServiceImport,
        Kind::LoadBalancer | Kind::Director | Kind::Policy => return None,
    })
}

/// The id of an object; `None` for kinds that are not sent.
#[must_use]
pub fn encode_id(kind: Kind, key: &ObjectKey) -> Option<v1::ObjectId> {
    Some(v1::ObjectId {
        kind: encode_kind(kind)?.into(),
        namespace: (*key.namespace).to_owned(),
        name: (*key.name).to_owned(),
    })
}

/// The message of an object; `None` for kinds that are not sent.
#[must_use]
pub fn encode(object: &Object) -> Option<v1::ClusterObject> {
    let reference = object.reference();
    let id = encode_id(reference.kind, &reference.key)?;
    let message = match object {
        Object::Service(service) => Some(Message::Service(encode_service(service))),
        Object::EndpointSlice(slice) => Some(Message::Slice(encode_slice(slice))),
        Object::Node(node) => Some(Message::Node(encode_facts_of_node(node))),
        Object::Pod(pod) => Some(Message::Pod(v1::EdgePod { weight: pod.weight })),
        Object::Namespace(_) => None,
        Object::ServiceExport(export) => Some(Message::Export(encode_export(export))),
        Object::ServiceImport(import) => Some(Message::Import(encode_import(import))),
        Object::ClusterProperty(property) => Some(Message::Property(v1::EdgeProperty {
            value: (*property.value).to_owned(),
        })),
    };
    Some(v1::ClusterObject {
        id: Some(id),
        object: message,
    })
}

fn encode_service(service: &Service) -> v1::EdgeService {
    let ports = service.ports.iter().map(|port| v1::EdgePort {
        name: (*port.name).to_owned(),
        protocol: encode_protocol(port.protocol).into(),
        port: port.port.into(),
        node_port: port.node_port.unwrap_or_default().into(),
        app_protocol: None,
    });
    let scheduling = &service.scheduling;
    v1::EdgeService {
        created: service.created,
        cluster_ips: encode_ips(&service.cluster_ips),
        external_ips: encode_ips(&service.external_ips),
        load_balancer_ips: encode_ips(&service.load_balancer_ips),
        balancer_keeps_sources: service.balancer_keeps_sources,
        source_ranges: service.source_ranges.iter().map(encode_network).collect(),
        external_local: service.external_policy == TrafficPolicy::Local,
        internal_local: service.internal_policy == TrafficPolicy::Local,
        affinity_seconds: service.affinity_seconds,
        scheduler: scheduling
            .scheduler
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        scheduler_flags: scheduling.flags.map(|flags| flags.0),
        drain_seconds: service.drain_seconds,
        health_check_port: service.health_check_port.map(Into::into),
        ports: ports.collect(),
    }
}

fn encode_slice(slice: &EndpointSlice) -> v1::EdgeSlice {
    let ports = slice.ports.iter().map(|port| v1::EdgePort {
        name: (*port.name).to_owned(),
        protocol: encode_protocol(port.protocol).into(),
        port: port.port.into(),
        ..v1::EdgePort::default()
    });
    v1::EdgeSlice {
        service: (*slice.service).to_owned(),
        family: encode_family(slice.family).into(),
        ports: ports.collect(),
        endpoints: slice.endpoints.iter().map(encode_endpoint).collect(),
        triggered_ms: slice.triggered_ms,
    }
}

fn encode_endpoint(endpoint: &Endpoint) -> v1::EdgeEndpoint {
    let text = |name: &Option<Arc<str>>| name.as_deref().map(str::to_owned);
    let hints = |names: &Option<Vec<Arc<str>>>| {
        let names = names.as_ref()?;
        Some(v1::EdgeHints {
            names: names.iter().map(|name| (**name).to_owned()).collect(),
        })
    };
    v1::EdgeEndpoint {
        address: encode_ip(endpoint.address),
        ready: endpoint.ready,
        serving: endpoint.serving,
        terminating: endpoint.terminating,
        node: text(&endpoint.node),
        pod: text(&endpoint.pod),
        hostname: text(&endpoint.hostname),
        zones: hints(&endpoint.zone_hints),
        nodes: hints(&endpoint.node_hints),
    }
}

fn encode_facts_of_node(node: &Node) -> v1::EdgeNode {
    v1::EdgeNode {
        info: Some(encode_node(&node.info, node.info.content_hash())),
        addresses: node.addresses.iter().copied().map(encode_ip).collect(),
        weight: node.weight,
        host: node.host.as_deref().map(encode_host),
    }
}

fn encode_host(host: &HostFacts) -> v1::EdgeHost {
    let ips = |all: &BTreeSet<IpAddr>| all.iter().copied().map(encode_ip).collect();
    v1::EdgeHost {
        ready: host.ready,
        labels: encode_labels(&host.labels),
        internal: ips(&host.internal),
        external: ips(&host.external),
    }
}

fn encode_export(export: &ServiceExport) -> v1::EdgeExport {
    v1::EdgeExport {
        requested: export.requested,
        created: export.created,
        labels: encode_labels(&export.labels),
        annotations: encode_labels(&export.annotations),
        weight: export.weight.map(Into::into),
        service: export.service.as_deref().map(encode_facts),
        generation: export.status.generation,
        conditions: encode_conditions(&export.status.conditions),
    }
}

fn encode_facts(facts: &ServiceFacts) -> v1::EdgeFacts {
    let kind = match facts.kind {
        ServiceType::ClusterIp => Type::ClusterIp,
        ServiceType::Headless => Type::Headless,
        ServiceType::ExternalName => Type::ExternalName,
    };
    let families = facts.families.iter().copied().map(encode_family);
    v1::EdgeFacts {
        r#type: kind.into(),
        labels: encode_labels(&facts.labels),
        ports: facts.ports.iter().map(encode_export_port).collect(),
        families: families.map(Into::into).collect(),
        affinity_seconds: facts.affinity_seconds,
        internal_local: facts.internal_local,
        traffic_distribution: facts.traffic_distribution.as_deref().map(str::to_owned),
    }
}

pub(super) fn encode_export_port(port: &ExportPort) -> v1::EdgePort {
    v1::EdgePort {
        name: (*port.name).to_owned(),
        protocol: encode_protocol(port.protocol).into(),
        port: port.port.into(),
        node_port: 0,
        app_protocol: port.app_protocol.as_deref().map(str::to_owned),
    }
}

pub(super) fn encode_labels(labels: &BTreeMap<String, String>) -> Vec<v1::EdgeLabel> {
    let label = |(key, value): (&String, &String)| v1::EdgeLabel {
        key: key.clone(),
        value: value.clone(),
    };
    labels.iter().map(label).collect()
}

pub(crate) fn encode_ips(ips: &[IpAddr]) -> Vec<Vec<u8>> {
    ips.iter().copied().map(encode_ip).collect()
}

pub(crate) fn encode_ip(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

fn encode_network(net: &IpNet) -> v1::Network {
    let network = match net.network() {
        IpAddr::V4(ip) => v1::network::Network::V4(ip.into()),
        IpAddr::V6(ip) => v1::network::Network::V6(ip.octets().into()),
    };
    v1::Network {
        network: Some(network),
        prefix_length: net.prefix_len().into(),
    }
}

pub(super) fn encode_family(family: Family) -> v1::Family {
    match family {
        Family::V4 => v1::Family::V4,
        Family::V6 => v1::Family::V6,
    }
}

pub(crate) fn encode_protocol(protocol: Protocol) -> v1::Protocol {
    match protocol {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    }
}
