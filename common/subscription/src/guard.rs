// SPDX-License-Identifier: Apache-2.0

//! The deletion guard: holds back implausibly large deletions of a stream's first table.
//!
//! A controller that starts with little (its API server was restored from an empty backup, or its
//! cache was not full) would have nearly everything deleted. So the first table of a stream is
//! compared with the table in force. If it lacks too much, the missing records stay in force, while
//! additions and changes apply at once. Records return when the controller has them again; the
//! others go when an operator confirms the loss, or when a controller has stood by it for long
//! enough. Later deletions on a stream are believed: the controller saw them happen, and has a
//! guard of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use portolan_model::Loss;
use portolan_proto::v1;
use tracing::{info, warn};

/// Limits of the deletion guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardConfig {
    /// Deletions are held if they exceed this percentage of the records or of the endpoints in
    /// force. 100 holds none.
    pub percent: u8,
    /// Fewer deleted records or endpoints than this are always believed.
    pub least: usize,
    /// Time that deletions are held without a confirmation; `None` for ever.
    pub time: Option<Duration>,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            percent: 20,
            least: 50,
            time: Some(Duration::from_secs(30 * 60)),
        }
    }
}

impl GuardConfig {
    /// Holds nothing.
    pub const OFF: Self = Self {
        percent: 100,
        least: 0,
        time: None,
    };

    /// Returns `true` if nothing is ever held.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.percent >= 100
    }

    /// Returns `true` if a loss is held.
    #[must_use]
    pub fn is_too_much(&self, loss: Loss) -> bool {
        let exceeds = |lost: usize, of: usize| {
            lost >= self.least && lost.saturating_mul(100) > of.saturating_mul(self.percent.into())
        };
        let Loss { lost, of } = loss;
        !self.is_off()
            && (exceeds(lost.records, of.records) || exceeds(lost.endpoints, of.endpoints))
    }
}

/// Held deletions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldDeletions {
    /// The epoch of the controller whose table lacks the records.
    pub epoch: u64,
    /// The revision of that table.
    pub revision: u64,
    /// The records that are withheld, and the table in force.
    pub loss: Loss,
    /// Time at which the deletions count as confirmed; `None` for never, or while no controller has
    /// stated them on the present stream.
    pub until: Option<Instant>,
}

impl HeldDeletions {
    /// The message for the controller.
    #[must_use]
    pub fn to_message(&self, now: Instant) -> v1::Held {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let remaining = self.until.map_or(0, |until| {
            let remaining = until.saturating_duration_since(now).as_millis();
            // 0 stands for never.
            u32::try_from(remaining).unwrap_or(u32::MAX).max(1)
        });
        v1::Held {
            deleted: count(self.loss.lost.records),
            records: count(self.loss.of.records),
            remaining_ms: remaining,
        }
    }
}

/// Decides whether losses are withheld. Pure: time is an argument, and the owner of the table keeps
/// the withheld records.
#[derive(Debug)]
pub struct DeletionGuard {
    config: GuardConfig,
    /// Whether the next table is the first one of its stream.
    is_first: bool,
    /// Whether the next first table is believed in any case.
    believes_next: bool,
    hold: Option<Hold>,
}

#[derive(Debug)]
struct Hold {
    epoch: u64,
    /// An operator may confirm any revision from here to the last one.
    first_revision: u64,
    last_revision: u64,
    loss: Loss,
    /// Time at which a controller first stated the loss; `None` after a restart, until one does.
    since: Option<Instant>,
    /// Whether a table of the present stream stands by the loss.
    is_current: bool,
}

impl DeletionGuard {
    /// Creates a guard that holds nothing.
    #[must_use]
    pub fn new(config: GuardConfig) -> Self {
        Self {
            config,
            is_first: true,
            believes_next: false,
            hold: None,
        }
    }

    /// Believes the next first table in any case: the node moves to another cluster.
    pub fn believe_next(&mut self) {
        self.believes_next = true;
    }

    /// Continues with the held deletions of an earlier run.
    pub fn restore(&mut self, epoch: u64, revision: u64, loss: Loss) {
        self.hold = (!self.config.is_off()).then_some(Hold {
            epoch,
            first_revision: revision,
            last_revision: revision,
            loss,
            since: None,
            is_current: false,
        });
    }

