// SPDX-License-Identifier: Apache-2.0

//! Visibility of an export in a cluster, and the reason if it is not visible.

use std::sync::Arc;

use portolan_policy::spec::Action;
use portolan_policy::{ClusterFacts, ServiceFacts, import_decision};

use super::statuses::decision;
use super::{
    Candidate, ExportStatus, Federation, ImportName, Invisible, Member, Ready, ServiceType, Valid,
    World,
};
use crate::gateway::{Path, path};
use crate::vip::{Allocation, VipProblem};

/// An export as a cluster sees it.
#[derive(Debug, Clone)]
pub(super) struct Visible {
    /// Its name here.
    pub(super) name: ImportName,
    /// Its name in the exporting cluster.
    pub(super) source: ImportName,
    /// The ImportPolicy whose nodes get the virtual addresses.
    pub(super) nodes: Option<Arc<str>>,
}

impl Visible {
    /// Of several Services of a cluster with one name here the one that has it there, too, else the
    /// first by namespace.
    pub(super) fn rank(&self) -> (bool, &ImportName) {
        (self.name != self.source, &self.source)
    }
}

/// Visibility of the export of a Service with this status, as far as its cluster and policies are concerned.
pub(super) fn visible(
    world: &World<'_>,
    importing: &Arc<str>,
    exporting: &Arc<str>,
    (service, status): (&ImportName, Option<&ExportStatus>),
) -> Result<Visible, Invisible> {
    let (here, there) = match (world.members.get(importing), world.members.get(exporting)) {
        (Some(here), Some(there)) => (here, there),
        _ => return Err(Invisible::NoExport),
    };
    let candidate = there.exports.get(service);
    let (Some(status), Some(candidate)) = (status, candidate) else {
        return Err(Invisible::NoExport);
    };
    match status.valid {
        Valid::NoService => return Err(Invisible::NoService),
        Valid::InvalidServiceType => return Err(Invisible::WrongType),
        Valid::Valid => {}
    }
    let own = importing == exporting;
    let facts = ClusterFacts {
        name: importing,
        labels: &here.labels,
    };
    let export = decision(world, exporting, there, service, candidate);
    if export.action == Action::Deny {
        return Err(Invisible::ExportDenied(export.because));
    }
    if !own && !export.reaches(&facts) {
        return Err(Invisible::NotTo(export.because));
    }
    let visible = imported(
        world,
        (&facts, here),
        (exporting, there),
        service,
        candidate,
    )?;
    if let Ready::QuotaExceeded(quota) = status.ready {
        return Err(Invisible::Quota(quota));
    }
    match &there.unreachable {
        Some(why) if !own => return Err(Invisible::Unreachable(why.clone())),
        _ => {}
    }
    is_reached(world, importing, exporting, candidate)?;
    Ok(visible)
}

/// Whether connections from one cluster reach what a Service of another has.
fn is_reached(
    world: &World<'_>,
    importing: &str,
    exporting: &str,
    candidate: &Candidate,
) -> Result<(), Invisible> {
    let clusters = &world.objects.clusters;
    let (Some(here), Some(there)) = (clusters.get(importing), clusters.get(exporting)) else {
        return Ok(());
    };
    let is_headless = candidate.service == Some(ServiceType::Headless);
    match path(here, there).map_err(Invisible::NoPath)? {
        Path::Gateways if is_headless => Err(Invisible::HeadlessBehindGateway),
        Path::Gateways | Path::Pods => Ok(()),
    }
}

/// The importing cluster's side.
fn imported(
    world: &World<'_>,
    (facts, here): (&ClusterFacts<'_>, &Member),
    (exporting, there): (&Arc<str>, &Member),
    service: &ImportName,
    candidate: &Candidate,
) -> Result<Visible, Invisible> {
    let exporting = ClusterFacts {
        name: exporting,
        labels: &there.labels,
    };
    // Only exported labels travel.
    let exported = ServiceFacts {
        namespace: &service.namespace,
        name: &service.name,
        labels: &candidate.export.labels,
    };
    let policies = world.objects.imports.values();
    let import = import_decision(world.set, policies, facts, &exporting, &exported);
    if import.action == Action::Deny {
        return Err(Invisible::ImportDenied(import.because));
    }
    let namespace = match import.namespace_as {
        Some(other) => Arc::from(other),
        None => Arc::clone(&service.namespace),
    };
    if !here.namespaces.contains(&namespace) {
        return Err(Invisible::NoNamespace(namespace.to_string()));
    }
    Ok(Visible {
        name: ImportName {
            namespace,
            name: Arc::clone(&service.name),
        },
        source: service.clone(),
        nodes: import.nodes.map(Arc::from),
    })
}

/// Reason why a Service of one cluster is, or is not, part of an import in another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The name of the exporting cluster.
    pub exporting: Arc<str>,
    /// The name of the Service there.
    pub source: ImportName,
    /// The name that it has in the importing cluster, if it is visible.
    pub name: Option<ImportName>,
    /// The first reason why it does not serve there; none if it does.
    pub invisible: Option<Invisible>,
}

impl Federation {
    /// Reason why a Service of one cluster is, or is not, part of an import in another. `vips` is what the
    /// import got, if that is known.
    #[must_use]
    pub fn explain(
        &self,
        world: &World<'_>,
        importing: &Arc<str>,
        exporting: &Arc<str>,
        service: &ImportName,
        vips: Option<&Allocation>,
    ) -> Explained {
        let exports = self.exports.get(exporting);
        let status = exports.and_then(|exports| exports.get(service));
        let visible = visible(world, importing, exporting, (service, status));
        let name = visible.as_ref().ok().map(|visible| visible.name.clone());
        let invisible = match visible {
            Err(reason) => Some(reason),
            Ok(visible) => self.not_serving(world, importing, exporting, &visible, vips),
        };
        Explained {
            exporting: Arc::clone(exporting),
            source: service.clone(),
            name,
            invisible,
        }
    }

    fn not_serving(
        &self,
        world: &World<'_>,
        importing: &Arc<str>,
        exporting: &Arc<str>,
        visible: &Visible,
        vips: Option<&Allocation>,
    ) -> Option<Invisible> {
        let here = self.imports.get(importing)?.get(&visible.name)?;
        let taken = here.sources.get(exporting);
        if let Some(other) = taken.filter(|other| **other != visible.source) {
            return Some(Invisible::NameTaken(other.clone()));
        }
        if here.is_unsupported() {
            return Some(Invisible::NoFamily);
        }
        let member = world.members.get(exporting)?;
        let candidate = member.exports.get(&visible.source);
        if candidate.is_some_and(|candidate| here.misses(candidate)) {
            return Some(Invisible::OtherFamilies);
        }
        let problems = vips.into_iter().flat_map(|vips| &vips.problems);
        let full = problems.filter_map(|problem| match problem {
            VipProblem::Full(family) => Some(Invisible::NoVip(*family)),
            _ => None,
        });
        // One address is enough to be visible.
        let is_without = vips.is_some_and(|vips| vips.ips.is_empty());
        let full = full.take(usize::from(is_without)).next();
        full.or(member.lost.then_some(Invisible::Lost))
    }
}
