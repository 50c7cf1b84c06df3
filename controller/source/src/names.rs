// SPDX-License-Identifier: Apache-2.0

//! The sink of DNS: a channel of its own, so that the tables wait neither for Namespaces nor for
//! Pods.

use portolan_dns::NamesChange;
use tokio::sync::mpsc;

use crate::sink::Closed;

/// The sending end.
#[derive(Debug, Clone)]
pub struct NameSink(mpsc::Sender<Vec<NamesChange>>);

impl NameSink {
    /// A sink and its reader; the source waits while `capacity` batches are unread.
    /// [`NamesChange::Synced`] is in the batch that completes the first listings.
    #[must_use]
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<Vec<NamesChange>>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self(sender), receiver)
    }

    /// Sends changes, if there are any, as soon as there is room for them.
    pub(crate) async fn send(&self, changes: Vec<NamesChange>) -> Result<(), Closed> {
        if changes.is_empty() {
            return Ok(());
        }
        self.0.send(changes).await.map_err(|_| Closed)
    }
}
