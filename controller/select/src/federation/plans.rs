// SPDX-License-Identifier: Apache-2.0

//! Plans of imports, for clusters whose own controllers serve them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::{Catalog, Endpoints, ObjectKey, ServiceExport};
use portolan_federate::gateway::{Path, path};
use portolan_federate::imports::{ByName, ImportHere, ImportName};
use portolan_federate::plans::{
    ClusterPlan, ExportName, GatewayPlan, ImportPlan, PlanChanges, PlanEndpoint, PlanPort,
    PortPlan, ServicePlan, SetPlan, StatePlan,
};
use portolan_policy::Cluster;
use portolan_policy::spec::LastResort;

use super::gateway::port_name;
use super::publish::zone;
use super::{Federation, import_key, import_name, is_import, service_key};

/// Parts of plans that may differ since they were made last.
#[derive(Debug, Default)]
pub struct Replanned {
    /// Imports that may be others now.
    imports: BTreeSet<ObjectKey>,
    /// Exported Services whose endpoints, or gateways, may be others now.
    services: BTreeSet<ObjectKey>,
    /// Whether anything may differ that clusters, nodes and exports at gateways are decided by.
    clusters: bool,
    /// Plans of Services that have been made since, for importing clusters that reach their pods: they have the same.
    made: BTreeMap<ExportName, Arc<ServicePlan>>,
}

impl Replanned {
    /// Returns `true` if nothing may differ.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.imports.is_empty() && self.services.is_empty() && !self.clusters
    }
}

/// The plans of one importing cluster, as far as they must be known to say what differs.
#[derive(Debug)]
pub struct PlanBook {
    importing: Arc<str>,
    /// By import, the Services of other clusters that it is made of.
    sources: BTreeMap<ImportName, BTreeSet<ExportName>>,
    /// Number of imports that are made of each Service. In the order of clusters.
    uses: BTreeMap<ExportName, usize>,
    /// The plans that are there, by kind.
    clusters: BTreeSet<Arc<str>>,
    groups: BTreeSet<Arc<str>>,
    gateways: BTreeSet<ImportName>,
    is_begun: bool,
}

impl PlanBook {
    /// A book without plans.
    #[must_use]
    pub fn new(importing: Arc<str>) -> Self {
        Self {
            importing,
            sources: BTreeMap::new(),
            uses: BTreeMap::new(),
            clusters: BTreeSet::new(),
            groups: BTreeSet::new(),
            gateways: BTreeSet::new(),
            is_begun: false,
        }
    }

    /// Replaces the sources of an import. Returns the Services that came or went.
    fn set_sources(
        &mut self,
        import: &ImportName,
        sources: BTreeSet<ExportName>,
    ) -> BTreeSet<ExportName> {
        let before = self.sources.remove(import).unwrap_or_default();
        let touched = &before ^ &sources;
        for source in &sources {
            *self.uses.entry(source.clone()).or_default() += 1;
        }
        for source in before {
            if let Entry::Occupied(mut uses) = self.uses.entry(source) {
                *uses.get_mut() -= 1;
                if *uses.get() == 0 {
                    uses.remove();
                }
            }
        }
        if !sources.is_empty() {
            self.sources.insert(import.clone(), sources);
        }
        touched
    }

    /// Returns `true` if an import is made of a Service.
    fn has(&self, service: &ExportName) -> bool {
        self.uses.contains_key(service)
    }

    /// Returns `true` if an import is made of a Service of a cluster.
    fn has_cluster(&self, cluster: &Arc<str>) -> bool {
        let first = ExportName {
            cluster: Arc::clone(cluster),
            service: ImportName {
                namespace: "".into(),
                name: "".into(),
            },
        };
        let next = self.uses.range(first..).next();
        next.is_some_and(|(service, _)| service.cluster == *cluster)
    }
}

impl Federation {
    /// Begins to note what plans depend on.
    pub(crate) fn follow_plans(&mut self) {
        if self.replanned.is_none() {
            self.replanned = Some(Replanned {
                clusters: true,
                ..Replanned::default()
            });
        }
    }

    /// Parts of plans that may differ since the last call.
    pub(crate) fn take_replanned(&mut self) -> Replanned {
        match &mut self.replanned {
            Some(replanned) => std::mem::take(replanned),
            None => Replanned::default(),
        }
    }

    /// Has all plans of clusters, nodes and gateways looked at again.
    pub(super) fn note_clusters(&mut self) {
        if let Some(replanned) = &mut self.replanned {
            replanned.clusters = true;
        }
    }

