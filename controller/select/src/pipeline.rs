// SPDX-License-Identifier: Apache-2.0

//! Catalog and projector as one: changes in, table deltas out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_catalog::{Catalog, DirtySet, FieldProblem, ObjectChange, ObjectKey, ObjectRef};
use portolan_federate::gateway::{Gateways, PortName};
use portolan_federate::imports::ImportName;
use portolan_federate::plans::PlanChanges;
use portolan_mcs::{Awaited, WantedSlice, Write};
use portolan_model::{NodeKey, Protocol};
use portolan_policy::Objects;

use crate::explain::explain;
use crate::federation::{
    ClusterState, Federation, FederationCounts, GatewayPorts, Kept, NamedImport, PlanBook,
    PlannedImport, Replanned, ShownExport, ShownImport, Wanted, is_federated,
};
use crate::{Explanation, Inquiry, NoAnswer, Projector, SelectConfig, TableDelta};
#[cfg(test)]
use crate::{Projection, federation::Extent};

/// The pure part between a source and the publisher of tables. Owned by one task.
#[derive(Debug, Default)]
pub struct Pipeline {
    catalog: Catalog,
    projector: Projector,
    federation: Federation,
    dirty: DirtySet,
    problems_changed: bool,
    /// Set when objects change that only MCS writes are compared with.
    observed_changed: bool,
}

/// An audit, part by part: incrementally updated tables must equal tables computed from scratch. A
/// part at a time, so that no change waits long.
#[derive(Debug)]
pub struct Audit {
    /// Whether the plan of imports is still to be computed.
    plan: bool,
    services: BTreeSet<ObjectKey>,
    nodes: BTreeSet<NodeKey>,
}

impl Audit {
    /// Returns `true` if the audit is complete.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !self.plan && self.services.is_empty() && self.nodes.is_empty()
    }
}

impl Pipeline {
    /// An empty one.
    #[must_use]
    pub fn new(config: SelectConfig) -> Self {
        Self {
            projector: Projector::new(config),
            ..Self::default()
        }
    }

    /// Applies a change. The tables follow with the next [`flush`](Self::flush).
    pub fn apply(&mut self, change: ObjectChange) {
        self.catalog.apply(change, &mut self.dirty);
    }

    /// Forgets how far the source of a cluster was, which is gone.
    pub fn forget_versions(&mut self, cluster: &str) {
        self.catalog.forget_versions(cluster);
    }

