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
mod tests {
    use proptest::collection::btree_map;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;
    use crate::{FrontendAddress, FrontendKind, ZoneMask};

    fn destinations(addresses: &[&str]) -> Vec<Destination> {
        addresses
            .iter()
            .map(|a| Destination::new(a.parse().unwrap()))
            .collect()
    }

    fn frontend(vip: &str, lists: Lists) -> Frontend {
        Frontend {
            lists,
            ..Frontend::new(
                FrontendKind::ClusterIp,
                FrontendAddress::Vip(vip.parse().unwrap()),
                80,
            )
        }
    }

    fn record() -> Record {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: "svc".into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        Record {
            destinations: destinations(&["10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"]),
            zone_mask: Some(ZoneMask {
                zones: vec!["a".into(), "b".into()],
                masks: vec![0b01, 0b10, 0b11],
            }),
            ..Record::new(key)
        }
    }

    fn table(zone: Option<&str>, lists: Option<NodeOverlay>) -> NodeTable {
        let record = record();
        NodeTable {
            node: NodeInfo {
                zone: zone.map(Into::into),
                ..NodeInfo::default()
            },
            lists: lists
                .map(|l| (record.key.clone(), Arc::new(l)))
                .into_iter()
                .collect(),
            health: OrdMap::new(),
            records: OrdMap::unit(record.key.clone(), Arc::new(record)),
        }
    }

    #[test]
    fn only_imports_have_remote_endpoints() {
        let mut record = record();
        record.destinations = destinations(&["10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"]);
        record.frontends = vec![frontend("10.96.0.1", Lists::Cluster)];
        let ends = |service: &str, protocol| {
            let mut record = record.clone();
            record.key.service = service.into();
            record.key.protocol = protocol;
            let found = NodeTable::default().remote_endpoints(&record).into_iter();
            found.map(|end| end.to_string()).collect::<Vec<_>>()
        };
        let all = ["10.0.0.1:80", "10.0.0.2:80"];
        assert_eq!(ends("web@clusterset", Protocol::Tcp), all);
        assert_eq!(ends("web@clusterset", Protocol::Udp), [""; 0]);
        assert_eq!(ends("web@gateway", Protocol::Tcp), [""; 0]);
        assert_eq!(ends("web", Protocol::Tcp), [""; 0]);
    }

    #[test]
    fn a_zone_uses_its_destinations_of_the_frontends_family() {
        let v4 = frontend("10.96.0.1", Lists::Cluster);
        let v6 = frontend("fd00:96::1", Lists::Cluster);
        assert_eq!(
            table(Some("a"), None).destinations(&record(), &v4),
            destinations(&["10.0.0.1:80"])
        );
        assert_eq!(
            table(Some("b"), None).destinations(&record(), &v4),
            destinations(&["10.0.0.2:80"])
        );
        assert_eq!(
            table(Some("b"), None).destinations(&record(), &v6),
            destinations(&["[fd00::1]:80"])
        );
    }

    fn numbered(number: u16, weight: u32) -> (RecordKey, Arc<Record>) {
        let mut record = record();
        record.key.service = format!("s{number:03}").into();
        record.destinations[0].weight = weight;
        (record.key.clone(), Arc::new(record))
    }

    proptest! {
        #[test]
        fn changes_equal_those_of_a_full_comparison(
            before in btree_map(0..300u16, 0..3u32, 0..300),
            edits in btree_map(0..300u16, option::of(0..3u32), 0..9),
        ) {
            let mut old = NodeTable::default();
            for (number, weight) in before {
                old.records.extend([numbered(number, weight)]);
            }
            let mut new = old.clone();
            for (number, edit) in edits {
                let (key, record) = numbered(number, edit.unwrap_or_default());
                match edit {
                    Some(2) => drop(new.lists.insert(key, Arc::default())),
                    Some(_) => drop(new.records.insert(key, record)),
                    None => drop(new.records.remove(&key)),
                }
            }
            let all = old.records.keys().chain(new.records.keys());
            let all = all.chain(old.lists.keys()).chain(new.lists.keys());
            let differs = |key: &&RecordKey| {
                old.records.get(*key) != new.records.get(*key)
                    || old.lists.get(*key) != new.lists.get(*key)
            };
            let expected: BTreeSet<_> = all.filter(differs).cloned().collect();
            prop_assert_eq!(&new.changed_since(&old), &expected);
            prop_assert_eq!(&old.changed_since(&new), &expected);
        }
    }

    #[test]
    fn a_zone_without_a_mask_and_a_node_without_a_zone_use_all() {
        let v4 = frontend("10.96.0.1", Lists::Cluster);
        for zone in [Some("c"), None] {
            let all = destinations(&["10.0.0.1:80", "10.0.0.2:80"]);
            assert_eq!(table(zone, None).destinations(&record(), &v4), all);
        }
    }

    #[test]
    fn local_frontends_use_the_nodes_list_and_an_absent_list_is_empty() {
        let local = frontend("10.96.0.1", Lists::Local);
        assert!(table(None, None).destinations(&record(), &local).is_empty());
        let lists = NodeOverlay {
            local: destinations(&["10.0.0.2:80"]),
            ..NodeOverlay::default()
        };
        let got = table(None, Some(lists)).destinations(&record(), &local);
        assert_eq!(got, destinations(&["10.0.0.2:80"]));
    }

    #[test]
    fn a_nodes_own_cluster_list_takes_the_place_of_the_shared_one_in_its_family() {
        let lists = NodeOverlay {
            cluster: destinations(&["10.0.0.9:80"]),
            ..NodeOverlay::default()
        };
        let table = table(Some("a"), Some(lists));
        let v4 = table.destinations(&record(), &frontend("10.96.0.1", Lists::Cluster));
        let v6 = table.destinations(&record(), &frontend("fd00:96::1", Lists::Cluster));
        assert_eq!(v4, destinations(&["10.0.0.9:80"]));
        assert_eq!(v6, destinations(&["[fd00::1]:80"]));
    }
}
