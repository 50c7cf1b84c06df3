// SPDX-License-Identifier: Apache-2.0

//! Nodes of a fleet, and the groups that they belong to: the node selectors of load balancers that their labels fit.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Object, ObjectChange};
use portolan_etcd::Name;
use portolan_model::group_name;

use super::decode::LabelledNode;

/// Labels that a node must have.
pub(super) type Selector = BTreeMap<String, String>;

/// The Nodes of a fleet.
#[derive(Debug, Default)]
pub(super) struct GroupedNodes {
    nodes: BTreeMap<Name, LabelledNode>,
    /// Nodes that the catalog does not have as they are here.
    changed: BTreeSet<Name>,
    /// The selectors of load balancers by the groups that they stand for.
    selectors: BTreeMap<Arc<str>, Selector>,
}

impl GroupedNodes {
    /// Takes in a Node.
    pub(super) fn put(&mut self, name: Name, node: LabelledNode) {
        self.changed.insert(name.clone());
        self.nodes.insert(name, node);
    }

    /// Takes in that a Node is gone.
    pub(super) fn delete(&mut self, name: &Name) {
        self.changed.remove(name);
        self.nodes.remove(name);
    }

    /// The Nodes that have changed, or whose groups have, given the selectors of all load balancers. Costs
    /// O(selectors x nodes) if there are other selectors than before.
    pub(super) fn changes<'a>(
        &mut self,
        selectors: impl Iterator<Item = &'a Selector>,
    ) -> Vec<ObjectChange> {
        let named = selectors.filter_map(|it| Some((group_name(it)?, it.clone())));
        let selectors: BTreeMap<_, _> = named.collect();
        let are_others = selectors != self.selectors;
        self.selectors = selectors;
        let changed = std::mem::take(&mut self.changed);
        let mut changes = Vec::new();
        for (name, known) in &mut self.nodes {
            let is_changed = changed.contains(name);
            if !is_changed && !are_others {
                continue;
            }
            let groups = groups_of(&known.labels, &self.selectors);
            if !is_changed && groups == known.node.info.groups {
                continue;
            }
            known.node.info.groups = groups;
            changes.push(ObjectChange::Put {
                object: Object::Node(known.node.clone()),
                problems: known.problems.clone(),
            });
        }
        changes
    }
}

/// The groups of a node, sorted.
fn groups_of(
    labels: &BTreeMap<String, String>,
    selectors: &BTreeMap<Arc<str>, Selector>,
) -> Vec<Arc<str>> {
    let fits = |selector: &Selector| {
        let mut wanted = selector.iter();
        wanted.all(|(name, value)| labels.get(name) == Some(value))
    };
    let groups = selectors.iter().filter(|(_, selector)| fits(selector));
    groups.map(|(group, _)| Arc::clone(group)).collect()
}
