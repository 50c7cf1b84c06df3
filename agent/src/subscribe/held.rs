// SPDX-License-Identifier: Apache-2.0

//! Held deletions, for the admin server, which shows and confirms them.

use portolan_subscription::HeldDeletions;
use tokio::sync::watch;

/// Shared between the table's source and the admin server.
#[derive(Debug, Clone)]
pub struct HeldView {
    held: watch::Sender<Option<HeldDeletions>>,
    confirmed: watch::Sender<Option<HeldDeletions>>,
}

impl Default for HeldView {
    fn default() -> Self {
        Self {
            held: watch::Sender::new(None),
            confirmed: watch::Sender::new(None),
        }
    }
}

impl HeldView {
    /// The held deletions, if any.
    #[must_use]
    pub fn held(&self) -> Option<HeldDeletions> {
        self.held.borrow().clone()
    }

    /// Confirms the held deletions, and returns them.
    #[must_use]
    pub fn confirm(&self) -> Option<HeldDeletions> {
        let held = self.held()?;
        self.confirmed.send_replace(Some(held.clone()));
        Some(held)
    }

    pub(super) fn show(&self, held: Option<HeldDeletions>) {
        self.held.send_if_modified(|shown| {
            let differs = *shown != held;
            *shown = held;
            differs
        });
    }

    pub(super) fn confirmations(&self) -> Confirmations {
        Confirmations(self.confirmed.subscribe())
    }
}

/// Confirmations by operators on the node.
#[derive(Debug)]
pub(super) struct Confirmations(watch::Receiver<Option<HeldDeletions>>);

impl Confirmations {
    /// The epoch and revision of the next confirmation.
    pub(super) async fn next(&mut self) -> (u64, u64) {
        loop {
            if self.0.changed().await.is_err() {
                return std::future::pending().await;
            }
            if let Some(held) = &*self.0.borrow_and_update() {
                return (held.epoch, held.revision);
            }
        }
    }
}
