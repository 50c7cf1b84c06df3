// SPDX-License-Identifier: Apache-2.0

//! Imports of each cluster: policies, exports and namespaces together.
//!
//! An export is visible in a cluster if it is good, ExportPolicies allow it and that cluster,
//! ImportPolicies of that cluster allow it, and the namespace that it has there exists. The visible
//! exports of one name are merged into the import of that cluster. So imports of one name may differ
//! from cluster to cluster.
//!
//! [`imports`] computes everything anew, and [`Federation::renew`] what a change of exports affects.

mod reason;
mod renew;
mod shared;
mod statuses;
mod traffic;
mod visible;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;
use portolan_model::{Families, Family};
use portolan_policy::{ClusterSet, Labels, Objects};

pub use crate::vip::ImportName;
pub use reason::{Invisible, Quota, Ready, Valid};
pub use renew::Renewal;
pub use traffic::{ImportRecord, Traffic, TrafficReason};
pub use visible::Explained;

use crate::merge::{Conflict, ConflictReason, Export, Import, ImportKind};
use shared::Merges;
use statuses::statuses;

/// Everything that the imports depend on.
#[derive(Debug, Clone)]
pub struct World<'a> {
    /// The set.
    pub set: &'a ClusterSet,
    /// The policies.
    pub objects: &'a Objects,
    /// The clusters that may be members, by the name of their Cluster object.
    pub members: BTreeMap<Arc<str>, Member>,
}

/// Known facts about a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: Arc<str>,
    /// Labels and properties together ([`portolan_policy::Cluster::labels`]).
    pub labels: Labels,
    /// The namespaces that exist there.
    pub namespaces: BTreeSet<Arc<str>>,
    /// The families that it has ranges of virtual addresses of.
    pub ranges: Families,
    /// Whether it is lost.
    pub lost: bool,
    /// Reason why other clusters cannot use its exports, if they cannot: an overlap of networks.
    pub unreachable: Option<String>,
    /// The most exports; the newest ones beyond it are refused.
    pub max_exports: u32,
    /// The most ready endpoints of all exports together; the newest exports beyond it are refused.
    pub max_endpoints: u32,
    /// The Services with a ServiceExport, and where policies export without one all Services.
    pub exports: BTreeMap<ImportName, Candidate>,
    /// The ids of winning clusters, from annotations of its present ServiceImports.
    pub winners: BTreeMap<ImportName, Arc<str>>,
}

/// A Service that is exported, or may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Whether there is a ServiceExport.
    pub requested: bool,
    /// The type of the Service; none if it does not exist.
    pub service: Option<ServiceType>,
    /// The labels of the Service.
    pub labels: Labels,
    /// The weight that its owner gives the cluster (annotation `portolan.dev/cluster-weight`), 0 to
    /// 1000.
    pub weight: Option<u16>,
    /// Number of ready endpoints that imports may use.
    pub ready_endpoints: u32,
    /// Export, which becomes part of imports.
    pub export: Export,
}

/// The type of a Service, as far as exports are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceType {
    /// With a cluster IP.
    ClusterIp,
    /// Without.
    Headless,
    /// A name alone: it cannot be exported.
    ExternalName,
}

/// An import in one cluster. Imports of one name in many clusters are mostly alike, so they share their
/// parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportHere {
    /// Import that the exports that are visible here make together.
    pub import: Arc<Import>,
    /// The families that it needs virtual addresses of, in order; none if it is headless. An import
    /// with addresses that has none is not supported here (`IPFamilyNotSupported`).
    pub families: Vec<Family>,
    /// By name of the exporting cluster, the name that the Service has there.
    pub sources: Arc<BTreeMap<Arc<str>, ImportName>>,
    /// The ImportPolicy whose nodes get the virtual addresses, that of the winner; all nodes if none.
    pub nodes: Option<Arc<str>>,
    /// Distribution of connections.
    pub traffic: Arc<Traffic>,
}

impl ImportHere {
    /// Returns `true` if the cluster has no range for the import.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.import.kind == ImportKind::ClusterSetIp && self.families.is_empty()
    }

    /// Returns `true` if an export has none of the families that the import has addresses of here: connections from
    /// this cluster reach none of its endpoints.
    fn misses(&self, candidate: &Candidate) -> bool {
        let mut families = candidate.export.families.iter();
        !self.families.is_empty() && !families.any(|family| self.families.contains(family))
    }

    /// The conflict that the ranges of the importing cluster make: some exports have a family of the winner's, but none
    /// that there are addresses of here.
    fn conflict_here(&self, world: &World<'_>) -> Option<Conflict> {
        if self.families.is_empty() || self.families == self.import.families {
            // There is no address at all, or all conflicts are with the winner: the import has these.
            return None;
        }
        let missed = self.sources.iter().filter_map(|(exporting, source)| {
            let member = world.members.get(exporting)?;
            let candidate = member.exports.get(source)?;
            self.misses(candidate).then(|| Arc::clone(&member.id))
        });
        let others: BTreeSet<_> = missed.collect();
        (!others.is_empty()).then(|| Conflict {
            reason: ConflictReason::IpFamily,
            winner: Arc::clone(&self.import.winner),
            others,
            of: self.sources.len(),
        })
    }
}

/// Content of the status of a ServiceExport.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportStatus {
    /// The condition `Valid`.
    pub valid: Valid,
    /// The condition `Ready`.
    pub ready: Ready,
    /// The condition `Conflict`: of each reason the conflict in the first importing cluster that has
    /// it.
    pub conflicts: Vec<Conflict>,
    /// The names of the clusters that import it.
    pub importers: Arc<BTreeSet<Arc<str>>>,
}

