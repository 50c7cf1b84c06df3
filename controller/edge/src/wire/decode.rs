// SPDX-License-Identifier: Apache-2.0

//! Messages to objects.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_catalog::{
    ClusterProperty, Endpoint, EndpointSlice, ExportPort, HostFacts, Kind, MAX_WEIGHT, Node,
    Object, ObjectKey, ObjectRef, Pod, Service, ServiceExport, ServiceFacts, ServicePort,
    ServiceType, SlicePort, TrafficPolicy,
};
use portolan_model::{Family, Protocol, Scheduling};
use portolan_proto::convert::decode_node;
use portolan_proto::v1;
use v1::cluster_object::Object as Message;
use v1::edge_facts::Type;

use super::WireError;
use super::import::{export_status, few, import};

/// The longest name, in bytes, as in Kubernetes.
const MAX_NAME: usize = 253;
/// The longest application protocol, in bytes, as in Kubernetes: a domain, a slash and a label.
const MAX_APP_PROTOCOL: usize = MAX_NAME + 1 + 63;
/// The longest timeout of affinity, in seconds.
const MAX_AFFINITY: u32 = 86_400;
/// The longest name of a scheduler, in bytes.
const MAX_SCHEDULER: usize = 15;

pub(super) type Result<T> = std::result::Result<T, WireError>;

/// The name of an object of a cluster; `None` for a kind that this version does not know.
///
/// # Errors
/// If a part is missing or too long.
pub fn decode_id(id: &v1::ObjectId, cluster: &Arc<str>) -> Result<Option<ObjectRef>> {
    let kind = match v1::ObjectKind::try_from(id.kind) {
        Err(_) | Ok(v1::ObjectKind::Unspecified) => return Ok(None),
        Ok(v1::ObjectKind::Service) => Kind::Service,
        Ok(v1::ObjectKind::EndpointSlice) => Kind::EndpointSlice,
        Ok(v1::ObjectKind::Node) => Kind::Node,
        Ok(v1::ObjectKind::Pod) => Kind::Pod,
        Ok(v1::ObjectKind::Namespace) => Kind::Namespace,
        Ok(v1::ObjectKind::ServiceExport) => Kind::ServiceExport,
        Ok(v1::ObjectKind::ClusterProperty) => Kind::ClusterProperty,
        Ok(v1::ObjectKind::ServiceImport) => Kind::ServiceImport,
    };
    if is_namespaced(kind) == id.namespace.is_empty() {
        let why = format!("{:?} is none of a {kind}", id.namespace);
        return Err(WireError::new("id.namespace", why));
    }
    if id.name.is_empty() {
        return Err(WireError::new("id.name", "missing"));
    }
    let key = ObjectKey {
        cluster: Arc::clone(cluster),
        namespace: name("id.namespace", &id.namespace)?,
        name: name("id.name", &id.name)?,
    };
    Ok(Some(ObjectRef { kind, key }))
}

fn is_namespaced(kind: Kind) -> bool {
    !matches!(kind, Kind::Node | Kind::Namespace | Kind::ClusterProperty)
}

/// Names are those that an API server accepts: others could be taken for those of imports.
fn check_name(field: &'static str, text: &str) -> Result<()> {
    match text.split('.').all(is_part) {
        true => Ok(()),
        false => Err(WireError::new(field, format!("{text:?} is no DNS name"))),
    }
}

/// A part of a DNS subdomain as an API server takes it: of any length.
fn is_part(text: &str) -> bool {
    let is_inner = |byte: u8| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let has_ends = !text.is_empty() && !text.starts_with('-') && !text.ends_with('-');
    has_ends && text.bytes().all(is_inner)
}

