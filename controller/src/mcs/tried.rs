// SPDX-License-Identifier: Apache-2.0

//! Writes that were tried already, and the times of their next tries.

use std::collections::HashMap;
use std::time::Duration;

use portolan_mcs::{Action, Target, Write};
use tokio::time::Instant;

/// The pauses before the same write is tried again after a failure: each is twice the last one.
const FAILED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// The same after a success: either the watch is late, or somebody undoes the write.
const DONE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(300)];

/// The last attempt at one object.
#[derive(Debug)]
struct Attempt {
    action: Action,
    again: Instant,
    pause: Duration,
    is_done: bool,
}

/// The last attempts at all objects of one cluster.
#[derive(Debug, Default)]
pub(super) struct Tried(HashMap<Target, Attempt>);

impl Tried {
    /// Forgets attempts at what is not to be written any more.
    pub(super) fn keep_only(&mut self, writes: &[Write]) {
        let targets: std::collections::HashSet<&Target> =
            writes.iter().map(|write| &write.target).collect();
        let now = Instant::now();
        // A watch that is late plans a write once more; what was just written is not forgotten.
        self.0
            .retain(|target, attempt| targets.contains(target) || attempt.again > now);
    }

    /// When a write may be tried.
    pub(super) fn due(&self, write: &Write) -> Option<Instant> {
        let attempt = self.0.get(&write.target)?;
        // Another write of the same object is news, but not right after a failure.
        (attempt.action == write.action || !attempt.is_done).then_some(attempt.again)
    }

    /// Notes an attempt. `refused` is for what only a person changes.
    pub(super) fn note(&mut self, write: &Write, is_done: bool, refused: bool) {
        let [first, longest] = if is_done { DONE } else { FAILED };
        let before = self.0.get(&write.target);
        let again = before.filter(|attempt| attempt.is_done == is_done);
        let again = again.filter(|attempt| !is_done || attempt.action == write.action);
        let pause = again.map_or(first, |attempt| (attempt.pause * 2).min(longest));
        let pause = if refused { longest } else { pause };
        let attempt = Attempt {
            action: write.action.clone(),
            again: Instant::now() + pause,
            pause,
            is_done,
        };
        self.0.insert(write.target.clone(), attempt);
    }
}
