// SPDX-License-Identifier: Apache-2.0

//! `LoadBalancer` objects.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use portolan_model::check::{self, HealthPolicy};

use super::{Findings, bounded, check as checks, forwarding, frontend, program, unicast};
use crate::balancer::{Backend, Hooks, LoadBalancer, SorryServer};
use crate::document::{
    BackendDocument, DEFAULT_NAMESPACE, ForwardingDocument, HealthDocument, InitialState,
    LoadBalancerDocument, LoadBalancerSpec, OnFailure, Period, SchedulerFlag, SchedulerName,
    SorryServerDocument,
};
use crate::forwarding::{Forwarding, Thresholds};
use crate::frontend::Frontend;
use crate::object::{ObjectName, Tags};
use crate::read::Path;
use crate::rules::{self, Same, Sockets};

/// The longest drain and slow start.
const LONGEST: u64 = 7 * 86_400;

/// The object that a document declares. Worth something only if there are no errors.
pub(crate) fn load_balancer(
    document: &LoadBalancerDocument,
    findings: &mut Findings,
) -> LoadBalancer {
    let spec = &document.spec;
    let path = Path::default().field("spec");
    let scheduler = spec.scheduler.unwrap_or(SchedulerName::Wlc);
    let forwarding = spec
        .forwarding
        .as_ref()
        .map_or(Forwarding::default(), |document| {
            forwarding::forwarding(findings, &path.field("forwarding"), document)
        });
    let frontends = frontend::frontends(findings, &path.field("frontends"), &spec.frontends);
    let backends = backends(
        findings,
        &path.field("backends"),
        spec,
        &frontends,
        forwarding,
    );
    let object = LoadBalancer {
        name: ObjectName {
            namespace: document
                .metadata
                .namespace
                .clone()
                .unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()),
            name: document.metadata.name.clone(),
        },
        tags: Tags {
            labels: document.metadata.labels.clone(),
            annotations: document.metadata.annotations.clone(),
            resource_version: document.metadata.revision(),
        },
        frontends,
        scheduler,
        scheduler_flags: scheduler_flags(spec, scheduler),
        one_packet: spec.one_packet,
        persistence: spec.persistence.as_ref().map(|document| {
            forwarding::persistence(findings, &path.field("persistence"), document)
        }),
        forwarding,
        source_nat: spec.source_nat,
        backends,
        sorry_server: spec.sorry_server.as_ref().map(|document| {
            sorry_server(findings, &path.field("sorryServer"), document, forwarding)
        }),
        checks: checks::checks(findings, &path.field("checks"), &spec.checks),
        health: spec
            .health
            .as_ref()
            .map_or_else(HealthPolicy::default, |document| {
                health(findings, &path.field("health"), document)
            }),
        drain_timeout: spec
            .drain_timeout
            .map(|time| up_to_a_week(findings, &path.field("drainTimeout"), time)),
        hooks: hooks(findings, &path.field("hooks"), spec),
        announce: spec.announce.unwrap_or_default(),
        node_selector: spec.node_selector.clone(),
    };
    rules::check(&object, findings);
    object
}

fn up_to_a_week(findings: &mut Findings, path: &Path, time: Period) -> Duration {
    bounded(
        findings,
        path,
        time,
        (Period::default(), Period::seconds(LONGEST)),
    )
}

/// The flags of the file, or else those without which clients are refused.
fn scheduler_flags(spec: &LoadBalancerSpec, scheduler: SchedulerName) -> BTreeSet<SchedulerFlag> {
    match &spec.scheduler_flags {
        Some(flags) => flags.iter().copied().collect(),
        None if scheduler.hashes_source() => BTreeSet::from([SchedulerFlag::Fallback]),
        None => BTreeSet::new(),
    }
}