/// An object of a cluster; `None` for a kind that this version does not know.
///
/// # Errors
/// If it breaks a rule.
pub fn decode(message: &v1::ClusterObject, cluster: &Arc<str>) -> Result<Option<Object>> {
    let missing = || WireError::new("id", "missing");
    let id = message.id.as_ref().ok_or_else(missing)?;
    let Some(ObjectRef { kind, key }) = decode_id(id, cluster)? else {
        return Ok(None);
    };
    if is_namespaced(kind) {
        check_name("id.namespace", &key.namespace)?;
    }
    check_name("id.name", &key.name)?;
    Ok(Some(match (kind, &message.object) {
        (Kind::Service, Some(Message::Service(from))) => Object::Service(service(key, from)?),
        (Kind::EndpointSlice, Some(Message::Slice(from))) => {
            Object::EndpointSlice(slice(key, from)?)
        }
        (Kind::Node, Some(Message::Node(from))) => Object::Node(node(key, from)?),
        (Kind::Pod, Some(Message::Pod(from))) => Object::Pod(Pod {
            key,
            weight: weight("pod.weight", from.weight)?,
        }),
        (Kind::Namespace, None) => Object::Namespace(key),
        (Kind::ServiceExport, Some(Message::Export(from))) => {
            Object::ServiceExport(export(key, from)?)
        }
        (Kind::ServiceImport, Some(Message::Import(from))) => {
            Object::ServiceImport(import(key, from)?)
        }
        (Kind::ClusterProperty, Some(Message::Property(from))) => {
            if from.value.len() > ClusterProperty::MAX_VALUE {
                return Err(WireError::new("property.value", "too long"));
            }
            let value = from.value.as_str().into();
            Object::ClusterProperty(ClusterProperty { key, value })
        }
        _ => return Err(WireError::new("object", format!("not that of a {kind}"))),
    }))
}

fn service(key: ObjectKey, from: &v1::EdgeService) -> Result<Service> {
    let ports = from.ports.iter().map(|port| {
        Ok(ServicePort {
            name: name("service.ports.name", &port.name)?,
            protocol: protocol(port.protocol)?,
            port: number("service.ports.port", port.port)?,
            node_port: match port.node_port {
                0 => None,
                port => Some(number("service.ports.node_port", port)?),
            },
        })
    });
    let check = from.health_check_port;
    let check = check.map(|port| number("service.health_check_port", port));
    let ranges = from.source_ranges.iter();
    Ok(Service {
        created: from.created,
        cluster_ips: ips("service.cluster_ips", &from.cluster_ips)?,
        external_ips: ips("service.external_ips", &from.external_ips)?,
        load_balancer_ips: ips("service.load_balancer_ips", &from.load_balancer_ips)?,
        balancer_keeps_sources: from.balancer_keeps_sources,
        source_ranges: ranges.map(network).collect::<Result<_>>()?,
        external_policy: policy(from.external_local),
        internal_policy: policy(from.internal_local),
        affinity_seconds: affinity(from.affinity_seconds)?,
        scheduling: scheduling(from)?,
        drain_seconds: from.drain_seconds,
        health_check_port: check.transpose()?,
        ports: ports.collect::<Result<_>>()?,
        key,
    })
}

fn scheduling(from: &v1::EdgeService) -> Result<Scheduling> {
    let flags = from.scheduler_flags;
    Ok(Scheduling {
        scheduler: scheduler("service.scheduler", &from.scheduler)?,
        flags: flags.map(portolan_model::ipvs::Flags),
    })
}

/// The name of a scheduler; `None` if it is empty.
pub(crate) fn scheduler(field: &'static str, text: &str) -> Result<Option<Arc<str>>> {
    if text.len() > MAX_SCHEDULER {
        return Err(WireError::new(field, "too long"));
    }
    Ok((!text.is_empty()).then(|| text.into()))
}

fn slice(key: ObjectKey, from: &v1::EdgeSlice) -> Result<EndpointSlice> {
    check_name("slice.service", &from.service)?;
    let family = family("slice.family", from.family)?;
    let ports = from.ports.iter().map(|port| {
        Ok(SlicePort {
            name: name("slice.ports.name", &port.name)?,
            protocol: protocol(port.protocol)?,
            port: number("slice.ports.port", port.port)?,
        })
    });
    let endpoints = from.endpoints.iter().map(|from| endpoint(family, from));
    Ok(EndpointSlice {
        service: name("slice.service", &from.service)?,
        family,
        ports: ports.collect::<Result<_>>()?,
        endpoints: endpoints.collect::<Result<_>>()?,
        triggered_ms: from.triggered_ms,
        key,
    })
}

