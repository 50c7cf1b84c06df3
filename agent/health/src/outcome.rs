// SPDX-License-Identifier: Apache-2.0

//! Outcome of one probe of one backend.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Reason why a probe failed, as a short sentence without its end: `status 503, not one of 200-299`.
pub type Reason = Arc<str>;

/// Result of one probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The backend answered as it must.
    Pass {
        /// Weight that the answer gives; `None` for the configured one.
        weight: Option<DynamicWeight>,
    },
    /// The backend did not answer, or not as it must.
    Fail(Reason),
    /// The probe says nothing about the backend, because the fault is this machine's.
    NoVerdict(Reason),
    /// Word of the backend about itself.
    Word(Word),
}

impl Outcome {
    /// A pass with the configured weight.
    #[must_use]
    pub fn pass() -> Self {
        Self::Pass { weight: None }
    }

    /// A failure.
    pub fn fail(reason: impl Into<Reason>) -> Self {
        Self::Fail(reason.into())
    }

    /// No verdict.
    pub fn no_verdict(reason: impl Into<Reason>) -> Self {
        Self::NoVerdict(reason.into())
    }
}

/// The line of an agent check. What is absent stays as it was; a word without anything is no news.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Word {
    /// Whether the backend calls itself up.
    pub up: Option<bool>,
    /// Weight that it asks for.
    pub weight: Option<DynamicWeight>,
    /// State that it asks for.
    pub administrative: Option<Administrative>,
    /// Reason that it gives.
    pub reason: Option<Reason>,
}

/// Weight that a probe gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DynamicWeight {
    /// Percent of the configured weight.
    Percent(u16),
    /// A weight in place of the configured one.
    Absolute(u16),
}

/// State that an operator, or the backend itself, asks for. A later one is stronger.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Administrative {
    /// Its checks decide.
    #[default]
    Enabled,
    /// No new connections.
    Drain,
    /// No new connections, for maintenance. Checks go on, so its health is known when it returns.
    Disabled,
}

impl fmt::Display for Administrative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enabled => "enabled",
            Self::Drain => "drain",
            Self::Disabled => "disabled",
        })
    }
}
