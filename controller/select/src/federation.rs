// SPDX-License-Identifier: Apache-2.0

//! Imports: Services of several clusters as records of the clusters that import them.
//!
//! An import is a Service of the importing cluster with the name `NAME@clusterset`, which no Service has,
//! and with virtual addresses in place of cluster IPs. The plan says which imports exist; it is computed
//! anew when namespaces, policies or members change, and for the names of exports that change. Records
//! are computed by import, when an endpoint, a state or an address of it changes.

mod adopted;
mod counts;
mod export;
mod exporters;
mod gateway;
mod given;
mod input;
mod mcs;
mod named;
mod node_groups;
mod noted;
mod planned;
mod plans;
mod publish;
mod quota;
mod refresh;
mod renew;
mod shown;
#[cfg(test)]
mod tests;
mod users;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{FieldProblem, ObjectKey, ObjectRef};
use portolan_federate::gateway::Gateways;
use portolan_federate::imports::{Federation as Plan, ImportHere, ImportName};
use portolan_federate::merge::ImportKind;
use portolan_model::{Family, Scope};
use portolan_policy::{ClusterSet, Objects};

pub use counts::FederationCounts;
pub(crate) use exporters::Seen;
pub use gateway::GatewayPorts;
pub(crate) use gateway::exported_service;
use given::Given;
pub use input::{ClusterState, Kept};
pub use named::{NamedEndpoint, NamedImport};
pub use planned::{PlannedImport, PlannedShares};
pub use plans::{PlanBook, Replanned};
pub(crate) use publish::Extent;
use quota::ReadyEndpoints;
pub use shown::{ShownCluster, ShownExport, ShownGateway, ShownImport, ShownPort};
use users::Users;

/// Ends the names of imports.
const SUFFIX: &str = Scope::CLUSTER_SET;

/// Returns `true` if a Service is an import.
pub(crate) fn is_import(service: &ObjectKey) -> bool {
    service.name.ends_with(SUFFIX)
}

/// The Service of the importing cluster that has the name of an import there, whether it exists or not; none for other
/// Services.
pub(crate) fn own_service(import: &ObjectKey) -> Option<ObjectKey> {
    let name = import.name.strip_suffix(SUFFIX)?.into();
    Some(ObjectKey {
        name,
        ..import.clone()
    })
}

/// Returns `true` if a Service is an import, or an export at gateways: either has no object of its
/// own.
pub(crate) fn is_federated(service: &ObjectKey) -> bool {
    is_import(service) || exported_service(service).is_some()
}

/// The key of an import in a cluster.
#[must_use]
pub fn import_key(importing: &Arc<str>, name: &ImportName) -> ObjectKey {
    ObjectKey {
        cluster: Arc::clone(importing),
        namespace: Arc::clone(&name.namespace),
        name: format!("{}{SUFFIX}", name.name).into(),
    }
}

/// The name of an import with this key; none if it is none of an import.
#[must_use]
pub fn import_name(key: &ObjectKey) -> Option<ImportName> {
    Some(ImportName {
        namespace: Arc::clone(&key.namespace),
        name: key.name.strip_suffix(SUFFIX)?.into(),
    })
}

/// An import that needs virtual addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The import.
    pub name: ImportName,
    /// The families that it needs an address of, in order.
    pub families: Vec<Family>,
}

