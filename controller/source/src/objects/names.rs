// SPDX-License-Identifier: Apache-2.0

//! Conversion of objects for DNS, apart from that for the catalog: DNS has headless and
//! ExternalName Services and their slices, Services of other proxies, Namespaces, unnamed ports and
//! all addresses of an endpoint, none of which the catalog may have.

use std::net::IpAddr;

use portolan_catalog::{FieldProblem, Kind, ObjectRef};
use portolan_dns::{self as dns, NamesChange, PodKey, ServiceKey, SliceKey};
use portolan_model::{Family, Protocol};

use super::problems::Problems;
use super::{
    Endpoint, EndpointSlice, Metadata, Pod, PodStatus, Service, ServicePort, ServiceSpec,
    SlicePort, ports,
};

/// An object as DNS input.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Names {
    /// A change.
    Put {
        /// The change.
        change: Box<NamesChange>,
        /// The parts that were left out.
        problems: Vec<FieldProblem>,
    },
    /// The object has no names any more.
    #[default]
    None,
    /// The object could not be read: the last good version stays.
    Refused,
}

impl Names {
    pub(super) fn put(change: NamesChange, problems: Vec<FieldProblem>) -> Self {
        let change = Box::new(change);
        Self::Put { change, problems }
    }
}

/// The change for DNS of a deleted object.
#[must_use]
pub fn removed(object: &ObjectRef) -> Option<NamesChange> {
    let (namespace, name) = (
        object.key.namespace.to_string(),
        object.key.name.to_string(),
    );
    match object.kind {
        Kind::Service => Some(NamesChange::ServiceRemoved(ServiceKey { namespace, name })),
        Kind::EndpointSlice => Some(NamesChange::SliceRemoved(SliceKey { namespace, name })),
        Kind::Pod => Some(NamesChange::PodRemoved(PodKey { namespace, name })),
        Kind::Namespace => Some(NamesChange::NamespaceRemoved(name)),
        Kind::Node
        | Kind::ServiceExport
        | Kind::ServiceImport
        | Kind::ClusterProperty
        | Kind::LoadBalancer
        | Kind::Director
        | Kind::Policy => None,
    }
}

fn name_of(metadata: &Metadata) -> (String, String) {
    let given = |text: &Option<String>| text.clone().unwrap_or_default();
    (given(&metadata.namespace), given(&metadata.name))
}

/// Any address: unlike a programmed one, a record does no harm to the node.
fn address(field: &str, text: &str, problems: &mut Problems) -> Option<IpAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        problems.invalid(
            field,
            format!("{text:?} is not an address: expected one like 10.0.0.1 or fd00::1"),
        );
    }
    address
}

pub(super) fn of_service(service: &Service) -> Names {
    let (namespace, name) = name_of(&service.metadata);
    let empty = ServiceSpec::default();
    let spec = service.spec.as_ref().unwrap_or(&empty);
    let mut problems = Problems::default();
    let kind = if spec.type_.as_deref() == Some("ExternalName") {
        let target = spec.external_name.clone().unwrap_or_default();
        dns::Kind::ExternalName { target }
    } else {
        let fields = spec.cluster_ip_fields();
        if fields.iter().any(|(_, ip)| *ip == "None") {
            dns::Kind::Headless
        } else {
            let ips = fields.into_iter().filter(|(_, ip)| !ip.is_empty());
            let ips = ips.filter_map(|(field, ip)| address(&field, ip, &mut problems));
            dns::Kind::ClusterIp { ips: ips.collect() }
        }
    };
    let ports = spec.ports.iter().flatten().enumerate();
    let ports = ports.filter_map(|(index, port)| service_port(index, port, &mut problems));
    let service = dns::Service {
        key: ServiceKey { namespace, name },
        kind,
        ports: ports.collect(),
        publish_not_ready: spec.publish_not_ready_addresses.unwrap_or(false),
    };
    Names::put(NamesChange::Service(service), problems.into_vec())
}

fn service_port(index: usize, port: &ServicePort, problems: &mut Problems) -> Option<dns::Port> {
    let field = format!("spec.ports[{index}]");
    let protocol = protocol(&field, port.protocol.as_deref(), problems);
    let number = ports::number(&format!("{field}.port"), port.port, problems);
    Some(dns::Port {
        name: port.name.clone().unwrap_or_default(),
        protocol: protocol?,
        number: Some(number?),
    })
}

