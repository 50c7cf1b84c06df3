// SPDX-License-Identifier: Apache-2.0

//! Objects of the Multi-Cluster Services API: what the plan wants, and what clusters have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Catalog, Kind, ObjectKey, ObjectRef, Reason};
use portolan_federate::imports::{ImportHere, ImportName};
use portolan_federate::merge::ImportKind;
use portolan_mcs::{Awaited, Observed, Wanted, WantedSlice, Write, slices, writes};
use portolan_policy::spec::EndpointSlices;

use super::noted;
use super::{Federation, Kept, import_key, import_name, service_key};

impl Federation {
    /// Returns `true` if anything that MCS objects are made of has changed since the last call.
    pub(crate) fn take_objects_changed(&mut self) -> bool {
        std::mem::take(&mut self.objects_changed)
    }

    /// Returns `true` if endpoints of exported Services, or what else slices are made of, have
    /// changed since the last call.
    pub(crate) fn take_endpoints_changed(&mut self) -> bool {
        std::mem::take(&mut self.endpoints_changed)
    }

    /// The writes that make a cluster's MCS objects as they should be.
    pub(crate) fn mcs_writes(
        &self,
        catalog: &Catalog,
        cluster: &Arc<str>,
        awaited: &Awaited,
    ) -> Vec<Write> {
        let observed = Observed::new(catalog.observed_imports(cluster), catalog.exports(cluster));
        writes(&self.wanted(cluster), &observed, awaited)
    }

    fn wanted(&self, cluster: &Arc<str>) -> Wanted {
        let mut wanted = Wanted::default();
        let imports = self.plan.imports.get(cluster).into_iter().flatten();
        for (name, here) in imports {
            let kept = self.kept.get(&import_key(cluster, name));
            let ips = kept.map(|kept| kept.ips.as_slice()).unwrap_or_default();
            wanted.import(name.clone(), here, ips);
            wanted.affinity_partial(name, &self.affinity_ends(cluster, here));
            if let Some(text) = self.noted_ports(cluster, name, here) {
                wanted.annotate(name, noted::GATEWAY_PORTS, text);
            }
        }
        let exports = self.plan.exports.get(cluster).into_iter().flatten();
        for (name, status) in exports {
            let outside = self.outside(&service_key(cluster, name));
            wanted.export(name.clone(), status, outside);
        }
        wanted
    }

    /// Returns the message about endpoints of an export that lie outside the networks of their cluster, if any do.
    fn outside(&self, key: &ObjectKey) -> Option<&str> {
        let export = ObjectRef {
            kind: Kind::ServiceExport,
            key: key.clone(),
        };
        let mut problems = self.problems.get(&export)?.iter();
        let found = problems.find(|problem| problem.reason == Reason::AddressOutsideNetwork)?;
        Some(&found.message)
    }

    /// The EndpointSlices of a cluster's imports that the ClusterSet asks for, by name.
    pub(crate) fn mcs_slices(
        &self,
        catalog: &Catalog,
        cluster: &Arc<str>,
    ) -> BTreeMap<ImportName, WantedSlice> {
        let asked = self.set.endpoint_slices;
        let is_asked = |kind: ImportKind| match asked {
            EndpointSlices::Off => false,
            EndpointSlices::Headless => kind == ImportKind::Headless,
            EndpointSlices::All => true,
        };
        let imports = self.plan.imports.get(cluster).into_iter().flatten();
        let imports = imports.filter(|(_, here)| is_asked(here.import.kind));
        let of_import = imports.flat_map(|(name, here)| {
            let sources = self.exported_endpoints(catalog, cluster, here);
            sources.map(|(id, endpoints)| slices(name, &id, &endpoints))
        });
        of_import.flatten().collect()
    }

    /// The names of the Services that clusters which are waited for are known to export as well, by their ids: what
    /// exports of these names differ in is not known.
    pub(crate) fn awaited_exports(&self, ids: &BTreeSet<Arc<str>>) -> BTreeSet<ImportName> {
        let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
        if ids.is_empty() {
            return names;
        }
        let concerned = self.kept.iter();
        let concerned = concerned.filter(|(_, kept)| !kept.clusters.is_disjoint(ids));
        for here in concerned.filter_map(|(key, _)| self.here(key)) {
            // Imports of one name mostly share their sources.
            if seen.insert(Arc::as_ptr(&here.sources)) {
                names.extend(here.sources.values().cloned());
            }
        }
        names
    }

    /// The imports of a cluster that clusters which are waited for may export, by what is kept of them and by what
    /// their ServiceImports say.
    pub(crate) fn awaited_imports(
        &self,
        catalog: &Catalog,
        cluster: &Arc<str>,
        awaited: &Awaited,
    ) -> BTreeSet<ImportName> {
        if awaited.ids.is_empty() {
            return BTreeSet::new();
        }
        let first = ObjectKey {
            cluster: Arc::clone(cluster),
            namespace: Arc::default(),
            name: Arc::default(),
        };
        let is_concerned = |kept: &Kept| {
            let mut winner = kept.winner.iter();
            awaited.concerns(&kept.clusters) || winner.any(|id| awaited.ids.contains(id))
        };
        let kept = self.kept.range(first..);
        let kept = kept.take_while(|(key, _)| key.cluster == *cluster);
        let kept = kept.filter(|(_, kept)| is_concerned(kept));
        let kept = kept.filter_map(|(key, _)| import_name(key));
        let observed = catalog.observed_imports(cluster).filter(|import| {
            let own = import.own.as_deref();
            own.is_some_and(|own| awaited.may_concern(&own.clusters))
        });
        let observed = observed.map(|import| ImportName {
            namespace: Arc::clone(&import.key.namespace),
            name: Arc::clone(&import.key.name),
        });
        kept.chain(observed).collect()
    }

    /// The ports that a cluster's own export has at gateways, as the annotation of its import there: other replicas read
    /// it, and this one after a restart.
    fn noted_ports(
        &self,
        cluster: &Arc<str>,
        name: &ImportName,
        here: &ImportHere,
    ) -> Option<String> {
        let is_own = here.sources.get(cluster) == Some(name);
        let ports = self.gateway_ports().get(cluster).filter(|_| is_own)?;
        noted::spell(ports, name)
    }
}