/// The imports of all clusters. Without a Cluster in the policy there are none, and this costs nothing.
#[derive(Debug, Default)]
pub(crate) struct Federation {
    objects: Objects,
    set: ClusterSet,
    /// Reason why other clusters cannot use the exports of a cluster.
    unreachable: BTreeMap<String, String>,
    /// Present if plans of a centre are followed: then nothing is planned here.
    given: Option<Given>,
    /// The members that have sent all of their objects.
    states: BTreeMap<Arc<str>, ClusterState>,
    /// The members that have not sent all of their objects and are not waited for any more.
    given_up: BTreeSet<Arc<str>>,
    /// The ids of clusters that are no members, and that are waited for.
    absent: BTreeSet<Arc<str>>,
    /// The members that only imports wait for which they are known to export.
    overdue: BTreeSet<Arc<str>>,
    /// State of imports that outlives restarts, by their keys.
    kept: BTreeMap<ObjectKey, Kept>,
    /// Set when `kept` changes; cleared when it is handed out to be saved.
    kept_changed: bool,
    /// Set when anything changes that MCS objects are made of.
    objects_changed: bool,
    /// Set when endpoints of an exported Service change.
    endpoints_changed: bool,
    plan: Plan,
    /// Set when the plan changes; cleared when its exports and imports are counted.
    counts_changed: bool,
    /// The gateways of clusters that have some.
    gateways: BTreeMap<Arc<str>, Gateways>,
    /// Set when the policy changes, on which all gateways depend.
    gateways_stale: bool,
    /// The ports of exports at the gateways of their clusters.
    ports: BTreeMap<Arc<str>, GatewayPorts>,
    /// Set when `ports` changes; cleared when it is handed out to be saved.
    ports_changed: bool,
    /// Set when other exports may need ports.
    ports_wanted: bool,
    /// The ready endpoints of exports, as of the last plan.
    ready: ReadyEndpoints,
    /// Set when the policy changes, on which the numbers of all exports depend.
    ready_stale: bool,
    /// The clusters whose nodes may be in groups of ImportPolicies.
    grouped: BTreeSet<Arc<str>>,
    /// Set when policies or properties change, on which the groups of all nodes depend.
    groups_stale: bool,
    /// The imports that depend on the endpoints of an exported Service.
    users: Users,
    /// The imports that have the settings of an exported Service, that of their winner.
    heirs: Users,
    /// Imports, and exports at gateways, that have claimed what they are, and are to be projected: the winners of others
    /// are noted.
    claimed: BTreeSet<ObjectKey>,
    /// The names of clusters by id.
    names: BTreeMap<Arc<str>, Arc<str>>,
    problems: BTreeMap<ObjectRef, Vec<FieldProblem>>,
    problems_changed: bool,
    /// Whether the plan must be computed anew.
    is_stale: bool,
    wanted_changed: bool,
    /// Imports, and exports at gateways, to project again.
    dirty: BTreeSet<ObjectKey>,
    /// Imports to project again of which only endpoints, or states of clusters, are others: they claim what they did, and
    /// their plans stay.
    redirected: BTreeSet<ObjectKey>,
    /// Imports whose names may have changed; `None` if nobody asks.
    renamed: Option<BTreeSet<ObjectKey>>,
    /// Parts of plans for the controllers of clusters that may differ; `None` if nobody asks.
    replanned: Option<Replanned>,
    /// Set when exports or namespaces change.
    namespaces_changed: bool,
    /// Exported Services whose endpoints must be checked again, and whether it is known that imports use them.
    unchecked: BTreeMap<ObjectKey, bool>,
}

impl Federation {
    /// Returns `true` if anything waits to be projected.
    pub(crate) fn is_dirty(&self) -> bool {
        let is_stale = self.is_stale || self.groups_stale;
        let is_dirty = !self.dirty.is_empty() || !self.redirected.is_empty();
        is_stale || is_dirty || !self.unchecked.is_empty()
    }

    pub(crate) fn set_policies(&mut self, objects: Objects) {
        if self.objects == objects {
            return;
        }
        let at_gateways = self.gateway_keys();
        self.set = objects.set.clone().unwrap_or_default();
        self.unreachable = world::unreachable(&objects);
        self.names = names(&objects);
        self.objects = objects;
        self.is_stale = true;
        self.objects_changed = true;
        // Networks and bounds count in all of them.
        self.dirty.extend(self.keys());
        self.dirty.extend(self.gateway_keys());
        self.dirty.extend(at_gateways);
        self.gateways_stale = true;
        self.ready_stale = true;
        self.groups_stale = true;
        self.ports_wanted = true;
        self.unchecked.extend(unchecked(imported(&self.plan)));
        self.note_clusters();
    }

    pub(crate) fn set_states(&mut self, states: BTreeMap<Arc<str>, ClusterState>) {
        let before = std::mem::replace(&mut self.states, states);
        self.is_stale |= before.keys().ne(self.states.keys());
        let changed: BTreeSet<Arc<str>> = self
            .states
            .iter()
            .filter(|(name, state)| before.get(*name) != Some(*state))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        let is_lost = |states: &BTreeMap<Arc<str>, ClusterState>, name: &Arc<str>| {
            states.get(name).is_some_and(|state| state.lost)
        };
        let mut names = changed.iter();
        self.endpoints_changed |=
            names.any(|name| is_lost(&before, name) != is_lost(&self.states, name));
        if before != self.states {
            self.note_clusters();
        }
        for cluster in &changed {
            let affected = self.users.take_of_cluster(cluster);
            self.redirected.extend(affected.into_iter().map(owned));
        }
    }

    /// Sets the kept state of all imports, in place of the one before.
    pub(crate) fn set_kept(&mut self, kept: BTreeMap<ObjectKey, Kept>) {
        let before = std::mem::replace(&mut self.kept, kept);
        self.kept_changed = true;
        self.objects_changed = true;
        let winner = |kept: Option<&Kept>| kept.and_then(|kept| kept.winner.clone());
        let ips = |kept: Option<&Kept>| kept.map_or_else(Vec::new, |kept| kept.ips.clone());
        for key in before.keys().chain(self.kept.keys()) {
            let (was, is) = (before.get(key), self.kept.get(key));
            self.is_stale |= winner(was) != winner(is);
            if ips(was) != ips(is) {
                self.dirty.insert(key.clone());
            }
        }
    }

    /// Gives an import virtual addresses.
    pub(crate) fn set_address(&mut self, key: ObjectKey, ips: Vec<IpAddr>) {
        let kept = self.kept.entry(key.clone()).or_default();
        if kept.ips != ips {
            kept.ips = ips;
            self.kept_changed = true;
            self.objects_changed = true;
            self.dirty.insert(key);
        }
    }

