// SPDX-License-Identifier: Apache-2.0

//! The limits of the guard.

use std::time::Duration;

use super::Size;

/// Limits above which losses are doubted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuardConfig {
    /// A listing is doubted if more than this percentage of a kind, or of its ready endpoints, is
    /// absent. 0 to 100; 100 turns the guard off, for watches too.
    pub listing_percent: u8,
    /// A watch is doubted if more than this percentage goes within [`WINDOW`](super::WINDOW). 0 to
    /// 100.
    pub watch_percent: u8,
    /// Smaller losses are always believed.
    pub least: usize,
    /// The time after which a held loss counts as confirmed; `None` for never.
    pub hold: Option<Duration>,
    /// `true` if the loss of all objects is doubted, also if they are fewer than `least`.
    pub doubts_emptiness: bool,
}

impl Default for GuardConfig {
    fn default() -> Self {
        Self {
            listing_percent: 20,
            watch_percent: 80,
            least: 50,
            hold: Some(Duration::from_secs(30 * 60)),
            doubts_emptiness: false,
        }
    }
}

impl GuardConfig {
    /// Nothing is ever held.
    pub const OFF: Self = Self {
        listing_percent: 100,
        watch_percent: 100,
        least: usize::MAX,
        hold: None,
        doubts_emptiness: false,
    };

    pub(super) fn is_off(&self) -> bool {
        self.listing_percent >= 100
    }

    pub(super) fn is_too_much(&self, percent: u8, lost: Size, of: Size) -> bool {
        let is = |lost: usize, of: usize| {
            lost >= self.least && lost.saturating_mul(100) > of.saturating_mul(percent.into())
        };
        let is_all = self.doubts_emptiness
            && percent < 100
            && lost.objects > 0
            && lost.objects >= of.objects;
        !self.is_off() && (is_all || is(lost.objects, of.objects) || is(lost.ready, of.ready))
    }
}
