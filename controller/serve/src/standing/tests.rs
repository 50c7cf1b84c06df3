// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use portolan_model::NodeTable;
use portolan_proto::v1;
use portolan_tablelog::testing::{Oracle, change, delta, node};
use portolan_tablelog::{Publisher, Retention};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Registry;
use crate::registry::Connect;

/// The status of an agent that has programmed a table at a revision.
fn status(node: NodeKey, revision: u64, table: &NodeTable) -> NodeStatus {
    let registry = Arc::new(Registry::default());
    let session = registry.connect(Connect {
        node,
        peer: None,
        agent_version: String::new(),
        protocol_version: 1,
        now: SystemTime::UNIX_EPOCH,
        rate: None,
    });
    let session = session.unwrap();
    session.sent(revision);
    let programmed = v1::Programmed {
        revision,
        records_hash: table.records_hash().to_bytes().into(),
        own_hash: table.own_hash().to_bytes().into(),
        ..v1::Programmed::default()
    };
    assert!(session.programmed(programmed));
    registry.snapshot().remove(0)
}

/// Names of the records that differ between two tables, and whether each is in the node's own part.
fn different(a: &NodeTable, b: &NodeTable) -> BTreeSet<(Option<String>, bool)> {
    let records = a.records.keys().chain(b.records.keys());
    let records = records.filter(|key| a.records.get(*key) != b.records.get(*key));
    let lists = a.lists.keys().chain(b.lists.keys());
    let lists = lists.filter(|key| a.lists.get(*key) != b.lists.get(*key));
    let info = (a.node != b.node).then_some((None, true));
    let records = records.map(|key| (Some(key.to_string()), false));
    let lists = lists.map(|key| (Some(key.to_string()), true));
    info.into_iter().chain(records).chain(lists).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// For an agent at any revision, the differences of its table are named, and the hashes tell
    /// whether there are any.
    #[test]
    fn names_what_changed(steps in vec(vec(change(), 1..4), 1..12), retained in 0..6_usize) {
        let retention = Retention {
            record_tombstones: retained,
            list_tombstones: retained,
            idle_nodes: retained,
        };
        let (mut publisher, tables) = Publisher::new(retention);
        let mut oracle = Oracle::default();
        let nodes = [node(0, 0), node(1, 1)];
        let mut past = Vec::new();
        for changes in steps {
            let delta = delta(&changes);
            publisher.publish(&delta);
            oracle.apply(&delta);
            for node in &nodes {
                let at = tables.head(&node.cluster);
                past.push((node.clone(), at, oracle.table(node)));
            }
        }
        for (node, at, table) in past {
            let now = oracle.table(&node);
            let standing = status(node.clone(), at, &table).standing(&tables);
            prop_assert_eq!(standing.records_equal, table.records == now.records);
            let own_equal = (&table.lists, &table.node) == (&now.lists, &now.node);
            prop_assert_eq!(standing.own_equal, own_equal);
            let is_head = standing.revision == at;
            match standing.changed {
                None => prop_assert!(!is_head),
                Some(changed) => {
                    prop_assert!(!is_head || changed.is_empty());
                    for one in changed.iter().filter(|one| one.record.is_some()) {
                        let there = |key: &portolan_model::RecordKey| Some(key.to_string()) == one.record;
                        let is_there = if one.own {
                            now.lists.keys().any(there)
                        } else {
                            now.records.keys().any(there)
                        };
                        prop_assert_eq!(one.deleted, !is_there);
                    }
                    let named: BTreeSet<_> =
                        changed.into_iter().map(|one| (one.record, one.own)).collect();
                    let different = different(&table, &now);
                    prop_assert!(different.is_subset(&named), "{:?} of {:?}", named, different);
                }
            }
        }
    }
}

#[test]
fn of_an_agent_that_has_programmed_nothing_nothing_is_known() {
    let (_publisher, tables) = Publisher::new(Retention::default());
    let mut nothing = status(node(0, 0), 0, &NodeTable::default());
    (nothing.programmed, nothing.records_hash, nothing.own_hash) = (None, None, None);
    let standing = nothing.standing(&tables);
    assert_eq!((standing.programmed, standing.changed), (None, None));
    assert!(!standing.records_equal && !standing.own_equal);
}
