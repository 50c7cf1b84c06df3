// SPDX-License-Identifier: Apache-2.0

//! Merges the files, and finds the changes since the last time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use portolan_catalog::{FieldProblem, Kind, Object, ObjectChange, ObjectRef, Reason};

use super::parse::FileEntry;
use super::problem::{FileProblem, Found};
use crate::groups::{GroupedNodes, LabelledNode};
use crate::objects::{Converted, Names, removed};

/// All objects, each as its first mention has it.
#[derive(Debug, Default)]
pub(super) struct Merged<'f> {
    entries: BTreeMap<&'f ObjectRef, (&'f Path, FileEntry)>,
}

impl<'f> Merged<'f> {
    /// Adds an object of a file, the files in their order.
    pub(super) fn add(&mut self, file: &'f Path, object: &'f ObjectRef, entry: &FileEntry) {
        let Some((first_file, first)) = self.entries.get_mut(object) else {
            self.entries.insert(object, (file, entry.clone()));
            return;
        };
        // An object that was moved out of a file that is broken now is where it can be read.
        if entry.is_carried {
            return;
        }
        if first.is_carried {
            self.entries.insert(object, (file, entry.clone()));
            return;
        }
        let found = conflict(object, (first_file, first), (file, entry));
        first.converted = with_conflict(first, &found);
    }

    /// All objects.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'f ObjectRef, &FileEntry)> {
        self.entries
            .iter()
            .map(|(object, (_, entry))| (*object, entry))
    }

    /// Has an object as it was before.
    pub(super) fn keep(&mut self, object: &'f ObjectRef, entry: &FileEntry) {
        self.entries.insert(object, (Path::new(""), entry.clone()));
    }

    /// The changes for DNS from `told` to this state, which becomes `told`. Unreadable objects stay
    /// unchanged.
    pub(super) fn names(&self, told: &mut ToldNames) -> Vec<portolan_dns::NamesChange> {
        let mut now = ToldNames::new();
        for (object, (_, entry)) in &self.entries {
            let change = match &*entry.names {
                Names::Put { change, .. } => Some((**change).clone()),
                Names::Refused => told.get(*object).cloned(),
                Names::None => None,
            };
            now.extend(change.map(|change| (ObjectRef::clone(object), change)));
        }
        let news = now
            .iter()
            .filter(|(object, change)| told.get(*object) != Some(*change));
        let mut changes: Vec<_> = news.map(|(_, change)| change.clone()).collect();
        let gone = told.keys().filter(|object| !now.contains_key(*object));
        changes.extend(gone.filter_map(removed));
        *told = now;
        changes
    }

    /// Takes the Nodes, whose groups other objects decide.
    pub(super) fn tell_nodes(&self, nodes: &mut GroupedNodes) {
        let entries = self.entries.iter().filter(|(name, _)| is_node(name));
        for (name, (_, entry)) in entries {
            let name = ObjectRef::clone(name);
            match &*entry.converted {
                Converted::Put {
                    object: Object::Node(node),
                    problems,
                } => nodes.put(
                    name,
                    LabelledNode {
                        node: node.clone(),
                        problems: problems.clone(),
                        labels: Arc::clone(&entry.more.labels),
                    },
                ),
                Converted::Refused { problems, .. } => nodes.refuse(name, problems.clone()),
                Converted::Put { .. } | Converted::NotOurs(_) => nodes.delete(&name),
            }
        }
        nodes.retain(|name| self.entries.contains_key(name));
    }

    /// The changes for the catalog from `told` to this state with `more`, which becomes `told`; without Nodes.
    pub(super) fn changes(self, more: Told, told: &mut Told) -> Vec<ObjectChange> {
        let mut now: Told = self
            .entries
            .into_iter()
            .filter(|(name, (_, entry))| {
                !is_node(name) && !matches!(*entry.converted, Converted::NotOurs(_))
            })
            .map(|(object, (_, entry))| (object.clone(), entry.converted))
            .collect();
        now.extend(more);
        let news = now
            .iter()
            .filter(|(object, converted)| told.get(*object) != Some(*converted))
            .filter_map(|(_, converted)| Converted::clone(converted).into_change());
        let gone = told
            .keys()
            .filter(|object| !now.contains_key(*object))
            .map(|object| ObjectChange::Delete(object.clone()));
        let changes = news.chain(gone).collect();
        *told = now;
        changes
    }
}

fn is_node(name: &ObjectRef) -> bool {
    name.kind == Kind::Node
}

/// The objects that DNS has.
pub(super) type ToldNames = BTreeMap<ObjectRef, portolan_dns::NamesChange>;

/// The objects that the catalog has.
pub(super) type Told = BTreeMap<ObjectRef, Arc<Converted>>;

/// The second mention of an object.
pub(super) fn conflict(
    object: &ObjectRef,
    first: (&Path, &FileEntry),
    second: (&Path, &FileEntry),
) -> Found {
    let (first_file, first) = first;
    let (file, second) = second;
    let message = format!(
        "{object} is in {}:{} too, which comes first; ignored here",
        first_file.display(),
        first.line
    );
    let problem = FileProblem {
        line: Some(second.line),
        ..FileProblem::new(file, None, second.path.clone(), message)
    };
    Found {
        object: Some(object.clone()),
        problem,
    }
}

/// The first definition, with the problem of a second one.
pub(super) fn with_conflict(first: &FileEntry, conflict: &Found) -> Arc<Converted> {
    let problem = conflict.problem.of_object(Reason::Conflict);
    let problem = FieldProblem {
        field: String::new(),
        ..problem
    };
    let mut converted = Converted::clone(&first.converted);
    match &mut converted {
        Converted::Put { problems, .. } | Converted::Refused { problems, .. } => {
            problems.push(problem);
        }
        Converted::NotOurs(_) => {}
    }
    Arc::new(converted)
}