fn backends(
    findings: &mut Findings,
    path: &Path,
    spec: &LoadBalancerSpec,
    frontends: &[Frontend],
    inherited: Forwarding,
) -> Vec<Backend> {
    let mut backends = Vec::with_capacity(spec.backends.len());
    let mut names = HashMap::new();
    // Ports of frontends that are wrong by themselves say nothing about backends.
    let is_known = !findings.is_broken("spec.frontends");
    let mut sockets = Sockets::new(if is_known { frontends } else { &[] });
    for (index, document) in spec.backends.iter().enumerate() {
        let path = path.item(index);
        let backend = backend(findings, &path, document, inherited);
        let same = sockets.find(backend.address, backend.port);
        sockets.insert(backend.address, backend.port, index);
        if let Some(Same { index: first, port }) = same {
            let message = format!(
                "{} is backends[{first}] too: expected each address and port once",
                Backend::default_name(backend.address, port)
            );
            findings.error(&path, message);
        } else if let Some(first) = names.insert(backend.name.clone(), index) {
            let message = format!(
                "{} is the name of backends[{first}] too: expected a name of its own",
                backend.name
            );
            findings.error(&path.field("name"), message);
        }
        backends.push(backend);
    }
    backends
}

fn backend(
    findings: &mut Findings,
    path: &Path,
    document: &BackendDocument,
    inherited: Forwarding,
) -> Backend {
    unicast(findings, &path.field("address"), document.address);
    let thresholds = Thresholds {
        maximum: document.max_connections,
        resume: document.resume_connections,
    };
    if thresholds.resume > thresholds.maximum {
        let message = format!(
            "{} is more than maxConnections {}: expected at most that",
            thresholds.resume, thresholds.maximum
        );
        findings.error(&path.field("resumeConnections"), message);
    }
    let default_name = || Backend::default_name(document.address, document.port);
    Backend {
        name: document.name.clone().unwrap_or_else(default_name),
        address: document.address,
        port: document.port,
        weight: document.weight.unwrap_or(1),
        thresholds,
        forwarding: own_forwarding(findings, path, document.forwarding.as_ref(), inherited),
        checks: document
            .checks
            .as_ref()
            .map(|documents| checks::checks(findings, &path.field("checks"), documents)),
        administrative_state: document.administrative_state.unwrap_or_default(),
    }
}

fn own_forwarding(
    findings: &mut Findings,
    path: &Path,
    own: Option<&ForwardingDocument>,
    inherited: Forwarding,
) -> Forwarding {
    own.map_or(inherited, |document| {
        forwarding::forwarding(findings, &path.field("forwarding"), document)
    })
}

fn sorry_server(
    findings: &mut Findings,
    path: &Path,
    document: &SorryServerDocument,
    inherited: Forwarding,
) -> SorryServer {
    unicast(findings, &path.field("address"), document.address);
    SorryServer {
        address: document.address,
        port: document.port,
        forwarding: own_forwarding(findings, path, document.forwarding.as_ref(), inherited),
        keep_idle: document.keep_idle,
    }
}

fn health(findings: &mut Findings, path: &Path, document: &HealthDocument) -> HealthPolicy {
    let quorum = document.quorum.unwrap_or(1);
    if document.hysteresis >= quorum {
        let message = format!(
            "{} is not below the quorum {quorum}: expected 0 to {}",
            document.hysteresis,
            quorum.saturating_sub(1)
        );
        findings.error(&path.field("hysteresis"), message);
    }
    HealthPolicy {
        initial_state: match document.initial_state {
            None | Some(InitialState::Probe) => check::InitialState::Probe,
            Some(InitialState::Up) => check::InitialState::Up,
        },
        on_failure: match document.on_failure {
            None | Some(OnFailure::Quiesce) => check::OnFailure::Quiesce,
            Some(OnFailure::Remove) => check::OnFailure::Remove,
        },
        quorum,
        hysteresis: document.hysteresis,
        minimum_healthy_percent: u8::try_from(document.minimum_healthy_percent).unwrap_or(100),
        slow_start: up_to_a_week(
            findings,
            &path.field("slowStart"),
            document.slow_start.unwrap_or_default(),
        ),
    }
}

fn hooks(findings: &mut Findings, path: &Path, spec: &LoadBalancerSpec) -> Hooks {
    let document = spec.hooks.clone().unwrap_or_default();
    program(findings, &path.field("onQuorum"), &document.on_quorum);
    program(findings, &path.field("onBackend"), &document.on_backend);
    Hooks {
        on_quorum: document.on_quorum,
        on_backend: document.on_backend,
    }
}