fn protocol(field: &str, text: Option<&str>, problems: &mut Problems) -> Option<Protocol> {
    ports::protocol(&format!("{field}.protocol"), text, problems)
}

pub(super) fn of_slice(slice: &EndpointSlice, service: Option<&str>) -> Names {
    let (namespace, name) = name_of(&slice.metadata);
    let family = match slice.address_type.as_deref() {
        Some("IPv4") => Family::V4,
        Some("IPv6") => Family::V6,
        Some("FQDN") => return Names::None,
        _ => return Names::Refused,
    };
    let Some(service) = service else {
        return Names::None;
    };
    let mut problems = Problems::default();
    let ports = slice.ports.iter().flatten().enumerate();
    let ports = ports.filter_map(|(index, port)| slice_port(index, port, &mut problems));
    let ports = ports.collect();
    let endpoints = slice.endpoints.iter().flatten().enumerate();
    let endpoints = endpoints.map(|(index, from)| endpoint(index, from, family, &mut problems));
    let slice = dns::Slice {
        key: SliceKey { namespace, name },
        service: service.to_owned(),
        cluster: None,
        endpoints: endpoints.collect(),
        ports,
    };
    Names::put(NamesChange::Slice(slice), problems.into_vec())
}

fn slice_port(index: usize, port: &SlicePort, problems: &mut Problems) -> Option<dns::Port> {
    let field = format!("ports[{index}]");
    let protocol = protocol(&field, port.protocol.as_deref(), problems)?;
    let number = match port.port {
        None => None,
        given => Some(ports::number(&format!("{field}.port"), given, problems)?),
    };
    Some(dns::Port {
        name: port.name.clone().unwrap_or_default(),
        protocol,
        number,
    })
}

fn endpoint(
    index: usize,
    from: &Endpoint,
    family: Family,
    problems: &mut Problems,
) -> dns::Endpoint {
    let texts = from.addresses.iter().flatten().enumerate();
    let addresses = texts.filter_map(|(number, text)| {
        let field = format!("endpoints[{index}].addresses[{number}]");
        let address = address(&field, text, problems)?;
        if Family::of(address) == family {
            return Some(address);
        }
        problems.invalid(
            field,
            format!("{address} is not {family}, as addressType says"),
        );
        None
    });
    let addresses = addresses.collect();
    let conditions = from.conditions.as_ref();
    let target = from.target_ref.as_ref();
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    dns::Endpoint {
        addresses,
        ready: conditions.and_then(|said| said.ready).unwrap_or(true),
        hostname: given(&from.hostname),
        pod: target.and_then(|target| given(&target.name)),
        zone: given(&from.zone),
    }
}

/// All of `status.podIPs`, as in CoreDNS. A Pod in a file may have `status.podIP` only.
fn pod_addresses(status: &PodStatus, problems: &mut Problems) -> Vec<IpAddr> {
    let mut fields: Vec<_> = (status.pod_ips.iter().flatten().enumerate())
        .map(|(index, from)| (format!("status.podIPs[{index}].ip"), from.ip.as_deref()))
        .collect();
    if fields.is_empty() {
        fields.push(("status.podIP".to_owned(), status.pod_ip.as_deref()));
    }
    let given = (fields.iter())
        .filter_map(|(field, text)| Some((field, text.filter(|text| !text.is_empty())?)));
    given
        .filter_map(|(field, text)| address(field, text, problems))
        .collect()
}

/// A Pod that is ending or has ended has no name: its address may be another Pod's already.
pub(super) fn of_pod(pod: &Pod) -> Names {
    let (namespace, name) = name_of(&pod.metadata);
    let Some(status) = &pod.status else {
        return Names::None;
    };
    let is_over = matches!(
        status.phase.as_deref(),
        Some("Succeeded" | "Failed" | "Unknown")
    );
    if is_over || pod.metadata.deletion_timestamp.is_some() {
        return Names::None;
    }
    let mut problems = Problems::default();
    let addresses = pod_addresses(status, &mut problems);
    if addresses.is_empty() {
        return Names::None;
    }
    let pod = dns::Pod {
        key: PodKey { namespace, name },
        addresses,
    };
    Names::put(NamesChange::Pod(pod), problems.into_vec())
}
