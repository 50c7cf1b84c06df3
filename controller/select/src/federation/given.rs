// SPDX-License-Identifier: Apache-2.0

//! Imports of one cluster by plans of a centre, with that cluster's own objects.
//!
//! The plans take the place of policies, and of the objects of other clusters. Whatever needs only these and the own
//! objects is computed by the code that the centre has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_catalog::{
    Catalog, EndpointRef, FieldProblem, Kind, ObjectKey, ObjectRef, Reason, Service,
};
use portolan_federate::gateway::PortName;
use portolan_federate::imports::{ByName, ExportStatus, ImportHere, ImportName, Ready, Valid};
use portolan_federate::merge::{Import, ImportKind, ImportPort};
use portolan_federate::plans::{
    ClusterPlan, ExportName, GatewayPlan, ImportPlan, PlanChanges, PlanPort, PortPlan, ServicePlan,
};
use portolan_model::{Family, Scheduling};
use portolan_policy::spec::LastResort;
use portolan_policy::{
    Access, Cluster, ClusterLoss, ClusterQuota, ClusterSet, ImportPolicy, Labels, Meta, Network,
    Objects, Selector, Services,
};

use super::gateway::gateway_key;
use super::{
    ClusterState, Federation, GatewayPorts, Kept, import_key, import_name, owned, service_key,
};
use crate::project::{Exported, Exporter};

/// The field of problems with virtual addresses.
const ADDRESSES: &str = "spec.ips";

/// Services, by the cluster that exports them.
type Sources = BTreeMap<Arc<str>, BTreeSet<ImportName>>;

/// Parts of plans that nothing else holds.
#[derive(Debug, Default)]
pub(super) struct Given {
    /// The importing cluster.
    cluster: Arc<str>,
    /// Where virtual addresses may be; anywhere if empty.
    ranges: Vec<IpNet>,
    clusters: BTreeMap<Arc<str>, ClusterPlan>,
    groups: BTreeMap<Arc<str>, Selector>,
    services: BTreeMap<ExportName, Arc<ServicePlan>>,
    settings: BTreeMap<ImportName, Settings>,
    gateways: BTreeMap<ImportName, GatewayPlan>,
}

/// Parts of an import that its plan alone says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settings {
    ips: Vec<IpAddr>,
    scheduling: Scheduling,
    drain_seconds: Option<u32>,
}

impl Given {
    /// A Service of another cluster; `None` if it is not reached.
    pub(super) fn service(&self, service: &ObjectKey) -> Option<&ServicePlan> {
        let plan = self.services.get(&ExportName {
            cluster: Arc::clone(&service.cluster),
            service: ImportName {
                namespace: Arc::clone(&service.namespace),
                name: Arc::clone(&service.name),
            },
        });
        plan.map(|plan| &**plan)
    }

    /// A Service with the settings that annotations give an import.
    pub(super) fn annotated(&self, import: &ObjectKey) -> Option<Service> {
        let settings = self.settings.get(&import_name(import)?)?;
        Some(Service {
            scheduling: settings.scheduling.clone(),
            drain_seconds: settings.drain_seconds,
            ..Service::new(import.clone())
        })
    }

    /// The policy that the plans amount to.
    fn objects(&self) -> Objects {
        let clusters = self.clusters.iter();
        let clusters = clusters.map(|(name, plan)| ((**name).to_owned(), cluster(name, plan)));
        let groups = self.groups.iter();
        let groups = groups.map(|(name, nodes)| ((**name).to_owned(), group(name, nodes)));
        let own = self.clusters.get(&self.cluster).and_then(|own| own.set);
        let set = own.map(|plan| {
            let mut set = ClusterSet::default();
            set.quota.endpoints_per_export = plan.endpoints_per_export;
            set.loss.last_resort = match plan.keeps_last {
                true => LastResort::Keep,
                false => LastResort::Refuse,
            };
            set
        });
        Objects {
            set,
            clusters: clusters.collect(),
            imports: groups.collect(),
            ..Objects::default()
        }
    }