fn endpoint(family: Family, from: &v1::EdgeEndpoint) -> Result<Endpoint> {
    let address = decode_ip("slice.endpoints.address", &from.address)?;
    if Family::of(address) != family {
        let why = "of the other family";
        return Err(WireError::new("slice.endpoints.address", why));
    }
    let text = |field, from: &Option<String>| from.as_deref().map(|one| name(field, one));
    let hints = |field, from: &Option<v1::EdgeHints>| {
        let names = from.as_ref()?.names.iter();
        Some(names.map(|one| name(field, one)).collect::<Result<_>>())
    };
    Ok(Endpoint {
        address,
        ready: from.ready,
        serving: from.serving,
        terminating: from.terminating,
        node: text("slice.endpoints.node", &from.node).transpose()?,
        pod: text("slice.endpoints.pod", &from.pod).transpose()?,
        hostname: text("slice.endpoints.hostname", &from.hostname).transpose()?,
        zone_hints: hints("slice.endpoints.zones", &from.zones).transpose()?,
        node_hints: hints("slice.endpoints.nodes", &from.nodes).transpose()?,
    })
}

fn node(key: ObjectKey, from: &v1::EdgeNode) -> Result<Node> {
    let info = from.info.clone().unwrap_or_default();
    let info =
        decode_node(&info).map_err(|error| WireError::new("node.info", error.to_string()))?;
    let weight = from.weight.map(|number| weight("node.weight", number));
    Ok(Node {
        key,
        info: info.node,
        addresses: ips("node.addresses", &from.addresses)?
            .into_iter()
            .collect(),
        weight: weight.transpose()?,
        host: from.host.as_ref().map(host).transpose()?.map(Box::new),
    })
}

fn host(from: &v1::EdgeHost) -> Result<HostFacts> {
    let set = |field, all| Ok(ips(field, all)?.into_iter().collect());
    Ok(HostFacts {
        ready: from.ready,
        labels: labels(&from.labels),
        internal: set("node.host.internal", &from.internal)?,
        external: set("node.host.external", &from.external)?,
    })
}

fn export(key: ObjectKey, from: &v1::EdgeExport) -> Result<ServiceExport> {
    let most = u32::from(ServiceExport::MAX_WEIGHT);
    let weight = match from.weight {
        Some(weight) if weight > most => return Err(WireError::range("export.weight", weight)),
        weight => weight.and_then(|weight| u16::try_from(weight).ok()),
    };
    Ok(ServiceExport {
        key,
        requested: from.requested,
        created: from.created,
        labels: labels(&from.labels),
        annotations: labels(&from.annotations),
        weight,
        service: from.service.as_ref().map(facts).transpose()?.map(Arc::new),
        status: export_status(from)?,
    })
}

fn facts(from: &v1::EdgeFacts) -> Result<ServiceFacts> {
    let kind = match Type::try_from(from.r#type) {
        Ok(Type::ClusterIp) => ServiceType::ClusterIp,
        Ok(Type::Headless) => ServiceType::Headless,
        Ok(Type::ExternalName) => ServiceType::ExternalName,
        Ok(Type::Unspecified) | Err(_) => {
            return Err(WireError::new("export.service.type", "unknown"));
        }
    };
    few("export.service.ports", &from.ports)?;
    let ports = from.ports.iter().map(|port| {
        let given = port.app_protocol.as_deref();
        let app_protocol = given.map(|given| {
            let field = "export.service.ports.app_protocol";
            bounded(field, given, MAX_APP_PROTOCOL)
        });
        Ok(ExportPort {
            name: name("export.service.ports.name", &port.name)?,
            protocol: protocol(port.protocol)?,
            port: number("export.service.ports.port", port.port)?,
            app_protocol: app_protocol.transpose()?,
        })
    });
    let distribution = from.traffic_distribution.as_deref();
    let distribution = distribution.map(|given| name("export.service.traffic_distribution", given));
    let families = from.families.iter();
    let families = families.map(|number| family("export.service.families", *number));
    Ok(ServiceFacts {
        kind,
        labels: labels(&from.labels),
        ports: ports.collect::<Result<_>>()?,
        families: families.collect::<Result<_>>()?,
        affinity_seconds: affinity(from.affinity_seconds)?,
        internal_local: from.internal_local,
        traffic_distribution: distribution.transpose()?,
    })
}