    /// Notes what a flush is about to project. Zones of endpoints are those of their nodes.
    pub(super) fn note_plans(&mut self, clusters_of_nodes: &BTreeSet<Arc<str>>) {
        let Some(replanned) = &mut self.replanned else {
            return;
        };
        let imports = self.dirty.iter().filter(|key| is_import(key));
        replanned.imports.extend(imports.cloned());
        replanned.services.extend(self.unchecked.keys().cloned());
        let mut at_gateways = self.dirty.iter();
        replanned.clusters |= at_gateways.any(|key| super::exported_service(key).is_some());
        for cluster in clusters_of_nodes {
            let exports = self.plan.exports.get(cluster).into_iter().flatten();
            let imported = exports.filter(|(_, status)| !status.importers.is_empty());
            let imported = imported.map(|(name, _)| service_key(cluster, name));
            replanned.services.extend(imported);
        }
    }

    /// The plans of an importing cluster that may differ from those before, with all that may have changed since.
    pub(crate) fn plan_changes(
        &self,
        catalog: &Catalog,
        book: &mut PlanBook,
        replanned: &mut Replanned,
    ) -> PlanChanges {
        let mut changes = PlanChanges::default();
        let importing = Arc::clone(&book.importing);
        let is_first = !std::mem::replace(&mut book.is_begun, true);
        let imports: BTreeSet<ImportName> = if is_first {
            let all = self.plan.imports.get(&importing);
            all.into_iter().flat_map(ByName::keys).cloned().collect()
        } else {
            let ours = replanned.imports.iter();
            let ours = ours.filter(|key| key.cluster == importing);
            ours.filter_map(import_name).collect()
        };
        let mut services = BTreeSet::new();
        let mut has_clusters = is_first || replanned.clusters;
        for name in imports {
            let plan = self.plan_import(catalog, &import_key(&importing, &name));
            let sources = plan.iter().flat_map(|plan| &plan.sources);
            let others = sources.filter(|(cluster, _)| **cluster != importing);
            let others = others.map(|(cluster, service)| ExportName {
                cluster: Arc::clone(cluster),
                service: service.clone(),
            });
            let touched = book.set_sources(&name, others.collect());
            // A cluster may be here for the first time, or not any more.
            has_clusters |= touched
                .iter()
                .any(|one| book.has_cluster(&one.cluster) != book.clusters.contains(&one.cluster));
            services.extend(touched);
            changes.imports.insert(name, plan);
        }
        let others = replanned.services.iter().filter(|_| !is_first);
        let others = others.map(|key| ExportName {
            cluster: Arc::clone(&key.cluster),
            service: ImportName {
                namespace: Arc::clone(&key.namespace),
                name: Arc::clone(&key.name),
            },
        });
        // Most changes are of Services that this cluster does not import.
        services.extend(others.filter(|service| book.has(service)));
        for service in services {
            let is_used = book.has(&service);
            let plan = is_used
                .then(|| self.shared_plan(catalog, &importing, &service, &mut replanned.made));
            changes.services.insert(service, plan.flatten());
        }
        if has_clusters {
            self.plan_clusters(catalog, book, &mut changes);
        }
        changes
    }

    /// The plan of an import; `None` without a virtual address.
    fn plan_import(&self, catalog: &Catalog, key: &ObjectKey) -> Option<ImportPlan> {
        let here: &ImportHere = self.here(key)?;
        let service = self.service(catalog, key)?;
        let import = &here.import;
        Some(ImportPlan {
            ips: service.cluster_ips,
            winner: Arc::clone(&import.winner),
            ports: import.ports.clone(),
            affinity: import.affinity,
            internal_local: import.internal_local,
            traffic_distribution: import.traffic_distribution.clone(),
            sources: (*here.sources).clone(),
            nodes: here.nodes.clone(),
            traffic: (*here.traffic).clone(),
            scheduling: service.scheduling,
            drain_seconds: service.drain_seconds,
        })
    }

    /// The plan of a Service of another cluster, made once for all importing clusters that reach its pods; `None` if it
    /// is not reached.
    fn shared_plan(
        &self,
        catalog: &Catalog,
        importing: &Arc<str>,
        name: &ExportName,
        made: &mut BTreeMap<ExportName, Arc<ServicePlan>>,
    ) -> Option<Arc<ServicePlan>> {
        let importing = self.objects.clusters.get(&**importing)?;
        let exporting = self.objects.clusters.get(&*name.cluster)?;
        let between = (importing, exporting);
        if path(importing, exporting).ok()? == Path::Gateways {
            let plan = self.plan_service(catalog, between, name, true);
            return Some(Arc::new(plan));
        }
        if let Some(plan) = made.get(name) {
            return Some(Arc::clone(plan));
        }
        let plan = Arc::new(self.plan_service(catalog, between, name, false));
        made.insert(name.clone(), Arc::clone(&plan));
        Some(plan)
    }

