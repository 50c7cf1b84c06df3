// SPDX-License-Identifier: Apache-2.0

//! Nodes, the groups that they belong to (the node selectors of load balancers that their labels fit), and the Directors
//! of their hosts. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{FieldProblem, Node, Object, ObjectChange, ObjectRef};
use portolan_model::group_name;
use serde_json::Value;

/// Labels that a node must have.
pub(crate) type Selector = BTreeMap<String, String>;

/// A Node, and its labels, by which load balancers select it.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelledNode {
    /// The Node.
    pub node: Node,
    /// Problems of single fields of it.
    pub problems: Vec<FieldProblem>,
    /// `metadata.labels`.
    pub labels: Arc<BTreeMap<String, String>>,
}

/// The labels of an object as it is written. Values that are not text are left out.
pub(crate) fn labels_of(object: &Value) -> BTreeMap<String, String> {
    let labels = object
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    labels.into_iter().flatten().filter_map(text).collect()
}

/// The Nodes of a source.
///
/// With the changes that it returned applied, a catalog has the last good version of each Node, in exactly the groups
/// whose selectors its labels fit, with the Director of its host, and the problems of its newest version. A host that has a
/// Director and no good Node has a Node of nothing else there.
#[derive(Debug, Default)]
pub(crate) struct GroupedNodes {
    nodes: BTreeMap<ObjectRef, Known>,
    /// Nodes that the catalog does not have as they are here.
    changed: BTreeSet<ObjectRef>,
    /// Nodes that were deleted, which the catalog may have.
    gone: BTreeSet<ObjectRef>,
    /// The selectors of load balancers by the groups that they stand for.
    selectors: BTreeMap<Arc<str>, Selector>,
}

/// State of a Node.
#[derive(Debug, Default)]
struct Known {
    /// The last version that could be read.
    good: Option<LabelledNode>,
    /// Whether the catalog has another one.
    is_new: bool,
    /// Reason why the newest version cannot be read.
    refusal: Option<Vec<FieldProblem>>,
    /// The Director of the host, as it is sent.
    director: Option<Arc<str>>,
    /// The Director with which the catalog has a Node that stands in for a missing one.
    stand_in: Option<Arc<str>>,
}

impl GroupedNodes {
    /// Takes in a Node.
    pub(crate) fn put(&mut self, name: ObjectRef, mut node: LabelledNode) {
        let known = self.nodes.entry(name.clone()).or_default();
        if let Some(good) = &known.good {
            let (info, before) = (&mut node.node.info, &good.node.info);
            info.groups.clone_from(&before.groups);
            info.director.clone_from(&before.director);
        }
        let was_refused = known.refusal.take().is_some();
        if was_refused || known.good.as_ref() != Some(&node) {
            known.good = Some(node);
            known.is_new = true;
            self.changed.insert(name);
        }
    }

    /// Takes in that the newest version of a Node cannot be read. The last good one stays.
    pub(crate) fn refuse(&mut self, name: ObjectRef, problems: Vec<FieldProblem>) {
        let known = self.nodes.entry(name.clone()).or_default();
        if known.refusal.as_ref() != Some(&problems) {
            known.refusal = Some(problems);
            self.changed.insert(name);
        }
    }

    /// Takes in that a Node is gone.
    pub(crate) fn delete(&mut self, name: &ObjectRef) {
        let Some(known) = self.nodes.get_mut(name) else {
            return;
        };
        if known.director.is_some() {
            let had_node = known.good.take().is_some();
            if had_node || known.refusal.take().is_some() {
                // The Node that stands in has no problems.
                (known.refusal, known.is_new, known.stand_in) = (None, false, None);
                self.changed.insert(name.clone());
            }
            return;
        }
        self.nodes.remove(name);
        self.changed.remove(name);
        self.gone.insert(name.clone());
    }