pub(super) fn labels(from: &[v1::EdgeLabel]) -> BTreeMap<String, String> {
    let pair = |label: &v1::EdgeLabel| (label.key.clone(), label.value.clone());
    from.iter().map(pair).collect()
}

pub(crate) fn name(field: &'static str, text: &str) -> Result<Arc<str>> {
    bounded(field, text, MAX_NAME)
}

fn bounded(field: &'static str, text: &str, most: usize) -> Result<Arc<str>> {
    if text.len() > most {
        return Err(WireError::new(field, format!("longer than {most} bytes")));
    }
    Ok(text.into())
}

pub(crate) fn number(field: &'static str, port: u32) -> Result<u16> {
    let good = u16::try_from(port).ok().filter(|port| *port > 0);
    good.ok_or_else(|| WireError::range(field, port))
}

fn weight(field: &'static str, weight: u32) -> Result<u32> {
    let good = (weight <= MAX_WEIGHT).then_some(weight);
    good.ok_or_else(|| WireError::range(field, weight))
}

pub(crate) fn affinity(seconds: Option<u32>) -> Result<Option<u32>> {
    match seconds {
        Some(seconds) if !(1..=MAX_AFFINITY).contains(&seconds) => {
            Err(WireError::range("affinity_seconds", seconds))
        }
        seconds => Ok(seconds),
    }
}

fn policy(is_local: bool) -> TrafficPolicy {
    match is_local {
        true => TrafficPolicy::Local,
        false => TrafficPolicy::Cluster,
    }
}

pub(super) fn ips(field: &'static str, all: &[Vec<u8>]) -> Result<Vec<IpAddr>> {
    all.iter().map(|octets| decode_ip(field, octets)).collect()
}

pub(crate) fn decode_ip(field: &'static str, octets: &[u8]) -> Result<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).map(IpAddr::from);
    let any = v4.or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from));
    let any =
        any.map_err(|_| WireError::new(field, format!("{} bytes are no address", octets.len())))?;
    match any {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(WireError::new(
            field,
            format!("{v6}: an IPv4 address in IPv6"),
        )),
        _ => Ok(any),
    }
}

fn network(from: &v1::Network) -> Result<IpNet> {
    const FIELD: &str = "service.source_ranges";
    let address = match &from.network {
        Some(v1::network::Network::V4(bits)) => IpAddr::V4((*bits).into()),
        Some(v1::network::Network::V6(octets)) => decode_ip(FIELD, octets)?,
        None => return Err(WireError::new(FIELD, "of an unknown family")),
    };
    let length = u8::try_from(from.prefix_length).ok();
    let net = length.and_then(|length| IpNet::new(address, length).ok());
    // As from a source: without the bits of a host.
    let net = net.map(|net| net.trunc());
    net.ok_or_else(|| WireError::range(FIELD, from.prefix_length))
}

pub(super) fn family(field: &'static str, number: i32) -> Result<Family> {
    match v1::Family::try_from(number) {
        Ok(v1::Family::V4) => Ok(Family::V4),
        Ok(v1::Family::V6) => Ok(Family::V6),
        Ok(v1::Family::Unspecified) | Err(_) => Err(WireError::new(field, "unknown")),
    }
}

pub(crate) fn protocol(number: i32) -> Result<Protocol> {
    match v1::Protocol::try_from(number) {
        Ok(v1::Protocol::Tcp) => Ok(Protocol::Tcp),
        Ok(v1::Protocol::Udp) => Ok(Protocol::Udp),
        Ok(v1::Protocol::Sctp) => Ok(Protocol::Sctp),
        Ok(v1::Protocol::Unspecified) | Err(_) => Err(WireError::new("protocol", "unknown")),
    }
}
