// SPDX-License-Identifier: Apache-2.0

//! Refusals of an edge to write for the centre: counted, and each named once in the log.

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
    stats: Arc<UplinkStats>,
}

impl Refusals {
    pub(super) fn new(stats: Arc<UplinkStats>) -> Self {
        Self {
            named: Mutex::default(),
            stats,
        }
    }

    /// Notes what is refused, and why.
    pub(super) fn note(&self, what: &impl Display) {
        self.stats.refused();
        let what = what.to_string();
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.len() < NAMED && named.insert(what.clone()) {
            tracing::warn!(
                what,
                "not written for the centre: not what an edge writes (logged once)"
            );
        }
    }
}
