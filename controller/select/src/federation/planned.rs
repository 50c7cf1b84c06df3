// SPDX-License-Identifier: Apache-2.0

//! Changes that another policy would make.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::Catalog;
use portolan_federate::imports::{World, imports};
use portolan_policy::Objects;
use serde::{Deserialize, Serialize};

use super::{Federation, import_name};
use crate::SelectConfig;

/// An import that another policy would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedImport {
    /// The importing cluster.
    pub cluster: String,
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// The import now; none if there is none.
    pub before: Option<PlannedShares>,
    /// The import with the other policy.
    pub after: Option<PlannedShares>,
    /// The clusters that would export it no more, each with the first reason.
    #[serde(default)]
    pub refused: BTreeMap<String, String>,
}

/// The shares of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedShares {
    /// Where they come from, in words.
    pub policy: String,
    /// The share of each cluster in permille, of the first port and family; empty before the import has an
    /// address.
    pub permille: BTreeMap<String, u32>,
    /// The gateways by which connections to a cluster go, of the first port and family; clusters whose pods are reached
    /// themselves are not here.
    #[serde(default)]
    pub gateways: BTreeMap<String, Vec<SocketAddr>>,
    /// The ImportPolicy whose `nodes` get the addresses; none if all nodes do.
    #[serde(default)]
    pub nodes: Option<String>,
    /// The clusters that export it.
    pub clusters: Vec<String>,
}

impl Federation {
    /// The imports that another policy would change, with the objects and states of now.
    pub(crate) fn plan_policies(
        &self,
        catalog: &Catalog,
        config: SelectConfig,
        objects: Objects,
    ) -> Vec<PlannedImport> {
        let mut other = Self {
            states: self.states.clone(),
            kept: self.kept.clone(),
            ..Self::default()
        };
        other.set_policies(objects);
        other.count_all(catalog);
        other.plan = imports(&other.world(catalog));
        other.ports.clone_from(&self.ports);
        other.renew_gateways(catalog, &BTreeSet::new());
        other.try_ports(catalog);
        let worlds = (self.world(catalog), other.world(catalog));
        let mut keys = self.keys();
        keys.extend(other.keys());
        let planned = keys.into_iter().filter_map(|key| {
            let name = import_name(&key)?;
            let of = |federation: &Self, world: &World<'_>| {
                let cluster = &key.cluster;
                let shown = federation.show_import_of(world, catalog, config, cluster, &name)?;
                let here = federation.here(&key)?;
                let first = shown.ports.first();
                let clusters = first.into_iter().flat_map(|port| &port.clusters);
                let gateways = clusters.clone().filter(|one| !one.gateways.is_empty());
                let gateways = gateways.map(|one| (one.cluster.clone(), one.gateways.clone()));
                let permille =
                    clusters.filter_map(|one| Some((one.cluster.clone(), one.share_permille?)));
                Some(PlannedShares {
                    permille: permille.collect(),
                    gateways: gateways.collect(),
                    policy: shown.policy,
                    nodes: shown.nodes,
                    clusters: here.sources.keys().map(Arc::to_string).collect(),
                })
            };
            let (before, after) = (of(self, &worlds.0), of(&other, &worlds.1));
            if before == after {
                return None;
            }
            let gone = self.here(&key).into_iter();
            let gone = gone.flat_map(|here| here.sources.iter());
            let refused = gone.filter_map(|(exporting, source)| {
                let cluster = &key.cluster;
                let of = other
                    .plan
                    .explain(&worlds.1, cluster, exporting, source, None);
                let here = other.here(&key);
                let is_in = here.is_some_and(|here| here.sources.contains_key(exporting));
                let reason = of.invisible.filter(|_| !is_in)?;
                Some((exporting.to_string(), reason.to_string()))
            });
            Some(PlannedImport {
                cluster: key.cluster.to_string(),
                name: name.to_string(),
                refused: refused.collect(),
                before,
                after,
            })
        });
        planned.collect()
    }
}
