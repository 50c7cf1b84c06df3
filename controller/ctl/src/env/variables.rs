// SPDX-License-Identifier: Apache-2.0

//! The environment variables that a kubelet gives the containers of a pod for Services.
//!
//! Pure. The rules are those of upstream's `pkg/kubelet/envvars` and of `getServiceEnvVarMap`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};

/// The Service that every pod has variables for, and its namespace.
const API_SERVER: (&str, &str) = ("default", "kubernetes");
/// The protocol of a port that names none.
const TCP: &str = "TCP";

/// One variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) name: String,
    pub(super) value: String,
}

/// The reason why a Service cannot have variables.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Service {service}: {field}: {message}")]
pub(super) struct BadField {
    service: String,
    field: String,
    message: String,
}

/// The pods that the variables are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pods<'p> {
    /// Their namespace.
    pub(super) namespace: &'p str,
    /// `spec.enableServiceLinks`: without it they have variables for the API server alone.
    pub(super) has_links: bool,
}

/// The variables of pods, by the names of the Services. Of two variables with one name, which two Services can have,
/// the later is the one: a kubelet takes either.
///
/// # Errors
/// If a field of a Service that has variables cannot be used.
pub(super) fn variables(services: &[Service], pods: Pods<'_>) -> Result<Vec<Variable>, BadField> {
    let mut all: Vec<Variable> = Vec::new();
    for service in chosen(services, pods).into_values() {
        for variable in of_service(service)? {
            match all.iter_mut().find(|known| known.name == variable.name) {
                Some(known) => *known = variable,
                None => all.push(variable),
            }
        }
    }
    Ok(all)
}

/// The Services that pods have variables for, by name. One of the pods' namespace takes precedence over the API
/// server's.
fn chosen<'s>(services: &'s [Service], pods: Pods<'_>) -> BTreeMap<&'s str, &'s Service> {
    let mut chosen = BTreeMap::new();
    for service in services.iter().filter(|it| cluster_ip(it).is_some()) {
        let (namespace, name) = key(service);
        if (namespace, name) == API_SERVER {
            chosen.entry(name).or_insert(service);
        } else if namespace == pods.namespace && pods.has_links {
            chosen.insert(name, service);
        }
    }
    chosen
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
    let address: IpAddr = ip.parse().map_err(|_| {
        bad(
            "spec.clusterIP".to_owned(),
            format!("{ip:?} is no IP address"),
        )
    })?;
    let prefix = in_capitals(key(service).1);
    let prefix = prefix.ok_or_else(|| {
        let message = "expected letters, digits and hyphens".to_owned();
        bad("metadata.name".to_owned(), message)
    })?;
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
    let ports = ports.unwrap_or_default();
    let mut all = vec![variable(&prefix, "_SERVICE_HOST", ip)];
    for (index, port) in ports.iter().enumerate() {
        if index == 0 {
            all.push(variable(&prefix, "_SERVICE_PORT", port.port));
        }
        let name = port.name.as_deref().filter(|name| !name.is_empty());
        if let Some(name) = name {
            let field = || format!("spec.ports[{index}].name");
            let expected = || "expected letters, digits and hyphens".to_owned();
            let name = in_capitals(name).ok_or_else(|| bad(field(), expected()))?;
            all.push(variable(
                &prefix,
                &format!("_SERVICE_PORT_{name}"),
                port.port,
            ));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = protocol(port).ok_or_else(|| {
            let message = "expected TCP, UDP or SCTP".to_owned();
            bad(format!("spec.ports[{index}].protocol"), message)
        })?;
        all.extend(links(
            &prefix,
            (ip, address),
            port.port,
            protocol,
            index == 0,
        ));
    }
    Ok(all)
}

/// Variables as Docker's links have them.
fn links(
    prefix: &str,
    (ip, address): (&str, IpAddr),
    port: i32,
    protocol: &str,
    is_first: bool,
) -> Vec<Variable> {
    let scheme = protocol.to_lowercase();
    let url = match address {
        IpAddr::V4(_) => format!("{scheme}://{ip}:{port}"),
        IpAddr::V6(_) => format!("{scheme}://[{ip}]:{port}"),
    };
    let mut all = Vec::new();
    if is_first {
        all.push(variable(prefix, "_PORT", &url));
    }
    let prefix = format!("{prefix}_PORT_{port}_{protocol}");
    all.push(variable(&prefix, "", &url));
    all.push(variable(&prefix, "_PROTO", &scheme));
    all.push(variable(&prefix, "_PORT", port));
    all.push(variable(&prefix, "_ADDR", ip));
    all
}

fn variable(prefix: &str, suffix: &str, value: impl ToString) -> Variable {
    Variable {
        name: format!("{prefix}{suffix}"),
        value: value.to_string(),
    }
}

/// The protocol in capitals.
fn protocol(port: &ServicePort) -> Option<&'static str> {
    let named = port.protocol.as_deref().filter(|it| !it.is_empty());
    let known = [TCP, "UDP", "SCTP"].into_iter();
    let wanted = named.unwrap_or(TCP);
    known
        .into_iter()
        .find(|known| known.eq_ignore_ascii_case(wanted))
}

/// A name as a part of a variable's name. `None` if it has other characters than names of Services have: a line of
/// the output would not be one variable.
fn in_capitals(name: &str) -> Option<String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_name = !name.is_empty() && name.chars().all(is_good);
    is_name.then(|| name.to_uppercase().replace('-', "_"))
}