    /// Takes in the Director of a host, as it is sent; `None` if it is gone.
    pub(crate) fn direct(&mut self, name: &ObjectRef, director: Option<Arc<str>>) {
        if director.is_none() && !self.nodes.contains_key(name) {
            return;
        }
        let known = self.nodes.entry(name.clone()).or_default();
        if known.director == director {
            return;
        }
        known.director = director;
        if known.director.is_none() && known.good.is_none() && known.refusal.is_none() {
            self.nodes.remove(name);
            self.changed.remove(name);
            self.gone.insert(name.clone());
        } else {
            self.changed.insert(name.clone());
        }
    }

    /// Takes in the Directors of all hosts, by the names of their Nodes.
    pub(crate) fn direct_all(&mut self, directors: &BTreeMap<ObjectRef, Arc<str>>) {
        let known = self.nodes.keys().chain(directors.keys());
        let names: BTreeSet<_> = known.cloned().collect();
        for name in names {
            self.direct(&name, directors.get(&name).cloned());
        }
    }

    /// The Nodes that the catalog has once it has the changes.
    #[cfg(feature = "etcd")]
    pub(crate) fn names(&self) -> impl Iterator<Item = &ObjectRef> {
        self.nodes.keys()
    }

    /// Takes in that all other Nodes are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&ObjectRef) -> bool) {
        let names = self.nodes.keys().filter(|name| !is_there(name));
        let gone: Vec<_> = names.cloned().collect();
        gone.iter().for_each(|name| self.delete(name));
    }

    /// The Nodes that have changed, or whose groups have, given the selectors of all load balancers. Costs
    /// O(selectors x nodes) if there are other selectors than before.
    pub(crate) fn changes<'a>(
        &mut self,
        selectors: impl Iterator<Item = &'a Selector>,
    ) -> Vec<ObjectChange> {
        let named = selectors.filter_map(|it| Some((group_name(it)?, it.clone())));
        let selectors: BTreeMap<_, _> = named.collect();
        let are_others = selectors != self.selectors;
        self.selectors = selectors;
        let changed = std::mem::take(&mut self.changed);
        let gone = std::mem::take(&mut self.gone);
        let mut changes: Vec<_> = gone.into_iter().map(ObjectChange::Delete).collect();
        for (name, known) in &mut self.nodes {
            let is_changed = changed.contains(name);
            if is_changed || are_others {
                known.tell(name, is_changed, &self.selectors, &mut changes);
            }
        }
        changes
    }
}

impl Known {
    /// Adds what the catalog must be told of the Node, which has changed, or whose groups may have.
    fn tell(
        &mut self,
        name: &ObjectRef,
        is_changed: bool,
        selectors: &BTreeMap<Arc<str>, Selector>,
        changes: &mut Vec<ObjectChange>,
    ) {
        let mut is_told = is_changed;
        if let Some(good) = &mut self.good {
            let groups = groups_of(&good.labels, selectors);
            let info = &mut good.node.info;
            let is_put = std::mem::take(&mut self.is_new)
                || groups != info.groups
                || self.director != info.director;
            info.groups = groups;
            info.director.clone_from(&self.director);
            self.stand_in = None;
            if is_put {
                is_told = true;
                changes.push(ObjectChange::Put {
                    object: Object::Node(good.node.clone()),
                    problems: good.problems.clone(),
                });
            }
        } else if self.director != self.stand_in {
            self.stand_in.clone_from(&self.director);
            changes.push(match &self.director {
                Some(director) => ObjectChange::Put {
                    object: Object::Node(stand_in(name, director)),
                    problems: Vec::new(),
                },
                None => ObjectChange::Delete(name.clone()),
            });
        }
        // After the last good version, whose problems it replaces.
        let refusal = self.refusal.as_ref().filter(|_| is_told);
        changes.extend(refusal.map(|problems| ObjectChange::Refused {
            object: name.clone(),
            problems: problems.clone(),
        }));
    }
}

/// A Node that has nothing but the Director of its host.
fn stand_in(name: &ObjectRef, director: &Arc<str>) -> Node {
    let mut node = Node::new(name.key.clone());
    node.info.director = Some(Arc::clone(director));
    node
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