    /// The plan of a Service of another cluster. It has as many ports as an export: no import has any other one.
    fn plan_service(
        &self,
        catalog: &Catalog,
        (importing, exporting): (&Cluster, &Cluster),
        name: &ExportName,
        by_gateways: bool,
    ) -> ServicePlan {
        let key = service_key(&name.cluster, &name.service);
        let service = catalog.service(&key);
        let ports = service.iter().flat_map(|service| {
            let first = service.ports.iter().take(ServiceExport::MAX_PORTS);
            first.map(|port| {
                let gateways = || {
                    let name = port_name(&key, &port.name, port.protocol);
                    self.zoned_gateways(catalog, importing, &name, &key.cluster)
                };
                let endpoints = self.admitted(catalog, exporting, service, port);
                let plan = PortPlan {
                    endpoints: of_endpoints(catalog, &key, endpoints),
                    gateways: by_gateways.then(gateways).unwrap_or_default(),
                };
                let port = PlanPort {
                    name: Arc::clone(&port.name),
                    protocol: port.protocol,
                    number: port.port,
                };
                (port, plan)
            })
        });
        ServicePlan {
            by_gateways,
            ports: ports.collect(),
        }
    }

    /// All plans of clusters, nodes and exports at gateways, and those that are gone.
    fn plan_clusters(&self, catalog: &Catalog, book: &mut PlanBook, changes: &mut PlanChanges) {
        let importing = Arc::clone(&book.importing);
        let gateways = self.plan_gateways(&importing);
        let admitted = gateways.values().flat_map(|plan| &plan.importers);
        let admitted: BTreeSet<_> = admitted.cloned().collect();
        let used = book.uses.keys().map(|service| Arc::clone(&service.cluster));
        let mut names: BTreeSet<Arc<str>> = used.collect();
        names.extend(admitted.iter().cloned());
        names.insert(Arc::clone(&importing));
        let plans = names.into_iter().filter_map(|name| {
            let cluster = self.objects.clusters.get(&*name)?;
            let is_own = name == importing;
            let has_network = is_own || admitted.contains(&name);
            let plan = self.plan_cluster(&name, cluster, (is_own, has_network));
            Some((name, plan))
        });
        fill(&mut book.clusters, &mut changes.clusters, plans.collect());
        let groups = self.narrowing(catalog, &importing).into_iter();
        let groups = groups.map(|one| (one.meta.name.as_str().into(), one.nodes.clone()));
        fill(&mut book.groups, &mut changes.groups, groups.collect());
        fill(&mut book.gateways, &mut changes.gateways, gateways);
    }

    fn plan_cluster(
        &self,
        name: &Arc<str>,
        cluster: &Cluster,
        (is_own, has_network): (bool, bool),
    ) -> ClusterPlan {
        let state = self.states.get(name).map(|state| StatePlan {
            step: state.step,
            drained: state.drained,
            lost: state.lost,
        });
        let set = SetPlan {
            endpoints_per_export: self.set.quota.endpoints_per_export,
            keeps_last: self.set.loss.last_resort == LastResort::Keep,
        };
        ClusterPlan {
            id: cluster.id.as_str().into(),
            state,
            network: has_network.then(|| cluster.network.clone()),
            set: is_own.then_some(set),
        }
    }

    /// The exports of a cluster that others import by its gateways.
    fn plan_gateways(&self, cluster: &Arc<str>) -> BTreeMap<ImportName, GatewayPlan> {
        let mut plans: BTreeMap<ImportName, GatewayPlan> = BTreeMap::new();
        for (port, number) in self.ports.get(cluster).into_iter().flatten() {
            let service = service_key(cluster, &port.service);
            let plan = plans.entry(port.service.clone()).or_insert_with(|| {
                let importers = self.gateway_importers(&service).into_iter();
                GatewayPlan {
                    importers: importers.map(|one| one.meta.name.as_str().into()).collect(),
                    ports: BTreeMap::new(),
                }
            });
            let name = (Arc::clone(&port.port), port.protocol);
            plan.ports.insert(name, *number);
        }
        plans.retain(|_, plan| !plan.importers.is_empty());
        plans
    }
}

fn of_endpoints(
    catalog: &Catalog,
    service: &ObjectKey,
    endpoints: Endpoints<'_>,
) -> BTreeMap<SocketAddr, PlanEndpoint> {
    let weights = catalog.weights(service);
    let endpoints = endpoints.into_iter().map(|(address, endpoint)| {
        let node = endpoint.node;
        let plan = PlanEndpoint {
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            weight: weights.of(&endpoint),
            zone: node.and_then(|node| zone(catalog, &service.cluster, node)),
        };
        (address, plan)
    });
    endpoints.collect()
}

/// Notes the plans of one kind, in place of those that are known.
fn fill<K: Ord + Clone, V>(
    known: &mut BTreeSet<K>,
    changes: &mut BTreeMap<K, Option<V>>,
    plans: BTreeMap<K, V>,
) {
    let now: BTreeSet<K> = plans.keys().cloned().collect();
    let gone = known.difference(&now).cloned();
    changes.extend(gone.map(|name| (name, None)));
    changes.extend(plans.into_iter().map(|(name, plan)| (name, Some(plan))));
    *known = now;
}
