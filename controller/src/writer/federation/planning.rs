// SPDX-License-Identifier: Apache-2.0

//! The inputs of plans of MCS objects that depend on time: who writes, which clusters are reached, which are awaited.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use portolan_federate::state::{Phase, Settings, Status, may_be_late, may_serve_without};
use portolan_mcs::Awaited;
use portolan_policy::Cluster;
use portolan_policy::spec::EndpointSlices;
use portolan_select::Pipeline;

use super::{Federated, now};
use crate::writer::objects::{Inputs, SliceUse};

impl Federated {
    /// Takes over what a cluster's ServiceImports record, when its source has sent all objects.
    pub(in crate::writer) fn adopt(&mut self, pipeline: &mut Pipeline, cluster: &Arc<str>) {
        // It is in contact with all objects now; the last contact was one without.
        self.contacts.remove(cluster);
        if self.mcs.writes_to(cluster) {
            pipeline.adopt_imports(cluster);
        }
    }

    /// Plans the writes of MCS objects, if anything changed that they depend on.
    pub(in crate::writer) fn plan_objects(
        &mut self,
        pipeline: &mut Pipeline,
        synced: &BTreeSet<Arc<str>>,
    ) {
        let clusters = self.mcs.clusters();
        if clusters.is_empty() {
            return;
        }
        let has_changed = pipeline.take_objects_changed();
        if has_changed && !self.mcs.is_leading() {
            for cluster in clusters.iter().filter(|cluster| synced.contains(*cluster)) {
                pipeline.follow_imports(cluster);
            }
        }
        // Objects of a cluster out of contact stay as they are.
        let is_reached = |cluster: &str| {
            let id = self.objects.clusters.get(cluster).map(|of| &of.id);
            let status = id.and_then(|id| self.fleet.status(id));
            let is_away = |phase| matches!(phase, Phase::Connecting | Phase::Stale | Phase::Lost);
            status.is_some_and(|status| !is_away(status.phase))
        };
        let reached = clusters.into_iter();
        let reached = reached.filter(|cluster| synced.contains(cluster) && is_reached(cluster));
        let reached: BTreeSet<Arc<str>> = reached.collect();
        let awaited = self.awaited(synced);
        let set = self.objects.set.as_ref();
        let slices = match set.map(|set| set.endpoint_slices) {
            Some(EndpointSlices::Headless | EndpointSlices::All) => SliceUse::Written,
            Some(EndpointSlices::Off) => SliceUse::Unwanted,
            // The ClusterSet may be in a file that is late or cannot be read.
            None => SliceUse::Unknown,
        };
        let inputs = Inputs {
            is_leading: self.mcs.is_leading(),
            awaited,
            reached,
            slices,
        };
        self.mcs.plan(pipeline, inputs, has_changed);
    }

    /// The members whose objects are not known yet, and that may still be needed; with those whose Clusters are not
    /// known yet either.
    pub(in crate::writer) fn awaited(&self, synced: &BTreeSet<Arc<str>>) -> Awaited {
        let away = self.away(synced).into_iter();
        let needed = away.filter(|cluster| self.is_awaited(cluster));
        let mut ids = self.absent();
        ids.extend(needed.map(|cluster| Arc::<str>::from(cluster.id.as_str())));
        Awaited {
            ids,
            ..Awaited::default()
        }
    }

    /// The names of the members that only imports wait for which they are known to export. A member that is never lost
    /// may be away for ever: new imports wait for it no longer than for one that was never in contact.
    pub(super) fn overdue(&self, synced: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let away = self.away(synced).into_iter();
        let overdue = away.filter(|cluster| {
            let ttl = Settings::new(&self.loss, cluster).stale_ttl;
            ttl.is_zero() && !may_be_late(ttl, self.waited) && self.is_awaited(cluster)
        });
        overdue
            .map(|cluster| Arc::from(cluster.meta.name.as_str()))
            .collect()
    }

    /// The names of the members whose objects are not known, and that are not waited for any more.
    pub(super) fn given_up(&self, synced: &BTreeSet<Arc<str>>) -> BTreeSet<Arc<str>> {
        let away = self.away(synced).into_iter();
        let missing = away.filter(|cluster| !self.is_awaited(cluster));
        missing
            .map(|cluster| Arc::from(cluster.meta.name.as_str()))
            .collect()
    }

    /// The members whose objects are not known.
    fn away(&self, synced: &BTreeSet<Arc<str>>) -> Vec<&Cluster> {
        let members = self.objects.members().into_values();
        let away = members.filter(|cluster| !synced.contains(cluster.meta.name.as_str()));
        away.collect()
    }

    fn is_awaited(&self, cluster: &Cluster) -> bool {
        let status = self.fleet.status(&cluster.id);
        let ttl = Settings::new(&self.loss, cluster).stale_ttl;
        match status.filter(|status| status.last_contact.is_some()) {
            Some(status) => !self.is_over(&status, ttl),
            None => may_be_late(ttl, self.waited),
        }
    }

    /// Returns `true` if a cluster that was in contact, and has not sent its objects to this process, is waited for no
    /// longer: it is lost, or this process has waited until it would be. The time of the last contact alone says
    /// nothing about the cluster: all replicas may have been stopped since, or the clock may have been set.
    pub(super) fn is_over(&self, status: &Status, ttl: Duration) -> bool {
        let is_lost = status.reach_step == 0;
        let has_waited = !may_be_late(ttl, self.waited);
        (is_lost || has_waited) && may_serve_without(status.last_contact, ttl, now())
    }

    /// The ids of clusters from before that no Cluster has, and that may still be needed.
    pub(super) fn absent(&self) -> BTreeSet<Arc<str>> {
        if self.is_complete {
            return BTreeSet::new();
        }
        let ids = self.fleet.statuses().into_keys();
        ids.filter(|id| self.is_absent(id)).collect()
    }

    /// Returns `true` if a cluster from before has no Cluster because that may be in what could not be read, and may
    /// still be needed. What its Cluster says about loss is unknown, so the rules of the set count. The wait has an end
    /// under all of them: the Cluster may be gone.
    pub(super) fn is_absent(&self, id: &str) -> bool {
        if self.is_complete || self.clusters().any(|cluster| *cluster.id == *id) {
            return false;
        }
        let ttl = self.loss.stale_ttl;
        let status = self.fleet.status(id);
        status.is_some_and(|status| may_be_late(ttl, self.waited) && !self.is_over(&status, ttl))
    }
}
