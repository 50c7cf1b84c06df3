// SPDX-License-Identifier: Apache-2.0

//! Received changes that are not applied yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{ContentHash, NodeInfo, NodeOverlay, Record, RecordKey};
use portolan_proto::encoded::{EncodedOwn, EncodedRecords};
use prost::bytes::Bytes;

use super::item::{Key, Value, key, lists, node_item, record};
use super::{ForwardError, Lost};
use crate::log::{Cluster, Item, NodeItem};

/// The place of an item with a foreign key: the name of its node, empty for a shared record, and
/// the encoded key.
pub(super) type Place = (Arc<str>, Bytes);

/// Staged changes, with the last change of each key.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Whether absent keys are deleted.
    whole: bool,
    pub(super) records: BTreeMap<RecordKey, Option<Item<Record>>>,
    pub(super) nodes: BTreeMap<Arc<str>, StagedNode>,
    /// The hashes of items that cannot be forwarded; `None` for a deletion.
    foreign: BTreeMap<Place, Option<ContentHash>>,
}

/// Staged changes of one node's own part.
#[derive(Debug, Default)]
pub(super) struct StagedNode {
    /// Whether absent keys are deleted.
    replace: bool,
    pub(super) lists: BTreeMap<RecordKey, Option<Item<NodeOverlay>>>,
    pub(super) info: Option<NodeItem>,
}

impl Staged {
    /// Adds changes of shared records. Patches and buckets are errors: relays do not get them.
    pub(super) fn take_records(
        &mut self,
        records: EncodedRecords,
        cluster: &Arc<str>,
    ) -> Result<(), ForwardError> {
        if !records.patch.is_empty() || !records.replace_buckets.is_empty() {
            return Err(ForwardError::Unexpected("patches or buckets"));
        }
        for bytes in records.put {
            let Value { key, hash, item } = record(bytes, cluster)?;
            match key {
                Key::Known(key) => drop(self.records.insert(key, item)),
                Key::Foreign(key) => self.foreign("", key, Some(hash)),
            }
        }
        for bytes in &records.delete {
            match key(bytes, cluster)? {
                Key::Known(key) => drop(self.records.insert(key, None)),
                Key::Foreign(key) => self.foreign("", key, None),
            }
        }
        Ok(())
    }

    /// Adds changes of a node's own part.
    pub(super) fn take_own(
        &mut self,
        own: EncodedOwn,
        cluster: &Arc<str>,
    ) -> Result<(), ForwardError> {
        if own.of_node.is_empty() {
            return Err(ForwardError::Unexpected("lists of no node"));
        }
        let name: Arc<str> = own.of_node.into();
        let info = own.node.map(|node| node_item(node, &name)).transpose()?;
        if own.replace {
            self.forget_foreign_of(&name);
            let replaced = StagedNode {
                replace: true,
                ..StagedNode::default()
            };
            self.nodes.insert(Arc::clone(&name), replaced);
        }
        let (mut foreign, node) = (Vec::new(), self.nodes.entry(Arc::clone(&name)).or_default());
        for bytes in own.put {
            let Value { key, hash, item } = lists(bytes, cluster)?;
            match key {
                Key::Known(key) => drop(node.lists.insert(key, item)),
                Key::Foreign(key) => foreign.push((key, Some(hash))),
            }
        }
        for bytes in &own.delete {
            match key(bytes, cluster)? {
                Key::Known(key) => drop(node.lists.insert(key, None)),
                Key::Foreign(key) => foreign.push((key, None)),
            }
        }
        node.info = info.or(node.info.take());
        for (key, hash) in foreign {
            self.foreign(&name, key, hash);
        }
        Ok(())
    }

    fn foreign(&mut self, node: &str, key: Bytes, hash: Option<ContentHash>) {
        self.foreign.insert((node.into(), key), hash);
    }

    fn forget_foreign_of(&mut self, node: &str) {
        self.foreign.retain(|(of, _), _| **of != *node);
    }

    /// Adds a later transition; `whole` if it is a snapshot.
    pub(super) fn merge(&mut self, later: Self, whole: bool) {
        if whole {
            *self = Self { whole, ..later };
            return;
        }
        self.records.extend(later.records);
        for (name, node) in later.nodes {
            if node.replace {
                self.forget_foreign_of(&name);
                self.nodes.insert(name, node);
                continue;
            }
            let known = self.nodes.entry(name).or_default();
            known.lists.extend(node.lists);
            known.info = node.info.or(known.info.take());
        }
        self.foreign.extend(later.foreign);
    }

    /// Adds the deletions that a snapshot or a replaced own part implies, relative to `there`.
    pub(super) fn name_what_goes(&mut self, there: &Cluster) {
        if self.whole {
            for (key, _) in there.records().iter() {
                self.records.entry(key.clone()).or_insert(None);
            }
            for name in there.node_names() {
                self.nodes.entry(Arc::clone(name)).or_default();
            }
        }
        for (name, node) in &mut self.nodes {
            if !(self.whole || node.replace) {
                continue;
            }
            for key in there.list_keys(name) {
                node.lists.entry(key.clone()).or_insert(None);
            }
            node.info.get_or_insert_default();
        }
    }

    /// The items that cannot be forwarded after these changes, given those `before`.
    pub(super) fn foreign_after(
        &self,
        before: &BTreeMap<Place, ContentHash>,
    ) -> BTreeMap<Place, ContentHash> {
        let replaced = |node: &Arc<str>| self.nodes.get(node).is_some_and(|node| node.replace);
        let stays = |place: &&Place| !self.whole && !replaced(&place.0);
        let mut after: BTreeMap<_, _> = before
            .iter()
            .filter(|(place, _)| stays(place))
            .map(|(place, hash)| (place.clone(), *hash))
            .collect();
        for (place, hash) in &self.foreign {
            match hash {
                Some(hash) => after.insert(place.clone(), *hash),
                None => after.remove(place),
            };
        }
        after
    }

    /// The nodes whose Director `there` has and these changes lack.
    pub(super) fn lost_directors(&self, there: &Cluster) -> BTreeSet<Arc<str>> {
        let is_lost = |(name, node): &(&Arc<str>, &StagedNode)| {
            // Facts that this version cannot read stand as none here. The agents judge them.
            let readable = |new: &&NodeItem| new.is_default() || new.info != NodeInfo::default();
            let new = node.info.as_ref().filter(readable);
            new.is_some_and(|new| new.info.director.is_none())
                && there.own_parts(name).1.info.director.is_some()
        };
        let lost = self.nodes.iter().filter(is_lost);
        lost.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Removes and returns the changes of some records, including those of the nodes' own lists, and
    /// the changed facts of nodes that lose their Director.
    /// [`name_what_goes`](Self::name_what_goes) must have been called. `None` if none of these
    /// changes.
    pub(super) fn split_off(&mut self, lost: &Lost) -> Option<Self> {
        let mut rest = Self::default();
        for key in &lost.records {
            rest.records.extend(self.records.remove_entry(key));
            for (name, node) in &mut self.nodes {
                if let Some(list) = node.lists.remove_entry(key) {
                    let rest = rest.nodes.entry(Arc::clone(name)).or_default();
                    rest.lists.extend([list]);
                }
            }
        }
        for name in &lost.directors {
            let staged = self.nodes.get_mut(name);
            if let Some(info) = staged.and_then(|node| node.info.take()) {
                rest.nodes.entry(Arc::clone(name)).or_default().info = Some(info);
            }
        }
        (!rest.records.is_empty() || !rest.nodes.is_empty()).then_some(rest)
    }

    /// Returns `true` if absent nodes and records are deleted.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }
}
