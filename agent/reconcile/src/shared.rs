// SPDX-License-Identifier: Apache-2.0

//! Desired state that others may read.

use std::sync::{Arc, PoisonError, RwLock};

use portolan_plan::{Desired, IncrementalDesired};

/// Desired state, shared with debug dumps. A reader blocks the reconciliation.
#[derive(Debug, Clone, Default)]
pub struct SharedDesired(Arc<RwLock<IncrementalDesired>>);

impl SharedDesired {
    /// Desired state of the last reconciliation.
    pub fn read<T>(&self, look: impl FnOnce(&Desired) -> T) -> T {
        look(
            self.0
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .desired(),
        )
    }

    pub(crate) fn write<T>(&self, change: impl FnOnce(&mut IncrementalDesired) -> T) -> T {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}
