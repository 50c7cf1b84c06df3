// SPDX-License-Identifier: Apache-2.0

//! A limit of the time for which all controllers are behind the agent.

use std::time::{Duration, Instant};

use crate::End;

/// Time without a table, with all controllers behind the table in force, after which the API server
/// is assumed to have been restored from a backup.
pub const BEHIND_PATIENCE: Duration = Duration::from_secs(300);

/// The time since which all controllers that answer are behind. Time is an argument.
#[derive(Debug, Default)]
pub struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// Records the end of a stream. Returns whether the limit has passed.
    pub fn is_over(&mut self, end: End, now: Instant) -> bool {
        match end {
            End::Behind => {
                let since = *self.since.get_or_insert(now);
                let is_over = now.duration_since(since) >= BEHIND_PATIENCE;
                self.since = self.since.filter(|_| !is_over);
                is_over
            }
            // These controllers state no versions of their sources.
            End::Unreachable | End::Refused | End::UnknownNode | End::WrongCluster => false,
            End::Broken { .. } | End::Suspect | End::Goaway => {
                self.since = None;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_when_all_controllers_were_behind_for_long() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut patience = Patience::default();
        assert!(!patience.is_over(End::Behind, at(0)));
        assert!(!patience.is_over(End::Unreachable, at(100)));
        assert!(!patience.is_over(End::Behind, at(299)));
        assert!(patience.is_over(End::Behind, at(300)));
        assert!(!patience.is_over(End::Behind, at(301)), "it begins anew");
        // A stream that lasted ends it.
        assert!(!patience.is_over(End::Broken { lasted: true }, at(500)));
        assert!(!patience.is_over(End::Behind, at(700)));
    }
}
