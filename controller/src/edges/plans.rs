// SPDX-License-Identifier: Apache-2.0

//! The centre's side of plans: what the edges of clusters need to serve imports, shared by the writer that makes plans
//! and the streams that send them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_edge::plans::{PlanOutbox, PlanParts, PlanTransition};
use portolan_edge::{BadHashes, StreamId};
use portolan_federate::plans::PlanChanges;
use tokio::sync::watch;

/// The plans of all clusters whose edges have asked for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct EdgePlans(Arc<Mutex<Seats>>);

#[derive(Debug, Default)]
struct Seats {
    /// By cluster.
    seats: BTreeMap<Arc<str>, Seat>,
    /// The parts of all plans.
    parts: PlanParts,
}

/// The plans of one cluster.
#[derive(Debug, Default)]
struct Seat {
    outbox: PlanOutbox,
    changes: watch::Sender<u64>,
}

impl EdgePlans {
    /// The clusters whose edges have asked, each with the plans that there are.
    pub(crate) fn clusters(&self) -> Vec<Arc<str>> {
        self.lock().seats.keys().cloned().collect()
    }

    /// Returns `true` if the plans of a cluster have been taken in since its edge has asked.
    pub(crate) fn has_begun(&self, cluster: &str) -> bool {
        let seats = &self.lock().seats;
        let seat = seats.get(cluster);
        seat.is_some_and(|seat| seat.outbox.is_complete())
    }

    /// Takes in plans that differ; the first ones of a cluster are all that there are.
    pub(crate) fn apply(&self, cluster: &str, changes: &PlanChanges) {
        let Seats { seats, parts } = &mut *self.lock();
        let Some(seat) = seats.get_mut(cluster) else {
            return;
        };
        for refused in seat.outbox.apply(changes, parts) {
            tracing::warn!(cluster, %refused, "not sent to the edge controller");
        }
        seat.changes.send_modify(|changes| *changes += 1);
    }

    /// Forgets a cluster. Its streams are sent nothing more.
    pub(crate) fn leave(&self, cluster: &str) {
        self.lock().seats.remove(cluster);
    }

    /// Has an edge of a cluster ask for plans.
    #[cfg(test)]
    pub(crate) fn ask(&self, cluster: &Arc<str>) {
        drop(self.join(cluster, Vec::new()));
    }

    /// The plans for one stream, whose edge has buckets of these hashes. From now on the cluster's are made.
    pub(super) fn join(&self, cluster: &Arc<str>, bucket_hashes: Vec<u8>) -> PlanFeed {
        let seats = &mut self.lock().seats;
        let seat = seats.entry(Arc::clone(cluster)).or_default();
        PlanFeed {
            changes: seat.changes.subscribe(),
            plans: self.clone(),
            cluster: Arc::clone(cluster),
            bucket_hashes,
            stream: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Seats> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Plans that one stream lacks. Nothing is kept for it once this is dropped.
#[derive(Debug)]
pub(super) struct PlanFeed {
    plans: EdgePlans,
    cluster: Arc<str>,
    bucket_hashes: Vec<u8>,
    stream: Option<StreamId>,
    changes: watch::Receiver<u64>,
}

impl PlanFeed {
    /// The next transition; `None` if the edge has all plans and knows whether this replica leads, or before the plans
    /// are complete.
    ///
    /// # Errors
    /// If the edge told no hashes of buckets.
    pub(super) fn take(&mut self, leading: bool) -> Result<Option<PlanTransition>, BadHashes> {
        self.changes.mark_unchanged();
        let seats = &mut self.plans.lock().seats;
        let Some(seat) = seats.get_mut(&self.cluster) else {
            return Ok(None);
        };
        if !seat.outbox.is_complete() {
            return Ok(None);
        }
        let stream = match self.stream {
            Some(stream) => stream,
            None => *self.stream.insert(seat.outbox.begin(&self.bucket_hashes)?),
        };
        Ok(seat.outbox.take(stream, leading))
    }

    /// Waits for changes since the last [`take`](Self::take); for ever once the cluster has left.
    pub(super) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for PlanFeed {
    fn drop(&mut self) {
        let seats = &mut self.plans.lock().seats;
        if let (Some(stream), Some(seat)) = (self.stream, seats.get_mut(&self.cluster)) {
            seat.outbox.end(stream);
        }
    }
}
