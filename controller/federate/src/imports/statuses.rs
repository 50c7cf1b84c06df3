// SPDX-License-Identifier: Apache-2.0

//! Exports of a cluster: policies, types and quotas.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_policy::spec::Action;
use portolan_policy::{ClusterFacts, ExportDecision, ServiceFacts, export_decision};

use super::{Candidate, ExportStatus, ImportName, Member, Quota, Ready, ServiceType, Valid, World};

/// The statuses of a cluster's exports, before anybody imports them.
pub(super) fn statuses(
    world: &World<'_>,
    name: &str,
    member: &Member,
) -> BTreeMap<ImportName, ExportStatus> {
    let decisions = member.exports.iter().filter_map(|(service, candidate)| {
        let decision = decision(world, name, member, service, candidate);
        let exported = candidate.requested || decision.automatic;
        exported.then_some((service, candidate, decision))
    });
    let decisions: Vec<_> = decisions.collect();
    let allowed = decisions.iter().filter(|(_, candidate, decision)| {
        validity(candidate) == Valid::Valid && decision.action == Action::Allow
    });
    let allowed = allowed.map(|(service, candidate, _)| (*service, *candidate));
    let beyond = beyond(member, allowed.collect());
    let statuses = decisions.into_iter().map(|(service, candidate, decision)| {
        let valid = validity(candidate);
        let ready = match decision.action {
            _ if valid != Valid::Valid => Ready::Failed,
            Action::Deny => Ready::DeniedByPolicy,
            Action::Allow => match beyond.get(service) {
                Some(quota) => Ready::QuotaExceeded(*quota),
                None => Ready::Exported,
            },
        };
        let status = ExportStatus {
            valid,
            ready,
            conflicts: Vec::new(),
            importers: Arc::default(),
        };
        (service.clone(), status)
    });
    statuses.collect()
}

/// The exports beyond a quota of their cluster. The order is that of age, so that a new export takes nothing from an
/// older one. All that are newer than one beyond the endpoints are beyond them as well: a small one takes no place that
/// an older one waits for.
fn beyond<'m>(
    member: &Member,
    mut allowed: Vec<(&'m ImportName, &Candidate)>,
) -> BTreeMap<&'m ImportName, Quota> {
    allowed.sort_by_key(|(service, candidate)| {
        let created = candidate.export.created;
        (created.is_none(), created, *service)
    });
    let most = usize::try_from(member.max_exports).unwrap_or(usize::MAX);
    let mut endpoints = 0_u64;
    let mut quota = |(index, candidate): (usize, &Candidate)| {
        endpoints += u64::from(candidate.ready_endpoints);
        if index >= most {
            Some(Quota::Exports(member.max_exports))
        } else if endpoints > member.max_endpoints.into() {
            Some(Quota::Endpoints(member.max_endpoints))
        } else {
            None
        }
    };
    let allowed = allowed.into_iter().enumerate();
    allowed
        .filter_map(|(index, (service, candidate))| Some((service, quota((index, candidate))?)))
        .collect()
}

fn validity(candidate: &Candidate) -> Valid {
    match candidate.service {
        None => Valid::NoService,
        Some(ServiceType::ExternalName) => Valid::InvalidServiceType,
        // The order of clusters means nothing where DNS names all endpoints.
        Some(ServiceType::Headless) if !candidate.export.cluster_selectors.is_empty() => {
            Valid::InvalidServiceType
        }
        Some(_) => Valid::Valid,
    }
}

pub(super) fn decision<'w>(
    world: &World<'w>,
    name: &str,
    member: &Member,
    service: &ImportName,
    candidate: &Candidate,
) -> ExportDecision<'w> {
    let cluster = ClusterFacts {
        name,
        labels: &member.labels,
    };
    let service = ServiceFacts {
        namespace: &service.namespace,
        name: &service.name,
        labels: &candidate.labels,
    };
    export_decision(
        world.set,
        world.objects.exports.values(),
        &cluster,
        &service,
    )
}
