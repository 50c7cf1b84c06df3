// SPDX-License-Identifier: Apache-2.0

//! The guard of a table, by examples and at random.

use portolan_model::{Destination, Frontend, FrontendAddress, FrontendKind, Record};
use proptest::prelude::*;

use super::*;
use crate::subscribe::tests::support::record;

/// A table of these Services, each with its own address.
fn table(services: impl IntoIterator<Item = usize>) -> Arc<NodeTable> {
    let records = services.into_iter().map(|i| {
        let last = u8::try_from(i % 250).unwrap();
        let vip = FrontendAddress::Vip([10, 96, 0, last].into());
        let record = Record {
            frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
            ..record(&format!("s{i}"))
        };
        (record.key.clone(), Arc::new(record))
    });
    Arc::new(NodeTable {
        records: records.collect(),
        ..NodeTable::default()
    })
}

/// With so many Services in force, at the beginning of a stream.
fn guard(services: usize) -> TableGuard {
    let mut guard = TableGuard::new(GuardConfig::default());
    guard.judge((1, 1), &table(0..services), Instant::now());
    guard.guard.begin_stream();
    guard
}

/// The same table with the Director of its host.
fn directed(table: &Arc<NodeTable>, director: Option<&str>) -> Arc<NodeTable> {
    let mut table = NodeTable::clone(table);
    table.node.director = director.map(Into::into);
    Arc::new(table)
}

#[test]
fn a_first_table_without_the_director_is_doubted_however_small_the_loss_is() {
    let now = Instant::now();
    let bare = table(0..3);
    let mut guard = TableGuard::new(GuardConfig::default());
    guard.judge((1, 1), &directed(&bare, Some("a")), now);
    guard.guard.begin_stream();
    let kept = guard.judge((2, 1), &table(0..2), now);
    assert_eq!(*kept, *directed(&bare, Some("a")));
    assert_eq!(guard.guard.held().unwrap().loss.lost.records, 2);

    // The hold outlives the agent, and ends with the Director, or with a confirmation.
    let mut again = TableGuard::new(GuardConfig::default());
    again.restore((2, 1), table(0..2), guard.with_withheld().unwrap());
    assert_eq!(*again.judge((2, 2), &table(0..2), now), *kept);
    let back = directed(&table(0..2), Some("b"));
    assert_eq!(
        guard.judge((2, 2), &back, now).node.director,
        Some("b".into())
    );
    assert!(again.guard.confirm(2, 2));
    assert_eq!(again.release().node.director, None);

    // A deletion while a stream lives is believed.
    guard.judge((2, 3), &directed(&bare, Some("b")), now);
    assert_eq!(guard.judge((2, 4), &bare, now).node.director, None);
}

#[test]
fn an_address_that_has_a_new_owner_is_not_withheld() {
    let mut guard = guard(100);
    // Service 260 has the address of Service 10.
    let in_force = guard.judge((1, 2), &table([99, 260]), Instant::now());
    assert_eq!(in_force.records.len(), 100);
    let key = |i: usize| record(&format!("s{i}")).key;
    assert!(!in_force.records.contains_key(&key(10)));
    assert!(in_force.records.contains_key(&key(260)));
    // Also while others are withheld.
    let in_force = guard.judge((1, 3), &table([99, 260, 261]), Instant::now());
    assert!(!in_force.records.contains_key(&key(11)));
    assert_eq!(guard.withheld.len(), 97);
}

#[test]
fn released_deletions_include_the_overlay() {
    let mut guard = guard(100);
    let before = guard.in_force.clone().unwrap();
    let after = table(0..1);
    let in_force = guard.judge((1, 2), &after, Instant::now());
    assert_eq!(*in_force, *before);
    assert!(guard.with_withheld().is_some());
    assert!(guard.guard.confirm(1, 2));
    assert_eq!(guard.release(), after);
    assert!(guard.with_withheld().is_none());
}

proptest! {
    /// The table in force has all of the source's that has endpoints, as it is there; and as long as
    /// nothing is confirmed, each Service that it had when deletions began to be held.
    #[test]
    fn additions_and_changes_apply_and_nothing_held_is_lost(
        steps in prop::collection::vec((any::<bool>(), 0usize..150, 0usize..150, 1u16..4), 1..12)
    ) {
        let mut guard = TableGuard::new(GuardConfig { time: None, ..GuardConfig::default() });
        let now = Instant::now();
        let mut in_force = guard.judge((1, 0), &table(0..120), now);
        for (revision, (is_stream, from, to, port)) in (1..).zip(steps) {
            if is_stream {
                guard.guard.begin_stream();
            }
            let mut source = NodeTable::clone(&table(from.min(to)..to.max(from)));
            let changed = record(&format!("s{from}"));
            let changed = Record {
                destinations: vec![Destination::new(([10, 0, 0, 9], port).into())],
                ..changed
            };
            source.records.insert(changed.key.clone(), Arc::new(changed));
            let was_held = guard.withheld.clone();
            in_force = guard.judge((1, revision), &Arc::new(source.clone()), now);
            for (key, record) in &source.records {
                prop_assert_eq!(in_force.records.get(key), Some(record));
            }
            for key in &was_held {
                prop_assert!(in_force.records.contains_key(key));
            }
            let is_consistent = guard.guard.held().is_some() != guard.withheld.is_empty();
            prop_assert!(is_consistent);
        }
        prop_assert!(!in_force.records.is_empty());
    }
}
