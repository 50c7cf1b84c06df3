// SPDX-License-Identifier: Apache-2.0

//! Overrides on disk. They outlive restarts of the agent and of the machine.

use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use portolan_health::Administrative;
use serde::{Deserialize, Serialize};

use super::map::{Override, OverrideMap};
use crate::args::BackendName;
use crate::backends::{boot_id, since_boot};
use crate::state_file;

const NAME: &str = "overrides.json";

/// One time by two clocks, in the boot with an identifier.
#[derive(Debug, Clone)]
pub(crate) struct Now {
    /// Identifier of the boot; empty if it is unknown.
    pub(crate) boot_id: String,
    /// Time since boot.
    pub(crate) since_boot: Duration,
    /// Wall clock.
    pub(crate) wall: Timestamp,
}

impl Now {
    /// The time of this machine.
    pub(crate) fn read() -> Self {
        Self {
            boot_id: boot_id(),
            since_boot: since_boot(),
            wall: Timestamp::now(),
        }
    }

    /// The wall clock at a time since boot; `None` beyond its range.
    pub(crate) fn wall_at(&self, since_boot: Duration) -> Option<Timestamp> {
        let left = SignedDuration::try_from(since_boot).ok()?;
        let left = left - SignedDuration::try_from(self.since_boot).ok()?;
        self.wall.checked_add(left).ok()
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Saved {
    /// Identifier of the boot whose times `since_boot_ms` are.
    boot: String,
    overrides: Vec<SavedOverride>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedOverride {
    #[serde(flatten)]
    name: BackendName,
    state: Administrative,
    until: Option<End>,
}

/// When an override ends. The time since boot counts in the same boot, so that a clock that is set changes
/// nothing; the wall clock counts after a reboot.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct End {
    since_boot_ms: u64,
    unix_seconds: i64,
    /// Seconds that were left when it was saved, which is once a minute. A clock that is behind after a reboot makes it
    /// no longer. A file of an earlier version has none.
    #[serde(default)]
    most_seconds: Option<u64>,
}

/// Reads the overrides that have not ended; none if the file cannot be read, which is logged. Blocks.
pub(crate) fn load(directory: &Path, now: &Now) -> OverrideMap {
    let saved: Saved = state_file::load(directory, NAME);
    let is_this_boot = !saved.boot.is_empty() && saved.boot == now.boot_id;
    let until = |end: End| {
        if is_this_boot {
            return Duration::from_millis(end.since_boot_ms);
        }
        let left = end.unix_seconds.saturating_sub(now.wall.as_second());
        let most = end.most_seconds.unwrap_or(u64::MAX);
        let left = u64::try_from(left).unwrap_or(0).min(most);
        now.since_boot + Duration::from_secs(left)
    };
    let overrides = saved.overrides.into_iter().map(|saved| {
        let each = Override {
            state: saved.state,
            until: saved.until.map(until),
        };
        (saved.name, each)
    });
    let mut overrides: OverrideMap = overrides.collect();
    overrides.expire(now.since_boot);
    overrides
}

/// Replaces the overrides on disk. Blocks.
pub(crate) fn save(directory: &Path, overrides: &OverrideMap, now: &Now) -> io::Result<()> {
    let end = |until: Duration| End {
        since_boot_ms: u64::try_from(until.as_millis()).unwrap_or(u64::MAX),
        unix_seconds: now.wall_at(until).map_or(i64::MAX, |wall| wall.as_second()),
        most_seconds: Some(until.saturating_sub(now.since_boot).as_secs()),
    };
    let saved = overrides.iter().map(|(name, each)| SavedOverride {
        name: name.clone(),
        state: each.state,
        until: each.until.map(end),
    });
    let saved = Saved {
        boot: now.boot_id.clone(),
        overrides: saved.collect(),
    };
    state_file::save(directory, NAME, &saved)
}
