// SPDX-License-Identifier: Apache-2.0

//! The nodes that get the virtual addresses of imports.
//!
//! An ImportPolicy with `nodes` makes a group. The records of its imports name the group and stay shared; the facts
//! about each node name the groups that it is in, and its agent leaves the records of others out. So a Node that
//! gets another label changes no record.

use std::collections::BTreeSet;
use std::sync::Arc;

use portolan_catalog::{Catalog, DirtySet};
use portolan_model::{NodeInfo, NodeKey, import_group};
use portolan_policy::{ClusterFacts, ImportPolicy, Labels};

use super::Federation;
use super::world::reported;

impl Federation {
    /// Facts about a node, with the groups that it is in.
    pub(crate) fn grouped(
        &self,
        catalog: &Catalog,
        node: &NodeKey,
        mut info: NodeInfo,
    ) -> NodeInfo {
        if !self.grouped.contains(&node.cluster) {
            return info;
        }
        let none = Labels::new();
        let labels = catalog.host(node).map_or(&none, |host| &host.labels);
        let selecting = self.narrowing(catalog, &node.cluster).into_iter();
        let selecting = selecting.filter(|policy| policy.nodes.selects(&node.name, labels));
        info.groups
            .extend(selecting.map(|policy| import_group(&policy.meta.name)));
        info.groups.sort();
        info
    }

    /// Has the facts about nodes computed again whose groups may be others now.
    pub(super) fn renew_groups(&mut self, catalog: &Catalog, dirty: &mut DirtySet) {
        let grouped = self.grouped.intersection(&dirty.hosts);
        let mut clusters: BTreeSet<Arc<str>> = grouped.cloned().collect();
        if std::mem::take(&mut self.groups_stale) {
            self.note_clusters();
            clusters.extend(std::mem::take(&mut self.grouped));
            let names = self.objects.clusters.keys().map(|name| Arc::from(&**name));
            let grouped = names.filter(|name| !self.narrowing(catalog, name).is_empty());
            self.grouped = grouped.collect();
            clusters.extend(self.grouped.iter().cloned());
        }
        for cluster in clusters {
            dirty.nodes.extend(catalog.nodes_of(&cluster));
        }
    }

    /// The policies that say which nodes of a cluster get virtual addresses.
    pub(super) fn narrowing(&self, catalog: &Catalog, cluster: &Arc<str>) -> Vec<&ImportPolicy> {
        let policies = self.objects.imports.values();
        let policies = policies.filter(|policy| policy.narrows());
        let Some(object) = self.objects.clusters.get(&**cluster) else {
            return Vec::new();
        };
        let mut policies = policies.peekable();
        if policies.peek().is_none() {
            return Vec::new();
        }
        let labels = object.labels(&reported(catalog, cluster));
        let facts = ClusterFacts {
            name: cluster,
            labels: &labels,
        };
        policies
            .filter(|policy| policy.clusters.selects_cluster(&facts))
            .collect()
    }
}
