// SPDX-License-Identifier: Apache-2.0

//! Everything that the plan depends on, as values of `portolan_federate`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Catalog, ObjectKey, ServiceExport, ServiceFacts, ServiceType};
use portolan_federate::imports::{self as federate, Candidate, ImportName, Member, World};
use portolan_federate::merge::{Affinity, Export, ImportKind, Port};
use portolan_model::{Families, Family};
use portolan_policy::{Cluster, Labels, Objects, Overlap, overlaps};

use super::{Federation, SUFFIX, import_name};

/// Reason why other clusters cannot use the exports of a cluster, by its name.
pub(super) fn unreachable(objects: &Objects) -> BTreeMap<String, String> {
    let overlaps = overlaps(&objects.clusters).into_iter();
    overlaps
        .filter_map(|(name, found)| {
            let mut found = found.iter();
            let first = found.find(|overlap| !matches!(overlap, Overlap::Vips { .. }))?;
            Some((name, first.to_string()))
        })
        .collect()
}

/// Exports that a part of the plan depends on: all of some clusters, and those with some names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Only<'o>(
    pub(super) &'o BTreeSet<Arc<str>>,
    pub(super) &'o BTreeSet<Arc<str>>,
);

impl Federation {
    /// Everything that the plan depends on.
    pub(super) fn world(&self, catalog: &Catalog) -> World<'_> {
        self.world_of(catalog, None)
    }

    /// As [`Self::world`], with these exports only.
    pub(super) fn world_of(&self, catalog: &Catalog, only: Option<Only<'_>>) -> World<'_> {
        let members = self.objects.members().into_iter();
        let members = members.filter_map(|(name, cluster)| {
            let (name, state) = self.states.get_key_value(name)?;
            let names = only.filter(|Only(clusters, _)| !clusters.contains(name));
            let names = names.map(|Only(_, names)| names);
            let mut member = self.member(catalog, name, cluster, names);
            member.lost = state.lost;
            Some((Arc::clone(name), member))
        });
        World {
            set: &self.set,
            objects: &self.objects,
            members: members.collect(),
        }
    }

    fn member(
        &self,
        catalog: &Catalog,
        name: &Arc<str>,
        cluster: &Cluster,
        names: Option<&BTreeSet<Arc<str>>>,
    ) -> Member {
        let is_in = |name: &str| names.is_none_or(|names| names.contains(name));
        let id: Arc<str> = cluster.id.as_str().into();
        let exports = catalog.exports_named(name, is_in);
        let exports = exports.map(|export| {
            let name = ImportName {
                namespace: Arc::clone(&export.key.namespace),
                name: Arc::clone(&export.key.name),
            };
            (name, self.candidate(&id, export))
        });
        let first = ObjectKey {
            cluster: Arc::clone(name),
            namespace: Arc::default(),
            name: Arc::default(),
        };
        let of_cluster = self.kept.range(first..);
        let of_cluster = of_cluster.take_while(|(key, _)| key.cluster == *name);
        let of_cluster = of_cluster.filter(|(key, _)| {
            let import = key.name.strip_suffix(SUFFIX);
            import.is_some_and(is_in)
        });
        let winners = of_cluster
            .filter_map(|(key, kept)| Some((import_name(key)?, Arc::clone(kept.winner.as_ref()?))));
        let ranges = cluster.network.cluster_set_ips.iter();
        let quota = self.set.quota.exports_per_cluster;
        Member {
            labels: cluster.labels(&reported(catalog, name)),
            namespaces: catalog.namespaces(name).cloned().unwrap_or_default(),
            ranges: ranges
                .map(|range| Family::of(range.addr()))
                .collect::<Families>(),
            unreachable: self.unreachable.get(&**name).cloned(),
            max_exports: cluster.quota.exports.unwrap_or(quota),
            max_endpoints: cluster.quota.endpoints,
            exports: exports.collect(),
            winners: winners.collect(),
            lost: false,
            id,
        }
    }

    fn candidate(&self, id: &Arc<str>, export: &ServiceExport) -> Candidate {
        let facts = export.service.as_deref();
        let service = facts.map(|facts| match facts.kind {
            ServiceType::ClusterIp => federate::ServiceType::ClusterIp,
            ServiceType::Headless => federate::ServiceType::Headless,
            ServiceType::ExternalName => federate::ServiceType::ExternalName,
        });
        let labels = facts.map(|facts| facts.labels.clone());
        Candidate {
            requested: export.requested,
            service,
            labels: labels.unwrap_or_default(),
            weight: export.weight,
            ready_endpoints: self.ready.of(&export.key),
            export: exported(id, export, facts),
        }
    }
}

/// Returns the properties that a cluster reports of itself.
pub(super) fn reported(catalog: &Catalog, name: &str) -> Labels {
    let properties = catalog.properties(name).into_iter().flatten();
    properties
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

fn exported(id: &Arc<str>, export: &ServiceExport, facts: Option<&ServiceFacts>) -> Export {
    let is_headless = facts.is_some_and(|facts| facts.kind == ServiceType::Headless);
    let ports = facts.into_iter().flat_map(|facts| &facts.ports);
    let ports = ports.map(|port| Port {
        name: Arc::clone(&port.name),
        protocol: port.protocol,
        number: port.port,
        app_protocol: port.app_protocol.clone(),
    });
    let seconds = facts.and_then(|facts| facts.affinity_seconds);
    Export {
        cluster: Arc::clone(id),
        created: export.created,
        kind: if is_headless {
            ImportKind::Headless
        } else {
            ImportKind::ClusterSetIp
        },
        ports: ports.collect(),
        affinity: seconds.map_or(Affinity::None, |timeout_seconds| Affinity::ClientIp {
            timeout_seconds,
        }),
        internal_local: facts.is_some_and(|facts| facts.internal_local),
        traffic_distribution: facts.and_then(|facts| facts.traffic_distribution.clone()),
        // No released CRD has the field (KEP-5939): an API server drops it.
        cluster_selectors: Vec::new(),
        labels: export.labels.clone(),
        annotations: export.annotations.clone(),
        families: facts.map_or_else(Vec::new, |facts| facts.families.clone()),
    }
}