    /// Forgets the kept state of an import that is gone for good.
    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        if self.here(key).is_none() && self.kept.remove(key).is_some() {
            self.kept_changed = true;
            self.dirty.insert(key.clone());
        }
    }

    /// State of imports that outlives restarts, if it has changed since the last call.
    pub(crate) fn changed_kept(&mut self) -> Option<&BTreeMap<ObjectKey, Kept>> {
        std::mem::take(&mut self.kept_changed).then_some(&self.kept)
    }

    pub(crate) fn kept(&self) -> &BTreeMap<ObjectKey, Kept> {
        &self.kept
    }

    /// The imports of each cluster that need virtual addresses, if any may need others since the last call.
    pub(crate) fn take_wanted(&mut self) -> Option<BTreeMap<Arc<str>, Vec<Wanted>>> {
        if !std::mem::take(&mut self.wanted_changed) {
            return None;
        }
        let wanted = self.plan.imports.iter().map(|(cluster, imports)| {
            let of_cluster = imports.iter().filter(|(_, here)| needs_address(here));
            let of_cluster = of_cluster.map(|(name, here)| Wanted {
                name: name.clone(),
                families: here.families.clone(),
            });
            let mut of_cluster: Vec<_> = of_cluster.collect();
            of_cluster.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            (Arc::clone(cluster), of_cluster)
        });
        Some(wanted.collect())
    }

    /// The keys of all imports.
    pub(crate) fn keys(&self) -> BTreeSet<ObjectKey> {
        let imports = self.plan.imports.iter();
        let keys = imports.flat_map(|(cluster, imports)| {
            imports.keys().map(move |name| import_key(cluster, name))
        });
        keys.collect()
    }

    pub(crate) fn problems(&self) -> &BTreeMap<ObjectRef, Vec<FieldProblem>> {
        &self.problems
    }

    pub(crate) fn take_problems_changed(&mut self) -> bool {
        std::mem::take(&mut self.problems_changed)
    }

    /// Returns `true` if an import, or an export at gateways, uses any of these Services.
    pub(crate) fn uses_any(&self, import: &ObjectKey, services: &BTreeSet<ObjectKey>) -> bool {
        if let Some(exported) = exported_service(import) {
            return services.contains(&exported);
        }
        let here = self.here(import).into_iter();
        let sources = here.flat_map(|here| &*here.sources);
        let mut keys = sources.map(|(cluster, source)| service_key(cluster, source));
        keys.any(|key| services.contains(&key))
    }

    fn here(&self, key: &ObjectKey) -> Option<&ImportHere> {
        self.plan.imports.get(&key.cluster)?.get(&import_name(key)?)
    }

    fn is_zoned(&self, key: &ObjectKey) -> bool {
        let here = self.here(key);
        here.is_some_and(|here| here.import.traffic_distribution.is_some())
    }
}

fn needs_address(here: &ImportHere) -> bool {
    here.import.kind == ImportKind::ClusterSetIp && !here.families.is_empty()
}

/// Returns `true` if any import uses an exported Service.
fn is_imported(plan: &Plan, service: &ObjectKey) -> bool {
    let name = ImportName {
        namespace: Arc::clone(&service.namespace),
        name: Arc::clone(&service.name),
    };
    let of_cluster = plan.exports.get(&service.cluster);
    let status = of_cluster.and_then(|exports| exports.get(&name));
    status.is_some_and(|status| !status.importers.is_empty())
}

/// The exported Services that imports use.
fn imported(plan: &Plan) -> impl Iterator<Item = ObjectKey> {
    plan.exports.iter().flat_map(|(cluster, exports)| {
        let imported = exports.iter();
        let imported = imported.filter(|(_, status)| !status.importers.is_empty());
        imported.map(move |(name, _)| service_key(cluster, name))
    })
}

/// Exported Services to check, that imports may use.
fn unchecked(
    services: impl IntoIterator<Item = ObjectKey>,
) -> impl Iterator<Item = (ObjectKey, bool)> {
    services.into_iter().map(|service| (service, false))
}

fn names(objects: &Objects) -> BTreeMap<Arc<str>, Arc<str>> {
    let clusters = objects.clusters.values();
    let names = clusters.map(|cluster| {
        let [id, name] = [&cluster.id, &cluster.meta.name].map(|text| Arc::from(text.as_str()));
        (id, name)
    });
    names.collect()
}

fn owned(key: Arc<ObjectKey>) -> ObjectKey {
    Arc::unwrap_or_clone(key)
}

/// The key of a Service in the cluster that exports it.
fn service_key(exporting: &Arc<str>, source: &ImportName) -> ObjectKey {
    ObjectKey {
        cluster: Arc::clone(exporting),
        namespace: Arc::clone(&source.namespace),
        name: Arc::clone(&source.name),
    }
}
