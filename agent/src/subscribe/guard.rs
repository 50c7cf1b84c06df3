//! Holds a table back that would delete too much of the one in force.
//!
//! A controller that comes up with little (an API server restored from the wrong backup, a cache
//! that was not full) is believed only after a while, or when an operator says so. Only what comes
//! first on a stream is judged: what changes then, the controller saw happen. Until then nothing
//! of it applies, additions neither. Pure: time comes in.

use std::sync::Arc;
use std::time::Instant;

use portolan_model::NodeTable;
use portolan_proto::v1;
use portolan_subscription::HoldConfig;

use super::{Committed, HeldTable};

/// Judges tables.
#[derive(Debug)]
pub(super) struct Hold {
    config: HoldConfig,
    in_force: Option<Arc<NodeTable>>,
    /// Whether the next table is the first one on its stream.
    is_first: bool,
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    committed: Committed,
    /// What came first on the stream; what came later is confirmed with it.
    first_revision: u64,
    deleted: usize,
    records: usize,
    /// When it counts as confirmed; `None` for never, or without a stream.
    until: Option<Instant>,
}

impl Hold {
    pub(super) fn new(config: HoldConfig) -> Self {
        Self {
            config,
            in_force: None,
            is_first: true,
            held: None,
        }
    }

    /// A stream begins, or ended. Time confirms nothing that nobody stands for any more.
    pub(super) fn begin(&mut self) {
        self.is_first = true;
        if let Some(held) = &mut self.held {
            held.until = None;
        }
    }

    /// Gives the table back if it may be programmed; else it is held.
    pub(super) fn judge(&mut self, committed: Committed, now: Instant) -> Option<Committed> {
        let is_first = std::mem::replace(&mut self.is_first, false);
        let last = self.held.take();
        if !is_first && last.is_none() {
            return Some(self.let_through(committed));
        }
        let (deleted, records) = self.would_delete(&committed.table);
        if !self.config.is_too_much(deleted, records) {
            return Some(self.let_through(committed));
        }
        let of_stream = last.filter(|_| !is_first);
        let (first_revision, until) = match of_stream {
            Some(held) => (held.first_revision, held.until),
            None => (
                committed.revision,
                self.config.confirmed_after.map(|after| now + after),
            ),
        };
        self.held = Some(Held {
            committed,
            first_revision,
            deleted,
            records,
            until,
        });
        None
    }

    /// Gives the held table back if its time has come.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Committed> {
        let held = self
            .held
            .take_if(|held| held.until.is_some_and(|until| until <= now))?;
        Some(self.let_through(held.committed))
    }

    /// Gives the held table back if an operator means it: this revision, or one since it is held.
    pub(super) fn confirmed(&mut self, epoch: u64, revision: u64) -> Option<Committed> {
        let means = |held: &mut Held| {
            let revisions = held.first_revision..=held.committed.revision;
            held.committed.epoch == epoch && revisions.contains(&revision)
        };
        let held = self.held.take_if(means)?;
        Some(self.let_through(held.committed))
    }

    /// When time confirms what is held, if it does.
    pub(super) fn until(&self) -> Option<Instant> {
        self.held.as_ref()?.until
    }

    /// What is held, if anything.
    pub(super) fn held(&self) -> Option<HeldTable> {
        let held = self.held.as_ref()?;
        Some(HeldTable {
            epoch: held.committed.epoch,
            revision: held.committed.revision,
            deleted: held.deleted,
            records: held.records,
            until: held.until,
        })
    }

    fn let_through(&mut self, committed: Committed) -> Committed {
        self.in_force = Some(Arc::clone(&committed.table));
        committed
    }

    /// How many records of the table in force are not in another one, and how many there are.
    fn would_delete(&self, table: &NodeTable) -> (usize, usize) {
        let Some(in_force) = &self.in_force else {
            return (0, 0);
        };
        let keys = in_force.records.keys();
        let deleted = keys.filter(|key| !table.records.contains_key(*key)).count();
        (deleted, in_force.records.len())
    }
}

