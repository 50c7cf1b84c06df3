//! What is to become of tables when all of it has arrived.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_model::{ContentHash, NodeOverlay, Record, RecordKey};
use portolan_proto::encoded::{EncodedOwn, EncodedRecords};
use prost::bytes::Bytes;

use super::ForwardError;
use super::item::{Key, Value, key, lists, node_item, record};
use crate::log::{Cluster, Item, NodeItem};

/// Where something with a foreign key is: of a node, or of none if it is shared.
pub(super) type Place = (Arc<str>, Bytes);

/// Changes, each key at its last word.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// What is not named is gone.
    whole: bool,
    pub(super) records: BTreeMap<RecordKey, Option<Item<Record>>>,
    pub(super) nodes: BTreeMap<Arc<str>, StagedNode>,
    /// What cannot be passed on; only its hashes count.
    foreign: BTreeMap<Place, Option<ContentHash>>,
}

/// Changes of what one node has of its own.
#[derive(Debug, Default)]
pub(super) struct StagedNode {
    /// What is not named is gone.
    replace: bool,
    pub(super) lists: BTreeMap<RecordKey, Option<Item<NodeOverlay>>>,
    pub(super) info: Option<NodeItem>,
}

impl Staged {
    /// Takes shared records. A relay is sent no patches and no buckets.
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

    /// Takes what a node has of its own.
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

    /// Adds a later transition; `whole` if it is a table and no change.
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

    /// Names all that is to go, next to what is there.
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

    /// What cannot be passed on, when this has been applied to what could not be before.
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

    /// Takes the changes of some records out, also those of the nodes' own lists. All that goes must
    /// have been named. `None` if there are none.
    pub(super) fn split_off(&mut self, keys: &BTreeSet<RecordKey>) -> Option<Self> {
        let mut rest = Self::default();
        for key in keys {
            rest.records.extend(self.records.remove_entry(key));
            for (name, node) in &mut self.nodes {
                if let Some(list) = node.lists.remove_entry(key) {
                    let rest = rest.nodes.entry(Arc::clone(name)).or_default();
                    rest.lists.extend([list]);
                }
            }
        }
        (!rest.records.is_empty()).then_some(rest)
    }

    /// Whether nothing stays of nodes that are not named.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }
}
