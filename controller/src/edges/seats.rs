// SPDX-License-Identifier: Apache-2.0

//! The clusters whose objects edge controllers may send.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_source::edge::EdgeStream;
use tokio::sync::mpsc;
use tonic::Status;

/// Length of the queue of new streams of a cluster.
const STREAMS: usize = 4;

/// The clusters of the policy with `access: {edge: {}}`, shared by their sources and the service. Each has one
/// receiving task.
#[derive(Debug, Clone, Default)]
pub(crate) struct EdgeSeats(Arc<Mutex<BTreeMap<Arc<str>, mpsc::Sender<EdgeStream>>>>);

impl EdgeSeats {
    /// Takes streams of a cluster from now on. The last receiver gets no more.
    pub(crate) fn open(&self, cluster: &Arc<str>) -> mpsc::Receiver<EdgeStream> {
        let (sender, streams) = mpsc::channel(STREAMS);
        self.lock().insert(Arc::clone(cluster), sender);
        streams
    }

    /// Takes no more streams of a cluster.
    pub(crate) fn close(&self, cluster: &str) {
        self.lock().remove(cluster);
    }

    #[cfg(test)]
    pub(crate) fn has(&self, cluster: &str) -> bool {
        self.lock().contains_key(cluster)
    }

    /// Passes a stream on.
    ///
    /// # Errors
    /// If the cluster has no edge, or its receiving task is busy or just about to start again.
    pub(super) fn seat(&self, cluster: &str, stream: EdgeStream) -> Result<(), Status> {
        let Some(seat) = self.lock().get(cluster).cloned() else {
            let why = format!("cluster {cluster:?}: no Cluster of this name has spec.access.edge");
            return Err(Status::failed_precondition(why));
        };
        let seated = seat.try_send(stream);
        seated.map_err(|_| Status::unavailable("the receiver of the cluster is busy"))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, mpsc::Sender<EdgeStream>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