impl HeldTable {
    /// As the controller is told.
    pub(super) fn to_message(&self, now: Instant) -> v1::Held {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let remaining = self.until.map_or(0, |until| {
            let remaining = until.saturating_duration_since(now).as_millis();
            // 0 would be never.
            u32::try_from(remaining).unwrap_or(u32::MAX).max(1)
        });
        v1::Held {
            deleted: count(self.deleted),
            records: count(self.records),
            remaining_ms: remaining,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use portolan_model::{Protocol, Record, RecordKey, SetHash};

    use super::*;

    const AFTER: Duration = Duration::from_secs(30);

    fn table(services: std::ops::Range<usize>) -> Arc<NodeTable> {
        let key = |i: usize| RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: format!("s{i}").into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let records = services.map(|i| (key(i), Arc::new(Record::new(key(i)))));
        Arc::new(NodeTable {
            records: records.collect(),
            ..NodeTable::default()
        })
    }

    fn committed(revision: u64, services: std::ops::Range<usize>) -> Committed {
        Committed {
            epoch: 1,
            revision,
            snapshot: false,
            table: table(services),
            records_hash: SetHash(0),
            own_hash: SetHash(0),
            trigger_times_ms: vec![],
            refused: vec![],
        }
    }

    /// With a table of so many records in force, at the beginning of a stream.
    fn hold(records: usize, config: HoldConfig) -> Hold {
        let mut hold = Hold::new(config);
        let first = hold.judge(committed(1, 0..records), Instant::now());
        assert!(first.is_some(), "nothing in force, nothing to delete");
        hold.begin();
        hold
    }

    #[test]
    fn more_than_the_share_of_a_large_table_is_held() {
        let half = HoldConfig::default();
        let all_but_none = HoldConfig {
            above_percent: 0,
            ..half
        };
        let never = HoldConfig {
            above_percent: 100,
            ..half
        };
        for (config, records, stay, is_held) in [
            (half, 200, 0, true),
            (half, 200, 99, true),
            (half, 200, 100, false),
            (half, 101, 0, true),
            (half, 100, 0, false),
            (all_but_none, 200, 199, true),
            (all_but_none, 200, 200, false),
            (never, 200, 0, false),
        ] {
            let mut hold = hold(records, config);
            let given = hold.judge(committed(2, 0..stay), Instant::now());
            assert_eq!(given.is_none(), is_held, "{config:?} {records} {stay}");
            let deleted = hold.held().map(|held| (held.deleted, held.records));
            assert_eq!(deleted, is_held.then_some((records - stay, records)));
        }
    }

    #[test]
    fn what_changes_on_a_stream_is_never_held() {
        let mut hold = hold(200, HoldConfig::default());
        let now = Instant::now();
        assert!(hold.judge(committed(2, 0..200), now).is_some());
        assert!(hold.judge(committed(3, 0..0), now).is_some());
    }

    #[test]
    fn time_confirms_on_the_stream_alone() {
        let mut hold = hold(200, HoldConfig::default());
        let now = Instant::now();
        assert!(hold.judge(committed(2, 0..1), now).is_none());
        assert_eq!(hold.until(), Some(now + AFTER));
        // A change does not begin it anew.
        assert!(hold.judge(committed(3, 0..2), now + AFTER / 2).is_none());
        assert_eq!(hold.until(), Some(now + AFTER));
        assert!(hold.expired(now + AFTER / 2).is_none());
        // The stream ends: nobody stands for it.
        hold.begin();
        assert!(hold.expired(now + AFTER).is_none());
        assert!(hold.held().is_some());
        let later = now + AFTER;
        assert!(hold.judge(committed(3, 0..2), later).is_none());
        assert_eq!(hold.until(), Some(later + AFTER));
        let given = hold.expired(later + AFTER).unwrap();
        assert_eq!((given.revision, hold.held()), (3, None));
    }

    #[test]
    fn without_a_time_only_an_operator_confirms() {
        let config = HoldConfig {
            confirmed_after: None,
            ..HoldConfig::default()
        };
        let mut hold = hold(200, config);
        let now = Instant::now();
        hold.judge(committed(5, 0..1), now);
        hold.judge(committed(7, 0..1), now);
        assert!(hold.expired(now + AFTER * 1000).is_none());
        assert_eq!(hold.held().unwrap().to_message(now).remaining_ms, 0);
        for (epoch, revision) in [(1, 4), (1, 8), (2, 6)] {
            assert!(hold.confirmed(epoch, revision).is_none(), "{revision}");
        }
        assert_eq!(hold.confirmed(1, 6).unwrap().revision, 7);
        assert!(hold.confirmed(1, 6).is_none());
    }

    #[test]
    fn a_table_that_deletes_no_more_too_much_lets_go() {
        for ends in [false, true] {
            let mut hold = hold(200, HoldConfig::default());
            let now = Instant::now();
            assert!(hold.judge(committed(2, 0..1), now).is_none());
            if ends {
                hold.begin();
            }
            assert!(hold.judge(committed(3, 0..150), now).is_some());
            assert_eq!(hold.held(), None);
        }
    }
}
