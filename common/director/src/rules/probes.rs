// SPDX-License-Identifier: Apache-2.0

//! Health checks against frontends and backends.

use portolan_model::check::{Probe, Via};
use portolan_model::{Family, Protocol};

use crate::balancer::{Backend, LoadBalancer};
use crate::check::DeclaredCheck;
use crate::convert::Findings;
use crate::frontend::{Frontend, Packets};
use crate::read::Path;

pub(super) fn check(object: &LoadBalancer, findings: &mut Findings) {
    let spec = Path::default().field("spec");
    for (index, check) in object.checks.iter().enumerate() {
        let path = spec.field("checks").item(index);
        let inheriting = object.backends.iter();
        let inheriting = inheriting.filter(|backend| backend.checks.is_none());
        source(check, inheriting, findings, &path);
        if by_service(object, check, findings, &path) {
            let all = object.backends.iter().enumerate();
            let own = all.filter(|(_, backend)| backend.checks.is_none());
            reaches(object, check, own, findings, &path);
        }
        let inherits = |port: &Option<u16>| port.is_none_or(|port| port == 0);
        let lacking = object
            .backends
            .iter()
            .find(|backend| backend.checks.is_none() && inherits(&backend.port));
        if let Some(backend) = lacking {
            port(object, check, backend.port, findings, &path);
        }
    }
    for (index, backend) in object.backends.iter().enumerate() {
        for (number, check) in backend.checks.iter().flatten().enumerate() {
            let path = spec
                .field("backends")
                .item(index)
                .field("checks")
                .item(number);
            if by_service(object, check, findings, &path) {
                reaches(
                    object,
                    check,
                    [(index, backend)].into_iter(),
                    findings,
                    &path,
                );
            }
            port(object, check, backend.port, findings, &path);
            source(check, std::iter::once(backend), findings, &path);
        }
    }
}

/// Returns `true` if a probe by way of a frontend has an address and a port to go to.
fn fits(frontend: &Frontend, wanted: Protocol) -> bool {
    match &frontend.packets {
        Packets::Port { protocol, port, .. } => *protocol == wanted && *port != 0,
        Packets::Ranges { protocol, .. } => *protocol == wanted,
        Packets::Mark { .. } => false,
    }
}

/// The frontend by whose way a check reaches a backend: the named one, or the first of a fitting protocol that serves
/// the backend's family.
pub(crate) fn frontend_of<'a>(
    object: &'a LoadBalancer,
    backend: &Backend,
    check: &DeclaredCheck,
) -> Option<&'a Frontend> {
    let (Via::Service { frontend: name }, Some(wanted)) = (&check.via, check.probe.protocol())
    else {
        return None;
    };
    let is_meant = |frontend: &&Frontend| {
        let has_name = name.as_ref().is_none_or(|name| **name == *frontend.name);
        let families = frontend.packets.families();
        let serves = |family| object.serves(backend.address, backend.forwarding, family);
        has_name && fits(frontend, wanted) && families.iter().any(serves)
    };
    object.frontends.iter().find(is_meant)
}

/// Each backend of a check by way of the service is behind such a frontend.
fn reaches<'a>(
    object: &LoadBalancer,
    check: &DeclaredCheck,
    mut backends: impl Iterator<Item = (usize, &'a Backend)>,
    findings: &mut Findings,
    path: &Path,
) {
    let Some(wanted) = check.probe.protocol().filter(|_| check.via != Via::Direct) else {
        return;
    };
    // One that no frontend serves is an error of its own.
    let is_served = |backend: &Backend| {
        let families = object.families();
        let serves = |family| object.serves(backend.address, backend.forwarding, family);
        families.iter().any(serves)
    };
    let lacking = backends
        .find(|(_, backend)| is_served(backend) && frontend_of(object, backend, check).is_none());
    if let Some((index, backend)) = lacking {
        let message = format!(
            "Service: no frontend that is {wanted} with a port serves backends[{index}] ({}): expected one",
            backend.address
        );
        findings.error(&path.field("via"), message);
    }
}

/// Returns `true` if the frontend that a check names, or any, fits it.
fn by_service(
    object: &LoadBalancer,
    check: &DeclaredCheck,
    findings: &mut Findings,
    path: &Path,
) -> bool {
    let before = findings.errors.len();
    fitting(object, check, findings, path);
    findings.errors.len() == before
}

fn fitting(object: &LoadBalancer, check: &DeclaredCheck, findings: &mut Findings, path: &Path) {
    let (Via::Service { frontend }, Some(wanted)) = (&check.via, check.probe.protocol()) else {
        return;
    };
    let Some(name) = frontend else {
        if !object
            .frontends
            .iter()
            .any(|frontend| fits(frontend, wanted))
        {
            let message = format!("Service: no frontend is {wanted} with a port: expected one");
            findings.error(&path.field("via"), message);
        }
        return;
    };
    let path = path.field("frontend");
    match object
        .frontends
        .iter()
        .find(|frontend| *frontend.name == **name)
    {
        None => findings.error(&path, format!("{name:?}: expected the name of a frontend")),
        Some(frontend) if !fits(frontend, wanted) => {
            let message = format!("{name:?} is not {wanted} with a port: expected one that is");
            findings.error(&path, message);
        }
        Some(_) => {}
    }
}

/// A probe leaves from an address of the family that it goes to.
fn source<'a>(
    check: &DeclaredCheck,
    backends: impl Iterator<Item = &'a Backend>,
    findings: &mut Findings,
    path: &Path,
) {
    let is_sent =
        !matches!(check.probe, Probe::Exec(_) | Probe::File(_)) && check.via == Via::Direct;
    let own = check.source.as_ref().and_then(|source| source.address);
    let Some(own) = own.filter(|_| is_sent) else {
        return;
    };
    let family = Family::of(own);
    let mut goes_to = backends.map(|backend| check.address.unwrap_or(backend.address));
    if let Some(to) = goes_to.find(|to| Family::of(*to) != family) {
        let message = format!(
            "{own} is {family}: expected an {} address, as {to} is",
            Family::of(to)
        );
        findings.error(&path.field("source").field("address"), message);
    }
}

/// A probe to a backend whose port is the frontend's needs one that all its frontends agree on.
fn port(
    object: &LoadBalancer,
    check: &DeclaredCheck,
    backend: Option<u16>,
    findings: &mut Findings,
    path: &Path,
) {
    let fixed = check.port.is_some() || backend.is_some_and(|port| port != 0);
    if check.probe.protocol().is_none() || check.via != Via::Direct || fixed {
        return;
    }
    let mut ports = object
        .frontends
        .iter()
        .map(|frontend| frontend.packets.port());
    let first = ports.next().flatten();
    let agreed = first.is_some() && ports.all(|port| port == first);
    if !agreed {
        let message = "missing: the frontends give backends no port of their own to check";
        findings.error(&path.field("port"), message);
    }
}
