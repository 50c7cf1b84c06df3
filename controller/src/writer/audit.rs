// SPDX-License-Identifier: Apache-2.0

//! Schedule of audits, which run in parts.

use std::time::{Duration, Instant};

use portolan_select::{Audit, Pipeline, TableDelta};
use tokio::time::sleep_until;

/// Services audited at a time. They take about a millisecond, for which changes wait at most.
const PART: usize = 128;

/// Runs one audit after the other, with pauses.
#[derive(Debug)]
pub(super) struct Auditor {
    /// Pause between two audits; `None` for no audits.
    pause: Option<Duration>,
    next: Instant,
    audit: Option<Audit>,
}

impl Auditor {
    pub(super) fn new(pause: Option<Duration>, now: Instant) -> Self {
        Self {
            pause,
            next: now + pause.unwrap_or_default(),
            audit: None,
        }
    }

    /// Completes when the next part is due. Cancel safe.
    pub(super) async fn due(&self) {
        match (self.pause, &self.audit) {
            (None, _) => std::future::pending().await,
            (Some(_), None) => sleep_until(self.next.into()).await,
            // Other tasks first: audits are never urgent.
            (Some(_), Some(_)) => tokio::task::yield_now().await,
        }
    }

    /// Audits the next part. Returns the differences.
    pub(super) fn look(&mut self, pipeline: &mut Pipeline) -> TableDelta {
        let audit = self.audit.get_or_insert_with(|| pipeline.audit());
        let found = pipeline.continue_audit(audit, PART);
        if audit.is_done() {
            self.audit = None;
            self.next = Instant::now() + self.pause.unwrap_or_default();
        }
        found
    }
}