    /// Returns `true` if there is anything to flush.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        // The addresses of a centre's imports are judged by those of Services and Nodes.
        let is_judged = self.dirty.addresses && self.federation.is_following();
        is_judged || !self.dirty.is_empty() || self.federation.is_dirty()
    }

    /// Returns `true` if the flush is urgent: see [`DirtySet::urgent`].
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        self.dirty.urgent
    }

    /// The effect of all changes since the last flush on the tables: one atomic transition.
    pub fn flush(&mut self) -> TableDelta {
        let mut dirty = std::mem::take(&mut self.dirty);
        self.problems_changed |= dirty.problems;
        self.observed_changed |= dirty.observed;
        self.federation.refresh(&mut self.catalog, &mut dirty);
        self.project(&dirty)
    }

    /// Has plans of a centre make the imports of a cluster, in place of policies. Their virtual addresses must lie in these
    /// ranges, if there are any, and be none of the cluster's Services and Nodes.
    pub fn follow_centre(&mut self, cluster: &Arc<str>, ranges: Vec<IpNet>) {
        self.federation.follow_centre(cluster, ranges);
    }

    /// Takes plans of a centre that differ, after [`follow_centre`](Self::follow_centre).
    pub fn take_plans(&mut self, changes: PlanChanges) {
        self.federation.take_plans(changes);
    }

    /// Begins to note what plans for the controllers of clusters depend on, for [`take_replanned`](Self::take_replanned).
    pub fn follow_plans(&mut self) {
        self.federation.follow_plans();
    }

    /// Returns the parts of plans that may differ by flushes since the last call.
    pub fn take_replanned(&mut self) -> Replanned {
        self.federation.take_replanned()
    }

    /// The plans of an importing cluster that may differ, with all that may have since the last call for this book;
    /// all plans at the first one.
    #[must_use]
    pub fn plan_changes(&self, book: &mut PlanBook, replanned: &mut Replanned) -> PlanChanges {
        self.federation.plan_changes(&self.catalog, book, replanned)
    }

    /// The policy of several clusters, in place of the one before. Without a Cluster there are no imports. Of no effect
    /// if a centre is followed, as the next four.
    pub fn set_policies(&mut self, objects: Objects) {
        if !self.federation.is_following() {
            self.federation.set_policies(objects);
        }
    }

    /// The members that have sent all of their objects, with their states, in place of those before.
    pub fn set_states(&mut self, states: BTreeMap<Arc<str>, ClusterState>) {
        if !self.federation.is_following() {
            self.federation.set_states(states);
        }
    }

    /// The members that have not sent all of their objects and are not waited for any more, in place of those before, by
    /// name.
    pub fn give_up(&mut self, members: BTreeSet<Arc<str>>) {
        if !self.federation.is_following() {
            self.federation.give_up(members);
        }
    }

    /// The members, by name, that only imports wait for which they are known to export, in place of those before.
    pub fn expect_no_more(&mut self, members: BTreeSet<Arc<str>>) {
        if !self.federation.is_following() {
            self.federation.expect_no_more(members);
        }
    }

    /// The clusters that no Cluster of the policy has and that are waited for all the same, in place of those before,
    /// by id: their Clusters may be in what could not be read.
    pub fn await_absent(&mut self, ids: BTreeSet<Arc<str>>) {
        if !self.federation.is_following() {
            self.federation.await_absent(ids);
        }
    }

    /// Sets the kept state of all imports, in place of the one before, by their keys ([`crate::import_key`]).
    pub fn set_kept(&mut self, kept: BTreeMap<ObjectKey, Kept>) {
        if !self.federation.is_following() {
            self.federation.set_kept(kept);
        }
    }

    /// Gives an import virtual addresses.
    pub fn set_address(&mut self, import: ObjectKey, ips: Vec<IpAddr>) {
        self.federation.set_address(import, ips);
    }

    /// Forgets the kept state of an import that is gone for good.
    pub fn forget_import(&mut self, import: &ObjectKey) {
        self.federation.forget(import);
    }

    /// State of imports that outlives restarts, by their keys, if it has changed since the last call.
    pub fn changed_kept(&mut self) -> Option<&BTreeMap<ObjectKey, Kept>> {
        self.federation.changed_kept()
    }

    /// Returns the kept state of all imports.
    #[must_use]
    pub fn kept(&self) -> &BTreeMap<ObjectKey, Kept> {
        self.federation.kept()
    }

    /// The imports that need virtual addresses as things are now, if any came or went, or may need others than it has,
    /// since the last call. To be called before a flush, so that new imports get theirs with it.
    pub fn wanted(&mut self) -> Option<BTreeMap<Arc<str>, Vec<Wanted>>> {
        let is_news = std::mem::take(&mut self.dirty.imports);
        let exports = std::mem::take(&mut self.dirty.exports);
        let services = &self.dirty.services;
        self.federation
            .replan(&self.catalog, is_news, &exports, services);
        self.federation.take_wanted()
    }

    /// The ports of exports that need one at the gateways of their clusters, as things are now, if that may have changed
    /// since the last call. To be called before a flush, after [`wanted`](Self::wanted).
    pub fn wanted_ports(&mut self) -> Option<BTreeMap<Arc<str>, BTreeSet<PortName>>> {
        self.federation.take_wanted_ports(&self.catalog)
    }

    /// The node ports of Services of a cluster that lie among the ports of its gateways, each with its Service.
    #[must_use]
    pub fn node_ports_at_gateways(
        &self,
        cluster: &Arc<str>,
    ) -> BTreeMap<(u16, Protocol), ObjectKey> {
        self.federation
            .node_ports_at_gateways(&self.catalog, cluster)
    }

    /// Gives the exports of a cluster ports at its gateways, in place of all that they had.
    pub fn set_gateway_ports(&mut self, cluster: &Arc<str>, ports: GatewayPorts) {
        self.federation.set_gateway_ports(cluster, ports);
    }

    /// The ports of exports at gateways, by cluster.
    #[must_use]
    pub fn gateway_ports(&self) -> &BTreeMap<Arc<str>, GatewayPorts> {
        self.federation.gateway_ports()
    }

    /// The same, if they have changed since the last call.
    pub fn changed_gateway_ports(&mut self) -> Option<&BTreeMap<Arc<str>, GatewayPorts>> {
        self.federation.changed_gateway_ports()
    }

    /// The gateways of clusters that have some, as of the last flush.
    #[must_use]
    pub fn gateways(&self) -> &BTreeMap<Arc<str>, Gateways> {
        self.federation.gateways()
    }

    /// The numbers of exports and imports as of the last flush, if they may have changed since the last call.
    pub fn changed_counts(&mut self) -> Option<FederationCounts> {
        self.federation.changed_counts()
    }

    /// Takes over what a cluster's ServiceImports record: virtual addresses, winners, exporting clusters. The winners
    /// that were noted stay.
    pub fn adopt_imports(&mut self, cluster: &Arc<str>) {
        self.federation.adopt(&self.catalog, cluster, false);
    }

    /// The same where another replica leads: the winners that it has recorded come before those that were noted.
    pub fn follow_imports(&mut self, cluster: &Arc<str>) {
        self.federation.adopt(&self.catalog, cluster, true);
    }

    /// Returns `true` if anything that MCS objects are made of, or compared with, has changed since
    /// the last call.
    pub fn take_objects_changed(&mut self) -> bool {
        let is_observed = std::mem::take(&mut self.dirty.observed);
        let is_observed = std::mem::take(&mut self.observed_changed) || is_observed;
        self.federation.take_objects_changed() || is_observed
    }

    /// Returns `true` if anything that EndpointSlices of imports are made of has changed since the
    /// last call.
    pub fn take_endpoints_changed(&mut self) -> bool {
        self.federation.take_endpoints_changed()
    }

    /// The writes that make a cluster's MCS objects as they should be, at most 1,000.
    #[must_use]
    pub fn mcs_writes(&self, cluster: &Arc<str>, awaited: &Awaited) -> Vec<Write> {
        self.federation.mcs_writes(&self.catalog, cluster, awaited)
    }

    /// The names of the Services that clusters which are waited for are known to export as well, by their ids.
    #[must_use]
    pub fn awaited_exports(&self, ids: &BTreeSet<Arc<str>>) -> BTreeSet<ImportName> {
        self.federation.awaited_exports(ids)
    }

    /// The imports of a cluster that clusters which are waited for may export.
    #[must_use]
    pub fn awaited_imports(&self, cluster: &Arc<str>, awaited: &Awaited) -> BTreeSet<ImportName> {
        self.federation
            .awaited_imports(&self.catalog, cluster, awaited)
    }

    /// Begins to note the imports whose names may have changed, for [`take_renamed`](Self::take_renamed).
    pub fn follow_names(&mut self) {
        self.federation.follow_names();
    }

    /// The imports, by their keys ([`crate::import_key`]), whose names may have changed by flushes since the last
    /// call.
    pub fn take_renamed(&mut self) -> BTreeSet<ObjectKey> {
        self.federation.take_renamed()
    }

    /// Returns `true` if namespaces may have changed by flushes since the last call.
    pub fn take_namespaces_changed(&mut self) -> bool {
        self.federation.take_namespaces_changed()
    }

    /// An import as DNS names it; `None` if there is none with this key.
    #[must_use]
    pub fn named(&self, import: &ObjectKey) -> Option<NamedImport> {
        self.federation.import_names(&self.catalog, import)
    }

    /// The EndpointSlices that a cluster should have for its imports, by name.
    #[must_use]
    pub fn mcs_slices(&self, cluster: &Arc<str>) -> BTreeMap<ImportName, WantedSlice> {
        self.federation.mcs_slices(&self.catalog, cluster)
    }

    /// The trigger times of each cluster's changes since the last flush, in milliseconds of Unix time;
    /// called before the next flush.
    pub fn take_triggers(&mut self) -> BTreeMap<Arc<str>, Vec<u64>> {
        let mut times: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (service, of_service) in std::mem::take(&mut self.dirty.triggers) {
            times.entry(service.cluster).or_default().extend(of_service);
        }
        times
    }

    fn project(&mut self, dirty: &DirtySet) -> TableDelta {
        let federation = &mut self.federation;
        let delta = self.projector.update_with(&self.catalog, federation, dirty);
        self.problems_changed |= self.projector.take_problems_changed();
        self.problems_changed |= self.federation.take_problems_changed();
        delta
    }

    /// Begins an audit: see [`Audit`].
    #[must_use]
    pub fn audit(&self) -> Audit {
        let mut services: BTreeSet<_> = self.catalog.services().collect();
        services.extend(self.projector.services().cloned());
        services.extend(self.federation.keys());
        services.extend(self.federation.gateway_keys());
        let mut nodes: BTreeSet<_> = self.catalog.nodes().collect();
        nodes.extend(self.projector.nodes().cloned());
        Audit {
            plan: true,
            services,
            nodes,
        }
    }

    /// Returns `true` if an audit can go on now. Weights that changed affect Services that only a
    /// flush finds; those of a cluster whose source never sends all may wait for it for long.
    #[must_use]
    pub fn can_audit(&self) -> bool {
        self.dirty.node_weights.is_empty() && self.dirty.pod_weights.is_empty()
    }

    /// Computes the next part of an audit from scratch, of at most `limit` Services and nodes. The
    /// result is where the tables diverge from that, and repairs them; it should be empty.
    pub fn continue_audit(&mut self, audit: &mut Audit, limit: usize) -> TableDelta {
        if !self.can_audit() {
            return TableDelta::default();
        }
        let mut again = DirtySet::default();
        // Imports that wait for a flush differ for a good reason.
        let dirty = &self.dirty;
        let is_awaited = dirty.imports || !dirty.exports.is_empty() || !dirty.hosts.is_empty();
        let is_planned = !self.federation.is_dirty() && !is_awaited;
        let has_plan = !std::mem::take(&mut audit.plan);
        if !has_plan && is_planned {
            let awaited = &self.dirty.services;
            let is_other = self.federation.audit_plan(&self.catalog, awaited);
            if self.federation.gateways_anew(&self.catalog) || is_other {
                self.federation.refresh(&mut self.catalog, &mut again);
            }
        }
        for _ in 0..limit {
            // Dirty Services differ for a good reason.
            if let Some(service) = audit.services.pop_first() {
                if is_federated(&service) {
                    if is_planned {
                        self.audit_import(service, &mut again);
                    }
                } else if !self.dirty.services.contains(&service) {
                    again.services.insert(service);
                }
            } else if let Some(node) = audit.nodes.pop_first()
                && !self.dirty.nodes.contains(&node)
            {
                again.nodes.insert(node);
            }
        }
        self.project(&again)
    }

    /// Has an import computed from scratch, unless what it is made of is dirty.
    fn audit_import(&mut self, import: ObjectKey, again: &mut DirtySet) {
        let dirty = &self.dirty.services;
        if !dirty.contains(&import) && !self.federation.uses_any(&import, dirty) {
            self.federation.claim(&mut self.catalog, &import, again);
            again.services.insert(import);
        }
    }

    /// The problems of each object, from conversion and projection, if they have changed since the
    /// last call.
    pub fn changed_problems(&mut self) -> Option<BTreeMap<ObjectRef, Vec<FieldProblem>>> {
        std::mem::take(&mut self.problems_changed).then(|| self.problems())
    }

    /// The problems of each object, from conversion and projection.
    #[must_use]
    pub fn problems(&self) -> BTreeMap<ObjectRef, Vec<FieldProblem>> {
        let mut problems = self.catalog.problems().clone();
        let of_imports = self.federation.problems();
        for (object, found) in self.projector.problems().iter().chain(of_imports) {
            problems
                .entry(object.clone())
                .or_default()
                .extend(found.iter().cloned());
        }
        problems
    }

    /// Explains the destinations of connections to an address that arrive on a node, by the objects
    /// as they are now, published or not.
    ///
    /// # Errors If the node does not exist, or no Service has the address.
    pub fn explain(&self, inquiry: &Inquiry) -> Result<Explanation, NoAnswer> {
        let config = self.projector.config();
        explain(&self.catalog, &self.federation, config, inquiry)
    }

    /// An import of a cluster for people, by the objects as they are now, published or not; none if the
    /// cluster is no member.
    #[must_use]
    pub fn show_import(&self, importing: &Arc<str>, name: &ImportName) -> Option<ShownImport> {
        let config = self.projector.config();
        let shown = self
            .federation
            .show_import(&self.catalog, config, importing, name)?;
        Some(ShownImport {
            pending: self.is_dirty(),
            ..shown
        })
    }

    /// An export of a cluster for people; none if the cluster is no member.
    #[must_use]
    pub fn show_export(&self, exporting: &Arc<str>, name: &ImportName) -> Option<ShownExport> {
        self.federation.show_export(&self.catalog, exporting, name)
    }

    /// The imports that another policy would change, with the objects and states of now.
    #[must_use]
    pub fn plan_policies(&self, objects: Objects) -> Vec<PlannedImport> {
        let config = self.projector.config();
        self.federation
            .plan_policies(&self.catalog, config, objects)
    }

    /// The ports of an import as its table has them, from the clusters that decide or from all.
    #[cfg(test)]
    pub(crate) fn projections(&self, import: &ObjectKey, extent: Extent) -> Vec<Projection> {
        let config = self.projector.config();
        let projected = self
            .federation
            .project(&self.catalog, config, import, extent);
        let ports = projected.ports.into_iter();
        ports.map(|(projection, _)| projection).collect()
    }

    /// The range of ports of the gateways of a cluster.
    #[cfg(test)]
    pub(crate) fn gateway_range(&self, cluster: &str) -> Option<portolan_policy::PortRange> {
        self.federation.gateway_range(cluster)
    }

    /// The objects.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.catalog
    }
}

#[cfg(test)]
mod tests;
