// SPDX-License-Identifier: Apache-2.0

//! The time without probes, and its end.
//!
//! A run has one of a timer, a place in the queue and a probe that runs. While probes are suspended it has at most a
//! probe that began before, whose outcome is not told.

use tokio::time::Instant;

use super::{Engine, Key};

impl<K: Key> Engine<K> {
    /// Takes whether probes are suspended.
    pub(super) fn take_suspended(&mut self) {
        let suspended = *self.inputs.suspended.borrow_and_update();
        if std::mem::replace(&mut self.is_suspended, suspended) == suspended {
            return;
        }
        match suspended {
            true => self.suspend(),
            false => self.resume(),
        }
    }

    fn suspend(&mut self) {
        tracing::info!("checks of backends are suspended: each keeps its state");
        self.starter.clear();
        // A timer that is gone must have no key.
        self.timers.clear();
        self.runs.all_mut().for_each(|(_, run)| run.timer = None);
    }

    fn resume(&mut self) {
        tracing::info!("checks of backends go on");
        let now = Instant::now();
        let idle = self.runs.all_mut().filter(|(_, run)| !run.is_running);
        let soon: Vec<_> = idle
            .map(|(id, run)| (id, self.starter.soon(&run.job.check.timers)))
            .collect();
        for (id, delay) in soon {
            self.schedule(id, now, delay);
        }
    }
}
