// SPDX-License-Identifier: Apache-2.0

use portolan_model::TableSize;

use super::*;

const TIME: Duration = Duration::from_secs(1800);

fn loss(lost: usize, of: usize) -> Loss {
    let size = |records| TableSize {
        records,
        endpoints: 0,
    };
    Loss {
        lost: size(lost),
        of: size(of),
    }
}

/// A guard that holds 150 of 200 records since `now`, by revision 5 of epoch 1.
fn holding(config: GuardConfig, now: Instant) -> DeletionGuard {
    let mut guard = DeletionGuard::new(config);
    assert!(guard.judge(1, 5, loss(150, 200), now));
    guard
}

#[test]
fn losses_above_both_limits_are_too_much() {
    let guard = GuardConfig::default();
    let strict = GuardConfig {
        percent: 0,
        ..guard
    };
    let off = GuardConfig {
        percent: 100,
        ..guard
    };
    for (config, lost, of, expected) in [
        (guard, 50, 200, true),
        (guard, 49, 60, false),
        (guard, 50, 250, false),
        (guard, 51, 250, true),
        (strict, 50, 1_000_000, true),
        (strict, 49, 1_000_000, false),
        (off, 1000, 1000, false),
    ] {
        let records = loss(lost, of);
        assert_eq!(config.is_too_much(records), expected, "{lost} of {of}");
        let endpoints = Loss {
            lost: TableSize {
                records: 1,
                endpoints: lost,
            },
            of: TableSize {
                records: 10_000,
                endpoints: of,
            },
        };
        assert_eq!(config.is_too_much(endpoints), expected, "{lost} of {of}");
    }
}

#[test]
fn only_the_first_table_of_a_stream_is_judged() {
    let now = Instant::now();
    let mut guard = DeletionGuard::new(GuardConfig::default());
    assert!(!guard.judge(1, 1, loss(0, 200), now));
    assert!(!guard.judge(1, 2, loss(200, 200), now));
    guard.begin_stream();
    assert!(guard.judge(1, 3, loss(200, 200), now));
}

#[test]
fn held_deletions_stay_held_until_the_records_return() {
    let now = Instant::now();
    let mut guard = holding(GuardConfig::default(), now);
    // Also a loss that would not have been held alone, and on another stream.
    assert!(guard.judge(1, 6, loss(3, 200), now));
    guard.begin_stream();
    assert!(guard.judge(2, 1, loss(2, 200), now));
    assert_eq!(guard.held().unwrap().loss, loss(2, 200));
    assert!(!guard.judge(2, 2, loss(0, 200), now));
    assert_eq!(guard.held(), None);
}

#[test]
fn time_confirms_while_a_controller_stands_by_the_loss() {
    let now = Instant::now();
    let mut guard = holding(GuardConfig::default(), now);
    assert_eq!(guard.until(), Some(now + TIME));
    // A change does not restart the time.
    assert!(guard.judge(1, 6, loss(149, 200), now + TIME / 2));
    assert!(!guard.expire(now + TIME / 2));
    guard.begin_stream();
    assert!(!guard.expire(now + TIME * 2), "no controller");
    assert!(guard.held().is_some());
    assert!(!guard.judge(2, 1, loss(149, 200), now + TIME * 2));
    assert_eq!(guard.held(), None);
    let mut guard = holding(GuardConfig::default(), now);
    assert!(guard.expire(now + TIME));
}

#[test]
fn after_a_restart_time_counts_from_the_first_table() {
    let now = Instant::now();
    let mut guard = DeletionGuard::new(GuardConfig::default());
    guard.restore(1, 5, loss(150, 200));
    assert!(guard.held().is_some());
    assert!(!guard.expire(now + TIME * 2));
    // Also a share that is small by now.
    assert!(guard.judge(2, 1, loss(50, 1000), now));
    assert_eq!(guard.until(), Some(now + TIME));
    let off = GuardConfig {
        percent: 100,
        ..GuardConfig::default()
    };
    let mut guard = DeletionGuard::new(off);
    guard.restore(1, 5, loss(150, 200));
    assert_eq!(guard.held(), None);
}

#[test]
fn the_table_of_another_cluster_is_believed_once() {
    let now = Instant::now();
    let mut guard = holding(GuardConfig::default(), now);
    guard.begin_stream();
    guard.believe_next();
    assert!(!guard.judge(2, 1, loss(200, 200), now));
    guard.begin_stream();
    assert!(guard.judge(2, 2, loss(200, 200), now));
}

#[test]
fn an_operator_confirms_what_is_held_and_nothing_else() {
    let now = Instant::now();
    let config = GuardConfig {
        time: None,
        ..GuardConfig::default()
    };
    let mut guard = holding(config, now);
    assert!(guard.judge(1, 7, loss(140, 200), now));
    assert!(!guard.expire(now + TIME * 1000));
    assert_eq!(guard.held().unwrap().to_message(now).remaining_ms, 0);
    for (epoch, revision) in [(1, 4), (1, 8), (2, 6)] {
        assert!(!guard.confirm(epoch, revision), "{epoch} {revision}");
    }
    assert!(guard.confirm(1, 6));
    assert!(!guard.confirm(1, 6));
    // A revision of an earlier stream confirms nothing any more.
    let mut guard = holding(config, now);
    guard.begin_stream();
    assert!(guard.judge(1, 9, loss(140, 200), now));
    assert!(!guard.confirm(1, 5));
    assert!(guard.confirm(1, 9));
}
