// SPDX-License-Identifier: Apache-2.0

//! Refusals of an edge to do what the centre asks for: counted, and each named once in the log.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use super::UplinkStats;

/// The most that are remembered as named.
const NAMED: usize = 1000;

/// Refusals so far.
#[derive(Debug)]
pub(super) struct Refusals {
    named: Mutex<BTreeSet<String>>,
    /// Text of the log message.
    message: &'static str,
    stats: Arc<UplinkStats>,
}

impl Refusals {
    pub(super) fn new(stats: Arc<UplinkStats>, message: &'static str) -> Self {
        Self {
            named: Mutex::default(),
            message,
            stats,
        }
    }

    /// Notes what is refused, and why.
    pub(super) fn note(&self, what: &impl Display) {
        self.stats.refused();
        let what = what.to_string();
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() < NAMED && named.insert(what.clone()) {
            tracing::warn!(what, "{}", self.message);
        }
    }
}
