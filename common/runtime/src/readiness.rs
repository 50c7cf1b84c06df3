//! What a program waits for before it calls itself ready.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The things that are still waited for. Ready when there are none.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<BTreeSet<&'static str>>>);

/// Keeps a program unready as long as it lives.
#[derive(Debug)]
pub struct BlockReady {
    readiness: Readiness,
    what: &'static str,
}

impl Readiness {
    /// Waits for something: until the guard is dropped the program is not ready.
    #[must_use]
    pub fn block(&self, what: &'static str) -> BlockReady {
        self.pending_set().insert(what);
        BlockReady {
            readiness: self.clone(),
            what,
        }
    }

    /// What is still waited for, sorted.
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
        self.readiness.pending_set().remove(self.what);
    }
}
