// SPDX-License-Identifier: Apache-2.0

//! The environment variables that a kubelet gives the containers of a pod for Services, from the API's objects.
//!
//! Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use portolan_model::Protocol;
use portolan_plan::export::env::{self, EnvPort, choose, in_capitals, merge};
pub(super) use portolan_plan::export::env::{Pods, Variable};

/// The reason why a Service cannot have variables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Service {service}: {field}: {message}")]
pub(super) struct BadField {
    service: String,
    field: String,
    message: String,
}

/// The variables of pods, by the names of the Services.
///
/// # Errors
/// If a field of a Service that has variables cannot be used.
pub(super) fn variables(services: &[Service], pods: Pods<'_>) -> Result<Vec<Variable>, BadField> {
    let with_ip = services.iter().filter(|it| cluster_ip(it).is_some());
    let named = with_ip.map(|it| {
        let (namespace, name) = key(it);
        (namespace, name, it)
    });
    let mut all = Vec::new();
    for service in choose(named, pods).into_values() {
        merge(&mut all, of_service(service)?);
    }
    Ok(all)
}

fn key(service: &Service) -> (&str, &str) {
    let namespace = service.metadata.namespace.as_deref();
    let name = service.metadata.name.as_deref();
    (namespace.unwrap_or("default"), name.unwrap_or_default())
}

/// `spec.clusterIP`; `None` for Services without a cluster IP.
fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    Some(ip).filter(|ip| !matches!(*ip, "" | "None"))
}

/// The variables of one Service, in the kubelet's order.
pub(super) fn of_service(service: &Service) -> Result<Vec<Variable>, BadField> {
    let Some(ip) = cluster_ip(service) else {
        return Ok(Vec::new());
    };
    let bad = |field: String, message: String| {
        let (namespace, name) = key(service);
        let service = format!("{namespace}/{name}");
        BadField {
            service,
            field,
            message,
        }
    };
    if ip.parse::<IpAddr>().is_err() {
        return Err(bad(
            "spec.clusterIP".to_owned(),
            format!("{ip:?} is no IP address"),
        ));
    }
    let expected = || "expected letters, digits and hyphens".to_owned();
    let prefix = in_capitals(key(service).1);
    let prefix = prefix.ok_or_else(|| bad("metadata.name".to_owned(), expected()))?;
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
    let mut named = Vec::new();
    for (index, port) in ports.unwrap_or_default().iter().enumerate() {
        let field = |field: &str| format!("spec.ports[{index}].{field}");
        let name = port.name.as_deref().filter(|name| !name.is_empty());
        let name = name.map(|name| in_capitals(name).ok_or_else(|| bad(field("name"), expected())));
        let protocol = protocol(port).ok_or_else(|| {
            let message = "expected TCP, UDP or SCTP".to_owned();
            bad(field("protocol"), message)
        })?;
        named.push(EnvPort {
            name: name.transpose()?,
            protocol,
            port: port.port,
        });
    }
    Ok(env::variables(&prefix, ip, &named))
}

/// The protocol, TCP if none is named.
fn protocol(port: &ServicePort) -> Option<Protocol> {
    let named = port.protocol.as_deref().filter(|it| !it.is_empty());
    let wanted = named.unwrap_or("TCP").to_ascii_uppercase();
    wanted.parse().ok()
}
