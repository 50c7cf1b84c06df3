// SPDX-License-Identifier: Apache-2.0

//! The objects of the edge's cluster, on their way from the source to the writer and to the centre.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_catalog::ObjectChange;
use portolan_edge::{BadHashes, Outbox, StreamId, Transition};
use portolan_source::Event;
use tokio::sync::{mpsc, watch};

use super::UplinkStats;
use super::desk::Desk;

/// The objects, shared by the source's events and the streams to the replicas of the centre.
#[derive(Debug)]
pub(super) struct Objects {
    outbox: Mutex<Outbox>,
    desk: Arc<Desk>,
    news: watch::Sender<News>,
    stats: Arc<UplinkStats>,
}

/// State that streams wait for.
#[derive(Debug, Clone, Copy, Default)]
struct News {
    changes: u64,
    is_synced: bool,
}

impl Objects {
    pub(super) fn new(stats: Arc<UplinkStats>, desk: Arc<Desk>) -> Arc<Self> {
        Arc::new(Self {
            outbox: Mutex::default(),
            desk,
            news: watch::Sender::default(),
            stats,
        })
    }

    /// Passes events on, and takes in their objects. Ends with the events, or with their reader.
    pub(super) async fn tee(
        self: Arc<Self>,
        mut events: mpsc::Receiver<Event>,
        reader: mpsc::Sender<Event>,
    ) {
        while let Some(event) = events.recv().await {
            match &event {
                Event::Changes(changes) => self.apply(changes),
                Event::Synced => self.news.send_modify(|news| news.is_synced = true),
                _ => {}
            }
            if reader.send(event).await.is_err() {
                return;
            }
        }
    }

    fn apply(&self, changes: &[ObjectChange]) {
        // The centre, which hears of them later, is never ahead.
        self.desk.see(changes);
        let mut outbox = self.lock();
        for change in changes {
            if let Err(error) = outbox.apply(change) {
                tracing::warn!(%error, "object not sent to the centre");
                self.stats.too_large();
            }
        }
        self.stats.set_objects(outbox.len());
        drop(outbox);
        self.news.send_modify(|news| news.changes += 1);
    }

    /// Waits until all objects of the source are there.
    pub(super) async fn synced(&self) {
        // The sender is in `self`.
        let _ = self.news.subscribe().wait_for(|news| news.is_synced).await;
    }

    /// Begins a stream to a replica with buckets of these hashes.
    pub(super) fn begin(self: &Arc<Self>, bucket_hashes: &[u8]) -> Result<Stream, BadHashes> {
        let news = self.news.subscribe();
        Ok(Stream {
            id: self.lock().begin(bucket_hashes)?,
            news,
            objects: Arc::clone(self),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Stream of the objects that one replica lacks. Nothing is kept for it once this is dropped.
#[derive(Debug)]
pub(super) struct Stream {
    id: StreamId,
    news: watch::Receiver<News>,
    objects: Arc<Objects>,
}

impl Stream {
    /// The next transition, if the replica lacks something.
    pub(super) fn take(&mut self) -> Option<Transition> {
        self.news.mark_unchanged();
        self.objects.lock().take(self.id)
    }

    /// Waits for changes since the last [`take`](Self::take).
    pub(super) async fn changed(&mut self) {
        // The sender is in `self`.
        let _ = self.news.changed().await;
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.objects.lock().end(self.id);
    }
}
