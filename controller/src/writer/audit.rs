//! When the tables are looked at as a whole, and how much of them at a time.

use std::time::{Duration, Instant};

use portolan_select::{Audit, Pipeline, TableDelta};
use tokio::time::sleep_until;

/// So many Services at a time take about a millisecond: no change waits longer for it.
const PART: usize = 128;

/// Audits over and over, with a pause in between.
#[derive(Debug)]
pub(super) struct Auditor {
    /// How long from the end of one to the next; `None` for never.
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

    /// Returns when it is time for the next part. May be dropped at any time.
    pub(super) async fn due(&self) {
        match (self.pause, &self.audit) {
            (None, _) => std::future::pending().await,
            (Some(_), None) => sleep_until(self.next.into()).await,
            // Others first: this is never urgent.
            (Some(_), Some(_)) => tokio::task::yield_now().await,
        }
    }

    /// Looks at the next part; where the tables were wrong.
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
