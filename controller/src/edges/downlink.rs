// SPDX-License-Identifier: Apache-2.0

//! The centre's side of work: what is to be written into the cluster of an edge, on its way to the edge.

use std::sync::Arc;
use std::time::Duration;

use portolan_edge::work::{EdgeWork, WorkOutbox};
use portolan_proto::v1;
use portolan_source::edge::{Answered, EdgeStream, SendWork, SendingWork};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use v1::centre_message::Message;

use crate::mcs::{Leading, Work, Works};

/// The shortest time between two changes of the work: what changes meanwhile is in the next one, each object once.
const PACE: Duration = Duration::from_millis(50);
/// About the size of a message with work, in bytes.
const PART_BYTES: usize = 256 * 1024;

/// Sends the work of a cluster to the edge whose stream counts, while this replica leads.
pub(crate) fn send_work(cluster: &Arc<str>, works: Works, leading: Leading) -> SendWork {
    let cluster = Arc::clone(cluster);
    Box::new(move |stream: &EdgeStream| {
        if !stream.writes {
            // Nobody would do it.
            works.leave(&cluster);
            return None;
        }
        let downlink = Downlink {
            cluster: Arc::clone(&cluster),
            work: works.join(&cluster),
            leading: leading.clone(),
            sender: stream.work.clone(),
        };
        Some(Box::pin(downlink.run()) as SendingWork)
    })
}

/// Work on its way over one stream.
struct Downlink {
    cluster: Arc<str>,
    work: watch::Receiver<Work>,
    leading: Leading,
    sender: mpsc::Sender<Answered>,
}

impl Downlink {
    /// Runs until the stream has ended, or another one has taken its place.
    async fn run(mut self) {
        let mut outbox = WorkOutbox::default();
        loop {
            let work = self.work.borrow_and_update().clone();
            let work = if self.leading.is_leading() {
                EdgeWork {
                    leading: true,
                    writes: work.writes,
                    slices: work.slices,
                }
            } else {
                EdgeWork::default()
            };
            if let Some(change) = outbox.take(&work) {
                if let Some(what) = &change.left_out {
                    tracing::warn!(cluster = %self.cluster, %what, "not sent to the edge controller");
                }
                let (parts, commit) = change.into_parts(PART_BYTES);
                let parts = parts.into_iter().map(Message::Work);
                for message in parts.chain([Message::WorkCommit(commit)]) {
                    let message = Some(message);
                    let sent = self.sender.send(Ok(v1::CentreMessage { message })).await;
                    if sent.is_err() {
                        return;
                    }
                }
                sleep(PACE).await;
            }
            tokio::select! {
                changed = self.work.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = self.leading.changed() => {}
            }
        }
    }
}
