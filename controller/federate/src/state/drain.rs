// SPDX-License-Identifier: Apache-2.0

//! Steps that move over time.

use std::time::Duration;

use portolan_policy::Drain;

use super::FULL;

/// A step that moves at a steady rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moving {
    pub(super) step: u8,
    /// The time since the last whole step.
    rest: Duration,
}

impl Moving {
    pub(super) fn at(step: u8) -> Self {
        Self {
            step: step.min(FULL),
            rest: Duration::ZERO,
        }
    }

    /// Moves towards a step for a time, `range` steps taking `over`. It never goes beyond it, and
    /// never away from it.
    pub(super) fn advance(&mut self, to: u8, range: u8, over: Duration, tick: Duration) {
        if self.step == to {
            self.rest = Duration::ZERO;
            return;
        }
        let each = over / u32::from(range.max(1));
        if each.is_zero() {
            *self = Self::at(to);
            return;
        }
        self.rest += tick;
        while self.step != to && self.rest >= each {
            self.rest -= each;
            self.step = if self.step < to {
                self.step + 1
            } else {
                self.step - 1
            };
        }
    }
}

/// The step that a drain leads to: 0 only for 0 %.
pub(super) fn target(drain: Option<Drain>) -> u8 {
    let Some(drain) = drain else {
        return FULL;
    };
    let to = drain.to.min(100);
    let rounded = (u16::from(to) * u16::from(FULL) + 50) / 100;
    let step = u8::try_from(rounded).unwrap_or(FULL);
    if to == 0 { 0 } else { step.max(1) }
}
