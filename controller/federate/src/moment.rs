// SPDX-License-Identifier: Apache-2.0

//! Time as an argument.

use std::time::Duration;

/// A time: the duration since an origin that is the same for all that is compared, such as 1970 for
/// what is kept in objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub Duration);

impl Moment {
    /// The time since an earlier moment; none if that is later, as after a clock was set back.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment so much later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}
