// SPDX-License-Identifier: Apache-2.0

//! Incremental projection: compares with the published records and yields the differences.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use portolan_catalog::{
    Catalog, DirtySet, FieldProblem, Kind, ObjectKey, ObjectRef, QuickMap, quick_hash,
};
use portolan_model::{ByRecord, NodeInfo, NodeKey, NodeOverlay, Record, RecordKey};

use crate::federation::{Federation, Seen, is_federated, own_service};
use crate::project::project;
use crate::{Projection, SelectConfig, TableDelta};

/// The published records of one Service, by port, sorted by key. Exact slices, since there is one
/// for each Service, and most have one element.
type Published = Box<[PublishedPort]>;

/// The published record of one port of a Service.
#[derive(Debug)]
struct PublishedPort {
    record: Arc<Record>,
    /// A hash of the destinations. Where it differs the record does, and the one before, which is in no cache, is not
    /// read.
    destinations: u64,
    /// Sorted by node.
    lists: Box<[(NodeKey, Arc<NodeOverlay>)]>,
}

impl PublishedPort {
    fn key(&self) -> &RecordKey {
        &self.record.key
    }

    fn lists_of(&self, node: &NodeKey) -> Option<&Arc<NodeOverlay>> {
        let found = self.lists.binary_search_by(|(of, _)| of.cmp(node));
        Some(&self.lists[found.ok()?].1)
    }
}

/// Turns dirty sets into table deltas. Owned by the catalog's task.
#[derive(Debug, Default)]
pub struct Projector {
    config: SelectConfig,
    services: QuickMap<ObjectKey, Published>,
    nodes: BTreeMap<NodeKey, NodeInfo>,
    load_balancers: ByRecord<Record>,
    problems: BTreeMap<ObjectRef, Vec<FieldProblem>>,
    problems_changed: bool,
}

impl Projector {
    /// A projector that has published nothing yet.
    #[must_use]
    pub fn new(config: SelectConfig) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }

    /// Projects dirty Services and nodes again, and returns the differences. Costs O(affected),
    /// except where weights changed ([`Catalog::weighed_by`]).
    pub fn update(&mut self, catalog: &Catalog, dirty: &DirtySet) -> TableDelta {
        self.update_with(catalog, &mut Federation::default(), dirty)
    }

    /// The same with imports.
    pub(crate) fn update_with(
        &mut self,
        catalog: &Catalog,
        federation: &mut Federation,
        dirty: &DirtySet,
    ) -> TableDelta {
        let mut delta = TableDelta::default();
        let weighed = catalog.weighed_by(dirty);
        let services = dirty.services.union(&weighed);
        let (mut imports, services): (Vec<_>, Vec<_>) = services.partition(|key| is_federated(key));
        imports.sort_by_key(|key| (&key.name, &key.namespace, &key.cluster));
        let mut seen = Seen::default();
        // Services before imports, which share their overlays.
        for key in services.into_iter().chain(imports) {
            self.update_service(catalog, (federation, &mut seen), key, &mut delta);
        }
        federation.note_seen(seen);
        for node in &dirty.nodes {
            self.update_node(catalog, federation, node, &mut delta);
        }
        if dirty.load_balancers {
            self.update_load_balancers(catalog, &mut delta);
        }
        delta
    }

    fn update_load_balancers(&mut self, catalog: &Catalog, delta: &mut TableDelta) {
        let after = catalog.load_balancers();
        for change in self.load_balancers.diff(after) {
            let (key, record) = match change {
                DiffItem::Add(key, record) => (key, Some(Arc::clone(record))),
                DiffItem::Update { new, .. } => (new.0, Some(Arc::clone(new.1))),
                DiffItem::Remove(key, _) => (key, None),
            };
            delta.records.insert(key.clone(), record);
        }
        self.load_balancers = after.clone();
    }

    /// A projector that has projected a whole catalog from scratch; the reference for incremental
    /// updates.
    #[must_use]
    pub fn rebuild(catalog: &Catalog, config: SelectConfig) -> (Self, TableDelta) {
        let dirty = DirtySet {
            services: catalog.services().collect(),
            nodes: catalog.nodes().collect(),
            load_balancers: true,
            problems: true,
            ..DirtySet::default()
        };
        let mut projector = Self::new(config);
        let delta = projector.update(catalog, &dirty);
        (projector, delta)
    }

    /// The problems of each Service.
    #[must_use]
    pub fn problems(&self) -> &BTreeMap<ObjectRef, Vec<FieldProblem>> {
        &self.problems
    }

    /// Returns `true` if the problems changed since the last call.
    pub(crate) fn take_problems_changed(&mut self) -> bool {
        std::mem::take(&mut self.problems_changed)
    }

    pub(crate) fn config(&self) -> SelectConfig {
        self.config
    }

    /// The Services with published records.
    pub(crate) fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.services.keys()
    }

    /// The nodes with published information.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeKey> {
        self.nodes.keys()
    }

    /// Corrupts the projector: forgets the published records of a Service.
    #[cfg(test)]
    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        self.services.remove(key);
    }

    /// Corrupts the projector: adopts another's published records of a Service.
    #[cfg(test)]
    pub(crate) fn steal(&mut self, other: &mut Self, key: &ObjectKey) {
        let stolen = other.services.remove(key);
        self.services
            .extend(stolen.map(|stolen| (key.clone(), stolen)));
    }

    fn update_service<'c>(
        &mut self,
        catalog: &'c Catalog,
        (federation, seen): (&mut Federation, &mut Seen<'c>),
        key: &ObjectKey,
        delta: &mut TableDelta,
    ) {
        let object = ObjectRef {
            kind: Kind::Service,
            key: key.clone(),
        };
        let projections = if is_federated(key) {
            federation.project_noted(catalog, self.config, key, seen)
        } else {
            of_service(catalog, self.config, key)
        };
        let own = own_service(key).and_then(|own| self.services.get(&own));
        let own = own.map(|own| &**own).unwrap_or_default();
        let (after, problems) = publish(projections, own);
        let had = if problems.is_empty() {
            self.problems.remove(&object)
        } else {
            self.problems.insert(object.clone(), problems)
        };
        self.problems_changed |= had.as_ref() != self.problems.get(&object);
        if let Some(before) = self.services.get_mut(key) {
            differences(before, &after, delta);
            *before = after;
            if before.is_empty() {
                self.services.remove(key);
            }
        } else if !after.is_empty() {
            differences(&Published::default(), &after, delta);
            self.services.insert(key.clone(), after);
        }
    }

    fn update_node(
        &mut self,
        catalog: &Catalog,
        federation: &Federation,
        node: &NodeKey,
        delta: &mut TableDelta,
    ) {
        let after = catalog.node_info(node);
        let after = after.map(|info| federation.grouped(catalog, node, info));
        let before = match &after {
            Some(info) => self.nodes.insert(node.clone(), info.clone()),
            None => self.nodes.remove(node),
        };
        if before != after {
            let info = after.unwrap_or_default();
            delta.nodes.insert(node.clone(), info);
        }
    }
}