/// The statuses of exports, by name of the cluster.
type Statuses = BTreeMap<Arc<str>, BTreeMap<ImportName, ExportStatus>>;

/// Values by name, without order. Single ones of thousands are looked up, and most of the time of a lookup in a sorted
/// map is for comparing names. They come from tenants: the seed of the hash is random in each process.
pub type ByName<T> = HashMap<ImportName, T, RandomState>;

/// All imports and the statuses of all exports, by name of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Federation {
    /// By importing cluster.
    pub imports: BTreeMap<Arc<str>, ByName<ImportHere>>,
    /// By exporting cluster.
    pub exports: BTreeMap<Arc<str>, ByName<ExportStatus>>,
}

/// All imports and the statuses of all exports.
#[must_use]
pub fn imports(world: &World<'_>) -> Federation {
    let mut federation = Federation::default();
    // By name, since imports of a name depend on no Service of another one.
    let mut by_name: BTreeMap<Arc<str>, Statuses> = BTreeMap::new();
    for (cluster, member) in &world.members {
        for (service, status) in statuses(world, cluster, member) {
            let of_name = by_name.entry(Arc::clone(&service.name)).or_default();
            let of_cluster = of_name.entry(Arc::clone(cluster)).or_default();
            of_cluster.insert(service, status);
        }
        let cluster = || Arc::clone(cluster);
        federation.exports.insert(cluster(), ByName::default());
        federation.imports.insert(cluster(), ByName::default());
    }
    for mut exports in by_name.into_values() {
        let imports = imports_of(world, &mut exports);
        for (cluster, of_cluster) in imports {
            let all = federation.imports.entry(cluster).or_default();
            for (name, here) in of_cluster {
                shared::insert(all, name, here);
            }
        }
        for (cluster, of_cluster) in exports {
            federation
                .exports
                .entry(cluster)
                .or_default()
                .extend(of_cluster);
        }
    }
    federation
}

/// The imports that these exports make, by importing cluster; notes them in the statuses.
fn imports_of(
    world: &World<'_>,
    exports: &mut Statuses,
) -> BTreeMap<Arc<str>, BTreeMap<ImportName, ImportHere>> {
    let mut merges = Merges::default();
    let importing = world.members.keys().map(|importing| {
        let here = here(world, importing, exports, &mut merges);
        for import in here.values() {
            note(world, exports, importing, import);
        }
        (Arc::clone(importing), here)
    });
    let imports = importing.collect();
    shared::share_importers(exports);
    imports
}

/// The imports of one cluster.
fn here(
    world: &World<'_>,
    importing: &Arc<str>,
    statuses: &Statuses,
    merges: &mut Merges,
) -> BTreeMap<ImportName, ImportHere> {
    let Some(member) = world.members.get(importing) else {
        return BTreeMap::new();
    };
    let mut groups: BTreeMap<ImportName, BTreeMap<Arc<str>, visible::Visible>> = BTreeMap::new();
    for (exporting, exports) in statuses {
        for (service, status) in exports {
            let export = (service, Some(status));
            let Ok(visible) = visible::visible(world, importing, exporting, export) else {
                continue;
            };
            let group = groups.entry(visible.name.clone()).or_default();
            // A cluster has a name once: its own namespace before one that is given that name.
            let is_first = group
                .get(exporting)
                .is_none_or(|other| visible.rank() < other.rank());
            if is_first {
                group.insert(Arc::clone(exporting), visible);
            }
        }
    }
    let imports = groups.into_iter().filter_map(|(name, group)| {
        let here = import_here(world, importing, member, &name, &group, merges)?;
        Some((name, here))
    });
    imports.collect()
}

fn import_here(
    world: &World<'_>,
    importing: &Arc<str>,
    member: &Member,
    name: &ImportName,
    group: &BTreeMap<Arc<str>, visible::Visible>,
    merges: &mut Merges,
) -> Option<ImportHere> {
    let candidates: BTreeMap<&Arc<str>, &Candidate> = group
        .iter()
        .filter_map(|(exporting, visible)| {
            let exports = &world.members.get(exporting)?.exports;
            Some((exporting, exports.get(&visible.source)?))
        })
        .collect();
    let last_winner = member.winners.get(name);
    let (sources, import) = merges.merge(group, last_winner, &candidates)?;
    let traffic = traffic::traffic(world, importing, name, &import, &candidates);
    let nodes = group.iter().find_map(|(exporting, visible)| {
        let is_winner = world.members.get(exporting)?.id == import.winner;
        is_winner.then(|| visible.nodes.clone())?
    });
    let families = match import.kind {
        ImportKind::ClusterSetIp => import.families_in(member.ranges),
        ImportKind::Headless => Vec::new(),
    };
    Some(ImportHere {
        families,
        sources,
        nodes,
        traffic: Arc::new(traffic),
        import,
    })
}

/// Notes an import in the statuses of its exports.
fn note(world: &World<'_>, exports: &mut Statuses, importing: &Arc<str>, here: &ImportHere) {
    let conflict_here = here.conflict_here(world);
    for (exporting, source) in &*here.sources {
        let status = exports
            .get_mut(exporting)
            .and_then(|exports| exports.get_mut(source));
        let Some(status) = status else {
            continue;
        };
        Arc::make_mut(&mut status.importers).insert(Arc::clone(importing));
        for conflict in here.import.conflicts.iter().chain(&conflict_here) {
            let mut known = status.conflicts.iter();
            if !known.any(|known| known.reason == conflict.reason) {
                status.conflicts.push(conflict.clone());
            }
        }
        status.conflicts.sort_by_key(|conflict| conflict.reason);
    }
}
