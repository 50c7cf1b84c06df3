// SPDX-License-Identifier: Apache-2.0

//! The records of a table that are for this node: those of no group of nodes, or of one of its own.

use std::sync::Arc;

use imbl::ordmap::DiffItem;
use portolan_model::{ByRecord, NodeTable, Record};

/// Chooses records, at a cost that depends on what has changed.
#[derive(Debug, Default)]
pub(super) struct OwnGroups {
    /// The last table as it was sent.
    sent: NodeTable,
    /// Its records that are for this node.
    own: ByRecord<Record>,
    /// Number of its records that are for a group.
    grouped: usize,
}

impl OwnGroups {
    /// The table with the records that are for its node; the table itself if all are.
    pub(super) fn choose(&mut self, table: &Arc<NodeTable>) -> Arc<NodeTable> {
        let is_other_node = self.sent.node.groups != table.node.groups;
        self.follow(&table.records);
        if self.grouped == 0 {
            self.own = table.records.clone();
        } else if is_other_node {
            let records = table.records.iter();
            let own = records.filter(|(_, record)| record.is_for(&table.node));
            self.own = own
                .map(|(key, record)| (key.clone(), Arc::clone(record)))
                .collect();
        } else {
            self.change(table);
        }
        self.sent = NodeTable::clone(table);
        if self.own.len() == table.records.len() {
            return Arc::clone(table);
        }
        let mut chosen = NodeTable::clone(table);
        chosen.records = self.own.clone();
        Arc::new(chosen)
    }

    /// Counts the records that are for a group.
    fn follow(&mut self, after: &ByRecord<Record>) {
        let of = |record: &Record| usize::from(record.group().is_some());
        for change in self.sent.records.diff(after) {
            let (added, removed) = match change {
                DiffItem::Add(_, record) => (of(record), 0),
                DiffItem::Update { old, new } => (of(new.1), of(old.1)),
                DiffItem::Remove(_, record) => (0, of(record)),
            };
            self.grouped = (self.grouped + added).saturating_sub(removed);
        }
    }

    /// Changes the chosen records as the table has changed.
    fn change(&mut self, table: &NodeTable) {
        for change in self.sent.records.diff(&table.records) {
            let (key, record) = match change {
                DiffItem::Add(key, record) => (key, Some(record)),
                DiffItem::Update { new, .. } => (new.0, Some(new.1)),
                DiffItem::Remove(key, _) => (key, None),
            };
            match record.filter(|record| record.is_for(&table.node)) {
                Some(record) => _ = self.own.insert(key.clone(), Arc::clone(record)),
                None => _ = self.own.remove(key),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::{Balancing, Protocol, RecordKey};

    use super::*;

    fn record(name: &str, group: Option<&str>) -> Record {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: name.into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let balancing = Balancing {
            group: group.map(Into::into),
            ..Balancing::default()
        };
        Record {
            balancing: Some(Arc::new(balancing)),
            ..Record::new(key)
        }
    }

    fn table(groups: &[&str], records: &[(&str, Option<&str>)]) -> Arc<NodeTable> {
        let records = records.iter().map(|(name, group)| {
            let record = record(name, *group);
            (record.key.clone(), Arc::new(record))
        });
        let mut table = NodeTable {
            records: records.collect(),
            ..NodeTable::default()
        };
        table.node.groups = groups.iter().map(|group| (*group).into()).collect();
        Arc::new(table)
    }

    fn names(table: &NodeTable) -> Vec<String> {
        let keys = table.records.keys();
        keys.map(|key| key.service.to_string()).collect()
    }

    #[test]
    fn a_node_has_the_records_of_its_groups_whatever_came_before() {
        let edge = Some("edge");
        let tables = [
            table(&[], &[("a", None), ("b", None)]),
            table(&[], &[("a", edge), ("b", None)]),
            table(&["edge"], &[("a", edge), ("b", None)]),
            table(&["edge"], &[("a", edge), ("b", Some("core")), ("c", None)]),
            table(&["core", "edge"], &[("a", edge), ("b", Some("core"))]),
            table(&["core"], &[("a", edge), ("b", Some("core")), ("c", edge)]),
            table(&["core"], &[("a", None), ("c", edge)]),
            table(&["core"], &[("a", None)]),
        ];
        let expected: [&[&str]; 8] = [
            &["a", "b"],
            &["b"],
            &["a", "b"],
            &["a", "c"],
            &["a", "b"],
            &["b"],
            &["a"],
            &["a"],
        ];
        // In any order of two tables.
        for (first, _) in tables.iter().zip(expected) {
            for (second, expected) in tables.iter().zip(expected) {
                let mut groups = OwnGroups::default();
                groups.choose(first);
                let chosen = groups.choose(second);
                assert_eq!(names(&chosen), expected);
                assert_eq!(*chosen, NodeTable::clone(second).of_own_groups());
            }
        }
        let mut groups = OwnGroups::default();
        for (table, expected) in tables.iter().zip(expected) {
            assert_eq!(names(&groups.choose(table)), expected);
        }
    }

    #[test]
    fn a_table_without_groups_is_not_copied() {
        let mut groups = OwnGroups::default();
        let table = table(&[], &[("a", None)]);
        assert!(Arc::ptr_eq(&groups.choose(&table), &table));
    }
}
