// SPDX-License-Identifier: Apache-2.0

//! Conversion of EndpointSlices.

use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{self as catalog, FieldProblem, Kind, Object, Reason};
use portolan_model::Family;

use super::problems::Problems;
use super::{
    Converted, Endpoint, EndpointSlice, HintName, Manifest, Metadata, Names, Scope, SlicePort,
    address, names, ports,
};

const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The time of the Pod's or Service's change that triggered the last write of the slice.
const TRIGGERED: &str = "endpoints.kubernetes.io/last-change-trigger-time";

impl Manifest for EndpointSlice {
    const KIND: Kind = Kind::EndpointSlice;

    fn convert(self, scope: &Scope) -> Converted {
        let slice = match self.metadata.reference(Self::KIND, &scope.cluster) {
            Ok(slice) => slice,
            Err(problem) => return Converted::refused(None, problem),
        };
        let Some(service) = self.metadata.label(SERVICE_NAME) else {
            return Converted::NotOurs(slice);
        };
        if !scope.selects_slice(self.metadata.labels.as_ref()) {
            return Converted::NotOurs(slice);
        }
        let address_type = self.address_type.as_deref().unwrap_or_default();
        let family = match address_type {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            "FQDN" => return Converted::NotOurs(slice),
            other => {
                let message = format!("unknown value {other:?}: expected IPv4, IPv6 or FQDN");
                let problem = FieldProblem::new("addressType", Reason::Malformed, message);
                return Converted::refused(Some(slice), problem);
            }
        };
        let mut problems = Problems::default();
        let object = catalog::EndpointSlice {
            key: slice.key,
            service: service.into(),
            family,
            ports: slice_ports(self.ports, &mut problems),
            endpoints: endpoints(self.endpoints, family, &mut problems),
            triggered_ms: triggered(&self.metadata, &mut problems),
        };
        Converted::Put {
            object: Object::EndpointSlice(object),
            problems: problems.into_vec(),
        }
    }

    fn names(&self) -> Names {
        names::of_slice(self, self.metadata.label(SERVICE_NAME))
    }
}

/// The trigger time in milliseconds of Unix time.
fn triggered(metadata: &Metadata, problems: &mut Problems) -> Option<u64> {
    let text = metadata.annotation(TRIGGERED)?;
    let Ok(time) = text.parse::<jiff::Timestamp>() else {
        problems.invalid(
            format!("metadata.annotations[{TRIGGERED}]"),
            format!("{text:?} is not a time: expected one like 2026-01-31T12:00:00Z; ignored"),
        );
        return None;
    };
    u64::try_from(time.as_millisecond()).ok()
}

fn slice_ports(ports: Option<Vec<SlicePort>>, problems: &mut Problems) -> Vec<catalog::SlicePort> {
    let ports = ports.into_iter().flatten().enumerate();
    ports
        .filter_map(|(index, port)| slice_port(&format!("ports[{index}]"), &port, problems))
        .collect()
}

/// A port without a name has the empty one, as the API server writes it. One without a number is
/// dropped, as upstream: it stands for "all ports", which no Service port matches.
fn slice_port(
    field: &str,
    port: &SlicePort,
    problems: &mut Problems,
) -> Option<catalog::SlicePort> {
    let (name, number) = (port.name.as_deref().unwrap_or_default(), port.port?);
    let protocol = ports::protocol(
        &format!("{field}.protocol"),
        port.protocol.as_deref(),
        problems,
    );
    let number = ports::number(&format!("{field}.port"), Some(number), problems);
    Some(catalog::SlicePort {
        name: name.into(),
        protocol: protocol?,
        port: number?,
    })
}

fn endpoints(
    endpoints: Option<Vec<Endpoint>>,
    family: Family,
    problems: &mut Problems,
) -> Vec<catalog::Endpoint> {
    let endpoints = endpoints.into_iter().flatten().enumerate();
    endpoints
        .filter_map(|(index, endpoint)| {
            let field = format!("endpoints[{index}].addresses");
            let address = endpoint_address(&field, &endpoint, family, problems)?;
            Some(convert_endpoint(address, endpoint))
        })
        .collect()
}

fn endpoint_address(
    field: &str,
    endpoint: &Endpoint,
    family: Family,
    problems: &mut Problems,
) -> Option<IpAddr> {
    let Some(text) = endpoint.addresses.iter().flatten().next() else {
        problems.invalid(field, "missing: expected an address");
        return None;
    };
    match address::parse(text) {
        Err(error) => problems.invalid(format!("{field}[0]"), error.to_string()),
        Ok(ip) if Family::of(ip) == family => return Some(ip),
        Ok(ip) => problems.add(
            format!("{field}[0]"),
            Reason::WrongFamily,
            format!(
                "{ip} is {}: expected {family}, as addressType says",
                Family::of(ip)
            ),
        ),
    }
    None
}

fn convert_endpoint(address: IpAddr, endpoint: Endpoint) -> catalog::Endpoint {
    let conditions = endpoint.conditions.unwrap_or_default();
    let hints = endpoint.hints.unwrap_or_default();
    let given = |name: Option<String>| name.filter(|name| !name.is_empty()).map(Arc::from);
    let target = endpoint.target_ref.unwrap_or_default();
    let is_pod = target.kind.as_deref() == Some("Pod");
    catalog::Endpoint {
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        node: given(endpoint.node_name),
        pod: given(target.name).filter(|_| is_pod),
        hostname: given(endpoint.hostname),
        zone_hints: hint_names(hints.for_zones),
        node_hints: hint_names(hints.for_nodes),
        ..catalog::Endpoint::new(address)
    }
}

/// The names of a hint: a set, so sorted. The API server drops an empty list when it writes an
/// object, so an empty list is no hint.
fn hint_names(hints: Option<Vec<HintName>>) -> Option<Vec<Arc<str>>> {
    let mut names: Vec<Arc<str>> = hints?
        .into_iter()
        .map(|hint| hint.name.unwrap_or_default().into())
        .collect();
    names.sort_unstable();
    names.dedup();
    (!names.is_empty()).then_some(names)
}
