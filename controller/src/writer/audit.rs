// SPDX-License-Identifier: Apache-2.0

//! Schedule of audits, which run in parts.

use std::time::{Duration, Instant};

use portolan_select::{Audit, Pipeline, TableDelta};
use tokio::time::sleep_until;

/// Services audited at a time. They take about a millisecond, for which changes wait at most.
const PART: usize = 128;

/// Pause before an audit that cannot go on is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Runs one audit after the other, with pauses.
#[derive(Debug)]
pub(super) struct Auditor {
    /// Pause between two audits; `None` for no audits.
    pause: Option<Duration>,
    /// Time of the next part, or of the next audit.
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
        match self.pause {
            None => std::future::pending().await,
            Some(_) if self.next > Instant::now() => sleep_until(self.next.into()).await,
            // Other tasks first: audits are never urgent.
            Some(_) => tokio::task::yield_now().await,
        }
    }

    /// Audits the next part. Returns the differences.
    pub(super) fn look(&mut self, pipeline: &mut Pipeline) -> TableDelta {
        if !pipeline.can_audit() {
            self.next = Instant::now() + RETRY;
            return TableDelta::default();
        }
        let audit = self.audit.get_or_insert_with(|| pipeline.audit());
        let found = pipeline.continue_audit(audit, PART);
        if audit.is_done() {
            self.audit = None;
            self.next = Instant::now() + self.pause.unwrap_or_default();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use portolan_catalog::{Node, Object, ObjectChange, ObjectKey};

    use super::*;

    #[test]
    fn an_audit_that_cannot_go_on_pauses() {
        let mut pipeline = Pipeline::default();
        let key = |name: &str| ObjectKey {
            cluster: "eu-1".into(),
            namespace: "".into(),
            name: name.into(),
        };
        let put = |node| ObjectChange::Put {
            object: Object::Node(node),
            problems: Vec::new(),
        };
        let begun = Instant::now();
        let mut auditor = Auditor::new(Some(Duration::ZERO), begun);
        auditor.look(&mut pipeline);
        assert!(auditor.next < begun + RETRY, "nothing holds it up");
        // As of a cluster whose source has not sent all objects: nothing flushes it.
        let weighted = Node {
            weight: Some(3),
            ..Node::new(key("node-1"))
        };
        pipeline.apply(put(weighted));
        auditor.look(&mut pipeline);
        assert!(auditor.next >= begun + RETRY);
        pipeline.flush();
        let before = auditor.next;
        auditor.look(&mut pipeline);
        assert!(
            auditor.audit.is_none() && auditor.next <= before,
            "it went on"
        );
    }
}
