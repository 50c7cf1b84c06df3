// SPDX-License-Identifier: Apache-2.0

//! The last reading of our tables, and the reasons to read them again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use portolan_model::Family;
use portolan_netlink::nftables::TableContent;

/// The time after which all is read again, whatever the generation says.
const LONGEST: Duration = Duration::from_secs(60 * 60);

/// Our tables in the kernel.
#[derive(Debug, Clone, Default)]
pub(super) struct Observed {
    pub(super) tables: BTreeMap<Family, Option<TableContent>>,
    /// The generation in which they were so; `None` if others made one meanwhile.
    pub(super) generation: Option<u32>,
    /// A notice of changes by others that no reading has followed yet. The kernel gives it only once.
    pub(super) is_due: bool,
    /// The time at which all was read.
    pub(super) read_at: Option<Instant>,
}

impl Observed {
    /// Returns whether the tables must be read, which stays so until they are. `told` is whether others have changed
    /// them, if that is known.
    pub(super) fn must_be_read(&mut self, told: Option<bool>, now: u32) -> bool {
        self.is_due |= match told {
            Some(true) => true,
            // Others have changed tables of their own.
            Some(false) => self.generation.is_none(),
            None => self.generation != Some(now),
        };
        if !self.is_due {
            self.generation = Some(now);
        }
        self.is_due
    }

    /// Returns `true` if the tables are certainly as they were: the generation of all tables is still theirs, and all
    /// was read not long ago.
    pub(super) fn is_proven(&self, generation: u32, now: Instant) -> bool {
        let is_recent = |read_at| now.saturating_duration_since(read_at) < LONGEST;
        let is_same = self.generation == Some(generation) && !self.is_due;
        is_same && self.read_at.is_some_and(is_recent)
    }
}
