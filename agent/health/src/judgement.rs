// SPDX-License-Identifier: Apache-2.0

//! Judgement of one check about one backend: rise and fall.

use std::time::Duration;

use portolan_model::check::Timers;
use serde::{Deserialize, Serialize};

/// The judgement of one check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Judgement {
    /// No result yet; the first one decides alone.
    #[default]
    Unknown,
    /// It passes.
    Passing {
        /// Failures in a row; less than `fall`.
        fails: u32,
    },
    /// It fails.
    Failing {
        /// Passes in a row; less than the `rise` in force.
        passes: u32,
    },
}

impl Judgement {
    /// After a pass; `rise` passes in a row end a failure.
    pub(crate) fn passed(self, rise: u32) -> Self {
        match self {
            Self::Failing { passes } if passes.saturating_add(1) < rise => Self::Failing {
                passes: passes.saturating_add(1),
            },
            _ => Self::Passing { fails: 0 },
        }
    }

    /// After a failure; `fall` failures in a row are one.
    pub(crate) fn failed(self, fall: u32) -> Self {
        match self {
            Self::Passing { fails } if fails.saturating_add(1) < fall => Self::Passing {
                fails: fails.saturating_add(1),
            },
            _ => Self::Failing { passes: 0 },
        }
    }

    /// The time to the next probe: short while results contradict the state, or there is none.
    pub(crate) fn next(self, timers: &Timers) -> Duration {
        match self {
            Self::Passing { fails: 0 } | Self::Failing { passes: 0 } => timers.interval,
            _ => timers.fast_interval,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_result_decides_alone() {
        assert_eq!(
            Judgement::Unknown.failed(3),
            Judgement::Failing { passes: 0 }
        );
        assert_eq!(
            Judgement::Unknown.passed(3),
            Judgement::Passing { fails: 0 }
        );
    }

    #[test]
    fn only_results_in_a_row_count() {
        let up = Judgement::Passing { fails: 0 };
        let twice = up.failed(3).failed(3);
        assert_eq!(twice, Judgement::Passing { fails: 2 });
        assert_eq!(twice.passed(2), up);
        let down = twice.failed(3);
        assert_eq!(down, Judgement::Failing { passes: 0 });
        assert_eq!(down.passed(2).failed(3), down);
        assert_eq!(down.passed(2).passed(2), up);
        assert_eq!(down.passed(1), up);
        assert_eq!(up.failed(1), down);
    }

    #[test]
    fn a_contradiction_is_probed_again_soon() {
        let timers = Timers::default();
        let up = Judgement::Passing { fails: 0 };
        assert_eq!(up.next(&timers), timers.interval);
        assert_eq!(up.failed(3).next(&timers), timers.fast_interval);
        assert_eq!(up.failed(1).next(&timers), timers.interval);
        assert_eq!(up.failed(1).passed(2).next(&timers), timers.fast_interval);
        assert_eq!(Judgement::Unknown.next(&timers), timers.fast_interval);
    }
}
