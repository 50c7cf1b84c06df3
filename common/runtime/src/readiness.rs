// SPDX-License-Identifier: Apache-2.0

//! Conditions that keep a program from being ready.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The pending conditions of a program, which is ready when there are none.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeSet<&'static str>>>);

/// Keeps a program from being ready until it is dropped.
#[derive(Debug)]
pub struct BlockReady {
    readiness: Readiness,
    condition: &'static str,
}

impl Readiness {
    /// Adds a condition, which is met when the guard is dropped.
    #[must_use]
    pub fn block(&self, condition: &'static str) -> BlockReady {
        self.pending_set().insert(condition);
        BlockReady {
            readiness: self.clone(),
            condition,
        }
    }

    /// The pending conditions, sorted.
    #[must_use]
    pub fn pending(&self) -> Vec<&'static str> {
        self.pending_set().iter().copied().collect()
    }

    fn pending_set(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for BlockReady {
    fn drop(&mut self) {
        self.readiness.pending_set().remove(self.condition);
    }
}
