// SPDX-License-Identifier: Apache-2.0

//! The highest size within the window.

use std::collections::VecDeque;
use std::time::Instant;

use super::{Size, WINDOW};

/// Highest numbers of objects and of ready endpoints, each for itself.
#[derive(Debug, Default)]
pub(super) struct Peak {
    objects: Highest,
    ready: Highest,
}

impl Peak {
    /// Records the size from now on.
    pub(super) fn note(&mut self, size: Size, now: Instant) {
        self.objects.note(size.objects, now);
        self.ready.note(size.ready, now);
    }

    /// Forgets earlier sizes.
    pub(super) fn reset(&mut self, size: Size, now: Instant) {
        *self = Self::default();
        self.note(size, now);
    }

    pub(super) fn highest(&self, now: Instant) -> Size {
        Size {
            objects: self.objects.highest(now),
            ready: self.ready.highest(now),
        }
    }
}

/// Numbers that fall from the front to the back, each with the time at which it ended. The highest is
/// the first one that ended within the window.
#[derive(Debug, Default)]
struct Highest {
    falling: VecDeque<(usize, Instant)>,
    current: usize,
}

impl Highest {
    fn note(&mut self, number: usize, now: Instant) {
        if number < self.current {
            self.falling.push_back((self.current, now));
        }
        while self.falling.back().is_some_and(|last| last.0 <= number) {
            self.falling.pop_back();
        }
        while self
            .falling
            .front()
            .is_some_and(|first| is_over(first.1, now))
        {
            self.falling.pop_front();
        }
        self.current = number;
    }

    fn highest(&self, now: Instant) -> usize {
        let mut falling = self.falling.iter();
        let highest = falling.find(|entry| !is_over(entry.1, now));
        highest.map_or(self.current, |entry| entry.0)
    }
}

fn is_over(ended: Instant, now: Instant) -> bool {
    now.saturating_duration_since(ended) > WINDOW
}
