// SPDX-License-Identifier: Apache-2.0

//! Edges of a cluster that wait for the one whose stream counts: replicas of its controller, which serve agents as well
//! and need plans.

use std::collections::VecDeque;

use tokio_util::task::AbortOnDropHandle;

use super::EdgeStream;

/// The most edges that wait.
const MOST: usize = 7;

/// Edges that wait, the one that waits for longest first.
#[derive(Debug, Default)]
pub(super) struct Standbys(VecDeque<Standby>);

/// An edge that waits.
#[derive(Debug)]
pub(super) struct Standby {
    pub(super) stream: EdgeStream,
    /// Plans on their way to it.
    pub(super) plans: Option<AbortOnDropHandle<()>>,
}

impl Standbys {
    /// Returns `true` if one more may wait. Those whose streams have ended do not count, nor does
    /// an older stream of this process.
    pub(super) fn has_room(&mut self, instance: u64) -> bool {
        self.0
            .retain(|one| !one.stream.answers.is_closed() && one.stream.instance != instance);
        self.0.len() < MOST
    }

    pub(super) fn add(&mut self, standby: Standby) {
        self.0.push_back(standby);
    }

    /// The one that is next.
    pub(super) fn take(&mut self) -> Option<Standby> {
        self.0.retain(|one| !one.stream.answers.is_closed());
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
