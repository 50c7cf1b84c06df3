// SPDX-License-Identifier: Apache-2.0

//! Fields that all kinds of health checks have.

use std::sync::Arc;

use portolan_model::check::{Probe, Source, Via};

use super::probe::probe;
use super::{Findings, bounded};
use crate::check::{DeclaredCheck, DeclaredTimers};
use crate::document::{CheckDefaultsDocument, CheckDocument, Period, SourceDocument, ViaName};
use crate::read::Path;

pub(super) fn checks(
    findings: &mut Findings,
    path: &Path,
    documents: &[CheckDocument],
) -> Vec<DeclaredCheck> {
    let checks = documents.iter().enumerate();
    checks
        .map(|(index, document)| check(findings, &path.item(index), document))
        .collect()
}

fn check(findings: &mut Findings, path: &Path, document: &CheckDocument) -> DeclaredCheck {
    let probe = probe(findings, path, document);
    let via = match document.via {
        Some(ViaName::Service) => Via::Service {
            frontend: document.frontend.as_deref().map(Arc::from),
        },
        None | Some(ViaName::Direct) => {
            if document.frontend.is_some() {
                findings.error(
                    &path.field("frontend"),
                    "via Direct has none: expected with via Service only",
                );
            }
            Via::Direct
        }
    };
    if via != Via::Direct {
        by_service(findings, path, document, &probe);
    }
    if matches!(probe, Probe::Agent(_)) && document.port.is_none() {
        findings.error(
            &path.field("port"),
            "missing: kind agent needs the agent's port",
        );
    }
    DeclaredCheck {
        probe,
        address: document.address,
        port: document.port,
        via,
        source: document.source.as_ref().map(source),
        timers: timers(findings, path, &timers_of(document)),
        log_failures: document.log_failures,
    }
}

/// A check by way of the service goes to the virtual address and its port.
fn by_service(findings: &mut Findings, path: &Path, document: &CheckDocument, probe: &Probe) {
    let kind = match probe {
        Probe::Icmp => Some("icmp"),
        Probe::Exec(_) => Some("exec"),
        Probe::File(_) => Some("file"),
        // It has a port of its own, which no frontend has.
        Probe::Agent(_) => Some("agent"),
        _ => None,
    };
    if let Some(kind) = kind {
        let message = format!("Service: kind {kind} does not go by way of it: expected Direct");
        findings.error(&path.field("via"), message);
    }
    if document.address.is_some() {
        let message = "via Service goes to the frontend's: expected with via Direct only";
        findings.error(&path.field("address"), message);
    }
    if document.port.is_some() && !matches!(probe, Probe::Agent(_)) {
        let message = "via Service goes to the frontend's: expected with via Direct only";
        findings.error(&path.field("port"), message);
    }
    if document
        .source
        .as_ref()
        .is_some_and(|source| source.mark.is_some())
    {
        let message = "via Service has a mark of the agent's: expected with via Direct only";
        findings.error(&path.field("source").field("mark"), message);
    }
}

pub(super) fn source(document: &SourceDocument) -> Source {
    Source {
        address: document.address,
        interface: document.interface.as_deref().map(Arc::from),
        mark: document.mark,
    }
}

fn timers_of(document: &CheckDocument) -> CheckDefaultsDocument {
    CheckDefaultsDocument {
        interval: document.interval,
        fast_interval: document.fast_interval,
        timeout: document.timeout,
        rise: document.rise,
        fall: document.fall,
    }
}

pub(super) fn timers(
    findings: &mut Findings,
    path: &Path,
    document: &CheckDefaultsDocument,
) -> DeclaredTimers {
    let millis = |millis| Period::new(std::time::Duration::from_millis(millis));
    let intervals = (millis(100), Period::seconds(86_400));
    let timeouts = (millis(10), Period::seconds(3600));
    let mut within = |name, period: Option<Period>, bounds| {
        period.map(|period| bounded(findings, &path.field(name), period, bounds))
    };
    DeclaredTimers {
        interval: within("interval", document.interval, intervals),
        fast_interval: within("fastInterval", document.fast_interval, intervals),
        timeout: within("timeout", document.timeout, timeouts),
        rise: document.rise,
        fall: document.fall,
    }
}