    fn states(&self) -> BTreeMap<Arc<str>, ClusterState> {
        let clusters = self.clusters.iter();
        let states = clusters.filter_map(|(name, plan)| {
            let state = plan.state?;
            let state = ClusterState {
                step: state.step,
                drained: state.drained,
                lost: state.lost,
            };
            Some((Arc::clone(name), state))
        });
        states.collect()
    }

    /// The exports at gateways, and their ports there.
    fn at_gateways(&self) -> (ByName<ExportStatus>, GatewayPorts) {
        let plans = self.gateways.iter();
        let exports = plans.map(|(name, plan)| {
            let status = ExportStatus {
                valid: Valid::Valid,
                ready: Ready::Exported,
                conflicts: Vec::new(),
                importers: Arc::new(plan.importers.clone()),
            };
            (name.clone(), status)
        });
        let ports = self.gateways.iter().flat_map(|(name, plan)| {
            plan.ports.iter().map(|((port, protocol), number)| {
                let port = PortName {
                    service: name.clone(),
                    port: Arc::clone(port),
                    protocol: *protocol,
                };
                (port, *number)
            })
        });
        (exports.collect(), ports.collect())
    }

    /// Reason why an import cannot have a virtual address, if it cannot: a centre must not take an
    /// address of the cluster.
    fn refusal(&self, catalog: &Catalog, ip: IpAddr) -> Option<String> {
        if !self.ranges.is_empty() && !self.ranges.iter().any(|range| range.contains(&ip)) {
            return Some(format!("{ip}: outside of --federation-address-range"));
        }
        if Network::is_special(ip) {
            return Some(format!("{ip}: no address that a Service can have"));
        }
        if let Some(node) = catalog.node_with_address(&self.cluster, ip) {
            return Some(format!("{ip}: the address of Node {node}"));
        }
        let service = catalog.service_given_address(&self.cluster, ip)?;
        Some(format!(
            "{ip}: an address of Service {}/{}",
            service.namespace, service.name
        ))
    }
}

/// The part of an exporter that a plan has.
pub(super) fn exporter<'c>(
    plan: &ServicePlan,
    id: Arc<str>,
    service: ObjectKey,
    state: ClusterState,
    port: &ImportPort,
) -> Exporter<'c> {
    let port = PlanPort {
        name: Arc::clone(&port.port.name),
        protocol: port.port.protocol,
        number: port.port.number,
    };
    let port = plan.ports.get(&port);
    let endpoints = port.into_iter().flat_map(|port| &port.endpoints);
    let endpoints = endpoints.map(|(address, plan)| {
        let endpoint = EndpointRef {
            address: address.ip(),
            ready: plan.ready,
            serving: plan.serving,
            terminating: plan.terminating,
            node: None,
            pod: None,
            hostname: None,
            zone_hints: None,
            node_hints: None,
        };
        let one = Exported {
            endpoint,
            weight: plan.weight,
            zone: plan.zone.clone(),
        };
        (*address, one)
    });
    let gateways = |port: &PortPlan| port.gateways.clone();
    Exporter {
        id,
        service,
        state,
        endpoints: endpoints.collect(),
        gateways: plan
            .by_gateways
            .then(|| port.map(gateways).unwrap_or_default()),
    }
}

impl Federation {
    /// Has plans take the place of policies and of other clusters' objects, with virtual addresses in these ranges; in
    /// any if there are none.
    pub(crate) fn follow_centre(&mut self, cluster: &Arc<str>, ranges: Vec<IpNet>) {
        self.given = Some(Given {
            cluster: Arc::clone(cluster),
            ranges,
            ..Given::default()
        });
    }

    /// Returns `true` if plans take the place of policies.
    pub(crate) fn is_following(&self) -> bool {
        self.given.is_some()
    }

