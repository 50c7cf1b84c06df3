// SPDX-License-Identifier: Apache-2.0

//! Health checks against frontends and backends.

use portolan_model::Protocol;
use portolan_model::check::Via;

use crate::balancer::LoadBalancer;
use crate::check::DeclaredCheck;
use crate::convert::Findings;
use crate::frontend::{Frontend, Packets};
use crate::read::Path;

pub(super) fn check(object: &LoadBalancer, findings: &mut Findings) {
    let spec = Path::default().field("spec");
    for (index, check) in object.checks.iter().enumerate() {
        let path = spec.field("checks").item(index);
        by_service(object, check, findings, &path);
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
            by_service(object, check, findings, &path);
            port(object, check, backend.port, findings, &path);
        }
    }
}

/// Whether a probe by way of a frontend has an address and a port to go to.
pub(crate) fn fits(frontend: &Frontend, wanted: Protocol) -> bool {
    match &frontend.packets {
        Packets::Port { protocol, port, .. } => *protocol == wanted && *port != 0,
        Packets::Ranges { protocol, .. } => *protocol == wanted,
        Packets::Mark { .. } => false,
    }
}

fn by_service(object: &LoadBalancer, check: &DeclaredCheck, findings: &mut Findings, path: &Path) {
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
