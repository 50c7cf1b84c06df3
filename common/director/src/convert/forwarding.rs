// SPDX-License-Identifier: Apache-2.0

//! Forwarding and persistence.

use super::{Findings, bounded_seconds};
use crate::document::{
    ForwardingDocument, Method, Period, PersistenceDocument, TunnelChecksum, TunnelDocument,
    TunnelKind,
};
use crate::forwarding::{Forwarding, Persistence, Tunnel};
use crate::read::Path;

pub(super) fn forwarding(
    findings: &mut Findings,
    path: &Path,
    document: &ForwardingDocument,
) -> Forwarding {
    let method = document.method.unwrap_or(Method::Masquerade);
    if method != Method::Tunnel && document.tunnel.is_some() {
        let message = format!("method {method:?} has none: expected with method Tunnel only");
        findings.error(&path.field("tunnel"), message);
    }
    match method {
        Method::Masquerade => Forwarding::Masquerade,
        Method::Direct => Forwarding::Direct,
        Method::Tunnel => {
            let default = TunnelDocument::default();
            let document = document.tunnel.as_ref().unwrap_or(&default);
            Forwarding::Tunnel(tunnel(findings, &path.field("tunnel"), document))
        }
    }
}

fn tunnel(findings: &mut Findings, path: &Path, document: &TunnelDocument) -> Tunnel {
    let kind = document.kind.unwrap_or(TunnelKind::Ipip);
    let checksum = document.checksum.unwrap_or(TunnelChecksum::None);
    if kind != TunnelKind::Gue && document.port.is_some() {
        let message = "the type has no port: expected with type GUE only";
        findings.error(&path.field("port"), message);
    }
    let allowed = match kind {
        TunnelKind::Ipip => checksum == TunnelChecksum::None,
        TunnelKind::Gre => checksum != TunnelChecksum::Remote,
        TunnelKind::Gue => true,
    };
    if !allowed {
        let expected = match kind {
            TunnelKind::Ipip => "type IPIP has no checksum: expected None",
            _ => "type GRE has no remote checksum: expected None or Full",
        };
        findings.error(&path.field("checksum"), expected);
    }
    match kind {
        TunnelKind::Ipip => Tunnel::Ipip,
        TunnelKind::Gre => Tunnel::Gre {
            checksum: checksum == TunnelChecksum::Full,
        },
        TunnelKind::Gue => {
            if document.port.is_none() {
                findings.error(
                    &path.field("port"),
                    "missing: type GUE needs the server's UDP port",
                );
            }
            Tunnel::Gue {
                port: document.port.unwrap_or_default(),
                checksum,
            }
        }
    }
}

pub(super) fn persistence(
    findings: &mut Findings,
    path: &Path,
    document: &PersistenceDocument,
) -> Persistence {
    let default = Persistence::default();
    let bounds = (Period::seconds(1), Period::seconds(31 * 86_400));
    let timeout = document.timeout.map_or(default.timeout, |timeout| {
        bounded_seconds(findings, &path.field("timeout"), timeout, bounds)
    });
    Persistence {
        timeout,
        ipv4_prefix_length: document.ipv4_prefix_length.unwrap_or(32),
        ipv6_prefix_length: document.ipv6_prefix_length.unwrap_or(128),
        engine: document.engine,
    }
}