    /// Takes plans that differ. Without [`Self::follow_centre`] none is taken.
    pub(crate) fn take_plans(&mut self, changes: PlanChanges) {
        let Some(mut given) = self.given.take() else {
            return;
        };
        for (name, plan) in changes.imports {
            self.take_import(&mut given, name, plan);
        }
        let mut first = Sources::new();
        for (name, plan) in changes.services {
            let key = service_key(&name.cluster, &name.service);
            let users = self.users.take(&key);
            self.dirty.extend(users.into_iter().map(owned));
            if plan.is_none() {
                // An import that still has it notes it again when it is projected.
                let heirs = self.heirs.take(&key);
                self.dirty.extend(heirs.into_iter().map(owned));
                self.users.forget(&key);
                self.heirs.forget(&key);
            } else if !given.services.contains_key(&name) {
                let of_cluster = first.entry(Arc::clone(&name.cluster)).or_default();
                of_cluster.insert(name.service.clone());
            }
            replace(&mut given.services, name, plan);
        }
        self.take_first(&given.cluster, &first);
        let has_ports = !changes.gateways.is_empty();
        for (name, plan) in changes.gateways {
            let service = service_key(&given.cluster, &name);
            self.dirty.insert(gateway_key(&service));
            self.unchecked.insert(service, false);
            replace(&mut given.gateways, name, plan);
        }
        let has_policy = !changes.clusters.is_empty() || !changes.groups.is_empty();
        for (name, plan) in changes.clusters {
            replace(&mut given.clusters, name, plan);
        }
        for (name, plan) in changes.groups {
            replace(&mut given.groups, name, plan);
        }
        let cluster = Arc::clone(&given.cluster);
        if has_ports {
            let (exports, ports) = given.at_gateways();
            self.plan.exports = [(Arc::clone(&cluster), exports)].into();
            self.set_gateway_ports(&cluster, ports);
        }
        let (objects, states) = (given.objects(), given.states());
        self.given = Some(given);
        if has_policy {
            self.set_policies(objects);
            self.set_states(states);
        }
    }

    /// Marks the imports of Services with a first plan to be projected. These are not noted as their users: they found
    /// no plan when they were projected last. One look at all imports, however many plans come.
    fn take_first(&mut self, importing: &Arc<str>, first: &Sources) {
        if first.is_empty() {
            return;
        }
        let is_first = |(cluster, source): (&Arc<str>, &ImportName)| {
            let of_cluster = first.get(cluster);
            of_cluster.is_some_and(|names| names.contains(source))
        };
        let imports = self.plan.imports.get(importing).into_iter().flatten();
        let imports = imports.filter(|(_, here)| here.sources.iter().any(is_first));
        let keys = imports.map(|(name, _)| import_key(importing, name));
        self.dirty.extend(keys);
    }

    fn take_import(&mut self, given: &mut Given, name: ImportName, plan: Option<ImportPlan>) {
        let key = import_key(&given.cluster, &name);
        let imports = self.plan.imports.entry(Arc::clone(&given.cluster));
        let (here, settings) = plan.map(split).unzip();
        let imports = imports.or_default();
        match here {
            Some(here) => _ = imports.insert(name.clone(), here),
            None => _ = imports.remove(&name),
        }
        replace(&mut given.settings, name, settings);
        self.dirty.insert(key);
    }

