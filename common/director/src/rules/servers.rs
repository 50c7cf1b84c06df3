// SPDX-License-Identifier: Apache-2.0

//! Families and ports of servers.

use std::net::IpAddr;

use portolan_model::{Families, Family};

use super::sockets::{Same, Sockets};
use crate::balancer::{self, LoadBalancer};
use crate::convert::Findings;
use crate::document::Method;
use crate::forwarding::Forwarding;
use crate::frontend::{Frontend, Packets};
use crate::read::Path;

pub(super) fn check(object: &LoadBalancer, findings: &mut Findings) {
    let spec = Path::default().field("spec");
    source_nat(object, findings, &spec);
    let families = object.families();
    for (index, backend) in object.backends.iter().enumerate() {
        let path = spec.field("backends").item(index);
        let server = Server {
            address: backend.address,
            port: backend.port,
            forwarding: backend.forwarding,
        };
        server.check(object, families, findings, &path);
    }
    if let Some(sorry) = &object.sorry_server {
        let server = Server {
            address: sorry.address,
            port: sorry.port,
            forwarding: sorry.forwarding,
        };
        server.check(object, families, findings, &spec.field("sorryServer"));
        let mut sockets = Sockets::new(&object.frontends);
        for (index, backend) in object.backends.iter().enumerate() {
            sockets.insert(backend.address, backend.port, index);
        }
        if let Some(Same { index, .. }) = sockets.find(sorry.address, sorry.port) {
            let message = format!("is backends[{index}] too: expected another server");
            findings.error(&spec.field("sorryServer"), message);
        }
    }
}

fn source_nat(object: &LoadBalancer, findings: &mut Findings, spec: &Path) {
    if !object.source_nat {
        return;
    }
    let other = std::iter::once(object.forwarding)
        .chain(object.backends.iter().map(|backend| backend.forwarding))
        .map(Forwarding::method)
        .find(|method| *method != Method::Masquerade);
    if let Some(method) = other {
        let message =
            format!("method {method:?} leaves packets unchanged: expected Masquerade only");
        findings.error(&spec.field("sourceNat"), message);
    }
}

/// A backend or the sorry server.
struct Server {
    address: IpAddr,
    port: Option<u16>,
    forwarding: Forwarding,
}

impl Server {
    fn check(
        &self,
        object: &LoadBalancer,
        families: Families,
        findings: &mut Findings,
        path: &Path,
    ) {
        let own = Family::of(self.address);
        if !matches!(self.forwarding, Forwarding::Tunnel(_)) && !families.contains(own) {
            let frontend = match own {
                Family::V4 => "an IPv6",
                Family::V6 => "an IPv4",
            };
            let message = format!("{own} behind {frontend} frontend: only method Tunnel can");
            findings.error(&path.field("address"), message);
            return;
        }
        let served = object.frontends.iter().filter(|frontend| {
            let families_of = frontend.packets.families();
            families_of
                .iter()
                .any(|family| balancer::serves(families, self.address, self.forwarding, family))
        });
        // One problem per server: more frontends would only say the same again.
        let problem = served
            .filter_map(|frontend| self.port_problem(frontend, object.persistence.is_some()))
            .next();
        if let Some(message) = problem {
            findings.error(&path.field("port"), message);
        }
    }

    /// Reason why the server's port does not fit a frontend.
    fn port_problem(&self, frontend: &Frontend, persistent: bool) -> Option<String> {
        let port = self.port?;
        let method = self.forwarding.method();
        match &frontend.packets {
            Packets::Port { port: 0, .. } if port != 0 => Some(format!(
                "{port}: frontend {} has all ports: expected 0",
                frontend.name
            )),
            Packets::Port { port: wanted, .. } if *wanted != 0 && port == 0 => Some(format!(
                "0: frontend {} has the one port {wanted}: expected 1 to 65535",
                frontend.name
            )),
            Packets::Port { port: wanted, .. }
                if port != *wanted && !self.forwarding.translates_ports() =>
            {
                Some(format!(
                    "{port} is not the frontend's {wanted}: method {method:?} does not translate ports"
                ))
            }
            Packets::Ranges { .. } | Packets::Mark { .. }
                if port != 0 && !self.forwarding.translates_ports() =>
            {
                Some(format!(
                    "{port}: frontend {} is by mark and method {method:?} does not translate ports: expected 0",
                    frontend.name
                ))
            }
            Packets::Ranges { .. } | Packets::Mark { .. } if port != 0 && persistent => {
                Some(format!(
                    "{port}: frontend {} is by mark and with persistence ports are not translated: expected 0",
                    frontend.name
                ))
            }
            _ => None,
        }
    }
}
