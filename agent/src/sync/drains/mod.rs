// SPDX-License-Identifier: Apache-2.0

//! Deadlines of draining real servers.
//!
//! [`Deadlines`] is pure; [`Drainer`] adds a clock and a file. Deadlines are times since boot, so that a
//! change of the wall clock neither shortens nor prolongs a drain. The file carries them over restarts of
//! the agent; a reboot ends all drains. Real servers of a deleted virtual server are deleted at once: only
//! those of one that stays can drain.

mod clock;
mod file;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use portolan_reconcile::Draining;

pub use clock::BootClock;
use file::DrainFile;

/// Deadlines of draining real servers, as times since boot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deadlines(BTreeMap<Draining, Duration>);

impl Deadlines {
    /// Replaces the set of draining real servers, given the time that each may take. New ones begin now,
    /// missing ones are forgotten.
    pub fn update(&mut self, limits: &BTreeMap<Draining, Duration>, now: Duration) {
        self.0.retain(|draining, _| limits.contains_key(draining));
        for (draining, limit) in limits {
            // A shortened limit counts from now; a prolonged one does not postpone the deadline.
            let latest = now.saturating_add(*limit);
            let deadline = self.0.entry(*draining).or_insert(latest);
            *deadline = latest.min(*deadline);
        }
    }

    /// Returns `true` if the deadline has passed; `false` for a real server that does not drain.
    #[must_use]
    pub fn has_passed(&self, draining: &Draining, now: Duration) -> bool {
        self.0
            .get(draining)
            .is_some_and(|deadline| *deadline <= now)
    }

    /// The next deadline.
    #[must_use]
    pub fn nearest(&self) -> Option<Duration> {
        self.0.values().min().copied()
    }
}

/// Keeps the deadlines across restarts.
#[derive(Debug)]
pub struct Drainer {
    deadlines: Deadlines,
    timeout: Duration,
    clock: BootClock,
    file: Option<DrainFile>,
}

impl Drainer {
    /// Creates a drainer without a file: a restart begins all drains again. `timeout` applies to records
    /// without a drain time.
    #[must_use]
    pub fn new(timeout: Duration, clock: BootClock) -> Self {
        let (deadlines, file) = (Deadlines::default(), None);
        Self {
            deadlines,
            timeout,
            clock,
            file,
        }
    }

    /// Like [`Self::new`], with a file in this directory. A malformed file and an unusable directory are
    /// logged and otherwise ignored. Must be called within a tokio runtime.
    #[must_use]
    pub fn open(directory: &Path, timeout: Duration, clock: BootClock) -> Self {
        let (file, deadlines) = DrainFile::open(directory, clock.clone());
        Self {
            deadlines,
            file: Some(file),
            ..Self::new(timeout, clock)
        }
    }

    /// Replaces the set of draining real servers, with the seconds of their records, and saves it in the
    /// background; see [`Self::close`].
    pub fn note(&mut self, draining: &BTreeMap<Draining, Option<u32>>) {
        let limit = |seconds: &Option<u32>| {
            seconds.map_or(self.timeout, |seconds| Duration::from_secs(seconds.into()))
        };
        let limits = draining
            .iter()
            .map(|(draining, seconds)| (*draining, limit(seconds)))
            .collect();
        self.deadlines.update(&limits, self.clock.now());
        if let Some(file) = &self.file {
            file.save(&self.deadlines);
        }
    }

    /// Waits until the last set is in the file.
    pub async fn close(self) {
        if let Some(file) = self.file {
            file.close().await;
        }
    }

    /// Returns `true` if the deadline of a real server has passed.
    #[must_use]
    pub fn has_passed(&self, draining: &Draining) -> bool {
        self.deadlines.has_passed(draining, self.clock.now())
    }

    /// Time until the next deadline; `None` if nothing drains.
    #[must_use]
    pub fn until_nearest(&self) -> Option<Duration> {
        let nearest = self.deadlines.nearest()?;
        Some(nearest.saturating_sub(self.clock.now()))
    }
}

#[cfg(test)]
mod tests;
