//! Until when a real server that drains may keep its connections.
//!
//! [`Deadlines`] decides, and has neither clock nor file; [`Drainer`] has both. Deadlines are times
//! since the machine's start, so that a clock that is set cuts or prolongs no drain. They are kept in
//! a file, so that an agent that starts again in the middle of a drain changes nothing about it.
//! After another start of the machine there is nothing left that drains. A virtual server that vanishes takes its real servers with it
//! at once: only real servers of a virtual server that stays can drain.

mod clock;
mod file;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use portolan_reconcile::Draining;

pub use clock::BootClock;
use file::DrainFile;

/// When what drains must be gone, as times since the machine's start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deadlines(BTreeMap<Draining, Duration>);

impl Deadlines {
    /// Takes note of all that drains now and of how long each may take from its beginning on. What
    /// is new begins now, what is not there any more is forgotten.
    pub fn update(&mut self, limits: &BTreeMap<Draining, Duration>, now: Duration) {
        self.0.retain(|draining, _| limits.contains_key(draining));
        for (draining, limit) in limits {
            // No drain takes longer from now than from its beginning: a limit that is made shorter
            // counts from now.
            let latest = now.saturating_add(*limit);
            let deadline = self.0.entry(*draining).or_insert(latest);
            *deadline = latest.min(*deadline);
        }
    }

    /// Whether the deadline has passed; not for what is not known to drain.
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

/// Keeps the deadlines, over restarts too.
#[derive(Debug)]
pub struct Drainer {
    deadlines: Deadlines,
    timeout: Duration,
    clock: BootClock,
    file: Option<DrainFile>,
}

impl Drainer {
    /// Without a file: a restart begins all drains anew. `timeout` is for records that do not say
    /// how long their real servers drain.
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

    /// As [`Self::new`], with the deadlines in a file in this directory. Neither a file that makes
    /// no sense nor a directory that cannot be used is an obstacle: both are logged. To be called within
    /// a tokio runtime.
    #[must_use]
    pub fn open(directory: &Path, timeout: Duration, clock: BootClock) -> Self {
        let (file, deadlines) = DrainFile::open(directory, clock.clone());
        Self {
            deadlines,
            file: Some(file),
            ..Self::new(timeout, clock)
        }
    }

    /// Takes note of all that drains, with what each one's record says in seconds. It is written
    /// meanwhile; see [`Self::close`].
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

    /// Waits until what was noted last is in the file.
    pub async fn close(self) {
        if let Some(file) = self.file {
            file.close().await;
        }
    }

    /// Whether a real server has drained for long enough.
    #[must_use]
    pub fn has_passed(&self, draining: &Draining) -> bool {
        self.deadlines.has_passed(draining, self.clock.now())
    }

    /// How long it is until the next deadline; `None` if nothing drains.
    #[must_use]
    pub fn until_nearest(&self) -> Option<Duration> {
        let nearest = self.deadlines.nearest()?;
        Some(nearest.saturating_sub(self.clock.now()))
    }
}

#[cfg(test)]
mod tests;
