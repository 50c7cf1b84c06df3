// SPDX-License-Identifier: Apache-2.0

//! Facts about the edge controller of a cluster, for metrics and operators.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Contact;

/// Updated by the receiving task, read by others.
#[derive(Debug, Default)]
pub struct Stats {
    /// Contact of the edge with its own source, as the edge tells it.
    pub contact: Contact,
    /// Transitions that were taken in.
    pub transitions: AtomicU64,
    /// The edge whose stream is open.
    edge: Mutex<Option<Arc<str>>>,
    /// Streams that were ended, by the reason.
    ended: Mutex<BTreeMap<&'static str, u64>>,
}

impl Stats {
    /// The edge whose stream is open.
    #[must_use]
    pub fn edge(&self) -> Option<Arc<str>> {
        self.edge
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Streams that were ended or refused, by the reason.
    #[must_use]
    pub fn ended(&self) -> BTreeMap<&'static str, u64> {
        self.ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set_edge(&self, edge: Option<&Arc<str>>) {
        *self.edge.lock().unwrap_or_else(PoisonError::into_inner) = edge.cloned();
    }

    /// Counts the end of a stream.
    pub fn count_end(&self, reason: &'static str) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended.entry(reason).or_default() += 1;
    }

    pub(super) fn count_transition(&self) {
        self.transitions.fetch_add(1, Ordering::Relaxed);
    }
}
