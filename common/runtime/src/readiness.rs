// SPDX-License-Identifier: Apache-2.0

//! Conditions that keep a program from being ready.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

/// The pending conditions of a program, which is ready when there are none.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<watch::Sender<BTreeSet<&'static str>>>);

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
        self.0.send_modify(|pending| {
            pending.insert(condition);
        });
        BlockReady {
            readiness: self.clone(),
            condition,
        }
    }

    /// The pending conditions, sorted.
    #[must_use]
    pub fn pending(&self) -> Vec<&'static str> {
        self.0.borrow().iter().copied().collect()
    }

    /// The pending conditions as they change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<BTreeSet<&'static str>> {
        self.0.subscribe()
    }
}

impl Drop for BlockReady {
    fn drop(&mut self) {
        self.readiness.0.send_modify(|pending| {
            pending.remove(self.condition);
        });
    }
}
