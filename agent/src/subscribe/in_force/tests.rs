// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::subscribe::tests::support::record;

/// A table with so many records.
fn table(records: usize) -> Arc<NodeTable> {
    let mut table = NodeTable::default();
    for number in 0..records {
        let record = record(&format!("s{number}"));
        table.records.insert(record.key.clone(), Arc::new(record));
    }
    Arc::new(table)
}

fn in_force() -> (TableInForce, watch::Receiver<Option<Arc<Subscribed>>>) {
    let (tables, published) = watch::channel(None);
    let view = HeldView::default();
    let in_force = TableInForce::new(GuardConfig::default(), view, tables, Arc::default());
    (in_force, published)
}

#[test]
fn deletions_that_are_confirmed_before_the_first_table_are_from_disk() {
    let (mut in_force, published) = in_force();
    in_force.restore((5, 7), table(1), table(101));
    assert!(in_force.view.held().is_some());
    in_force.release();
    let released = published.borrow().clone().unwrap();
    assert_eq!(released.table, table(1));
    assert!(released.is_from_disk);
    // A table of the source is not.
    in_force.take_table(Subscribed::new((5, 8), table(1)));
    assert!(!published.borrow().as_ref().unwrap().is_from_disk);
}

#[test]
fn released_deletions_have_the_time_of_their_release_and_no_triggers() {
    let (mut in_force, published) = in_force();
    in_force.take_table(Subscribed::new((5, 7), table(101)));
    in_force.begin_listing();
    let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    let held = in_force.take_table(Subscribed {
        received_at: long_ago,
        trigger_times_ms: vec![7],
        ..Subscribed::new((5, 8), table(0))
    });
    assert!(held.is_some());
    in_force.release();
    let released = published.borrow().clone().unwrap();
    assert_eq!((released.revision, &released.table), (8, &table(0)));
    assert!(released.received_at > long_ago);
    assert!(released.trigger_times_ms.is_empty());
}
