// SPDX-License-Identifier: Apache-2.0

//! Ports of exports at the gateways of their clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_federate::gateway::{PortClaim, PortName};
use portolan_select::Pipeline;

use super::{Federated, now};

impl Federated {
    /// Gives exports that other clusters import by gateways a port there.
    ///
    /// What an export of a cluster has stays while some cluster has not sent its objects: it may import the export. An
    /// export that gets none is a problem of its ServiceExport.
    pub(in crate::writer) fn allocate_ports(
        &mut self,
        pipeline: &mut Pipeline,
        synced: &BTreeSet<Arc<str>>,
    ) {
        let Some(mut wanted) = pipeline.wanted_ports() else {
            return;
        };
        let are_all_here = self
            .clusters()
            .all(|cluster| synced.contains(cluster.meta.name.as_str()));
        let kept = pipeline.gateway_ports().clone();
        let now = now();
        for (cluster, ports) in &mut self.ports {
            let kept = kept.get(cluster);
            let mut names: BTreeSet<PortName> = wanted.remove(cluster).unwrap_or_default();
            if !are_all_here {
                names.extend(kept.into_iter().flat_map(BTreeMap::keys).cloned());
            }
            let claims = names.into_iter().map(|name| PortClaim {
                present: kept.and_then(|kept| kept.get(&name)).copied(),
                name,
            });
            let claims: Vec<_> = claims.collect();
            let given = ports.allocate(&claims, now).into_iter();
            let given = given.filter_map(|(name, port)| Some((name, port.ok()?)));
            pipeline.set_gateway_ports(cluster, given.collect());
        }
    }

    /// Counts the gateways of each cluster for the metrics.
    pub(super) fn count_gateways(&self, pipeline: &Pipeline) {
        let gateways = pipeline.gateways();
        let clusters = self.clusters();
        let clusters = clusters.filter(|cluster| cluster.network.gateway.is_some());
        let counts = clusters.map(|cluster| {
            let name: Arc<str> = cluster.meta.name.as_str().into();
            let count = gateways.get(&name).map_or(0, |found| found.chosen.len());
            (name, count)
        });
        self.states.lock().gateways = counts.collect();
    }
}
