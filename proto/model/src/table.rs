// SPDX-License-Identifier: Apache-2.0

//! The table of one node: records shared with all nodes, and the node's own data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    Destination, Families, Family, Frontend, Lists, NodeInfo, NodeOverlay, Protocol, Record,
    RecordHealth, RecordKey, Scope, SetHash,
};

/// A value for each record, by its key. Copies are cheap, and two versions share their common part, so
/// the cost of a change does not depend on the size.
pub type ByRecord<T> = OrdMap<RecordKey, Arc<T>>;

/// The whole table of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeTable {
    /// Facts about the node itself.
    pub node: NodeInfo,
    /// The shared records.
    pub records: ByRecord<Record>,
    /// Overlays of records. A key without a record has no effect.
    pub lists: ByRecord<NodeOverlay>,
    /// Health of load balancers' backends, as this node itself sees it: neither sent, saved nor hashed.
    pub health: ByRecord<RecordHealth>,
}

/// For dumps: maps keyed by records do not fit JSON.
impl Serialize for NodeTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Lists<'a> {
            record: String,
            lists: &'a NodeOverlay,
        }
        #[derive(Serialize)]
        struct Table<'a> {
            node: &'a NodeInfo,
            records: Vec<&'a Record>,
            lists: Vec<Lists<'a>>,
        }
        let lists = self.lists.iter().map(|(key, lists)| Lists {
            record: key.to_string(),
            lists,
        });
        let table = Table {
            node: &self.node,
            records: self.records.values().map(|record| &**record).collect(),
            lists: lists.collect(),
        };
        table.serialize(serializer)
    }
}

/// Reads a dump. Overlays without a record have no effect, and are left out.
impl<'de> Deserialize<'de> for NodeTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Lists {
            record: String,
            lists: NodeOverlay,
        }
        #[derive(Deserialize)]
        struct Table {
            node: NodeInfo,
            records: Vec<Record>,
            lists: Vec<Lists>,
        }
        let table = Table::deserialize(deserializer)?;
        let records = table.records.into_iter();
        let records: ByRecord<Record> = records
            .map(|record| (record.key.clone(), Arc::new(record)))
            .collect();
        let keys = records.keys().map(|key| (key.to_string(), key));
        let keys: BTreeMap<_, _> = keys.collect();
        let lists = table.lists.into_iter().filter_map(|of| {
            let key = keys.get(&of.record)?;
            Some(((*key).clone(), Arc::new(of.lists)))
        });
        Ok(Self {
            node: table.node,
            lists: lists.collect(),
            records: records.clone(),
            ..Self::default()
        })
    }
}

impl NodeTable {
    /// The table without the records of other groups of nodes.
    #[must_use]
    pub fn of_own_groups(mut self) -> Self {
        let records = self.records.iter();
        let others = records.filter(|(_, record)| !record.is_for(&self.node));
        let others: Vec<_> = others.map(|(key, _)| key.clone()).collect();
        for key in others {
            self.records.remove(&key);
        }
        self
    }

    /// The destinations of a frontend of a record on this node, of the frontend's family, sorted by
    /// address.
    #[must_use]
    pub fn destinations(&self, record: &Record, frontend: &Frontend) -> Vec<Destination> {
        self.list(record, frontend.family(), frontend.lists)
    }

    /// The destinations of a record on this node, of one family and from one list, sorted by
    /// address.
    #[must_use]
    pub fn list(&self, record: &Record, family: Family, lists: Lists) -> Vec<Destination> {
        let own = self.lists.get(&record.key);
        let of_family = |list: &[Destination]| -> Vec<Destination> {
            list.iter()
                .filter(|d| Family::of(d.address.ip()) == family)
                .copied()
                .collect()
        };
        match lists {
            Lists::Local => own.map_or_else(Vec::new, |own| of_family(&own.local)),
            Lists::Cluster => {
                let cluster = own.map_or_else(Vec::new, |own| of_family(&own.cluster));
                if cluster.is_empty() {
                    self.shared(record, family)
                } else {
                    cluster
                }
            }
        }
    }

    /// The TCP endpoints of an import that are served on this node; none of any other record. Those of the own cluster
    /// are among them: a record does not say which cluster an endpoint is of.
    #[must_use]
    pub fn remote_endpoints(&self, record: &Record) -> BTreeSet<SocketAddr> {
        if record.key.scope() != Scope::ClusterSet || record.key.protocol != Protocol::Tcp {
            return BTreeSet::new();
        }
        let families: Families = record.frontends.iter().map(Frontend::family).collect();
        let lists = families
            .iter()
            .map(|family| self.list(record, family, Lists::Cluster));
        lists.flatten().map(|d| d.address).collect()
    }

    /// The record's destinations of a family that the node's zone uses.
    fn shared(&self, record: &Record, family: Family) -> Vec<Destination> {
        let masks = record
            .zone_mask
            .as_ref()
            .zip(self.node.zone.as_ref())
            .and_then(|(mask, zone)| Some((&mask.masks, mask.bit(zone)?)));
        let used = |index: usize| {
            masks.is_none_or(|(masks, bit)| masks.get(index).is_none_or(|mask| mask & bit != 0))
        };
        let destinations = record.destinations.iter().enumerate();
        destinations
            .filter(|(index, d)| Family::of(d.address.ip()) == family && used(*index))
            .map(|(_, destination)| *destination)
            .collect()
    }

    /// The keys whose record, overlay or health differs from that of another version. Parts that both versions
    /// share are skipped.
    #[must_use]
    pub fn changed_since(&self, before: &Self) -> BTreeSet<RecordKey> {
        let mut keys = BTreeSet::new();
        differing(&before.records, &self.records, &mut keys);
        differing(&before.lists, &self.lists, &mut keys);
        differing(&before.health, &self.health, &mut keys);
        keys
    }

    /// The hash of the shared records, independent of their order.
    #[must_use]
    pub fn records_hash(&self) -> SetHash {
        self.records
            .values()
            .map(|record| record.content_hash())
            .collect()
    }

    /// The hash of the node's own data.
    #[must_use]
    pub fn own_hash(&self) -> SetHash {
        let mut hash: SetHash = self
            .lists
            .iter()
            .map(|(key, lists)| lists.content_hash(key))
            .collect();
        hash.insert(self.node.content_hash());
        hash
    }
}

fn differing<T: Eq>(before: &ByRecord<T>, after: &ByRecord<T>, keys: &mut BTreeSet<RecordKey>) {
    keys.extend(before.diff(after).map(|item| match item {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) => key.clone(),
        DiffItem::Update { new: (key, _), .. } => key.clone(),
    }));
}

#[cfg(test)]
mod tests;
