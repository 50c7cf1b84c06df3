// SPDX-License-Identifier: Apache-2.0

//! TLS of health checks.

use portolan_model::check::{TlsProbe, Verify};

use super::{Findings, host};
use crate::document::{TlsDocument, VerifyName};
use crate::read::Path;

/// Over TLS, HTTP/2 is spoken only if the server was offered it and has chosen it.
pub(super) fn offers_http2(findings: &mut Findings, path: &Path, document: &TlsDocument) {
    if !document.alpn.is_empty() && !document.alpn.iter().any(|name| name == "h2") {
        findings.error(
            &path.field("alpn"),
            "lacks h2, by which HTTP/2 is chosen: expected it",
        );
    }
}

pub(super) fn tls(findings: &mut Findings, path: &Path, document: &TlsDocument) -> TlsProbe {
    if let Some(name) = &document.server_name {
        host::server_name(findings, &path.field("serverName"), name);
    }
    let verify = match (document.verify, &document.ca) {
        (Some(VerifyName::Ca), Some(ca)) => Verify::Ca(ca.clone()),
        (Some(VerifyName::Ca), None) => {
            findings.error(
                &path.field("ca"),
                "missing: verify Ca needs the authorities' file",
            );
            Verify::None
        }
        (verify, ca) => {
            if ca.is_some() {
                let message = "authorities are not asked for: expected with verify Ca only";
                findings.error(&path.field("ca"), message);
            }
            match verify {
                Some(VerifyName::System) => Verify::System,
                _ => Verify::None,
            }
        }
    };
    if document.certificate.is_some() != document.key.is_some() {
        findings.error(
            path,
            "has one of certificate and key: expected both or none",
        );
    }
    for (index, name) in document.alpn.iter().enumerate() {
        if name.is_empty() || name.len() > 255 {
            let message = format!("{name:?}: expected a protocol of 1 to 255 bytes");
            findings.error(&path.field("alpn").item(index), message);
        }
    }
    TlsProbe {
        server_name: document.server_name.clone(),
        verify,
        certificate: document.certificate.clone(),
        key: document.key.clone(),
        alpn: document.alpn.clone(),
        minimum_days_valid: document.minimum_days_valid,
    }
}
