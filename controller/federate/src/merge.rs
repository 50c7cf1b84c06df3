// SPDX-License-Identifier: Apache-2.0

//! The exports of one Service by several clusters, merged into one import (KEP-1645).
//!
//! The winner is the export that won before, as long as there is one: a timestamp that somebody sets
//! back wins nothing. Otherwise it is the oldest export, of equally old ones that of the first
//! cluster by id. The winner's fields are the import's, but for ports, which are united. Where
//! exports differ, all of them have a conflict.

mod conflict;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use portolan_model::{Families, Family, Protocol};
use portolan_policy::Tier;

pub use conflict::{Conflict, ConflictReason, condition};

/// The export of a Service by one cluster: the ServiceExport and what the Service says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The id of the exporting cluster.
    pub cluster: Arc<str>,
    /// `metadata.creationTimestamp` of the ServiceExport, in seconds since 1970. An unknown one is
    /// later than all others.
    pub created: Option<i64>,
    /// Whether the Service is headless.
    pub kind: ImportKind,
    /// The ports of the Service.
    pub ports: Vec<Port>,
    /// `spec.sessionAffinity` and its configuration. Of no effect if it is headless.
    pub affinity: Affinity,
    /// Whether `spec.internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
    /// `spec.clusterSelectors` of the ServiceExport (KEP-5939); none if empty.
    pub cluster_selectors: Vec<Tier>,
    /// `spec.exportedLabels` of the ServiceExport.
    pub labels: BTreeMap<String, String>,
    /// `spec.exportedAnnotations` of the ServiceExport.
    pub annotations: BTreeMap<String, String>,
    /// `spec.ipFamilies`: one or both, in the order of the Service.
    pub families: Vec<Family>,
}

/// `ServiceImport.spec.type`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImportKind {
    /// With virtual addresses.
    #[default]
    ClusterSetIp,
    /// Without: DNS names the endpoints.
    Headless,
}

impl ImportKind {
    /// As in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterSetIp => "ClusterSetIP",
            Self::Headless => "Headless",
        }
    }
}

/// `sessionAffinity` and `sessionAffinityConfig`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Affinity {
    /// None.
    #[default]
    None,
    /// By the client's address.
    ClientIp {
        /// Time without a connection after which a client may change, in seconds.
        timeout_seconds: u32,
    },
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// Its name; empty if the Service has one port without a name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}

/// A port of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportPort {
    /// The port.
    pub port: Port,
    /// The ids of the clusters that expose it with this name, protocol and number: connections go to
    /// them alone.
    pub clusters: BTreeSet<Arc<str>>,
}

/// Import that exports make together: a ServiceImport, but for the parts that differ among the importing clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// The id of the cluster whose export is the winner, for the annotation
    /// `portolan.dev/winner`.
    pub winner: Arc<str>,
    /// The ids of all exporting clusters: `status.clusters`.
    pub clusters: Arc<BTreeSet<Arc<str>>>,
    /// The type.
    pub kind: ImportKind,
    /// The ports, those of the winner first.
    pub ports: Vec<ImportPort>,
    /// The affinity; none if headless.
    pub affinity: Affinity,
    /// Whether `internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
    /// `clusterSelectors`.
    pub cluster_selectors: Vec<Tier>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
    /// The winner's families, in its order.
    pub families: Vec<Family>,
    /// Where exports differ: for the conditions of all of them.
    pub conflicts: Vec<Conflict>,
}

impl Import {
    /// The families of the import in a cluster that has ranges of virtual addresses of these. None
    /// for a cluster that cannot have the import (`IPFamilyNotSupported`).
    #[must_use]
    pub fn families_in(&self, ranges: Families) -> Vec<Family> {
        let families = self.families.iter().copied();
        match self.kind {
            ImportKind::ClusterSetIp => families.filter(|one| ranges.contains(*one)).collect(),
            ImportKind::Headless => families.collect(),
        }
    }
}

/// The import that the exports of one Service make together, at most one of each cluster; none
/// without any. `last_winner` is the id of the cluster that won before.
#[must_use]
pub fn merge(exports: &[Export], last_winner: Option<&str>) -> Option<Import> {
    let mut ordered: Vec<&Export> = exports.iter().collect();
    ordered.sort_by_key(|export| {
        (
            Some(&*export.cluster) != last_winner,
            export.created.is_none(),
            export.created,
            &export.cluster,
        )
    });
    let winner = *ordered.first()?;
    let affinity = match winner.kind {
        ImportKind::ClusterSetIp => winner.affinity,
        ImportKind::Headless => Affinity::None,
    };
    let clusters = ordered.iter().map(|export| Arc::clone(&export.cluster));
    Some(Import {
        winner: Arc::clone(&winner.cluster),
        clusters: Arc::new(clusters.collect()),
        kind: winner.kind,
        ports: ports(&ordered),
        affinity,
        internal_local: winner.internal_local,
        traffic_distribution: winner.traffic_distribution.clone(),
        cluster_selectors: winner.cluster_selectors.clone(),
        labels: winner.labels.clone(),
        annotations: winner.annotations.clone(),
        families: winner.families.clone(),
        conflicts: conflict::conflicts(winner, &ordered),
    })
}

/// The union of ports: of each export those that exclude none that is there.
fn ports(ordered: &[&Export]) -> Vec<ImportPort> {
    let mut ports: Vec<ImportPort> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    let mut numbers: HashSet<(Protocol, u16)> = HashSet::new();
    for export in ordered {
        for port in &export.ports {
            let number = (port.protocol, port.number);
            let named = by_name.get(&*port.name).copied();
            match named.and_then(|place| ports.get_mut(place)) {
                Some(there) if (there.port.protocol, there.port.number) == number => {
                    there.clusters.insert(Arc::clone(&export.cluster));
                }
                // Another port has the name.
                Some(_) => {}
                None if numbers.insert(number) => {
                    by_name.insert(&port.name, ports.len());
                    ports.push(ImportPort {
                        port: port.clone(),
                        clusters: BTreeSet::from([Arc::clone(&export.cluster)]),
                    });
                }
                // Another port has the number.
                None => {}
            }
        }
    }
    ports
}
