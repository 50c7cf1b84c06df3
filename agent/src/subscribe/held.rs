//! The held table, for those outside: to be looked at, and to be confirmed.

use std::time::Instant;

use tokio::sync::watch;

/// A table that is held back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldTable {
    /// The epoch of the controller that sent it.
    pub epoch: u64,
    /// Its revision; it grows as changes come.
    pub revision: u64,
    /// How many records it would delete.
    pub deleted: usize,
    /// How many are in force.
    pub records: usize,
    /// When it counts as confirmed; `None` for never, or while there is no stream.
    pub until: Option<Instant>,
}

/// Shared between the subscription and the admin server.
#[derive(Debug, Clone)]
pub struct Holding {
    held: watch::Sender<Option<HeldTable>>,
    confirmed: watch::Sender<Option<HeldTable>>,
}

impl Default for Holding {
    fn default() -> Self {
        Self {
            held: watch::Sender::new(None),
            confirmed: watch::Sender::new(None),
        }
    }
}

impl Holding {
    /// What is held, if anything.
    #[must_use]
    pub fn held(&self) -> Option<HeldTable> {
        self.held.borrow().clone()
    }

    /// Says that what is held may be programmed, and what that was; `None` if nothing is held.
    #[must_use]
    pub fn confirm(&self) -> Option<HeldTable> {
        let held = self.held()?;
        self.confirmed.send_replace(Some(held.clone()));
        Some(held)
    }

    pub(super) fn show(&self, held: Option<HeldTable>) {
        self.held.send_if_modified(|shown| {
            let differs = *shown != held;
            *shown = held;
            differs
        });
    }

    pub(super) fn confirmations(&self) -> watch::Receiver<Option<HeldTable>> {
        self.confirmed.subscribe()
    }
}