    /// Gives imports those of their virtual addresses that they may have: all that wait to be projected, and if Nodes
    /// or Services have others now all.
    pub(super) fn admit_addresses(&mut self, catalog: &Catalog, have_others: bool) {
        let Some(given) = &self.given else {
            return;
        };
        let all = given.settings.keys();
        let all = all.map(|name| import_key(&given.cluster, name));
        let mut keys: BTreeSet<_> = all.filter(|_| have_others).collect();
        let awaited = self.dirty.iter().filter(|key| super::is_import(key));
        keys.extend(awaited.cloned());
        for key in keys {
            let settings = import_name(&key).and_then(|name| given.settings.get(&name));
            let (mut ips, mut refused) = (Vec::new(), Vec::new());
            for ip in settings.into_iter().flat_map(|settings| &settings.ips) {
                match given.refusal(catalog, *ip) {
                    Some(why) => refused.push(why),
                    None => ips.push(*ip),
                }
            }
            let before = self.kept.get(&key).map(|kept| &kept.ips);
            if before != Some(&ips) {
                self.dirty.insert(key.clone());
            }
            match settings {
                Some(_) => {
                    let kept = Kept {
                        ips,
                        ..Kept::default()
                    };
                    self.kept.insert(key.clone(), kept);
                }
                None => _ = self.kept.remove(&key),
            }
            let problems = refused.into_iter().map(|why| {
                let why = format!("AddressRefused: {why}: the import is not served at it");
                FieldProblem::new(ADDRESSES, Reason::InvalidValue, why)
            });
            let problems: Vec<_> = problems.collect();
            let kind = Kind::ServiceImport;
            let named = import_name(&key).map(|name| service_key(&key.cluster, &name));
            let object = ObjectRef {
                kind,
                key: named.unwrap_or(key),
            };
            let had = match problems.is_empty() {
                true => self.problems.remove(&object),
                false => self.problems.insert(object.clone(), problems),
            };
            self.problems_changed |= had.as_ref() != self.problems.get(&object);
        }
    }
}

/// Splits the plan of an import into the import as the centre's own plan has it, and the settings that it has besides.
fn split(plan: ImportPlan) -> (ImportHere, Settings) {
    // All fields by name: a new one must be handled here.
    let ImportPlan {
        ips,
        winner,
        ports,
        affinity,
        internal_local,
        traffic_distribution,
        sources,
        nodes,
        traffic,
        scheduling,
        drain_seconds,
    } = plan;
    let families: Vec<Family> = ips.iter().map(|ip| Family::of(*ip)).collect();
    let clusters = ports.iter().flat_map(|port| port.clusters.iter().cloned());
    let import = Import {
        winner,
        clusters: Arc::new(clusters.collect()),
        kind: ImportKind::ClusterSetIp,
        ports,
        affinity,
        internal_local,
        traffic_distribution,
        cluster_selectors: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        families: families.clone(),
        conflicts: Vec::new(),
    };
    let here = ImportHere {
        import: Arc::new(import),
        families,
        sources: Arc::new(sources),
        nodes,
        traffic: Arc::new(traffic),
    };
    let settings = Settings {
        ips,
        scheduling,
        drain_seconds,
    };
    (here, settings)
}

/// A Cluster object with what a plan says.
fn cluster(name: &str, plan: &ClusterPlan) -> Cluster {
    let none = || Network {
        mode: Default::default(),
        pods: Vec::new(),
        nodes: Vec::new(),
        services: Vec::new(),
        cluster_set_ips: Vec::new(),
        gateway: None,
    };
    Cluster {
        meta: meta(name),
        id: (*plan.id).to_owned(),
        properties: Labels::new(),
        access: Access::Edge(None),
        agent_tokens: None,
        network: plan.network.clone().unwrap_or_else(none),
        loss: ClusterLoss::default(),
        drain: None,
        // Exports are counted at the centre.
        quota: ClusterQuota {
            exports: None,
            endpoints: u32::MAX,
        },
    }
}

/// An ImportPolicy with what a plan says. All clusters are selected, since it is of the importing one.
fn group(name: &str, nodes: &Selector) -> ImportPolicy {
    ImportPolicy {
        meta: meta(name),
        priority: 0,
        clusters: Selector::default(),
        from: Selector::default(),
        services: Services::default(),
        action: Default::default(),
        namespace_as: None,
        nodes: nodes.clone(),
    }
}

fn meta(name: &str) -> Meta {
    Meta {
        name: name.to_owned(),
        ..Meta::default()
    }
}

fn replace<K: Ord, V>(all: &mut BTreeMap<K, V>, name: K, value: Option<V>) {
    match value {
        Some(value) => _ = all.insert(name, value),
        None => _ = all.remove(&name),
    }
}
