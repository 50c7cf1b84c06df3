// SPDX-License-Identifier: Apache-2.0

//! Limit of real servers deleted at a time.
//!
//! The kernel keeps deleted real servers for two to three minutes in a list that each addition scans:
//! with 10,000 entries an addition costs 100 times as much. A real server at weight 0 costs nothing and
//! may come back. So few are deleted at once, and the others wait at weight 0.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use portolan_plan::{KernelState, Step};

/// Upper bound of the time in the kernel's list; measured 125 to 188 seconds.
const KEPT: Duration = Duration::from_secs(190);
/// Limit of the list's length: an addition then costs ten times as much as with an empty list, still some
/// microseconds.
pub(crate) const MOST: usize = 1_000;

/// Deleted real servers in the kernel's list.
#[derive(Debug, Default)]
pub(crate) struct Trash {
    /// Times and numbers of deletions, oldest first.
    deleted: VecDeque<(Instant, usize)>,
}

impl Trash {
    /// Number of further real servers that may be deleted now. `now` must not precede an earlier
    /// call's.
    pub(crate) fn room(&mut self, now: Instant) -> usize {
        let is_gone = |at: Instant| now.saturating_duration_since(at) >= KEPT;
        while self.deleted.front().is_some_and(|(at, _)| is_gone(*at)) {
            self.deleted.pop_front();
        }
        let kept: usize = self.deleted.iter().map(|(_, count)| count).sum();
        MOST.saturating_sub(kept)
    }

    /// Records deletions, with or without room.
    pub(crate) fn add(&mut self, count: usize, now: Instant) {
        if count > 0 {
            self.deleted.push_back((now, count));
        }
    }
}

/// Number of real servers that a step deletes.
pub(crate) fn deleted_by(step: &Step, observed: &KernelState) -> usize {
    match step {
        Step::DelRealServer { .. } => 1,
        Step::DelVirtualServer { key } => {
            let server = observed.virtual_servers.get(key);
            server.map_or(0, |server| server.real_servers.len())
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_returns_when_the_kernel_has_freed_its_list() {
        let (mut trash, start) = (Trash::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(trash.room(at(0)), MOST);
        trash.add(600, at(0));
        trash.add(300, at(100));
        assert_eq!(trash.room(at(189)), 100);
        assert_eq!(trash.room(at(190)), 700);
        trash.add(5_000, at(200));
        assert_eq!(trash.room(at(389)), 0);
        assert_eq!(trash.room(at(390)), MOST);
    }
}
