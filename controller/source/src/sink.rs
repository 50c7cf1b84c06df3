// SPDX-License-Identifier: Apache-2.0

//! The sink of a source's events: a bounded channel, so that a slow reader slows the source down
//! instead of filling memory.

use std::sync::Arc;

use portolan_catalog::ObjectChange;
use portolan_director::Director;
use tokio::sync::mpsc;

use crate::FileProblem;
use crate::file::HooksOf;

/// An event of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Objects changed. The order counts.
    Changes(Vec<ObjectChange>),
    /// All that is wrong with the files and not with one known object, whenever that changes.
    FileProblems(Vec<FileProblem>),
    /// The `Director` of this host in the files, defaults without one. Sent by a source that was told the host's
    /// name, before the objects that were read with it.
    Director(Arc<Director>),
    /// The hooks of load balancers in the files of this host, as [`Event::Director`].
    Hooks(Arc<HooksOf>),
    /// All existing objects have been sent. Sent exactly once; before it, nothing may be served and
    /// nothing deleted.
    Synced,
    /// Files have been read after the request with this number, and all that was found is sent; see
    /// [`ReadRequests`](crate::file::ReadRequests).
    Read(u64),
}

/// The sink's reader is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reader of the source's events is gone")]
pub struct Closed;

/// The sending end. Each source has one of its own.
#[derive(Debug, Clone)]
pub struct Sink(mpsc::Sender<Event>);

impl Sink {
    /// A sink and its reader; the source waits while `capacity` events are unread.
    #[must_use]
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<Event>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self(sender), receiver)
    }

    /// Sends an event, as soon as there is room for it.
    ///
    /// # Errors
    ///
    /// The reader is gone.
    pub async fn send(&self, event: Event) -> Result<(), Closed> {
        self.0.send(event).await.map_err(|_| Closed)
    }

    /// Sends changes, if there are any.
    pub(crate) async fn send_changes(&self, changes: Vec<ObjectChange>) -> Result<(), Closed> {
        if changes.is_empty() {
            return Ok(());
        }
        self.send(Event::Changes(changes)).await
    }
}

impl From<mpsc::Sender<Event>> for Sink {
    fn from(sender: mpsc::Sender<Event>) -> Self {
        Self(sender)
    }
}
