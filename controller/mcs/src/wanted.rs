// SPDX-License-Identifier: Apache-2.0

//! Objects that one cluster should have.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{ExportPort, ImportSpec};
use portolan_federate::imports::{ExportStatus, ImportHere, ImportName};
use portolan_federate::merge::{Affinity, ImportKind};
use portolan_model::Family;

use crate::condition::{self, WantedCondition};
use crate::labels;

#[cfg(test)]
mod tests;

/// The most ports that are written: other clusters decide how many there are.
const MOST_PORTS: usize = 256;

/// Wanted state of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Its ServiceImports.
    pub imports: BTreeMap<ImportName, WantedImport>,
    /// The conditions of its ServiceExports.
    pub exports: BTreeMap<ImportName, Vec<WantedCondition>>,
}

/// A ServiceImport that a cluster should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WantedImport {
    /// The id of the cluster whose export won.
    pub winner: Arc<str>,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`, but for the winner's.
    pub annotations: BTreeMap<String, String>,
    /// `spec`.
    pub spec: ImportSpec,
    /// `status.clusters`: the ids of exporting clusters.
    pub clusters: BTreeSet<Arc<str>>,
    /// `status.conditions`.
    pub conditions: Vec<WantedCondition>,
}

impl Wanted {
    /// Adds an import with the virtual addresses that it has now.
    pub fn import(&mut self, name: ImportName, here: &ImportHere, ips: &[IpAddr]) {
        self.imports.insert(name, WantedImport::new(here, ips));
    }

    /// Adds that the affinity of an import reaches no further than the gateways of these clusters.
    pub fn affinity_partial(&mut self, name: &ImportName, clusters: &[Arc<str>]) {
        if let Some(import) = self.imports.get_mut(name) {
            import
                .conditions
                .extend(condition::affinity_partial(clusters));
        }
    }

    /// Adds an annotation to an import.
    pub fn annotate(&mut self, name: &ImportName, key: &str, value: String) {
        if let Some(import) = self.imports.get_mut(name) {
            import.annotations.insert(key.to_owned(), value);
        }
    }

    /// Adds the conditions of an export. `outside` says which endpoints lie outside the networks of their cluster.
    pub fn export(&mut self, name: ImportName, status: &ExportStatus, outside: Option<&str>) {
        let conditions = condition::of_export(status, outside);
        self.exports.insert(name, conditions);
    }
}

impl WantedImport {
    fn new(here: &ImportHere, ips: &[IpAddr]) -> Self {
        let import = &here.import;
        let of = |family: &Family| ips.iter().find(|ip| Family::of(**ip) == *family);
        let given: Vec<IpAddr> = here.families.iter().filter_map(of).copied().collect();
        let headless = import.kind == ImportKind::Headless;
        let families = if headless || here.is_unsupported() {
            import.families.clone()
        } else if given.is_empty() {
            here.families.clone()
        } else {
            // As many as addresses, in their order.
            given.iter().map(|ip| Family::of(*ip)).collect()
        };
        let ready = if here.is_unsupported() {
            let message = "The cluster has no clusterSetIPs of the import's families";
            WantedCondition::new("Ready", false, "IPFamilyNotSupported", message)
        } else if !headless && given.is_empty() {
            let message = "The import has no virtual address yet";
            WantedCondition::new("Ready", false, "Pending", message)
        } else {
            WantedCondition::new("Ready", true, "Ready", "")
        };
        let ports = import.ports.iter().filter(|of| of.port.name.len() <= 63);
        let ports = ports.take(MOST_PORTS).map(|of| ExportPort {
            name: Arc::clone(&of.port.name),
            protocol: of.port.protocol,
            port: of.port.number,
            app_protocol: of
                .port
                .app_protocol
                .clone()
                .filter(|text| text.len() <= 253),
        });
        Self {
            winner: Arc::clone(&import.winner),
            labels: labels::labels(&import.labels),
            annotations: labels::annotations(&import.annotations),
            spec: ImportSpec {
                headless,
                ports: ports.collect(),
                ips: given,
                families,
                affinity_seconds: match import.affinity {
                    Affinity::None => None,
                    Affinity::ClientIp { timeout_seconds } => Some(timeout_seconds),
                },
                internal_local: import.internal_local,
                traffic_distribution: import
                    .traffic_distribution
                    .clone()
                    .filter(|text| text.len() <= 63),
            },
            clusters: BTreeSet::clone(&import.clusters),
            conditions: vec![ready],
        }
    }
}
