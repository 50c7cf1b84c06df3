// SPDX-License-Identifier: Apache-2.0

//! Properties of the kernel's schedulers.

use std::fmt;

use crate::document::{OnFailure, SchedulerName};

impl SchedulerName {
    /// All schedulers.
    pub const ALL: [Self; 14] = [
        Self::Rr,
        Self::Wrr,
        Self::Lc,
        Self::Wlc,
        Self::Lblc,
        Self::Lblcr,
        Self::Dh,
        Self::Sh,
        Self::Sed,
        Self::Nq,
        Self::Fo,
        Self::Ovf,
        Self::Mh,
        Self::Twos,
    ];

    /// The kernel's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Dh => "dh",
            Self::Sh => "sh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Fo => "fo",
            Self::Ovf => "ovf",
            Self::Mh => "mh",
            Self::Twos => "twos",
        }
    }

    /// The scheduler of a kernel's name.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == name)
    }

    /// Returns `true` if a client's hash chooses the backend, with the flags `Port` and `Fallback`.
    #[must_use]
    pub fn hashes_source(self) -> bool {
        matches!(self, Self::Sh | Self::Mh)
    }

    /// Returns `true` if a weight that grows slowly attracts few clients first.
    #[must_use]
    pub fn ramps(self) -> bool {
        matches!(
            self,
            Self::Wrr | Self::Wlc | Self::Sed | Self::Nq | Self::Twos | Self::Lblcr
        )
    }

    /// Returns `true` if only zero and other weights differ.
    #[must_use]
    pub fn ignores_shares(self) -> bool {
        matches!(self, Self::Rr | Self::Lc)
    }

    /// Returns the action that a backend that is down needs, if the scheduler refuses the clients of one with weight 0
    /// whatever its flags.
    #[must_use]
    pub fn needs(self) -> Option<OnFailure> {
        (self == Self::Dh).then_some(OnFailure::Remove)
    }
}

impl fmt::Display for SchedulerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_the_models() {
        let names = SchedulerName::ALL.map(SchedulerName::as_str);
        assert_eq!(names, portolan_model::ipvs::SCHEDULERS);
        assert_eq!(SchedulerName::of("twos"), Some(SchedulerName::Twos));
        assert_eq!(SchedulerName::of("none"), None);
    }
}