/// The projections of all ports of a Service.
fn of_service(catalog: &Catalog, config: SelectConfig, key: &ObjectKey) -> Vec<Projection> {
    let Some(service) = catalog.service(key) else {
        return Vec::new();
    };
    let ports = 0..service.ports.len();
    ports
        .map(|index| project(catalog, config, &service, index))
        .collect()
}

/// The ports as they are kept. Of an import, the overlays that its cluster's own Service has too, `own`, are shared.
fn publish(projections: Vec<Projection>, own: &[PublishedPort]) -> (Published, Vec<FieldProblem>) {
    let shared = |node: &NodeKey, overlay: NodeOverlay| {
        let mut known = own.iter().filter_map(|port| port.lists_of(node));
        let known = known.find(|known| ***known == overlay);
        known.map_or_else(|| Arc::new(overlay), Arc::clone)
    };
    let mut published: Vec<PublishedPort> = Vec::with_capacity(projections.len());
    let mut problems = Vec::new();
    for projection in projections {
        let Projection {
            record,
            lists,
            problems: of_port,
        } = projection;
        // A problem with an address concerns all ports, and is reported once.
        for problem in of_port {
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        let Some(record) = record else { continue };
        let lists = lists.into_iter().map(|(node, overlay)| {
            let overlay = shared(&node, overlay);
            (node, overlay)
        });
        let port = PublishedPort {
            destinations: quick_hash(&record.destinations),
            record: Arc::new(record),
            lists: lists.collect(),
        };
        published.push(port);
    }
    // Of two ports with one name and protocol, the last one counts.
    published.reverse();
    published.sort_by(|one, other| one.key().cmp(other.key()));
    published.dedup_by(|other, one| one.key() == other.key());
    (published.into(), problems)
}

/// Adds the puts (`Some`) and deletions (`None`) that turn one into the other.
fn differences(before: &Published, after: &Published, delta: &mut TableDelta) {
    for gone in before
        .iter()
        .filter(|port| find(after, port.key()).is_none())
    {
        delta.records.insert(gone.key().clone(), None);
        for (node, _) in &gone.lists {
            change_lists(delta, node, gone.key(), None);
        }
    }
    for port in after {
        let old = find(before, port.key());
        if old.is_none_or(|old| differ(old, port)) {
            let record = Arc::clone(&port.record);
            delta.records.insert(port.key().clone(), Some(record));
        }
        for (node, _) in old.iter().flat_map(|old| &old.lists) {
            if port.lists_of(node).is_none() {
                change_lists(delta, node, port.key(), None);
            }
        }
        for (node, lists) in &port.lists {
            if old.and_then(|old| old.lists_of(node)) != Some(lists) {
                change_lists(delta, node, port.key(), Some(Arc::clone(lists)));
            }
        }
    }
}

/// Returns `true` if records differ. Mostly the destinations do.
fn differ(before: &PublishedPort, after: &PublishedPort) -> bool {
    before.destinations != after.destinations || before.record != after.record
}

fn find<'a>(published: &'a Published, key: &RecordKey) -> Option<&'a PublishedPort> {
    let found = published.binary_search_by(|port| port.key().cmp(key));
    Some(&published[found.ok()?])
}

fn change_lists(
    delta: &mut TableDelta,
    node: &NodeKey,
    key: &RecordKey,
    change: Option<Arc<NodeOverlay>>,
) {
    let of_node = delta.lists.entry(node.clone()).or_default();
    of_node.insert(key.clone(), change);
}

#[cfg(test)]
mod moves;
#[cfg(test)]
mod tests;
