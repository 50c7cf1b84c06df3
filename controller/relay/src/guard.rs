//! Whether what has arrived may be published. Pure: time comes in.

use std::time::Instant;

use portolan_proto::v1;
use portolan_subscription::HoldConfig;
use portolan_tablelog::Committed;

/// Judges what arrives on one stream after the other.
#[derive(Debug)]
pub(crate) struct Hold {
    config: HoldConfig,
    /// Whether the next Commit is the first one on its stream.
    is_first: bool,
    held: Option<Held>,
}

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// What came first on the stream; what came later is confirmed with it.
    first_revision: u64,
    last_revision: u64,
    deleted: usize,
    records: usize,
    /// When it counts as confirmed; `None` for never.
    pub(crate) until: Option<Instant>,
}

impl Hold {
    pub(crate) fn new(config: HoldConfig) -> Self {
        Self {
            config,
            is_first: true,
            held: None,
        }
    }

    /// A stream begins: what the last one brought was dropped.
    pub(crate) fn begin(&mut self) {
        self.is_first = true;
        self.held = None;
    }

    /// Whether all that has arrived may be published.
    pub(crate) fn judge(&mut self, committed: &Committed, now: Instant) -> bool {
        let is_first = std::mem::replace(&mut self.is_first, false);
        let last = self.held.take();
        let is_judged = is_first || last.is_some();
        let (deleted, records) = (committed.deleted, committed.records);
        if !is_judged || !self.config.is_too_much(deleted, records) {
            return true;
        }
        let until = self.config.confirmed_after.map(|after| now + after);
        self.held = Some(Held {
            first_revision: last.map_or(committed.revision, |held| held.first_revision),
            last_revision: committed.revision,
            deleted,
            records,
            until: last.map_or(until, |held| held.until),
        });
        false
    }

    pub(crate) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// Lets go of what is held if its time has come.
    pub(crate) fn expired(&mut self, now: Instant) -> bool {
        let is_over = |held: &mut Held| held.until.is_some_and(|until| until <= now);
        self.held.take_if(is_over).is_some()
    }

    /// Lets go of what is held if an operator means it: this revision, or one since it is held.
    pub(crate) fn confirmed(&mut self, revision: u64) -> bool {
        let means =
            |held: &mut Held| (held.first_revision..=held.last_revision).contains(&revision);
        self.held.take_if(means).is_some()
    }
}

impl Held {
    pub(crate) fn deleted(&self) -> usize {
        self.deleted
    }

    /// As the controller is told.
    pub(crate) fn to_message(self, now: Instant) -> v1::Held {
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

    use portolan_model::SetHash;

    use super::*;

    fn committed(revision: u64, deleted: usize) -> Committed {
        Committed {
            epoch: 1,
            revision,
            records_hash: SetHash::default(),
            own_hash: SetHash::default(),
            deleted,
            records: 200,
        }
    }

    #[test]
    fn only_what_comes_first_on_a_stream_is_held() {
        let now = Instant::now();
        let mut hold = Hold::new(HoldConfig::default());
        assert!(hold.judge(&committed(1, 100), now));
        assert!(hold.judge(&committed(2, 150), now), "it was seen to happen");
        hold.begin();
        assert!(!hold.judge(&committed(3, 101), now));
        // It stays held while more comes, and the time counts from the first.
        let later = now + Duration::from_secs(20);
        assert!(!hold.judge(&committed(4, 120), later));
        assert!(!hold.expired(later));
        assert!(hold.expired(now + Duration::from_secs(30)));
        assert!(hold.held().is_none());
        hold.begin();
        assert!(!hold.judge(&committed(5, 101), now));
        assert!(
            hold.judge(&committed(6, 7), now),
            "it deletes no longer much"
        );
    }

    #[test]
    fn an_operator_confirms_what_is_held_and_nothing_else() {
        let now = Instant::now();
        let mut hold = Hold::new(HoldConfig {
            confirmed_after: None,
            ..HoldConfig::default()
        });
        assert!(!hold.judge(&committed(5, 150), now));
        assert!(!hold.judge(&committed(6, 150), now));
        assert_eq!(hold.held().unwrap().to_message(now).remaining_ms, 0);
        for wrong in [4, 7] {
            assert!(!hold.confirmed(wrong));
        }
        assert!(hold.confirmed(5));
        assert!(!hold.confirmed(5));
        hold.begin();
        assert!(!hold.judge(&committed(7, 150), now));
        hold.begin();
        assert!(!hold.confirmed(7), "its stream has ended");
    }
}