    /// Records the begin or end of a stream. Time confirms nothing without a controller.
    pub fn begin_stream(&mut self) {
        self.is_first = true;
        if let Some(hold) = &mut self.hold {
            hold.is_current = false;
        }
    }

    /// Returns `true` if the next table is compared with all that is in force, rather than with the
    /// withheld records only.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Records a table. Returns whether its loss is withheld.
    pub fn judge(&mut self, epoch: u64, revision: u64, loss: Loss, now: Instant) -> bool {
        self.judge_doubting(epoch, revision, loss, false, now)
    }

    /// As [`Self::judge`]; a first table's loss `is_doubtful` if it must not be believed however small it is.
    pub fn judge_doubting(
        &mut self,
        epoch: u64,
        revision: u64,
        loss: Loss,
        is_doubtful: bool,
        now: Instant,
    ) -> bool {
        let is_first = std::mem::replace(&mut self.is_first, false);
        let before = self.hold.take();
        if is_first && std::mem::take(&mut self.believes_next) {
            return false;
        }
        let is_held = match before {
            Some(_) => loss.lost.records > 0 && !self.config.is_off(),
            None => {
                let is_doubtful = is_doubtful && !self.config.is_off();
                is_first && (is_doubtful || self.config.is_too_much(loss))
            }
        };
        if !is_held {
            return false;
        }
        let is_same = |hold: &Hold| hold.is_current && hold.epoch == epoch;
        let first = before.as_ref().filter(|hold| is_same(hold));
        self.hold = Some(Hold {
            epoch,
            first_revision: first.map_or(revision, |hold| hold.first_revision),
            last_revision: revision,
            loss,
            since: before.and_then(|hold| hold.since).or(Some(now)),
            is_current: true,
        });
        // The time may have passed while there was no controller.
        !self.expire(now)
    }

    /// Releases the held deletions if their time has come.
    pub fn expire(&mut self, now: Instant) -> bool {
        let is_over = self.until().is_some_and(|until| until <= now);
        if is_over {
            self.hold = None;
        }
        is_over
    }

    /// Releases the held deletions if an operator confirms a revision since the begin of the hold.
    pub fn confirm(&mut self, epoch: u64, revision: u64) -> bool {
        let is_meant = |hold: &mut Hold| {
            let revisions = hold.first_revision..=hold.last_revision;
            hold.epoch == epoch && revisions.contains(&revision)
        };
        self.hold.take_if(is_meant).is_some()
    }

    /// Time at which the deletions count as confirmed, if they do by time.
    #[must_use]
    pub fn until(&self) -> Option<Instant> {
        let hold = self.hold.as_ref().filter(|hold| hold.is_current)?;
        Some(hold.since? + self.config.time?)
    }

    /// The held deletions, if any.
    #[must_use]
    pub fn held(&self) -> Option<HeldDeletions> {
        let hold = self.hold.as_ref()?;
        Some(HeldDeletions {
            epoch: hold.epoch,
            revision: hold.last_revision,
            loss: hold.loss,
            until: self.until(),
        })
    }
}

/// Counts of a deletion guard, for metrics.
#[derive(Debug, Default)]
pub struct GuardStats {
    /// Number of times that a hold began.
    pub tables_held: AtomicU64,
    /// Number of records that are withheld now.
    pub deletions_held: AtomicU64,
}

impl GuardStats {
    /// Records the held deletions, and logs their beginning and end.
    pub fn report(&self, held: Option<&HeldDeletions>, now: Instant) {
        let records = held.map_or(0, |held| held.loss.lost.records);
        let before = self.deletions_held.swap(records as u64, Ordering::Relaxed);
        match held {
            Some(held) if before == 0 => {
                self.tables_held.fetch_add(1, Ordering::Relaxed);
                let remaining = held.until.map(|until| until.saturating_duration_since(now));
                let Loss { lost, of } = held.loss;
                warn!(
                    revision = held.revision,
                    deleted = lost.records,
                    records = of.records,
                    deleted_endpoints = lost.endpoints,
                    endpoints = of.endpoints,
                    ?remaining,
                    "deletions held back: the first table lacks too much of the one in force; \
                     confirm them with portolanctl confirm"
                );
            }
            None if before > 0 => info!("no deletions are held back any more"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
